"""This module reads records from files and the hub, whatever a task's records are.

A malformed record, one with a byte that is not UTF-8 among them, is passed over and reported with
its position and the reason; it never ends a run half way. A command that lost more than a stated
share of its records so fails when it is done (`at_most_skipped`). A source without a single good
record is refused. Byte order marks are no part of what is read.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

_LOG = logging.getLogger(__name__)
R = TypeVar("R")
RecordOf = Callable[[Any, str], R]
"""It makes a record of a parsed row and of an id for a row without one; else `ValueError`."""


class DataError(ValueError):
    """Records that cannot be read: no such file, not JSON, or none of them well formed."""


@dataclass(frozen=True)
class SkippedRecord:
    """A malformed record: line number (from 1) or position in the list (from 1), and why."""

    position: int
    reason: str


@dataclass(frozen=True)
class ReadResult(Generic[R]):
    """The records that a source held, and those that were skipped."""

    records: tuple[R, ...]
    skipped: tuple[SkippedRecord, ...] = ()
    total: int = 0  # those that the source has, well formed or not; 0: these and the skipped ones

    @property
    def share_skipped(self) -> float:
        """Share of malformed records in the source, from 0 to 1."""
        total = self.total or len(self.records) + len(self.skipped)
        return len(self.skipped) / total if total else 0.0

    def part(self, offset: int, count: int) -> ReadResult[R]:
        """Keep `count` records after the first `offset`; `DataError` if none is left."""
        records = self.records[offset : offset + count]
        if not records:
            raise DataError(f"data.offset={offset} leaves none of the {len(self.records)} records")
        return ReadResult(records, self.skipped, self.total)


@dataclass(frozen=True)
class _Loss:
    """Malformed records of a data source: their share, and a message that describes them."""

    share: float
    words: str


_LOSSES: ContextVar[list[_Loss] | None] = ContextVar("losses", default=None)


@contextmanager
def at_most_skipped(key: str, share: float) -> Iterator[None]:
    """Fail at the end if a source that was read meanwhile lost more than a share of its records.

    Args:
        key: the setting that states the share, for the message.
        share: from 0 to 1.

    Raises:
        DataError: with the source, how many records, and the first of them.
    """
    losses: list[_Loss] = []
    token = _LOSSES.set(losses)
    try:
        yield
    finally:
        _LOSSES.reset(token)
    worst = max(losses, key=lambda loss: loss.share, default=None)
    if worst is not None and worst.share > share:
        raise DataError(
            f"{worst.words}. Results are without them; that is more than {key}={share:g} allows, "
            "so correct the records, or raise it"
        )


def read_lines(path: str | Path, record_of: RecordOf[R], needs: str) -> ReadResult[R]:
    """Read the records of a file with a JSON object a line.

    Args:
        record_of: makes a record.
        needs: what a record needs, in words.

    Raises:
        DataError: no such file, or no well-formed record in it.
    """
    # Not `splitlines`, which would also break at the line separators that JSON strings may hold.
    lines = enumerate(read_text(path, errors="surrogateescape").split("\n"), 1)
    rows = ((number, str(number), line) for number, line in lines if line.strip())
    return collect(rows, record_of, str(path), needs)


def read_list(
    path: str | Path, record_of: RecordOf[R], needs: str, *, what: str = "records", prefix: str = ""
) -> ReadResult[R]:
    """Read the records of a file that is one list in JSON.

    Args:
        path, record_of, needs: as for `read_lines`.
        what: the records, in words.
        prefix: of ids, before the number in the list.

    Raises:
        DataError: no such file, not a JSON list, or no well-formed record in it.
    """
    content = read_text(path)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}; JSON lines end in .jsonl") from error
    if not isinstance(rows, list):
        raise DataError(f"{path} holds a {type(rows).__name__}; a list of {what} is needed")
    named = ((number, f"{prefix}{number}", row) for number, row in enumerate(rows, 1))
    return collect(named, record_of, str(path), needs)


def read_hub(
    name: str, split: str, record_of: RecordOf[R], needs: str, limit: int | None = None
) -> ReadResult[R]:
    """Read the first `limit` rows of a set on the hub (all without one), through `datasets`.

    Raises:
        DataError: the set cannot be loaded, or holds no well-formed record.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no network, no such set, no such split, no access
        raise DataError(
            f"{name!r} (split {split!r}) cannot be loaded: {error}; check the name and the "
            "network, log in with `hf auth login` where access must be granted, or give a file "
            "instead"
        ) from error
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    named = ((number, str(number), row) for number, row in enumerate(rows, 1))
    return collect(named, record_of, name, needs)


def refuse_unwritable(record: Any, answer: Any) -> None:
    """Refuse what Python reads as JSON and no text in UTF-8 can hold: `ValueError`.

    Args:
        record: a dataclass of plain values, in which a lone surrogate is refused.
        answer: a value of JSON, in which NaN and infinities are refused.
    """
    try:
        json.dumps(answer, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"an answer holds a number that JSON does not have: {error}") from error
    try:
        json.dumps(dataclasses.asdict(record), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the record holds text that is not Unicode: {error}") from error


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a file of text, without byte order marks; `DataError` if that cannot be done."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors=errors)
        return text.replace("\n\ufeff", "\n")  # where files were put together
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}; give the path of an existing one") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"line {line}, byte {error.start + 1} of the file"
        raise DataError(
            f"{path} cannot be read: {place} is 0x{error.object[error.start]:02x}, which is not "
            "UTF-8; save it in that encoding"
        ) from error


def collect(
    rows: Iterable[tuple[int, str, Any]], record_of: RecordOf[R], source: str, needs: str
) -> ReadResult[R]:
    """Make records of rows, each with its position and an id for one that has none.

    A row that is a string is JSON.

    Raises:
        DataError: none of them is well formed.
    """
    records, skipped = [], []
    for position, default_id, row in rows:
        try:
            value = _parsed(row) if isinstance(row, str) else row
            records.append(record_of(value, default_id))
        except (ValueError, RecursionError) as error:
            skipped.append(SkippedRecord(position, str(error)))
    if not records:
        first = f"; the first ({skipped[0].position}): {skipped[0].reason}" if skipped else ""
        raise DataError(
            f"no well-formed record in {source}: {len(skipped)} malformed{first}. A record needs "
            f"{needs}"
        )
    result = ReadResult(tuple(records), tuple(skipped), len(records) + len(skipped))
    if skipped:
        words = (
            f"{source}: {len(skipped)} of {result.total} records ({result.share_skipped:.1%}) are "
            f"malformed and skipped; the first ({skipped[0].position}): {skipped[0].reason}"
        )
        _LOG.warning("%s", words)
        losses = _LOSSES.get()
        if losses is not None:
            losses.append(_Loss(result.share_skipped, words))
    return result


def _parsed(line: str) -> Any:
    """The value of a line of JSON, in which bytes that are not UTF-8 are surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) & 0xFF
        raise ValueError(f"character {error.start + 1} is 0x{byte:02x}, not UTF-8") from None
    return json.loads(line)
