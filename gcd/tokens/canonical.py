"""A token automaton is narrowed, where it spells literal text, to the tokenizer's own spelling.

Most of a structured answer is text that nobody chooses: names of members, quotes, commas. As bytes
it is determined, as tokens it is not, since `"name"` can be cut in many ways. Of these the
tokenizer writes one, the canonical one, and here the others are taken away, so that nearly every
token of such a text is the only one allowed.

**What is kept.** A state is *literal* if at most `MOST_LIVE` tokens may follow it (inside of a free
string nearly all may). After a token t, a literal state allows the token u only if the tokenizer
writes u after t (`gcd.tokens.segmentation.Segmentation.admits`). The first token of a text has
nothing before it, and its end may follow any; special tokens, which end segments, cut text in the
same way. Elsewhere nothing changes. So of every text the
tokenizer's own spelling is kept, and in languages that are literal throughout, nothing else.

**A product.** A literal state s is taken once for each *behaviour* that tokens which lead to it
have, the set of tokens that may follow them in s; states that are not literal remember nothing.
There are few behaviours, and most lead nowhere: after the closing quote `"` alone the comma would
have to follow, but the tokenizer writes `",` as one token. So that quote is a dead end and goes,
wherever it stands. Behaviours that are equal but for dead ends are one. Tokens that now behave
differently part, and classes that nothing tells apart any more become one.

Cost: one answer for each pair of tokens around each literal state, most of them known from other
automata over the same vocabulary; the rest is linear in the pairs and in the table.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, UInt64

from gcd.errors import ConstraintError
from gcd.support.kernels.grouping import number_by_first
from gcd.tokens.distances import UNREACHABLE, edges
from gcd.tokens.kernels import token_graph as graph
from gcd.tokens.kernels.classes import from_classes, refine
from gcd.tokens.segmentation import START, Segmentation
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.trimming import TokenTable, add_end, trim

LITERALS = ("all", "canonical")

MOST_LIVE = 63
"""A state that allows more tokens is not literal. The 64 bytes that continue a character are more:
else the inside of each character of a free string would be taken once for each first byte."""

MOST_PAIRS = 1 << 15
"""Nor is one with more pairs of a token that leads to it and a token that leads on."""

_AT_ONCE = 1 << 21  # pairs asked for in one call


def canonical(automaton: TokenAutomaton) -> TokenTable | None:
    """Return the table of the same texts, literal ones in the tokenizer's own spelling.

    Returns:
        The table, or None if no text is left, because the tokenizer can write none of them.

    Raises:
        ConstraintError: if the vocabulary does not know how its tokenizer cuts text.
    """
    segmentation = automaton.vocabulary.segmentation
    if segmentation is None:
        raise ConstraintError(
            'literals="canonical" needs the tokenizer\'s own spelling, which this vocabulary of '
            f"{automaton.vocabulary.size} ids does not know; make it with "
            'Vocabulary.from_tokenizer, or lift with literals="all"'
        )
    places = _Places.of(automaton)
    admitted = places.admitted(segmentation)
    product = _Product(places, _behaviours(places, admitted), admitted)
    # Behaviours that differ in dead ends only become one.
    admitted &= product.leads_on[places.pair_live]
    return _Product(places, _behaviours(places, admitted), admitted).table()


class _Places(NamedTuple):
    """This lists the literal states, the tokens that lead to them, and those that lead on.

    Attributes:
        automaton: all of it.
        is_literal: which of its states are.
        live_state, live_token, live_target: the tokens that lead on from literal states, by state.
        arrival_state, arrival_token: the tokens that lead to literal states, by state and token;
            `START` for none, at the beginning.
        pair_start: where the pairs of each arrival begin, and the number of all pairs.
        pair_arrival, pair_live: each arrival with each token that leads on from its state.
    """

    automaton: TokenAutomaton
    is_literal: Bool[np.ndarray, "S"]
    live_state: Int64[np.ndarray, "L"]
    live_token: Int64[np.ndarray, "L"]
    live_target: Int64[np.ndarray, "L"]
    arrival_state: Int64[np.ndarray, "A"]
    arrival_token: Int64[np.ndarray, "A"]
    pair_start: Int64[np.ndarray, "A1"]
    pair_arrival: Int64[np.ndarray, "P"]
    pair_live: Int64[np.ndarray, "P"]

    @classmethod
    def of(cls, automaton: TokenAutomaton) -> _Places:
        """Find the literal states."""
        num_states, usual = automaton.num_states, automaton.eos_class
        delta = automaton.delta[:, :usual]
        width = automaton.tokens_per_class[:usual]
        live = np.array([width[row >= 0].sum() for row in delta])
        literal = live <= MOST_LIVE
        literal[automaton.final] = False  # which is also what stands for -1 in the next line
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

    def admitted(self, segmentation: Segmentation) -> Bool[np.ndarray, "P"]:
        """Ask for every pair whether the tokenizer writes its tokens side by side."""
        token_bytes = self.automaton.vocabulary.token_bytes
        is_special = np.array([not token for token in token_bytes] + [False])  # the last: START
        found = np.zeros(self.pair_live.size, np.bool_)
        for first in range(0, found.size, _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            left = self.arrival_token[self.pair_arrival[part]]
            right = self.live_token[self.pair_live[part]]
            # A special token, which has no bytes, cuts text as its beginning and its end do.
            left = np.where(is_special[left], START, left)
            usual = ~is_special[right]
            admitted = ~usual
            admitted[usual] = segmentation.admits(left[usual], right[usual])
            found[part] = admitted
        return found

    def arrival(
        self, state: Int[np.ndarray, "n"], token: Int[np.ndarray, "n"]
    ) -> Int64[np.ndarray, "n"]:
        """Return the number of the arrival by each token at each state."""
        width = self.automaton.vocabulary.size + 1
        known = self.arrival_state * width + self.arrival_token
        return np.searchsorted(known, state.astype(np.int64) * width + token)


def _arrivals(
    delta: Int32[np.ndarray, "S C"], literal: Bool[np.ndarray, "S"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """List which classes lead to which literal states, each pair once, by state."""
    num_classes = max(delta.shape[1], 1)
    row, column = np.nonzero(literal[delta])
    keys = np.unique(delta[row, column].astype(np.int64) * num_classes + column)
    return keys // num_classes, keys % num_classes


def _spread(
    automaton: TokenAutomaton, classes: Int64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
    """List the tokens of each class in turn: (index of the class in the list, token)."""
    width = automaton.tokens_per_class
    start = np.cumsum(width) - width
    each = np.repeat(np.arange(classes.size), width[classes])
    before = np.cumsum(width[classes]) - width[classes]
    place = np.arange(each.size) - before[each] + start[classes[each]]
    return each, automaton.tokens_by_class[place].astype(np.int64)


class _Behaviours(NamedTuple):
    """Arrivals at one state that allow the same tokens there have one behaviour.

    Attributes:
        of: the behaviour of each arrival.
        first: an arrival of each behaviour.
    """

    of: Int64[np.ndarray, "A"]
    first: Int64[np.ndarray, "B"]


def _behaviours(places: _Places, admitted: Bool[np.ndarray, "P"]) -> _Behaviours:
    """Group arrivals; sums of random numbers guess which are equal, and that is checked."""
    weights = _weights(places.automaton.vocabulary.size)
    terms = np.where(admitted, weights[places.live_token[places.pair_live]], np.uint64(0))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    total = np.diff(total[places.pair_start])
    of, first = _groups(places.arrival_state, total)
    start = places.pair_start
    same = np.arange(admitted.size) + (start[first[of]] - start[:-1])[places.pair_arrival]
    assert (admitted == admitted[same]).all(), "equal sums of random numbers, other terms"
    return _Behaviours(of, first)


def _weights(count: int) -> UInt64[np.ndarray, "n"]:
    """Return random numbers, always the same."""
    return np.random.default_rng(0).integers(0, 2**64, count, np.uint64)


def _groups(
    place: Int64[np.ndarray, "n"], total: UInt64[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "g"]]:
    """Number the distinct pairs, in order of place: (number of each, where each occurs first)."""
    order = np.lexsort((total, place))
    new = np.ones(order.size, np.bool_)
    new[1:] = (np.diff(place[order]) != 0) | (total[order][1:] != total[order][:-1])
    number = np.empty(order.size, np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


class _Product:
    """This is the product of the automaton with the behaviour of the last token.

    Its states are numbered as the automaton's, of which the literal ones stay alone, and after them
    one for each behaviour.

    Attributes:
        leads_on: whether each token that leads on from a literal state leads to the end.
    """

    def __init__(
        self, places: _Places, behaviours: _Behaviours, admitted: Bool[np.ndarray, "P"]
    ) -> None:
        automaton = places.automaton
        self._places, self._behaviours, self._admitted = places, behaviours, admitted
        self._owner = places.arrival_state[behaviours.first]  # of each behaviour
        self._live_node = self._after(places.live_target, places.live_token)
        # One arrival of each behaviour is enough.
        is_first = np.zeros(behaviours.of.size, np.bool_)
        is_first[behaviours.first] = True
        self._used = np.flatnonzero(is_first[places.pair_arrival] & admitted)
        self._source = automaton.num_states + behaviours.of[places.pair_arrival[self._used]]

        num_nodes = automaton.num_states + self._owner.size
        pairs = np.concatenate([*self._edges()]).astype(np.int32)
        steps = graph.distances(pairs, num_nodes, automaton.final, UNREACHABLE, True)
        self.leads_on = steps[self._live_node] < UNREACHABLE
        initial = np.array([automaton.initial])
        self._initial = int(self._after(initial, np.array([START]))[0])
        ahead = graph.distances(pairs, num_nodes, self._initial, UNREACHABLE, False)
        self._alive = (steps < UNREACHABLE) & (ahead < UNREACHABLE)

    def _after(
        self, target: Int[np.ndarray, "n"], token: Int[np.ndarray, "n"]
    ) -> Int64[np.ndarray, "n"]:
        """Return the product's state after a token that leads to this state of the automaton."""
        after = target.astype(np.int64)
        literal = np.flatnonzero(self._places.is_literal[after])
        arrival = self._places.arrival(after[literal], token[literal])
        after[literal] = self._places.automaton.num_states + self._behaviours.of[arrival]
        return after

    def _edges(self) -> list[np.ndarray]:
        """List the pairs (state, next state), the end included."""
        places, behaviours = self._places, self._behaviours
        automaton, literal = places.automaton, places.is_literal
        plain = edges(automaton.delta)
        plain = plain[~literal[plain[:, 0]] & ~literal[plain[:, 1]]]
        inner = np.stack([self._source, self._live_node[places.pair_live[self._used]]], 1)
        # From other states a class leads to all behaviours that its tokens have.
        delta, num_classes = automaton.delta, automaton.num_classes
        usual = places.arrival_token != START
        at = places.arrival_state[usual] * num_classes
        at += automaton.class_of[places.arrival_token[usual]]
        num_behaviours = max(self._owner.size, 1)
        keys = np.unique(at * num_behaviours + behaviours.of[usual])
        at, behaviour = np.divmod(keys, num_behaviours)
        free = np.flatnonzero(~literal)
        row, column = np.nonzero(literal[delta[free]])
        wanted = delta[free[row], column].astype(np.int64) * num_classes + column
        first, last = np.searchsorted(at, wanted), np.searchsorted(at, wanted, side="right")
        each = np.repeat(np.arange(wanted.size), last - first)
        place = np.arange(each.size) - np.repeat(np.cumsum(last - first) - last, last - first)
        entering = np.stack([free[row[each]], automaton.num_states + behaviour[place]], 1)
        ends = automaton.num_states + np.flatnonzero(automaton.accepting[self._owner])
        return [plain, inner, entering, np.stack([ends, np.full_like(ends, automaton.final)], 1)]

    def table(self) -> TokenTable | None:
        """Write the table of what leads from the beginning to the end."""
        automaton, num_states = self._places.automaton, self._places.automaton.num_states
        alive = self._alive.copy()
        alive[automaton.final] = False  # it becomes the last one
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

        live = self._places.pair_live[self._used]
        row, column = number[self._source], class_of[self._places.live_token[live]]
        kept = row >= 0
        table[row[kept], column[kept]] = number[self._live_node[live]][kept]

        owner = np.concatenate([np.arange(num_states), self._owner])[alive]
        add_end(table, automaton.accepting[owner])
        return trim(table, class_of, int(number[self._initial]), merge=True)

    def _classes(self) -> tuple[Int32[np.ndarray, "V"], Int64[np.ndarray, "C"]]:
        """Part tokens that behave differently: (class of each, the last one EOS; a token of each).

        These are tokens that lead to other behaviours of one state, and tokens that other
        behaviours of one state allow.
        """
        places, automaton = self._places, self._places.automaton
        partition = from_classes(automaton.class_of.copy(), automaton.num_classes)

        usual = places.arrival_token != START
        leads_to = np.where(self._alive[automaton.num_states :], np.arange(self._owner.size), -1)
        arrivals = (places.arrival_state, places.arrival_token, leads_to[self._behaviours.of])
        _part(partition, *(array[usual] for array in arrivals))

        counts = self._alive[self._source]  # what happens after dead ends is nobody's business
        behaviour = (self._source - automaton.num_states)[counts]
        live = places.pair_live[self._used][counts]
        total = np.zeros(places.live_token.size, np.uint64)
        np.add.at(total, live, _weights(self._owner.size)[behaviour])
        allowed_by, _ = _groups(places.live_state, total)
        _part(partition, places.live_state, places.live_token, allowed_by)

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
    place: Int64[np.ndarray, "n"],
    token: Int64[np.ndarray, "n"],
    label: Int64[np.ndarray, "n"],
) -> None:
    """Part tokens that have different labels at one place; `place` ascends."""
    bounds = np.append(np.flatnonzero(np.diff(place, prepend=-1)), place.size)
    token, label = token.astype(np.int32), label.astype(np.int32)
    for first, last in pairwise(bounds):
        refine(partition, token[first:last].copy(), label[first:last].copy(), last - first)
