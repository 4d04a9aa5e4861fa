"""One step of the discrete particle filter: N distinct prefixes, each with an unbiased weight.

docs/design.md, section 6, explains the filter. A step scores all continuations of its prefixes by
one token (`smc._vocabulary.factors`). It stores continuations that end a text as answers,
in the *pool* (`smc._inference.answers`), and keeps N of the others without replacement
(`smc._inference.selection`). Scores may depend only on earlier steps, and must be positive wherever
the weight is. For any such scores,

    E[ sum of the weights of the answers x in the pool ] = p_lm(x),    x in C, |x| <= n.

Sources: Fearnhead and Clifford (J. R. Statist. Soc. B 65, 2003) for jump models; Whiteley, Andrieu
and Doucet (arXiv 1011.2437) for the unbiased evidence.

The prefixes are stored as N particles per example, as in `smc._inference.particle_filter`; a
particle's slot may be empty. Cost of a step: one forward pass over at most N prefixes of each
example, and O(R V) memory traffic for the continuations of R prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.reader import Extension, Prefixes, Reader, count_of
from smc._inference.algorithms import Discrete
from smc._inference.answers import Ending, Pool, effective
from smc._inference.bounds import Frontier
from smc._inference.particles import (
    Observation,
    Outcome,
    Particles,
    Population,
    Selections,
    StepRecord,
    Watch,
    fallbacks_of,
    prefixes_in_use,
    start_particles,
)
from smc._inference.selection import WITHIN, FinishedScores, Group, Kept, Selection, select
from smc._proposals import GCD, LCD, AutomatonPosition, State
from smc._proposals.masks import add_removed, add_removed_in_step
from smc._vocabulary.draw import Breaks, Draw, Keys, Purpose
from smc._vocabulary.factors import Factors, alive_of, selection_scores, spread


class Carry(NamedTuple):
    """The state passed from one step to the next.

    Attributes:
        particles: N slots for each example, with the kept prefixes.
        prefixes: the kept prefixes.
        step: number of each example's next step.
        failed: whether the proposal or the model has returned NaN.
        answers: the complete answers.
        whole: for each example, whether no prefix has been dropped or excluded by g = 0 so far.
        frontier: probability of found answers and open branches; None if unknown.
        selections: the prefixes of each step that were kept with a probability below one.
        log_removed: log-probability of the tokens that only the budget forbids; None if unknown.
    """

    particles: Particles
    prefixes: Prefixes[Any]
    step: Int64[Tensor, "B"]
    failed: Bool[Tensor, ""]
    answers: Any
    whole: Bool[Tensor, "B"]
    frontier: Frontier | None
    selections: Selections
    log_removed: Float64[Tensor, "B"] | None


@dataclass(frozen=True, eq=False)
class DiscreteFilter(Generic[State]):
    """A discrete particle filter for one batch of B examples.

    Args:
        options: options of the algorithm.
        reader: language model and proposal.
        examples: number of each example, which is part of the keys of its random numbers.
        num_particles: N, the maximum number of prefixes kept for each example.
        draw: the source of random numbers.
        watch: function that is called after each step with an `Observation`; None for none.
        store: class of the store of complete answers, with the methods of `Pool`.
    """

    options: Discrete
    reader: Reader[State]
    examples: Int64[Tensor, "B"]
    num_particles: int
    draw: Draw
    watch: Watch | None = None
    store: Any = Pool

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Carry, StepRecord]:
        """Run the model on each prompt (token ids) once.

        The first slot of each example gets the empty prefix.

        Returns:
            The state before the first step, and the record of the tokens that are forced before it.
        """
        B, N, batch = len(prompts), self.num_particles, self.reader.batch
        device, most = batch.budgets.device, int(batch.budgets.max())
        extension, prefixes = self.reader.start(prompts, N)
        first = torch.arange(B * N, device=device) % N == 0
        extension = extension._replace(
            running=extension.running & first,
            finished=extension.finished & first,
            tokens=torch.where(first.unsqueeze(1), extension.tokens, -1),
        )
        particles = start_particles(B, N, most, device, selects=True)
        possible = extension.finished | extension.running
        particles = particles.extend(
            extension,
            log_weight=torch.where(possible, extension.forced_log_p, -torch.inf),
            log_p=torch.zeros_like(extension.forced_log_p),
        )
        answers = self.store.start(batch.automata, N, most, self.draw, self.examples)
        step = torch.zeros_like(self.examples)
        answers, particles = self._remove_ended(answers, particles, step)
        whole = torch.ones_like(self.examples, dtype=torch.bool)
        frontier = Frontier.start(self.reader, prefixes, extension, N, has_twins=False)
        removed = None
        if frontier is not None:
            removed = torch.full_like(batch.budgets, -torch.inf, dtype=torch.float64)
            one = torch.zeros_like(extension.forced_log_p).masked_fill(~first, -torch.inf)
            removed = add_removed(removed, one, extension.log_removed)
        selections = Selections.start(B, most, device)
        carry = Carry(
            particles, prefixes, step, extension.failed, answers, whole, frontier, selections,
            removed,
        )  # fmt: skip
        return carry, StepRecord.of_start(extension, 1)

    def step(self, carry: Carry) -> tuple[Carry, StepRecord]:
        """Extend the kept prefixes by one token and the forced tokens after it."""
        before, prefixes = carry.particles, carry.prefixes
        slot = _slot_of(before, prefixes.num_rows)
        log_weight = torch.nn.functional.pad(before.log_weight, (0, 1), value=-torch.inf)[slot]
        factors = self.reader.guide(prefixes)
        wrong = _has_nan(factors, ~log_weight.isneginf())
        failed = carry.failed | self.reader.note_nan(wrong)
        ends = prefixes.state.position.ends(by_token=factors.classes.are_tokens)
        ending = Ending(
            factors, alive_of(factors) & ends, prefixes.log_p, log_weight, slot, before, carry.step
        )
        answers, ended = carry.answers.add_ended(ending)
        log_p = torch.nn.functional.pad(before.log_p, (0, 1))[slot]
        kept = self._select(prefixes, factors, ends, log_weight, log_p, answers, carry.step)
        extension, extended = self.reader.extend(prefixes, kept.row, kept.token, kept.kept)
        frontier = carry.frontier
        if frontier is not None:
            frontier = frontier.advance(
                prefixes, before, kept.row, kept.token, kept.kept, extension
            )
        parent = slot[kept.row].clamp(max=len(before.row) - 1)
        answers = answers.note_parents(parent, kept, carry.step)
        selections = carry.selections.add(kept.log_pi, carry.step)
        removed = carry.log_removed
        if removed is not None:
            drawn = before.log_weight[parent] + prefixes.log_p[kept.row, kept.token] - kept.log_pi
            removed = add_removed_in_step(
                removed, prefixes.state.position, prefixes.log_p, self.reader.indices, before.row,
                before.log_weight.masked_fill(~before.running, -torch.inf),
                torch.where(kept.kept, drawn, -torch.inf), extension.log_removed,
            )  # fmt: skip
        after = self._advance(before.take(parent), kept, prefixes, extension)
        if self.watch is not None:
            self.watch(
                self._observation(prefixes, factors, before, parent, after, ended, extension)
            )
        step = carry.step + 1
        answers, after = self._remove_ended(answers, after, step)
        B = len(self.examples)
        running = before.running.view(B, -1).sum(dim=1)
        record = StepRecord(
            ess=effective(log_weight, prefixes.example, B),
            resampled=kept.dropped,
            running=running,
            alive=running,
            fallbacks=fallbacks_of(factors.fallback, prefixes, before, B),
            **extension.counts._asdict(),
        )
        failed, whole = failed | extension.failed, carry.whole & ~kept.dropped
        if type(self.reader.proposal) not in (GCD, LCD):  # whose g is positive on allowed tokens
            lost = _excludes(prefixes.state.position, factors) & ~log_weight.isneginf()
            whole = whole & (count_of(prefixes.example, B, lost.long()) == 0)
        carry = Carry(after, extended, step, failed, answers, whole, frontier, selections, removed)
        return carry, record

    def outcome(self, carry: Carry, history: StepRecord) -> Outcome:
        """Return the answers, ordered by example; their weights sum to the estimated evidence."""
        log_upper = None if carry.frontier is None else carry.frontier.log_upper
        found = carry.answers.outcome(carry.whole, history)
        return found._replace(
            log_upper=log_upper, selections=carry.selections, log_removed=carry.log_removed
        )

    def _remove_ended(
        self, answers: Any, particles: Particles, step: Int64[Tensor, "B"]
    ) -> tuple[Any, Particles]:
        """Store the answers that forced tokens have completed, and remove their particles."""
        answers = answers.add_forced(particles, step)
        log_weight = torch.where(particles.running, particles.log_weight, -torch.inf)
        finished = torch.zeros_like(particles.finished)
        return answers, particles._replace(log_weight=log_weight, finished=finished)

    def _select(
        self,
        prefixes: Prefixes[State],
        factors: Factors,
        ends: Bool[Tensor, "R C"],
        log_weight: Float64[Tensor, "R"],
        log_p: Float64[Tensor, "R"],
        answers: Any,
        step: Int64[Tensor, "B"],
    ) -> Selection:
        """Keep at most N continuations of each example that don't end the text."""
        example, B, N = prefixes.example, len(self.examples), self.num_particles
        competing = selection_scores(factors, ends, prefixes.log_p, log_weight, example, B)

        def uniform(breaks: Breaks) -> Float64[Tensor, "B"]:
            number = torch.zeros_like(self.examples)
            return self.draw(Keys(self.examples, number, step, Purpose.SELECTION), breaks)

        finished = None
        if self.options.count_finished:
            top, rest = answers.greatest(N)
            finished = FinishedScores(
                top + competing.log_unit.unsqueeze(1), rest + competing.log_unit
            )
        always = None
        if self.options.kept:
            shift = log_p - log_weight - competing.log_unit[example]
            shift = torch.where(log_weight.isneginf(), 0.0, shift)
            always = Kept(self.options.kept, shift, answers.most_probable() - WITHIN)
        group = Group(example, B, N) if self.reader.is_static else Group.of(example, B)
        return select(
            prefixes.log_p,
            competing.factors,
            group,
            N,
            uniform,
            vocabulary_pass=self.reader.vocabulary_pass,
            indices=self.reader.indices,
            floor=float(self.options.floor),
            finished=finished,
            always=always,
        )

    def _advance(
        self,
        parents: Particles,
        kept: Selection,
        prefixes: Prefixes[State],
        extension: Extension,
    ) -> Particles:
        """Extend the particles by the kept tokens; divide their weights by pi (`Selection`)."""
        log_p = prefixes.log_p[kept.row, kept.token].double()
        possible = extension.finished | extension.running
        gained = torch.where(possible, log_p - kept.log_pi + extension.forced_log_p, -torch.inf)
        return parents._replace(running=kept.kept).extend(
            extension,
            log_weight=parents.log_weight + gained,
            log_p=log_p,
            log_pi=kept.log_pi,
        )

    def _observation(
        self,
        prefixes: Prefixes[State],
        factors: Factors,
        before: Particles,
        parent: Int64[Tensor, "P"],
        after: Particles,
        ended: Callable[[], Population],
        extension: Extension,
    ) -> Observation:
        """Return the data of a step for an observer; running prefixes are ordered by row."""
        shown, rows = prefixes_in_use(prefixes, before, self.reader.proposal)
        slot = _slot_of(before, prefixes.num_rows)[rows]
        number = torch.zeros_like(before.row).index_copy(
            0, slot, torch.arange(len(slot), device=slot.device)
        )
        example = torch.arange(len(before.row), device=slot.device) // self.num_particles

        def population(some: Tensor) -> Population:
            at = some.nonzero().squeeze(1)
            return Population(
                example[at], number[parent[at]], after.tokens[at, :-1], after.length[at],
                after.log_weight[at], after.finished[at], after.running[at],
                extension.landed[at],
            )  # fmt: skip

        by_choice = ended()
        by_choice = by_choice._replace(ancestor=number[by_choice.ancestor])
        joined = Population(
            *(torch.cat(pair) for pair in zip(by_choice, population(after.finished), strict=True))
        )
        order = torch.argsort(joined.example, stable=True)
        return Observation(
            prefixes=shown,
            tilted=lambda: factors.apply(prefixes.log_p)[rows],
            example=shown.example,
            row=torch.arange(len(rows), device=rows.device),
            tokens=before.tokens[slot, :-1],
            length=before.length[slot],
            log_weight=before.log_weight[slot],
            after=population(after.running),
            ended=Population(*(field[order] for field in joined)),
        )


def _slot_of(particles: Particles, num_rows: int) -> Int64[Tensor, "R"]:
    """Return the index of the particle with each prefix; P for a prefix without a particle."""
    P = len(particles.row)
    row = torch.where(particles.running, particles.row, num_rows)
    slot = torch.arange(P, device=row.device)
    return torch.full((num_rows + 1,), P, device=row.device).scatter(0, row, slot)[:-1]


def _excludes(position: Any, factors: Factors) -> Bool[Tensor, "R"]:
    """Return whether g may be zero for a token that the budget allows."""
    if not isinstance(position, AutomatonPosition):
        return torch.ones_like(factors.automaton_of_row, dtype=torch.bool)
    positive = ~factors.by_item.isneginf()
    if factors.defense is not None:
        positive = spread(alive_of(factors), factors)
    if factors.classes is position.automata.classes:
        allowed = position.mask.class_mask(position.states, position.remaining)
        return (spread(allowed, factors) & ~positive).any(dim=1)
    zero = torch.zeros_like(factors.by_item).masked_fill_(~positive, -torch.inf)
    allowed = position.mask.mask(position.states, position.remaining)
    return (allowed & factors.replace_items(zero).log_g.isneginf()).any(dim=1)


def _has_nan(factors: Factors, in_use: Bool[Tensor, "R"]) -> Bool[Tensor, ""]:
    """Return whether g is NaN or infinite for a prefix that has a running particle."""
    return (~(factors.by_item < torch.inf).all(dim=1) & in_use).any()
