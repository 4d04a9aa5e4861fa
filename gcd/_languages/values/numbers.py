"""Numbers as they are written, numbers between two bounds, and multiples.

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

**Multiples** of a divisor are found by long division from left to right, also of numbers such as
`5.0`, a multiple of 1, and `-0`, a multiple of everything. Write the divisor as a · 10^e, where a
is not divisible by 10.

* e < 0: a value v is a multiple if v · 10^k, with k = -e, is an integer divisible by a. The state
  is the remainder modulo a of the digits so far, and the number of digits after the point. If only
  j < k digits follow the point, k - j zeros are implied. After k digits, only zeros may follow.
* e >= 0: v must be an integer divisible by a, followed by e more zeros. The state is the remainder,
  and the number of zeros since it became 0. This takes a + e states. Long division by the divisor
  itself would take a · 10^e states.

Cost: O(a · (k + 1) + e) states before minimization. Array operations fill the tables.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import ConstraintError, StateLimitError
from gcd._languages.text.regex import regex

_LESS, _GREATER = -1, 1
# A part of a number, how many of its digits were read (at most one more than the bound has), and
# how the number compares with the bound so far.
_State = tuple[str, int, int]
_POINT, _MINUS, _OTHER = 10, 11, 12  # byte classes; the class of a digit is the digit itself
_CLASS_OF_BYTE = np.full(NUM_BYTES, _OTHER, np.uint8)
_CLASS_OF_BYTE[list(b"0123456789.-")] = np.arange(12)
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

    def of_whole(count: int, sign: int) -> int:
        """Return how an integer part compares, given its number of digits and their order."""
        return sign if count == len(whole) else (count > len(whole)) - (count < len(whole))

    def read(state: _State, character: str) -> _State | None:
        part, count, sign = state
        if character == ".":
            return ("point", 0, of_whole(count, sign)) if part in ("zero", "whole") else None
        if part == "zero":  # no digit may follow
            return None
        part = {"start": "zero" if character == "0" else "whole", "point": "fraction"}.get(
            part, part
        )
        digits = whole if part in ("zero", "whole") else fraction
        other = digits[count] if count < len(digits) else "0"
        sign = sign or (character > other) - (character < other)
        return part, min(count + 1, len(digits) + (digits is whole)), sign

    def verdict(state: _State) -> int | None:
        """Return how a number that ends in a state compares; None if it can't end there."""
        part, count, sign = state
        if part == "fraction":
            return sign or -(count < len(fraction))
        return None if part in ("start", "point") else of_whole(count, sign) or -bool(fraction)

    states: list[_State] = [("start", 0, 0)]
    number = {states[0]: 0}
    rows = []
    for state in states:  # grows
        rows.append([-1] * (_OTHER + 1))
        for column, character in enumerate("0123456789."):
            after = read(state, character)
            if after is not None:
                if after not in number:
                    number[after] = len(states)
                    states.append(after)
                rows[-1][column] = number[after]
    accepting = np.array([verdict(state) in wanted for state in states])
    return Automaton.minimal(np.array(rows), accepting, _CLASS_OF_BYTE)


def _digits(bound: Decimal) -> tuple[str, str]:
    """Return the digits before (at least one) and after the point, without outer zeros."""
    if bound and (bound.adjusted() >= MAX_DIGITS or bound.as_tuple().exponent < -MAX_DIGITS):  # type: ignore[operator]
        raise ConstraintError(
            f"expected a bound with at most {MAX_DIGITS} digits on each side of the point, got "
            f"{bound:.6E}; use a bound with fewer digits"
        )
    whole, _, fraction = format(bound.copy_abs(), "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


# -- multiples ----------------------------------------------------------------------------------

_MAX_LAID_OUT = 50_000  # most states before minimization, independent of the state limit

_DIGITS = np.arange(10)

# Single states: at the beginning, after the minus sign, after a leading zero, after the last
# significant digit (only zeros may follow), and after a point that only zeros may follow.
_START, _SIGNED, _ZERO, _ZEROS, _LAST_POINT = range(5)
_FIRST = 5  # the state of remainder 0


@cache_with_price(maxsize=256)
def multiples(divisor: Decimal) -> Automaton:
    """Return the numbers without an exponent whose value is an integer times `divisor`."""
    modulus, exponent = _reduce(divisor)
    places, zeros = max(-exponent, 0), max(exponent, 0)
    whole = _FIRST  # states by [remainder], then by the zeros after remainder 0
    fraction = whole + modulus + zeros  # states by [digits after the point][remainder]
    count = fraction + places * modulus
    if count > max_states():
        raise StateLimitError(max_states(), what=f"division by multipleOf {divisor}")
    if count > _MAX_LAID_OUT:
        raise ConstraintError(
            f"expected multipleOf to need at most {_MAX_LAID_OUT} states, got {count} for "
            f"{divisor}; use a divisor with fewer digits"
        )
    table = np.full((count, _OTHER + 1), -1, np.int32)
    accepting = np.zeros(count, bool)

    remainders = np.arange(modulus)
    # `after[remainder, digit]`: the remainder after one more digit.
    after = (10 * remainders[:, None] + _DIGITS) % modulus
    # `divisible[k][remainder]`: whether the remainder becomes 0 after k more zeros.
    divisible = [remainders * pow(10, k, modulus) % modulus == 0 for k in range(places + 1)]

    # The integer part.
    table[_START, _MINUS] = _SIGNED
    table[[_START, _SIGNED], 0] = _ZERO
    table[[_START, _SIGNED], 1:10] = whole + _DIGITS[1:] % modulus
    table[whole : whole + modulus, :10] = whole + after
    accepting[_ZERO] = True
    if zeros:
        # After remainder 0, count the zeros that follow; any other digit resets the count.
        chain = whole + modulus + np.arange(zeros)
        table[chain, :10] = whole + after[0]
        table[whole, 0] = chain[0]
        table[chain[:-1], 0] = chain[1:]
        table[chain[-1], 0] = chain[-1]
        accepting[chain[-1]] = True
    else:
        accepting[whole : whole + modulus] = divisible[places]

    # The fraction.
    table[_ZEROS, 0] = table[_LAST_POINT, 0] = _ZEROS
    accepting[_ZEROS] = True
    if not places:
        table[accepting & (np.arange(count) != _ZEROS), _POINT] = _LAST_POINT
        return Automaton.minimal(table, accepting, _CLASS_OF_BYTE)
    table[whole : whole + modulus, _POINT] = fraction + remainders
    table[_ZERO, _POINT] = fraction
    for read in range(places):
        rows = slice(fraction + read * modulus, fraction + (read + 1) * modulus)
        if read + 1 < places:
            table[rows, :10] = fraction + (read + 1) * modulus + after
        else:
            table[rows, :10] = np.where(after == 0, _ZEROS, -1)
        if read:  # at least one digit follows the point
            accepting[rows] = divisible[places - read]
    return Automaton.minimal(table, accepting, _CLASS_OF_BYTE)


def whole_numbers() -> Automaton:
    """Return whole numbers, also with a fraction of zeros: `5`, `5.0`, `-0.00`."""
    return multiples(Decimal(1))


def _reduce(divisor: Decimal) -> tuple[int, int]:
    """Return a and e with divisor = a · 10^e, where a is not divisible by 10."""
    if not divisor.is_finite() or divisor <= 0:
        raise ConstraintError(f"expected multipleOf to be greater than 0, got {divisor}")
    _, digits, exponent = divisor.as_tuple()
    assert isinstance(exponent, int)  # finite
    if divisor.adjusted() >= MAX_DIGITS or exponent < -MAX_DIGITS:
        raise ConstraintError(
            f"expected multipleOf with at most {MAX_DIGITS} digits on each side of the point, got "
            f"{divisor:.6E}; use a divisor with fewer digits"
        )
    coefficient = int("".join(map(str, digits)))
    while coefficient % 10 == 0:
        coefficient //= 10
        exponent += 1
    return coefficient, exponent
