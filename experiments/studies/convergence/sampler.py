"""The library's samplers on a tree: thousands of runs without a language model.

Once the language model's distributions are known at every prefix, the model is a table, and so is a
proposal, whose guide is a function of the prefix. `TreeLM` and `TreeProposal` implement the
samplers' interfaces with these tables. Weights, resampling, selection and drawing are the
library's, random numbers are keyed by (seed, run, particle, step, purpose), and the columns of a
batch row are the allowed tokens in order. A run here therefore equals `smc.sample` with the real
model and the same seed. (The method `lm` has the same law with SMC; its column for all other tokens
comes last. With the discrete filter its law differs, because all other tokens are a single
candidate here.)

LM, LCD and GCD have g = 0 or 1, which the tree knows. Any other proposal is called once per prefix,
with the restricted constraint and HMM (`tabulate`).

Cost of a run: a few gathers per distinct prefix and step; some 10^5 particles per second.
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
from gcd import AutomatonBatch, Vocabulary
from smc import Batch, CounterDraw, Draw, Factors, Proposal
from smc._forward.eager import EagerReader
from smc._inference.algorithms import SMC, Discrete
from smc._inference.execution import steps_of
from smc._inference.loop import run_eagerly
from smc._models.protocol import Prompt
from smc._vocabulary.mixture import alive_of, sums_by
from smc._vocabulary.passes import TENSORS

_PARTICLES_AT_ONCE = 1 << 14
_ROWS_GUIDED = 512


class ProposalTable(NamedTuple):
    """Guide of a proposal at every prefix of a tree.

    Attributes:
        log_g: log g of each slot, without the defensive mixture.
        candidate: allowed slots; their g may be zero.
        defense: share of the defensive mixture, or None.
    """

    log_g: Float64[Tensor, "slots"]
    candidate: Bool[Tensor, "slots"]
    defense: float | None


def tabulate(proposal: Proposal[Any], tree: Tree) -> ProposalTable:
    """Call a proposal (over the restricted tokens) at every prefix within the budget.

    Raises:
        ValueError: it draws a token after which the text can't be completed within the budget.
    """
    log_g = torch.full((len(tree["token"]),), -torch.inf, dtype=torch.float64)
    candidate = torch.zeros_like(log_g).bool()
    defense = None
    batch = Batch(AutomatonBatch([tree.automaton]), torch.tensor([tree.budget]))
    width = tree.automaton.vocabulary.size
    state = proposal.start(batch)
    above = torch.zeros(1, dtype=torch.int64)  # nodes of the rows of `state`
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
            factors = proposal.guide(here, log_p)
            row = torch.arange(len(some)).repeat_interleave(inside.sum(dim=1))
            found, defense = factors.at(row, token[inside]), factors.defense
            klass = factors.classes.of[factors.automaton_of_row[row], token[inside]].long()
            competes = alive_of(factors)[row, klass]
            child = tree["child"][slots[inside]]
            late = (child < 0) | (child >= tree.num_exact)
            if bool((late & (competes | ~found.isneginf())).any()):
                raise ValueError(
                    "expected a proposal whose texts can end within the budget, got a token after "
                    "which no text can"
                )
            log_g[slots[inside]] = found
            candidate[slots[inside]] = competes
        above = nodes
    return ProposalTable(log_g, candidate, defense)


class TreeState(NamedTuple):
    """The nodes of R prefixes, with the attributes of a proposal's state and of its `position`."""

    tree: Tree
    nodes: Int64[Tensor, "R"]

    @property
    def position(self) -> TreeState:
        """The same object, which also has the attributes of a position."""
        return self

    @property
    def finished(self) -> Tensor:
        """True where the answer has ended."""
        return (self.nodes >= 0) & (self.tree["text"][self.nodes.clamp(min=0)] >= 0)

    @property
    def running(self) -> Tensor:
        """True where another token is due; unfinished nodes have budget left."""
        return (self.nodes >= 0) & ~self.finished

    @property
    def states(self) -> Tensor:
        """State of each prefix in the restricted automaton."""
        return torch.where(self.nodes >= 0, self.tree["state"][self.nodes.clamp(min=0)], DEAD)

    def ends(self, *, by_token: bool) -> Bool[Tensor, "R W"]:
        """Return which slots complete the text; the last column, all other tokens, never does."""
        tree = self.tree
        slots = tree.rows(self.nodes)
        child = torch.where(slots >= 0, tree["child"][slots.clamp(min=0)], DEAD)
        grown = child.clamp(min=0)
        ends = (child >= 0) & (tree["text"][grown] >= 0)
        return torch.nn.functional.pad(ends, (0, 1))


class TreeProposal(Proposal[TreeState]):
    """A proposal on a tree; see `smc._proposals.Proposal`.

    Args:
        tree: the tree, with the language model's values.
        method: "lm", "lcd" or "gcd" (`Method.indicator`), or a table.
        potential: whether g is also the potential.
    """

    def __init__(self, tree: Tree, method: str | ProposalTable, *, potential: bool = True) -> None:
        self.tree = tree
        self.method = method
        self.potential = potential

    @property
    def grows(self) -> bool:
        """True if the method reaches prefixes that aren't in the tree, which are then added."""
        return self.method == "lcd"

    def start(self, batch: Batch) -> TreeState:
        """Return the root of the tree for each example."""
        return self.state(torch.zeros(len(batch.budgets), dtype=torch.int64))

    def state(self, nodes: Int64[Tensor, "R"]) -> TreeState:
        """Return the state of the prefixes at the given nodes of the tree."""
        return TreeState(self.tree, nodes)

    def take(self, state: TreeState, ancestors: Int64[Tensor, "Q"]) -> TreeState:
        """Return the state of the rows with the given indices."""
        return state._replace(nodes=state.nodes[ancestors])

    def advance(self, state: TreeState, tokens: Int[Tensor, "R T"]) -> TreeState:
        """Step to the children; only LCD may reach prefixes that can't be completed in time."""
        nodes = state.nodes
        for token in tokens.long().unbind(dim=1):
            after = self.tree.step(nodes, token, late=self.grows)
            nodes = torch.where(token >= 0, after, nodes)
        return state._replace(nodes=nodes)

    def guide(self, state: TreeState, log_p: Float64[Tensor, "R W"]) -> Factors:
        """Return log g by slot; the last column is all other tokens."""
        if self.method == "lm":
            even = torch.zeros_like(log_p)
            return Factors.dense(even)._replace(log_z=even[:, 0])
        tree, table = self.tree, self.method
        slots = tree.rows(state.nodes)
        inner, allowed = slots.clamp(min=0), slots >= 0
        log_g = torch.full_like(log_p, -torch.inf)
        if isinstance(table, ProposalTable):
            log_g[:, :-1] = table.log_g[inner].masked_fill(~allowed, -torch.inf)
            alive = torch.nn.functional.pad(table.candidate[inner] & allowed, (0, 1))
            return Factors.dense(log_g)._replace(alive=alive, defense=table.defense)
        if self.method == "gcd":
            child = tree["child"][inner]
            allowed &= (child >= 0) & (child < tree.num_exact)
        log_g[:, :-1].masked_fill_(allowed, 0.0)
        return Factors.dense(log_g)


class TreeLM:
    """A language model that is a tree; see `smc._models.protocol.LanguageModel`.

    Args:
        tree: the tree with the language model's values.
        evaluator: computes the values of new late prefixes.
    """

    device = torch.device("cpu")
    context: int | None = None

    def __init__(self, tree: Tree, evaluator: Evaluator | None = None) -> None:
        self.tree = tree
        self.evaluator = evaluator

    @property
    def vocabulary(self) -> Vocabulary:
        """The restricted tokens; log-probabilities have columns for slots instead."""
        return self.tree.automaton.vocabulary

    def encode(self, prompt: Prompt) -> list[int]:
        """Encode a prompt; its tokens don't matter, as a tree has a single prompt."""
        return [0 for _ in prompt]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[TreeRows, Float64[Tensor, "B W"]]:
        """Return the root of the tree for each prompt."""
        rows = TreeRows(self, torch.zeros(len(prompts), dtype=torch.int64))
        return rows, self.log_p(rows.nodes)

    def log_p(self, nodes: Int64[Tensor, "R"]) -> Float64[Tensor, "R W"]:
        """Return the log-probabilities at the given nodes, after computing those not known yet."""
        if self.evaluator is not None and not bool(self.tree.known[nodes].all()):
            self.evaluator(self.tree, nodes)
        return self.tree.log_p(nodes)


class TreeRows:
    """Prefixes as nodes of a tree; see `smc._models.protocol.Rows`."""

    def __init__(self, lm: TreeLM, nodes: Int64[Tensor, "R"]) -> None:
        self._lm = lm
        self.nodes = nodes

    def extend(
        self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]
    ) -> Float64[Tensor, "R T W"]:
        """Append a token to each row, as the index of a slot of its node."""
        assert runs.shape[1] == 1, "the sampler extends by one token at a time"
        self.nodes = self._lm.tree.step(self.nodes, runs[:, 0].long(), late=True)
        assert bool((self.nodes != DEAD).all()), "only prefixes that go on are read"
        return self._lm.log_p(self.nodes).unsqueeze(1)

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows with the given indices."""
        self.nodes = self.nodes[ancestors]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Refuse, as rows of a tree are never truncated."""
        raise NotImplementedError("rows of a tree can't be truncated")


class Runs(NamedTuple):
    """Results of independent runs.

    Attributes:
        posterior: posterior of each run over texts; rows sum to one, or to zero for dead runs.
        log_evidence: estimates; -inf for dead runs.
        ess: effective sample size of the final weights; zero for dead runs.
        read: prefixes computed by the language model, without the prompt.
        enumerated: whether a run left nothing out and is exact.
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
    """Reader of a tree's slots, whose number differs between steps."""

    def check(self, log_p: Tensor, *rows: int) -> None:
        """Accept the number of columns of any step, because nodes differ in their slots."""


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

    A run that left nothing out doesn't depend on random numbers. If the first run is of this kind,
    no other run is made.

    Args:
        lm: the tree as a language model.
        proposal: the method on that tree.
        algorithm: the algorithm with its options.
        particles: particles of each run.
        runs: maximum number of runs.
        seed: see `smc.sample`.
        draw: see `smc.sample`.
    """
    tree, parts = lm.tree, []
    size = max(1, min(512, _PARTICLES_AT_ONCE // particles))
    draw = CounterDraw(seed) if draw is None else draw
    first = 0
    while first < runs:
        count = min(size, runs - first) if first else 1
        batch = Batch(AutomatonBatch([tree.automaton]), torch.full((count,), tree.budget))
        examples = torch.arange(first, first + count)
        # The tree's values already have the temperature.
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
    """Return the answer at the end of each sequence of slots; -1 if it is unfinished."""
    node = torch.zeros(len(columns), dtype=torch.int64)
    for column in columns.unbind(dim=1):
        going = (column >= 0) & (node >= 0)
        node = torch.where(going, tree.step(node, column, late=False), node)
    return torch.where(node >= 0, tree["text"][node.clamp(min=0)], -1)
