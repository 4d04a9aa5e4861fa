"""Textbook implementations of both algorithms for one example, as plain loops over numbers."""

from __future__ import annotations

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch

import smc
from smc._vocabulary.draw import Keys, Purpose, uniform
from smc._vocabulary.factors import LEAST_DEFENSE
from tests.smc.rules import BUDGETS, NAMES, NOTHING, PROMPTS, TOKENS, TOY, Rule, automata

Ids = tuple[int, ...]


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
    """One example with its step statistics, which correspond to `smc.Diagnostics`."""

    def __init__(
        self, rule: Rule, place: int, *, seed: int, forced_runs: bool, temperature: float,
        top_p: float,
    ):  # fmt: skip
        self.rule, self.seed, self.runs = rule, seed, forced_runs
        self.temperature, self.top_p = temperature, top_p
        self.prompt, self.budget, self.name = PROMPTS[place], BUDGETS[place], NAMES[place]
        self.automaton = automata()[place]
        self.ess: list[float] = []
        self.resampled: list[bool] = []
        self.running: list[int] = []
        self.alive: list[int] = []
        self.read: list[int] = []
        self.forced = self.fallbacks = 0
        self.weights: list[list[float]] = []  # of particles, in each step and after it
        self.ancestors: list[list[int]] = []

    def log_p(self, prefix: Prefix) -> list[float]:
        log_p = TOY.log_p(self.prompt + prefix.ids) / self.temperature
        return log_p.log_softmax(dim=0).tolist()

    def log_p_of(self, ids: tuple[int, ...]) -> float:
        """The log-probability of an answer."""
        befores = (Prefix(ids[:t], self.automaton.initial, 0) for t in range(len(ids)))
        return sum(self.log_p(x)[token] for x, token in zip(befores, ids, strict=True))

    def number(self, particle: int, step: int, purpose: Purpose) -> float:
        keys = Keys(torch.tensor([self.name]), torch.tensor([particle]), step, purpose)
        return float(uniform(self.seed, keys))

    def moved(self, prefix: Prefix, token: int) -> Prefix:
        """The prefix extended by one token, with an unchanged weight."""
        state, left = self.automaton.step(prefix.state, token), prefix.left - 1
        late = self.rule.late and self.automaton.steps_to_accept[state] > left
        finished = state == self.automaton.final
        running = state >= 0 and not finished and left > 0 and not late
        ids = (*prefix.ids, token)
        return replace(prefix, ids=ids, state=state, left=left, running=running, finished=finished)

    def followed(self, prefix: Prefix) -> tuple[Prefix, float, int]:
        """Extend a prefix by its forced run, and multiply its weight by the run's probability.

        Returns:
            The prefix, dead if the probability is zero; log g of the run's last token; its length.
        """
        last, length = 0.0, 0
        while self.runs and prefix.running:
            place = self.automaton, prefix.state, prefix.left
            allowed = [token for token in TOKENS if self.rule.allows(*place, token) > NOTHING]
            if len(allowed) != 1:
                break
            last, length = self.rule.log_g(*place, allowed[0]), length + 1
            last = 0.0 if last == NOTHING else last  # the only token, regardless of the lookahead
            gain = self.log_p(prefix)[allowed[0]] if prefix.log_w > NOTHING else 0.0
            prefix = replace(self.moved(prefix, allowed[0]), log_w=prefix.log_w + gain)
        return prefix, last, length

    def start(self, number: int, *, potential: bool) -> Prefix:
        """The prefix before the first choice, shared by `number` particles."""
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
        for each in found.particles:
            if each.finished:
                assert each.log_p == pytest.approx(self.log_p_of(each.ids))
        assert d.share_finished == sum(each.finished for each in found.particles) / max(
            1, len(found.particles)
        )


def alive(prefix: Prefix) -> Prefix:
    """End an impossible prefix, and remove the weight of an ended prefix without an answer."""
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


# -- particles -----------------------------------------------------------------------------------


def guided(example: Example, prefix: Prefix) -> tuple[list[float], bool]:
    """Log g of every token after a prefix, cut to the nucleus of p g; whether g was zero."""
    log_g, unknown = safe(example, prefix)
    log_q = list(map(operator.add, example.log_p(prefix), log_g))
    total, before = log_sum(log_q), 0.0
    for v in sorted(TOKENS, key=lambda v: -log_q[v]):
        if before >= example.top_p:
            log_g[v] = NOTHING
        before += math.exp(log_q[v] - total) if total > NOTHING else 0.0
    return log_g, unknown


def safe(example: Example, prefix: Prefix) -> tuple[list[float], bool]:
    """Log g of every token after a prefix with the defensive mixture; whether g was zero."""
    rule, place = example.rule, (example.automaton, prefix.state, prefix.left)
    log_g = [rule.log_g(*place, v) for v in TOKENS]
    if rule.defense is None:
        return log_g, False
    p = [math.exp(x) for x in example.log_p(prefix)]
    allowed = [rule.allows(*place, v) > NOTHING for v in TOKENS]
    g = [math.exp(x) for x in log_g]
    Z, M = sum(map(operator.mul, p, g)), sum(map(operator.mul, p, allowed))
    if Z == 0:
        return [0.0 if may else NOTHING for may in allowed], M > 0
    holes = any(may and x == 0 for x, may in zip(g, allowed, strict=True))
    eps = max(rule.defense, LEAST_DEFENSE) if holes else rule.defense
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

        systems: dict[int, list[int]] = defaultdict(list)  # resample if needed
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
        example.ancestors.append(ancestors)
        reads, forced = zip(*read.values(), strict=True) if read else ([], [])
        example.note(ess, due, running, positive, list(reads), sum(forced))
    return xs


def first_beyond(point: float, ends: list[float]) -> int:
    return next(i for i, end in enumerate(ends) if end > point)


# -- the discrete filter -------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A prefix and its next token."""

    parent: Prefix
    after: Prefix
    log_p: float
    log_g: float

    @property
    def w(self) -> float:
        return math.exp(self.parent.log_w + self.log_p)


def scores(candidates: list[Candidate], defense: float | None) -> list[float]:
    """Return w g of the competing candidates, with the defensive mixture."""
    s, M = [c.w * math.exp(c.log_g) for c in candidates], sum(c.w for c in candidates)
    G = sum(s)
    if defense is not None and M > 0:
        holes = any(c.w > 0 and c.log_g == NOTHING for c in candidates)
        eps = max(defense, LEAST_DEFENSE) if holes else defense
        s = [
            (1 - eps) * x / G + eps * c.w / M if G > 0 else c.w
            for x, c in zip(s, candidates, strict=True)
        ]
    return s


def threshold(values: list[float], N: int) -> float:
    """Return c such that min(1, value / c) sums to N; zero if at most N values are positive."""
    ordered = sorted(values, reverse=True)
    if sum(x > 0 for x in ordered) <= N:
        return 0.0
    solutions = (sum(ordered[k:]) / (N - k) for k in range(N))
    return next(c for k, c in enumerate(solutions) if ordered[k] <= c)


def most_probable(
    example: Example, candidates: list[Candidate], s: list[float], found: Iterable[Ids], count: int
) -> set[int]:
    """Return the most probable candidates, up to three nats below the best one or an answer.

    The probability of a candidate is that of its prefix and token, times g relative to its mean.
    """
    M = sum(c.w for c in candidates)
    log_p = {
        i: example.log_p_of(c.parent.ids) + c.log_p + math.log(s[i] / c.w / (sum(s) / M))
        for i, c in enumerate(candidates)
        if s[i] > 0
    }
    least = max([*log_p.values(), *map(example.log_p_of, found)], default=NOTHING) - 3
    return {i for i in sorted(log_p, key=lambda i: -log_p[i])[:count] if log_p[i] >= least}


def answers_of(
    example: Example, N: int, *, count_finished: bool, floor: float, kept: int
) -> dict[Ids, float]:
    """The discrete filter: the log weight of every answer."""
    found: dict[Ids, float] = {}
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
            if example.top_p < 1:  # tokens outside of the nucleus are not candidates
                log_g, unknown = guided(example, x)
                allowed = [v for v in TOKENS if log_g[v] > NOTHING]
            example.fallbacks += unknown
            for v in allowed:
                after, g = example.moved(x, v), log_g[v]
                if not after.finished:
                    competing.append(Candidate(x, after, log_p[v], g))
                elif log_p[v] > NOTHING:
                    found[after.ids] = x.log_w + log_p[v]

        defense = None if example.top_p < 1 else example.rule.defense
        s, M = scores(competing, defense), sum(c.w for c in competing)
        unit = sum(s) / M if M > 0 else 1.0
        fixed = [math.exp(log_w) * unit for log_w in found.values()] if count_finished else []
        first = most_probable(example, competing, s, found, kept)
        others = [x for i, x in enumerate(s) if i not in first] + fixed
        c = max(threshold(others, N - kept), floor * sum(others))
        pi = [min(1.0, x / c) if c > 0 else float(x > 0) for x in s]
        pi = [1.0 if i in first else p for i, p in enumerate(pi)]
        sure = first | {i for i, x in enumerate(s) if x > c}
        unsure = [0.0 if i in sure else p for i, p in enumerate(pi)]
        if sum(unsure) > 0:
            u = example.number(0, step, Purpose.SELECTION)
            ends = list(itertools.accumulate(unsure))
            places = N - len(sure) if not fixed and floor == kept == 0 else ends[-1]
            ends = [end * places / ends[-1] for end in ends]
            sure |= {first_beyond(u + k, ends) for k in range(N + 1) if u + k < ends[-1]}

        note = effective([x.log_w for x in xs]), sum(unsure) > 0, len(xs), len(xs)
        reads, forced, xs = [], 0, []
        for i in sorted(sure):
            log_w = competing[i].parent.log_w + competing[i].log_p - math.log(pi[i])
            after, _, length = example.followed(replace(competing[i].after, log_w=log_w))
            reads.append(1 + length - (not after.running))
            forced += length
            xs.append(alive(after))
        example.note(*note, reads, forced)
    return found
