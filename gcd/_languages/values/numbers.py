"""Numbers as they are written, and numbers between two bounds.

Integers and decimals without exponent are ordered by their digits. A longer integer part is the
greater number, integer parts of equal length compare digit by digit, and then the fractions
compare, as if padded with infinitely many zeros. So "at least 12.5" is a finite automaton with a
few states per digit of the bound, for numbers of any length. With exponents, comparison is not
regular (`0.00…01e100` and `1e-5` may be equal, and counting zeros takes unbounded memory). Hence
**a number with a bound is written without an exponent**. A number without bounds has the whole
grammar of RFC 8259:

    -?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?

**Integers are written without fraction and exponent**: `5`, not `5.0` or `5e0`.

**Zero is written without a sign** in integers and in numbers with a bound or a divisor. Otherwise,
a model that has begun with `-` would write `-0` if no number below zero is allowed. So these
numbers are never `-0`, and have no sign if the lower bound allows only zero with one. `-0.0`
remains allowed with negative numbers, because `json.dumps` and `repr` write the float -0.0 that
way. All spellings together are the *wide* form, for languages that are subtracted
(`gcd._languages.json_schema.languages`).
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import priced_cache
from gcd._errors import ConstraintError
from gcd._languages.text.regex import regex

_LESS, _EQUAL, _GREATER = -1, 0, 1
MAX_DIGITS = 400  # of a bound, on either side of the point; 1e308 has 309


class Bound(NamedTuple):
    """End of an interval; `strict` excludes the value itself."""

    value: Decimal
    strict: bool


@priced_cache(maxsize=1024)
def integers(lower: Bound | None = None, upper: Bound | None = None) -> Automaton:
    """Return the integers between the bounds, in digits."""
    return decimals(lower, upper, wide=False) & _integers() if lower or upper else _integers()


def numbers(
    lower: Bound | None = None, upper: Bound | None = None, *, wide: bool = False
) -> Automaton:
    """Return the numbers between the bounds; without bounds, include those with an exponent.

    If `wide`, use every spelling, and also include every number with an exponent.
    """
    if wide:
        return decimals(lower, upper, wide=True) | with_exponent()
    return decimals(lower, upper, wide=False) if lower or upper else _any_number()


@priced_cache(maxsize=1)
def with_exponent() -> Automaton:
    """Return the numbers that are written with an exponent."""
    return _any_number() - decimals(wide=True)


@priced_cache(maxsize=1)
def _any_number() -> Automaton:
    return regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@priced_cache(maxsize=1)
def _integers() -> Automaton:
    return regex("0|-?[1-9][0-9]*")


@priced_cache(maxsize=1)
def _magnitudes() -> Automaton:
    return regex(r"(0|[1-9][0-9]*)(\.[0-9]+)?")


@priced_cache(maxsize=1024)
def decimals(
    lower: Bound | None = None, upper: Bound | None = None, *, wide: bool = False
) -> Automaton:
    """Return the numbers between the bounds, without an exponent; if `wide`, also zero as `-0`."""
    positive = _magnitudes_between(lower, upper)
    if lower and lower.value >= 0 and not wide:
        return positive
    negative = _magnitudes_between(_mirrored(upper), _mirrored(lower))
    signed = Automaton.literal("-") + negative
    return positive | (signed if wide else signed - Automaton.literal("-0"))


def _mirrored(bound: Bound | None) -> Bound | None:
    return bound and Bound(bound.value.copy_negate(), bound.strict)  # `-x` would round to 28 digits


def _magnitudes_between(lower: Bound | None, upper: Bound | None) -> Automaton:
    """Return unsigned numbers between the bounds."""
    result = _magnitudes()
    if lower and lower.value >= 0:
        result &= _compared(lower.value, frozenset({_GREATER} if lower.strict else {0, _GREATER}))
    if upper:
        if upper.value < 0:
            return Automaton.empty()
        result &= _compared(upper.value, frozenset({_LESS} if upper.strict else {_LESS, 0}))
    return result


@priced_cache(maxsize=1024)
def _compared(bound: Decimal, wanted: frozenset[int]) -> Automaton:
    """Return unsigned decimals whose comparison with `bound` >= 0 is one of `wanted`."""
    whole, fraction = _digits(bound)
    edges: list[tuple[int, list[int], int]] = []
    # Comparison of a number that ends here; None if it may not end.
    verdict: dict[int, int | None] = {}

    def state(outcome: int | None) -> int:
        verdict[len(verdict)] = outcome
        return len(verdict) - 1

    def read(source: int, digits: str, target: int) -> None:
        if digits:
            edges.append((source, list(digits.encode()), target))

    # The fraction after the comparison is decided, and before.
    settled = {}
    for outcome in (_LESS, _GREATER):
        settled[outcome] = state(outcome)
        read(settled[outcome], "0123456789", settled[outcome])
    open_after = [state(None)]  # after the point, no digits yet
    open_after += [state(_LESS) for _ in fraction[:-1]]
    tail = state(_EQUAL)  # after the bound's digits, zeros keep it equal
    open_after += [tail] if fraction else []
    for digit, here, there in zip(fraction, open_after, open_after[1:], strict=False):
        less, greater = _sides(digit)
        read(here, less, settled[_LESS])
        read(here, digit, there)
        read(here, greater, settled[_GREATER])
    if not fraction:
        read(open_after[0], "0", tail)
        read(open_after[0], "123456789", settled[_GREATER])
    read(tail, "0", tail)
    read(tail, "123456789", settled[_GREATER])

    point = {}  # after the point of a number whose comparison is decided
    for outcome in (_LESS, _GREATER):
        point[outcome] = state(None)
        read(point[outcome], "0123456789", settled[outcome])
    point[_EQUAL] = open_after[0]

    def whole_part(outcome: int) -> int:
        """Return a state in which the integer part may end, with this comparison."""
        ended = outcome if outcome != _EQUAL else (_LESS if fraction else _EQUAL)
        here = state(ended)
        read(here, ".", point[outcome])
        return here

    # The integer part: [after k digits][comparison of those digits]; too short means less.
    start = state(None)
    final = len(whole)
    after = [
        {c: whole_part(c if k == final else _LESS) for c in (_LESS, _EQUAL, _GREATER)}
        for k in range(1, final + 1)
    ]
    longer = whole_part(_GREATER)
    read(longer, "0123456789", longer)
    for digits, outcome in zip((*_sides(whole[0]), whole[0]), (-1, 1, 0), strict=True):
        read(start, digits.replace("0", ""), after[0][outcome])
    zero = whole_part(_LESS if whole != "0" else _EQUAL)
    read(start, "0", zero)  # no digit may follow
    for k in range(1, final):
        less, greater = _sides(whole[k])
        for outcome in (_LESS, _GREATER):
            read(after[k - 1][outcome], "0123456789", after[k][outcome])
        read(after[k - 1][_EQUAL], less, after[k][_LESS])
        read(after[k - 1][_EQUAL], whole[k], after[k][_EQUAL])
        read(after[k - 1][_EQUAL], greater, after[k][_GREATER])
    for outcome in (_LESS, _EQUAL, _GREATER):
        read(after[-1][outcome], "0123456789", longer)

    accepting = [s for s, outcome in verdict.items() if outcome in wanted]
    return Automaton.from_nfa(len(verdict), edges, accepting=accepting, initial=[start])


def _sides(digit: str) -> tuple[str, str]:
    """Return the digits below and above `digit`."""
    digits = "0123456789"
    return digits[: int(digit)], digits[int(digit) + 1 :]


def _digits(bound: Decimal) -> tuple[str, str]:
    """Return digits before and after the point, without leading or trailing zeros except "0"."""
    if bound and (bound.adjusted() > MAX_DIGITS or bound.as_tuple().exponent < -MAX_DIGITS):  # type: ignore[operator]
        raise ConstraintError(
            f"expected a bound of at most {MAX_DIGITS} digits, got {bound:.6E}; use a shorter one"
        )
    whole, _, fraction = format(bound.copy_abs(), "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")
