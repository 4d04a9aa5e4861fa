"""Tree of all token prefixes that can be completed under a constraint and a budget.

The root is the empty prefix, and leaves are ended answers. There may be few texts and a large tree,
because every tokenization of a text is a separate path. The prefixes are counted without building
them: with r tokens left in state s,

    count_r(s) = 1 + sum over tokens v of  count_{r-1}(delta(s, v)),    0 if steps_to_accept(s) > r

where ended texts count as zero. This takes O(budget · pairs of states), so a tree that is too large
is refused before a language model is called.

**Only tokens that the constraint allows in some state matter.** Of the rest of the vocabulary,
methods need only the total probability. The constraint and an HMM are therefore *restricted* to the
allowed tokens and one token for all others. Token classes, emission masses and the most probable
allowed tokens stay the same, and so does every proposal, exactly; hundreds of columns replace
128,000.

**Late prefixes.** LCD only requires that a prefix can be completed at some length. It also reaches
prefixes that can't be completed within the budget, which take part in resampling until they die.
They aren't part of the tree of the exact posterior and can be far more numerous, so they are added
when LCD reaches them.

The *slots* of a node are the tokens that its state allows at any length, ascending. One additional
column, after the widest row of a batch, stands for all other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy import sparse
from torch import Tensor

from gcd import TokenAutomaton, Vocabulary
from gcd._tokens.distances import fits
from hmm import HMM

DEAD = -1
"""Child of a slot with which the prefix can't continue."""
UNGROWN = -2
"""Child of a slot whose late prefix hasn't been added yet."""


def count_prefixes(automaton: TokenAutomaton, budget: int) -> float:
    """Count the token prefixes, including the empty one, that can be completed within the budget.

    Ended texts aren't counted. Exact up to 2^53, a float beyond.
    """
    final, steps = automaton.final, automaton.steps_to_accept
    source, symbol = np.nonzero(automaton.delta[:final] >= 0)
    target = automaton.delta[source, symbol]
    weight = automaton.tokens_per_class[symbol].astype(float)
    inner = target != final
    moves = sparse.csr_matrix(
        (weight[inner], (source[inner], target[inner])), shape=(final + 1, final + 1)
    )
    count = np.zeros(final + 1)
    farthest = int(steps.max())
    for remaining in range(1, budget + 1):
        alive = steps <= remaining
        alive[final] = False
        # `count` of the previous round counts a child; it is zero if the child wasn't alive.
        before, count = count, np.where(alive, 1 + moves @ count, 0.0)
        if remaining >= farthest and np.array_equal(before, count):
            break  # no state becomes alive any more, so the count is final
    return float(count[automaton.initial])


@dataclass(frozen=True)
class Restriction:
    """A constraint over the tokens that it allows in some state, and one token for all others.

    Attributes:
        ids: the allowed tokens in the whole vocabulary, ascending.
        automaton: the constraint over them; `len(ids)` is the token for all others.
    """

    ids: Int64[np.ndarray, "tokens"]
    automaton: TokenAutomaton

    @classmethod
    def of(cls, automaton: TokenAutomaton) -> Restriction:
        """Restrict a constraint; states and classes of allowed tokens stay the same."""
        last = automaton.eos_class
        allowed = np.zeros(automaton.num_classes, np.bool_)
        allowed[automaton.rows.pattern_class] = True
        ids = np.flatnonzero(allowed[automaton.class_of])
        # All other tokens are one forbidden class; EOS stays the last class.
        kept = np.flatnonzero(allowed)
        kept = kept[kept != last]
        number = np.full(automaton.num_classes, len(kept), np.int32)
        number[kept] = np.arange(len(kept))
        number[last] = len(kept) + 1
        vocabulary = automaton.vocabulary
        index = {int(token): i for i, token in enumerate(ids)}
        small = Vocabulary.from_bytes(
            [*(vocabulary.token_bytes[i] for i in ids), b""],
            [index[i] for i in vocabulary.eos_ids if i in index],
        )
        return cls(
            ids,
            replace(
                automaton,
                vocabulary=small,
                class_of=np.append(number[automaton.class_of[ids]], np.int32(len(kept))),
                rows=automaton.rows.renumber_classes(number),
                eos_class=len(kept) + 1,
            ),
        )

    def hmm(self, hmm: HMM) -> HMM:
        """Restrict an HMM; all other tokens are merged."""
        allowed = torch.zeros(hmm.num_tokens, dtype=torch.bool)
        allowed[torch.from_numpy(self.ids)] = True
        emission = hmm.emission.to(hmm.dtype)
        rest = emission[~allowed].sum(dim=0, keepdim=True)
        return HMM(hmm.initial, hmm.transition, torch.cat([emission[allowed], rest]))


class Column:
    """A growing array, whose memory doubles when it is full."""

    def __init__(self, values: Tensor) -> None:
        self._memory = values.clone()
        self._size = len(values)

    @property
    def values(self) -> Tensor:
        """View of the values, valid until the column grows."""
        return self._memory[: self._size]

    def append(self, values: Tensor) -> None:
        """Append values."""
        size = self._size + len(values)
        if size > len(self._memory):
            more = self._memory.new_empty(max(size, 2 * len(self._memory)))
            more[: self._size] = self.values
            self._memory = more
        self._memory[self._size : size] = values
        self._size = size


class Tree:
    """Prefixes of one problem, with the language model's values.

    Nodes are in order of levels; the first `num_exact` nodes are the tree within the budget, and
    late nodes follow. Columns over nodes (of length n) are `state` in the restricted automaton,
    `depth`, `parent`, and `slot` (the slot that leads to the node, numbered over all slots). They
    also are `text` (the answer that ends here, or -1), `start` and `width` of the node's slots, and
    `log_other` (log-probability of all tokens outside of the slots). Columns over slots are `token`
    (restricted), `child`, and `log_p` (NaN until it is computed).

    Args:
        automaton: the restricted constraint.
        budget: maximum number of tokens, EOS included.
        texts: answers in the order of results; None for the order of their bytes.
    """

    def __init__(
        self, automaton: TokenAutomaton, budget: int, texts: Sequence[bytes] | None = None
    ) -> None:
        self.automaton = automaton
        self.budget = budget
        self._allowed = [automaton.allowed(s) for s in range(automaton.final)]
        self._targets = [
            automaton.delta[s, automaton.class_of[tokens]].astype(np.int64)
            for s, tokens in enumerate(self._allowed)
        ]
        integer, real = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
        names = ("state", "depth", "parent", "slot", "text", "start", "width", "token", "child")
        self._columns = {name: Column(integer) for name in names}
        self._columns |= {name: Column(real) for name in ("log_other", "log_p")}
        self.num_exact = 0
        spelled = self._build()
        found = sorted({text for text in spelled if text is not None})
        self.texts: list[bytes] = found if texts is None else list(texts)
        number = {text: i for i, text in enumerate(self.texts)}
        self["text"][:] = torch.tensor([-1 if t is None else number[t] for t in spelled])

    def __getitem__(self, name: str) -> Tensor:
        """Return the column of this name."""
        return self._columns[name].values

    @property
    def num_nodes(self) -> int:
        """Number of nodes, including late ones."""
        return len(self["state"])

    @property
    def num_prefixes(self) -> int:
        """Number of unfinished prefixes within the budget, at which the model is called."""
        return int((self["text"][: self.num_exact] < 0).sum())

    @property
    def known(self) -> Tensor:
        """True for nodes whose values are known."""
        return ~self["log_other"].isnan()

    def levels(self) -> list[tuple[int, int]]:
        """Return the first node and the end of each level of the tree within the budget."""
        counts = torch.bincount(self["depth"][: self.num_exact]).tolist()
        ends = np.cumsum([0, *counts]).tolist()
        return list(pairwise(ends))

    def _build(self) -> list[bytes | None]:
        """Build all nodes within the budget, and return the answers of ended nodes."""
        self._add(np.array([self.automaton.initial]), np.array([-1]), np.array([-1]), 0)
        spelling: list[bytes] = [b""]
        ended: list[bytes | None] = [None]
        steps, final = self.automaton.steps_to_accept, self.automaton.final
        token_bytes = self.automaton.vocabulary.token_bytes
        first = 0
        for depth in range(1, self.budget + 1):
            end = self.num_nodes
            parents = np.arange(first, end)[self["state"][first:end].numpy() != final]
            if not len(parents):
                break
            states = self["state"].numpy()[parents]
            slots, owner, target = self._slots(parents, states)
            alive = fits(steps[target], self.budget - depth + 1)
            slots, owner, target = slots[alive], owner[alive], target[alive]
            tokens = self["token"].numpy()[slots].tolist()
            inner = [
                spelling[parent - first] + token_bytes[token]
                for parent, token in zip(owner.tolist(), tokens, strict=True)
            ]
            self["child"].numpy()[slots] = end + np.arange(len(slots))
            self._add(target, owner, slots, depth)
            is_end = (target == final).tolist()
            ended += [text if over else None for text, over in zip(inner, is_end, strict=True)]
            spelling, first = inner, end
        self.num_exact = self.num_nodes
        return ended

    def _slots(
        self, nodes: np.ndarray, states: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the slots of the given nodes: the number, the node and the next state of each."""
        start, width = self["start"].numpy()[nodes], self["width"].numpy()[nodes]
        within = np.arange(width.sum()) - np.repeat(width.cumsum() - width, width)
        target = [self._targets[s] for s in states.tolist()]
        return np.repeat(start, width) + within, np.repeat(nodes, width), np.concatenate(target)

    def _add(self, states: np.ndarray, parents: np.ndarray, slots: np.ndarray, depth: int) -> None:
        """Add new nodes of one level to the tree, with their slots."""
        final, steps = self.automaton.final, self.automaton.steps_to_accept
        empty = np.zeros(0, np.int64)
        tokens = [self._allowed[s] if s != final else empty for s in states.tolist()]
        targets = [self._targets[s] if s != final else empty for s in states.tolist()]
        width = np.array([len(t) for t in tokens], np.int64)
        token, target = np.concatenate([empty, *tokens]), np.concatenate([empty, *targets])
        # With budget left after the next token, LCD may continue without an end in time.
        left = self.budget - depth - 1
        late = ~fits(steps[target], left + 1) if len(target) else np.zeros(0, bool)
        child = np.where(late & (left > 0), UNGROWN, DEAD)
        many = len(states)
        self._append(
            state=states,
            depth=np.full(many, depth),
            parent=parents,
            slot=slots,
            text=np.full(many, -1),
            start=len(self["token"]) + width.cumsum() - width,
            width=width,
            token=token,
            child=child,
        )
        self._columns["log_other"].append(torch.full((many,), torch.nan, dtype=torch.float64))
        self._columns["log_p"].append(torch.full((len(token),), torch.nan, dtype=torch.float64))

    def _append(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            self._columns[name].append(torch.from_numpy(np.ascontiguousarray(array, np.int64)))

    def step(
        self, nodes: Int64[Tensor, "R"], columns: Int64[Tensor, "R"], late: bool
    ) -> Int64[Tensor, "R"]:
        """Step to the node behind a slot, given by its index in the row; `DEAD` for other columns.

        Args:
            nodes: current nodes; `DEAD` stays.
            columns: index of the token among the node's slots.
            late: whether prefixes that can't be completed in time are allowed (and added).
        """
        here = nodes.clamp(min=0)
        inside = (nodes >= 0) & (columns >= 0) & (columns < self["width"][here])
        slots = torch.where(inside, self["start"][here] + columns, 0)
        after = torch.where(inside, self["child"][slots], DEAD)
        if not late:
            # Ignore late nodes that LCD has added.
            return torch.where((after >= 0) & (after < self.num_exact), after, DEAD)
        missing = (after == UNGROWN).nonzero().squeeze(1)
        if len(missing):
            fresh = torch.unique(slots[missing])
            self.grow(fresh)
            after[missing] = self["child"][slots[missing]]
        return after

    def owner(self, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Return the node of each slot."""
        node = torch.searchsorted(self["start"], slots, right=True) - 1
        # Nodes without slots share their start with the next node.
        assert bool((self["width"][node] > 0).all()), "a slot belongs to a node with slots"
        return node

    def grow(self, slots: Int64[Tensor, "n"]) -> None:
        """Add the late prefixes behind these slots, in order of depth; none may exist yet."""
        node = self.owner(slots)
        token = self["token"][slots].numpy()
        state = self["state"][node].numpy()
        target = self.automaton.delta[state, self.automaton.class_of[token]]
        depth = self["depth"][node].numpy() + 1
        for level in np.unique(depth).tolist():
            some = depth == level
            picked = slots[torch.from_numpy(some)]
            self["child"][picked] = self.num_nodes + torch.arange(len(picked))
            self._add(target[some], node.numpy()[some], picked.numpy(), level)

    def rows(self, nodes: Int64[Tensor, "R"]) -> Int64[Tensor, "R W"]:
        """Return the slots of each node, padded with -1."""
        width = self["width"][nodes].unsqueeze(1)
        columns = torch.arange(int(width.max()) if len(nodes) else 0)
        return torch.where(columns < width, self["start"][nodes].unsqueeze(1) + columns, -1)

    def log_p(self, nodes: Int64[Tensor, "R"]) -> Float64[Tensor, "R W1"]:
        """Return log p(next token | prefix) by slot; the last column is all other tokens."""
        slots = self.rows(nodes)
        inside = self["log_p"][slots.clamp(min=0)].masked_fill(slots < 0, -torch.inf)
        return torch.cat([inside, self["log_other"][nodes].unsqueeze(1)], dim=1)

    def paths(self, nodes: Int64[Tensor, "R"]) -> Int64[Tensor, "R T1"]:
        """Return the nodes from the root to each node, by depth, padded with -1."""
        depth = self["depth"]
        paths = torch.full((len(nodes), 1 + int(depth[nodes].max()) if len(nodes) else 1), -1)
        here, rows = nodes, torch.arange(len(nodes))
        while len(rows):
            paths[rows, depth[here]] = here
            above = self["parent"][here]
            here, rows = above[above >= 0], rows[above >= 0]
        return paths

    def tokens(self, paths: Int64[Tensor, "R T1"]) -> Int64[Tensor, "R T"]:
        """Return the restricted tokens along paths from the root, padded with -1."""
        nodes = paths[:, 1:]
        return torch.where(nodes < 0, -1, self["token"][self["slot"][nodes]])
