"""This script says which gold queries the SQL language has, and what of it SQLite prepares.

    python -m scripts.check_sql ../shared/data/spider
    python -m scripts.check_sql ../shared/data/spider --any-join --vocabulary ranks.tiktoken

The folder has Spider's `tables.json`, JSON lines with `db_id` and `query` (`dev_*.jsonl`), and
perhaps SQLite files (`databases/<db_id>.sqlite`). For each database the widest dialect within
`--max-states` is compiled, and lifted if there is a vocabulary (a rank file). Gold queries are
written in the language's spelling (`experiments.sql.normalise`); a table says how many of each
database are in the language, and a list names the others with the reason. Then random queries of
each language are prepared by SQLite, on an empty database of the schema and on the file.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

import gcd
from experiments.sql.normalise import UnwritableQueryError, normalise
from gcd.automata.walks import RandomWalks

MAX_STATES = 56_000
"""With 900 classes of tokens, 200 MB of next states."""

_PATIENCE = (40, 120, 400)  # bytes of random queries before they turn to their end


@dataclass
class Checked:
    """What became of one database.

    Attributes:
        name: its `db_id`.
        dialect: the widest dialect that fits.
        states: of the byte automaton.
        compile_seconds: to build the automaton of that dialect.
        lifted: classes of tokens, megabytes of next states and seconds of the token automaton;
            None without a vocabulary.
        gold: how many gold queries there are.
        missed: (query, reason) of those that are not in the language.
        drawn: how many random queries were prepared.
        refused: (query, message) of those that SQLite refused.
    """

    name: str
    dialect: gcd.SqlDialect
    states: int
    compile_seconds: float
    lifted: tuple[int, float, float] | None = None
    gold: int = 0
    missed: list[tuple[str, str]] = field(default_factory=list)
    drawn: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def check_database(
    name: str,
    schema: gcd.SqlSchema,
    gold: Sequence[str],
    *,
    wanted: gcd.SqlDialect,
    max_states: int,
    vocabulary: gcd.Vocabulary | None = None,
    walks: int = 0,
    file: Path | None = None,
) -> Checked:
    """Compile the language of one schema, look for the gold queries in it, try random ones."""
    dialect = gcd.widest_dialect(schema, max_states, wanted)
    start = time.perf_counter()
    language = gcd.sql(schema, dialect)
    checked = Checked(name, dialect, language.num_states, time.perf_counter() - start)
    if vocabulary is not None:
        start = time.perf_counter()
        lifted = gcd.lift(language, vocabulary)
        seconds = time.perf_counter() - start
        checked.lifted = (lifted.num_classes, lifted.delta.nbytes / 1e6, seconds)
    for query in gold:
        checked.gold += 1
        if reason := why_missing(query, schema, language):
            checked.missed.append((" ".join(query.split()), reason))
    source = RandomWalks(language)
    rng = random.Random(name)
    for _ in range(walks):
        query = source.draw(rng, rng.choice(_PATIENCE), stop=0.1).decode()
        checked.drawn += 1
        if complaint := complaint_of_sqlite(query, schema, file):
            checked.refused.append((query, complaint))
    return checked


def why_missing(query: str, schema: gcd.SqlSchema, language: gcd.Automaton) -> str | None:
    """Return why a query is not in the language, None if it is."""
    try:
        written = normalise(query, schema)
    except UnwritableQueryError as error:
        return f"not expressible: {error}"
    if language.accepts(written):
        return None
    raw = written.encode()
    length = next(i for i in range(len(raw), -1, -1) if language.run(raw[:i]) >= 0)
    before, after = (part.decode(errors="replace") for part in (raw[:length], raw[length:]))
    return f"not in this dialect: after {before[-40:]!r} it has no {after[:30]!r}"


def complaint_of_sqlite(query: str, schema: gcd.SqlSchema, file: Path | None) -> str | None:
    """Return why SQLite does not prepare a query, on empty tables or on the file, or None."""
    for connection in _connections(schema, file):
        with closing(connection):
            try:
                connection.execute(f"EXPLAIN {query}")
            except sqlite3.Error as error:
                return str(error)
    return None


def _connections(schema: gcd.SqlSchema, file: Path | None) -> Iterator[sqlite3.Connection]:
    empty = sqlite3.connect(":memory:")
    for statement in schema.create_statements():
        empty.execute(statement)
    yield empty
    if file is not None:
        yield sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)


def report(results: Sequence[Checked]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield "| database | in the language | states | compiled | classes | lifted | prepared |"
    yield "|---|---|---|---|---|---|---|"
    for r in results:
        classes, lifted = "-", "-"
        if r.lifted is not None:
            classes = str(r.lifted[0])
            lifted = f"{r.lifted[2]:.1f} s, {r.lifted[1]:.0f} MB"
        yield (
            f"| {r.name} | {r.gold - len(r.missed)} of {r.gold} | {r.states} | "
            f"{r.compile_seconds:.1f} s | {classes} | {lifted} | "
            f"{r.drawn - len(r.refused)} of {r.drawn} |"
        )
    gold, missed = sum(r.gold for r in results), sum(len(r.missed) for r in results)
    drawn, refused = sum(r.drawn for r in results), sum(len(r.refused) for r in results)
    yield ""
    share = 1 - missed / max(gold, 1)
    yield f"gold queries in the language: {gold - missed} of {gold} ({share:.1%})"
    yield f"random queries that SQLite prepares: {drawn - refused} of {drawn}"
    yield ""
    for r in results:
        yield f"{r.name}: {r.dialect}"
    yield ""
    for r in results:
        for (query, reason), times in Counter(r.missed).items():
            yield f"{r.name} ({times}x): {query}\n    {reason}"
        for query, message in r.refused:
            yield f"{r.name}: SQLite refuses {query}\n    {message}"


def read_gold(folder: Path) -> Mapping[str, list[str]]:
    """Return the gold queries of each database, in the order of the files."""
    gold: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            gold.setdefault(record["db_id"], []).append(record["query"])
    return gold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--databases", nargs="*", help="only these")
    parser.add_argument("--vocabulary", type=Path, help="a rank file (.tiktoken) to lift with")
    parser.add_argument("--walks", type=int, default=500, help="random queries for each database")
    parser.add_argument("--max-states", type=int, default=MAX_STATES)
    parser.add_argument("--any-join", action="store_true", help="where it fits")
    options = parser.parse_args()
    vocabulary = None
    if options.vocabulary is not None:
        size = sum(1 for _ in options.vocabulary.open("rb"))
        vocabulary = gcd.Vocabulary.from_ranks(options.vocabulary, eos_ids=[size], size=size + 1)
    gold = read_gold(options.folder)
    results = []
    for name in tqdm(options.databases or list(gold), disable=None):
        file = options.folder / "databases" / f"{name}.sqlite"
        results.append(
            check_database(
                name,
                gcd.sql_schema(options.folder / "tables.json", name),
                gold.get(name, []),
                wanted=gcd.SqlDialect(any_join=options.any_join),
                max_states=options.max_states,
                vocabulary=vocabulary,
                walks=options.walks,
                file=file if file.exists() else None,
            )
        )
    print("\n".join(report(results)))


if __name__ == "__main__":
    main()
