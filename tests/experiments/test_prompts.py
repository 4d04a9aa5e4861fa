"""Prompts of every task: compact text, or a dialogue in the tokenizer's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import TemplateError

import gcd
from experiments.commongen import task as commongen
from experiments.json_schema import task as json_schema
from experiments.models import PromptError
from experiments.sql import databases as sql
from experiments.tool_calling import task as tool_calling


class Chat:
    """A tokenizer with nothing but a chat template."""

    chat_template = "there is one"

    def __init__(self, knows_system: bool = True):
        self.knows_system = knows_system

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert (tokenize, add_generation_prompt) == (False, True)
        if any(m["role"] == "system" for m in messages) and not self.knows_system:
            raise TemplateError("no system here")
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


PLAIN = SimpleNamespace(chat_template=None)
PARAMETERS = {
    "city": {"type": "str", "description": "The city."},
    "days": {"type": "int", "description": "How many.", "default": 3},
    "unit": {"type": "str, optional", "enum": ["c", "f"]},
}
WEATHER = {"name": "weather", "description": "Weather of a city", "parameters": PARAMETERS}
CALLS = tool_calling.ToolRecord("1", "Weather in Oslo?", (WEATHER,), ())
SIGNATURE = 'weather(city: str, days: int = 3, unit?: "c" | "f") - Weather of a city\n'
ASKED = f"{SIGNATURE}Request: Weather in Oslo?\n"
SET = commongen.record_of({"concept_set": "dog_N#run_V", "scene": ["The dog ran."]}, "1")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "system", "content": "JSON!"}, {"role": "user", "content": "What is a?"}]
TABLES = gcd.SqlSchema(
    (
        gcd.Table("order", (gcd.Column("id", "INTEGER"), gcd.Column("who")), ("id",)),
        gcd.Table("person", (gcd.Column("id", "INTEGER"),), ("id",)),
    ),
    (gcd.ForeignKey("order", "who", "person", "id"),),
)
CREATED = (
    'CREATE TABLE "order" (id INTEGER PRIMARY KEY, who REFERENCES person (id));\n'
    "CREATE TABLE person (id INTEGER PRIMARY KEY);\nQuestion: How many?\nSQL:"
)


def in_json(request: Any, **options: Any) -> str:
    row = {"prompt": request, "schema": SCHEMA, "completion": {"a": 1}}
    return json_schema.build_prompt(json_schema.record_of(row, "1"), **options)


BUILT: dict[str, tuple[Callable[..., str], str, str, str]] = {
    # The end of the compact prompt; a part of the instruction in a chat, and what the user says.
    "calls in JSON": (
        lambda **o: tool_calling.build_prompt(CALLS, "json", **o),
        f"{ASKED}Calls in JSON:\n", '[{"name": ', "Weather in Oslo?",
    ),
    "calls in Python": (
        lambda **o: tool_calling.build_prompt(CALLS, "python", **o),
        f"{ASKED}Calls in Python:\n", "[tool_name(", "Weather in Oslo?",
    ),
    "concepts": (
        lambda **o: commongen.build_prompt(SET, **o),
        "Concepts: dog, run\nSentence:\n", "", "Words: dog, run",
    ),
    "a schema": (
        lambda **o: in_json("What is a?", **o),
        f"JSON Schema: {json.dumps(SCHEMA)}\nWhat is a?\nAnswer in JSON:\n",
        json.dumps(SCHEMA), "What is a?",
    ),
    "messages": (
        lambda **o: in_json(MESSAGES, **o),
        "JSON!\nWhat is a?\nAnswer in JSON:\n", "JSON!", "What is a?",
    ),
    "a database": (
        lambda **o: sql.build_prompt(TABLES, "How many?", **o),
        f"{CREATED}\n", "just the SQL statement", CREATED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT)
def test_auto_is_compact_or_a_chat_as_the_tokenizer_is(name: str) -> None:
    build, compact, instruction, asked = BUILT[name]
    given = ((None, "auto"), (PLAIN, "auto"), (None, "compact"), (Chat(), "compact"))
    [text] = {build(tokenizer=tokenizer, kind=kind) for tokenizer, kind in given}
    assert text.endswith(compact)
    assert name == "a database" or text == compact  # it has examples, too
    [chat] = {build(tokenizer=Chat(), kind=kind) for kind in ("auto", "chat")}
    assert chat.startswith("<system>")
    assert instruction in chat
    assert chat.endswith(f"<user>{asked}<assistant>")
    assert ('"description": "How many."' in chat) == name.startswith("calls")  # tools in full
    for tokenizer, kind, message in ((PLAIN, "chat", "a chat template"), (None, "haiku", "haiku")):
        with pytest.raises(ValueError, match=message):
            build(tokenizer=tokenizer, kind=kind)


def test_a_template_s_own_complaint_is_shown() -> None:
    assert in_json(MESSAGES, tokenizer=Chat(False), kind="chat") == (
        "<user>JSON!\n\nWhat is a?<assistant>"
    )
    expected = "the roles system, system, user, but this one refuses them: no system here"
    with pytest.raises(PromptError, match=expected):
        in_json([MESSAGES[0], *MESSAGES], tokenizer=Chat(False), kind="chat")


def test_prompts_need_not_tell_what_is_demanded() -> None:
    row = {"concept_set": "dog_N#run_V#park_N", "scene": ["A dog ran."]}
    record, build = commongen.record_of(row, "1"), commongen.build_prompt
    some = build(record, told="some", kind="compact")
    concepts = some.removeprefix("Concepts: ").partition("\n")[0].split(", ")
    assert len(concepts) == 2
    assert [c for c in record.concepts if c in concepts] == concepts
    assert some == build(record, told="some", kind="compact"), "the same one is left out"
    records = [replace(record, id=str(i)) for i in range(9)]
    others = {build(each, told="some", kind="compact") for each in records}
    assert len(others) == 3, "of another set it is another one"
    assert build(record, told="none", kind="compact") == "Concepts:\nSentence:\n"
    asked = build(record, told="none", tokenizer=Chat())
    assert "Reply with the sentence only" in asked
    assert "Words" not in asked
    assert not any(concept in asked for concept in record.concepts)
    with pytest.raises(ValueError, match="told to be one of all, some, none, got 'most'"):
        build(record, told="most", kind="compact")


def test_examples_of_queries_are_of_the_language(tmp_path: Path) -> None:
    compact = sql.build_prompt(TABLES, "How many?", tokenizer=None, kind="compact")
    assert compact.count("Question:") == len(sql.EXAMPLES) + 1 == 4
    rows = f"{sql.EXAMPLE_TABLES} INSERT INTO film (year) VALUES (1950)"
    (tmp_path / "cinema.sql").write_text(rows)
    example = sql.read_databases(tmp_path)["cinema"].schema
    assert sql.create_statements(example) == sql.EXAMPLE_TABLES
    language = gcd.sql(example, gcd.SqlDialect(tables=2, subquery_depth=0))
    for question, query in sql.EXAMPLES:
        assert f"Question: {question}\nSQL:\n{query}\n" in compact
        assert language.accepts(query)


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(ValueError, match="'xml'"):
        tool_calling.build_prompt(CALLS, "xml")
