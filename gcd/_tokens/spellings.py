"""Restriction of a token automaton to the tokenizer's own tokenization of literal text.

Most of a structured answer is fixed text: names of members, quotes, commas. The bytes of `"name"`
are fixed, but they can be split into tokens in many ways. The tokenizer produces one of them, the
canonical tokenization. This module removes the other tokenizations, so that nearly every token of
fixed text is the only allowed token.

**Allowed tokenizations.** A state is *literal* if at most `MOST_LIVE` tokens may follow it (inside
a free string nearly all tokens may). After a token t, a literal state allows the token u only if
the tokenizer produces u after t (`gcd._tokens.canonical_pairs.Segmentation.admits`). The first
token of a text has no predecessor, and is allowed if the tokenizer ever produces it. The text may
end after any token. Both rules also hold next to special tokens, which end segments. Other states
don't change. So the tokenizer's own tokenization of every text remains. If all states are literal,
it is the only tokenization.

**Product.** The tokens that lead to a literal state s are grouped by the set of tokens that may
follow them in s, their *behavior*, and s is copied for each behavior. States that are not literal
are not copied. There are few behaviors, and most are dead ends: after a closing quote `"` a comma
must follow, but the tokenizer produces `",` as one token. So the quote alone is a dead end, and is
removed everywhere. Behaviors that are equal except for dead ends are merged. Finally, token classes
are split if their tokens now behave differently, and merged if no state distinguishes them.

Cost: one query for each pair of a token that leads to a literal state and a token that follows it.
Most answers are cached from other automata over the same vocabulary. The rest is linear in the
number of pairs and in the table.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, UInt64

from gcd._errors import ConstraintError
from gcd._support.kernels.grouping import number_by_first
from gcd._tokens.canonical_pairs import START, Segmentation
from gcd._tokens.distances import UNREACHABLE, distances_to
from gcd._tokens.kernels.classes import from_classes, refine
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.trimming import TokenTable, add_end, trim

LITERALS = ("all", "canonical")

MOST_LIVE = 63
"""Maximum number of tokens that a literal state allows. It is below 64, the number of continuation
bytes in UTF-8. Otherwise the states inside a free string's characters would be literal, and would
be copied for each first byte.
"""

MOST_PAIRS = 1 << 15
"""Maximum number of pairs, at one literal state, of a token that leads to it and a token after it.
"""

_AT_ONCE = 1 << 21  # pairs per query


def canonical(automaton: TokenAutomaton) -> TokenTable | None:
    """Return the table of the texts in the tokenizer's own tokenization; None if none is left."""
    segmentation = automaton.vocabulary.segmentation
    if segmentation is None:
        raise ConstraintError(
            'expected a vocabulary made from a tokenizer for literals="canonical", got a '
            f"vocabulary of {automaton.vocabulary.size} ids without the tokenizer's rules; make it "
            'with Vocabulary.from_tokenizer, or lift with literals="all"'
        )
    adjacent = _Adjacent.of(automaton)
    admitted = adjacent.find_admitted(segmentation)
    product = _Product(adjacent, _behaviors(adjacent, admitted), admitted)
    # Merge behaviors that differ only in dead ends.
    admitted &= product.leads_on[adjacent.pair_live]
    return _Product(adjacent, _behaviors(adjacent, admitted), admitted).table()


class _Adjacent(NamedTuple):
    """Literal states, the tokens that lead to them, and the tokens that may follow in them."""

    automaton: TokenAutomaton  # the whole automaton
    is_literal: Bool[np.ndarray, "S"]  # whether each of its states is literal
    # live_state, live_token, live_target: the tokens that may follow in literal states, by state,
    # with the states that they lead to
    live_state: Int64[np.ndarray, "L"]
    live_token: Int64[np.ndarray, "L"]
    live_target: Int64[np.ndarray, "L"]
    # arrival_state, arrival_token: the *arrivals*: tokens that lead to literal states, by state and
    # token. At the beginning of the text, the token is `START`.
    arrival_state: Int64[np.ndarray, "A"]
    arrival_token: Int64[np.ndarray, "A"]
    # Index of each arrival's first pair, followed by the number of all pairs
    pair_start: Int64[np.ndarray, "A1"]
    # pair_arrival, pair_live: the pairs of an arrival and a token that may follow in its state, as
    # indices in the arrays above
    pair_arrival: Int64[np.ndarray, "P"]
    pair_live: Int64[np.ndarray, "P"]

    @classmethod
    def of(cls, automaton: TokenAutomaton) -> _Adjacent:
        """Find the states that few tokens may follow (literal), and the tokens before and after."""
        num_states, usual = automaton.num_states, automaton.eos_class
        delta = automaton.delta[:, :usual]
        width = automaton.tokens_per_class[:usual]
        live = np.array([width[row >= 0].sum() for row in delta])
        literal = live <= MOST_LIVE
        literal[automaton.final] = False  # also the value at index -1 in the next line
        state, target_class = _arrivals(delta, literal)
        arriving = np.bincount(state, width[target_class], num_states)
        literal &= (arriving + 1) * live <= MOST_PAIRS

        rows = np.flatnonzero(literal)
        row, live_class = np.nonzero(delta[rows] >= 0)
        each, live_token = _spread(automaton, live_class)
        live_state = rows[row][each]
        live_target = delta[live_state, live_class[each]].astype(np.int64)

        kept = literal[state]
        each, arrival_token = _spread(automaton, target_class[kept])
        arrival_state = state[kept][each]
        if literal[automaton.initial]:
            arrival_state = np.append(arrival_state, automaton.initial)
            arrival_token = np.append(arrival_token, START)
        order = np.lexsort((arrival_token, arrival_state))
        arrival_state, arrival_token = arrival_state[order], arrival_token[order]

        live_start = np.searchsorted(live_state, np.arange(num_states + 1))
        count = np.diff(live_start)[arrival_state]
        pair_start = np.concatenate([[0], np.cumsum(count)])
        pair_arrival = np.repeat(np.arange(arrival_state.size), count)
        pair_live = np.arange(pair_start[-1]) - pair_start[pair_arrival]
        pair_live += live_start[arrival_state[pair_arrival]]
        return cls(
            automaton,
            literal,
            live_state,
            live_token,
            live_target,
            arrival_state,
            arrival_token,
            pair_start,
            pair_arrival,
            pair_live,
        )

    def find_admitted(self, segmentation: Segmentation) -> Bool[np.ndarray, "P"]:
        """Return, for every pair of adjacent tokens, whether the tokenizer produces the pair."""
        token_bytes = self.automaton.vocabulary.token_bytes
        # The last entry is for START.
        is_special = np.array([not token for token in token_bytes] + [False])
        found = np.zeros(self.pair_live.size, np.bool_)
        for first in range(0, found.size, _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            left = self.arrival_token[self.pair_arrival[part]]
            right = self.live_token[self.pair_live[part]]
            # A special token, which has no bytes, splits text like its beginning and its end.
            left = np.where(is_special[left], START, left)
            usual = ~is_special[right]
            admitted = ~usual
            admitted[usual] = segmentation.admits(left[usual], right[usual])
            found[part] = admitted
        return found

    def arrival(
        self, state: Int[np.ndarray, "n"], token: Int[np.ndarray, "n"]
    ) -> Int64[np.ndarray, "n"]:
        """Return the index in `arrival_state` of each literal state with the token before it."""
        width = self.automaton.vocabulary.size + 1
        known = self.arrival_state * width + self.arrival_token
        return np.searchsorted(known, state.astype(np.int64) * width + token)


def _arrivals(
    delta: Int32[np.ndarray, "S C"], literal: Bool[np.ndarray, "S"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """List the pairs of a literal state and a token class that leads to it, ordered by state."""
    num_classes = max(delta.shape[1], 1)
    row, column = np.nonzero(literal[delta])
    keys = np.unique(delta[row, column].astype(np.int64) * num_classes + column)
    return keys // num_classes, keys % num_classes


def _spread(
    automaton: TokenAutomaton, classes: Int64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
    """List the tokens of each class in `classes`, as (index in `classes`, token)."""
    width = automaton.tokens_per_class
    start = np.cumsum(width) - width
    each = np.repeat(np.arange(classes.size), width[classes])
    before = np.cumsum(width[classes]) - width[classes]
    index = np.arange(each.size) - before[each] + start[classes[each]]
    return each, automaton.tokens_by_class[index].astype(np.int64)


class _Behaviors(NamedTuple):
    """Groups of tokens that lead to one state, after which the same tokens are allowed."""

    # The behavior of each arrival, which is a pair of a literal state and a token before it
    of: Int64[np.ndarray, "A"]
    first: Int64[np.ndarray, "B"]  # for each behavior, one of its arrivals


def _behaviors(adjacent: _Adjacent, admitted: Bool[np.ndarray, "P"]) -> _Behaviors:
    """Group the tokens that lead to a state by the set of tokens that may follow them there."""
    weights = _weights(adjacent.automaton.vocabulary.size)
    terms = np.where(admitted, weights[adjacent.live_token[adjacent.pair_live]], np.uint64(0))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    total = np.diff(total[adjacent.pair_start])
    of, first = _groups(adjacent.arrival_state, total)
    start = adjacent.pair_start
    same = np.arange(admitted.size) + (start[first[of]] - start[:-1])[adjacent.pair_arrival]
    assert (admitted == admitted[same]).all(), "equal sums of random numbers, other terms"
    return _Behaviors(of, first)


def _weights(count: int) -> UInt64[np.ndarray, "n"]:
    """Return random numbers, the same in every call."""
    return np.random.default_rng(0).integers(0, 2**64, count, np.uint64)


def _groups(
    index: Int64[np.ndarray, "n"], total: UInt64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "g"]]:
    """Return the numbers of distinct pairs (`index[i]`, `total[i]`), and their first indices."""
    order = np.lexsort((total, index))
    new = np.ones(order.size, np.bool_)
    new[1:] = (np.diff(index[order]) != 0) | (total[order][1:] != total[order][:-1])
    number = np.empty(order.size, np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


class _Product:
    """Product of the automaton with the behavior of the last token.

    A behavior is a group of tokens that lead to one literal state, and after which the same tokens
    are allowed. The first states are the automaton's states; its literal states are unused. Then
    one state for each behavior follows.
    """

    def __init__(
        self, adjacent: _Adjacent, behaviors: _Behaviors, admitted: Bool[np.ndarray, "P"]
    ) -> None:
        automaton = adjacent.automaton
        self._adjacent, self._behaviors = adjacent, behaviors
        self._owner = adjacent.arrival_state[behaviors.first]  # of each behavior
        self._live_node = self._after(adjacent.live_target, adjacent.live_token)
        # One arrival represents each behavior.
        is_first = np.zeros(behaviors.of.size, np.bool_)
        is_first[behaviors.first] = True
        self._used = np.flatnonzero(is_first[adjacent.pair_arrival] & admitted)
        self._source = automaton.num_states + behaviors.of[adjacent.pair_arrival[self._used]]

        num_nodes = automaton.num_states + self._owner.size
        edges = np.ascontiguousarray(np.concatenate([*self._edges()]).T, np.int32)
        steps = distances_to(automaton.final, edges, num_nodes)
        # For each token that follows a literal state: whether the end can be reached after it.
        self.leads_on = steps[self._live_node] < UNREACHABLE
        initial = np.array([automaton.initial])
        self._initial = int(self._after(initial, np.array([START]))[0])
        ahead = distances_to(self._initial, edges[::-1], num_nodes)
        self._alive = (steps < UNREACHABLE) & (ahead < UNREACHABLE)

    def _after(
        self, target: Int[np.ndarray, "n"], token: Int[np.ndarray, "n"]
    ) -> Int64[np.ndarray, "n"]:
        """Return the product's state after each token, which leads to `target` in the automaton."""
        after = target.astype(np.int64)
        literal = np.flatnonzero(self._adjacent.is_literal[after])
        arrival = self._adjacent.arrival(after[literal], token[literal])
        after[literal] = self._adjacent.automaton.num_states + self._behaviors.of[arrival]
        return after

    def _edges(self) -> list[np.ndarray]:
        """List the product's edges (state, next state), including those to the final state."""
        adjacent, behaviors = self._adjacent, self._behaviors
        automaton, literal = adjacent.automaton, adjacent.is_literal
        plain = automaton.rows.edges.T
        plain = plain[~literal[plain[:, 0]] & ~literal[plain[:, 1]]]
        inner = np.stack([self._source, self._live_node[adjacent.pair_live[self._used]]], 1)
        # From other states, a class leads to all behaviors of its tokens.
        delta, num_classes = automaton.delta, automaton.num_classes
        usual = adjacent.arrival_token != START
        at = adjacent.arrival_state[usual] * num_classes
        at += automaton.class_of[adjacent.arrival_token[usual]]
        num_behaviors = max(self._owner.size, 1)
        keys = np.unique(at * num_behaviors + behaviors.of[usual])
        at, behavior = np.divmod(keys, num_behaviors)
        free = np.flatnonzero(~literal)
        row, column = np.nonzero(literal[delta[free]])
        wanted = delta[free[row], column].astype(np.int64) * num_classes + column
        first, last = np.searchsorted(at, wanted), np.searchsorted(at, wanted, side="right")
        each = np.repeat(np.arange(wanted.size), last - first)
        index = np.arange(each.size) - np.repeat(np.cumsum(last - first) - last, last - first)
        entering = np.stack([free[row[each]], automaton.num_states + behavior[index]], 1)
        ends = automaton.num_states + np.flatnonzero(automaton.accepting[self._owner])
        return [plain, inner, entering, np.stack([ends, np.full_like(ends, automaton.final)], 1)]

    def table(self) -> TokenTable | None:
        """Return the product's table without dead ends; None if no text is left."""
        automaton, num_states = self._adjacent.automaton, self._adjacent.automaton.num_states
        alive = self._alive.copy()
        alive[automaton.final] = False  # it becomes the last state
        number = np.full(alive.size, -1, np.int32)
        number[alive] = np.arange(alive.sum())
        number[automaton.final] = alive.sum()
        if number[self._initial] < 0:
            return None
        class_of, token = self._classes()
        table = np.full((alive.sum() + 1, token.size + 1), -1, np.int32)

        free = np.flatnonzero(alive[:num_states])
        after = automaton.delta[np.ix_(free, automaton.class_of[token])]
        row, column = np.nonzero(after >= 0)
        table[number[free[row]], column] = number[self._after(after[row, column], token[column])]

        live = self._adjacent.pair_live[self._used]
        row, column = number[self._source], class_of[self._adjacent.live_token[live]]
        kept = row >= 0
        table[row[kept], column[kept]] = number[self._live_node[live]][kept]

        owner = np.concatenate([np.arange(num_states), self._owner])[alive]
        add_end(table, automaton.accepting[owner])
        return trim(table, class_of, int(number[self._initial]), merge=True)

    def _classes(self) -> tuple[Int32[np.ndarray, "V"], Int64[np.ndarray, "C"]]:
        """Split token classes that behave differently; return classes (EOS last) and tokens."""
        adjacent, automaton = self._adjacent, self._adjacent.automaton
        partition = from_classes(automaton.class_of.copy(), automaton.num_classes)

        usual = adjacent.arrival_token != START
        leads_to = np.where(self._alive[automaton.num_states :], np.arange(self._owner.size), -1)
        arrivals = (adjacent.arrival_state, adjacent.arrival_token, leads_to[self._behaviors.of])
        _part(partition, *(array[usual] for array in arrivals))

        counts = self._alive[self._source]  # what follows dead ends doesn't matter
        behavior = (self._source - automaton.num_states)[counts]
        live = adjacent.pair_live[self._used][counts]
        total = np.zeros(adjacent.live_token.size, np.uint64)
        np.add.at(total, live, _weights(self._owner.size)[behavior])
        allowed_by, _ = _groups(adjacent.live_state, total)
        _part(partition, adjacent.live_state, adjacent.live_token, allowed_by)

        is_eos = np.zeros(automaton.vocabulary.size, np.bool_)
        is_eos[list(automaton.vocabulary.eos_ids)] = True
        tokens = np.flatnonzero(~is_eos)
        classes = partition[0][tokens].astype(np.int64)
        numbers, first = number_by_first(classes, 2 * automaton.vocabulary.size + 1)
        class_of = np.full(automaton.vocabulary.size, first.size, np.int32)
        class_of[tokens] = numbers
        return class_of, tokens[first]


def _part(
    partition: tuple[np.ndarray, ...],
    index: Int64[np.ndarray, "n"],
    token: Int64[np.ndarray, "n"],
    label: Int64[np.ndarray, "n"],
) -> None:
    """Split token classes so that in each state `index[i]`, tokens of a class have one label."""
    bounds = np.append(np.flatnonzero(np.diff(index, prepend=-1)), index.size)
    token, label = token.astype(np.int32), label.astype(np.int32)
    for first, last in pairwise(bounds):
        refine(partition, token[first:last].copy(), label[first:last].copy(), last - first)
