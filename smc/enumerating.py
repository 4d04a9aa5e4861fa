"""All answers of a finite language, or the most probable ones, read prefix by prefix.

The token sequences that begin an answer form a tree. Reading a prefix x gives p(x v) for every next
token v, so the tree is in three parts at any time:

    found   answers a, whose p(a) is known
    read    prefixes x, whose probability has gone over to what follows them
    open    branches x v, with x read and x v neither read nor found; p(x v) is known

Each pass reads the open branches of the largest probability, several at once, until what is open is
a small enough share of found and open together. When every branch is read, the sum over the answers
is the evidence itself, and no estimate.

**Canonical spellings first.** Until something is found, the largest branches are the shortest
ones, most of them spellings that nobody writes. So the branches of the tokenizer's own spellings go
before all others, where they are few enough.

**Drafts.** A branch is read together with the tokens that are likely to follow it: as long as all
allowed tokens agree in their bytes, as within a label that no other label shares its rest with, the
tokenizer's own token, or the one after which the fewest are needed. Their prefixes count as read.
So a label takes one pass, not one for each of its tokens.

Cost: one forward pass of the language model for at most `width` branches, and a sort of the open
branches. No more branches of a prefix are kept one by one than may still be read; the probability
of the others is kept as one sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gcd.tokens.distances import fits
from gcd.tokens.token_automaton import TokenAutomaton
from smc.bounds import NORMALIZATION, bounds_of
from smc.revisiting import Run, TreeReader, numbers

Ids = tuple[int, ...]

NARROW = 32
"""Branches of a tree read in a pass where not all can be read, so that the best come first."""
MOST_ALIKE = 64
"""Tokens that are looked at to see whether they agree in their bytes; a heuristic alone."""


class _Node(NamedTuple):
    """A prefix that was read, or is about to be.

    Attributes:
        ids: its tokens.
        state: of the automaton.
        remaining: tokens that may still follow, EOS included.
        log_p: of the prefix; of one that is not read yet, that of the branch it is.
        tokens: those allowed next.
        own: state of the automaton of canonical spellings, -1 outside of it.
    """

    ids: Ids
    state: int
    remaining: int
    log_p: float
    tokens: Int64[np.ndarray, "_"]
    own: int


class Tree:
    """The tree of one prompt's answers, as far as it was read.

    Args:
        automaton: the language.
        budget: most tokens of an answer, EOS included.
        most: most prefixes to read beyond the prompt.
        certify: the share of the evidence that is to be found.
        eps: machine epsilon of the model's log-probabilities.
        canonical: the same texts in the tokenizer's own spelling, whose branches go first; None for
            no such preference.
        known: answers that were found before, with log p. They count as found, and what leads to
            them is read along.
        log_upper: log of an upper bound on the evidence that is known besides.

    Attributes:
        found: log p of the answers found, EOS included.
        read: prefixes read beyond the prompt.
        widths: branches read in each pass.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        budget: int,
        most: int,
        certify: float,
        eps: float,
        canonical: TokenAutomaton | None = None,
        known: Mapping[Ids, float] | None = None,
        log_upper: float = 0.0,
    ) -> None:
        self.found: dict[Ids, float] = {}
        self._known, self._log_upper = dict(known or {}), log_upper
        # The token behind each prefix of an answer that is known, of the most probable one.
        self._following = {
            ids[:t]: ids[t]
            for ids in sorted(self._known, key=self._known.__getitem__)
            for t in range(len(ids))
        }
        self.read = 0
        self.widths: list[int] = []
        self._automaton, self._certify, self._eps = automaton, certify, eps
        self._canonical = canonical
        self._left = most
        self._nodes: list[_Node] = []
        # Open branches: node, token, log p, and the same rounded outwards, which bounds count.
        self._node = np.zeros(0, np.int64)
        self._token = np.zeros(0, np.int64)
        self._log_p = np.zeros(0)
        self._log_mass = np.zeros(0)
        self._goes_first = np.zeros(0, np.bool_)
        self._log_rest = -math.inf  # of all branches that will never be read
        self._waiting: list[list[_Node]] = []
        own = -1 if canonical is None else canonical.initial
        self._root = self._at((), automaton.initial, budget, 0.0, own)

    @property
    def root(self) -> Int64[np.ndarray, "_"]:
        """The tokens that an answer may begin with."""
        return self._root.tokens

    @property
    def is_whole(self) -> bool:
        """Whether nothing that has any probability is open."""
        return not self._log_mass.size and self._log_rest == -math.inf

    @property
    def is_done(self) -> bool:
        """Whether reading ends here: enough was found, or as much was read as may be."""
        return (
            self._left <= 0
            or not self._log_mass.size
            or bounds_of(self.log_lower, self.log_upper).certified >= self._certify
        )

    @property
    def everything(self) -> dict[Ids, float]:
        """Log p of the answers found and of those that were known."""
        return {**self._known, **self.found}

    @property
    def log_lower(self) -> float:
        """Log of their probability."""
        return _log_sum(np.array(list(self.everything.values()))) if self._known else self.log_found

    @property
    def log_upper(self) -> float:
        """Log of the least upper bound on the evidence that is known."""
        # The same p may be rounded otherwise where it was computed in another pass.
        return max(self.log_lower, min(self._log_upper, self.log_mass))

    @property
    def log_found(self) -> float:
        """Log of the probability of the answers found."""
        return _log_sum(np.array(list(self.found.values())))

    @property
    def log_mass(self) -> float:
        """Log of the probability of what was found and of what is open."""
        open_mass = _log_sum(np.append(self._log_mass, self._log_rest))
        return _log_sum(np.array([self.log_found, open_mass]))

    def start(self, log_p: Float64[np.ndarray, "_"]) -> None:
        """Begin with the log-probabilities of the tokens in `root`."""
        if self._root.state == self._automaton.final:  # the empty text, which ends by itself
            self.found[()] = 0.0
        else:
            self._branch(self._root, log_p, None)

    def leave(self, most: int) -> None:
        """Read so many more prefixes at most."""
        self._left = min(self._left, most)

    def take(self, example: int, width: int) -> list[Run]:
        """Choose the open branches to read next, at most `width`, and write them as runs."""
        order = np.argsort(-self._log_mass, kind="stable")
        log_upper = self.log_mass
        share = np.exp(self._log_mass[order] - log_upper)
        # What may stay open; a little less, as the bounds are rounded.
        spare = (1 - self._certify) * (1 - 1e-6) - math.exp(self._log_rest - log_upper)
        after = np.cumsum(share[::-1])[::-1]  # open if this branch and those behind it are left
        needed = np.zeros(order.size, np.bool_)
        needed[order[: max(1, int((after > spare).sum()))]] = True
        # A canonical spelling matters if it alone is more than may stay open.
        least = self.log_found + math.log(1 - self._certify) if self._certify < 1 else -math.inf
        first = self._goes_first & (self._log_mass >= least)
        order = np.concatenate([order[first[order]], order[(needed & ~first)[order]]])
        chosen = order[: min(width, self._left)]
        runs, self._waiting = [], []
        for number, i in enumerate(chosen.tolist()):
            # Every chosen branch is read; drafts share what is left besides.
            nodes = list(self._run(i, self._left - (len(chosen) - number - 1)))
            self._left -= len(nodes)
            parent = self._nodes[self._node[i]]
            runs.append(
                Run(example, nodes[-1].ids, len(parent.ids), [node.tokens for node in nodes])
            )
            self._waiting.append(nodes)
        self._drop(chosen)
        self.read += sum(map(len, self._waiting))
        self.widths.append(len(runs))
        return runs

    def next_best(self, count: int) -> list[Ids]:
        """Return the read prefixes that the best of the open branches go on from."""
        count = min(count, self._log_mass.size)
        if not count:
            return []
        best = np.argpartition(-self._log_mass, count - 1)[:count]
        return [self._nodes[node].ids for node in np.unique(self._node[best]).tolist()]

    def add(self, values: Sequence[Sequence[Float64[np.ndarray, "_"]]]) -> None:
        """Add what the model says after the prefixes of the runs that were last taken."""
        for nodes, answers in zip(self._waiting, values, strict=True):
            log_p = nodes[0].log_p
            for place, (node, next_log_p) in enumerate(zip(nodes, answers, strict=True)):
                following = nodes[place + 1].ids[-1] if place + 1 < len(nodes) else None
                self._branch(node._replace(log_p=log_p), next_log_p, following)
                if following is not None:
                    log_p += float(next_log_p[np.searchsorted(node.tokens, following)])
                    if log_p == -math.inf:
                        break
        self._waiting = []

    def _branch(
        self, node: _Node, next_log_p: Float64[np.ndarray, "_"], following: int | None
    ) -> None:
        """Find the answers that end behind a prefix; what goes on is open, but for one token.

        Args:
            following: the next token, where the prefix with it is read, too.
        """
        next_log_p = numbers(next_log_p)
        alive = ~np.isneginf(next_log_p)
        tokens, next_log_p = node.tokens[alive], next_log_p[alive]
        log_p = node.log_p + next_log_p
        automaton = self._automaton
        ends = automaton.delta[node.state, automaton.class_of[tokens]] == automaton.final
        for token, value in zip(tokens[ends].tolist(), log_p[ends].tolist(), strict=True):
            self.found[*node.ids, token] = value
        goes_on = ~ends if following is None else ~ends & (tokens != following)
        tokens, log_p, next_log_p = tokens[goes_on], log_p[goes_on], next_log_p[goes_on]
        slack = self._eps * (NORMALIZATION * (1 + node.remaining) - next_log_p)
        log_mass = log_p + slack
        most = max(self._left, 0)
        if tokens.size > most:
            order = np.argsort(-log_mass, kind="stable")
            self._log_rest = _log_sum(np.append(log_mass[order[most:]], self._log_rest))
            kept = order[:most]
            tokens, log_p, log_mass = tokens[kept], log_p[kept], log_mass[kept]
        self._nodes.append(node)
        number = np.full(tokens.size, len(self._nodes) - 1)
        self._node = np.concatenate([self._node, number])
        self._token = np.concatenate([self._token, tokens])
        self._log_p = np.concatenate([self._log_p, log_p])
        self._log_mass = np.concatenate([self._log_mass, log_mass])
        self._goes_first = np.concatenate([self._goes_first, self._is_own(node, tokens)])

    def _drop(self, chosen: Int64[np.ndarray, "_"]) -> None:
        """Take branches off the list of open ones."""
        for name in ("_node", "_token", "_log_p", "_log_mass", "_goes_first"):
            setattr(self, name, np.delete(getattr(self, name), chosen))

    def _at(self, ids: Ids, state: int, remaining: int, log_p: float, own: int) -> _Node:
        tokens = self._automaton.allowed(state, remaining)
        return _Node(ids, state, remaining, log_p, tokens, own)

    def _after(self, node: _Node, token: int, log_p: float) -> _Node:
        """Return the prefix with one more token."""
        own = -1 if self._canonical is None else self._canonical.step(node.own, token)
        state = self._automaton.step(node.state, token)
        return self._at((*node.ids, token), state, node.remaining - 1, log_p, own)

    def _is_own(self, node: _Node, tokens: Int64[np.ndarray, "_"]) -> Bool[np.ndarray, "_"]:
        """Tell which tokens after a prefix are in a canonical spelling that fits the budget."""
        automaton = self._canonical
        if automaton is None or node.own < 0:
            return np.zeros(tokens.size, np.bool_)
        after = automaton.delta[node.own, automaton.class_of[tokens]]
        return (after >= 0) & fits(automaton.steps_to_accept[after], node.remaining)

    def _run(self, branch: int, most: int) -> Iterator[_Node]:
        """Give the prefix that an open branch is, and up to so many with drafts behind it."""
        parent, token = self._nodes[self._node[branch]], int(self._token[branch])
        node = self._after(parent, token, float(self._log_p[branch]))
        yield node
        for _ in range(most - 1):
            following = self._draft(node)
            if following is None:
                return
            node = self._after(node, following, math.nan)
            yield node

    def _draft(self, node: _Node) -> int | None:
        """Return the token that is likely to follow; None for an end, or where texts part."""
        automaton, tokens = self._automaton, node.tokens
        known = self._following.get(node.ids)
        if known is not None:
            return None if automaton.step(node.state, known) == automaton.final else known
        if not 0 < tokens.size <= MOST_ALIKE:
            return None
        after = automaton.delta[node.state, automaton.class_of[tokens]]
        if (after == automaton.final).any():
            return None
        spelled = [automaton.vocabulary.token_bytes[token] for token in tokens.tolist()]
        longest = max(spelled, key=len)
        if not all(longest.startswith(each) for each in spelled):
            return None
        steps, own = automaton.steps_to_accept[after].tolist(), self._is_own(node, tokens).tolist()
        best = min(range(len(spelled)), key=lambda i: (not own[i], steps[i], -len(spelled[i])))
        return int(tokens[best])


def read_trees(
    reader: TreeReader,
    trees: Sequence[Tree],
    widths: Sequence[int],
    max_rows: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    max_tokens: int | None = None,
) -> None:
    """Read the tree of each of the reader's prompts until it is done.

    Args:
        widths: most branches of each tree that are read in a pass.
        max_rows: most branches of all trees that are read in a pass, at least one of each.
        stop: asked before each pass whether reading ends in any case.
        max_tokens: most tokens that are read of each tree; None for no limit but that of prefixes.
    """
    for tree, log_p in zip(trees, reader.first([tree.root for tree in trees]), strict=True):
        tree.start(log_p)
    active = [number for number, tree in enumerate(trees) if not tree.is_done]
    while active and not stop():
        share = max(1, max_rows // len(active))
        width = {number: min(share, widths[number]) for number in active}
        taken = {number: trees[number].take(number, width[number]) for number in active}
        keep = [
            (number, ids) for number in active for ids in trees[number].next_best(width[number])
        ]
        values = iter(reader.read([run for runs in taken.values() for run in runs], keep))
        for number, runs in taken.items():
            trees[number].add([next(values) for _ in runs])
            if max_tokens is not None:
                trees[number].leave(max_tokens - reader.tokens[number])
        active = [number for number in active if not trees[number].is_done]


def _log_sum(log_values: Float64[np.ndarray, "_"]) -> float:
    """Return the log of the sum of exponentials; -inf for none."""
    top = float(log_values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(np.exp(log_values - top).tolist()))
