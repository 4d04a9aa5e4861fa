"""Answers are written in one way, read in many, and never evaluated."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.tool_calling.task import STYLES, Call, parse_answer, same_calls, write_answer

_TEXT = st.text(max_size=8) | st.sampled_from(['a"b', "it's", "\\", "[(,=)]", "\ud800", "\u2028"])
_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_NAME = st.sampled_from(["f", "get_weather", "createIn-AppMessage", "a.b", "two words", "it's"])
_PARAMETER = st.sampled_from(["a", "from", "b", "class", "max-results", "in", "x y", "\ufb01le"])
_CALLS = st.lists(
    st.builds(Call, _NAME, st.dictionaries(_PARAMETER, _VALUE, max_size=3)), max_size=3
)


@settings(max_examples=200)
@given(calls=_CALLS, style=st.sampled_from(STYLES))
@example(calls=[Call("f", {"from": "a, b=(", "class": {"k": [1, {"é": None}]}})], style="python")
def test_written_answers_are_parsed_to_the_same_calls(calls: list[Call], style: str) -> None:
    text = write_answer(calls, [], style)
    text.encode()  # always valid UTF-8
    assert same_calls(parse_answer(text, style), calls)


@given(arguments=st.dictionaries(_PARAMETER, st.integers(), max_size=5))
def test_python_reads_every_argument_that_is_written(arguments: dict[str, int]) -> None:
    call = ast.parse(write_answer([Call("f", arguments)], [], "python"), mode="eval").body.elts[0]  # type: ignore[attr-defined]
    found = eval(compile(ast.Expression(call), "", "eval"), {"f": lambda **given: given})
    assert list(found.items()) == list(arguments.items())


def test_json_is_that_of_json_dumps() -> None:
    calls = [Call("f", {"a": 1, "b": "Zürich"}), Call("g")]
    expected = [{"name": "f", "arguments": {"a": 1, "b": "Zürich"}}, {"name": "g", "arguments": {}}]
    assert write_answer(calls, [], "json") == json.dumps(expected, ensure_ascii=False)


def test_python_is_a_list_of_calls_that_python_reads() -> None:
    calls = [Call("f", {"a": 1, "b": 'x"\n', "c": [True, None, {"k": 0.5}]}), Call("g")]
    text = write_answer(calls, [], "python")
    assert text == '[f(a=1, b="x\\"\\n", c=[True, None, {"k": 0.5}]), g()]'
    first = ast.parse(text, mode="eval").body.elts[0]  # type: ignore[attr-defined]
    assert {k.arg: ast.literal_eval(k.value) for k in first.keywords} == calls[0].arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("a=')', b=(1, [2, (3,)])", {"a": ")", "b": (1, [2, (3,)])}),
        ("c={'k(': ','}, d={1, 2}", {"c": {"k(": ","}, "d": {1, 2}}),
        (r"a = 'it\'s, \'(\'' , b=-1.5", {"a": "it's, '('", "b": -1.5}),
        ("filter[name]='x', from=None", {"filter[name]": "x", "from": None}),
        ("a b-c='=', it's=()", {"a b-c": "=", "it's": ()}),
        ("a='''x, 'y' (z'''", {"a": "x, 'y' (z"}),
        ("**{'from': '),', \"a-b\": {'c': 1}}, b=2", {"from": "),", "a-b": {"c": 1}, "b": 2}),
        ("b=2 , ** {'from': 1} , **{'x y':2}", {"b": 2, "from": 1, "x y": 2}),
        ("**kwargs=1", {"**kwargs": 1}),
    ],
)
def test_values_end_as_in_python(text: str, arguments: dict) -> None:
    for name in ("f", "create-It", "it's"):
        found = parse_answer(f" [ {name} ( {text} ) , g( ) ] ", "python")
        assert found == (Call(name, arguments), Call("g"))


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "f", "parameters": {"x": {"type": "int"}, "y": {"type": "int"}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"x": {}, "y": {}}}},
        {"type": "function", "function": {"name": "f", "parameters": {"x": {}, "y": {}}}},
    ],
)
def test_arguments_come_in_declared_order_and_unknown_ones_last(tool: dict) -> None:
    call = Call("f", {"z": 3, "y": 2, "x": 1})
    assert write_answer([call], [tool], "python") == "[f(x=1, y=2, z=3)]"


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("", "json"),
        ("{}", "json"),
        ("[1]", "json"),
        ('[{"name": "f"}]', "json"),
        ('[{"name": 1, "arguments": {}}]', "json"),
        ('[{"name": "f", "arguments": []}]', "json"),
        ('[{"name": "f", "arguments": {}}', "json"),
        ("[" * 100_000, "json"),
        ("f()", "python"),
        ("[f(]", "python"),
        ("[f(1)]", "python"),
        ("[f(a=)]", "python"),
        ("[f(a=1, a=2)]", "python"),
        ("[f(a=1, **{'a': 2})]", "python"),
        ("[f(**{1: 2})]", "python"),
        ("[f(**{'a'})]", "python"),
        ("[f(**[])]", "python"),
        ("[f(a=open('x'))]", "python"),
        ("[f(a=__import__('os').getcwd())]", "python"),
        ("[f(a='x)]", "python"),
        ("[f(), ]", "python"),
        ("[f(a={[]: 1})]", "python"),
        ("[f() g()]", "python"),
        ("[f(a=1,)]", "python"),
        ("[f(a=1) b]", "python"),
        ("[f(a=1 2)]", "python"),
        ("[(a=1)]", "python"),
        ("[[f(a=1)]", "python"),
        ("['f'(a=1)]", "python"),
        ("[f(=1)]", "python"),
        ("[f(a=1]", "python"),
    ],
)
def test_what_is_no_answer_is_refused(text: str, style: str) -> None:
    with pytest.raises(ValueError):
        parse_answer(text, style)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
@pytest.mark.parametrize("style", STYLES)
def test_what_has_no_literal_is_refused(value: object, style: str) -> None:
    with pytest.raises(ValueError):
        write_answer([Call("f", {"a": value})], [], style)


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(ValueError, match="'xml'"):
        write_answer([], [], "xml")
    with pytest.raises(ValueError, match="'xml'"):
        parse_answer("[]", "xml")


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0.0, False),
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ({1, 2}, [2, 1], True),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ("1", 1, False),
        (None, None, True),
        (None, "", False),
        ([1], [1, 1], False),
    ],
)
def test_arguments_are_compared_as_values(left: object, right: object, equal: bool) -> None:
    assert same_calls([Call("f", {"a": left})], [Call("f", {"a": right})]) is equal
    assert same_calls([Call("f", {"a": right})], [Call("f", {"a": left})]) is equal


def test_calls_are_compared_as_a_multiset() -> None:
    f, g = Call("f", {"a": 1}), Call("g")
    assert same_calls([f, g, f], [g, f, f])
    assert not same_calls([f, g, g], [f, f, g])
    assert not same_calls([f], [f, f])
    assert not same_calls([f], [Call("f", {"a": 1, "b": None})])
