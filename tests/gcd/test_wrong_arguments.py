"""Arguments of wrong types are refused, with the value and the expected type."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gcd
from gcd import StateLimitError, WorkLimitError
from gcd._removed import REMOVED

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

LANGUAGE = gcd.regex("a")
VOCABULARY = gcd.Vocabulary.from_bytes([b"a", b""], [1])
LIFTED = gcd.lift(LANGUAGE, VOCABULARY)
TABLES = gcd.SqlSchema((gcd.Table("t", (gcd.Column("c"),)),))
from_bytes = gcd.Vocabulary.from_bytes


class Model:
    """Stand-in for an instance of a pydantic model."""

    def model_json_schema(self) -> dict[str, Any]:
        raise AssertionError("expected only classes as schemas")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "number as pattern": (lambda: gcd.regex(3), "expected a pattern as str, got 3"),  # type: ignore[arg-type]
    "bytes as pattern": (lambda: gcd.regex(b"ab"), "got b'ab'; decode"),  # type: ignore[arg-type]
    "compiled pattern": (lambda: gcd.regex(re.compile("a")), ".pattern"),  # type: ignore[arg-type]
    "number as text": (lambda: gcd.literal(3), "got 3"),  # type: ignore[arg-type]
    "a text as texts": (lambda: gcd.choice("a"), "expected a list"),
    "words as number": (lambda: gcd.keywords([["a"]], max_words="3"), "got '3'"),  # type: ignore[arg-type]
    "broken words": (lambda: gcd.keywords([["a"]], max_words=2.5), "got 2.5"),  # type: ignore[arg-type]
    "letters": (lambda: gcd.keywords([["a"]], letters=["a"]), "got ['a']"),  # type: ignore[arg-type]
    "punctuation": (lambda: gcd.keywords([["a"]], punctuation=3), "got 3"),  # type: ignore[arg-type]
    "number as tools": (lambda: gcd.tool_calls(3), "list under 'tools'; got 3"),  # type: ignore[arg-type]
    "number as database": (lambda: gcd.sql(3), "the path of a database, got 3"),  # type: ignore[arg-type]
    "number as dialect": (lambda: gcd.sql(TABLES, 0), "got 0"),  # type: ignore[arg-type]
    "number as values": (lambda: gcd.sql_values(3), "the path of a database, got 3"),  # type: ignore[arg-type]
    "text as states": (lambda: gcd.widest_dialect(TABLES, "5"), "got '5'"),  # type: ignore[arg-type]
    "number as segments": (lambda: gcd.segments(3), "got 3; pass [gcd.Seg"),  # type: ignore[arg-type]
    "text lifted": (lambda: gcd.lift("a", VOCABULARY), "got 'a'; compile"),  # type: ignore[arg-type]
    "schema lifted": (lambda: gcd.lift({}, VOCABULARY), "got {}; compile"),  # type: ignore[arg-type]
    "no vocabulary": (lambda: gcd.lift(LANGUAGE, None), "from_tokenizer"),  # type: ignore[arg-type]
    "text joined": (lambda: LANGUAGE + "b", "got 'b'; make one with gcd.literal"),  # type: ignore[operator]
    "text united": (lambda: LANGUAGE | "b", "got 'b'; make one with gcd.literal"),  # type: ignore[operator]
    "number accepted": (lambda: LANGUAGE.accepts(3), "got 3"),  # type: ignore[arg-type]
    "texts as tokens": (lambda: from_bytes(["a", "b"], 1), "got 'a'; encode"),  # type: ignore[list-item]
    "a text as tokens": (lambda: from_bytes(b"ab", 1), "got b'ab'"),  # type: ignore[arg-type]
    "no EOS": (lambda: from_bytes([b"a"], None), "got None"),  # type: ignore[arg-type]
    "EOS by name": (lambda: from_bytes([b"a"], "</s>"), "got '</s>'"),  # type: ignore[arg-type]
    "broken EOS": (lambda: from_bytes([b"a", b""], [1.5]), "got [1.5]"),  # type: ignore[list-item]
    "text as size": (lambda: from_bytes([b""], 0, size="3"), "got '3'"),  # type: ignore[arg-type]
    "number as ranks": (lambda: gcd.Vocabulary.from_ranks(3, 1), "got 3"),  # type: ignore[arg-type]
    "text inspected": (lambda: gcd.inspect_prefix("a", [0]), "gcd.lift"),  # type: ignore[arg-type]
    "text as prefix": (lambda: gcd.inspect_prefix(LIFTED, "a"), "got 'a'"),  # type: ignore[arg-type]
    "broken prefix": (lambda: gcd.why_refused(LIFTED, [0.5], 0), "got [0.5]"),  # type: ignore[list-item]
    "text as limit": (lambda: gcd.state_limit("9").__enter__(), "got '9'"),  # type: ignore[arg-type]
    "no limit": (lambda: gcd.work_limit(None).__enter__(), "got None"),  # type: ignore[arg-type]
    "number as schema": (lambda: gcd.json_schema(3), "an object or a boolean, got 3"),
    "a type as schema": (lambda: gcd.json_schema(Exception), "cannot parse the type Exception"),
    "an object as schema": (
        lambda: gcd.json_schema(Model()),
        "pydantic model class, got its instance",
    ),
    "a path as schema": (
        lambda: gcd.json_schema("a.json"),
        "expected a JSON schema (Expecting value",
    ),
    "half a schema": (lambda: gcd.ignored_keywords('{"type":'), "class that pydantic validates"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_argument_is_refused_in_words(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(gcd.ConstraintError, match=re.escape(message)):
        call()


def test_ids_may_be_of_any_kind_of_whole_number() -> None:
    for ids in (1, np.int64(1), [1], (np.int32(1),), np.array([1]), np.array(1), torch.tensor([1])):
        assert gcd.Vocabulary.from_bytes([b"a", b""], ids).eos_ids == (1,)  # type: ignore[arg-type]


def test_a_schema_may_be_a_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Alarm(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        hour: int = pydantic.Field(ge=0, le=23)
        label: str | None = None

    language = gcd.json_schema(Alarm)
    assert language == gcd.json_schema(Alarm.model_json_schema())
    assert language.accepts('{"hour":7,"label":"up"}')
    assert not language.accepts('{"hour":24}')
    assert gcd.ignored_keywords(Alarm) == ()


def test_a_schema_may_be_a_text() -> None:
    alarm = (Path(__file__).parents[2] / "docs" / "alarm.json").read_bytes()
    for written in (alarm, alarm.decode()):
        assert gcd.json_schema(written).accepts('{"hour":7,"minute":0}')
    assert gcd.json_schema("true") == gcd.json_schema(True)


@pytest.mark.parametrize(
    "error",
    [
        gcd.ConstraintError("wrong"),
        gcd.UnsupportedSchemaError("not", "/a"),
        gcd.InfeasibleBudgetError(5, 3),
        gcd.EmptyLanguageError("empty"),
        StateLimitError(7),
        WorkLimitError(7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_sent_between_processes(error: Exception) -> None:
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("name", REMOVED)
def test_removed_names_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"gcd.{name} was removed; use "):
        gcd.__getattr__(name)
