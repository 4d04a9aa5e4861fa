"""Steps in static shapes against eager steps, and the exact enumeration over both."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import smc
import smc._inference.captured
from gcd import AutomatonBatch, lift, regex
from smc import Batch
from smc._inference.captured import WARM_UP, StaticRun, ending_tokens, move, run_static
from smc._models.static_cache import NotStaticError
from smc.testing import ToyForward, ToyLM
from tests.smc import toys
from tests.smc.calls import sample_with
from tests.smc.cases import FILTER, PROPOSALS, examples
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice
from tests.smc.walks import TOY, assert_exact, never


def assert_same(lm: Any, *given: Any, **options: Any) -> list[smc.Posterior]:
    """Sample in both modes; return the result of static shapes."""
    options = {"forced_runs": False, **options}
    found, expected = (
        sample_with(lm, *given, execution=way, **{"algorithm": "smc", **options})
        for way in ("static", "eager")
    )
    for one, other in zip(found, expected, strict=True):
        assert [s.ids for s in one.particles] == [s.ids for s in other.particles]
        assert [s.finished for s in one.particles] == [s.finished for s in other.particles]
        for name in ("log_weight", "log_p"):
            values = [getattr(s, name) for s in other.particles]
            assert [getattr(s, name) for s in one.particles] == pytest.approx(values, abs=1e-9)
        assert one.enumerated == other.enumerated
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)
        for name in ("running", "alive", "resampled"):
            assert getattr(one.diagnostics, name) == getattr(other.diagnostics, name)
        assert one.diagnostics.ess == pytest.approx(other.diagnostics.ess, abs=1e-6)
        assert one.diagnostics.tokens >= other.diagnostics.tokens  # equal prefixes are recomputed
    return found


@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_the_same_tokens_for_the_same_seed(name: str, strata: str) -> None:
    resampled, schemes = 0, ("systematic", "multinomial", "systematic", "multinomial", "systematic")
    thresholds = (0.5, 0.9, 1.0, 0.7, 1.0)
    # Three of the five for each proposal, so that all of them meet both kinds of strata.
    for seed in [([*PROPOSALS].index(name) + i) % 5 for i in range(3)]:
        threshold = thresholds[seed]
        found = assert_same(
            TOY, **examples(), proposal=PROPOSALS[name](), particles=8, seed=seed,
            strata=strata, ess_threshold=threshold, resampling=schemes[seed],
            temperature=(1.0, 0.6)[seed % 2],
        )  # fmt: skip
        resampled += sum(sum(p.diagnostics.resampled) for p in found)
    assert resampled > 2


# Options and proposals are independent: two proposals meet all options, the others two.
PAIRS = [
    (name, options)
    for i, name in enumerate(PROPOSALS)
    for j, options in enumerate(FILTER)
    if name in ("gcd", "pgcd") or (i + j) % 2 == 0
]


@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_the_same_answers_of_the_filter(name: str, options: str) -> None:
    dropped = 0
    for seed, particles in (
        ((0, 1), (2, 3)) if PAIRS.index((name, options)) % 2 else ((1, 2), (3, 7))
    ):
        found = assert_same(
            TOY, **examples(), proposal=PROPOSALS[name](), particles=particles, seed=seed,
            temperature=(1.0, 0.6)[seed % 2], algorithm="discrete", **FILTER[options],
        )  # fmt: skip
        dropped += sum(not p.enumerated for p in found)
    assert dropped > 1


WALKED: list[dict[str, Any]] = [
    {"resampling": "systematic"},
    {"resampling": "multinomial"},
    {"resampling": "systematic", "strata": "state"},
    {"algorithm": "discrete"},
    {"algorithm": "discrete", **FILTER["no_floor"]},
]


# One proposal meets all options, the others two or three.
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, options)
        for i, name in enumerate(("gcd", "lcd", "own", "pgcd"))
        for j, options in enumerate(WALKED)
        if name == "gcd" or (i + j) % 2 == 1
    ],
    ids=str,
)
def test_the_walk_over_all_choices_sums_to_the_target(name: str, options: dict[str, Any]) -> None:
    assert_exact(a_star_b(), 3, proposal=PROPOSALS[name](), execution="static", **options)


def test_prefixes_without_a_continuation_are_no_fallbacks() -> None:
    """Static shapes have rows without a particle, where the HMM gives no information either."""
    counts = {
        way: [
            each.diagnostics.fallbacks
            for each in sample_with(
                TOY, **examples(), proposal=smc.PGCD(never([3, 5])), particles=3,
                algorithm="discrete", execution=way, forced_runs=False,
            )
        ]
        for way in ("static", "eager")
    }  # fmt: skip
    assert counts["static"] == counts["eager"]
    assert min(counts["eager"]) > 0


@pytest.mark.parametrize("texts", [("",), ("ab", "b"), ("ab", "bb", "bab", "aab")])
@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_a_language_that_ends_by_itself(texts: tuple[str, ...], algorithm: str) -> None:
    automaton = lift(choice(*texts), VOCABULARY, eos="accept")
    (found,) = assert_same(
        TOY, [[0]], automaton, max_tokens=3, particles=4, proposal=smc.GCD(), algorithm=algorithm
    )
    assert found.complete


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


def test_what_may_be_last() -> None:
    automata = [CONSTRAINTS[name]() for name in ("a_star_b", "forced")]
    found = ending_tokens(AutomatonBatch(automata))
    for row, automaton in zip(found.tolist(), automata, strict=True):
        last = automaton.num_states - 1
        expected = {
            v for v in range(VOCABULARY.size) if last in automaton.delta[:, automaton.class_of[v]]
        }
        assert {v for v in row if v >= 0} == expected


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    return toys.stories()


@pytest.mark.parametrize("options", [{"ess_threshold": 0.9}, {"algorithm": "discrete"}], ids=str)
@pytest.mark.parametrize("name", ["lm", "lcd", "gcd"])
def test_a_real_model_gives_the_same(
    stories: smc.TransformersLM, name: str, options: dict[str, Any]
) -> None:
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), stories.vocabulary)
    assert_same(
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
    assert_same(
        lm,
        [list(range(5, 14)), [5, 6]],
        automaton,
        max_tokens=[3, 10],
        proposal=smc.GCD(),
        particles=3,
    )


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


class Broken(ToyLM):
    """A language model that returns one NaN after the first token."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        log_p = super().log_p(tokens).clone()
        if len(tokens) > 1:
            log_p[4] = torch.nan
        return log_p


@pytest.mark.parametrize("execution", ["eager", "static"])
@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_non_numbers_are_refused(name: str, algorithm: str, execution: str) -> None:
    with pytest.raises(FloatingPointError, match="NaN"):
        sample_with(
            Broken(VOCABULARY), [[0]], a_star_b(), max_tokens=4, particles=9,
            proposal=PROPOSALS[name](), execution=execution, algorithm=algorithm, forced_runs=False,
        )  # fmt: skip


class Silent(ToyLM):
    """A language model that returns NaN after the end of a text."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        over = tokens[-1] in VOCABULARY.eos_ids and len(tokens) > 1
        return super().log_p(tokens) * (torch.nan if over else 1)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("name", ["lm", "gcd", "pgcd"])
def test_tokens_after_the_end_do_not_matter(name: str, algorithm: str) -> None:
    automata = [CONSTRAINTS[each]() for each in ("few_words", "a_star_b")]
    assert_same(
        Silent(VOCABULARY, seed=1, spread=1.5),
        [[0], [1]],
        automata,
        max_tokens=[4, 7],
        particles=6,
        proposal=PROPOSALS[name](),
        algorithm=algorithm,
    )


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
        assert torch.equal(one.length, other.length)
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.row >= 0, other.row >= 0)
        runs = one.row >= 0
        for name in ("log_p", "tilted"):
            values = [
                (each.prefixes.log_p if name == "log_p" else each.tilted())[each.row[runs]]
                for each in (one, other)
            ]
            torch.testing.assert_close(*values)
        assert torch.equal(one.after.ancestor, other.after.ancestor)
        assert torch.equal(one.after.tokens, other.after.tokens)
        torch.testing.assert_close(one.after.log_weight, other.after.log_weight)


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
