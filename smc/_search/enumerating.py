"""Enumeration of all answers of a finite language, or of the most probable ones.

The prefixes of answers form a tree of token sequences. Computing a prefix x gives p(x v) for every
next token v, so the tree has three parts at any time:

    found      answers a with known p(a)
    computed   prefixes x, whose probability is divided among their continuations
    open       branches x v with a computed prefix x and known p(x v), where x v was neither
               computed nor found

Each pass computes several open branches, the most probable first. The computation ends when the
open branches have a small enough share of the total probability. When no branch is open, the sum
over the answers is the evidence itself, not an estimate.

**Canonical tokenizations first.** Until an answer is found, the most probable branches are the
shortest ones, and most of them belong to unusual tokenizations. Therefore the branches of the
tokenizer's own tokenizations are computed before all others, if there are few enough.

**Drafts.** A branch is computed together with its likely continuation. The draft continues as long
as the bytes of all allowed tokens agree, for example when only one label can follow. At each
position it has the tokenizer's own token, or otherwise the allowed token that leads closest to the
end. All prefixes of a draft count as computed. So a label takes one pass instead of one pass per
token.

Cost: one forward pass for at most `width` branches, and a sort of the open branches. A prefix
stores at most as many branches as may still be computed. The others are stored as the sum of their
probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gcd import TokenAutomaton
from gcd._tokens.distances import fits
from smc._forward.revisiting import Run, TreeReader, numbers
from smc._inference.bounds import NORMALIZATION, bounds_of

Ids = tuple[int, ...]

NARROW = 32
"""Number of branches per pass if the limit excludes some branches.

With few branches per pass, the most probable branches are computed first.
"""
MOST_ALIKE = 64
"""Maximum number of allowed tokens whose bytes are compared for a draft (a heuristic)."""


class _Node(NamedTuple):
    """A prefix that is computed, or about to be computed.

    Attributes:
        ids: tokens of the prefix.
        state: automaton state of the prefix.
        remaining: number of tokens that may still follow, including EOS.
        log_p: log-probability of the prefix; for a draft, NaN until it is computed.
        tokens: the allowed next tokens.
        own: state in the automaton of canonical tokenizations; -1 if the prefix isn't canonical.
    """

    ids: Ids
    state: int
    remaining: int
    log_p: float
    tokens: Int64[np.ndarray, "_"]
    own: int


class Tree:
    """The computed part of the tree of one prompt's answers.

    Args:
        automaton: the language.
        budget: maximum number of tokens of an answer, including EOS.
        most: maximum number of prefixes computed after the prompt.
        certify: the share of the evidence to find.
        eps: machine epsilon of the model's log-probabilities.
        canonical: automaton of the same texts in canonical tokenizations, whose branches are
            computed first; None to treat all branches alike.
        known: answers that are already known, with log p. They count as found, and their prefixes
            are used as drafts.
        log_upper: log of another known upper bound on the evidence.
        wanted: number of most probable answers to find, instead of the share `certify`; None for
            the share. Only forced tokens are drafted then.

    Attributes:
        found: log p of the found answers, including EOS.
        read: number of prefixes computed after the prompt.
        widths: number of branches computed in each pass.
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
        wanted: int | None = None,
    ) -> None:
        self.found: dict[Ids, float] = {}
        self._known, self._log_upper = dict(known or {}), log_upper
        # The token after each prefix of a known answer, from the most probable known answer.
        self._following = {
            ids[:t]: ids[t]
            for ids in sorted(self._known, key=self._known.__getitem__)
            for t in range(len(ids))
        }
        self.read = 0
        self.widths: list[int] = []
        self._automaton, self._certify, self._eps = automaton, certify, eps
        self._canonical, self._wanted = canonical, wanted
        self._left = most
        self._nodes: list[_Node] = []
        # Open branches: node, token, log p, and log p rounded up for the upper bound.
        self._node = np.zeros(0, np.int64)
        self._token = np.zeros(0, np.int64)
        self._log_p = np.zeros(0)
        self._log_mass = np.zeros(0)
        self._goes_first = np.zeros(0, np.bool_)
        # Log probability of all branches that will never be computed; with `wanted`, of the best.
        self._log_rest = -math.inf
        self._waiting: list[list[_Node]] = []
        own = -1 if canonical is None else canonical.initial
        self._root = self._at((), automaton.initial, budget, 0.0, own)

    @property
    def root(self) -> Int64[np.ndarray, "_"]:
        """The tokens with which an answer may begin."""
        return self._root.tokens

    @property
    def is_whole(self) -> bool:
        """True if no branch with positive probability is open."""
        return not self._log_mass.size and self._log_rest == -math.inf

    @property
    def is_done(self) -> bool:
        """True if enough was found, a limit is reached, or no branch is open."""
        if self._left <= 0 or not self._log_mass.size:
            return True
        if self._wanted is not None:
            return bool(self._log_p.max() <= self._threshold)
        return bounds_of(self.log_lower, self.log_upper).certified >= self._certify

    @property
    def _threshold(self) -> float:
        """Log p that an answer must exceed to be one of the `wanted` most probable ones."""
        best = nlargest(self._wanted or 0, self.found.values())
        return best[-1] if best and len(best) == self._wanted else -math.inf

    @property
    def log_bound(self) -> float:
        """Upper bound on log p of answers that weren't found but are more probable than wanted."""
        log_p = np.append(self._log_p, self._log_rest)
        return float(log_p[log_p > self._threshold].max(initial=-math.inf))

    @property
    def everything(self) -> dict[Ids, float]:
        """Log-probabilities of the answers found here, and of those known from sampling."""
        return {**self._known, **self.found}

    @property
    def log_lower(self) -> float:
        """Log of the total probability of the found and known answers."""
        return _log_sum(np.array(list(self.everything.values()))) if self._known else self.log_found

    @property
    def log_upper(self) -> float:
        """Log of the smallest known upper bound on the evidence."""
        # Rounding may differ between passes, so the upper bound is at least the lower bound.
        return max(self.log_lower, min(self._log_upper, self.log_mass))

    @property
    def log_found(self) -> float:
        """Log of the total probability of the found answers."""
        return _log_sum(np.array(list(self.found.values())))

    @property
    def log_mass(self) -> float:
        """Log of the total probability of found answers and open branches."""
        open_mass = _log_sum(np.append(self._log_mass, self._log_rest))
        return _log_sum(np.array([self.log_found, open_mass]))

    def start(self, log_p: Float64[np.ndarray, "_"]) -> None:
        """Begin the tree, given the log-probabilities of the possible first tokens (`root`)."""
        if self._root.state == self._automaton.final:  # the empty text, which ends without EOS
            self.found[()] = 0.0
        else:
            self._branch(self._root, log_p, None)

    def leave(self, most: int) -> None:
        """Limit the number of prefixes that may still be computed."""
        self._left = min(self._left, most)

    def take(self, example: int, width: int) -> list[Run]:
        """Choose at most `width` open branches; return the prefixes to compute for them."""
        order = self._by_probability() if self._wanted is not None else self._by_share()
        chosen = order[: min(width, self._left)]
        runs, self._waiting = [], []
        for number, i in enumerate(chosen.tolist()):
            # Every chosen branch is computed. Drafts may use the rest of the limit.
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

    def _by_probability(self) -> Int64[np.ndarray, "_"]:
        """Return the branches that may lead to one of the wanted answers, the best first."""
        order = np.argsort(-self._log_p, kind="stable")
        return order[self._log_p[order] > self._threshold]

    def _by_share(self) -> Int64[np.ndarray, "_"]:
        """Return the branches that must be computed to certify the share, in this order."""
        order = np.argsort(-self._log_mass, kind="stable")
        log_upper = self.log_mass
        share = np.exp(self._log_mass[order] - log_upper)
        # The share of probability that may stay open. It is reduced slightly, because the bounds
        # are rounded.
        spare = (1 - self._certify) * (1 - 1e-6) - math.exp(self._log_rest - log_upper)
        # The share that stays open if this branch and all less probable ones aren't computed.
        after = np.cumsum(share[::-1])[::-1]
        needed = np.zeros(order.size, np.bool_)
        needed[order[: max(1, int((after > spare).sum()))]] = True
        # A canonical branch is needed if its probability alone exceeds what may stay open.
        least = self.log_found + math.log(1 - self._certify) if self._certify < 1 else -math.inf
        first = self._goes_first & (self._log_mass >= least)
        return np.concatenate([order[first[order]], order[(needed & ~first)[order]]])

    def next_best(self, count: int) -> list[Ids]:
        """Return the computed prefixes that the most probable open branches extend."""
        count = min(count, self._log_mass.size)
        if not count:
            return []
        best = np.argpartition(-self._log_mass, count - 1)[:count]
        return [self._nodes[node].ids for node in np.unique(self._node[best]).tolist()]

    def add(self, values: Sequence[Sequence[Float64[np.ndarray, "_"]]]) -> None:
        """Add the model's log-probabilities for the prefixes that `take` returned last."""
        for nodes, answers in zip(self._waiting, values, strict=True):
            log_p = nodes[0].log_p
            for index, (node, next_log_p) in enumerate(zip(nodes, answers, strict=True)):
                following = nodes[index + 1].ids[-1] if index + 1 < len(nodes) else None
                self._branch(node._replace(log_p=log_p), next_log_p, following)
                if following is not None:
                    log_p += float(next_log_p[np.searchsorted(node.tokens, following)])
                    if log_p == -math.inf:
                        break
        self._waiting = []

    def _branch(
        self, node: _Node, next_log_p: Float64[np.ndarray, "_"], following: int | None
    ) -> None:
        """Store the answers that are complete after a prefix and one token; add the open branches.

        Args:
            following: the next token whose prefix is computed in the same run, and which therefore
                has no open branch; None if there is none.
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
            if self._wanted is None:
                self._log_rest = _log_sum(np.append(log_mass[order[most:]], self._log_rest))
            else:  # a bound on each of them
                self._log_rest = max(self._log_rest, float(log_p[order[most:]].max()))
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
        """Remove the chosen branches from the open branches."""
        for name in ("_node", "_token", "_log_p", "_log_mass", "_goes_first"):
            setattr(self, name, np.delete(getattr(self, name), chosen))

    def _at(self, ids: Ids, state: int, remaining: int, log_p: float, own: int) -> _Node:
        tokens = self._automaton.allowed(state, remaining)
        return _Node(ids, state, remaining, log_p, tokens, own)

    def _after(self, node: _Node, token: int, log_p: float) -> _Node:
        """Return the prefix extended by one token."""
        own = -1 if self._canonical is None else self._canonical.step(node.own, token)
        state = self._automaton.step(node.state, token)
        return self._at((*node.ids, token), state, node.remaining - 1, log_p, own)

    def _is_own(self, node: _Node, tokens: Int64[np.ndarray, "_"]) -> Bool[np.ndarray, "_"]:
        """Return True for tokens with which the prefix stays canonical and can end in time."""
        automaton = self._canonical
        if automaton is None or node.own < 0:
            return np.zeros(tokens.size, np.bool_)
        after = automaton.delta[node.own, automaton.class_of[tokens]]
        return (after >= 0) & fits(automaton.steps_to_accept[after], node.remaining)

    def _run(self, branch: int, most: int) -> Iterator[_Node]:
        """Yield the prefix of an open branch and its drafts, at most `most` prefixes in total."""
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
        """Return the likely next token; None if an answer may end, or if the texts diverge."""
        automaton, tokens = self._automaton, node.tokens
        if self._wanted is not None and tokens.size > 1:
            return None
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
    """Compute the answer trees of several prompts until every tree is done (`Tree.is_done`).

    Args:
        max_tokens: maximum number of tokens computed for each tree; None for no such limit.
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
    """Return the log of the sum of the exponentials of `log_values`; -inf if there are none."""
    top = float(log_values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(np.exp(log_values - top).tolist()))
