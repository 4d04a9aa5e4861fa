"""Forced runs: the weights of token-by-token sampling with fewer forward passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import smc
import smc._forward.reader
from gcd import TokenAutomaton, lift, regex
from smc.testing import ToyLM, ToyRows, target
from tests.smc.calls import sample_with
from tests.smc.cases import FORCED, LANGUAGES, NoPotential, automaton_of, budget_of
from tests.smc.toys import choice
from tests.smc.walks import PROMPT, outcomes, random_hmm

STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"
TOY = ToyLM(FORCED, seed=3, spread=1.5)
PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "greedy_close": smc.GreedyClose,
    "conditional": lambda: smc.PGCD(random_hmm(5, seed=7), exact_top_k=1),
    "in_time": lambda: smc.PGCD(random_hmm(5, seed=7), lookahead="in_time"),
    "joint": lambda: smc.PGCD(random_hmm(5, seed=7), lookahead="joint", exact_top_k=None),
    "no_potential": lambda: NoPotential(random_hmm(5, seed=7)),
}


def weights_of(automaton: TokenAutomaton, budget: int, **options: object) -> dict:
    """The probability and the weight of every sequence of one particle."""
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    for probability, posterior in outcomes(automaton, budget, lm=TOY, particles=1, **options):
        (sample,) = posterior.particles
        if sample.log_weight > -math.inf:
            before, _ = found.get(sample.ids, (0.0, 0.0))
            found[sample.ids] = (before + probability, sample.log_weight)
    return found


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_every_sequence_has_the_weight_it_has_token_by_token(language: str, proposal: str) -> None:
    automaton = automaton_of(language)
    options = {"proposal": PROPOSALS[proposal](), "temperature": 0.7}
    budget = budget_of(automaton)
    together = weights_of(automaton, budget, **options)
    one_by_one = weights_of(automaton, budget, forced_runs=False, **options)
    assert together.keys() == one_by_one.keys()
    for ids, (probability, log_weight) in one_by_one.items():
        assert together[ids] == pytest.approx((probability, log_weight), abs=1e-12)


@pytest.mark.parametrize("forced_runs", [True, False])
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("proposal", "options"),
    [
        ("gcd", {}),
        ("gcd", {"strata": "none", "ess_threshold": 1.0}),
        ("conditional", {"strata": "none", "ess_threshold": 1.0}),
        ("in_time", {"ess_threshold": 1.0}),
        ("no_potential", {"strata": "none", "ess_threshold": 1.0}),
        ("gcd", {"algorithm": "discrete"}),
        ("lcd", {"algorithm": "discrete", "count_finished": False}),
        ("in_time", {"algorithm": "discrete", "floor": 0.0}),
    ],
)
def test_the_walk_over_all_choices_gives_the_target(
    language: str, proposal: str, options: dict, forced_runs: bool
) -> None:
    automaton = automaton_of(language)
    budget = budget_of(automaton)
    expected = target(TOY, PROMPT, automaton, budget)
    mass = dict.fromkeys(expected, 0.0)
    N = 2
    for probability, posterior in outcomes(
        automaton, budget, lm=TOY, particles=N, proposal=PROPOSALS[proposal](),
        forced_runs=forced_runs, **options,
    ):  # fmt: skip
        share = 1 if options.get("algorithm") == "discrete" else N
        for sample in posterior.particles:
            if sample.log_weight > -math.inf:
                mass[sample.ids] += probability * math.exp(sample.log_weight) / share
    assert mass == pytest.approx(expected, abs=1e-12)


class Counted(ToyLM):
    """A model that counts its passes, and their tokens."""

    def __init__(self, **options: object) -> None:
        super().__init__(FORCED, seed=3, spread=1.5, **options)  # type: ignore[arg-type]
        self.passes: list[int] = []

    def prefill(self, prompts: list) -> tuple[ToyRows, Float[Tensor, "B V"]]:
        rows, log_p = super().prefill(prompts)
        rows.__class__ = CountedRows
        return rows, log_p


class CountedRows(ToyRows):
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        self._lm.passes.append(int(lengths.sum()))  # type: ignore[attr-defined]
        return super().extend(runs, lengths)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_a_run_is_one_pass_and_is_accounted_for(algorithm: str) -> None:
    automaton = automaton_of("all_forced")
    lm = Counted()
    (found,) = smc.sample(
        lm, [PROMPT], automaton, max_tokens=9, particles=3, proposal=smc.GCD(), algorithm=algorithm
    )
    assert lm.passes == [4]  # c c c a, and no pass for EOS
    assert (found.diagnostics.lm_calls, found.diagnostics.tokens) == (2, len(PROMPT) + 4)
    assert found.diagnostics.forced == 5
    assert found.texts == ("ccca",)
    assert found.log_evidence == pytest.approx(
        math.log(sum(target(lm, PROMPT, automaton, 9).values())), abs=1e-12
    )

    lm = Counted()
    (slow,) = sample_with(
        lm, [PROMPT], automaton, max_tokens=9, particles=3, proposal=smc.GCD(), algorithm=algorithm,
        forced_runs=False,
    )  # fmt: skip
    assert lm.passes == [1, 1, 1, 1]
    assert (slow.diagnostics.lm_calls, slow.diagnostics.tokens) == (5, len(PROMPT) + 4)
    assert slow.diagnostics.forced == 0
    assert slow.log_evidence == pytest.approx(found.log_evidence, abs=1e-12)


@pytest.mark.parametrize("most_read", [1, 2 * 5 * 2, 1 << 26])
def test_no_pass_is_wider_than_is_allowed(most_read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smc._forward.reader, "MOST_READ", most_read)
    read, widths = ToyRows.extend, []

    def extend(rows: ToyRows, runs: Tensor, lengths: Tensor) -> Tensor:
        widths.append(runs.shape[1])
        assert runs.shape[1] == 1 or runs.numel() * FORCED.size <= most_read
        return read(rows, runs, lengths)

    monkeypatch.setattr(ToyRows, "extend", extend)
    smc.sample(
        TOY,
        [PROMPT],
        automaton_of("all_forced"),
        max_tokens=9,
        particles=4,
        proposal=smc.GCD(),
        algorithm="smc",
    )
    assert sum(widths) == 4
    assert max(widths) == min(4, max(1, most_read // FORCED.size))


class Talkative(smc.GCD):
    """A proposal that names a forced token even for ended prefixes."""

    def forced(self, state: smc.AutomatonPosition) -> torch.Tensor:
        return torch.where(state.running, super().forced(state), 0)


def test_nothing_is_forced_behind_the_end() -> None:
    [found], [expected] = (
        smc.sample(
            TOY,
            [PROMPT],
            automaton_of("all_forced"),
            max_tokens=6,
            particles=3,
            proposal=p,
            algorithm="smc",
        )
        for p in (Talkative(), smc.GCD())
    )
    assert found.texts == expected.texts
    assert found.log_evidence == expected.log_evidence


class Refusing(ToyLM):
    """A model that gives the token c probability zero."""

    def log_p(self, tokens: tuple[int, ...]) -> Float[Tensor, "V"]:
        log_p = super().log_p(tokens).clone()
        log_p[3] = -torch.inf
        return log_p


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_an_impossible_run_is_dead(algorithm: str, temperature: float) -> None:
    lm = Refusing(FORCED, seed=3)
    for language in ("forced_between", "all_forced", "forced_first"):
        (found,) = smc.sample(
            lm, [PROMPT], automaton_of(language), max_tokens=9, particles=8, proposal=smc.GCD(),
            algorithm=algorithm, temperature=temperature,
        )  # fmt: skip
        assert found.dead == (language != "forced_between")
        assert set(found.texts) <= {"ba"}
        finished = [sample for sample in found.particles if sample.finished]
        assert all(sample.log_weight > -math.inf for sample in finished)


@pytest.mark.parametrize("proposal", ["gcd", "no_potential"])
def test_without_a_token_to_draw_a_particle_is_replaced_before_it_draws(proposal: str) -> None:
    """After `a` the only allowed token is impossible; all other particles continue to `ba`."""
    (found,) = sample_with(
        Refusing(FORCED, seed=3), [PROMPT], lift(choice("ac", "ba"), FORCED), max_tokens=4,
        particles=64, proposal=PROPOSALS[proposal](), forced_runs=False, strata="none",
        ess_threshold=1.0, algorithm="smc",
    )  # fmt: skip
    first, second, third = found.diagnostics.alive
    assert 0 < second < first == third == 64
    assert found.texts == ("ba",)
    assert found.diagnostics.fallbacks == 0, "it is the language model that knows of nothing"


def test_a_real_model_reads_runs_as_it_reads_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES).double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(STORIES)
    lm = smc.TransformersLM(model, tokenizer)
    automaton = lift(regex(r"Once upon a (time|day), there was a (cat|dog)\."), lm.vocabulary)
    budget = automaton.fewest_tokens  # few spellings fit
    options = {"max_tokens": budget, "particles": 6, "ess_threshold": 0.0, "proposal": smc.GCD()}
    ours = sample_with(lm, ["Lily", "A big"], automaton, **{"algorithm": "smc", **options})  # type: ignore[arg-type]
    slow = sample_with(
        lm, ["Lily", "A big"], automaton, forced_runs=False, **{"algorithm": "smc", **options}
    )  # type: ignore[arg-type]
    checked = 0
    for prompt, found, other in zip(("Lily", "A big"), ours, slow, strict=True):
        assert found.diagnostics.forced > 0
        assert found.diagnostics.lm_calls < other.diagnostics.lm_calls
        for sample in found.particles:
            weight = token_by_token(lm, prompt, automaton, sample.ids, budget)
            assert sample.log_weight == pytest.approx(weight, abs=1e-8)
            checked += 1
    assert checked == 12


def token_by_token(
    lm: smc.TransformersLM,
    prompt: str,
    automaton: TokenAutomaton,
    ids: tuple[int, ...],
    budget: int,
) -> float:
    """The weight of a sequence under GCD: the mass of each mask, in one plain pass."""
    known = lm.encode(prompt)
    with torch.no_grad():
        logits = lm.model(torch.tensor([[*known, *ids]])).logits[0].double()
    log_weight, state = 0.0, automaton.initial
    for t, token in enumerate(ids):
        allowed = torch.from_numpy(automaton.allowed(state, budget - t))
        log_p = logits[len(known) - 1 + t].log_softmax(dim=0)
        log_weight += float(log_p[allowed].logsumexp(dim=0))
        state = automaton.step(state, token)
    assert state == automaton.final
    return log_weight
