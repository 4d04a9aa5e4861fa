"""Automata over tokens, the result of lifting byte automata for one vocabulary.

`delta[s, c]` is the state after a token of class c. A **class** is a set of tokens that lead to the
same state from every state. So `class_of` (one entry per token) and a narrow table, which is stored
in compressed form (`gcd._tokens.rows`), replace a table that is hundreds of times wider. The tokens
that end a text form the class `eos_class`. It is allowed exactly in accepting states and leads to
the state `final`, whose only edge is a loop with the same class.

`steps_to_accept[s]` is the fewest tokens, EOS included, from s to `final`. A text in state s can be
completed with r tokens if and only if `steps_to_accept[s] <= r`. So one integer per state serves
every budget.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int32, Int64

from gcd._arguments import Ids, check_whole, whole_number
from gcd._automata.horizon import Caveat
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    OverlongBudgetError,
)
from gcd._tokens.distances import UNREACHABLE, distances_to, fits
from gcd._tokens.kernels.classes import number_tokens, one_class, refine
from gcd._tokens.rows import Rows
from gcd._tokens.trie import read_only
from gcd._tokens.trimming import ENDINGS, TokenTable, trim, with_final
from gcd._tokens.vocabulary import Vocabulary, num_words


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """Deterministic automaton over the tokens of a vocabulary.

    Attributes:
        vocabulary: the tokens.
        class_of: class of every token id. Ids that no state allows share one class.
        rows: the transitions, compressed (`gcd._tokens.rows`).
        accepting: for each state, whether the tokens so far spell a string of the language, so that
            `delta[s, eos_class] == final`. Also true for `final`.
        steps_to_accept: fewest tokens, EOS included, from each state to `final`; 0 for `final`.
        initial: state in which a text starts.
        eos_class: class of the ids that end a text, which is the last class. It is empty if the
            vocabulary has no such ids.
        max_bytes: length of texts in bytes up to which the language is exact
            (`gcd._automata.horizon`); None if it is exact at any length.
        caveats: parts of the constraint that are not enforced in every text.

    Every state can be reached from `initial`, and the last state, `final`, can be reached from
    every state. Arrays are read-only.
    """

    vocabulary: Vocabulary
    class_of: Int32[np.ndarray, "V"]
    rows: Rows
    accepting: Bool[np.ndarray, "S"]
    steps_to_accept: Int32[np.ndarray, "S"]
    initial: int
    eos_class: int
    max_bytes: int | None = None
    caveats: tuple[Caveat, ...] = ()

    def __post_init__(self) -> None:
        """Check the arguments in O(S + V); `check` validates the whole table."""
        num_states, num_classes = self.num_states, self.num_classes
        loop = self.rows.targets[self.rows.target_start[self.final] :]
        assert self.class_of.shape == (self.vocabulary.size,), "one class for every token"
        assert self.class_of.min(initial=0) >= 0, "classes exist"
        assert self.class_of.max(initial=0) < num_classes, "classes exist"
        assert (self.class_of[list(self.vocabulary.eos_ids)] == self.eos_class).all()
        assert 0 <= self.initial < num_states, "the initial state exists"
        assert loop.tolist() == [self.final], "the final state only loops under EOS"
        assert self.accepting.shape == self.steps_to_accept.shape == (num_states,)
        assert self.steps_to_accept[self.final] == 0, "the final state is the end"
        assert self.steps_to_accept.max() < UNREACHABLE, "every state leads to the final one"
        for array in (self.class_of, self.accepting, self.steps_to_accept, *self.rows):
            array.flags.writeable = False

    def check(self) -> None:
        """Assert that all targets exist and all distances are correct."""
        self.rows.check(self.num_states, self.num_classes)
        assert (self.rows.is_allowed(self.eos_class) == self.accepting).all()
        steps = distances_to(self.final, self.rows.edges, self.num_states)
        assert (self.steps_to_accept == steps).all()

    @classmethod
    def from_position_sets(
        cls, vocabulary: Vocabulary, sets: Sequence[Ids], *, eos: str = "token"
    ) -> TokenAutomaton:
        """Make the automaton of texts whose i-th token is from the i-th set."""
        return cls(vocabulary, *_table_of_sets(vocabulary, sets, eos))

    @classmethod
    def from_transitions(
        cls,
        vocabulary: Vocabulary,
        edges: Iterable[tuple[Hashable, Ids, Hashable]],
        *,
        accepting: Iterable[Hashable],
        initial: Hashable,
        eos: str = "token",
    ) -> TokenAutomaton:
        """Make an automaton from edges (source, token ids, target); any value names a state.

        Accepting states allow the vocabulary's EOS ids, which edges don't name. With
        `eos="accept"`, a text ends in an accepting state, which has no edges.

        Raises:
            ConstraintError: for an id outside the vocabulary, an EOS id, an id without bytes, or a
                token that leads from one state to two. With `eos="token"`, for a vocabulary
                without EOS. With `eos="accept"`, for an accepting state with edges.
            EmptyLanguageError: if no tokens lead from `initial` to an accepting state.
        """
        return cls(vocabulary, *_table_of_edges(vocabulary, edges, accepting, initial, eos))

    @property
    def num_states(self) -> int:
        return self.rows.pattern_of.size

    @property
    def num_classes(self) -> int:
        return self.eos_class + 1

    @property
    def final(self) -> int:
        """State after the end of a text, which is the last state."""
        return self.num_states - 1

    @property
    def table_bytes(self) -> int:
        """Size in bytes of the whole tables `delta` and `steps_after`, as samplers keep them."""
        return 8 * self.num_states * self.num_classes

    @property
    def num_words(self) -> int:
        """Number of int32 words in a packed mask."""
        return num_words(self.vocabulary.size)

    @cached_property
    def delta(self) -> Int32[np.ndarray, "S C"]:
        """State after (state, class), -1 if the class is not allowed there.

        The table is made when it is first used, and may take hundreds of megabytes.
        """
        return read_only(self.rows.dense(self.num_classes))

    def steps_after(self) -> Int32[np.ndarray, "S C"]:
        """Return `steps_to_accept` after (state, class), a large number if it is not allowed."""
        steps = self.steps_to_accept[self.rows.targets]
        return self.rows.dense(self.num_classes, steps, UNREACHABLE)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the arrays, without `delta`."""
        arrays = (self.class_of, self.accepting, self.steps_to_accept, *self.rows)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def tokens_per_class(self) -> Int64[np.ndarray, "C"]:
        """Number of token ids in each class."""
        return np.bincount(self.class_of, minlength=self.num_classes)

    @cached_property
    def tokens_by_class(self) -> Int32[np.ndarray, "V"]:
        """All token ids, ordered by class."""
        narrow = self.num_classes <= 1 << 16  # numpy sorts 16-bit integers in linear time
        classes = self.class_of.astype(np.uint16) if narrow else self.class_of
        return np.argsort(classes, kind="stable").astype(np.int32)

    @cached_property
    def reach(self) -> Int32[np.ndarray, "S"]:
        """For each state, the largest `steps_to_accept` after any allowed next token.

        A budget excludes tokens in a state only if at most this many tokens are left.
        """
        steps = self.steps_to_accept[self.rows.targets]
        return np.maximum.reduceat(steps, self.rows.target_start[:-1])

    @property
    def fewest_tokens(self) -> int:
        """Number of tokens of a shortest text, EOS included: the smallest possible budget."""
        return int(self.steps_to_accept[self.initial])

    @cached_property
    def max_budget(self) -> int | None:
        """Largest budget for which no text exceeds `max_bytes`; None if there is no such limit."""
        if self.max_bytes is None:
            return None
        used = np.zeros(self.num_classes, np.bool_)
        used[self.rows.pattern_class] = True
        longest = int(self.vocabulary.lengths[used[self.class_of]].max(initial=1))
        return self.max_bytes // max(longest, 1) + 1

    def step(self, state: int, token: int) -> int:
        """Return the state after a token; -1 if the token is not allowed or `state` is -1.

        Raises:
            ValueError: if the state or the token id is out of range.
        """
        token = self.vocabulary.check_id(token)
        return self._after(self._state(state), token)

    def _after(self, state: int, token: int) -> int:
        """Return the state after a valid token id; -1 if it is not allowed or `state` is -1."""
        if state < 0:
            return -1
        classes, targets = self.rows.row(state)
        place = int(np.searchsorted(classes, self.class_of[token]))
        allowed = place < classes.size and classes[place] == self.class_of[token]
        return int(targets[place]) if allowed else -1

    def run(self, tokens: Iterable[int], state: int | None = None) -> int:
        """Return the state after several tokens, from `initial` by default; -1 after a refusal."""
        state = self.initial if state is None else self._state(state)
        for token in tokens:
            state = self._after(state, self.vocabulary.check_id(token))
            if state < 0:
                return -1
        return state

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Return whether the tokens, without EOS, spell a string of the language."""
        state = self.run(tokens)
        return state >= 0 and bool(self.accepting[state])

    def allowed(self, state: int, remaining: int | None = None) -> Int64[np.ndarray, "allowed"]:
        """Return the token ids after which the text can still be completed.

        Args:
            state: the current state; -1 allows no token ids.
            remaining: tokens left, including the next token and EOS; None for no budget.

        Raises:
            ValueError: if the state is out of range.
        """
        state = self._state(state)
        good = np.zeros(self.num_classes, np.bool_)
        if state >= 0:
            classes, targets = self.rows.row(state)
            left = UNREACHABLE if remaining is None else remaining
            good[classes[fits(self.steps_to_accept[targets], left)]] = True
        return np.flatnonzero(good[self.class_of])

    def _state(self, state: int) -> int:
        """Return a state as an int; raise `ValueError` if it is neither a state nor -1."""
        state = whole_number(state, "state")
        if not -1 <= state < self.num_states:
            raise ValueError(f"expected a state in -1..{self.num_states - 1}, got {state}")
        return state

    def __repr__(self) -> str:
        return (
            f"TokenAutomaton({self.num_states} states, {self.num_classes} classes, "
            f"{self.vocabulary.size} tokens)"
        )


def check_budget(automaton: TokenAutomaton, budget: int | None, where: str = "") -> None:
    """Raise an error for a budget that is too small or too large, before generation starts.

    Args:
        automaton: the constraint.
        budget: maximum number of tokens of a text, EOS included; None for no budget.
        where: the beginning of the message.

    Raises:
        ConstraintError: if the budget is not a whole number.
        InfeasibleBudgetError: if no text of the language fits into the budget. The message gives
            the budget and the smallest possible budget.
        OverlongBudgetError: if a text of this many tokens may be longer than `max_bytes`.
    """
    if budget is not None:
        check_whole(budget, where or "budget")
        if budget < automaton.fewest_tokens:
            raise InfeasibleBudgetError(automaton.fewest_tokens, budget, where)
    longest = automaton.max_budget
    if longest is not None and (budget is None or budget > longest):
        at_most = automaton.max_bytes or 0
        raise OverlongBudgetError(longest, budget, at_most, where, caveats=automaton.caveats)


def _table_of_sets(vocabulary: Vocabulary, sets: Sequence[Ids], eos: str) -> TokenTable:
    """Build the table of all texts whose t-th token is from `sets[t]`, with `len(sets)` tokens."""
    edges = []
    for position, ids in enumerate(sets):
        allowed = _ids(vocabulary, ids, f"position {position}")
        if not allowed.size:
            raise EmptyLanguageError(
                f"expected at least one token at position {position}, got none"
            )
        edges.append((position, allowed.tolist(), position + 1))
    return _table_of_edges(vocabulary, edges, [len(edges)], 0, eos)


def _table_of_edges(
    vocabulary: Vocabulary,
    edges: Iterable[tuple[Hashable, Ids, Hashable]],
    accepting: Iterable[Hashable],
    initial: Hashable,
    eos: str,
) -> TokenTable:
    """Build the table of an automaton from its edges."""
    if eos not in ENDINGS:
        raise ConstraintError(f"expected eos to be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "expected a vocabulary with EOS ids, got none; pass eos_ids when building it, or use "
            'eos="accept"'
        )
    number: dict[Hashable, int] = {initial: 0}
    wired: dict[int, list[tuple[Int64[np.ndarray, "_"], int]]] = {}
    for source, ids, target in edges:
        tokens = _ids(vocabulary, ids, f"the edge {source!r} -> {target!r}")
        start = number.setdefault(source, len(number))
        wired.setdefault(start, []).append((tokens, number.setdefault(target, len(number))))
    ends = [number.setdefault(state, len(number)) for state in accepting]
    names = list(number)
    is_accepting = np.zeros(len(names), np.bool_)
    is_accepting[ends] = True
    if eos == "accept" and not wired.keys().isdisjoint(ends):
        end = next(end for end in ends if end in wired)
        raise ConstraintError(
            'expected accepting states without edges for eos="accept", got edges from '
            f"{names[end]!r}; remove them, or use a vocabulary with an EOS id"
        )

    classes = one_class(vocabulary.size)
    row = np.full(vocabulary.size, -1, np.int32)  # the state after each token from one state
    steps: dict[int, tuple[Int32[np.ndarray, "_"], Int32[np.ndarray, "_"]]] = {}
    for state, wires in wired.items():
        for tokens, after in wires:
            taken = tokens[(row[tokens] >= 0) & (row[tokens] != after)]
            if taken.size:
                raise ConstraintError(
                    f"expected one target for token {taken[0]} from state {names[state]!r}, got "
                    f"{names[row[taken[0]]]!r} and {names[after]!r}; remove one of the edges"
                )
            row[tokens] = after
        allowed = np.flatnonzero(row >= 0).astype(np.int32)
        steps[state] = allowed, row[allowed]
        refine(classes, *steps[state], allowed.size)
        row[allowed] = -1
    is_eos = np.zeros(vocabulary.size, np.bool_)
    is_eos[list(vocabulary.eos_ids)] = True
    every = np.arange(vocabulary.size, dtype=np.int32)
    class_of, first = number_tokens(classes[0], every, is_eos, 2 * vocabulary.size + 1)
    targets = np.full((len(names), first.size), -1, np.int32)
    for state, (allowed, reached) in steps.items():
        targets[state, class_of[allowed]] = reached

    delta, class_of = with_final(targets, is_accepting, class_of, eos)
    table = trim(delta, class_of, len(names) if eos == "accept" and is_accepting[0] else 0)
    if table is None:
        raise EmptyLanguageError(
            f"expected tokens that lead from {initial!r} to one of {len(ends)} accepting states, "
            "got none; check the edges"
        )
    return table


def _ids(vocabulary: Vocabulary, ids: Ids, where: str) -> Int64[np.ndarray, "ids"]:
    """Return these ids in ascending order; raise if one of them is never part of a text."""
    listed = [ids] if isinstance(ids, (int, np.integer)) else list(ids)
    tokens = np.unique(np.array(listed, np.int64))
    outside = tokens[(tokens < 0) | (tokens >= vocabulary.size)]
    if outside.size:
        raise ConstraintError(
            f"{where}: expected token ids in 0..{vocabulary.size - 1}, got {outside[0]}"
        )
    for token in tokens.tolist():
        if token in vocabulary.eos_ids:
            raise ConstraintError(
                f"{where}: expected tokens that don't end the text, got EOS id {token}; remove it, "
                "because accepting states allow EOS automatically"
            )
        if not vocabulary.token_bytes[token]:
            raise ConstraintError(
                f"{where}: expected tokens with bytes, got token {token}, which is special, "
                "padding or empty; remove it"
            )
    return tokens
