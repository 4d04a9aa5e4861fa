"""Multiples of a divisor, against exact fractions on every short numeral."""

from __future__ import annotations

import itertools
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import ConstraintError, StateLimitError, regex, state_limit
from gcd._languages.values.numbers import multiples, whole_numbers
from tests.gcd.languages.text.readings import accepted
from tests.gcd.random_strings import random_strings

DIVISORS = [
    *("1", "2", "7", "10", "12", "25", "1000", "1E+3", "100.0", "0.01", "0.1", "0.25", "0.5"),
    *("2.5", "1.5", "0.0075", "1E-8", "7.00", "0.125", "64", "1E+6", "3E+2", "40"),
]
NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
SHORT = ["".join(s) for n in range(6) for s in itertools.product("-.0125", repeat=n)]
SHORT += ["".join(s) for n in range(1, 4) for s in itertools.product("-.0123456789", repeat=n)]
SHORT = sorted(set(SHORT))


VALUES = {text: Fraction(text) if NUMERAL.fullmatch(text) else None for text in SHORT}
BYTES = np.array([text.encode() for text in SHORT])


def _is_multiple(value: Fraction | None, divisor: str) -> bool:
    return value is not None and (value / Fraction(divisor)).denominator == 1


@pytest.mark.parametrize("divisor", DIVISORS)
def test_every_short_numeral_is_judged_by_its_value(divisor: str) -> None:
    language = multiples(Decimal(divisor))
    found = accepted(language, BYTES, list(map(len, SHORT)))
    assert found.tolist() == [_is_multiple(value, divisor) for value in VALUES.values()]
    for text in random_strings(language, 30):
        assert NUMERAL.fullmatch(text.decode())
        assert _is_multiple(Fraction(text.decode()), divisor)


@settings(max_examples=150)
@given(
    st.integers(1, 2000),
    st.integers(-6, 4),
    st.integers(-(10**12), 10**12),
    st.integers(-2, 2),
    st.integers(0, 3),
)
@example(75, -4, 3, 0, 2)
@example(2, 3, 5, 0, 0)
def test_multiples_and_their_neighbors(a: int, e: int, times: int, off: int, zeros: int) -> None:
    divisor = Decimal(a).scaleb(e)
    scale = 10 ** max(-e, 0)
    value = Fraction(a * times * 10 ** max(e, 0) + off, scale)
    digits = max(-e, 0) + zeros
    text = f"{int(abs(value) * 10**digits):0{digits + 1}d}"
    text = f"{text[:-digits]}.{text[-digits:]}" if digits else text
    text = f"-{text}" if value < 0 else text
    assert Fraction(text) == value
    assert multiples(divisor).accepts(text) == _is_multiple(value, str(divisor))


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
