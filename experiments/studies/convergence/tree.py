"""A tree of token prefixes holds all ways to spell an answer.

Under a constraint and a budget the prefixes that can still be completed make a finite tree: its
root is the empty prefix, its leaves are answers that have ended. The texts may be few and the
tree large, as every tokenisation of a text is a path of its own. How many prefixes there are is
counted without building them: with r tokens left in state s,

    count_r(s) = 1 + sum over tokens v of  count_{r-1}(delta(s, v)),    0 if steps_to_accept(s) > r

where ended texts count nothing. That is O(budget · pairs of states), so a tree which is too large
is refused before a language model does any work.

**Only tokens that the constraint allows somewhere matter.** From the rest of the vocabulary all
that any method needs is the probability that the next token is one of them. So the constraint and
an HMM are *restricted* to the allowed tokens and one more that stands for all others. Classes stay
the same sets of tokens, emission masses and the language model's favourites among allowed tokens
stay the same, hence so does every proposal, exactly; hundreds of columns do the work of 128 000.

**Late prefixes.** LCD asks only whether a prefix can be completed at some length. So it also walks
prefixes that can no longer be completed within the budget; they are doomed, but until they die
they take part in resampling. They lie outside of the tree that the exact posterior needs, and may
be far more than it, so they are grown where LCD steps on them.

A node's *slots* are the tokens that its state allows at any length, ascending; one column more,
behind the widest row of a batch, stands for all other tokens.
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

from gcd.tokens.distances import fits
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from hmm.model import HMM

DEAD = -1
"""In place of a child: the prefix cannot go on this way."""
UNGROWN = -2
"""In place of a child: a late prefix that nobody has stepped on yet."""


def count_prefixes(automaton: TokenAutomaton, budget: int) -> float:
    """Count the token prefixes, the empty one included, that can be completed within the budget.

    Texts that have ended are not counted. Exact up to 2^53, a float beyond.
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
        # A child is counted by `count` of the round before, which was zero where it was not alive.
        before, count = count, np.where(alive, 1 + moves @ count, 0.0)
        if remaining >= farthest and np.array_equal(before, count):
            break  # nothing becomes alive any more, so nothing will change: the budget is ample
    return float(count[automaton.initial])


@dataclass(frozen=True)
class Restriction:
    """A constraint over the tokens it allows somewhere, and one that stands for all others.

    Attributes:
        ids: the allowed tokens in the whole vocabulary, ascending.
        automaton: the constraint over them; `len(ids)` is the token for all others.
    """

    ids: Int64[np.ndarray, "tokens"]
    automaton: TokenAutomaton

    @classmethod
    def of(cls, automaton: TokenAutomaton) -> Restriction:
        """Restrict a constraint: it keeps its states and its classes of allowed tokens."""
        delta, last = automaton.delta, automaton.eos_class
        allowed = np.asarray((delta >= 0).any(axis=0))
        ids = np.flatnonzero(allowed[automaton.class_of])
        # All other tokens are one class, which no state allows; EOS stays the last class.
        kept = np.flatnonzero(allowed)
        kept = kept[kept != last]
        number = np.full(automaton.num_classes, len(kept), np.int32)
        number[kept] = np.arange(len(kept))
        number[last] = len(kept) + 1
        nowhere = np.full((delta.shape[0], 1), -1, np.int32)
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
                delta=np.concatenate([delta[:, kept], nowhere, delta[:, [last]]], axis=1),
                eos_class=len(kept) + 1,
            ),
        )

    def hmm(self, hmm: HMM) -> HMM:
        """Restrict an HMM: all other tokens become one."""
        allowed = torch.zeros(hmm.num_tokens, dtype=torch.bool)
        allowed[torch.from_numpy(self.ids)] = True
        emission = hmm.emission.to(hmm.dtype)
        rest = emission[~allowed].sum(dim=0, keepdim=True)
        return HMM(hmm.initial, hmm.transition, torch.cat([emission[allowed], rest]))


class Column:
    """An array that grows at its end; memory doubles when it is full."""

    def __init__(self, values: Tensor) -> None:
        self._memory = values.clone()
        self._size = len(values)

    @property
    def values(self) -> Tensor:
        """The values in it, as a view that is good until the column grows."""
        return self._memory[: self._size]

    def append(self, values: Tensor) -> None:
        """Add values at the end."""
        size = self._size + len(values)
        if size > len(self._memory):
            more = self._memory.new_empty(max(size, 2 * len(self._memory)))
            more[: self._size] = self.values
            self._memory = more
        self._memory[self._size : size] = values
        self._size = size


class Tree:
    """Prefixes of one problem, with what the language model says at each.

    Nodes come level by level; `num_exact` of them make the tree within the budget, late ones come
    behind. Columns over nodes (of length n): `state` in the restricted automaton, `depth`,
    `parent`, `slot` (the slot that leads here, numbered over all slots), `text` (which answer has
    ended here, -1 if none), `start` and `width` of the node's slots, `log_other` (log-probability
    that the next token is none of these). Columns over slots: `token` (restricted), `child`,
    `log_p` (NaN until the language model was asked).

    Args:
        automaton: the restricted constraint.
        budget: most tokens, EOS included.
        texts: answers in the order wanted; None: in the order of their bytes.
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
        spelt = self._build()
        found = sorted({text for text in spelt if text is not None})
        self.texts: list[bytes] = found if texts is None else list(texts)
        number = {text: i for i, text in enumerate(self.texts)}
        self["text"][:] = torch.tensor([-1 if t is None else number[t] for t in spelt])

    def __getitem__(self, name: str) -> Tensor:
        """A column."""
        return self._columns[name].values

    @property
    def num_nodes(self) -> int:
        """The number of nodes, late ones included."""
        return len(self["state"])

    @property
    def num_prefixes(self) -> int:
        """The number of prefixes within the budget at which the model is asked: none has ended."""
        return int((self["text"][: self.num_exact] < 0).sum())

    @property
    def known(self) -> Tensor:
        """True for nodes at which the language model was asked."""
        return ~self["log_other"].isnan()

    def levels(self) -> list[tuple[int, int]]:
        """Give the first node and the end of each level of the tree within the budget."""
        counts = torch.bincount(self["depth"][: self.num_exact]).tolist()
        ends = np.cumsum([0, *counts]).tolist()
        return list(pairwise(ends))

    def _build(self) -> list[bytes | None]:
        """All nodes within the budget; returns the answer of each that has ended."""
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
        """All slots of these nodes: their numbers, their nodes, and the states they lead to."""
        start, width = self["start"].numpy()[nodes], self["width"].numpy()[nodes]
        within = np.arange(width.sum()) - np.repeat(width.cumsum() - width, width)
        target = [self._targets[s] for s in states.tolist()]
        return np.repeat(start, width) + within, np.repeat(nodes, width), np.concatenate(target)

    def _add(self, states: np.ndarray, parents: np.ndarray, slots: np.ndarray, depth: int) -> None:
        """New nodes of one level, with their slots; none of them has children yet."""
        final, steps = self.automaton.final, self.automaton.steps_to_accept
        empty = np.zeros(0, np.int64)
        tokens = [self._allowed[s] if s != final else empty for s in states.tolist()]
        targets = [self._targets[s] if s != final else empty for s in states.tolist()]
        width = np.array([len(t) for t in tokens], np.int64)
        token, target = np.concatenate([empty, *tokens]), np.concatenate([empty, *targets])
        # With a token left after the next one LCD may go on even where there is no end in time.
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
        """Step to the node behind a slot, by its index in the row; `DEAD` for any other column.

        Args:
            nodes: where; `DEAD` stays.
            columns: index of the token among the node's slots.
            late: whether prefixes that cannot be completed in time may be walked (and are grown).
        """
        here = nodes.clamp(min=0)
        inside = (nodes >= 0) & (columns >= 0) & (columns < self["width"][here])
        slots = torch.where(inside, self["start"][here] + columns, 0)
        after = torch.where(inside, self["child"][slots], DEAD)
        if not late:
            # The tree within the budget, whatever LCD has grown behind it.
            return torch.where((after >= 0) & (after < self.num_exact), after, DEAD)
        missing = (after == UNGROWN).nonzero().squeeze(1)
        if len(missing):
            fresh = torch.unique(slots[missing])
            self.grow(fresh)
            after[missing] = self["child"][slots[missing]]
        return after

    def owner(self, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Find the node of each slot."""
        node = torch.searchsorted(self["start"], slots, right=True) - 1
        # Nodes without slots share their start with the next one: take the one that has some.
        assert bool((self["width"][node] > 0).all()), "a slot belongs to a node with slots"
        return node

    def grow(self, slots: Int64[Tensor, "n"]) -> None:
        """Make the late prefixes behind these slots, shallow ones first; none may be there yet."""
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
        """Give the slots of each node, -1 behind its last one."""
        width = self["width"][nodes].unsqueeze(1)
        columns = torch.arange(int(width.max()) if len(nodes) else 0)
        return torch.where(columns < width, self["start"][nodes].unsqueeze(1) + columns, -1)

    def log_p(self, nodes: Int64[Tensor, "R"]) -> Float64[Tensor, "R W1"]:
        """Give log p(next token | prefix) by index of the slot; the last column is all others."""
        slots = self.rows(nodes)
        inside = self["log_p"][slots.clamp(min=0)].masked_fill(slots < 0, -torch.inf)
        return torch.cat([inside, self["log_other"][nodes].unsqueeze(1)], dim=1)

    def paths(self, nodes: Int64[Tensor, "R"]) -> Int64[Tensor, "R T1"]:
        """Give the nodes from the root to each node, by their depth; -1 behind it."""
        depth = self["depth"]
        paths = torch.full((len(nodes), 1 + int(depth[nodes].max()) if len(nodes) else 1), -1)
        here, rows = nodes, torch.arange(len(nodes))
        while len(rows):
            paths[rows, depth[here]] = here
            above = self["parent"][here]
            here, rows = above[above >= 0], rows[above >= 0]
        return paths

    def tokens(self, paths: Int64[Tensor, "R T1"]) -> Int64[Tensor, "R T"]:
        """Give the restricted tokens that paths from the root consist of, -1 behind their ends."""
        nodes = paths[:, 1:]
        return torch.where(nodes < 0, -1, self["token"][self["slot"][nodes]])
