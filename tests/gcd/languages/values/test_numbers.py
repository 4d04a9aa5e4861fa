"""Numbers between bounds and multiples, against `decimal` and exact fractions on short texts."""

from __future__ import annotations

import itertools
import json
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import ConstraintError, StateLimitError, regex, state_limit
from gcd._languages.values.numbers import (
    Bound,
    decimals,
    integers,
    multiples,
    numbers,
    whole_numbers,
)
from tests.gcd.languages.text.readings import accepted
from tests.gcd.random_strings import random_strings


def _plain_number(text: str) -> Decimal | None:
    """Return the value of a number without exponent; None if the text isn't one."""
    try:
        json.loads(text)
    except ValueError:
        return None
    return Decimal(text)


SPELLINGS = {
    text: _plain_number(text)
    for size in range(1, 6)
    for text in map("".join, itertools.product("-01.9", repeat=size))
    if size <= 3 or _plain_number(text) is not None
}


BOUNDS = st.one_of(
    st.none(),
    st.builds(
        Bound,
        st.one_of(
            st.integers(-1200, 1200).map(Decimal),
            st.sampled_from(["-10.01", "0.1", "9.9", "-0.9", "0.09", "99.10", "1E+2"]).map(Decimal),
        ),
        st.booleans(),
    ),
)


@settings(max_examples=30)
@given(BOUNDS, BOUNDS)
@example(Bound(Decimal(0), True), None)
@example(None, Bound(Decimal(0), True))
@example(Bound(Decimal("-0"), False), Bound(Decimal(0), False))
def test_numbers_between_bounds_are_exact(lower: Bound | None, upper: Bound | None) -> None:
    between, whole = numbers(lower, upper), integers(lower, upper)
    every, plain = numbers(lower, upper, wide=True), decimals(lower, upper, wide=True)
    none_below_zero = lower is not None and lower.value >= 0
    for text, value in SPELLINGS.items():
        inside = value is not None and _is_between(value, lower, upper)
        assert every.accepts(text) == plain.accepts(text) == inside, text
        bare = text != "-0" and not (text.startswith("-") and value == 0 and none_below_zero)
        assert decimals(lower, upper).accepts(text) == (inside and bare), text
        is_free = lower is None and upper is None
        assert between.accepts(text) == (inside and (bare or is_free)), text
        assert whole.accepts(text) == (inside and bare and "." not in text), text
        if inside and not bare:  # the value still has a spelling
            assert whole.accepts("0")


def _is_between(value: Decimal, lower: Bound | None, upper: Bound | None) -> bool:
    above = lower is None or value > lower.value or (value == lower.value and not lower.strict)
    return above and (
        upper is None or value < upper.value or (value == upper.value and not upper.strict)
    )


@settings(max_examples=100)
@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40), st.integers(-2, 2))
def test_long_integers_are_compared_digit_by_digit(low: int, high: int, near: int) -> None:
    language = integers(Bound(Decimal(low), False), Bound(Decimal(high), True))
    for value in (low + near, high + near, (low + high) // 2):
        assert language.accepts(str(value)) == (low <= value < high)


def test_numbers_without_bounds_have_the_whole_grammar() -> None:
    for text in ("1e5", "-1.50E+07", "0.5", "-0", "-0e2", "12345678901234567890"):
        assert numbers().accepts(text), text
    for text in ("01", "+1", "1.", ".5", "1e", "--1", "NaN", "Infinity", ""):
        assert not numbers().accepts(text), text


# -- multiples --------------------------------------------------------------------------------

DIVISORS = [
    *("1", "2", "7", "10", "12", "25", "1000", "1E+3", "100.0", "0.01", "0.1", "0.25", "0.5"),
    *("2.5", "1.5", "0.0075", "1E-8", "7.00", "0.125", "64", "1E+6", "3E+2", "40"),
]
NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
SHORT = ["".join(s) for n in range(6) for s in itertools.product("-.0125", repeat=n)]
SHORT += ["".join(s) for n in range(1, 4) for s in itertools.product("-.0123456789", repeat=n)]
SHORT = sorted(set(SHORT))


FRACTIONS = {text: Fraction(text) if NUMERAL.fullmatch(text) else None for text in SHORT}
BYTES = np.array([text.encode() for text in SHORT])


def _is_multiple(value: Fraction | None, divisor: str) -> bool:
    return value is not None and (value / Fraction(divisor)).denominator == 1


@pytest.mark.parametrize("divisor", DIVISORS)
def test_every_short_numeral_is_judged_by_its_value(divisor: str) -> None:
    language = multiples(Decimal(divisor))
    found = accepted(language, BYTES, list(map(len, SHORT)))
    assert found.tolist() == [_is_multiple(value, divisor) for value in FRACTIONS.values()]
    for text in random_strings(language, 30):
        assert NUMERAL.fullmatch(text.decode())
        assert _is_multiple(Fraction(text.decode()), divisor)


@settings(max_examples=60)
@given(st.integers(1, 2000), st.integers(-6, 4), st.integers(-(10**12), 10**12), st.integers(-2, 2))
@example(75, -4, 3, 0)
@example(2, 3, 5, 0)
def test_multiples_and_their_neighbors(a: int, e: int, times: int, off: int) -> None:
    divisor, places = Decimal(a).scaleb(e), max(-e, 0)
    value = Decimal(a * times * 10 ** max(e, 0) + off).scaleb(-places)
    for zeros in range(3):
        text = f"{value:f}" + "." * (zeros > places == 0) + "0" * zeros
        expected = NUMERAL.fullmatch(text) and _is_multiple(Fraction(text), str(divisor))
        assert multiples(divisor).accepts(text) == bool(expected), text


def test_whole_numbers() -> None:
    assert whole_numbers() == regex(r"-?(0|[1-9][0-9]*)(\.0+)?")
    assert multiples(Decimal("0.1")) == regex(r"-?(0|[1-9][0-9]*)(\.[0-9]0*)?")
    assert multiples(Decimal(10)) == regex(r"-?(0|[1-9][0-9]*0)(\.0+)?")
    for one, other in (("1E+3", "1000.00"), ("0.5", "5E-1"), ("2.50", "2.5")):
        assert multiples(Decimal(one)) == multiples(Decimal(other))


def test_a_power_of_ten_costs_its_zeros_only() -> None:
    assert multiples(Decimal("1E+300")).num_states < 320
    assert multiples(Decimal("1E-300")).num_states < 320
    assert multiples(Decimal("3E+300")).accepts("6" + 300 * "0" + ".0")
    assert not multiples(Decimal("3E+300")).accepts("6" + 299 * "0")


def test_a_large_divisor_is_refused_by_name() -> None:
    with pytest.raises(StateLimitError, match="multipleOf 123456789"):
        multiples(Decimal(123456789))
    with pytest.raises(ConstraintError, match="got 50026 for 50021"):
        multiples(Decimal(50021))
    with state_limit(100), pytest.raises(StateLimitError, match=r"multipleOf 4099 .* 100 states"):
        multiples(Decimal(4099))
