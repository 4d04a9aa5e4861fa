"""Two steps of TRL's GRPO on a small random model, with weighted rollouts (`scripts.train_grpo`).

VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("trl", reason="`make trl` runs it")

from trl import GRPOTrainer

import gcd
import gcd_vllm
from gcd_vllm._requests import ConstraintRequest
from scripts.train_grpo import train
from tests_vllm.oracle import Oracle, log_sum

CHOICE = {"choice": ["yes", "no", "none", "yesterday"]}
BUDGET = 5
GROUP = 64
PROMPT = "Once upon a time"


def share_of_yes(folder, vocabulary, prompt):
    """P("yes" | constraint) under the model itself, by brute force."""
    language = ConstraintRequest("choice", CHOICE["choice"]).language()
    answers = Oracle(str(folder), gcd.lift(language, vocabulary), prompt).answers(BUDGET)
    yes = [log_p for ids, log_p in answers.items() if vocabulary.decode(ids[:-1]) == b"yes"]
    return math.exp(log_sum(yes) - log_sum(answers.values()))


def test_two_steps_have_the_models_log_probabilities_and_raise_the_reward(
    random_llama, tmp_path, monkeypatch
):
    steps, drawn = [], []
    score_completions = GRPOTrainer._generate_and_score_completions
    sample = gcd_vllm.sample

    def scored(self, inputs):
        found = score_completions(self, inputs)
        ids = torch.cat([found["prompt_ids"], found["completion_ids"]], dim=1)
        mask = torch.cat([found["prompt_mask"], found["completion_mask"]], dim=1)
        with torch.no_grad():
            log_p, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, found["completion_ids"].shape[1]
            )
        steps.append((log_p * found["completion_mask"], found))
        return found

    def sampled(llm, *arguments, **options):
        found = sample(llm, *arguments, **options)
        drawn.append((llm, found))
        return found

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", scored)
    monkeypatch.setattr(gcd_vllm, "sample", sampled)
    trainer = train(
        random_llama, [PROMPT], CHOICE, lambda text: float(text == "yes"), budget=BUDGET,
        group=GROUP, max_steps=2, learning_rate=3e-4, lr_scheduler_type="constant",
        output_dir=str(tmp_path / "run"), save_strategy="no", report_to="none", use_cpu=True,
        bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    assert trainer.state.global_step == 2
    assert len(steps) == len(drawn) == 2

    for (log_p, found), (_, (posterior,)) in zip(steps, drawn, strict=True):
        # TRL gets log p under the weights of this step.
        assert torch.allclose(found["sampling_per_token_logps"], log_p, atol=1e-3)
        weights = [math.exp(each.log_weight) for each in posterior.particles]
        weights = [weight / sum(weights) for weight in weights]
        scores = [float(each.answer == b"yes") for each in posterior.particles]
        mean = sum(w * r for w, r in zip(weights, scores, strict=True))
        print(f"weighted mean reward {mean:.3f}, largest weight {max(weights):.3f}")
        expected = [GROUP * w * (r - mean) for w, r in zip(weights, scores, strict=True)]
        order = [row.tolist() for row in found["completion_ids"]]
        for row, advantage in zip(order, found["advantages"].tolist(), strict=True):
            number = next(
                n for n, each in enumerate(posterior.particles)
                if row[: len(each.ids)] == list(each.ids)
            )  # fmt: skip
            assert advantage == pytest.approx(expected[number], abs=1e-4)
        assert 0 < mean < 1, scores
    assert not torch.equal(steps[0][0], steps[1][0])

    vocabulary = gcd_vllm.vocabulary_of(drawn[0][0])
    prompt = tuple(drawn[0][0].get_tokenizer().encode(PROMPT))
    trainer.model.save_pretrained(tmp_path / "trained")
    before = share_of_yes(random_llama, vocabulary, prompt)
    after = share_of_yes(tmp_path / "trained", vocabulary, prompt)
    print(f"P(yes | constraint): {before:.3f} before, {after:.3f} after two steps")
    assert after > before
