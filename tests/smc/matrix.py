"""Covering arrays: rows of a test matrix in which all pairs of values meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any


def covering(*given: dict[str, Any], **axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows such that any two values of different axes occur together in one of them.

    Pairs of values of `given` rows count as covered; these rows aren't returned.
    """

    def pairs(row: dict[str, Any]) -> set[frozenset[tuple[str, Any]]]:
        return set(map(frozenset, itertools.combinations(row.items(), 2)))

    both = itertools.combinations(axes, 2)
    waiting = [{a: x, b: y} for a, b in both for x in axes[a] for y in axes[b]]
    missing = set().union(*map(pairs, waiting)).difference(*map(pairs, given))
    drawn, rows = random.Random(0), []
    for row in waiting:
        if not pairs(row) <= missing:
            continue
        for axis in drawn.sample([*axes], len(axes)):
            if axis not in row:
                values = drawn.sample([*axes[axis]], len(axes[axis]))
                row[axis] = max(values, key=lambda v: len(pairs({**row, axis: v}) & missing))
        missing -= pairs(row)
        rows.append({axis: row[axis] for axis in axes})
    return rows
