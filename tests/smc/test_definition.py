"""Both algorithms as a textbook has them, for one example, in plain loops over plain numbers.

Sums over all walks say that the law is right. They do not say which particles compete, at which
threshold, or what is reported of a step: a sampler that resamples at the wrong time is unbiased,
too. So for the same uniform numbers all that `smc.sample` returns is compared with the definition:
texts, weights and diagnostics.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

import smc
from gcd.automata.automaton import Automaton
from gcd.languages.text.regex import regex
from gcd.tokens.lifting import lift
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from smc import answers as pool
from smc.draw import Breaks, CounterDraw, Keys, Purpose, uniform
from smc.observation import Observation, Watch
from smc.proposals import AutomatonPosition
from smc.proposals.twisted import FLOOR
from smc.testing import ToyLM
from smc.vocabulary.factors import DenseGuide, Factors, TiedGuide
from tests.smc.toys import choice

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

# One end-of-text id, so that the end can be forced, too; some texts can be spelled in two ways.
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"c", b""], [4])
TOKENS = range(VOCABULARY.size)

# Runs of several forced tokens in the middle, at the beginning and at the end; little is forced.
LANGUAGES: dict[str, Callable[[], Automaton]] = {
    "runs": lambda: choice("acca", "accb", "ba", "bcbb"),
    "begins": lambda: choice("cca", "ccb", "ccaa"),
    "stars": lambda: Automaton.literal("a").star() + choice("b", "bccb", "cc"),
    "words": lambda: regex("[ab]{1,4}(cca)?"),
}
PROMPTS, BUDGETS = [(0, 1), (2,), (1, 1, 3), (3, 0), (1, 2)], [6, 7, 9, 7, 8]
NAMES = [3, 8, 0, 1, 5]
NOTHING = -math.inf


class Sure(ToyLM):
    """Some tokens are impossible after some texts, so that particles die in the middle.

    After such a token it says nothing that is a number, as nobody should ask.
    """

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens and tokens[-1] == self.impossible(tokens[:-1]):
            return torch.full((VOCABULARY.size,), math.nan, dtype=torch.float64)
        log_p, token = super().log_p(tokens).clone(), self.impossible(tokens)
        if token is not None:
            log_p[token] = NOTHING
        return log_p.log_softmax(dim=0)

    def impossible(self, tokens: tuple[int, ...]) -> int | None:
        there_is_one = len(tokens) % 3 == 0 and sum(tokens) % 2 == 1
        return (sum(tokens) + 2) % 4 if there_is_one else None


TOY = Sure(VOCABULARY, seed=9, spread=2.0)

LogG = Callable[[TokenAutomaton, int, int, int], float]
"""Of an automaton, a state, the tokens left and the next one."""


@cache
def automata() -> list[TokenAutomaton]:
    found = [lift(language(), VOCABULARY) for language in LANGUAGES.values()]
    return [*found, found[0]]


# -- proposals -----------------------------------------------------------------------------------


def lm(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    return 0.0


def lcd(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    return 0.0 if automaton.step(state, token) >= 0 else NOTHING


def gcd(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    after = automaton.step(state, token)
    return 0.0 if after >= 0 and automaton.steps_to_accept[after] <= left - 1 else NOTHING


def wave(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """An arbitrary g on what GCD allows."""
    return gcd(automaton, state, left, token) + math.sin(3 * state + left + 1.7 * token) - 1.5


def guess(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """The same, with an end that is certain, and tokens and prefixes that are held impossible.

    Some expectations are too great: what is conditional on a token is at most one.
    """
    if automaton.step(state, token) == automaton.final:
        return gcd(automaton, state, left, token)
    impossible = (2 * state + left + token) % 5 == 0 or (state + left) % 6 == 0
    more = 0.6 if token != 3 else -0.2
    return NOTHING if impossible and token != 3 else wave(automaton, state, left, token) + more


OWN = (0, 3)
"""Tokens that have their own g under `Tied`."""


def tied(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """`wave` of these tokens, and for others that of the first token of their class."""
    if token in OWN:
        return wave(automaton, state, left, token)
    return of_class(automaton, state, left, int(automaton.class_of[token]))


def of_class(automaton: TokenAutomaton, state: int, left: int, klass: int) -> float:
    if klass >= automaton.num_classes:
        return NOTHING
    return wave(automaton, state, left, automaton.class_of.tolist().index(klass)) - 0.3


def of_rows(walk: AutomatonPosition, log_g: LogG, items: Sequence[int] = TOKENS) -> torch.Tensor:
    """log g of every token (or class), for each row."""
    found = torch.empty(len(walk.states), len(items), dtype=torch.float64)
    for row, (state, left) in enumerate(
        zip(walk.states.clamp(min=0).tolist(), walk.remaining.tolist(), strict=True)
    ):
        automaton = walk.automata.automata[int(walk.automata.automaton_of[state])]
        place = automaton, state - int(walk.automata.first_state[state]), left
        values = [log_g(*place, item) for item in items]
        found[row] = torch.tensor(values, dtype=torch.float64)
    return found


class Wave(smc.GCD):
    """The proposal whose g is `wave`."""

    def __init__(self, *, potential: bool) -> None:
        self.potential = potential

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> DenseGuide:
        log_g = of_rows(state, wave)
        return DenseGuide(log_g, torch.logsumexp(log_p + log_g, dim=1))

    def log_g_of_forced(self, state: AutomatonPosition, tokens: torch.Tensor) -> torch.Tensor:
        return of_rows(state, wave).gather(1, tokens.unsqueeze(1)).squeeze(1)


class Tied(smc.GCD):
    """The proposal whose g is `tied`."""

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> TiedGuide:
        by_class = of_rows(state, of_class, range(state.automata.widest))
        own = torch.tensor([OWN]).expand(len(log_p), -1)
        by_token = of_rows(state, wave, OWN)
        factors = Factors(
            by_class, own.contiguous(), by_token, state.automata.classes, state.automaton_of_row
        )
        return TiedGuide(factors, factors.applied(log_p).logsumexp(dim=1))

    def log_g_of_forced(self, state: AutomatonPosition, tokens: torch.Tensor) -> torch.Tensor:
        return of_rows(state, tied).gather(1, tokens.unsqueeze(1)).squeeze(1)


class Guess(smc.Lookahead[torch.Tensor]):
    """Holds all tokens for equally likely, and expects `guess` of each."""

    def start(self, batch: smc.Batch) -> torch.Tensor:
        return batch.budgets

    def advance(self, state: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return state

    def take(self, state: torch.Tensor, ancestors: torch.Tensor) -> torch.Tensor:
        return state[ancestors]

    def tokens(
        self, state: torch.Tensor, walk: AutomatonPosition, tokens: torch.Tensor
    ) -> smc.Expectation:
        log_g = of_rows(walk, guess).gather(1, tokens)
        return smc.Expectation(log_g - 1.6, torch.full_like(log_g, -1.6))

    def classes(self, state: torch.Tensor, walk: AutomatonPosition) -> smc.Expectation:
        raise NotImplementedError("every token is asked about by itself")


@dataclass(frozen=True)
class Rule:
    """A proposal, the tokens that it allows, and its g (which may be zero where it has a defence).

    `late`: whether a prefix dies that cannot be completed in time.
    """

    proposal: smc.Proposal[Any]
    allows: LogG
    log_g: LogG
    late: bool = False
    defence: float | None = None


RULES: dict[str, Rule] = {
    "lm": Rule(smc.LM(), lm, lm, late=True),
    "lcd": Rule(smc.LCD(), lcd, lcd),
    "gcd": Rule(smc.GCD(), gcd, gcd),
    "wave": Rule(Wave(potential=True), wave, wave),
    "no_potential": Rule(Wave(potential=False), wave, wave),
    "tied": Rule(Tied(), gcd, tied),
    "guess": Rule(
        smc.Twisted(Guess(), exact_top_k=None, temper=0.5, defence=0.2),
        gcd,
        lambda *place: 0.5 * min(0.0, guess(*place)),
        defence=0.2,
    ),
    "no_defence": Rule(
        smc.Twisted(Guess(), exact_top_k=None, defence=0.0),
        gcd,
        lambda *place: min(0.0, guess(*place)),
        defence=0.0,
    ),
}


# -- what both have ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefix:
    """A particle, or a prefix of the discrete filter."""

    ids: tuple[int, ...]
    state: int
    left: int
    log_w: float = 0.0
    log_psi: float = 0.0
    running: bool = True
    finished: bool = False


class Example:
    """One example, and what is reported of its steps: the fields of `smc.Diagnostics`."""

    def __init__(
        self, rule: Rule, place: int, *, seed: int, runs: bool, temperature: float, top_p: float
    ):
        self.rule, self.seed, self.runs = rule, seed, runs
        self.temperature, self.top_p = temperature, top_p
        self.prompt, self.budget, self.name = PROMPTS[place], BUDGETS[place], NAMES[place]
        self.automaton = automata()[place]
        self.ess: list[float] = []
        self.resampled: list[bool] = []
        self.running: list[int] = []
        self.alive: list[int] = []
        self.read: list[int] = []
        self.forced = self.fallbacks = 0
        self.weights: list[list[float]] = []  # of particles: in each step, and behind it

    def log_p(self, prefix: Prefix) -> list[float]:
        log_p = TOY.log_p(self.prompt + prefix.ids) / self.temperature
        return log_p.log_softmax(dim=0).tolist()

    def number(self, particle: int, step: int, purpose: Purpose) -> float:
        keys = Keys(torch.tensor([self.name]), torch.tensor([particle]), step, purpose)
        return float(uniform(self.seed, keys))

    def moved(self, prefix: Prefix, token: int) -> Prefix:
        """The prefix and one more token, which weighs what it did."""
        state, left = self.automaton.step(prefix.state, token), prefix.left - 1
        late = self.rule.late and self.automaton.steps_to_accept[state] > left
        finished = state == self.automaton.final
        running = state >= 0 and not finished and left > 0 and not late
        ids = (*prefix.ids, token)
        return replace(prefix, ids=ids, state=state, left=left, running=running, finished=finished)

    def followed(self, prefix: Prefix) -> tuple[Prefix, float, int]:
        """The prefix behind the run that is forced: what it weighs is times the run's probability.

        Returns:
            The prefix, dead where that is zero; log g of the last token of the run; its length.
        """
        last, length = 0.0, 0
        while self.runs and prefix.running:
            place = self.automaton, prefix.state, prefix.left
            allowed = [token for token in TOKENS if self.rule.allows(*place, token) > NOTHING]
            if len(allowed) != 1:
                break
            last, length = self.rule.log_g(*place, allowed[0]), length + 1
            last = 0.0 if last == NOTHING else last  # the only one, whatever a lookahead thinks
            gain = self.log_p(prefix)[allowed[0]] if prefix.log_w > NOTHING else 0.0
            prefix = replace(self.moved(prefix, allowed[0]), log_w=prefix.log_w + gain)
        return prefix, last, length

    def start(self, number: int, *, potential: bool) -> Prefix:
        """The prefix before the first choice, which so many have."""
        prefix, last, length = self.followed(Prefix((), self.automaton.initial, self.budget))
        if length:
            self.note(number, False, number, number, [length - (not prefix.running)], length)
        prefix = alive(prefix)
        psi = last if potential and prefix.running else 0.0
        return replace(prefix, log_psi=psi, log_w=prefix.log_w + psi)

    def note(
        self, ess: float, resampled: bool, running: int, alive: int, read: list[int], forced: int
    ) -> None:
        self.ess.append(ess)
        self.resampled.append(resampled)
        self.running.append(running)
        self.alive.append(alive)
        self.read.append(sum(read))
        self.forced += forced

    def check(self, found: smc.Posterior) -> None:
        d = found.diagnostics
        assert d.ess == pytest.approx(self.ess, rel=1e-9)
        assert d.resampled == tuple(self.resampled)
        assert d.running == tuple(self.running)
        assert d.alive == tuple(self.alive)
        assert d.lm_calls == 1 + sum(read > 0 for read in self.read)
        assert d.tokens == len(self.prompt) + sum(self.read)
        assert d.forced == self.forced
        assert d.fallbacks == self.fallbacks
        assert d.generated == sum(len(each.ids) for each in found.particles)
        assert d.share_finished == sum(each.finished for each in found.particles) / max(
            1, len(found.particles)
        )


def alive(prefix: Prefix) -> Prefix:
    """The prefix; over where it is impossible, and weightless where it is over and no answer."""
    possible = prefix.log_w > NOTHING
    running, finished = prefix.running and possible, prefix.finished and possible
    log_w = prefix.log_w if running or finished else NOTHING
    return replace(prefix, log_w=log_w, running=running, finished=finished)


def effective(log_w: list[float]) -> float:
    """The effective sample size."""
    top = max(log_w, default=NOTHING)
    w = [math.exp(x - top) for x in log_w] if top > NOTHING else [0.0]
    return sum(w) ** 2 / sum(x * x for x in w) if sum(w) else 0.0


def log_sum(values: list[float]) -> float:
    top = max(values, default=NOTHING)
    return NOTHING if top == NOTHING else top + math.log(sum(math.exp(x - top) for x in values))


def sampled(rule: Rule, **options: Any) -> list[smc.Posterior]:
    return smc.sample(
        TOY, PROMPTS, automata(), budget=BUDGETS, example_ids=NAMES, proposal=rule.proposal,
        **options,
    )  # fmt: skip


# -- particles -----------------------------------------------------------------------------------


def guided(example: Example, prefix: Prefix) -> tuple[list[float], bool]:
    """log g of every token after a prefix, cut to the nucleus of p g; whether g knew of none."""
    log_g, unknown = safe(example, prefix)
    log_q = list(map(operator.add, example.log_p(prefix), log_g))
    total, before = log_sum(log_q), 0.0
    for v in sorted(TOKENS, key=lambda v: -log_q[v]):
        if before >= example.top_p:
            log_g[v] = NOTHING
        before += math.exp(log_q[v] - total) if total > NOTHING else 0.0
    return log_g, unknown


def safe(example: Example, prefix: Prefix) -> tuple[list[float], bool]:
    """log g of every token after a prefix with the defence mixed in; whether g knew of none."""
    rule, place = example.rule, (example.automaton, prefix.state, prefix.left)
    log_g = [rule.log_g(*place, v) for v in TOKENS]
    if rule.defence is None:
        return log_g, False
    p = [math.exp(x) for x in example.log_p(prefix)]
    allowed = [rule.allows(*place, v) > NOTHING for v in TOKENS]
    g = [math.exp(x) for x in log_g]
    Z, M = sum(map(operator.mul, p, g)), sum(map(operator.mul, p, allowed))
    if Z == 0:
        return [0.0 if may else NOTHING for may in allowed], M > 0
    holes = any(may and x == 0 for x, may in zip(g, allowed, strict=True))
    eps = max(rule.defence, FLOOR) if holes else rule.defence
    mixed = [((1 - eps) * x + eps * Z / M) * may for x, may in zip(g, allowed, strict=True)]
    return [math.log(x) if x > 0 else NOTHING for x in mixed], False


def particles_of(example: Example, N: int, threshold: float, strata: str) -> list[Prefix]:
    """The particle filter with systematic resampling."""
    potential = example.rule.proposal.potential
    xs = [example.start(N, potential=potential)] * N
    for step in itertools.count():
        running = sum(x.running for x in xs)
        if not running:
            break
        log_g: dict[int, list[float]] = {}  # weigh
        tilted: dict[int, list[float]] = {}
        unknown: dict[tuple[int, ...], bool] = {}
        for n, x in enumerate(xs):
            if x.running:
                log_g[n], unknown[x.ids] = guided(example, x)
                tilted[n] = list(map(operator.add, example.log_p(x), log_g[n]))
                log_z = log_sum(tilted[n])
                gain = log_z - x.log_psi if potential or log_z == NOTHING else 0.0
                xs[n] = alive(replace(x, log_w=x.log_w + gain))
        weighed = list(xs)
        ess = effective([x.log_w for x in xs])
        positive = sum(x.log_w > NOTHING for x in xs)

        systems: dict[int, list[int]] = defaultdict(list)  # perhaps resample
        for n, x in enumerate(weighed):
            if strata == "none" or x.running:
                systems[0 if strata == "none" else x.state].append(n)
        ancestors, due = list(range(N)), False
        for members in systems.values():
            log_w = [weighed[n].log_w for n in members]
            m, total = len(members), log_sum(log_w)
            if m == 1 or not any(weighed[n].running for n in members):
                continue
            if threshold < 1 and effective(log_w) >= threshold * m:
                continue
            due = True
            u = example.number(members[0], step, Purpose.ANCESTOR)
            ends = list(itertools.accumulate(math.exp(w - total) for w in log_w))
            for i, n in enumerate(members):
                ancestors[n] = members[first_beyond((i + u) / m, ends)]
                xs[n] = replace(weighed[ancestors[n]], log_w=total - math.log(m))

        read: dict[tuple[int, ...], tuple[int, int]] = {}  # draw and advance
        for n, x in enumerate(xs):
            if x.running:
                log_q = tilted[ancestors[n]]
                u = example.number(n, step, Purpose.TOKEN)
                ends = list(itertools.accumulate(math.exp(w - max(log_q)) for w in log_q))
                token = first_beyond(u * ends[-1], ends)
                own = log_g[ancestors[n]][token]
                drawn = example.moved(x, token)
                after, last, length = example.followed(drawn)
                read[drawn.ids] = (1 + length - (not after.running), length)
                after = alive(after)
                psi = (last if length else own) if potential and after.running else 0.0
                gain = psi - own if potential else log_sum(log_q) - own
                xs[n] = replace(after, log_w=after.log_w + gain, log_psi=psi)
        example.fallbacks += sum(unknown.values())
        example.weights += [x.log_w for x in weighed], [x.log_w for x in xs]
        reads, forced = zip(*read.values(), strict=True) if read else ([], [])
        example.note(ess, due, running, positive, list(reads), sum(forced))
    return xs


def first_beyond(point: float, ends: list[float]) -> int:
    return next(i for i, end in enumerate(ends) if end > point)


class Seen:
    """An observer that notes the weights of all particles in each step, and behind it."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.weights: list[torch.Tensor] = []

    def __call__(self, names: Sequence[int]) -> Watch:
        self.names += names
        return self.note

    def note(self, step: Observation) -> None:
        self.weights += step.log_weight, step.after.log_weight


@pytest.mark.parametrize("forced_runs", [True, False])
@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("rule", RULES)
def test_particles_are_those_of_the_definition(rule: str, strata: str, forced_runs: bool) -> None:
    resampled = finished = 0
    for seed, threshold in enumerate([0.5, 1.0, 0.8, 0.5]):
        target = {"temperature": (1.0, 0.7)[seed % 2], "top_p": (1.0, 1.0, 0.8)[seed % 3]}
        seen = Seen()
        found = sampled(
            RULES[rule], particles=6, seed=seed, strata=strata, ess_threshold=threshold,
            forced_runs=forced_runs, observe=seen, **target,
        )  # fmt: skip
        for place, posterior in enumerate(found):
            example = Example(RULES[rule], place, seed=seed, runs=forced_runs, **target)
            expected = particles_of(example, 6, threshold, strata)
            example.check(posterior)
            assert [each.ids for each in posterior.particles] == [x.ids for x in expected]
            assert [each.finished for each in posterior.particles] == [x.finished for x in expected]
            log_w = [x.log_w for x in expected]
            assert [each.log_weight for each in posterior.particles] == pytest.approx(log_w)
            if example.top_p == 1:
                assert posterior.log_evidence == pytest.approx(log_sum(log_w) - math.log(6))
            assert len(seen.weights) >= len(example.weights)
            for weights, step in zip(example.weights, seen.weights, strict=False):
                own = step.view(-1, 6)[seen.names.index(NAMES[place])]
                assert own.tolist() == pytest.approx(weights)
            assert posterior.ess == pytest.approx(effective(log_w))
            resampled += sum(example.resampled)
            finished += sum(x.finished for x in expected)
    assert resampled
    assert finished


# -- the discrete filter -------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A prefix and a token that it may go on with."""

    parent: Prefix
    after: Prefix
    log_p: float
    log_g: float

    @property
    def w(self) -> float:
        return math.exp(self.parent.log_w + self.log_p)


def scores(candidates: list[Candidate], defence: float | None, share: float) -> list[float]:
    """w g of what competes, with the defence and the share mixed in."""
    s, M = [c.w * math.exp(c.log_g) for c in candidates], sum(c.w for c in candidates)
    G = sum(s)
    if defence is not None and M > 0:
        holes = any(c.w > 0 and c.log_g == NOTHING for c in candidates)
        eps = max(defence, FLOOR) if holes else defence
        s = [
            (1 - eps) * x / G + eps * c.w / M if G > 0 else c.w
            for x, c in zip(s, candidates, strict=True)
        ]
    if share > 0 and sum(s) > 0:
        by_state: dict[int, float] = defaultdict(float)
        for x, c in zip(s, candidates, strict=True):
            by_state[c.after.state] += x
        S, K = sum(s), sum(x > 0 for x in by_state.values())
        s = [
            (1 - share) * x / S + share * x / (by_state[c.after.state] * K) if x > 0 else 0.0
            for x, c in zip(s, candidates, strict=True)
        ]
    return s


def threshold(values: list[float], N: int) -> float:
    """c such that min(1, value / c) sums to N; zero where so few are positive."""
    ordered = sorted(values, reverse=True)
    if sum(x > 0 for x in ordered) <= N:
        return 0.0
    solutions = (sum(ordered[k:]) / (N - k) for k in range(N))
    return next(c for k, c in enumerate(solutions) if ordered[k] <= c)


def answers_of(
    example: Example, N: int, *, count_finished: bool, share: float, floor: float
) -> dict[tuple[int, ...], float]:
    """The discrete filter: the log weight of every answer."""
    found: dict[tuple[int, ...], float] = {}
    xs = [example.start(1, potential=False)]
    for step in itertools.count():
        found |= {x.ids: x.log_w for x in xs if x.finished}
        xs = [x for x in xs if x.running]
        if not xs:
            break
        competing: list[Candidate] = []
        for x in xs:
            place, log_p = (example.automaton, x.state, x.left), example.log_p(x)
            log_g = [example.rule.log_g(*place, v) for v in TOKENS]
            allowed = [v for v in TOKENS if example.rule.allows(*place, v) > NOTHING]
            unknown = all(log_g[v] == NOTHING for v in allowed)
            if example.top_p < 1:  # what is outside of the nucleus is no candidate
                log_g, unknown = guided(example, x)
                allowed = [v for v in TOKENS if log_g[v] > NOTHING]
            example.fallbacks += unknown
            for v in allowed:
                after, g = example.moved(x, v), log_g[v]
                if not after.finished:
                    competing.append(Candidate(x, after, log_p[v], g))
                elif log_p[v] > NOTHING:
                    found[after.ids] = x.log_w + log_p[v]

        defence = None if example.top_p < 1 else example.rule.defence
        s, M = scores(competing, defence, share), sum(c.w for c in competing)
        unit = sum(s) / M if M > 0 else 1.0
        fixed = [math.exp(log_w) * unit for log_w in found.values()] if count_finished else []
        c = max(threshold(s + fixed, N), floor * sum(s + fixed))
        pi = [min(1.0, x / c) if c > 0 else float(x > 0) for x in s]
        unsure = [0.0 if x > c else p for x, p in zip(s, pi, strict=True)]
        kept = {i for i, x in enumerate(s) if x > c}
        if sum(unsure) > 0:
            u = example.number(0, step, Purpose.SELECTION)
            ends = list(itertools.accumulate(unsure))
            places = N - len(kept) if not fixed and floor == 0 else ends[-1]
            ends = [end * places / ends[-1] for end in ends]
            kept |= {first_beyond(u + k, ends) for k in range(N + 1) if u + k < ends[-1]}

        note = effective([x.log_w for x in xs]), sum(unsure) > 0, len(xs), len(xs)
        reads, forced, xs = [], 0, []
        for i in sorted(kept):
            log_w = competing[i].parent.log_w + competing[i].log_p - math.log(pi[i])
            after, _, length = example.followed(replace(competing[i].after, log_w=log_w))
            reads.append(1 + length - (not after.running))
            forced += length
            xs.append(alive(after))
        example.note(*note, reads, forced)
    return found


@pytest.mark.parametrize("forced_runs", [True, False])
@pytest.mark.parametrize("rule", [name for name in RULES if name != "no_potential"])
def test_answers_are_those_of_the_definition(rule: str, forced_runs: bool) -> None:
    chosen = 0
    for seed, options in enumerate(
        [
            {"count_finished": True, "share": 0.0, "floor": 1e-6},
            {"count_finished": False, "share": 0.0, "floor": 0.0},
            {"count_finished": True, "share": 0.4, "floor": 0.0},
            {"count_finished": False, "share": 1.0, "floor": 0.1},
            {"count_finished": True, "share": 0.2, "floor": 1e-3},
        ]
    ):
        target = {"temperature": (1.0, 0.7)[seed % 2], "top_p": 0.7 if seed == 4 else 1.0}
        found = sampled(
            RULES[rule], particles=3, seed=seed, algorithm="discrete", forced_runs=forced_runs,
            **target, **options,
        )  # fmt: skip
        for place, posterior in enumerate(found):
            example = Example(RULES[rule], place, seed=seed, runs=forced_runs, **target)
            expected = answers_of(example, 3, **options)  # type: ignore[arg-type]
            example.check(posterior)
            weights = {each.ids: each.log_weight for each in posterior.particles}
            assert weights == pytest.approx(expected)
            assert all(each.finished for each in posterior.particles)
            if example.top_p == 1:
                assert posterior.log_evidence == pytest.approx(log_sum(list(expected.values())))
            assert posterior.ess == pytest.approx(effective(list(expected.values())))
            assert posterior.enumerated == (example.top_p == 1 and not any(example.resampled))
            chosen += sum(example.resampled)
    assert chosen


# -- random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"ess_threshold": 1.0},
        {"ess_threshold": 1.0, "strata": "none", "resampling": "multinomial"},
        {"algorithm": "discrete"},
        {"algorithm": "discrete", "floor": 0.0, "count_finished": False, "answers": 1},
    ],
    ids=str,
)
def test_no_random_number_is_used_twice(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walks follow the order of choices and do not see it; draws would depend on each other."""
    monkeypatch.setattr(pool, "MOST_ANSWERS", 2)
    used: Counter[tuple[int, int, int, Purpose]] = Counter()

    def draw(keys: Keys, breaks: Breaks) -> torch.Tensor:
        # A number by which nothing is decided, of a particle that is over, is nobody's.
        points = breaks()
        decides = ((points > 0) & (points < 1)).any(dim=-1)
        step = torch.as_tensor(keys.step).expand_as(keys.example)
        named = (keys.example, keys.particle, step)
        names = zip(*(part[decides].tolist() for part in named), strict=True)
        used.update((*name, keys.purpose) for name in names)
        return CounterDraw(1)(keys, breaks)

    for rule in ("gcd", "wave"):
        used.clear()
        sampled(RULES[rule], particles=5, draw=draw, **options)
        assert {example for example, *_ in used} <= set(NAMES)
        assert len({purpose for *_, purpose in used}) >= 2
        assert set(used.values()) == {1}
