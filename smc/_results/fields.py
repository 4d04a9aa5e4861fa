"""Marginal distributions of the values in JSON answers, one for each JSON pointer (RFC 6901).

The probability that a field has the value v is the sum over the answers with this value:

    P(field = v) = sum of P(y) over the answers y whose document has v at the pointer
    P(absent)    = sum of P(y) over the answers y whose document has no value at the pointer

Every answer either has exactly one value at the pointer or none, so each field's probabilities sum
to one.

Bounds on the evidence give an interval for the probability of any set of texts. Let f be the
model's probability of the found texts in the set, f' its probability of the other found texts, and
upper the upper bound on the evidence. Then

    f / upper  <=  P(set)  <=  1 - f' / upper

Cost: one pass over the documents.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from smc._inference.bounds import Bounds

Interval = tuple[float, float]

NARROW = 0.1
"""Largest width of bounds that count as a known probability."""
SHOWN = 60
"""Maximum number of characters of a text in `repr`."""
_VALUES_SHOWN = 3
"""Maximum number of a field's values in `repr`."""
_FIELDS_SHOWN = 20
"""Maximum number of fields in `repr`."""
_MOST_DIGITS = 40
"""Maximum number of trailing zeros or decimal places of numbers written without an exponent."""


@dataclass(frozen=True, repr=False)
class FieldValue:
    """A value of a field, with its probability.

    Attributes:
        value: the value as canonical JSON: without whitespace, members sorted by name, numbers in
            one form (`1.0` and `1e0` are written `1`).
        probability: the sum of the probabilities of the answers with this value. If the answers
            were computed instead of drawn, it is a share of those found, and only `interval` holds.
        error: standard error of `probability`, as in `Reliability.probability_errors`.
        interval: interval that certainly contains the exact posterior probability; None if the
            evidence has no bounds.
    """

    value: str
    probability: float
    error: float
    interval: Interval | None

    def load(self) -> Any:
        """Return the value as a Python object."""
        return json.loads(self.value)

    def __repr__(self) -> str:
        shown = show_probability(self.probability, self.interval, self.error)
        return f"{shorten(self.value)} {shown}"


@dataclass(frozen=True, repr=False)
class Field:
    """Distribution of a field's value over the answers of a posterior.

    Attributes:
        pointer: JSON pointer of the field; `""` for the whole answer.
        values: the distinct values, the most probable first.
        absent: the probability that an answer has no value at this pointer.
        absent_error: standard error of `absent`.
        absent_interval: interval that certainly contains the exact probability of no value; None if
            the evidence has no bounds.
    """

    pointer: str
    values: tuple[FieldValue, ...]
    absent: float
    absent_error: float
    absent_interval: Interval | None

    @property
    def best(self) -> FieldValue:
        """The most probable value."""
        return self.values[0]

    @property
    def is_leaf(self) -> bool:
        """True if at least one value is a scalar, an empty array or an empty object."""
        return any(each.value[0] not in "[{" or len(each.value) == 2 for each in self.values)

    def __repr__(self) -> str:
        """Return the most probable values, each with its probability and its interval."""
        shown = [repr(each) for each in self.values[:_VALUES_SHOWN]]
        if len(self.values) > _VALUES_SHOWN:
            shown.append(f"{len(self.values) - _VALUES_SHOWN} more")
        if self.absent > 0:
            absent = show_probability(self.absent, self.absent_interval, self.absent_error)
            shown.append(f"absent {absent}")
        return ", ".join(shown)


class Fields(dict[str, Field]):
    """The fields of a posterior by JSON pointer, shown one per line."""

    def __repr__(self) -> str:
        lines = [f"{pointer!r}: {self[pointer]}" for pointer in list(self)[:_FIELDS_SHOWN]]
        if len(self) > _FIELDS_SHOWN:
            lines.append(f"and {len(self) - _FIELDS_SHOWN} more fields")
        return "\n".join(lines) or "{}"


def shorten(text: str) -> str:
    """Return a text, or its beginning if it is too long to show."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def show_probability(probability: float, interval: Interval | None, error: float = 0.0) -> str:
    """Write a probability with three digits, and its interval if one is known.

    Only the interval is written if the standard error is as large as its width, as that of a share
    of the answers that were computed instead of drawn.
    """
    shown = f"{probability:.3f}"
    if interval is None:
        return shown
    low, high = interval
    is_unknown = high - low > NARROW and error > 0.999 * (high - low)
    return f"{'' if is_unknown else f'{shown} '}[{low:.3f}, {high:.3f}]"


def fields_of(
    texts: Sequence[str],
    probabilities: Sequence[float],
    errors: Callable[[Sequence[int], int], Sequence[float]],
    log_found: Sequence[float],
    bounds: Bounds | None,
) -> Fields:
    """Return the field at every JSON pointer of any answer, in document order.

    Args:
        bounds: bounds on the evidence; None if there are none.
    """
    holders: dict[str, dict[str, list[int]]] = {}
    for number, text in enumerate(texts):
        for pointer, value in _places("", _parse(text)):
            holders.setdefault(pointer, defaultdict(list))[value].append(number)

    def interval(numbers: Sequence[int]) -> Interval | None:
        return None if bounds is None else bounds.of_texts(log_found[i] for i in numbers)

    def field(pointer: str, by_value: dict[str, list[int]]) -> Field:
        group = [len(by_value)] * len(texts)  # the last group: texts without a value at the pointer
        for number, members in enumerate(by_value.values()):
            for i in members:
                group[i] = number
        *of_values, absent_error = errors(group, len(by_value) + 1)
        values = [
            FieldValue(
                value, math.fsum(probabilities[i] for i in numbers), error, interval(numbers)
            )
            for (value, numbers), error in zip(by_value.items(), of_values, strict=True)
        ]
        absent = [i for i in range(len(texts)) if group[i] == len(by_value)]
        return Field(
            pointer,
            tuple(sorted(values, key=lambda each: (-each.probability, each.value))),
            math.fsum(probabilities[i] for i in absent),
            absent_error,
            interval(absent),
        )

    return Fields({pointer: field(pointer, by_value) for pointer, by_value in holders.items()})


def canonical_json(value: Any) -> str:
    """Write a parsed value as JSON in one form, so that equal values have equal texts.

    See `FieldValue.value`.
    """
    if isinstance(value, dict):
        members = sorted(value.items())
        return f"{{{','.join(f'{_string(k)}:{canonical_json(v)}' for k, v in members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(canonical_json, value))}]"
    if isinstance(value, str):
        return str(value) if isinstance(value, _Huge) else _string(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _number(value if isinstance(value, Decimal) else Decimal(repr(value)))


def leaves(text: str) -> tuple[str, dict[str, str]]:
    """Return the canonical value of a text, and that at each pointer without values below it."""
    found = dict(_places("", _parse(text)))
    return found[""], {
        at: value for at, value in found.items() if value[0] not in "[{" or len(value) == 2
    }


def _parse(text: str) -> Any:
    """Parse an answer as JSON; numbers become `Decimal`, which preserves all their digits."""
    try:
        return json.loads(text, parse_float=_read, parse_int=_read, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ValueError(
            f"expected JSON answers, got {shown!r}: {error}; use a constraint whose answers are "
            "JSON, such as gcd.json_schema(...)"
        ) from error


class _Huge(str):
    """A number whose exponent is too large for `Decimal`, as it is written."""


def _read(text: str) -> Decimal | _Huge:
    """Return a number with all its digits."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return _Huge(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"expected a JSON number, got {constant}")


def _places(pointer: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the JSON pointer and the canonical text of a value, and of all values nested in it."""
    yield pointer, canonical_json(value)
    members: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        members = ((k.replace("~", "~0").replace("/", "~1"), v) for k, v in value.items())
    elif isinstance(value, list):
        members = ((str(i), v) for i, v in enumerate(value))
    for token, below in members:
        yield from _places(f"{pointer}/{token}", below)


def _string(text: str) -> str:
    """Write a string as JSON; a lone surrogate is escaped, because UTF-8 can't encode it."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= c <= "\udfff" for c in text))


def _number(value: Decimal) -> str:
    """Write a number without trailing zeros.

    Numbers with more than `_MOST_DIGITS` zeros or decimal places are written with an exponent.
    """
    if value == 0:
        return "0"
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    kept = written.rstrip("0")
    exponent += len(written) - len(kept)
    minus = "-" if sign else ""
    if 0 <= exponent <= _MOST_DIGITS:
        return f"{minus}{kept}{'0' * exponent}"
    if -_MOST_DIGITS <= exponent < 0:
        whole, part = kept[:exponent], kept[exponent:].rjust(-exponent, "0")
        return f"{minus}{whole or '0'}.{part}"
    return f"{minus}{kept}e{exponent}"
