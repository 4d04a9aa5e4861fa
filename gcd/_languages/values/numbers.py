"""Numbers as they are written, and numbers between two bounds.

Integers and decimals without an exponent are ordered by their digits. A longer integer part is the
greater number. Integer parts of equal length are compared digit by digit, and then the fractions,
as if they were padded with infinitely many zeros. So "at least 12.5" is a finite automaton with a
few states for each digit of the bound, for numbers of any length. With exponents, comparison is not
regular (`0.00…01e100` and `1e-5` may be equal, and counting zeros takes unbounded memory). Hence
**a number with a bound is written without an exponent**. A number without bounds has the whole
grammar of RFC 8259:

    -?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?

**Integers are written without a fraction and an exponent**: `5`, not `5.0` or `5e0`.

**Zero is written without a sign** in integers, and in numbers with a bound or a divisor. Otherwise,
a model that has begun with `-` would have to write `-0` if no number below zero is allowed. So
these numbers are never `-0`, and if no negative number is allowed, they have no sign. If negative
numbers are allowed, `-0.0` is also allowed, because `json.dumps` and `repr` write the float -0.0
like this. All spellings together are the *wide* form, for languages that are subtracted
(`gcd._languages.json_schema.languages`).
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._errors import ConstraintError
from gcd._languages.text.regex import regex

_LESS, _EQUAL, _GREATER = -1, 0, 1
MAX_DIGITS = 400  # maximum number of digits of a bound on either side of the point; 1e308 has 309


class Bound(NamedTuple):
    """One end of an interval of numbers. If `strict`, the interval doesn't include `value`."""

    value: Decimal
    strict: bool


@cache_with_price(maxsize=1024)
def integers(lower: Bound | None = None, upper: Bound | None = None) -> Automaton:
    """Return the integers between two bounds, without an exponent."""
    return decimals(lower, upper, wide=False) & _integers() if lower or upper else _integers()


def numbers(
    lower: Bound | None = None, upper: Bound | None = None, *, wide: bool = False
) -> Automaton:
    """Return the numbers between two bounds; without bounds or if `wide`, also with an exponent."""
    if wide:
        return decimals(lower, upper, wide=True) | with_exponent()
    return decimals(lower, upper, wide=False) if lower or upper else _any_number()


@cache_with_price(maxsize=1)
def with_exponent() -> Automaton:
    """Return all numbers that are written with an exponent."""
    return _any_number() - decimals(wide=True)


@cache_with_price(maxsize=1)
def _any_number() -> Automaton:
    return regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@cache_with_price(maxsize=1)
def _integers() -> Automaton:
    return regex("0|-?[1-9][0-9]*")


@cache_with_price(maxsize=1)
def _magnitudes() -> Automaton:
    return regex(r"(0|[1-9][0-9]*)(\.[0-9]+)?")


@cache_with_price(maxsize=1024)
def decimals(
    lower: Bound | None = None, upper: Bound | None = None, *, wide: bool = False
) -> Automaton:
    """Return the numbers between two bounds, without an exponent; if `wide`, also zero as `-0`."""
    positive = _magnitudes_between(lower, upper)
    if lower and lower.value >= 0 and not wide:
        return positive
    negative = _magnitudes_between(_mirror(upper), _mirror(lower))
    signed = Automaton.literal("-") + negative
    return positive | (signed if wide else signed - Automaton.literal("-0"))


def _mirror(bound: Bound | None) -> Bound | None:
    return bound and Bound(bound.value.copy_negate(), bound.strict)  # `-x` would round to 28 digits


def _magnitudes_between(lower: Bound | None, upper: Bound | None) -> Automaton:
    """Return the numbers without a sign between two bounds."""
    result = _magnitudes()
    if lower and lower.value >= 0:
        result &= _compare(lower.value, frozenset({_GREATER} if lower.strict else {0, _GREATER}))
    if upper:
        if upper.value < 0:
            return Automaton.empty()
        result &= _compare(upper.value, frozenset({_LESS} if upper.strict else {_LESS, 0}))
    return result


@cache_with_price(maxsize=1024)
def _compare(bound: Decimal, wanted: frozenset[int]) -> Automaton:
    """Return the numbers without a sign that are less (-1), equal (0) or greater, as `wanted`."""
    whole, fraction = _digits(bound)
    edges: list[tuple[int, list[int], int]] = []
    # For each state, the result of the comparison if the number ends there; None if it can't end.
    verdict: dict[int, int | None] = {}

    def state(outcome: int | None) -> int:
        verdict[len(verdict)] = outcome
        return len(verdict) - 1

    def read(source: int, digits: str, target: int) -> None:
        if digits:
            edges.append((source, list(digits.encode()), target))

    # The states of the fraction, first those in which the result is known.
    settled = {}
    for outcome in (_LESS, _GREATER):
        settled[outcome] = state(outcome)
        read(settled[outcome], "0123456789", settled[outcome])
    open_after = [state(None)]  # states in which the fraction is equal so far
    open_after += [state(_LESS) for _ in fraction[:-1]]
    tail = state(_EQUAL)  # after the digits of the bound, zeros don't change the result
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

    point = {}  # states right after the point, by the result so far
    for outcome in (_LESS, _GREATER):
        point[outcome] = state(None)
        read(point[outcome], "0123456789", settled[outcome])
    point[_EQUAL] = open_after[0]

    def whole_part(outcome: int) -> int:
        """Return a state after a whole integer part, which compares with the bound as `outcome`."""
        ended = outcome if outcome != _EQUAL else (_LESS if fraction else _EQUAL)
        here = state(ended)
        read(here, ".", point[outcome])
        return here

    # States of the integer part, by the number of digits and the result for these digits. A number
    # with fewer digits than the bound is less.
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
    """Return the digits below `digit`, and the digits above it."""
    digits = "0123456789"
    return digits[: int(digit)], digits[int(digit) + 1 :]


def _digits(bound: Decimal) -> tuple[str, str]:
    """Return the digits before (at least one) and after the point, without outer zeros."""
    if bound and (bound.adjusted() > MAX_DIGITS or bound.as_tuple().exponent < -MAX_DIGITS):  # type: ignore[operator]
        raise ConstraintError(
            f"expected a bound of at most {MAX_DIGITS} digits before and after the point, got "
            f"{bound:.6E}; use a bound with fewer digits"
        )
    whole, _, fraction = format(bound.copy_abs(), "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")
