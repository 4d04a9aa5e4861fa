"""`generate` of `transformers` with particles: the results of `smc.sample` in its format and by its
rules, or an error that names the unsupported setting.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import smc
from gcd import AutomatonBatch, ConstraintError, InfeasibleBudgetError, Vocabulary, lift
from smc._models.suitability import num_logits
from smc._transformers.generation import restrict
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, tiny_model

transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "tests" / "models" / "stories260K"
PAD = 4
SEVERAL = {"do_sample": True, "top_k": 0}  # required by generate for several sequences
PROMPTS = [[1], [0, 1, 2, 2], [2, 1]]
INPUTS = {
    "input_ids": torch.tensor([[PAD, PAD, PAD, 1], [0, 1, 2, 2], [PAD, PAD, 2, 1]]),
    "attention_mask": torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1]]),
}


@cache
def model() -> Any:
    return tiny_model()


def automata() -> list[Any]:
    return [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "a_star_b")]


def test_the_posteriors_are_those_of_the_sampler() -> None:
    """Use left padding, a constraint per prompt, temperature and top_p."""
    found = model().generate(
        **INPUTS,
        custom_generate=smc.generate(
            automata(), particles=8, seed=5, algorithm=smc.SMC(resampling="multinomial")
        ),
        max_new_tokens=6,
        temperature=0.7,
        top_p=0.95,
        return_dict_in_generate=True,
    )
    expected = sample_with(
        smc.TransformersLM(model(), None, VOCABULARY), PROMPTS, automata(), max_tokens=6,
        particles=8, proposal=restrict(smc.GCD(), 0.95), seed=5, temperature=0.7,
        resampling="multinomial",
    )  # fmt: skip
    assert len(found.posteriors) == 3
    for one, other in zip(found.posteriors, expected, strict=True):
        assert one.particles == other.particles
        assert one.answers == other.answers
        assert (one.exact, one.log_evidence, one.bounds, one.enumerated) == (
            False,
            None,
            None,
            False,
        )
        assert one.reliability.label in ("collapsed", "unknown")
    assert found["sequences"] is found.sequences


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.6, 0.75, 0.8, 0.95])
def test_the_nucleus_is_the_smallest_set_of_enough_probability(top_p: float) -> None:
    batch = smc.Batch(AutomatonBatch(automata()), torch.tensor([6] * 3))
    log_p = torch.randn(3, VOCABULARY.size, dtype=torch.float64).log_softmax(dim=1)
    log_p[0, 1:3] = -torch.inf
    proposal = smc.GCD()
    state = proposal.start(batch)
    whole, found = (each.guide(state, log_p) for each in (proposal, restrict(proposal, top_p)))
    for q, kept in zip(
        whole.apply(log_p).softmax(dim=1).tolist(), (~found.log_g.isneginf()).tolist(), strict=True
    ):
        chosen = [p for p, is_kept in zip(q, kept, strict=True) if is_kept]
        assert sum(chosen) >= top_p - 1e-12
        assert sum(chosen) - min(chosen) < top_p


def test_a_share_of_a_nucleus_is_refused() -> None:
    decode = smc.generate(automata(), particles=2, certify=0.9)
    with pytest.raises(ValueError, match=r"expected top_p=1 with certify, .* got top_p=0.9"):
        model().generate(**INPUTS, custom_generate=decode, max_new_tokens=6, top_p=0.9)


def test_guesses_are_read_ahead_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def watched(text: bytes, vocabulary: Any) -> list[int]:
        asked.append(text)
        return [*range(vocabulary.size)]

    def sequences(**options: Any) -> list[list[int]]:
        decode = smc.generate(automata(), particles=1, max_rows=1, seed=5, **options)
        return model().generate(**INPUTS, custom_generate=decode, max_new_tokens=6).tolist()

    monkeypatch.setattr("smc._forward.read_ahead.look_up", watched)
    plain = sequences(hooks=smc.Hooks(read_ahead=0))
    assert not asked
    assert sequences(hooks=smc.Hooks(read_ahead=4)) == plain
    assert asked


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_sequences_are_draws_from_the_posterior(algorithm: str) -> None:
    many = 3000
    found = model().generate(
        **INPUTS,
        custom_generate=smc.generate(automata(), particles=4, seed=1, algorithm=algorithm),
        max_new_tokens=5,
        num_return_sequences=many,
        **SEVERAL,
        return_dict_in_generate=True,
    )
    assert found.sequences.shape[0] == 3 * many
    assert torch.equal(found.sequences[:, :4], INPUTS["input_ids"].repeat_interleave(many, dim=0))
    for i, posterior in enumerate(found.posteriors):
        rows = found.sequences[i * many : (i + 1) * many, 4:].tolist()
        counts = Counter(tuple(token for token in row if token != PAD) for row in rows)
        weights: dict[tuple[int, ...], float] = {}
        for particle in posterior.particles:
            weight = math.exp(particle.log_weight)
            weights[particle.ids] = weights.get(particle.ids, 0.0) + weight
        total = sum(weights.values())
        assert set(counts) <= set(weights)
        for ids, weight in weights.items():
            share = weight / total
            error = 4.5 * math.sqrt(share * (1 - share) / many) + 1e-9
            assert counts[ids] / many == pytest.approx(share, abs=error)


def test_answers_of_different_lengths_are_padded_behind_their_end() -> None:
    found = model().generate(
        **INPUTS,
        custom_generate=smc.generate(automata()),
        max_new_tokens=9,
        num_return_sequences=9,
        **SEVERAL,
    )
    lengths = set()
    for row in found[:, 4:].tolist():
        end = next(t for t, token in enumerate(row) if token in VOCABULARY.eos_ids)
        assert set(row[end + 1 :]) <= {PAD}
        lengths.add(end)
    assert len(lengths) > 1
    assert max(lengths) + 5 == found.shape[1]


def test_the_generator_of_torch_decides_where_no_seed_is_given() -> None:
    decode, seeded = smc.generate(automata()), smc.generate(automata(), seed=3)

    def draw(custom: Any) -> list[list[int]]:
        options = {"max_new_tokens": 8, "num_return_sequences": 5, **SEVERAL}
        return model().generate(**INPUTS, custom_generate=custom, **options).tolist()

    model()  # created once, from the same generator
    torch.manual_seed(0)
    first, second = draw(decode), draw(decode)
    torch.manual_seed(0)
    assert draw(decode) == first != second
    assert draw(seeded) == draw(seeded)


def test_a_prompt_without_a_mask_and_max_length() -> None:
    found = model().generate(
        torch.tensor([[0, 1]]), custom_generate=smc.generate(CONSTRAINTS["forced"]()), max_length=5
    )
    assert VOCABULARY.decode(found[0, 2:].tolist()) == b"ba"
    assert found.shape[1] <= 5


def test_the_dead_get_padding() -> None:
    bare = smc.generate(CONSTRAINTS["forced"](), particles=1, proposal=smc.LM(), seed=0)
    found = model().generate(
        torch.tensor([[0, 1]]), custom_generate=bare, max_new_tokens=3,
        return_dict_in_generate=True, num_return_sequences=2, **SEVERAL,
    )  # fmt: skip
    assert found.posteriors[0].dead
    assert found.sequences.tolist() == [[0, 1]] * 2


class Recorder(transformers.generation.BaseStreamer):
    """A streamer that accepts several rows."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        assert self.ends == 0
        self.given.append(value)

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_streamer_gets_prompts_then_answers_as_in_sampling(wrapped: bool) -> None:
    decode = smc.generate(automata(), seed=2)
    custom = (lambda *args, **options: decode(*args, **options)) if wrapped else decode
    mine, other = Recorder(), Recorder()
    found = model().generate(**INPUTS, custom_generate=custom, max_new_tokens=9, streamer=mine)
    columns = [INPUTS["input_ids"], *found[:, 4:].unbind(dim=1)]
    assert len(columns) > 2
    assert [each.tolist() for each in mine.given] == [each.tolist() for each in columns]
    assert mine.ends == 1
    model().generate(**INPUTS, max_new_tokens=9, streamer=other)
    assert [each.shape for each in other.given[:2]] == [each.shape for each in mine.given[:2]]


@pytest.mark.parametrize("options", [{"num_beams": 1, "min_p": 0.5}, {"max_new_tokens": 1}, {}])
def test_a_streamer_is_ended_where_there_is_no_answer(idle: Any, options: dict[str, Any]) -> None:
    """Rejected by name, rejected by the sampler, or a failing model."""
    decode, streamer = smc.generate(CONSTRAINTS["a_star_b"]()), Recorder()
    options = {"max_new_tokens": 6, "custom_generate": decode, **options}
    with pytest.raises((ValueError, AssertionError), match=r"min_p|needs at least 2|was asked"):
        idle.generate(**INPUTS, streamer=streamer, **options)
    assert streamer.ends == 1
    assert len(streamer.given) == 1


def test_who_reads_a_streamer_sees_the_answer_and_its_end() -> None:
    lm = transformers.AutoModelForCausalLM.from_pretrained(STORIES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(STORIES)
    names = lift(choice(" Tim", " Sue", " Bob"), smc.TransformersLM(lm, tokenizer).vocabulary)
    inputs = tokenizer("There was a boy called", return_tensors="pt", return_token_type_ids=False)
    for text, budget in ((r"(Tim|Sue|Bob)", 8), ("", 1)):
        streamer = transformers.TextIteratorStreamer(
            tokenizer, skip_prompt=True, timeout=600, skip_special_tokens=True
        )
        options = {
            "custom_generate": smc.generate(names), "max_new_tokens": budget, "streamer": streamer
        }  # fmt: skip
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(lm.generate, **inputs, **options)
            assert re.fullmatch(text, "".join(streamer).strip())
            assert isinstance(
                call.exception(), InfeasibleBudgetError if budget == 1 else type(None)
            )


@pytest.fixture
def idle() -> Any:
    """A model that must not be called."""
    idle = tiny_model()
    num_logits(idle)  # calls it once

    def asked(*_: Any) -> None:
        raise AssertionError("the model was asked")

    idle.register_forward_pre_hook(asked)
    return idle


class Custom(transformers.LogitsProcessor):
    """A processor without effect."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 4}, "num_beams=4"),
    ({"top_k": 10}, "top_k=10;"),
    ({"top_k": 50}, "top_k=50;"),
    ({"do_sample": True}, r"top_k=50 \(50 is the default .*: pass top_k=0\)"),
    ({"min_p": 0.1}, "min_p=0.1"),
    ({"output_scores": True}, "output_scores=True"),
    ({"output_hidden_states": True}, "output_hidden_states=True"),
    ({"repetition_penalty": 1.2}, "got repetition_penalty=1.2; omit it"),
    ({"bad_words_ids": [[1]]}, "got bad_words_ids="),
    ({"logits_processor": [Custom()]}, "got Custom; .* use smc.BudgetLogitsProcessor"),
    ({"max_time": 2.0}, "max_time=2.0"),
    ({"temperature": 0.0}, "expected temperature to be positive and finite, got 0.0"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    ({"eos_token_id": [3, 1]}, r"EOS ids \[3, 5\], got the additional EOS ids \[1\]"),
    ({"position_ids": torch.arange(4).expand(3, 4)}, "expected position_ids that start at 0"),
    ({"inputs_embeds": torch.zeros(3, 4, 8)}, "inputs_embeds"),
    ({"assistant_model": tiny_model()}, "assistant_model=LlamaForCausalLM"),
    ({"max_new_tokens": 1}, "example 0: needs at least 2 tokens"),
    ({"max_new_tokens": 80}, "context of 64 tokens"),
]


@pytest.mark.parametrize(
    ("options", "message"), REFUSED, ids=[", ".join(options) for options, _ in REFUSED]
)
def test_what_cannot_be_honored_is_refused_by_name(
    idle: Any, options: dict[str, Any], message: str
) -> None:
    decode = smc.generate(CONSTRAINTS["a_star_b"]())
    with pytest.raises(ValueError, match=message):
        idle.generate(**{**INPUTS, "max_new_tokens": 6, "custom_generate": decode, **options})


OF_MODEL: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 50, "do_sample": True}, "pass top_k=0 to generate"),
    ({"top_k": 20}, "pass top_k=0 to generate"),
    ({"top_k": 50}, "pass top_k=0 to generate"),
    ({"repetition_penalty": 1.1}, "pass repetition_penalty=1.0 to generate"),
    ({"no_repeat_ngram_size": 2}, "pass no_repeat_ngram_size=0 to generate"),
    ({"typical_p": 0.9}, "pass typical_p=1.0 to generate"),
    ({"epsilon_cutoff": 0.1}, "pass epsilon_cutoff=0.0 to generate"),
    ({"eta_cutoff": 0.1}, "pass eta_cutoff=0.0 to generate"),
    ({"guidance_scale": 2.0}, "pass guidance_scale=1.0 to generate"),
    ({"num_beams": 3}, "pass num_beams=1 to generate"),
    ({"min_length": 3}, "pass min_length=0 to generate"),
    ({"min_new_tokens": 3}, "pass min_new_tokens=0 to generate"),
    ({"remove_invalid_values": True}, "pass remove_invalid_values=False to generate"),
    ({"output_scores": True}, "pass output_scores=False to generate"),
    ({"min_p": 0.1}, "set model.generation_config.min_p = None"),
    ({"suppress_tokens": [1]}, "set model.generation_config.suppress_tokens = None"),
    ({"begin_suppress_tokens": [1]}, "set model.generation_config.begin_suppress_tokens = None"),
    ({"bad_words_ids": [[1]]}, "set model.generation_config.bad_words_ids = None"),
    ({"sequence_bias": [[[1], 2.0]]}, "set model.generation_config.sequence_bias = None"),
    ({"forced_bos_token_id": 1}, "set model.generation_config.forced_bos_token_id = None"),
    ({"forced_eos_token_id": 3}, "set model.generation_config.forced_eos_token_id = None"),
    ({"exponential_decay_length_penalty": (3, 1.5)}, "exponential_decay_length_penalty = None"),
    ({"prompt_lookup_num_tokens": 3}, "model.generation_config.prompt_lookup_num_tokens = None"),
    ({"max_time": 9.0}, "set model.generation_config.max_time = None"),
    ({"temperature": 0.0}, "model's generation_config sets temperature=0.0: pass temperature"),
    ({"top_p": 0.0}, "the model's generation_config sets top_p=0.0: pass top_p=1.0"),
    (
        {"top_k": 5, "suppress_tokens": [1], "repetition_penalty": 1.1},
        "top_k=0, repetition_penalty=1.0 to generate and set model.generation_config.suppress",
    ),
]


@pytest.mark.parametrize(
    ("settings", "advice"), OF_MODEL, ids=[", ".join(settings) for settings, _ in OF_MODEL]
)
def test_settings_of_the_model_are_refused_as_its_own(
    settings: dict[str, Any], advice: str
) -> None:
    """Following the error message gives answers."""
    tiny = tiny_model()
    for name, value in settings.items():
        setattr(tiny.generation_config, name, value)
    options = {
        **INPUTS, "custom_generate": smc.generate(CONSTRAINTS["a_star_b"]()), "max_new_tokens": 6,
    }  # fmt: skip
    with pytest.raises(ValueError, match=re.escape(advice)) as found:
        tiny.generate(**options)
    message = str(found.value)
    for name, value in settings.items():
        assert name == "do_sample" or f"{name}={value!r}" in message
    assert "the model's generation_config sets" in message
    for name in re.findall(r"set model\.generation_config\.(\w+) = None", message):
        setattr(tiny.generation_config, name, None)
    passed = re.search(r"pass (.*?) to generate", message)
    if passed:
        options |= eval(f"dict({passed[1]})")
    assert len(tiny.generate(**options)) == 3


def test_settings_that_are_passed_are_not_said_to_be_the_model_s() -> None:
    tiny = tiny_model()
    tiny.generation_config.top_k = 7
    options = {**INPUTS, "custom_generate": smc.generate(CONSTRAINTS["a_star_b"]())}
    with pytest.raises(ValueError, match="got top_k=7; omit it"):
        tiny.generate(**options, max_new_tokens=6, top_k=7)
    config = transformers.GenerationConfig(max_new_tokens=6, top_k=8)
    with pytest.raises(ValueError, match="got top_k=8; omit it"):
        tiny.generate(**options, generation_config=config)


def test_sampling_with_top_k_off_is_honored() -> None:
    decode = smc.generate(CONSTRAINTS["a_star_b"]())
    options = {"do_sample": True, "top_k": 0, "temperature": 0.5, "max_new_tokens": 6}
    assert len(model().generate(**INPUTS, custom_generate=decode, **options)) == 3


@pytest.mark.usefixtures("unchecked_annotations")
def test_constraints_and_models_that_do_not_fit(idle: Any) -> None:
    one = CONSTRAINTS["a_star_b"]()
    with pytest.raises(ValueError, match=r"expected as many constraints as prompts \(3\), got 2"):
        idle.generate(**INPUTS, custom_generate=smc.generate([one] * 2), max_new_tokens=6)
    wide = lift(choice("ab"), Vocabulary.from_bytes([b"a", b"b", b"", b"", b"", b"", b""], [3, 5]))
    with pytest.raises(ConstraintError, match="over 6 tokens, as in the model, got one over 7"):
        idle.generate(**INPUTS, custom_generate=smc.generate(wide), max_new_tokens=6)
    with pytest.raises(ConstraintError, match=r"a TokenAutomaton, got Automaton; use gcd.lift"):
        smc.generate(choice("ab"))  # type: ignore[arg-type]
    with pytest.raises(InfeasibleBudgetError):
        idle.generate(**INPUTS, custom_generate=smc.generate(automata()), max_new_tokens=1)
    right = {"input_ids": torch.tensor([[1, PAD]]), "attention_mask": torch.tensor([[1, 0]])}
    with pytest.raises(ValueError, match="expected attention_mask"):
        idle.generate(**right, custom_generate=smc.generate(one), max_new_tokens=6)
    read = transformers.DynamicCache()
    model()(torch.tensor([[1, 2]]), past_key_values=read)
    with pytest.raises(ValueError, match=r"empty (past_key_values|cache), got one with 2 tokens"):
        idle.generate(
            torch.tensor([[1, 2, 0]]), past_key_values=read, custom_generate=smc.generate(one),
            max_new_tokens=6,
        )  # fmt: skip
    with pytest.raises(ValueError, match="training mode"):
        idle.train().generate(**INPUTS, custom_generate=smc.generate(one), max_new_tokens=6)


def test_transformers_is_loaded_when_it_is_needed() -> None:
    """Modules that import it eagerly are imported by name or by one another only."""
    lazy = {"generate_call", "generation", "logits_processor"}
    for path in (ROOT / "smc").glob("*.py"):
        names = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {(node.module or "").split(".")[0], (node.module or "").split(".")[-1]}
        if path.stem not in lazy:
            assert not names & {"transformers", *lazy}, path
    with pytest.raises(AttributeError, match="no attribute 'beams'"):
        smc.beams  # noqa: B018
