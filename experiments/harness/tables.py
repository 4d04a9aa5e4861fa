"""Cells of tables: numbers, shares, intervals; a table in Markdown or in plain columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Table = list[dict[str, Any]]
"""Rows with equal keys, the titles of the columns."""


def number(value: float | None, digits: int = 2) -> str:
    """Write a number with so many digits; a dash for what is not known."""
    return "–" if value is None else f"{value:.{digits}f}"


def with_interval(
    record: Mapping[str, Any], key: str, digits: int = 1, scale: float = 100, sign: str = ""
) -> str:
    """Write a figure of a summary, and the ends of its interval in brackets.

    Args:
        record: has the figure under the key, and its ends under `key_low` and `key_high`, if any.
        key: of the figure; a dash stands for None.
        digits: after the point.
        scale: what is multiplied with; 100 makes percent of shares.
        sign: "+" for differences.
    """
    figures = [record.get(f"{key}{end}") for end in ("", "_low", "_high")]
    mean, low, high = (
        None if each is None else f"{scale * each:{sign}.{digits}f}" for each in figures
    )
    if mean is None:
        return "–"
    return mean if low is None or high is None else f"{mean} [{low}, {high}]"


def without_constants(table: Table) -> tuple[Table, str]:
    """Take out what is the same in every row, or the same as another column, and say so.

    Returns:
        The other columns, and a sentence; it is empty where nothing was taken out.
    """
    if len(table) < 2:
        return table, ""
    columns = {name: [str(row[name]) for row in table] for name in table[0]}
    said = [f"{name} {cells[0]}" for name, cells in columns.items() if len(set(cells)) == 1]
    kept = {name: cells for name, cells in columns.items() if len(set(cells)) > 1}
    shares: list[str] = []
    for name in [name for name in kept if name.endswith("%")]:
        other = next((share for share in shares if kept[share] == kept[name]), None)
        if other is None:
            shares.append(name)
        else:
            del kept[name]
            said.append(f"{name} as {other}")
    rest = [{name: row[name] for name in kept} for row in table]
    return rest, f"In every row: {', '.join(said)}." if said else ""


def as_markdown(table: Table) -> str:
    """Write a table in Markdown, its columns aligned so that the source reads well, too."""
    head, *rows = _padded(table)
    rule = "|" + "|".join("-" * (len(cell) + 2) for cell in head) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def as_columns(table: Table) -> str:
    """Write a table for a terminal, each column as wide as its longest cell."""
    return "\n".join("  ".join(row).rstrip() for row in _padded(table))


def _padded(table: Table) -> list[list[str]]:
    """The cells of the head and of each row, those of a column of one width."""
    cells = [list(table[0]), *(list(map(str, row.values())) for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]
