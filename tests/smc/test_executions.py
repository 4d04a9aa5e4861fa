"""Steps in static shapes against eager steps; no operation of theirs waits for the host."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import smc
import smc._inference.captured
import smc._vocabulary.factors
from gcd import lift, regex
from smc import Batch
from smc._inference.captured import (
    WARM_UP,
    StaticRun,
    Waits,
    move,
    run_static,
)
from smc._models.static_cache import NotStaticError
from smc.testing import ToyForward, ToyLM
from tests.smc import toys
from tests.smc.calls import assert_same, assert_same_step, sample_with
from tests.smc.cases import ALGORITHMS, PROPOSALS, examples
from tests.smc.matrix import covering
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b
from tests.smc.walks import TOY, never


def compare(lm: Any, *given: Any, **options: Any) -> list[smc.Posterior]:
    """Sample in both modes; return the result of static shapes."""
    options = {"forced_runs": False, "algorithm": "smc", **options}
    found, expected = (
        sample_with(lm, *given, execution=way, **options) for way in ("static", "eager")
    )
    assert_same(found, expected, counts=("running", "alive", "resampled", "fallbacks"))
    for one, other in zip(found, expected, strict=True):
        assert one.diagnostics.tokens >= other.diagnostics.tokens  # equal prefixes are recomputed
    return found


# "silent": static shapes have rows without a particle, where this HMM gives no information either.
MADE = {**PROPOSALS, "silent": lambda: smc.PGCD(never([3, 5]))}
ROWS = covering(
    proposal=[*MADE], discrete=[False, True], variant=range(4), particles=[1, 3, 7],
    temperature=[1.0, 0.6],
)  # fmt: skip


@pytest.mark.parametrize("proposal", MADE)
def test_the_same_for_the_same_seed(proposal: str) -> None:
    resampled = fallbacks = 0
    for seed, row in enumerate(row for row in ROWS if row["proposal"] == proposal):
        made = MADE[proposal]()
        found = compare(
            TOY, **examples(), proposal=made, particles=row["particles"],
            temperature=row["temperature"], seed=seed,
            **[*ALGORITHMS.values()][row["variant"] + 4 * row["discrete"]],
        )  # fmt: skip
        resampled += sum(sum(each.diagnostics.resampled) for each in found)
        fallbacks += min(each.diagnostics.fallbacks for each in found)
        if proposal == "silent":  # both ways count, the static one also rows without a particle
            assert made.counts.fallbacks >= 2 * sum(each.diagnostics.fallbacks for each in found)
    assert resampled
    assert fallbacks or proposal != "silent"


def test_copies_reuse_rows_without_a_continuation() -> None:
    generator = torch.Generator().manual_seed(3)
    for N in (1, 2, 5, 16):
        cache = torch.arange(2 * N)
        for _ in range(20):
            row = torch.randint(0, N, (2 * N,), generator=generator)
            row[N:] += N
            running = torch.rand(2 * N, generator=generator) < 0.8
            moved = move(row, running, N)
            assert torch.equal(moved.row.sort().values, torch.arange(2 * N))
            # In place: a row that is a source is never overwritten.
            assert torch.equal(moved.source[moved.source], moved.source)
            stays = moved.source == torch.arange(2 * N)
            gone_on_from = row[running].unique()
            assert bool(stays[gone_on_from].all())
            after = cache[moved.source]
            assert torch.equal(after[moved.row][running], cache[row][running])
            cache = after


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    return toys.stories()


@pytest.mark.parametrize(
    ("name", "options"), [("lcd", {"ess_threshold": 0.9}), ("gcd", {"algorithm": "discrete"})]
)
def test_a_real_model_gives_the_same(
    stories: smc.TransformersLM, name: str, options: dict[str, Any]
) -> None:
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), stories.vocabulary)
    compare(
        stories, ["A story. ", "The "], automaton, max_tokens=[12, 9], proposal=PROPOSALS[name](),
        particles=6, **options,
    )  # fmt: skip


def test_a_row_that_is_over_stays_within_the_context(stories: smc.TransformersLM) -> None:
    """Learned positions end with the context, and the other row runs longer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=stories.vocabulary.size, n_positions=12, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    lm = smc.TransformersLM(transformers.GPT2LMHeadModel(config).double().eval(), stories.tokenizer)
    automaton = lift(regex("[a-z ]{1,40}"), lm.vocabulary)
    compare(
        lm, [list(range(5, 14)), [5, 6]], automaton, max_tokens=[3, 10], proposal=smc.GCD(),
        particles=3,
    )  # fmt: skip


class Waiting(smc.GCD):
    """A user's proposal that synchronizes with the host."""

    def alive(self, position: smc.AutomatonPosition) -> torch.Tensor:
        alive = super().alive(position)
        assert len(alive.nonzero())
        return alive


class Bare:
    """A language model without support for static shapes."""

    def __init__(self) -> None:
        self.encode, self.prefill, self.device = TOY.encode, TOY.prefill, TOY.device
        self.vocabulary, self.context = VOCABULARY, None


def test_refusals_name_the_problem() -> None:
    given: dict[str, Any] = {
        "max_tokens": 4, "particles": 2, "execution": "static", "algorithm": "smc",
    }  # fmt: skip

    def refused(message: str, lm: Any = TOY, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            sample_with(lm, [[0]], a_star_b(), **{**given, "proposal": smc.GCD(), **options})

    refused(r"`guide` of Waiting\(\) calls nonzero; .*call smc.sample", proposal=Waiting())
    refused(r"static_forward\(\) .* got Bare", lm=Bare())
    refused(
        r"at most 65536 answers .* there may be \d+, .*; lower particles", particles=1 << 15,
        algorithm="discrete",
    )  # fmt: skip
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY.size, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        sliding_window=4, num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    windowed = smc.TransformersLM(transformers.MistralForCausalLM(config), None, VOCABULARY)
    refused("MistralForCausalLM has a sliding window", lm=windowed)


class Silent(ToyLM):
    """A language model that returns NaN after the end of a text."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        over = tokens[-1] in VOCABULARY.eos_ids and len(tokens) > 1
        return super().log_p(tokens) * (torch.nan if over else 1)


@pytest.mark.parametrize(("name", "algorithm"), [("gcd", "smc"), ("pgcd", "discrete")])
def test_tokens_after_the_end_do_not_matter(name: str, algorithm: str) -> None:
    automata = [CONSTRAINTS[each]() for each in ("few_words", "a_star_b")]
    compare(
        Silent(VOCABULARY, seed=1, spread=1.5), [[0], [1]], automata, max_tokens=[4, 7],
        particles=6, proposal=PROPOSALS[name](), algorithm=algorithm,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_an_observer_is_shown_the_same(algorithm: str) -> None:
    """Compare tokens, weights, ancestors and allowed tokens; rows may have equal prefixes."""
    seen: dict[str, list[Any]] = {"eager": [], "static": []}
    for way, steps in seen.items():
        sample_with(
            TOY, **examples(), proposal=smc.GCD(), particles=3, algorithm=algorithm,
            forced_runs=False, execution=way, observe=lambda _, steps=steps: steps.append,
        )  # fmt: skip
    assert len(seen["eager"]) == len(seen["static"]) > 2
    for one, other in zip(seen["static"], seen["eager"], strict=True):
        runs = one.row >= 0
        for name in ("log_p", "tilted"):
            values = [
                (each.prefixes.log_p if name == "log_p" else each.tilted())[each.row[runs]]
                for each in (one, other)
            ]
            torch.testing.assert_close(*values)
        assert_same_step(one, other)


def execute(
    proposal: smc.Proposal | None = None, lm: ToyLM = TOY, budget: int = 5
) -> list[smc.Posterior]:
    """Sample one example in static shapes, as on a CUDA device."""
    with pytest.MonkeyPatch.context() as patch:
        run = partial(run_static, graph=True)
        patch.setattr(smc._inference.captured, "run_static", lambda *given, graph: run(*given))
        return smc.captured.sample(
            lm, [[0]], CONSTRAINTS["a_star_b"](), max_tokens=budget, particles=3,
            proposal=proposal or smc.GCD(), algorithm="smc",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), NotStaticError,
         r"GCD.* can be captured .*stream is capturing.*; call smc.sample"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), torch.cuda.OutOfMemoryError, "memory"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_captured_is_refused(
    fault: Exception, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a CUDA device whose graph capture fails."""

    def fails(self: StaticRun) -> None:
        raise fault

    monkeypatch.setattr(StaticRun, "_capture", fails)
    with pytest.raises(error, match=message):
        execute()


class Mistaken(smc.GCD):
    """A user's proposal with a mistake."""

    def start(self, batch: Batch) -> smc.AutomatonPosition:
        raise ValueError("a mistake of mine")


def test_an_error_of_the_proposal_is_shown_as_it_is() -> None:
    with pytest.raises(ValueError, match="a mistake of mine"):
        execute(Mistaken())


class Narrow(ToyLM):
    """A language model that records its columns, and the most that a run of steps filled."""

    columns, used = 0, 0

    def static_forward(self) -> ToyForward:
        lm = self

        class Forward(ToyForward):
            def start(self, prompts: Any, num_particles: int, budget: int) -> torch.Tensor:
                lm.columns = budget
                return super().start(prompts, num_particles, budget)

            def rewind(self) -> None:
                self.filled = 0
                super().rewind()

            def step(self, *given: Any) -> torch.Tensor:
                self.filled += 1
                lm.used = max(lm.used, self.filled)
                return super().step(*given)

        return Forward(lm)


@pytest.mark.parametrize("budget", [2, 5])
def test_there_are_columns_for_the_steps_before_a_capture(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a CUDA device until a step is captured, which fails here."""
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", Mock(side_effect=RuntimeError("no device")))
    lm = Narrow(VOCABULARY)
    with pytest.raises(NotStaticError, match="no device"):
        execute(lm=lm, budget=budget)
    assert 1 + min(WARM_UP, budget) == lm.used <= lm.columns == budget + WARM_UP


# That no operation of a step waits is tested in `tests/devices` and, on a GPU, in `test_gpu`.


def test_what_waits_is_found() -> None:
    x = torch.arange(3)
    for wait in (
        lambda: bool(x.sum()),
        lambda: x[x > 1],
        lambda: x.nonzero(),
        lambda: torch.unique(x),
        lambda: torch.equal(x, x + 1),
        lambda: torch.tensor([1, 2]),
        lambda: x.index_put((x > 1,), x.sum()),
        lambda: x.repeat_interleave(x),
    ):
        with Waits() as waits:
            wait()
        assert waits.found
