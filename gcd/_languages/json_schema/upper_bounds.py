"""Omission of counts that take too many states, with caveats.

A bound such as `"maxLength": 500` takes some 20 states for each character. If a schema takes too
many states or too much work, its largest upper bounds are not counted.

* Asserted bounds are then left to a check of the finished text, with a warning.
* If only long texts can exceed a bound (`"maxLength": 65536`), nothing has to be checked: the
  automaton is exact for all shorter texts (`gcd._automata.horizon`), and budgets that allow longer
  texts are refused. The same holds for bounds of schemas that are subtracted (`not`, `oneOf`).

With `unsupported="ignore"`, lower bounds are left to the check as well if nothing else helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import count_work, max_states
from gcd._errors import EmptyLanguageError, LimitError, StateLimitError, at, show_count
from gcd._languages.json_schema.document import Conjunction, Document
from gcd._languages.json_schema.keywords import HORIZONS

# For each kind of value with counts, the bounds that may be dropped.
UPPER_BOUNDS = {
    "array": ("maxItems", "maxContains"),
    "object": ("maxProperties",),
    "string": ("maxLength",),
}
LOWER_BOUNDS = {
    "array": ("minItems", "minContains"),
    "object": ("minProperties",),
    "string": ("minLength",),
}
_PER_COUNT = 20  # states per counted character of a string
_ROOM = 8  # counts may take an 8th of the states, because schemas occur several times
# In bytes: budgets are never restricted to texts shorter than this. A text of 300 tokens has some
# 1,200 bytes, but tokens of 128 bytes exist, so 30,000 bytes restrict budgets to 235 tokens.
_LEAST = 30_000
_LEAST_COMPARED = 1_000  # the same for bounds of subtracted schemas, which can't be checked later
NO_UPPER_BOUNDS, NO_BOUNDS = 1.0, 0.0
"""Values of `counted` with which no upper bound, and no bound at all, is counted."""

Build = Callable[[float], Automaton]


def compile_or_relax(build: Build, bounds: Sequence[Caveat], *, unsupported: str) -> Automaton:
    """Compile a schema; if it is too large, retry without its largest bounds."""
    try:
        with count_work():
            return build(math.inf)
    except LimitError as error:
        are_large = _states(bounds) > max_states() // _ROOM
        # Small bounds may take many states, but hardly all of the work; then a retry is wasted.
        if unsupported != "refuse" and (are_large or isinstance(error, StateLimitError)):
            for counted in _less(bounds, unsupported):
                with suppress(LimitError, EmptyLanguageError), count_work():
                    return build(counted)
        if unsupported != "ignore" and are_large:
            error.add('; or set unsupported="ignore" and validate the finished text')
            largest = max(bounds, key=lambda bound: bound.value)
            if error.keyword != largest.keyword:
                count = show_count(int(largest.value))
                error.add(
                    f" ({len(bounds)} bounds such as {largest.keyword} {count} "
                    f"{at(largest.pointer)})"
                )
        raise


def _less(bounds: Sequence[Caveat], unsupported: str) -> Iterator[float]:
    """Yield lengths for `build` in `compile_or_relax`, which drop more and more upper bounds."""
    upper = sorted(
        (bound.max_bytes, int(bound.value)) for bound in bounds if bound.max_bytes is not None
    )
    taken = 0
    for horizon, count in upper:
        taken += _PER_COUNT * count
        if taken > max_states() // _ROOM:
            yield float(horizon)
            break
    if upper:
        yield NO_UPPER_BOUNDS
    if bounds and unsupported == "ignore":
        yield NO_BOUNDS


def _states(bounds: Sequence[Caveat]) -> int:
    return _PER_COUNT * sum(int(bound.value) for bound in bounds)


def may_drop(nodes: Conjunction, reaches: Sequence[int], unsupported: str) -> bool:
    """Return whether upper bounds may be left out if texts then have the lengths `reaches`."""
    if unsupported == "refuse" or not reaches:
        return False
    is_compared = unsupported == "warn" and not all(node.asserted for node in nodes)
    return not is_compared or min(reaches) >= _LEAST_COMPARED


def not_counted(
    document: Document, nodes: Conjunction, kind: str, least: int, *, lower: bool, unsupported: str
) -> list[Caveat]:
    """Return the caveats for bounds that are not enforced, on values of one kind.

    `least` is the fewest bytes of an element, and `lower` whether lower bounds aren't enforced
    either.
    """
    found = []
    for node in nodes:
        for keyword in UPPER_BOUNDS[kind] + LOWER_BOUNDS[kind] * lower:
            if keyword in node.schema and (keyword in HORIZONS or node.schema[keyword] > 1):
                value = node.schema[keyword]
                reach: int | None = None
                if keyword in HORIZONS:
                    is_array = kind == "array"
                    reach = (int(value) + 1) * (least + 1) if is_array else HORIZONS[keyword](value)
                    if node.asserted and (unsupported == "ignore" or reach < _LEAST):
                        reach = None
                written, pointer = node.schema.name_of(keyword), document.rebase(node.pointer)
                found.append(Caveat(written, pointer, value, reach))
    return found


def restrict_length(
    language: Automaton, max_bytes: int | None, what: str, caveats: Sequence[Caveat] = ()
) -> Automaton:
    """Restrict a language of `what` to `max_bytes` bytes, and to the lengths of its caveats.

    `caveats` are added to those of the language, and its own `max_bytes` stays.
    """
    shortest = len(language.shortest())
    if max_bytes is not None and shortest > max_bytes:
        raise EmptyLanguageError(
            f"expected {what} within max_bytes={max_bytes}, got none; the shortest has {shortest} "
            "bytes, so raise max_bytes"
        )
    caveats = tuple(dict.fromkeys((*language.caveats, *caveats)))
    known = [max_bytes, language.max_bytes, *(caveat.max_bytes for caveat in caveats)]
    limit = min((each for each in known if each is not None), default=None)
    if limit is not None and shortest > limit:
        raise out_of_reach(caveats, shortest)
    return replace(language, max_bytes=limit, caveats=caveats)


def out_of_reach(caveats: Sequence[Caveat], shortest: int | None = None) -> StateLimitError:
    """Return the error for omitted upper bounds, if every text is long enough to exceed one."""
    first = next(caveat for caveat in caveats if caveat.max_bytes is not None)
    least = "" if shortest is None else f", all of {shortest} bytes and more,"
    what = f"counting up to {first.value} in texts that reach it{least}"
    error = StateLimitError(max_states(), what)
    error.blame(first.keyword, first.pointer)
    return error
