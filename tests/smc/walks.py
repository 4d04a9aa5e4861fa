"""Walks over all random choices of a sampler: weight times probability, summed, is the target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch

import smc
import smc._results.posterior
from gcd import TokenAutomaton, Vocabulary
from hmm import HMM
from smc import AutomatonPosition, Reliability
from smc._inference.resampling import SCHEMES, Uniform
from smc.testing import ToyLM, target, walk
from tests.smc.calls import sample_with
from tests.smc.toys import VOCABULARY

TOY = ToyLM(VOCABULARY, seed=1, spread=1.5)
PROMPT = (0, 1)
EVERY_STEP: dict[str, Any] = {"ess_threshold": 1.0, "strata": "none"}
Ids = tuple[int, ...]
Outcomes = Iterable[tuple[float, smc.Posterior]]


def random_hmm(
    num_tokens: int = VOCABULARY.size, *, seed: int = 0, num_states: int = 4, **options: Any
) -> HMM:
    options = {"generator": torch.Generator().manual_seed(seed), **options}
    return HMM.random(num_states, num_tokens, dtype=torch.float64, **options)


def never(tokens: list[int], seed: int = 3, size: int = VOCABULARY.size) -> HMM:
    """An HMM that gives these tokens no probability."""
    hmm = random_hmm(size, seed=seed)
    emission = hmm.emission.clone()
    emission[tokens] = 0
    return HMM(hmm.initial, hmm.transition, emission / emission.sum(dim=0))


class HMMAsLM(ToyLM):
    """The HMM's own conditional distributions, without the prompt."""

    def __init__(self, vocabulary: Vocabulary, hmm: HMM) -> None:
        super().__init__(vocabulary)
        self.hmm = hmm

    def log_p(self, tokens: Ids) -> torch.Tensor:
        predicted = self.hmm.initial
        for token in tokens[len(PROMPT) :]:
            joint = predicted * self.hmm.emission[token]
            predicted = self.hmm.transition.forward(joint / joint.sum())
        return (self.hmm.emission @ predicted).log()


class SometimesImpossible(ToyLM):
    """A model that allows only "b" after "b", so a constraint may leave no possible token."""

    def log_p(self, tokens: Ids) -> torch.Tensor:
        log_p = super().log_p(tokens)
        if len(tokens) > len(PROMPT) and tokens[-1] == 1:
            log_p = torch.full_like(log_p, -torch.inf)
            log_p[1] = 0
        return log_p


def heaviest(weights: torch.Tensor, uniform: Uniform, size: torch.Tensor) -> torch.Tensor:
    """Wrong: keep only the heaviest particle."""
    return weights.argmax(dim=1, keepdim=True).expand_as(weights).contiguous()


def half_a_slice(weights: torch.Tensor, uniform: Uniform, size: torch.Tensor) -> torch.Tensor:
    """Wrong, but nearly right: systematic resampling with half the offset."""
    return SCHEMES["systematic"](weights, lambda count, breaks: uniform(count, breaks) / 2, size)


class Tilted(smc.GCD):
    """Any positive g on the tokens that GCD allows is a correct proposal; this one is arbitrary.

    g depends on state, budget and token, so a mistake in psi, in Z or in the division at EOS is
    detected.
    """

    def __init__(self, *, potential: bool) -> None:
        self.potential = potential

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        mask = state.mask.mask(state.states, state.remaining)
        tokens = torch.arange(log_p.shape[1], device=log_p.device)
        # States are numbered over the batch, but g must not depend on the batch.
        local = state.states - state.automata.initial[state.automata.automaton_of[state.states]]
        place = (3 * local + state.remaining).unsqueeze(1)
        log_g = (place + 1.7 * tokens).double().sin() - 1.5
        return smc.Factors.dense(log_g.masked_fill(~mask, -torch.inf))


PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "greedy_close": smc.GreedyClose,
    "tilted": lambda: Tilted(potential=True),
    "tilted_no_potential": lambda: Tilted(potential=False),
}


def outcomes(
    automaton: TokenAutomaton,
    budget: int,
    *,
    lm: ToyLM = TOY,
    prompt: Sequence[int] = PROMPT,
    cancel: Callable[[], Any] = lambda: None,
    chunk: int = 1024,
    **options: Any,
) -> Iterator[tuple[float, smc.Posterior]]:
    """Yield the probability and the result of every walk over the random choices."""

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return sample_with(
            lm, [prompt] * len(ids), automaton, max_tokens=budget, example_ids=ids,
            max_rows=1 << 20, draw=draw, cancel=cancel(), **{"algorithm": "smc", **options},
        )  # fmt: skip

    return walk(run, chunk=chunk)


def sums(found: Outcomes) -> tuple[dict[bytes, float], float, float, int]:
    """Sums over all walks of P · Ẑ · posterior per answer, of P · Ẑ, and of P; number of walks."""
    mass: dict[bytes, float] = defaultdict(float)
    evidence = total = 0.0
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        # Nobody looks at the errors of thousands of walks, which take a seventh of the time.
        unknown = Reliability("unknown", "", None, math.inf, (), 0.0)
        patch.setattr(smc._results.posterior, "reliability_of", lambda *_, **__: unknown)
        for probability, posterior in found:
            total += probability
            count += 1
            assert posterior.log_evidence is not None
            weight = probability * math.exp(posterior.log_evidence)
            evidence += weight
            for answer, share in zip(posterior.answers, posterior.probabilities, strict=True):
                mass[answer] += weight * share
    return dict(mass), evidence, total, count


def walk_sums(
    automaton: TokenAutomaton, budget: int, **options: Any
) -> tuple[dict[bytes, float], float, float, int]:
    """The sums over all walks, by default of two particles that are resampled in every step."""
    usual = {"resampling": "multinomial", **EVERY_STEP}
    if options.get("algorithm") == "discrete":
        usual = {}
    return sums(outcomes(automaton, budget, **{"particles": 2, **usual, **options}))


def truth(
    automaton: TokenAutomaton, budget: int, temperature: float = 1.0, lm: ToyLM = TOY
) -> dict[bytes, float]:
    return by_text(
        target(lm, PROMPT, automaton, budget, temperature=temperature), automaton.vocabulary
    )


def assert_exact(
    automaton: TokenAutomaton,
    budget: int,
    temperature: float = 1.0,
    *,
    lm: ToyLM = TOY,
    expected: dict[bytes, float] | None = None,
    **options: Any,
) -> None:
    expected = expected or truth(automaton, budget, temperature, lm)
    mass, evidence, total, count = walk_sums(
        automaton, budget, temperature=temperature, lm=lm, **options
    )
    assert count > 0
    assert total == pytest.approx(1, abs=1e-10)
    assert evidence == pytest.approx(sum(expected.values()), abs=1e-10)
    assert mass == pytest.approx(expected, abs=1e-10)


# -- bounds --------------------------------------------------------------------------------------


@cache
def shares(lm: Any, ids: Ids, temperature: float) -> list[float]:
    """Return p of every next token; unmodified at temperature 1, since rounding breaks the sum."""
    log_p = lm.log_p(ids).double() / temperature
    return (log_p if temperature == 1 else log_p.log_softmax(dim=0)).exp().tolist()


def masses(
    lm: Any,
    prompt: Sequence[int],
    automaton: TokenAutomaton,
    budget: int,
    *,
    temperature: float = 1.0,
    read: set[Ids] | None = None,
) -> dict[Ids, float]:
    """Return p of every answer, and of every open branch; without `read` nothing is open."""
    found: dict[Ids, float] = {}

    def visit(state: int, ids: Ids, p: float) -> None:
        if state == automaton.final or (read is not None and ids not in read):
            found[ids] = p
            return
        for token, share in enumerate(shares(lm, (*prompt, *ids), temperature)):
            after = automaton.step(state, token)
            allowed = after >= 0 and automaton.steps_to_accept[after] < budget - len(ids)
            if allowed and share > 0:
                visit(after, (*ids, token), p * share)

    visit(automaton.initial, (), 1.0)
    return found


def removed_by_budget(
    lm: Any,
    prompt: Sequence[int],
    automaton: TokenAutomaton,
    budget: int,
    *,
    temperature: float = 1.0,
) -> tuple[float, int]:
    """Mass that only the budget removes, and the sufficient budget, over all prefixes."""
    mass, sufficient = 0.0, 0
    waiting: list[tuple[int, Ids, float]] = [(automaton.initial, (), 1.0)]
    while waiting:
        state, ids, p = waiting.pop()
        if state == automaton.final or p == 0:
            continue
        for token, share in enumerate(shares(lm, (*prompt, *ids), temperature)):
            after = automaton.step(state, token)
            if after < 0:
                continue
            needed = len(ids) + 1 + int(automaton.steps_to_accept[after])
            sufficient = max(sufficient, needed)
            if needed <= budget:
                waiting.append((after, (*ids, token), p * share))
            elif share > 0:
                mass += p * share
    return mass, sufficient


def by_text(target: dict[Ids, float], vocabulary: Vocabulary) -> dict[bytes, float]:
    total: dict[bytes, float] = defaultdict(float)
    for ids, p in target.items():
        total[vocabulary.decode([i for i in ids if i not in vocabulary.eos_ids])] += p
    return dict(total)


def holds(found: smc.Posterior, target: dict[Ids, float], vocabulary: Vocabulary) -> bool:
    """Return whether bounds and intervals contain the truth."""
    bounds, evidence = found.bounds, math.fsum(target.values())
    assert bounds is not None
    assert found.intervals is not None
    assert len(found.intervals) == len(found.texts)
    if found.reliability.label != "estimated":  # the spread of the particles proves nothing
        assert found.confidence_intervals == found.intervals
        assert found.log_evidence_interval == (bounds.log_lower, bounds.log_upper)
    if not math.exp(bounds.log_lower) <= evidence <= math.exp(bounds.log_upper):
        return False
    if evidence == 0:
        return True
    truth = by_text(target, vocabulary)
    pairs = [
        (interval, truth[answer])
        for answer, interval in zip(found.answers, found.intervals, strict=True)
    ]
    done = {each for each in found.particles if each.finished}
    pairs += [(bounds.of_sequence(each.log_p), target[each.ids]) for each in done]
    unseen = max((p for answer, p in truth.items() if answer not in found.answers), default=0.0)
    share = sum(target[ids] for ids in {each.ids for each in done}) / evidence
    return (
        all(low <= p / evidence <= high for (low, high), p in pairs)
        and unseen / evidence <= 1 - bounds.certified
        and bounds.certified <= share
    )
