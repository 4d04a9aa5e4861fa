"""This module runs the samplers themselves on a tree, thousands of times, without a model.

Once the language model was asked at every prefix, it is a table; and so is a proposal, whose view
of the next token is a function of the prefix alone. `TreeLM` and `TreeProposal` are these tables in
the samplers' own interfaces. Weighing, resampling, selecting and drawing are the library's, random
numbers are named as ever by (seed, run, particle, step, purpose), and a row's columns are the
allowed tokens in their order: so a run here does what `smc.sample` does with the real model under
the same seed. (The method `lm` has the same law with SMC; its column for all other tokens comes
last. With the discrete filter it has another one, as tokens that compete one by one there are a
single candidate here.)

LM, LCD and GCD have g = 0 or 1, which the tree says by itself. Any other proposal is asked itself,
once for each prefix, with the restricted constraint and HMM (`tabulate`).

Cost of a run: a few gathers for each distinct prefix and step; some 10^5 particles a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Int64
from scipy import sparse
from torch import Tensor

from experiments.studies.convergence.evaluate import Evaluator
from experiments.studies.convergence.tree import DEAD, Tree
from gcd.tokens.batch import AutomatonBatch, TokenClasses
from gcd.tokens.vocabulary import Vocabulary
from smc.algorithms import SMC, Discrete
from smc.competition import CandidateGuide, Successors, sums_by
from smc.draw import CounterDraw, Draw
from smc.eager import EagerReader
from smc.execution import steps_of
from smc.loop import run_eagerly
from smc.models.protocol import Prompt
from smc.proposals import Batch, Proposal
from smc.vocabulary.factors import DenseGuide, by_class_alone
from smc.vocabulary.passes import TENSORS

_PARTICLES_AT_ONCE = 1 << 14
_ROWS_GUIDED = 512


class ProposalTable(NamedTuple):
    """What a proposal says at every prefix of a tree: guide and scores (`smc.competition`).

    Attributes:
        log_g: of each slot, -inf for what is never drawn.
        log_z: of each node.
        log_score: log g of each slot as the discrete filter has it, before anything is mixed in.
        candidate: the slots that compete there.
        defence: the share that is mixed in; None where nothing is.
    """

    log_g: Float64[Tensor, "slots"]
    log_z: Float64[Tensor, "nodes"]
    log_score: Float64[Tensor, "slots"]
    candidate: Bool[Tensor, "slots"]
    defence: float | None


def tabulate(proposal: Proposal[Any], tree: Tree) -> ProposalTable:
    """Ask a proposal (over the restricted tokens) at every prefix within the budget.

    Raises:
        ValueError: it draws a token after which the text cannot be completed within the budget, so
            that it would leave the tree.
    """
    log_g = torch.full((len(tree["token"]),), -torch.inf, dtype=torch.float64)
    log_z = torch.full((tree.num_exact,), -torch.inf, dtype=torch.float64)
    log_score, candidate = torch.full_like(log_g, -torch.inf), torch.zeros_like(log_g).bool()
    defence = None
    batch = Batch(AutomatonBatch([tree.automaton]), torch.tensor([tree.budget]))
    width = tree.automaton.vocabulary.size
    state = proposal.start(batch)
    above = torch.zeros(1, dtype=torch.int64)  # nodes that the rows of `state` belong to
    for depth, (first, end) in enumerate(tree.levels()):
        nodes = torch.arange(first, end)
        nodes = nodes[tree["text"][nodes] < 0]
        if not len(nodes):
            break
        if depth:
            row = torch.searchsorted(above, tree["parent"][nodes])
            token = tree["token"][tree["slot"][nodes]]
            state = proposal.advance(proposal.take(state, row), token.unsqueeze(1))
        for some in torch.arange(len(nodes)).split(_ROWS_GUIDED):
            slots = tree.rows(nodes[some])
            inside = slots >= 0
            token = torch.where(inside, tree["token"][slots.clamp(min=0)], width - 1)
            log_p = torch.full((len(some), width), -torch.inf, dtype=torch.float64)
            log_p.scatter_(1, token, torch.where(inside, tree["log_p"][slots], -torch.inf))
            here = proposal.take(state, some)
            guide, scores = proposal.guide(here, log_p), proposal.score(here, log_p)
            row = torch.arange(len(some)).repeat_interleave(inside.sum(dim=1))
            found, defence = guide.at(row, token[inside]), scores.defence
            classes, which = scores.factors.classes, scores.factors.automaton_of_row
            competes = scores.alive[row, classes.of[which[row], token[inside]].long()]
            child = tree["child"][slots[inside]]
            late = (child < 0) | (child >= tree.num_exact)
            if bool((late & (competes | ~found.isneginf())).any()):
                raise ValueError("it draws a token after which the budget is too short for any end")
            log_g[slots[inside]] = found
            log_z[nodes[some]] = guide.log_z
            log_score[slots[inside]] = scores.factors.at(row, token[inside])
            candidate[slots[inside]] = competes
        above = nodes
    return ProposalTable(log_g, log_z, log_score, candidate, defence)


class TreeState(NamedTuple):
    """The nodes at which R prefixes are; it is both a proposal's state and its walk."""

    tree: Tree
    nodes: Int64[Tensor, "R"]

    @property
    def walk(self) -> TreeState:
        """The state itself, which says what a walk says."""
        return self

    @property
    def finished(self) -> Tensor:
        """True where the answer has ended."""
        return (self.nodes >= 0) & (self.tree["text"][self.nodes.clamp(min=0)] >= 0)

    @property
    def running(self) -> Tensor:
        """True where another token is due: nodes that have not ended have budget left."""
        return (self.nodes >= 0) & ~self.finished

    @property
    def states(self) -> Tensor:
        """The state of each prefix in the restricted automaton."""
        return torch.where(self.nodes >= 0, self.tree["state"][self.nodes.clamp(min=0)], DEAD)

    def successors(self) -> Successors:
        """Give which slots complete the text; the last column, all other tokens, never does."""
        tree = self.tree
        slots = tree.rows(self.nodes)
        child = torch.where(slots >= 0, tree["child"][slots.clamp(min=0)], DEAD)
        grown = child.clamp(min=0)
        ends = (child >= 0) & (tree["text"][grown] >= 0)
        return Successors(
            TokenClasses.singletons(slots.shape[1] + 1),
            torch.zeros_like(self.nodes),
            torch.nn.functional.pad(ends, (0, 1)),
        )


class TreeProposal(Proposal[TreeState]):
    """A proposal on a tree; see `smc.proposals.Proposal`.

    Args:
        tree: the tree, with the language model's values.
        method: "lm", "lcd" or "gcd", whose g the tree knows (`Method.indicator`); or a table.
        potential: whether g is also the potential.
    """

    def __init__(self, tree: Tree, method: str | ProposalTable, *, potential: bool = True) -> None:
        self.tree = tree
        self.method = method
        self.potential = potential

    @property
    def grows(self) -> bool:
        """Whether it walks out of the tree, which then grows as it goes."""
        return self.method == "lcd"

    def start(self, batch: Batch) -> TreeState:
        """Give the root of the tree, for each example."""
        return self.state(torch.zeros(len(batch.budgets), dtype=torch.int64))

    def state(self, nodes: Int64[Tensor, "R"]) -> TreeState:
        """Give the state of prefixes of the tree."""
        return TreeState(self.tree, nodes)

    def take(self, state: TreeState, ancestors: Int64[Tensor, "Q"]) -> TreeState:
        """Give the state of these rows."""
        return state._replace(nodes=state.nodes[ancestors])

    def advance(self, state: TreeState, tokens: Int[Tensor, "R T"]) -> TreeState:
        """Step to the children; LCD alone may walk prefixes that cannot be completed in time."""
        nodes = state.nodes
        for token in tokens.long().unbind(dim=1):
            after = self.tree.step(nodes, token, late=self.grows)
            nodes = torch.where(token >= 0, after, nodes)
        return state._replace(nodes=nodes)

    def guide(self, state: TreeState, log_p: Float64[Tensor, "R W"]) -> DenseGuide:
        """Give log g and log Z by index of the slot; the last column is all other tokens."""
        if self.method == "lm":
            return DenseGuide(torch.zeros_like(log_p), log_p.new_zeros(len(log_p)))
        tree, nodes = self.tree, state.nodes
        slots = tree.rows(nodes)
        inner = slots.clamp(min=0)
        log_g = torch.full_like(log_p, -torch.inf)
        if isinstance(self.method, ProposalTable):
            log_g[:, :-1] = self.method.log_g[inner].masked_fill(slots < 0, -torch.inf)
            return DenseGuide(log_g, self.method.log_z[nodes])
        allowed = slots >= 0
        if self.method == "gcd":
            child = tree["child"][inner]
            allowed &= (child >= 0) & (child < tree.num_exact)
        log_g[:, :-1].masked_fill_(allowed, 0.0)
        return DenseGuide(log_g, torch.logsumexp(log_p + log_g, dim=1))

    def score(self, state: TreeState, log_p: Float64[Tensor, "R W"]) -> CandidateGuide:
        """Give what the discrete filter scores slots with; each is a class of its own."""
        table = self.method
        if not isinstance(table, ProposalTable):
            return super().score(state, log_p)
        successors, slots = state.successors(), self.tree.rows(state.nodes)
        inner, none = slots.clamp(min=0), slots < 0
        log_g = table.log_score[inner].masked_fill(none, -torch.inf)
        log_g = torch.nn.functional.pad(log_g, (0, 1), value=-torch.inf)
        alive = torch.nn.functional.pad(table.candidate[inner] & ~none, (0, 1))
        factors = by_class_alone(log_g, successors.classes, successors.automaton_of_row)
        return CandidateGuide(factors, alive, successors, defence=table.defence)


class TreeLM:
    """A language model that is a tree; see `smc.models.protocol.LanguageModel`.

    Args:
        evaluator: asked at late prefixes that are new.
    """

    device = torch.device("cpu")
    context: int | None = None

    def __init__(self, tree: Tree, evaluator: Evaluator | None = None) -> None:
        self.tree = tree
        self.evaluator = evaluator

    @property
    def vocabulary(self) -> Vocabulary:
        """The restricted tokens. Log-probabilities have one column for each slot, not for these."""
        return self.tree.automaton.vocabulary

    def encode(self, prompt: Prompt) -> list[int]:
        """Encode any prompt alike: a tree has one, and what stands for it does not matter."""
        return [0 for _ in prompt]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[TreeRows, Float64[Tensor, "B W"]]:
        """Give one root of the tree for each prompt."""
        rows = TreeRows(self, torch.zeros(len(prompts), dtype=torch.int64))
        return rows, self.log_p(rows.nodes)

    def log_p(self, nodes: Int64[Tensor, "R"]) -> Float64[Tensor, "R W"]:
        """Give the rows of the table at these nodes, after asking the model where none is known."""
        if self.evaluator is not None and not bool(self.tree.known[nodes].all()):
            self.evaluator(self.tree, nodes)
        return self.tree.log_p(nodes)


class TreeRows:
    """Prefixes as nodes of a tree; see `smc.models.protocol.Rows`."""

    def __init__(self, lm: TreeLM, nodes: Int64[Tensor, "R"]) -> None:
        self._lm = lm
        self.nodes = nodes

    def extend(
        self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]
    ) -> Float64[Tensor, "R T W"]:
        """Append a token to each row: the index of a slot has a meaning in its own row only."""
        assert runs.shape[1] == 1, "the sampler extends by one token at a time"
        self.nodes = self._lm.tree.step(self.nodes, runs[:, 0].long(), late=True)
        assert bool((self.nodes != DEAD).all()), "only prefixes that go on are read"
        return self._lm.log_p(self.nodes).unsqueeze(1)

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Make the rows copies of these."""
        self.nodes = self.nodes[ancestors]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Refuse: rows of a tree are never cut back."""
        raise NotImplementedError("rows of a tree are not cut back")


class Runs(NamedTuple):
    """The results of independent runs.

    Attributes:
        posterior: of each run, over texts; rows sum to one, to zero where a run is dead.
        log_evidence: the estimates, -inf for a dead run.
        ess: effective sample size of the final weights, zero for a dead run.
        read: prefixes that the language model read, without the prompt.
        enumerated: whether a run left nothing out, so that it is the exact answer.
    """

    posterior: sparse.csr_matrix
    log_evidence: Float64[np.ndarray, "runs"]
    ess: Float64[np.ndarray, "runs"]
    read: Int64[np.ndarray, "runs"]
    enumerated: Bool[np.ndarray, "runs"]

    @property
    def dead(self) -> np.ndarray:
        """Runs without an answer."""
        return np.isneginf(self.log_evidence)


class _SlotReader(EagerReader):
    """A reader of a tree's slots; their number differs from pass to pass."""

    def check(self, log_p: Tensor, *rows: int) -> None:
        """Accept any number of slots."""


def sample_runs(
    lm: TreeLM,
    proposal: TreeProposal,
    *,
    algorithm: SMC | Discrete,
    particles: int,
    runs: int,
    seed: int = 0,
    draw: Draw | None = None,
) -> Runs:
    """Run an algorithm many times; run i has the random numbers of example i of `smc.sample`.

    A run that left nothing out had no use for a random number, so all others would be the same: if
    the first is of that kind, it is the only one.

    Args:
        lm: the tree as a language model.
        proposal: the method on that tree.
        algorithm: with its options.
        particles: of each run.
        runs: how many, at most.
        seed, draw: as in `smc.sample`.
    """
    tree, parts = lm.tree, []
    size = max(1, min(512, _PARTICLES_AT_ONCE // particles))
    draw = CounterDraw(seed) if draw is None else draw
    first = 0
    while first < runs:
        count = min(size, runs - first) if first else 1
        batch = Batch(AutomatonBatch([tree.automaton]), torch.full((count,), tree.budget))
        examples = torch.arange(first, first + count)
        # The tree's values are tempered already.
        reader = _SlotReader(lm, proposal, batch, TENSORS, temperature=1.0)
        steps = steps_of(algorithm, reader, examples, particles, draw)
        found = run_eagerly(steps, [[0]] * count)
        text = _texts(tree, found.tokens)
        alive = (~found.log_weight.isneginf()).nonzero().squeeze(1)
        assert bool((text[alive] >= 0).all()), "sequences of positive weight have an answer"
        owner, log_weight = found.example[alive], found.log_weight[alive]
        total = sums_by(log_weight, owner, count)
        posterior = sparse.csr_matrix(
            ((log_weight - total[owner]).exp().numpy(), (owner.numpy(), text[alive].numpy())),
            shape=(count, len(tree.texts)),
        )
        read = found.history.read.sum(dim=0)
        values = (found.log_evidence, found.ess, read, found.enumerated)
        parts.append((posterior, *(value.numpy() for value in values)))
        if not first and bool(found.enumerated.all()):
            break
        first += count
    posteriors, *others = zip(*parts, strict=True)
    return Runs(sparse.vstack(posteriors, format="csr"), *map(np.concatenate, others))


def _texts(tree: Tree, columns: Int64[Tensor, "M T"]) -> Int64[Tensor, "M"]:
    """The answer in which each sequence of slots ends; -1 for a fragment."""
    node = torch.zeros(len(columns), dtype=torch.int64)
    for column in columns.unbind(dim=1):
        going = (column >= 0) & (node >= 0)
        node = torch.where(going, tree.step(node, column, late=False), node)
    return torch.where(node >= 0, tree["text"][node.clamp(min=0)], -1)
