"""Lifting a schema to a large vocabulary: this project against outlines-core, in one run.

Both start from the same regular expression and the same vocabulary (a tiktoken rank file):

* ours: pattern -> minimal byte automaton (`gcd.regex`) -> token automaton (`gcd.lift`);
* outlines-core: pattern -> `Index`.

The prefix tree of the vocabulary is built once for all schemas and timed apart, as is outlines-
core's `Vocabulary`. Compiled code is warm. Each figure is the least of several runs.

    python -m benchmarks.lifting ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from benchmarks.common import head, least, ranked, with_ranks
from gcd.languages.text.regex import regex
from gcd.tokens.lifting import lift
from gcd.tokens.trie import Trie


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _tool(name: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    return _object(name={"const": name}, arguments=_object(**parameters))


TEXT, INTEGER, NUMBER, FLAG = ({"type": t} for t in ("string", "integer", "number", "boolean"))
UNIT = {"enum": ["celsius", "fahrenheit"]}

TOOLS = [
    _tool("get_weather", city=TEXT, days=INTEGER, unit=UNIT),
    _tool("search_flights", origin=TEXT, destination=TEXT, passengers=INTEGER, direct=FLAG),
    _tool("convert_currency", amount=NUMBER, source=TEXT, target=TEXT),
    _tool("send_message", recipient=TEXT, subject=TEXT, body=TEXT, urgent=FLAG),
    _tool(
        "create_event",
        title=TEXT,
        start=TEXT,
        minutes=INTEGER,
        guests={
            "type": "array",
            "items": TEXT,
        },
    ),
    _tool("set_thermostat", room=TEXT, temperature=NUMBER, unit=UNIT),
]

SCHEMAS = {
    "one tool": TOOLS[0],
    "six tools": {"anyOf": TOOLS},
    "six tools, up to 3 calls": {
        "type": "array",
        "items": {"anyOf": TOOLS},
        "minItems": 1,
        "maxItems": 3,
    },
    "a string of at most 100 characters": _object(text={"type": "string", "maxLength": 100}),
}


def main() -> None:
    import outlines_core  # of the extra `benchmark`
    from outlines_core.json_schema import build_regex_from_schema

    parser = with_ranks(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    vocabulary = ranked(arguments.ranks)
    (eos,) = vocabulary.eos_ids
    ids_of: dict[bytes, list[int]] = {}
    for index, token in enumerate(vocabulary.token_bytes):
        if token:
            ids_of.setdefault(token, []).append(index)
    theirs = outlines_core.Vocabulary(eos, ids_of)
    lift(regex("a"), vocabulary)  # compiles

    tree = 1e3 * least(partial(Trie.build, vocabulary.token_bytes), 3)
    table = 1e3 * least(partial(outlines_core.Vocabulary, eos, ids_of), 1)
    print(f"{vocabulary.size} tokens; prefix tree {tree:.0f} ms, outlines-core's {table:.0f} ms\n")
    heads = ["schema", "byte states", "token states", "classes", "regex, ms", "lift, ms"]
    heads += ["outlines-core, ms", "outlines-core / (regex + lift)"]
    print(head(*heads))
    for name, schema in SCHEMAS.items():
        pattern = build_regex_from_schema(json.dumps(schema))
        automaton = regex(pattern)
        lifted = lift(automaton, vocabulary)
        to_bytes = 1e3 * least(partial(regex, pattern), arguments.repeats)
        to_tokens = 1e3 * least(partial(lift, automaton, vocabulary), arguments.repeats)
        index = 1e3 * least(partial(outlines_core.Index, pattern, theirs), 2)
        print(
            f"| {name} | {automaton.num_states} | {lifted.num_states} | {lifted.num_classes} "
            f"| {to_bytes:.0f} | {to_tokens:.1f} | {index:.0f} "
            f"| {index / (to_bytes + to_tokens):.1f} |"
        )


if __name__ == "__main__":
    main()
