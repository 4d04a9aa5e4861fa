"""Our masks and xgrammar's, token by token: equal, or different for a listed cause.

Both matchers get the same tokens, among those that both allow. The budget exceeds the length of any
walk, so that it never restricts, because xgrammar has no budget. A token that only one of them
allows is reduced to the first byte on which they differ. The position of this byte (in which
string, number or separator, under which schema) and the engine that allows it determine the cause.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcd

xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = ROOT.parent / "shared" / "data" / "public_schemas"
NUM_PUBLIC = 50

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


# -- causes ---------------------------------------------------------------------------------

CAUSES = {
    "escapes": "strings with a pattern, format or length: xgrammar excludes escapes in them",
    "raw": (
        "strings with a pattern or length: xgrammar allows control characters, which JSON does not"
    ),
    "surrogates": "xgrammar allows the bytes of lone surrogates, which are not valid UTF-8",
    "anchors": (
        "by the standard a pattern may match anywhere in the text; xgrammar anchors it at both ends"
    ),
    "formats": "`format`: 31 February, leap seconds, the grammar of a URI and so on",
    "depth": (
        "values that the schema doesn't describe: nested up to `max_depth` here, without a "
        "limit in xgrammar"
    ),
    "implied type": "a keyword for one type allows all other types; xgrammar excludes them",
    "ignored": (
        "xgrammar does not enforce `not`, `if`, `multipleOf`, `uniqueItems` and similar keywords"
    ),
    "one of": "`oneOf` means exactly one; xgrammar treats it as `anyOf`",
    "enum": (
        "an `enum` beside other keywords: xgrammar allows values that don't satisfy the other "
        "keywords"
    ),
    "required": (
        "names in `required` that are not in `properties`: xgrammar treats them as optional"
    ),
    "spellings": (
        "names and constants that are not ASCII can be written with or without escapes; "
        "xgrammar allows one way"
    ),
    "digits": "numbers with bounds: xgrammar limits the digits after the decimal point",
}
IGNORED = {
    "not", "if", "then", "else", "multipleOf", "uniqueItems", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "propertyNames", "minContains", "maxContains",
}  # fmt: skip
_IN_STRINGS = {"pattern", "format", "minLength", "maxLength"}
_BY_TYPE = {
    "object": {"properties", "required", "additionalProperties", "patternProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": _IN_STRINGS,
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


@dataclass
class Place:
    """End of a text: the kind of value it is inside, and the path of members and elements."""

    path: list[str | int] = field(default_factory=list)
    expects: str = "value"  # or key, string, scalar, colon, after
    spelled: bytes = b""  # of the incomplete string, key, number or word


def place(text: bytes) -> Place:
    """Parse the beginning of a JSON text, with or without whitespace."""
    here, escaped = Place(), False
    containers: list[int] = []
    for byte in text:
        c = bytes([byte])
        if here.expects in ("string", "key in"):
            if escaped or c != b'"':
                here.spelled += c
                escaped = c == b"\\" and not escaped
            elif here.expects == "string":
                here.expects, here.spelled = "after", b""
            else:
                here.path[-1] = json.loads(b'"' + here.spelled + b'"', strict=False)
                here.expects, here.spelled = "colon", b""
            continue
        if here.expects == "scalar" and c not in b" ,]}":
            here.spelled += c
            continue
        if c in b" \n\r\t":
            continue
        if c in b"{[":
            containers.append(byte)
            here.path.append("" if c == b"{" else 0)
            here.expects = "key" if c == b"{" else "value"
        elif c in b"]}":
            containers.pop()
            here.path.pop()
            here.expects, here.spelled = "after", b""
        elif c == b":":
            here.expects = "value"
        elif c == b",":
            in_object = containers[-1] == ord("{")
            here.expects, here.spelled = "key" if in_object else "value", b""
            here.path[-1] = "" if in_object else here.path[-1] + 1  # type: ignore[operator]
        elif c == b'"':
            here.expects = "key in" if here.expects == "key" else "string"
        else:
            here.expects, here.spelled = "scalar", c
    return here


def spread(root: Any, schema: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the schema and all others for the same value: by reference, or in any combination."""
    if not isinstance(schema, dict) or depth > 12:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target[int(part) if isinstance(target, list) else part]
        yield from spread(root, target, depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            yield from spread(root, part, depth + 1)


def at(root: Any, path: list[str | int]) -> list[dict[str, Any]]:
    """Return the schemas for the value at a path; empty if it is unconstrained."""
    schemas = list(spread(root, root))
    for step in path:
        below: list[Any] = []
        for schema in schemas:
            if isinstance(step, str):
                named = [s for n, s in schema.get("properties", {}).items() if n == step]
                patterns = schema.get("patternProperties", {}).items()
                named += [s for pattern, s in patterns if re.search(pattern, step)]
                below += named or [schema.get("additionalProperties")]
            else:
                items = schema.get("items", {})
                first = schema.get("prefixItems", items if isinstance(items, list) else [])
                rest = schema.get("additionalItems") if isinstance(items, list) else items
                below.append(first[step] if step < len(first) else rest)
        schemas = [s for schema in below for s in spread(root, schema)]
    return schemas


def cause(root: Any, text: bytes, c: bytes, is_ours: bool) -> str | None:
    """Return the key in `CAUSES` for a byte (b"": the end) that only one allows, or None."""
    here = place(text)
    schemas = at(root, here.path)
    has = {keyword for schema in schemas for keyword in schema}
    container = at(root, here.path[:-1]) if here.path else []
    in_string = here.expects == "string"
    in_key = here.expects == "key in"
    if in_string and is_ours and c == b"\\" and has & _IN_STRINGS:
        return "escapes"
    if in_key and is_ours and c == b"\\":
        names = {keyword for schema in container for keyword in schema}
        return "escapes" if names & {"patternProperties", "propertyNames"} else "spellings"
    if in_string and is_ours and c == b"\\" and has & {"enum", "const"}:
        return "spellings"
    if in_string and "format" in has:
        return "formats"
    if in_string and is_ours and "pattern" in has:
        return "anchors"
    around = [schema for n in range(len(here.path) + 1) for schema in at(root, here.path[:n])]
    is_ignored = any(set(s) & IGNORED or len(s.get("allOf", ())) > 1 for s in around)
    is_choice = any("oneOf" in s for s in around)
    if is_ours and here.expects == "scalar" and b"." in here.spelled and has & _BY_TYPE["number"]:
        return "digits"
    if is_ours and here.expects == "value":
        untyped = [schema for schema in schemas if "type" not in schema]
        if any(set(schema) & words for schema in untyped for words in _BY_TYPE.values()):
            return "implied type"
    if is_ours:
        return None
    if (in_string or in_key) and text[-1:] == b"\xed" and c >= b"\xa0":
        return "surrogates"
    if in_string and c < b"\x20" and has & _IN_STRINGS:
        return "raw"
    if c in (b"[", b"{") and here.path and _is_free(container):
        return "depth"
    if is_ignored:
        return "ignored"
    if is_choice:
        return "one of"
    below = [part for schema in container for part in schema.get("properties", {}).values()]
    if any(isinstance(s, dict) and "enum" in s and "type" in s for s in [*around, *below]):
        return "enum"
    if any(set(s.get("required", ())) - set(s.get("properties", ())) for s in around):
        return "required"
    return None


def _is_free(schemas: list[dict[str, Any]]) -> bool:
    """Return whether the members and elements of a value are unconstrained."""
    return not any(
        s.get(keyword) not in (None, True)
        for s in schemas
        for keyword in ("properties", "items", "prefixItems", "enum", "const", "patternProperties",
                        "additionalProperties")
    )  # fmt: skip


# -- masks ----------------------------------------------------------------------------------


class Ours:
    """A matcher with xgrammar's names of the calls that are compared."""

    def __init__(self, matcher: gcd.Matcher) -> None:
        self._matcher = matcher
        self.reset, self.accept_token = matcher.reset, matcher.advance
        self.is_terminated = lambda: matcher.is_finished

    def fork(self) -> Ours:
        return Ours(self._matcher.copy())

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


def first_difference(matchers: Pair, token: int, bytes_allowed: Any) -> tuple[bytes, bytes, bool]:
    """Split a token that only one allows: common prefix, next byte, and whether ours allows it."""
    spelled = TOKENS[token]
    for end in range(1, len(spelled)):
        if end == 1:
            ours, theirs = (spelled[0] in of_one for of_one in bytes_allowed)
        else:
            ours, theirs = (matcher.fork().accept_string(spelled[:end]) for matcher in matchers)
        if ours != theirs:
            return spelled[: end - 1], spelled[end - 1 : end], ours
    return spelled[:-1], spelled[-1:], token in bytes_allowed[0]


def compare(schema: Any, matchers: Pair, seed: str, steps: int = 30) -> Counter[str]:
    """Walk once, compare the mask at every step, and count the differences by cause."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    text = b""
    for matcher in matchers:
        matcher.reset()
    for _ in range(steps):
        both = [allowed(matcher) for matcher in matchers]
        for byte in {first_difference(matchers, token, both) for token in both[0] ^ both[1]}:
            begun, c, is_ours = byte
            why = cause(schema, text + begun, c, is_ours)
            who = "only here" if is_ours else "only in xgrammar"
            assert why in CAUSES, f"{schema}\nafter {text + begun!r}: {c!r} {who}"
            found[why] += 1
        common = sorted(both[0] & both[1])
        if not common:
            break
        closing = [t for t in common if TOKENS[t][:1] in (b'"', b"}", b"]", b",")]
        token = rng.choice(closing if closing and rng.random() < 0.3 else common)
        assert all(matcher.accept_token(token) for matcher in matchers)
        text += TOKENS[token]
        assert len({matcher.is_terminated() for matcher in matchers}) == 1
        if token == EOS:
            break
    return found


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
        assert not compare(AGREED[name], matchers, f"{name} {seed}")


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


def test_every_cause_has_a_witness_and_is_on_the_page() -> None:
    assert WITNESSES.keys() == CAUSES.keys()
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for name, what in CAUSES.items():
        assert f"| {name} | {what} |" in page


@pytest.mark.parametrize("name", WITNESSES)
def test_each_cause_is_real(name: str) -> None:
    schema, text, byte, who = WITNESSES[name]
    matchers = pair(schema)
    assert [matcher.accept_string(text) for matcher in matchers] == [True, True]
    takes = [matcher.accept_string(byte) for matcher in matchers]
    assert takes == [who == "ours", who == "theirs"]
    assert cause(schema, text, byte, takes[0]) == name


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"no public schemas in {PUBLIC}")
@pytest.mark.usefixtures("unchecked_annotations")
def test_masks_on_public_schemas_differ_for_listed_causes_only() -> None:
    """Compare on the first fifty of every fifth small file that both engines compile quickly."""
    files = [path for path in sorted(PUBLIC.glob("*.json")) if path.stat().st_size < 4000]
    compared: dict[str, Counter[str]] = {}
    for path in files[::5]:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            with gcd.work_limit(10_000_000):
                matchers = pair(schema)
        except (gcd.ConstraintError, RuntimeError):  # xgrammar refuses with the latter
            continue
        compared[path.stem] = compare(schema, matchers, path.stem)
        if len(compared) == NUM_PUBLIC:
            break
    assert len(compared) == NUM_PUBLIC
    equal = sum(not found for found in compared.values())
    assert equal >= NUM_PUBLIC // 2
