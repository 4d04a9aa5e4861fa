"""Tool calls in both notations: the strings are exactly the valid lists of calls."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import gcd
from gcd import parse_tools
from gcd._languages.json_schema.keywords import CONTAINER
from tests.gcd.random_strings import random_strings

INT, STR, ARRAY = {"type": "integer"}, {"type": "string"}, {"type": "array"}
TUPLE, SET = ARRAY | {CONTAINER: "tuple"}, ARRAY | {CONTAINER: "set"}


def _tuple(*items: Any) -> dict[str, Any]:
    return TUPLE | {"prefixItems": list(items), "items": False, "minItems": len(items)}


def _set(items: Any) -> dict[str, Any]:
    return SET | {"items": items}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def _object(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    required = [each for each in properties if each not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _tool(name: str, properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {"name": name, "parameters": _object(properties, *optional)}


UNIT = {"type": "string", "enum": ["C", "F"], "default": "C"}
WEATHER = _tool("get_weather", {"city": STR, "days": INT, "unit": UNIT}, "days", "unit")
POINT = _object({"lat": {"type": "number"}, "lon": {"type": "number"}})
OPTIONS = _object({"tolls": {"type": "boolean"}, "note": {"type": ["string", "null"]}}, "note")
STOPS = {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 3}
ROUTE_OF = _object({"stops": STOPS, "options": OPTIONS}, "options") | {"$defs": {"point": POINT}}
ROUTE = {"type": "function", "function": {"name": "plan_route.v2", "parameters": ROUTE_OF}}
CONTAINERS = _tool(
    "containers",
    {
        "pair": _tuple(INT, {"type": "number"}),
        "single": _tuple(STR),
        "many": _set(INT),
        "table": _map(ARRAY | {"items": INT}),
        "free": {},
    },
    "free",
)
PING = {"name": "ping", "parameters": {}}
TOOLS = [WEATHER, ROUTE, CONTAINERS, PING]
STYLES = ("json", "python")
LANGUAGES = {style: gcd.tool_calls(TOOLS, style=style) for style in STYLES}
BOUNDED = {style: gcd.tool_calls(TOOLS, style=style, max_calls=3) for style in STYLES}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
REAL = st.floats(allow_nan=False, allow_infinity=False) | st.integers()


def _members(
    required: dict[str, st.SearchStrategy[Any]],
    optional: dict[str, st.SearchStrategy[Any]] | None = None,
) -> st.SearchStrategy[dict[str, Any]]:
    """Dictionaries with their keys in this order."""
    order = [*required, *(optional or {})]
    return st.fixed_dictionaries(required, optional=optional).map(
        lambda drawn: {key: drawn[key] for key in order if key in drawn}
    )


OF_WEATHER = _members(
    {"city": TEXT}, optional={"days": st.integers(), "unit": st.sampled_from("CF")}
)
OF_ROUTE = _members(
    {"stops": st.lists(_members({"lat": REAL, "lon": REAL}), min_size=1, max_size=3)},
    optional={"options": _members({"tolls": st.booleans()}, optional={"note": st.none() | TEXT})},
)
OF_CONTAINERS = _members(
    {
        "pair": st.tuples(st.integers(), REAL),
        "single": st.tuples(TEXT),
        "many": st.sets(st.integers(), max_size=3),
        "table": st.dictionaries(TEXT, st.lists(st.integers(), max_size=2), max_size=2),
    },
    optional={"free": st.none() | st.lists(TEXT | st.booleans(), max_size=2)},
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("get_weather"), OF_WEATHER),
        st.tuples(st.just("plan_route.v2"), OF_ROUTE),
        st.tuples(st.just("containers"), OF_CONTAINERS),
        st.just(("ping", {})),
    ),
    min_size=1,
    max_size=3,
)


def as_json(value: Any) -> Any:
    """Return the JSON value of a Python literal."""
    if isinstance(value, (list, tuple, set)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value


def write(calls: list[tuple[str, Any]], style: str, *, ascii_only: bool = True) -> str:
    if style == "json":
        value = [{"name": name, "arguments": as_json(arguments)} for name, arguments in calls]
        return json.dumps(value, ensure_ascii=ascii_only)
    texts = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"[{', '.join(texts)}]"


def read(text: str, style: str) -> list[tuple[str, Any]]:
    """Parse calls from a text with `json` or with Python's own parser."""
    if style == "json":
        return [(call["name"], call["arguments"]) for call in json.loads(text)]
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.List)
    calls = []
    for call in tree.elts:
        assert isinstance(call, ast.Call)
        assert not call.args
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            value = ast.literal_eval(keyword.value)
            found = value if keyword.arg is None else {keyword.arg: value}
            assert found
            assert not found.keys() & arguments.keys()
            arguments |= found
        calls.append((_dotted(call.func), arguments))
    return calls


def _dotted(tree: ast.expr) -> str:
    """Return the name as Python parses it: identifiers joined by dots."""
    if isinstance(tree, ast.Attribute):
        return f"{_dotted(tree.value)}.{tree.attr}"
    assert isinstance(tree, ast.Name)
    return tree.id


def _validators(tools: Any) -> dict[str, Draft202012Validator]:
    return {tool.name: Draft202012Validator(tool.schema) for tool in parse_tools(tools).tools}


@settings(max_examples=80)
@given(CALLS)
def test_valid_calls_are_in_the_language(calls: list[tuple[str, Any]]) -> None:
    for style in STYLES:
        assert LANGUAGES[style].accepts(write(calls, style))
        assert LANGUAGES[style].accepts(write(calls, style, ascii_only=False))
        assert BOUNDED[style].accepts(write(calls, style))
    lists = [(name, as_json(arguments)) for name, arguments in calls]
    assert LANGUAGES["python"].accepts(write(lists, "python"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_every_string_is_a_valid_list_of_calls(style: str, whitespace: str) -> None:
    language = gcd.tool_calls(TOOLS, style=style, whitespace=whitespace)
    validators = _validators(TOOLS)
    for text in language.enumerate(20) + random_strings(language, 150):
        calls = read(text.decode(), style)
        assert calls
        for name, arguments in calls:
            validators[name].validate(as_json(arguments))


EVERY_SCHEMA: list[dict[str, Any]] = [
    *({"type": name} for name in ("string", "integer", "number", "boolean", "null", "object")),
    *({}, ARRAY, TUPLE, SET, ARRAY | {"items": ARRAY | {"items": INT}}, _map(ARRAY)),
    *(_tuple(STR), TUPLE | {"items": INT}, _set(INT), _set(_tuple(INT, STR))),
    *(_set(TUPLE | {"items": INT}), _set(_tuple(_set(INT), INT)), _set(ARRAY | {"items": INT})),
    *(_set(_set(INT)), _set(_map(INT)), _set({}), _set(TUPLE)),
    *(ARRAY | {"items": _set(ARRAY)}, {"anyOf": [INT, _set(STR)]}, _set({"anyOf": [INT, ARRAY]})),
    {"anyOf": [_set({"enum": ["a", "it's", "\n", 1, None, True]}), {"type": "null"}]},
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_every_string_can_be_read(style: str, whitespace: str) -> None:
    # Each style meets every schema, in one of the three kinds of whitespace.
    some = EVERY_SCHEMA[["compact", "spaced", "flexible"].index(whitespace) :: 3]
    for escapes, schema in [("canonical", each) for each in some] + [("all", SET)]:
        tool = _tool("f", {"x": schema, "y": schema}, "y")
        language = gcd.tool_calls(
            [tool], style=style, whitespace=whitespace, max_depth=1, escapes=escapes
        )
        for text in language.enumerate(10) + random_strings(language, 25):
            assert {name for name, _ in read(text.decode(), style)} == {"f"}, text


def _of_draft(draft: str) -> dict[str, Any]:
    tool = _tool("f", {"x": TUPLE | {"items": INT}})
    tool["parameters"]["$schema"] = f"http://json-schema.org/draft{draft}/schema#"
    return tool


_FEW = "pair=(1, 2), single=('a',), many="


@pytest.mark.parametrize(
    ("tools", "options", "accepted", "refused"),
    [
        (
            TOOLS,
            {},
            [
                '[get_weather(city="Rome", days=3), ping()]',
                "[get_weather(city='Rome')]",
                '[get_weather(city="it\'s")]',
                f"[containers({_FEW}{{1}}, table={{'k': [1]}})]",
                "[containers(pair=[1, 2], single=['a'], many=[], table={})]",
                f"[containers({_FEW}set(), table={{}}, free=None)]",
            ],
            [
                '[get_weather("Rome")]',
                '[get_weather(city = "Rome")]',
                '[get_weather(city="Rome",)]',
                "[get_weather(city='Rome\")]",
                *("ping()", "[ping(), ]"),
                "[containers(pair=(1, 2), single=('a'), many=set(), table={})]",
                f"[containers({_FEW}{{}}, table={{}})]",
                f"[containers({_FEW}set(), table={{}}, free=true)]",
            ],
        ),
        (
            TOOLS,
            {"whitespace": "flexible"},
            ["[ get_weather(\n\tcity = 'Rome' ,days=3\n) , ping( ) ]"],
            ["[ping ()]", " [ping()]", "[ping()]\n", "[ping()\r]"],
        ),
        *(
            ([_tool("f", {"x": schema})], {}, *([f"[f(x={t})]" for t in ts] for ts in texts))
            for schema, *texts in [
                (
                    SET,
                    ["{1, 'a', None}", "set()", "[[1], {}]"],
                    ["{[1]}", "{{}}", "{{1}}", "{set()}"],
                ),
                (_set(ARRAY | {"items": INT}), ["[[1], [2]]", "set()"], ["{[1]}", "{(1,)}"]),
                (_set(_map(INT)), ["[{'a': 1}]"], ["{{'a': 1}}", "{{}}"]),
                (_set(_set(INT)), ["[{1}, set()]"], ["{{1}}", "{set()}"]),
                (_set(_tuple(INT, STR)), ["{(1, 'a')}", "[[1, 'a']]"], ["{[1, 'a']}"]),
                (_set({"anyOf": [INT, ARRAY]}), ["{1, 2}", "[1, [2]]"], ["{1, [2]}"]),
                (SET | {"maxItems": 1}, ["{1}", "[1]"], ["{1, 2}"]),
                ({"enum": [{"k": [True, "x"]}, 0.5]}, ["{'k': [True, \"x\"]}", "0.5"], ["{}"]),
            ]
        ),
        *(
            ([_of_draft(draft)], {}, ["[f(x=(1, 2))]"], ["[f(x=(1.5, 2))]"])
            for draft in ("-04", "-07", "/2019-09", "/2020-12")
        ),
    ],
)
def test_python_notation(tools: Any, options: Any, accepted: Any, refused: Any) -> None:
    language = gcd.tool_calls(tools, style="python", **options)
    assert [text for text in accepted if not language.accepts(text)] == []
    assert [text for text in refused if language.accepts(text)] == []


@pytest.mark.parametrize("style", STYLES)
def test_finite_languages_are_counted_exactly(style: str) -> None:
    """Three values for a, b or no b: six calls."""
    tool = _tool("f", {"a": {"enum": [1, 2, 3]}, "b": {"enum": [None]}}, "b")
    for fewest, most in ((1, 1), (0, 2), (2, 3), (0, 0)):
        language = gcd.tool_calls([tool], style=style, min_calls=fewest, max_calls=most)
        texts = [text.decode() for text in language]
        assert len(texts) == sum(6**n for n in range(fewest, most + 1))
        for calls in (read(text, style) for text in texts):
            assert fewest <= len(calls) <= most
            assert all(name == "f" and arguments["a"] in (1, 2, 3) for name, arguments in calls)
    for fewest in (0, 1, 3):
        language = gcd.tool_calls([PING], style=style, min_calls=fewest)
        for count in range(7):
            assert language.accepts(write([("ping", {})] * count, style)) == (count >= fewest)
    impossible = _tool("g", {"a": {"enum": []}})
    assert gcd.tool_calls([impossible, PING], style=style) == gcd.tool_calls([PING], style=style)
    assert set(gcd.tool_calls([], style=style, min_calls=0)) == {b"[]"}


# -- options of gcd.json_schema --------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("calls", [(1, None), (0, 2), (2, 50)])
def test_max_bytes_keeps_exactly_the_short_answers(
    style: str, calls: tuple[int, int | None]
) -> None:
    kind = {"pattern": "^x*$", "maxLength": 40} if style == "json" else {"enum": ["x", "xyx"]}
    tools = [_tool("f", {"a": STR | kind}), _tool("g", {"b": ARRAY | {"items": {"enum": [1]}}})]
    options = {"style": style, "min_calls": calls[0], "max_calls": calls[1]}
    every = gcd.tool_calls(tools, **options)
    shortest = len(every.shortest())
    for most in (shortest, shortest + 3, 2 * shortest + 8):
        found = gcd.tool_calls(tools, max_bytes=most, **options)
        assert found.max_bytes == most
        assert found.num_states <= every.num_states
        assert found.count(most) == every.count(most) == (found & every).count(most)
    with pytest.raises(gcd.EmptyLanguageError, match="raise max_bytes"):
        gcd.tool_calls(tools, max_bytes=max(1, shortest - 1), **options)


@pytest.mark.parametrize("style", STYLES)
def test_limits_beyond_max_bytes_take_no_states(style: str) -> None:
    def tools(**limits: int) -> list[dict[str, Any]]:
        return [_tool("f", {"a": STR | limits})]

    with pytest.raises(gcd.StateLimitError, match="'maxLength' at '/0/parameters/properties/a'"):
        gcd.tool_calls(tools(maxLength=1 << 20), style=style, unsupported="refuse")
    with pytest.warns(gcd.CaveatWarning, match="maxLength 1048576 at '/0/parameters/properties/a'"):
        assert gcd.tool_calls(tools(maxLength=1 << 20), style=style).max_bytes == (1 << 20) + 2
    found = gcd.tool_calls(
        tools(maxLength=1 << 20), style=style, max_bytes=2_000, max_calls=1 << 20
    )
    assert found.num_states == gcd.tool_calls(tools(), style=style).num_states
    with pytest.raises(
        gcd.EmptyLanguageError, match=r"at most [0-9]+ calls fit into max_bytes=2000"
    ):
        gcd.tool_calls(tools(), style=style, max_bytes=2_000, min_calls=300)
    with pytest.raises(
        gcd.EmptyLanguageError, match="max_bytes=20: the part at '/0/parameters/properties/a'"
    ):
        gcd.tool_calls(tools(minLength=90), style=style, max_bytes=20)


@pytest.mark.parametrize("style", STYLES)
def test_formats_constrain_or_describe(style: str) -> None:
    tools, plain = ([_tool("f", {"a": STR | more})] for more in ({"format": "date"}, {}))
    assert gcd.tool_calls(tools, style=style, formats="ignore") == gcd.tool_calls(
        plain, style=style
    )
    if style == "json":
        assert not gcd.tool_calls(tools).accepts(write([("f", {"a": "soon"})], style))
    else:
        with pytest.raises(gcd.UnsupportedSchemaError, match='or formats="ignore"') as caught:
            gcd.tool_calls(tools, style=style)
        assert caught.value.pointer == "/0/parameters/properties/a"


# -- bad input -------------------------------------------------------------------------------


ODD = [
    *("f(x", "a\nb", "f)", 'say"', "it's", " padded", "f,g", "tab\there", "a=b", "a#b"),
    *("from", "None", "True", "lambda", "async", "__debug__", "2fa", "page-size", "two words"),
    *("x[0]", "\\", "**a", "{", "f-string", "a\u00ad", "\ufeffa"),
    *("\ufb01le", "\u017f", "\u2115", "\u00aa", "\u00b5"),
]
PLAIN = ["a", "match", "type", "case", "_", "print", "self", "créer", "日本", "__init__", "none"]


@pytest.mark.parametrize("name", [*ODD, "a..b", ".a", "a.", "a.None", "a.2", "a. b", "\ufb01.x"])
def test_tools_that_python_would_call_differently_are_refused(name: str) -> None:
    tool = _tool(name, {name: {"enum": [1]}})
    with pytest.raises(gcd.ConstraintError, match="expected a tool name in Python style") as caught:
        gcd.tool_calls([tool], style="python")
    assert repr(name) in str(caught.value)
    assert json.loads(gcd.tool_calls([tool], max_calls=1).shortest()) == [
        {"name": name, "arguments": {name: 1}}
    ]


@pytest.mark.parametrize("name", [*PLAIN, "a.b", "match.type.print"])
def test_tools_are_called_by_their_names_in_python(name: str) -> None:
    texts = list(gcd.tool_calls([{"name": name}], style="python", max_calls=1))
    assert texts == [f"[{name}()]".encode()]
    assert read(texts[0].decode(), "python") == [(name, {})]


@pytest.mark.parametrize(
    ("whitespace", "escapes"), [("compact", "all"), ("spaced", "canonical"), ("flexible", "all")]
)
def test_python_reads_every_argument_by_its_name(whitespace: str, escapes: str) -> None:
    """A keyword argument if the name is an identifier, else a member of an unpacked dictionary."""
    names = [name for pair in zip(ODD, PLAIN * 3, strict=False) for name in pair]
    for some in (names[i : i + 5] for i in range(0, len(names), 5)):
        schema = {
            "type": "object",
            "properties": {name: {"enum": [i]} for i, name in enumerate(some)},
            "required": some[1:3],
        }
        language = gcd.tool_calls(
            [{"name": "f", "parameters": schema}],
            style="python",
            whitespace=whitespace,
            escapes=escapes,
        )
        for text in language.enumerate(40) + random_strings(language, 30):
            for function, arguments in read(text.decode(), "python"):
                assert function == "f"
                assert arguments == {n: i for i, n in enumerate(some) if n in arguments}
                assert list(arguments) == [name for name in some if name in arguments]
                assert set(some[1:3]) <= set(arguments)
                compile(text, "answer", "eval")


def _runs(items: list[str]) -> list[list[list[str]]]:
    """Return all ways to divide a list into runs."""
    if not items:
        return [[]]
    return [[items[:n], *rest] for n in range(1, len(items) + 1) for rest in _runs(items[n:])]


def test_unpacked_arguments_occur_alone_or_together() -> None:
    properties = {name: {"enum": [1]} for name in ("a-b", "from", "c", "2d")}
    schema = {"type": "object", "properties": properties, "required": ["from"]}
    expected = set()
    for mask in range(16):
        chosen = [name for i, name in enumerate(properties) if mask >> i & 1]
        for runs in _runs(chosen):
            if "from" in chosen and not any("c" in run and len(run) > 1 for run in runs):
                dicts = ("{" + ", ".join(f"'{name}': 1" for name in run) + "}" for run in runs)
                expected.add(", ".join("c=1" if "c" in d else f"**{d}" for d in dicts))
    for fewest, most in ((0, 4), (2, 4), (0, 2), (4, 4)):
        parameters = {**schema, "minProperties": fewest, "maxProperties": most}
        tool = {"name": "f", "parameters": parameters}
        found = {text.decode() for text in gcd.tool_calls([tool], style="python", max_calls=1)}
        assert {text.replace('"', "'") for text in found} == {
            f"[f({text})]" for text in expected if fewest <= text.count("1") <= most
        }


def test_names_that_python_reads_alike_stay_apart() -> None:
    schema = {"properties": {"\ufb01le": {"enum": [1]}, "file": {"enum": [2]}}}
    tool = {"name": "f", "parameters": {**schema, "required": ["\ufb01le", "file"]}}
    for text in gcd.tool_calls([tool], style="python", max_calls=1):
        assert read(text.decode(), "python") == [("f", {"\ufb01le": 1, "file": 2})]


def test_what_only_python_refuses() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "additionalProperties": True}}
    assert gcd.tool_calls([tool]).accepts('[{"name": "f", "arguments": {"any": 1}}]')
    with pytest.raises(gcd.UnsupportedSchemaError, match="additionalProperties"):
        gcd.tool_calls([tool], style="python")
