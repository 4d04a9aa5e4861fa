"""Code shared by benchmarks: vocabularies, schemas, requests, and tables."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gcd
from experiments.models import ROOT
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import ToolRecord, read_xlam

XLAM = ROOT / "data" / "xlam" / "records_500_599.jsonl"


def with_ranks(doc: str | None) -> argparse.ArgumentParser:
    """Make the parser of a benchmark over a tiktoken vocabulary."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("ranks", type=Path, help="vocabulary: lines of `base64 rank`")
    return parser


def read_ranks(path: Path) -> gcd.Vocabulary:
    """Read a vocabulary from a tiktoken file; EOS is the id after the file's last token."""
    unsized = gcd.Vocabulary.from_ranks(path, eos_ids=[])
    return gcd.Vocabulary.from_ranks(path, eos_ids=[unsized.size])


def tool_calls(style: str, path: Path = XLAM) -> Iterator[tuple[ToolRecord, gcd.Automaton]]:
    """Yield xLAM's records with the languages of their calls; refused records are skipped."""
    for record in read_xlam(path).records:
        try:
            yield record, gcd.tool_calls(to_json_schema_tools(record.tools), style=style)
        except gcd.ConstraintError:
            continue


def public_schemas(folder: Path, *, shuffled: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the names and schemas of a folder, by name or in a fixed random order."""
    paths = sorted(folder.glob("*.json"))
    if shuffled:
        random.Random(0).shuffle(paths)
    for path in paths:
        yield path.stem, json.loads(path.read_text("utf-8-sig"))["schema"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of an earlier run from JSON lines; make the folder if there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(each) for each in text.splitlines()]


def head(*columns: str) -> str:
    """Return the header of a Markdown table."""
    return f"{line(*columns)}\n{'|---' * len(columns)}|"


def line(*cells: Any) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"
