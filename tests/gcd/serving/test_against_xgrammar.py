"""Our masks and xgrammar's, token by token: equal, or different for a cause that a page lists.

Both matchers get the same tokens, among those that both allow. The budget exceeds the length of any
walk, so that it never restricts, because xgrammar has no budget.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcd

xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = ROOT.parent / "shared" / "data" / "public_schemas"
NUM_PUBLIC, NUM_EQUAL = 50, 38  # as docs/serving.md says

LONGER = (
    '{" ": ":" "," ", "} "] [{ }] }, ":{" ":[ [] {} "" name the type true false null 12 00 .5 1, '
    '0} e+ -1 \\u \\" \\n é 20'
)
SINGLE = [bytes([i]) for i in range(256)]
TOKENS = [*SINGLE, *(t.encode() for t in LONGER.split()), b", ", b": ", b" a", b""]
EOS = len(TOKENS) - 1
VOCABULARY = gcd.Vocabulary.from_bytes(TOKENS, [EOS])
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo(TOKENS, vocab_size=len(TOKENS), stop_token_ids=[EOS]), max_threads=1
)


class Ours:
    """A matcher with xgrammar's names of the calls that are compared."""

    def __init__(self, matcher: gcd.Matcher) -> None:
        self._matcher = matcher
        self.reset, self.accept_token = matcher.reset, matcher.advance
        self.is_terminated = lambda: matcher.is_finished

    def accept_string(self, text: bytes) -> bool:
        return all(self._matcher.advance(byte) for byte in text)

    def fill_next_token_bitmask(self, rows: Any) -> None:
        self._matcher.fill_mask(rows[0])


Pair = tuple[Ours, Any]


def pair(schema: Any) -> Pair:
    """Configure both engines for compact JSON with only declared members."""
    automaton = gcd.lift(gcd.json_schema(schema, unknown="ignore"), VOCABULARY)
    grammar = COMPILER.compile_json_schema(
        json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=True
    )
    return Ours(gcd.Matcher(automaton, budget=10_000)), xgrammar.GrammarMatcher(grammar)


def allowed(matcher: Any) -> set[int]:
    row = np.zeros((1, (len(TOKENS) + 31) // 32), np.int32)
    matcher.fill_next_token_bitmask(row)
    ids = np.flatnonzero((row[0][:, None] >> np.arange(32)) & 1)
    return set(ids[ids < len(TOKENS)].tolist())  # bits past the vocabulary have no meaning


def agree(matchers: Pair, seed: str, steps: int = 30) -> bool:
    """Return whether all masks on a random walk are equal, up to the first difference."""
    rng = random.Random(seed)
    for matcher in matchers:
        matcher.reset()
    for _ in range(steps):
        ours, theirs = (allowed(matcher) for matcher in matchers)
        if ours != theirs:
            return False
        tokens = sorted(ours)
        closing = [t for t in tokens if TOKENS[t][:1] in (b'"', b"}", b"]", b",")]
        token = rng.choice(closing if closing and rng.random() < 0.3 else tokens)
        assert all(matcher.accept_token(token) for matcher in matchers)
        assert len({matcher.is_terminated() for matcher in matchers}) == 1
        if token == EOS:
            break
    return True


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)[:2]}


REFERENCE = {"$ref": "#/$defs/b"}
STRING, BOOLEAN = {"type": "string"}, {"type": "boolean"}
AGREED: dict[str, Any] = {
    "constants": {"enum": ["on", "off", "only", 7, 71, None, True]},
    "names that begin alike": record(name=BOOLEAN, names={"type": "null"}, na=BOOLEAN, n=BOOLEAN),
    "all optional": {"type": "object", "properties": {"a": BOOLEAN, "b": BOOLEAN, "c": BOOLEAN}},
    "counted elements": {"type": "array", "items": BOOLEAN, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [BOOLEAN, {"type": "null"}], "items": False},
    "any of": {"anyOf": [BOOLEAN, record(a=BOOLEAN), {"type": "null"}]},
    "integers around zero": {"type": "integer", "minimum": -12, "maximum": 3},
    "number": {"type": "array", "items": {"type": "number"}},
    "reference": {
        "$ref": "#/$defs/a",
        "$defs": {"a": record(b={"$ref": "#/$defs/c"}), "c": BOOLEAN},
    },
    "nested": record(a=record(b=record(c=BOOLEAN, d={"type": "null"})), e={"enum": ["x", "y"]}),
}


@pytest.mark.parametrize("name", AGREED)
def test_masks_are_equal_where_both_read_a_schema_alike(name: str) -> None:
    matchers = pair(AGREED[name])
    for seed in range(3):
        assert agree(matchers, f"{name} {seed}")


# For each cause: a schema, a text that both allow, the next byte that only one allows, and which.
WITNESSES: dict[str, tuple[Any, bytes, bytes, str]] = {
    "digits": ({"type": "number", "minimum": 0.5}, b"1.546912", b"0", "ours"),
    "escapes": ({"type": "string", "maxLength": 9}, b'"a', b"\\", "ours"),
    "raw": ({"type": "string", "maxLength": 9}, b'"a', b"\x01", "theirs"),
    "surrogates": (STRING, b'"\xed', b"\xa0", "theirs"),
    "spellings": (record(é=BOOLEAN), b'{"', b"\\", "ours"),
    "anchors": ({"type": "string", "pattern": "b"}, b'"', b"a", "ours"),
    "formats": ({"type": "string", "format": "date"}, b'"2023-02-', b"3", "theirs"),
    "depth": (record(a={}), b'{"a":[[[', b"[", "theirs"),
    "implied type": ({"properties": {"a": BOOLEAN}}, b"", b"1", "ours"),
    "ignored": ({"type": "boolean", "not": {"const": True}}, b"", b"t", "theirs"),
    "one of": ({"oneOf": [{"enum": [1]}, {"enum": [1, 2]}]}, b"", b"1", "theirs"),
    "enum": ({"type": "boolean", "enum": [True, 5]}, b"", b"5", "theirs"),
    "required": ({**record(a=BOOLEAN), "required": ["a", "b"]}, b'{"a":true', b"}", "theirs"),
}


def test_every_cause_on_the_page_has_a_witness() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("### Comparison of masks with xgrammar")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \|", table, re.M)) == {"cause", *WITNESSES}


@pytest.mark.parametrize("name", WITNESSES)
def test_each_cause_is_real(name: str) -> None:
    schema, text, byte, who = WITNESSES[name]
    matchers = pair(schema)
    assert [matcher.accept_string(text) for matcher in matchers] == [True, True]
    takes = [matcher.accept_string(byte) for matcher in matchers]
    assert takes == [who == "ours", who == "theirs"]


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"no public schemas in {PUBLIC}")
@pytest.mark.usefixtures("unchecked_annotations")
def test_masks_on_most_public_schemas_are_equal() -> None:
    """Compare on the first fifty of every fifth small file that both engines compile quickly."""
    files = [path for path in sorted(PUBLIC.glob("*.json")) if path.stat().st_size < 4000]
    compared: dict[str, bool] = {}
    for path in files[::5]:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            with gcd.work_limit(10_000_000):
                matchers = pair(schema)
        except (gcd.ConstraintError, RuntimeError):  # xgrammar refuses with the latter
            continue
        compared[path.stem] = agree(matchers, path.stem)
        if len(compared) == NUM_PUBLIC:
            break
    assert len(compared) == NUM_PUBLIC
    assert sum(compared.values()) >= NUM_EQUAL
