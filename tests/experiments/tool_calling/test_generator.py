"""The generator is deterministic, well formed, and keeps its two splits apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from experiments.tool_calling.answers import STYLES, parse_answer, same_calls, write_answer
from experiments.tool_calling.generator import generate, training_group, training_record
from experiments.tool_calling.generator.catalogue import PLACEHOLDER, all_tools, tools_of
from experiments.tool_calling.generator.natural import natural_record
from experiments.tool_calling.generator.pools import natural_value
from experiments.tool_calling.generator.values import is_held_out
from experiments.tool_calling.records import ToolRecord

_TRAIN = generate(3000, 5, split="train")
_HELD_OUT = generate(1500, 5, split="held_out")


def _free_values(record: ToolRecord) -> Iterator[str]:
    """Texts of all strings and numbers in the arguments that no enumeration declares."""
    parameters = {tool["name"]: tool["parameters"] for tool in record.tools}
    for call in record.calls:
        for name, value in call.arguments.items():
            if "enum" not in parameters[call.name][name]:
                yield from _scalars(value)


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif not isinstance(value, bool):
        yield str(value)


def test_the_same_arguments_give_the_same_records() -> None:
    for split in ("train", "held_out"):
        assert generate(20, 3, split) == generate(30, 3, split)[:20]
        assert generate(20, 3, split) != generate(20, 4, split)


def test_no_tool_is_in_both_splits() -> None:
    train = {tool["name"] for record in _TRAIN for tool in record.tools}
    held_out = {tool["name"] for record in _HELD_OUT for tool in record.tools}
    assert held_out == {tool.name for tool in tools_of("held_out")}
    assert train.isdisjoint(held_out)
    assert {tool.name for tool in tools_of("train")} <= train


def test_no_argument_value_is_in_both_splits() -> None:
    train = {text for record in _TRAIN for text in _free_values(record)}
    held_out = {text for record in _HELD_OUT for text in _free_values(record)}
    assert len(train) > 1000
    assert len(held_out) > 500
    assert train.isdisjoint(held_out)
    assert not any(map(is_held_out, train))
    assert all(map(is_held_out, held_out))


def test_records_are_well_formed() -> None:
    for record in [*_TRAIN[:600], *_HELD_OUT[:600]]:
        _check(record)


def _check(record: ToolRecord) -> None:
    declared = {tool["name"]: tool["parameters"] for tool in record.tools}
    assert record.query.strip(), record.id
    assert record.calls, record.id
    assert len(declared) == len(record.tools), record.id
    for call in record.calls:
        parameters = declared[call.name]
        assert call.arguments.keys() <= parameters.keys(), record.id
        missing = parameters.keys() - call.arguments.keys()
        assert all("default" in parameters[name] for name in missing), record.id
        for name, value in call.arguments.items():
            types = {"str": str, "int": int, "float": float, "bool": bool}
            assert type(value) is types.get(parameters[name]["type"], list), record.id
            assert value in parameters[name].get("enum", [value]), record.id
    for style in STYLES:
        text = write_answer(record.calls, record.tools, style)
        assert same_calls(parse_answer(text, style), record.calls), record.id


def test_natural_values_stand_in_the_request_word_for_word() -> None:
    for record in _HELD_OUT:
        for text in _free_values(record):
            assert text in record.query


def test_single_multiple_and_parallel_calls_all_occur() -> None:
    for records in (_TRAIN, _HELD_OUT):
        several = [record for record in records if len(record.calls) > 1]
        same = [r for r in several if len({call.name for call in r.calls}) == 1]
        assert 0.15 < len(several) / len(records) < 0.5
        assert 0 < len(same) < len(several)
        assert sum(len(record.tools) > 1 for record in records) > len(records) / 2
        assert max(len(record.tools) for record in records) <= 5


def test_the_catalogue_is_large_and_its_requests_fit_their_tools() -> None:
    tools = all_tools()
    assert len(tools) >= 150
    assert len({tool.name for tool in tools}) == len(tools)
    assert len(tools_of("held_out")) >= 30
    for tool in tools:
        names = {parameter.name for parameter in tool.parameters}
        required = {parameter.name for parameter in tool.parameters if not parameter.optional}
        assert len(set(tool.requests)) >= 2, tool.name
        for request in tool.requests:
            found = PLACEHOLDER.findall(request)
            mentioned = {placeholder[0] for placeholder in found}
            assert required <= mentioned <= names, (tool.name, request)
            assert request.count("{") == len(found), (tool.name, request)


def test_every_parameter_has_values_in_its_split() -> None:
    rng = random.Random(0)
    for tool in all_tools():
        for parameter in tool.parameters:
            if parameter.kind in ("str", "list") and not parameter.options:
                value = natural_value(rng, parameter.pool, tool.held_out)
                assert is_held_out(value.text) == tool.held_out


def test_augmentation_renames_and_never_borrows_a_held_out_name() -> None:
    rng = random.Random(1)
    plain = {tool.name for tool in tools_of("train")}
    records = [natural_record(rng, "train", "x", augment=True) for _ in range(300)]
    names = {tool["name"] for record in records for tool in record.tools}
    assert len(names - plain) > 50


def test_levels_grow() -> None:
    rng = random.Random(2)
    first = [training_record(rng, 0, "x") for _ in range(100)]
    last = [training_record(rng, 3, "x") for _ in range(100)]
    assert all(len(record.tools) <= 2 and len(record.calls) == 1 for record in first)
    assert max(len(record.tools) for record in last) == 4


def test_a_group_shares_its_tools_and_asks_for_several_of_them() -> None:
    rng = random.Random(5)
    several = 0
    for number in range(100):
        group = training_group(rng, 3, str(number), 4)
        assert len(group) == 4
        assert len({record.id for record in group}) == 4
        offered = [tool["name"] for tool in group[0].tools]
        assert len(offered) == len(set(offered))
        for record in group:
            assert record.tools == group[0].tools
            assert {call.name for call in record.calls} <= set(offered)
        several += len({record.calls[0].name for record in group}) > 1
    assert several > 40


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="'test'"):
        generate(1, 0, split="test")
    with pytest.raises(ValueError, match="-1"):
        generate(-1, 0)
    assert generate(0, 0) == []
