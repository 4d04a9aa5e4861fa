"""Decimal numbers whose value is an exact multiple of a divisor.

The numbers are written without an exponent, as in `gcd._languages.values.numbers`:
`-?(0|[1-9][0-9]*)(\\.[0-9]+)?`. `multipleOf` applies to their value: `5.0` is a multiple of 1, and
`-0` is a multiple of everything.

The automaton performs long division from left to right. Write the divisor as a · 10^e, where a is
not divisible by 10.

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

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import ConstraintError, StateLimitError
from gcd._languages.values.numbers import MAX_DIGITS

_MAX_LAID_OUT = 50_000  # most states before minimization, independent of the state limit

_DIGITS = np.arange(10)
_POINT, _MINUS, _OTHER = 10, 11, 12  # byte classes; the class of a digit is the digit itself
_CLASS_OF_BYTE = np.full(NUM_BYTES, _OTHER, np.uint8)
_CLASS_OF_BYTE[list(b"0123456789.-")] = np.arange(12)

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
    if divisor.adjusted() > MAX_DIGITS or exponent < -MAX_DIGITS:
        raise ConstraintError(
            f"expected multipleOf to have at most {MAX_DIGITS} digits before and after the point, "
            f"got {divisor:.6E}; use a divisor with fewer digits"
        )
    coefficient = int("".join(map(str, digits)))
    while coefficient % 10 == 0:
        coefficient //= 10
        exponent += 1
    return coefficient, exponent
