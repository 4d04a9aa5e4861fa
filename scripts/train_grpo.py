"""Train a model by GRPO with rollouts under a constraint, each with its importance weight.

    make trl
    VLLM_ENABLE_V1_MULTIPROCESSING=0 .venv-trl/bin/python -m scripts.train_grpo --steps 2

It is an example (docs/vllm_posteriors.md): a model that should answer "yes" is trained by TRL's
`GRPOTrainer`, with rollouts from a vLLM engine in the same process.

The policy is the model itself, without a mask. TRL computes its log-probabilities and gradients.
Rollouts are drawn under the mask, so rollout i of a group of G has the normalized weight w_i. With
rewards r_i and their weighted mean m = sum of w_i r_i, its advantage is G w_i (r_i - m). These sum
to zero over a group. So the mean that TRL subtracts is zero, if the function of rewards returns
these advantages and `scale_rewards` is "none".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gcd_vllm
from smc import Weights

CONSTRAINT = {"choice": ["yes", "no"]}
PROMPTS = ("Is Rome in Italy? ", "Is Oslo in Norway? ")


def train(
    model: str,
    prompts: Sequence[str],
    constraint: Any,
    score: Callable[[str], float],
    *,
    budget: int,
    group: int,
    **options: Any,
) -> Any:
    """Train a model, and return TRL's trainer.

    Args:
        model: directory or hub name.
        prompts: prompts; each step reads all of them.
        constraint: C, as in `gcd_vllm.sample`.
        score: returns the reward of an answer.
        budget: maximum number of tokens of an answer, EOS included.
        group: G, the number of rollouts per prompt.
        options: further options of TRL's `GRPOConfig`.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]
    from vllm import LLM

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=512,
        worker_extension_cls="gcd_vllm.WorkerExtension",
        logits_processors=["gcd_vllm:Processor"],
    )

    def roll_out(repeated: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Draw a group for each prompt, with the model's current parameters.

        Args:
            repeated: prompts; each occurs G times in a row.
            trainer: TRL's trainer.
        """
        parameters = list(trainer.model.state_dict().items())
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": parameters})
        llm.reset_prefix_cache()
        found = gcd_vllm.sample(
            llm,
            repeated[::group],
            constraint,
            max_tokens=budget,
            particles=group,
            seed=trainer.state.global_step,
        )
        rollouts: list[Any] = [each for posterior in found for each in posterior.particles]
        log_weights = torch.tensor([each.log_weight for each in rollouts]).view(-1, group)
        return {
            "prompt_ids": [llm.get_tokenizer().encode(prompt) for prompt in repeated],
            "completion_ids": [list(each.ids) for each in rollouts],
            "logprobs": [list(each.token_log_p) for each in rollouts],
            "weight": Weights.of(log_weights).normalized.flatten().tolist(),
        }

    def advantages(completions: list[str], weight: list[float], **_: Any) -> list[float]:
        """Return G w_i (r_i - m); TRL passes the member `weight` of the rollouts."""
        rewards = torch.tensor([score(text) for text in completions]).double().view(-1, group)
        weights = torch.tensor(weight, dtype=torch.float64).view(-1, group)
        mean = (weights * rewards).sum(dim=1, keepdim=True)
        return (group * weights * (rewards - mean)).flatten().tolist()

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            per_device_train_batch_size=len(prompts) * group,
            num_generations=group,
            scale_rewards="none",
            **options,
        ),
        reward_funcs=advantages,
        rollout_func=roll_out,
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
    )
    trainer.train()
    return trainer


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts.train_grpo", description=__doc__)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", default="runs/grpo", help="directory for the trained model")
    given = parser.parse_args()
    train(
        given.model, PROMPTS, CONSTRAINT, lambda text: float(text == "yes"), budget=4, group=8,
        max_steps=given.steps, output_dir=given.out, report_to="none",
    )  # fmt: skip


if __name__ == "__main__":
    main()
