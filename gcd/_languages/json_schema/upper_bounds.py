"""Omission of upper bounds that no answer reaches, with caveats.

`"maxLength": 65536` takes some 20 states for each character, and no answer of a few hundred tokens
is that long. If a schema takes too many states or too much work, its largest upper bounds are not
counted. The automaton is then exact only for texts that are too short to exceed any of them
(`gcd._automata.horizon`), and budgets that allow longer texts are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import count_work, max_states
from gcd._errors import EmptyLanguageError, LimitError, StateLimitError, at, show_count
from gcd._languages.json_schema.document import HORIZONS, Conjunction, Document
from gcd._languages.json_schema.facets import Facets
from gcd._languages.json_schema.language_cache import UPPER_BOUNDS

_PER_COUNT = 20  # states per counted character of a string
_ROOM = 8  # counts may take an 8th of the states, because schemas occur several times
_LEAST = 1_000  # bytes: budgets are never restricted to shorter texts
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

Build = Callable[[int | None, list[Caveat]], Automaton]


def compile_or_relax(build: Build, *, unsupported: str) -> Automaton:
    """Compile a schema; if it is too large, retry without its largest upper bounds.

    Args:
        build: function that compiles the schema. Its first argument is a length in bytes: upper
            bounds that only longer texts can exceed are not counted; None to count all. The second
            argument is a list to which it appends the upper bounds.
        unsupported: as in `gcd.json_schema`.

    Raises:
        StateLimitError, WorkLimitError: the schema is still too large.
    """
    bounds: list[Caveat] = []
    try:
        with count_work():
            return build(None, bounds)
    except LimitError as error:
        if unsupported != "refuse":
            for counted in _less(bounds, error, least_horizon(unsupported)):
                with suppress(LimitError, EmptyLanguageError), count_work():
                    return build(counted, [])
        if unsupported != "ignore" and error.keyword in HORIZONS:
            error.add('; or set unsupported="ignore" and validate the finished text')
        raise


def least_horizon(unsupported: str) -> int:
    """Return the length in bytes up to which omitting upper bounds must not change a language."""
    return _LEAST if unsupported == "warn" else 0


def _less(bounds: Sequence[Caveat], error: LimitError, least: int) -> Iterator[int]:
    """Yield lengths in bytes to try as the first argument of `build` in `compile_or_relax`.

    With the first length, as many upper bounds as possible are enforced; with the second, as few as
    possible.
    """
    if not isinstance(error, StateLimitError) and error.keyword not in HORIZONS:
        return
    sizes = sorted((bound.max_bytes or 0, _PER_COUNT * int(bound.value)) for bound in bounds)
    taken, candidates = 0, []
    for horizon, size in sizes:
        taken += size
        if taken > max_states() // _ROOM and horizon >= least:
            candidates.append(horizon)
    if candidates:
        yield candidates[0]
    smallest = next((horizon for horizon, _ in sizes if horizon >= least), None)
    if smallest is not None and smallest not in candidates[:1]:
        yield smallest


def may_drop(reaches: Sequence[int], error: StateLimitError, unsupported: str) -> bool:
    """Return whether upper bounds may be dropped after this error.

    `reaches` has, for each bound, the maximum length of texts if this bound is dropped.
    """
    if unsupported == "refuse" or error.pointer is not None:  # the error belongs to an inner part
        return False
    return min(reaches, default=-1) >= least_horizon(unsupported)


def too_many_elements(document: Document, facets: Facets, least: int) -> StateLimitError:
    """Return the error for an array with too many states; it names the counts involved.

    Args:
        document: the document of the array's schemas.
        facets: the description of the array.
        least: fewest bytes of an element.
    """
    counted = [
        f"{node.schema.name_of(keyword)} {node.schema[keyword]} {where}"
        for node in document.flatten(facets.items) or ()
        for where in [at(document.rebase(node.pointer))]
        for keyword in _COUNTS
        if keyword in node.schema
    ]
    fewest, most = facets.size
    beside = f" with {' and '.join(counted)}" if counted else ""
    what = f"an array of {show_count(max(fewest, most or 0))} elements{beside}"
    shortest = fewest * (least + 1) + 1
    if shortest <= max_states():
        return StateLimitError(max_states(), what)
    advice = f"every array has at least {show_count(shortest)} bytes, so lower the minimum counts"
    return StateLimitError(max_states(), what, advice=advice)


def not_counted(
    document: Document, nodes: Conjunction, kind: str, least: int, *, unsupported: str
) -> list[Caveat]:
    """Return the caveats for upper bounds that are not enforced, on values of one kind.

    Args:
        document: the document of the schemas.
        nodes: the schemas that have the bounds.
        kind: the kind of values.
        least: fewest bytes of an element, for arrays.
        unsupported: as in `gcd.json_schema`.
    """
    found = []
    for node in nodes:
        for keyword in UPPER_BOUNDS[kind]:
            if keyword in node.schema:
                value = node.schema[keyword]
                reach: int | None = HORIZONS[keyword](value)
                if kind == "array":
                    reach = (int(value) + 1) * (least + 1)
                if unsupported == "ignore" and node.asserted:
                    reach = None
                written, pointer = node.schema.name_of(keyword), document.rebase(node.pointer)
                found.append(Caveat(written, pointer, value, reach))
    return found


def restrict_length(
    language: Automaton, max_bytes: int | None, what: str, caveats: Sequence[Caveat] = ()
) -> Automaton:
    """Restrict a language to texts of at most `max_bytes` bytes.

    Args:
        language: the language to restrict.
        max_bytes: length of the longest text in bytes; None if there is no limit.
        what: a text of the language, for the error message.
        caveats: keywords that the language doesn't enforce in all texts.

    Raises:
        EmptyLanguageError: every text is longer.
        StateLimitError: upper bounds are not counted, and every text is long enough to exceed one.
    """
    shortest = len(language.shortest())
    if max_bytes is not None and shortest > max_bytes:
        raise EmptyLanguageError(
            f"expected {what} within max_bytes={max_bytes}, got none; the shortest has {shortest} "
            "bytes, so raise max_bytes"
        )
    known = [max_bytes, *(caveat.max_bytes for caveat in caveats)]
    limit = min((each for each in known if each is not None), default=None)
    if limit is not None and shortest > limit:
        raise out_of_reach(caveats, shortest)
    return replace(language, max_bytes=limit, caveats=tuple(caveats))


def out_of_reach(caveats: Sequence[Caveat], shortest: int | None = None) -> StateLimitError:
    """Return the error for omitted upper bounds, if every text is long enough to exceed one."""
    first = next(caveat for caveat in caveats if caveat.max_bytes is not None)
    least = "" if shortest is None else f", all of {shortest} bytes and more,"
    what = f"counting up to {first.value} in texts that reach it{least}"
    error = StateLimitError(max_states(), what)
    error.blame(first.keyword, first.pointer)
    return error
