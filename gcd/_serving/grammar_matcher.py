"""Matcher with the interface of xgrammar's `GrammarMatcher`, for engines that use this interface.

The methods have the signatures of xgrammar 0.2.8, including argument names and defaults, so that an
engine only changes how it creates its matchers. `docs/serving.md` lists the differences, which are
cases where an automaton over tokens with a budget can't give the same result.

Two methods are about bytes, whereas a token automaton only has states after whole tokens:

* `accept_string` appends the fewest tokens that spell the string (`gcd._serving.spelling`).
* `find_jump_forward_string` follows all allowed token sequences at once, as long as they have the
  same next byte. With a budget, the string may be longer than without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int32

from gcd._errors import ConstraintError
from gcd._serving.arguments import array_of, whole_number, whole_numbers
from gcd._serving.matcher import Constraint, Matcher, serve
from gcd._serving.spelling import fewest_tokens
from gcd._tokens.vocabulary import BITS, Vocabulary


class GrammarMatcher:
    """Matcher of one sequence, with the interface of xgrammar's class of the same name.

    Args:
        compiled_grammar: the constraint, as `gcd.lift` returns it, or a language that is not
            lifted yet.
        override_stop_tokens: None, or the vocabulary's EOS ids; other ids are refused.
        terminate_without_stop_token: must be False; use `gcd.lift(..., eos="accept")` instead.
        max_rollback_tokens: has no effect, because rollback is unlimited.
        default_temperature: the value of the property `temperature`.
        budget: maximum number of tokens of a whole text, EOS included; None for no budget.
        vocabulary, exact: as in `gcd.Matcher`, for a language that is not lifted.

    Raises:
        ConstraintError: for other stop tokens, for `terminate_without_stop_token=True`, and as in
            `gcd.Matcher`.

    The argument `debug_print` of its methods has no effect.
    """

    def __init__(
        self,
        compiled_grammar: Constraint,
        *,
        override_stop_tokens: int | list[int] | None = None,
        terminate_without_stop_token: bool = False,
        max_rollback_tokens: int = -1,
        default_temperature: float | None = None,
        budget: int | None = None,
        vocabulary: Vocabulary | None = None,
        exact: str = "when_ready",
    ) -> None:
        del max_rollback_tokens
        ends = serve(compiled_grammar, vocabulary, exact).vocabulary.eos_ids
        if override_stop_tokens is not None:
            given = np.unique(whole_numbers(override_stop_tokens, "stop token")).tolist()
            if tuple(given) != ends:
                raise ConstraintError(
                    f"expected the vocabulary's EOS ids {list(ends)} as stop tokens, got {given}; "
                    "build the Vocabulary with these eos_ids and lift the constraint to it"
                )
        if terminate_without_stop_token:
            raise ConstraintError(
                "expected terminate_without_stop_token=False, got True; to end texts without stop "
                'tokens, lift the constraint with gcd.lift(..., eos="accept")'
            )
        self._matcher = Matcher(compiled_grammar, vocabulary, budget=budget, exact=exact)
        self._temperature = default_temperature
        self._steps: list[int] = []  # tokens of each step, for `rollback`

    def accept_token(self, token_id: int, *, debug_print: bool = False) -> bool:
        """Append a token; return False if it isn't allowed, isn't an id, or the text has ended.

        Raises:
            ValueError: if `token_id` is not a whole number.
        """
        del debug_print
        token_id = whole_number(token_id)
        is_id = 0 <= token_id < self._matcher.automaton.vocabulary.size
        if self.is_terminated() or not is_id or not self._matcher.advance(token_id):
            return False
        self._steps.append(1)
        return True

    def accept_string(self, input_str: str | bytes, *, debug_print: bool = False) -> bool:
        """Append a string as one step, in its fewest tokens; return False if it isn't allowed.

        Raises:
            TypeError: if `input_str` is neither text nor bytes; pass token ids to `accept_token`.
        """
        del debug_print
        text = input_str.encode() if isinstance(input_str, str) else input_str
        if not isinstance(text, bytes | bytearray):
            raise TypeError(
                f"expected str or bytes for accept_string, got {input_str!r}; pass ids to "
                "accept_token"
            )
        tokens = None if self.is_terminated() else fewest_tokens(self._matcher, bytes(text))
        if tokens is None:
            return False
        for token in tokens:
            self._matcher.advance(token)
        self._steps.append(len(tokens))
        return True

    def fill_next_token_bitmask(
        self, bitmask: Any, index: int = 0, *, debug_print: bool = False
    ) -> bool:
        """Write the packed mask to row `index` (int32, CPU); return whether it excludes any id.

        Raises:
            ValueError: if the array doesn't have W columns, is of another type, or is not on the
                CPU.
        """
        del debug_print
        rows, index = _array(bitmask), whole_number(index, "row")
        if rows.ndim == 1 and index == 0:
            rows = rows[np.newaxis]
        if rows.ndim != 2 or not 0 <= index < rows.shape[0]:
            raise ValueError(
                f"expected the index of a row in a bitmask of shape {rows.shape}, got {index}"
            )
        self._matcher.fill_mask(rows[index])
        return self._matcher.restricts

    def traverse_draft_tree(
        self,
        retrieve_next_token: Any,
        retrieve_next_sibling: Any,
        draft_tokens: Any,
        token_bitmask: Any,
        time_threshold: float = -1.0,
        temperatures: Any = None,
    ) -> bool:
        """Write the mask of every node of a draft tree; return False if it took too long.

        Node 0 is the matcher's current state. If a node's token is refused, its mask becomes 0, and
        the masks of its descendants don't change. Masks of nodes after a stop token don't change
        either.

        Args:
            retrieve_next_token: the first child of each node, -1 for none.
            retrieve_next_sibling: the next child of the same parent, -1 for none.
            draft_tokens: the token of each node.
            token_bitmask: a mask row for each node.
            time_threshold: limit in seconds; no limit if it is not positive.
            temperatures: float32, one for each node, or None.

        Raises:
            ValueError: if the arrays have other sizes, or children and siblings don't form a tree.
        """
        child, sibling = whole_numbers(retrieve_next_token), whole_numbers(retrieve_next_sibling)
        tokens, rows = whole_numbers(draft_tokens), _array(token_bitmask)
        known = None if temperatures is None else _array(temperatures)
        _check_tree(child, sibling, tokens, rows, known)
        if known is not None:
            known[:] = -1
        until = time.monotonic() + time_threshold if time_threshold > 0 else np.inf
        waiting = [(0, self.fork())]
        while waiting:
            if time.monotonic() > until:
                return False
            node, here = waiting.pop()
            if not here.is_terminated():
                here.fill_next_token_bitmask(rows, node)
                if known is not None and self._temperature is not None:
                    known[node] = self._temperature
            below = int(child[node])
            while below >= 0:
                after = here.fork()
                if after.accept_token(int(tokens[below])):
                    waiting.append((below, after))
                else:
                    rows[below] = 0
                below = int(sibling[below])
        return True

    def find_jump_forward_string(self) -> str:
        """Return the longest text that all continuations begin with, in whole characters."""
        text = bytearray()
        here = {_place(self._matcher): self._matcher}
        later: list[tuple[bytes, Matcher, int]] = []  # the rest of a token, and the state after it
        while True:
            ways = later
            for matcher in here.values():
                for token in _ids(matcher.mask()):
                    spelled = matcher.automaton.vocabulary.token_bytes[token]
                    ways.append((spelled, matcher, token))
                    if not spelled or spelled[0] != ways[0][0][0]:
                        return text.decode(errors="ignore")
            if not ways or len({spelled[0] for spelled, _, _ in ways}) > 1:
                return text.decode(errors="ignore")
            text.append(ways[0][0][0])
            here, later = {}, []
            for spelled, matcher, token in ways:
                if len(spelled) > 1:
                    later.append((spelled[1:], matcher, token))
                else:
                    after = matcher.copy()
                    after.advance(token)
                    here[_place(after)] = after

    def rollback(self, num_tokens: int = 1) -> None:
        """Undo the last steps; a string from `accept_string` is one step.

        Raises:
            ValueError: if there are fewer steps.
        """
        num_tokens = whole_number(num_tokens, "number of steps")
        if not 0 <= num_tokens <= len(self._steps):
            raise ValueError(
                f"expected at most {len(self._steps)} steps to roll back, got {num_tokens}"
            )
        kept = len(self._steps) - num_tokens
        self._matcher.rollback(sum(self._steps[kept:]))
        del self._steps[kept:]

    def get_captures(self, *, deduplicate: bool = True) -> list[tuple[str, bytes]]:
        """Return an empty list, because constraints of this library don't have named parts."""
        del deduplicate
        return []

    def is_terminated(self) -> bool:
        """Return whether the text has ended, with a stop token if the vocabulary has any."""
        return self._matcher.is_finished

    def is_completed(self) -> bool:
        """Return whether the text so far is in the language, even if it may continue."""
        ends = self._matcher.automaton.vocabulary.eos_ids
        return self.is_terminated() or self._matcher.validate(ends[:1]) == 1

    def reset(self) -> None:
        """Reset to the beginning of a text."""
        self._matcher.reset()
        self._steps.clear()

    def finish_within(self, tokens: int) -> int:
        """Limit the rest of the text to this many tokens, as `Matcher.finish_within` does."""
        return self._matcher.finish_within(tokens)

    def finish(self) -> int:
        """Allow only shortest completions from now on, as `Matcher.finish` does."""
        return self._matcher.finish()

    def fork(self) -> GrammarMatcher:
        """Return an independent copy in the same state."""
        other = object.__new__(GrammarMatcher)
        other._matcher, other._temperature = self._matcher.copy(), self._temperature
        other._steps = self._steps.copy()
        return other

    @property
    def max_rollback_tokens(self) -> int:
        """Maximum number of steps to roll back: always -1, because there is no limit."""
        return -1

    @property
    def temperature(self) -> float | None:
        """Temperature passed to the constructor."""
        return self._temperature

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids that end a text."""
        return list(self._matcher.automaton.vocabulary.eos_ids)


def _place(matcher: Matcher) -> tuple[bool, int, int | None]:
    """Return a key for a matcher's possible continuations; equal keys have equal continuations."""
    return matcher.is_exact, matcher.state, matcher.remaining


def _check_tree(
    child: np.ndarray,
    sibling: np.ndarray,
    tokens: np.ndarray,
    rows: np.ndarray,
    temperatures: np.ndarray | None,
) -> None:
    """Raise `ValueError` unless the arrays describe a draft tree with a mask for each node."""
    size = tokens.shape
    others = [child.shape, sibling.shape, rows.shape[:1]]
    others += [] if temperatures is None else [temperatures.shape]
    if len(size) != 1 or any(shape != size for shape in others):
        raise ValueError(
            f"expected arrays of shape {size}, one row or element per draft token, got {others}"
        )
    links = np.concatenate([child, sibling])
    wrong = links[(links < -1) | (links >= size[0])]
    if wrong.size:
        raise ValueError(
            f"expected each child and sibling as a node number in -1..{size[0] - 1}, got {wrong[0]}"
        )
    links = links[links >= 0]
    if 0 in links or np.unique(links).size < links.size:
        raise ValueError(
            "expected children and siblings that form a tree with root 0, got a node that is the "
            "root, or is named twice"
        )


def _array(given: Any) -> np.ndarray:
    """Return an array or a CPU tensor as an array that shares its memory."""
    array = array_of(given)
    if array is None:
        raise ValueError(f"expected an array or a CPU tensor, got {type(given).__name__}")
    return array


def _ids(mask: Int32[np.ndarray, "W"]) -> Iterator[int]:
    """Yield the token ids of a packed mask in ascending order."""
    for word in np.flatnonzero(mask).tolist():
        bits = int(mask[word])
        yield from (BITS * word + i for i in range(BITS) if bits >> i & 1)
