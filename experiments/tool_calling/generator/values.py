"""Argument values at random: what a request can ask for, whatever its domain.

Every value comes with the text by which a request names it. But for booleans and lists the text is
the value as it is written in the answer, so answering is copying.

A fifth of all strings and numbers is held out: which, is a hash of the text. Training never sees
these as arguments, evaluation nothing else. (Booleans and the options of an enumeration are too few
to hold out; the latter belong to their tools.)
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.tool_calling.generator.words import pseudo_word, word

_TRIES = 2000


@dataclass(frozen=True)
class Value:
    """A value and the text by which a request names it."""

    value: Any
    text: str


def is_held_out(text: str) -> bool:
    """Whether a value with this text is kept for evaluation."""
    return zlib.crc32(text.encode()) % 5 == 0


def draw(make: Callable[[], Value], held_out: bool) -> Value:
    """The first value from `make` on the wanted side of the split."""
    for _ in range(_TRIES):
        value = make()
        if isinstance(value.value, bool) or is_held_out(value.text) == held_out:
            return value
    side = "held out" if held_out else "for training"
    raise ValueError(f"{_TRIES} values, none of them {side}: widen the range or the pool")


def random_value(rng: random.Random, kind: str) -> Value:
    """A training value of an xLAM type: str, int, float, bool or List[...] of one of them."""
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        return list_value([random_value(rng, inner) for _ in range(rng.randint(2, 3))])
    return draw(lambda: _random_scalar(rng, kind), held_out=False)


def _random_scalar(rng: random.Random, kind: str) -> Value:
    if kind == "bool":
        flag = rng.random() < 0.5
        return Value(flag, rng.choice(["true", "on", "yes"] if flag else ["false", "off", "no"]))
    if kind == "int":
        number = rng.randint(0, 10 ** rng.randint(1, 4))
        return Value(number, str(number))
    if kind == "float":
        decimal = float(f"{rng.uniform(0, 10 ** rng.randint(0, 3)):.{rng.randint(1, 2)}f}")
        return Value(decimal, str(decimal))
    text = random_string(rng)
    return Value(text, text)


def list_value(items: list[Value]) -> Value:
    """Several values as one list: `a, b and c`."""
    texts = [item.text for item in items]
    return Value([item.value for item in items], ", ".join(texts[:-1]) + " and " + texts[-1])


def random_string(rng: random.Random) -> str:
    """Words, names, codes, dates, times, addresses, paths."""
    kind = rng.random()
    if kind < 0.30:
        return word(rng)
    if kind < 0.50:
        return " ".join(word(rng).capitalize() for _ in range(rng.randint(1, 2)))
    if kind < 0.62:
        return " ".join(word(rng) for _ in range(rng.randint(2, 3)))
    if kind < 0.68:
        letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(2, 4)))
        return letters if rng.random() < 0.5 else f"{letters}-{rng.randint(1, 9999)}"
    if kind < 0.75:
        return "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randint(3, 7)))
    if kind < 0.83:
        return f"{rng.randint(1990, 2034)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    if kind < 0.88:
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind < 0.92:
        return f"{pseudo_word(rng)}@{pseudo_word(rng)}.{rng.choice(['com', 'org', 'net', 'io'])}"
    if kind < 0.95:
        return f"{pseudo_word(rng)}_{word(rng)}"
    if kind < 0.98:
        return f"/{word(rng)}/{pseudo_word(rng)}.{rng.choice(['txt', 'csv', 'py', 'png'])}"
    return f"{word(rng).capitalize()}'s {word(rng)}"
