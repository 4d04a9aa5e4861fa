"""Readers of records from files and the hub, for all tasks.

A malformed record, including one with invalid UTF-8, is skipped and reported with its position and
the reason. A command that skipped more than a given share of records fails at its end
(`at_most_skipped`). A source without a single well-formed record is refused. Byte order marks are
ignored.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

_LOG = logging.getLogger(__name__)
R = TypeVar("R")
RecordOf = Callable[[Any, str], R]
"""Function that makes a record from a parsed row and a default id, or raises `ValueError`."""


class DataError(ValueError):
    """Raised if records can't be read: a missing file, invalid JSON, or no well-formed record."""


@dataclass(frozen=True)
class SkippedRecord:
    """A malformed record: line number or position in the list, from 1, and the reason."""

    position: int
    reason: str


@dataclass(frozen=True)
class ReadResult(Generic[R]):
    """The records of a source, and the records that were skipped."""

    records: tuple[R, ...]
    skipped: tuple[SkippedRecord, ...] = ()
    total: int = 0  # number of records in the source; 0 for the sum of both fields

    @property
    def share_skipped(self) -> float:
        """Share of malformed records, from 0 to 1."""
        total = self.total or len(self.records) + len(self.skipped)
        return len(self.skipped) / total if total else 0.0

    def part(self, offset: int, count: int) -> ReadResult[R]:
        """Return `count` records after the first `offset`; raise `DataError` if there are none."""
        records = self.records[offset : offset + count]
        if not records:
            raise DataError(
                f"expected data.offset to be less than the number of records, {len(self.records)}, "
                f"got {offset}"
            )
        return ReadResult(records, self.skipped, self.total)


_LOSSES: ContextVar[list[tuple[float, str]] | None] = ContextVar("losses", default=None)
"""Share of malformed records of each source that was read, with a message."""


@contextmanager
def at_most_skipped(key: str, share: float) -> Iterator[None]:
    """Fail on exit if a source read in this context skipped too many records.

    Args:
        key: setting with the share, for the message.
        share: largest share of skipped records, from 0 to 1.

    Raises:
        DataError: a source skipped more; the message has their number and the first one.
    """
    losses: list[tuple[float, str]] = []
    token = _LOSSES.set(losses)
    try:
        yield
    finally:
        _LOSSES.reset(token)
    most, words = max(losses, default=(0.0, ""))
    if most > share:
        raise DataError(
            f"expected at most {key}={share:g} of the records to be malformed, but {words}; "
            f"correct the records, or raise {key}"
        )


def read_file(
    path: str | Path, record_of: RecordOf[R], needs: str, *, prefix: str = ""
) -> ReadResult[R]:
    """Read the records of a file: one JSON list if it is named *.json, else JSON lines.

    Args:
        path: the file.
        record_of: makes a record.
        needs: description of the required fields.
        prefix: prefix of default ids in a list, before the number.

    Raises:
        DataError: the file doesn't exist, is named *.json and isn't a JSON list, or has no
            well-formed record.
    """
    if Path(path).suffix != ".json":
        # `splitlines` would also split at line separators within JSON strings.
        lines = enumerate(read_text(path, errors="surrogateescape").split("\n"), 1)
        rows = ((number, str(number), line) for number, line in lines if line.strip())
        return collect(rows, record_of, str(path), needs)
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"expected JSON in {path}, got {error}; if it has JSON lines, name it *.jsonl"
        ) from error
    if not isinstance(values, list):
        raise DataError(f"expected a list of records in {path}, got a {type(values).__name__}")
    named = ((number, f"{prefix}{number}", row) for number, row in enumerate(values, 1))
    return collect(named, record_of, str(path), needs)


def read_hub(
    name: str, split: str, record_of: RecordOf[R], needs: str, limit: int | None = None
) -> ReadResult[R]:
    """Read the first `limit` rows (by default all) of a hub data set with `datasets`.

    Raises:
        DataError: the data set can't be loaded or has no well-formed record.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no network, no such data set or split, or no access
        raise DataError(
            f"{name!r} (split {split!r}) cannot be loaded: {error}; check the name and the "
            "network, log in with `hf auth login` where access must be granted, or give a file "
            "instead"
        ) from error
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    named = ((number, str(number), row) for number, row in enumerate(rows, 1))
    return collect(named, record_of, name, needs)


def check_fields(row: Any, names: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a parsed row; raise a `ValueError` if it isn't an object or lacks a field."""
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a record to be a JSON object, got {type(row).__name__}")
    missing = [name for name in names if name not in row]
    if missing:
        raise ValueError(f"expected the fields {' and '.join(map(repr, missing))}, got none")
    return row


def refuse_unwritable(record: Any, answer: Any) -> None:
    """Refuse values that Python's JSON reader accepts but that can't be written as JSON in UTF-8.

    Args:
        record: a dataclass of plain values; lone surrogates are refused.
        answer: a JSON value; NaN and infinities are refused.

    Raises:
        ValueError: there is such a value.
    """
    try:
        json.dumps(answer, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"expected an answer with JSON values only, got another one ({error})"
        ) from error
    try:
        json.dumps(dataclasses.asdict(record), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"expected text that UTF-8 can represent, got {error}") from error


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a text file without byte order marks; raise `DataError` if it can't be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors=errors)
        return text.replace("\n\ufeff", "\n")  # byte order marks within concatenated files
    except FileNotFoundError as error:
        raise DataError(f"expected an existing file, got {path}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"line {line}, byte {error.start + 1} of the file"
        raise DataError(
            f"expected UTF-8 in {path}, got 0x{error.object[error.start]:02x} in {place}; save the "
            "file in UTF-8"
        ) from error


def collect(
    rows: Iterable[tuple[int, str, Any]], record_of: RecordOf[R], source: str, needs: str
) -> ReadResult[R]:
    """Make records of rows, given as position, default id, and a value or a JSON string.

    Raises:
        DataError: there is no well-formed record.
    """
    records, skipped = [], []
    for position, default_id, row in rows:
        try:
            value = _parse(row) if isinstance(row, str) else row
            records.append(record_of(value, default_id))
        except (ValueError, RecursionError) as error:
            skipped.append(SkippedRecord(position, str(error)))
    if not records:
        first = f"; the first ({skipped[0].position}): {skipped[0].reason}" if skipped else ""
        raise DataError(
            f"expected records with {needs} in {source}, got {len(skipped)} malformed and no "
            f"well-formed record{first}"
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
            losses.append((result.share_skipped, words))
    return result


def _parse(line: str) -> Any:
    """Parse a line of JSON whose invalid UTF-8 bytes were read as surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) & 0xFF
        raise ValueError(
            f"expected UTF-8, got 0x{byte:02x} at character {error.start + 1}"
        ) from None
    return json.loads(line)
