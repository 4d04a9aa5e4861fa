"""Constraints and requests that the tests of both model runners and of the server share."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "hobbies": {"type": "array", "items": {"type": "string"}},
        "bio": {"type": "string"},
    },
    "required": ["name", "hobbies", "bio"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
SEGMENTS = [
    {"anything": True, "until": "so:", "tokens": 8},
    {
        "json_schema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        }
    },
]
DATABASE = {
    "table_names_original": ["singer"],
    "column_names_original": [[-1, "*"], [0, "name"], [0, "age"]],
    "column_types": ["text", "text", "number"],
    "primary_keys": [],
    "foreign_keys": [],
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"regex": "[a-c]+(-[0-9]{2})*"},
    {"choice": ["yes", "no", "perhaps"]},
    {"tools": TOOLS},
    {"segments": SEGMENTS},
    {"sql": DATABASE},
    {"grammar": 'start: "[" DIGIT ("," DIGIT)* "]"\nDIGIT: /[0-9]/'},
]

SMALL_BUDGETS = {"json_schema": 70, "regex": 9, "choice": 8, "tools": 70, "segments": 40,
                 "sql": 70, "grammar": 9}  # fmt: skip
"""Maximum number of tokens of an answer to each of them, over the 512 tokens of `random_llama`."""


def is_valid(constraint: dict[str, Any], text: str) -> bool:
    """Check an answer against one of `CONSTRAINTS` by other means than this project's."""
    (kind,) = constraint
    if kind == "regex":
        return re.fullmatch(constraint["regex"], text) is not None
    if kind == "choice":
        return text in constraint["choice"]
    try:
        if kind == "tools":
            calls = json.loads(text)
            return bool(calls) and all(
                call["name"] == "get_weather"
                and isinstance(call["arguments"]["city"], str)
                and type(call["arguments"].get("days", 0)) is int
                and call["arguments"].keys() <= {"city", "days"}
                for call in calls
            )
        if kind == "sql":
            with closing(sqlite3.connect(":memory:")) as database:
                database.execute("CREATE TABLE singer (name TEXT, age NUMBER)")
                database.execute(text)
            return True
        if kind == "grammar":
            digits = json.loads(text)
            return bool(digits) and all(type(digit) is int and digit < 10 for digit in digits)
        if kind == "segments":
            _, _, text = text.partition("so:")
            found = json.loads(text)
            return found.keys() == {"n"} and type(found["n"]) is int
        found = json.loads(text)
        return (
            found.keys() == PERSON["properties"].keys()
            and isinstance(found["name"], str)
            and isinstance(found["bio"], str)
            and all(isinstance(hobby, str) for hobby in found["hobbies"])
        )
    except (ValueError, KeyError, sqlite3.Error):
        return False


def asked(constraint: dict[str, Any], **more: Any) -> dict[str, str]:
    """`extra_args` or `vllm_xargs` of a request."""
    return {"gcd": json.dumps(constraint | more)}
