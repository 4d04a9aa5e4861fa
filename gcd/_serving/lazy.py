"""Constraints that give masks before they are lifted, and switch to the lifted form later.

Lifting a constraint to a large vocabulary takes milliseconds to seconds. The first masks don't
require it. A mask is computed by following the vocabulary from the current state only, and upper
bounds U on the distances D to the end (`gcd._tokens.completions`) guarantee that every answer is
completed within its budget:

    lazy mask(s, r)  = { v : U(delta(s, v)) <= r - 1 }
    exact mask(s, r) = { v : D(delta(s, v)) <= r - 1 },   D <= U

So the lazy mask is a subset of the exact mask, and isn't empty while U(s) <= r. Meanwhile, the
constraint is lifted in the background. A sequence switches to the lifted form between two tokens:
its states are converted, and because D <= U, the remaining budget is still enough.

This switch happens at a different token in each run. The option `exact` controls it:

* `"when_ready"`: switch as soon as the lift is done.
* `"wait"`: lift first, and only use bounds if the lifted form would be too large.
* `"never"`: only use bounds.

With `"wait"` and `"never"`, masks are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int32

from gcd._arguments import check_budget_of, check_whole, whole_number
from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    UndecidedBudgetError,
    check_kind,
)
from gcd._serving.background import BackgroundLift, hurry, submit
from gcd._serving.kernels.lazy import LazyTable
from gcd._serving.kernels.parts import TokenTree, Unit
from gcd._serving.served import ServedAutomaton, make_row
from gcd._tokens.completions import token_bounds
from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.kernels.counted_runs import Cells, find_cells
from gcd._tokens.lifting import why_unwritable
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary, num_words

CACHE_BYTES = 1 << 20
"""Maximum size in bytes of the masks that one constraint caches."""
MAX_BYTES = 128 << 20
"""Maximum size of a lifted table in bytes; if it would be larger, the constraint stays lazy."""
MAX_WAIT = 60.0
"""Maximum time in seconds to wait for a lift, to find out whether a budget is large enough."""
EXACT = ("when_ready", "wait", "never")
_UNITS = 32  # units of counted runs cached for one vocabulary


class _Tokens:
    """Data of a vocabulary that its lazy constraints share.

    It is the prefix tree of the tokens, and where tokens lead in repeated automata (units).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        lengths = np.fromiter(map(len, vocabulary.token_bytes), np.int64, vocabulary.size)
        self.tree = TokenTree(
            (trie.byte, trie.depth, trie.skip, trie.entry),
            trie.tokens,
            np.frombuffer(b"".join(vocabulary.token_bytes), np.uint8),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            np.array(vocabulary.eos_ids, np.int32),
            trie.max_depth,
            num_words(vocabulary.size),
        )
        self._units: dict[bytes, Unit] = {}

    def unit(self, rows: np.ndarray) -> Unit:
        """Return where tokens lead in repetitions of an automaton with these transitions.

        The result is computed once, and then cached.
        """
        key = rows.tobytes()
        known = self._units.get(key)
        if known is None:
            if len(self._units) >= _UNITS:
                self._units.clear()
            known = self._units[key] = Unit(self.tree, rows)
        return known


_TOKENS: WeakKeyDictionary[Vocabulary, _Tokens] = WeakKeyDictionary()


def _tokens_of(vocabulary: Vocabulary) -> _Tokens:
    if vocabulary not in _TOKENS:
        _TOKENS[vocabulary] = _Tokens(vocabulary)
    return _TOKENS[vocabulary]


class LazyAutomaton:
    """Constraint that matchers can use at once, while it is being lifted to tokens.

    Args:
        language: the constraint, as `gcd.json_schema` and `gcd.regex` return it.
        vocabulary: the tokens, with EOS.
        exact: when matchers switch to the lifted, exact form: `"when_ready"`, `"wait"` (before the
            first token) or `"never"`.
        cache_bytes: maximum size of the cached masks in bytes.
        max_bytes: maximum size of the lifted table in bytes; a larger constraint stays lazy.
        keep: optional function that is called with the lifted automaton, in the background thread.

    Attributes:
        vocabulary: the tokens.
        initial: state in which a text starts.
        final: the state after the end of a text.
        num_words: int32 words in a mask.
        max_bytes, caveats: the attributes of the language.
        max_budget: largest budget for which no text exceeds `max_bytes`; None if there is no such
            limit. The lifted form may allow a larger budget, because it ignores tokens that are
            never allowed.

    Raises:
        EmptyLanguageError: the language is empty, or the tokens can't spell any of its strings.
        ConstraintError: the vocabulary has no EOS id, or an argument has the wrong type.
    """

    vocabulary: Vocabulary
    initial: int
    final: int
    num_words: int
    max_bytes: int | None
    max_budget: int | None
    caveats: tuple[Caveat, ...]

    def __init__(
        self,
        language: Automaton,
        vocabulary: Vocabulary,
        *,
        exact: str = "when_ready",
        cache_bytes: int = CACHE_BYTES,
        max_bytes: int = MAX_BYTES,
        keep: Callable[[TokenAutomaton], None] | None = None,
    ) -> None:
        check_kind(language, Automaton, "a gcd.Automaton", "compile the constraint first")
        check_kind(
            vocabulary,
            Vocabulary,
            "a gcd.Vocabulary for a lazy constraint",
            "pass lm.vocabulary, or gcd.Vocabulary.from_tokenizer(tokenizer)",
        )
        if exact not in EXACT:
            raise ConstraintError(f"expected exact to be one of {EXACT}, got {exact!r}")
        if whole_number(cache_bytes, "number of bytes") < 0:
            raise ConstraintError(f"expected cache_bytes of at least 0, got {cache_bytes}")
        if not vocabulary.eos_ids:
            raise ConstraintError(
                "expected a vocabulary with EOS ids, got none, so no text could end; pass eos_ids "
                "when building it"
            )
        if language.is_empty:
            raise EmptyLanguageError(
                "expected a constraint that some string satisfies, got an empty language"
            )
        self.vocabulary = vocabulary
        self.initial, self.final = 0, language.num_states
        self.num_words = num_words(vocabulary.size)
        self.max_bytes, self.caveats = language.max_bytes, language.caveats
        self.max_budget = None
        if self.max_bytes is not None:
            self.max_budget = self.max_bytes // max(vocabulary.trie.max_depth, 1) + 1
        # A copy, so that a reference to it doesn't keep the key of a weak dictionary alive.
        self._language = replace(language)
        self._mode = exact
        self._exact: ServedAutomaton | None = None
        self._lift = BackgroundLift(
            self, self._language, vocabulary, max_bytes, LazyAutomaton._take, keep
        )
        bounds = token_bounds(
            language.delta, language.accepting, language.class_of_byte, vocabulary.trie
        )
        self._has_bounds = bounds is not None
        if bounds is None:
            bounds = np.full(language.num_states, UNREACHABLE, np.int32)
        elif bounds[0] == UNREACHABLE:
            raise EmptyLanguageError(why_unwritable(language, vocabulary))
        self._bounds = bounds
        self._table = self._make_table(bounds, cache_bytes)
        if exact == "wait" or not self._has_bounds:
            self._lift.run()
            if self._exact is None and not self._has_bounds:
                raise ConstraintError(
                    "expected a vocabulary with a token for every byte, got one without; the "
                    "constraint therefore had to be lifted at once, but that failed: "
                    f"{self._lift.reason}"
                )
        elif exact == "when_ready":
            submit(self._lift)

    def _make_table(self, bounds: Int32[np.ndarray, "S"], cache_bytes: int) -> LazyTable:
        language, tokens = self._language, _tokens_of(self.vocabulary)
        delta = np.ascontiguousarray(language.delta)
        width = np.bincount(language.class_of_byte, minlength=delta.shape[1])
        cells = Cells(*find_cells(delta, width))
        parts = zip(cells.unit_start[:-1], cells.unit_start[1:], strict=True)
        columns = language.class_of_byte
        units = [tokens.unit(np.ascontiguousarray(cells.units[i:j, columns])) for i, j in parts]
        return LazyTable(
            tokens.tree, delta, columns, language.accepting, bounds, cells, units, cache_bytes
        )

    def _take(self, exact: ServedAutomaton, number: Int32[np.ndarray, "S1"]) -> None:
        """Store the lifted constraint; token sequences switch to it after their next token."""
        self._exact = exact
        self._table.hand_over(exact._table, number)

    @property
    def exact(self) -> ServedAutomaton | None:
        """Lifted constraint; None until the lift is done, and always with `exact="never"`."""
        return self._exact

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the lift has ended; return whether the constraint is lifted.

        Args:
            seconds: longest time to wait; None for no limit.
        """
        if self._mode == "when_ready":
            hurry(self._lift)
            self._lift.wait(seconds)
        return self._exact is not None

    @property
    def num_states(self) -> int:
        return self.final + 1

    @property
    def nbytes(self) -> int:
        """Size in bytes of the cached masks, the bounds, and the byte automaton."""
        language = self._language
        own = language.delta.nbytes + language.accepting.nbytes + self._bounds.nbytes
        return own + int(self._table.num_bytes)

    def steps_to_accept(self, state: int) -> int:
        """Return an upper bound on the fewest tokens, EOS included, from a state to the end."""
        return 0 if state == self.final else int(self._bounds[state])

    def uses(self, token: int) -> bool:
        """Return whether the token has bytes, and the byte automaton allows it in some state."""
        text, language = self.vocabulary.token_bytes[token], self._language
        states = np.arange(language.num_states if text else 0)
        for byte in text:
            states = language.delta[states, language.class_of_byte[byte]]
            states = states[states >= 0]
        return bool((self._bounds[states] < UNREACHABLE).any())

    def check_bound(self, budget: int) -> None:
        """Raise an error, without waiting for a lift, unless the bounds prove a budget sufficient.

        Raises:
            ConstraintError: the budget is not a whole number.
            UndecidedBudgetError: the budget is below the bound.
            OverlongBudgetError: a text of this many tokens may be longer than `max_bytes`.
        """
        check_whole(budget)
        needed = self.steps_to_accept(self.initial)
        if budget < needed:
            raise UndecidedBudgetError(needed, budget, "the constraint is not lifted yet")
        check_budget_of(self, needed, budget)

    def form(self, budget: int | None) -> LazyAutomaton | ServedAutomaton:
        """Return the form with which a new sequence starts: the lifted form if it is ready.

        If the bounds don't prove that the budget is sufficient, the call waits for the lifted form.

        Raises:
            UndecidedBudgetError: the budget is below the bound, and there is no lifted form.
        """
        if self._exact is not None:
            return self._exact
        longest = self.max_budget
        is_long = longest is not None and (budget is None or budget > longest)
        needed = self.steps_to_accept(self.initial)
        if not is_long and (budget is None or budget >= needed):
            return self
        self.wait(MAX_WAIT)
        if self._exact is not None:
            return self._exact
        if budget is not None and budget < needed:
            raise UndecidedBudgetError(needed, budget, self._why_not_exact())
        return self

    def _why_not_exact(self) -> str:
        if self._mode == "never":
            return 'the constraint is served with exact="never"'
        return self._lift.reason or f"its lift took more than {MAX_WAIT:g} seconds"

    def forget(self) -> None:
        """Clear the cached masks, so that the next visit to each state computes its mask again."""
        self._table.forget()

    def row(self, state: int, remaining: int | None = None) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of a state with `remaining` tokens left (None: no budget).

        Raises:
            ValueError: if the state is out of range. State -1, which allows no token, is valid.
        """
        return make_row(self._table, state, remaining)

    def __repr__(self) -> str:
        form = "lifted" if self._exact is not None else "not lifted"
        return f"LazyAutomaton({self.num_states} states, {form})"


_LAZY: WeakKeyDictionary[Automaton, dict[tuple[Vocabulary, str], LazyAutomaton]] = (
    WeakKeyDictionary()
)


def lazy(language: Automaton, vocabulary: Vocabulary, exact: str) -> LazyAutomaton:
    """Return the `LazyAutomaton` of a language; equal arguments share one."""
    known = _LAZY.setdefault(language, {})
    found = known.get((vocabulary, exact))
    if found is None or found.caveats != language.caveats:
        found = known[vocabulary, exact] = LazyAutomaton(language, vocabulary, exact=exact)
    return found
