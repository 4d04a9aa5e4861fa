"""Bounds and hooks that pydantic omits from its JSON schemas, compared with its validation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, NewType

import pytest
import typing_extensions

import gcd
from tests.gcd.random_strings import random_strings

pydantic = pytest.importorskip("pydantic")
Field = pydantic.Field


class Hooked(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))
    a: int = Field(json_schema_extra={"maximum": 3})
    b: int = Field(examples=[1], title="B")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        schema = handler(core)
        schema["properties"]["b"] = {"minimum": 5}
        return schema


class Rechecked(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_default=True)
    a: int = Field(default=1, gt=5)
    b: int = Field(default=7, gt=5)


Alias = typing_extensions.TypeAliasType("Alias", Annotated[int, Field(gt=3)])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Hooked, ['{"a":3,"b":5}'], ['{"a":3}']),
        (list[Hooked], ['[{"a":3,"b":5}]'], ['[{"b":5}]']),
        (Annotated[int, pydantic.WithJsonSchema({"maximum": 3})], ["3"], ['"a"']),
        (Rechecked, ['{"a":6}', '{"a":6,"b":7}'], ["{}", '{"b":7}']),
        (Alias, ["4"], ["3"]),
        (NewType("Named", int), ["4"], ['"a"']),
        (Annotated[Sequence[int], Field(min_length=2), Field(min_length=1)], ["[1,2]"], ["[1]"]),
        (Annotated[int | float, Field(allow_inf_nan=False)], ["1", "2.5"], ['"a"']),
        (Annotated[str | list[int], Field(min_length=2)], ['"ab"', "[1,2]"], ['"a"', "[1]"]),
        (Annotated[dict[int, int] | str, Field(min_length=2)], ['{"1":1,"2":1}'], ['{"1":1}']),
        (Annotated[int | float | None, Field(gt=2)], ["3", "2.5"], ["2"]),
        (dict[Any, int], ['{"a":1}'], ['{"a":"x"}']),
    ],
)
def test_hooks_and_bounds_stay_within_the_validators_input(
    kind: Any, good: list[str], bad: list[str]
) -> None:
    adapter = pydantic.TypeAdapter(kind)
    found = gcd.json_schema(kind)
    for text in (*good, *random_strings(found, 50)):
        adapter.validate_json(text)
        assert found.accepts(text), text
    for text in bad:
        assert not found.accepts(text), text
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_json(text)


def test_a_pattern_of_a_union_leaves_its_strings() -> None:
    kind = Annotated[str | int, Field(pattern="^a+$")]  # pydantic raises TypeError for numbers
    found = gcd.json_schema(kind, unsupported="refuse")
    assert all(re.fullmatch("a+", json.loads(text)) for text in random_strings(found, 20))


def test_a_required_member_without_a_schema_is_refused() -> None:
    class Skipped(pydantic.BaseModel):
        a: pydantic.json_schema.SkipJsonSchema[int]

    class Extra(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        __pydantic_extra__: dict[Annotated[str, Field(pattern="^x")], int]

    with pytest.raises(gcd.UnsupportedSchemaError, match="SkipJsonSchema"):
        gcd.json_schema(Skipped)
    with pytest.raises(gcd.UnsupportedSchemaError, match="__pydantic_extra__"):
        gcd.json_schema(Extra)
