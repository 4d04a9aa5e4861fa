"""Tools of benchmarks and the JSON schemas that they stand for, in both notations."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import parameters_of
from gcd import ConstraintError, UnsupportedSchemaError, tool_calls
from gcd._languages.json_schema.keywords import CONTAINER
from scripts.check_tools import check, read_records

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
STYLES = ("json", "python")

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL = {"type": "boolean"}, {"type": "null"}
ARRAY, OBJECT = {"type": "array"}, {"type": "object"}
TUPLE, SET = {"type": "array", CONTAINER: "tuple"}, {"type": "array", CONTAINER: "set"}
CHARACTER = {"type": "string", "minLength": 1, "maxLength": 1}

MEANING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["string", "String", "str", "STRING"], STRING),
    **dict.fromkeys(["char", "Character"], CHARACTER),
    **dict.fromkeys(["integer", "int", "Integer", "long", "Long", "short", "byte"], INTEGER),
    **dict.fromkeys(["Bigint", "BigInt", "BigInteger", "INTEGER"], INTEGER),
    **dict.fromkeys(["number", "float", "Float", "double", "Double", "BigDecimal"], NUMBER),
    **dict.fromkeys(["boolean", "Boolean", "bool"], BOOLEAN),
    **dict.fromkeys(["null", "None", "NoneType"], NULL),
    **dict.fromkeys(["array", "Array", "list", "List", "ArrayList", "LinkedList"], ARRAY),
    **dict.fromkeys(["Vector", "Collection", "Sequence", "Iterable"], ARRAY),
    **dict.fromkeys(["Queue", "Deque", "Stack"], ARRAY),
    **dict.fromkeys(["tuple", "Tuple"], TUPLE),
    **dict.fromkeys(["set", "Set", "frozenset", "HashSet", "LinkedHashSet", "TreeSet"], SET),
    **dict.fromkeys(["object", "Object", "dict", "Dict", "Mapping", "Map", "HashMap"], OBJECT),
    **dict.fromkeys(["LinkedHashMap", "TreeMap", "Hashtable"], OBJECT),
    "any": {},
    "Any": {},
}


def _tools(schema: Any, name: str = "f") -> list[dict[str, Any]]:
    parameters = {"type": "dict", "properties": {"x": schema}, "required": ["x"]}
    return [{"name": name, "description": "Does it.", "parameters": parameters}]


def _flat(parameters: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "f", "description": "Does f.", "parameters": parameters, **more}]


def _convert(tools: list[dict[str, Any]]) -> Any:
    """Return the schema of the arguments of the only tool in a list, after conversion."""
    (tool,) = to_json_schema_tools(tools)
    return tool["parameters"]


def _standard(schema: Any) -> Any:
    """Return the schema that the schema of an argument stands for."""
    return _convert(_tools(schema))["properties"]["x"]


@pytest.mark.parametrize("name", MEANING)
def test_a_name_stands_for_a_schema(name: str) -> None:
    expected = MEANING[name]
    assert _standard({"type": name}) == expected
    assert _standard({"type": "List", "items": {"type": name}}) == ARRAY | {"items": expected}
    assert _convert(_flat({"x": {"type": name}}))["properties"]["x"] == expected


def test_every_name_is_tried_here() -> None:
    with pytest.raises(UnsupportedSchemaError, match="'Widget' is unknown") as caught:
        _standard({"type": "Widget"})
    listed = str(caught.value).partition("upper case: ")[2]
    assert {name.lower() for name in MEANING} == set(listed.split(", "))


# -- schemas in the dialect, and their meaning ---------------------------------------------------


def test_nested_schemas_are_translated_and_standard_ones_stay() -> None:
    written = {
        "type": "HashMap",
        "properties": {
            "a": {"type": "ArrayList", "items": {"anyOf": [{"type": "Map"}, {"type": "char"}]}},
            "b": {"type": "Map", "additionalProperties": {"type": "Set", "items": {"type": "int"}}},
            "c": {"anyOf": [{"type": "dict", "properties": {"d": {"type": "tuple"}}}, {}]},
            "e": {"type": "Double", "optional": "True"},
            "f": {"type": "long", "optional": True},
        },
        "required": ["a", "b"],
    }
    sets = {"type": "object", "additionalProperties": SET | {"items": INTEGER}}
    meant = {
        "type": "object",
        "properties": {
            "a": ARRAY | {"items": {"anyOf": [OBJECT, CHARACTER]}},
            "b": sets,
            "c": {"anyOf": [OBJECT | {"properties": {"d": TUPLE}}, {}]},
            "e": NUMBER,
            "f": INTEGER,
        },
        "required": ["a", "b"],
    }
    assert _standard(written) == _standard(meant) == meant
    wrapped = {"type": "function", "function": _tools(written)[0]}
    assert to_json_schema_tools([wrapped]) == [
        {"type": "function", "function": to_json_schema_tools(_tools(written))[0]}
    ]


def test_types_are_translated_wherever_a_schema_may_be() -> None:
    long, standard = {"type": "long"}, {"type": "integer"}
    for keyword in ("items", "contains", "additionalProperties", "additionalItems", "not", "if"):
        assert _standard({keyword: long}) == {keyword: standard}
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems", "items"):
        assert _standard({keyword: [long, True]}) == {keyword: [standard, True]}
    named = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
    for keyword in (*named, "dependencies"):
        assert _standard({keyword: {"type": long}}) == {keyword: {"type": standard}}
    for keyword in ("enum", "const", "default"):  # values, not schemas
        assert _standard({keyword: [long]}) == {keyword: [long]}


def test_several_types_are_alternatives() -> None:
    assert _standard({"type": ["string", "null"]}) == {"type": ["string", "null"]}
    assert _standard({"type": ["float", "null"]}) == {"anyOf": [NUMBER, NULL]}
    assert _standard({"type": ["String", "str"]}) == STRING
    assert _standard({"type": "Optional[List[str]]"}) == {
        "anyOf": [{"type": "array", "items": STRING}, NULL]
    }


# -- optional parameters -------------------------------------------------------------------------


def test_optional_decides_what_required_leaves_open() -> None:
    properties = {"a": {"type": "float"}, "b": {"type": "float", "optional": True}}
    parameters = {"type": "dict", "properties": properties, "required": ["a"]}
    for schema in (
        parameters,
        parameters | {"optional": ["b"]},
        parameters | {"properties": properties | {"b": {"type": "float", "optional": "True"}}},
        parameters | {"properties": {n: {"type": "float", "optional": False} for n in "ab"}},
    ):
        assert _convert(_flat(schema)) == {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a"],
        }
    assert _convert(_flat(properties))["required"] == ["a"]


def _object(**properties: Any) -> dict[str, Any]:
    return {"properties": properties, "required": ["a"]}


_PLACE = "/0/parameters/properties/b"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (_object(a={"optional": True}), "property 'a' at '/0/parameters' is marked optional"),
        ({**_object(a={}), "optional": ["a"]}, "property 'a' at '/0/parameters' is marked"),
        (_object(b={"optional": "perhaps"}), f"at '{_PLACE}' to be true or false, got 'perhaps'"),
        ({"a": {"type": "int", "optional": 3}}, "'optional' at '/0/parameters/a'"),
        (
            _object(b={"type": "char", "maxLength": 5}),
            f"'maxLength' at '{_PLACE}' is 5, but the type 'char' requires 1",
        ),
        ({"a": {"type": "char", "minLength": 2}}, "'minLength' at '/0/parameters/a' is 2, but the"),
        ({"a": {"type": "List[int]", "items": {"type": "string"}}}, "keep one of them"),
        ({"a": "int"}, "'/0/parameters/a' to be described by an object, got 'int'"),
    ],
)
def test_contradictions_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        _convert(_flat(parameters))


def test_required_is_a_list_of_names() -> None:
    with pytest.raises(ConstraintError, match="'required' beside '/0/parameters' to be a list"):
        _convert(_flat({"a": {"type": "int"}}, required="a"))


def test_members_that_a_flat_parameter_requires_of_an_object() -> None:
    point = {"type": "dict", "properties": {"x": {"type": "float"}}, "required": ["x"]}
    found = _convert(_flat({"at": point, "n": {"type": "int"}}))
    assert found["required"] == ["at", "n"]
    meant = OBJECT | {"properties": {"x": NUMBER}, "required": ["x"]}
    assert found["properties"] == {"at": meant, "n": INTEGER}


# -- parameters by name ---------------------------------------------------------------------------


_OPTIONAL: list[dict[str, Any]] = [
    {"type": "int, optional"},
    {"type": "Optional[int]"},
    {"type": "int", "default": None},
    {"type": "int", "default": ""},
    {"type": "int", "required": False},
    {"type": "int", "required": True, "default": 1},
    {"type": "float", "description": "Of space, default is 8.854e-12."},
    {"type": "str", "description": "Language; defaults to 'en'."},
    *(
        {"type": "str", "description": f"What it is{stated}"}
        for stated in (
            *(" (default 10)", ", default value = 3", " (default: -.5)", ". Default is [1, 2]."),
            *(". Default value is None.", ". DEFAULT: metric", ", default=x"),
            *(". Defaults to html, if at all", " (default is `json`)"),
        )
    ),
]
_REQUIRED: list[dict[str, Any]] = [
    {"type": "int"},
    *(
        {"type": "str", "description": description}
        for description in (
            *("The loan default: amount owed", "No default is applied", "Default language"),
            *("There is no default: 'x' must be said", "The default is required.", "default:"),
            *("Defaults to what the user said before", "(default user)", "Defaulted to 3"),
        )
    ),
]


@pytest.mark.parametrize(
    ("declaration", "required"),
    [*((each, False) for each in _OPTIONAL), *((each, True) for each in _REQUIRED)],
)
def test_which_parameters_may_be_left_out(declaration: Any, required: bool) -> None:
    assert _convert(_flat({"a": declaration}))["required"] == ["a"] * required


def test_a_default_in_a_json_schema_does_not_make_it_optional() -> None:
    schema = {"type": "dict", "properties": {"a": {"default": 1}}, "required": ["a"]}
    assert _convert(_flat(schema)) == schema | {"type": "object"}


def test_one_mark_makes_the_parameters_of_all_tools_optional() -> None:
    tools = [*_flat({"a": {"type": "int", "required": True}, "b": {"type": "int"}})]
    tools += [{"name": "g", "parameters": {"c": {"type": "int"}}}]
    found = [tool["parameters"]["required"] for tool in to_json_schema_tools(tools)]
    assert found == [["a"], []]
    assert _convert(_flat({"a": {"type": "int"}, "b": {"type": "int"}}, required=["b"]))[
        "required"
    ] == ["b"]


def test_a_parameter_may_have_the_name_of_a_keyword() -> None:
    names = ("type", "properties", "items", "required", "definitions", "$defs", "anyOf", "$ref")
    for name in names:
        tools = _flat({name: {"type": "str"}})
        assert _convert(tools)["properties"] == {name: STRING}
        assert parameters_of(tools[0]) == {name: {"type": "str"}}


def test_further_keywords_of_a_parameter_count() -> None:
    given = {"type": "str", "enum": ["C"], "example": "C", "unit": "K", "description": "d"}
    expected = STRING | {"enum": ["C"], "example": "C", "description": "d"}
    assert _convert(_flat({"unit": given}))["properties"] == {"unit": expected}
    with pytest.raises(UnsupportedSchemaError, match="divisibleBy") as caught:
        _convert(_flat({"a/b": {"type": "str", "divisibleBy": "x"}}))
    assert caught.value.pointer == "/0/parameters/a~1b"


def test_tools_without_parameters_are_left_as_they_are() -> None:
    for tool in ({"name": "f"}, {"name": "f", "parameters": {}}, {"name": "f", "parameters": [1]}):
        assert to_json_schema_tools([tool]) == [tool]
    sent = {"name": "f", "input_schema": OBJECT}
    assert to_json_schema_tools([{"type": "function", "function": sent}])[0]["function"] == sent


def _list(items: Any) -> dict[str, Any]:
    return ARRAY | {"items": items}


def _tuple(*items: Any) -> dict[str, Any]:
    return TUPLE | {"prefixItems": list(items), "items": False, "minItems": len(items)}


@pytest.mark.parametrize(
    ("text", "schema", "optional"),
    [
        ("str, optional", STRING, True),
        ("str, optional, default 'London, UK'", STRING, True),
        (" int , Optional", INTEGER, True),
        ("float, default=1.0", NUMBER, True),
        ("list(str)", _list(STRING), False),
        ("typing.List[int]", _list(INTEGER), False),
        ("List[List[float]], optional", _list(_list(NUMBER)), True),
        ("List[Union[int, float]]", _list({"anyOf": [INTEGER, NUMBER]}), False),
        ("Tuple[float, float]", _tuple(NUMBER, NUMBER), False),
        ("List[Tuple[int, int]]", _list(_tuple(INTEGER, INTEGER)), False),
        ("Tuple[int, ...]", TUPLE | {"items": INTEGER}, False),
        ("Set[str]", SET | {"items": STRING}, False),
        ("Dict[str, float]", {"type": "object", "additionalProperties": NUMBER}, False),
        ("Dict[str, Any]", {"type": "object", "additionalProperties": {}}, False),
        ("Union[int, str]", {"anyOf": [INTEGER, STRING]}, False),
        ("int | None", {"anyOf": [INTEGER, NULL]}, True),
        ("Optional[str]", {"anyOf": [STRING, NULL]}, True),
        ('Literal["a", "b"]', {"enum": ["a", "b"]}, False),
        ("Annotated[int, 'positive']", INTEGER, False),
        ("Any", {}, False),
    ],
)
def test_type_strings(text: str, schema: Any, optional: bool) -> None:
    unknown = Counter[str]()
    (tool,) = to_json_schema_tools(_flat({"a": {"type": text}}), unknown)
    found = tool["parameters"]
    required = [] if optional else ["a"]
    assert (found["properties"]["a"], found["required"], unknown) == (schema, required, {})


@pytest.mark.parametrize(
    ("text", "schema", "unknown"),
    [
        ("Callable[[float], float]", {}, ["Callable[[float], float]"]),
        ("List[np.ndarray]", _list({}), ["np.ndarray"]),
        ("Union[int, Decimal]", {"anyOf": [INTEGER, {}]}, ["Decimal"]),
        ("Dict[int, str]", {}, ["Dict[int, str]"]),
        ("two words", {}, ["two words"]),
        ("List[", {}, ["List["]),
        ("Annotated()", {}, ["Annotated()"]),
        ("int[3]", {}, ["int[3]"]),
        ("|".join(["int"] * 9000), {}, ["|".join(["int"] * 9000)]),
        ("__import__('os').system('true')", {}, ["__import__('os').system('true')"]),
    ],
)
def test_unknown_types_become_anything_and_are_reported(
    text: str, schema: Any, unknown: list[str]
) -> None:
    found = Counter({unknown[0]: 1})
    (tool,) = to_json_schema_tools(_flat({"a": {"type": text}}), found)
    assert tool["parameters"]["properties"] == {"a": schema}
    assert found == {unknown[0]: 2}  # they are added


# -- unknown types -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Widget", "", "List[Widget]"])
@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"properties": {"a/b": "?"}}, "/1/function/parameters/properties/a~1b"),
        ({"properties": {"a": {"items": "?"}}}, "/1/function/parameters/properties/a/items"),
        ({"a": {"type": "Map", "properties": {"b": "?"}}}, "/1/function/parameters/a/properties/b"),
        ({"$defs": {"a": {"anyOf": [True, "?"]}}}, "/1/function/parameters/$defs/a/anyOf/1"),
        ({"properties": {"a": {"type": ["null", "?"]}}}, "/1/function/parameters/properties/a"),
    ],
)
def test_an_unknown_type_is_refused_by_name_and_place(
    name: str, parameters: Any, pointer: str
) -> None:
    text = json.dumps(parameters)
    schema = {"type": name} if 'type": [' not in text else name
    filled = json.loads(text.replace('"?"', json.dumps(schema)))
    tool = {"type": "function", "function": {"name": "g", "parameters": filled}}
    with pytest.raises(UnsupportedSchemaError, match="is unknown") as caught:
        to_json_schema_tools([{"name": "f"}, tool])
    assert (caught.value.keyword, caught.value.pointer) == ("type", pointer)
    assert repr(name) in str(caught.value)


def test_too_deep_tools_are_refused() -> None:
    deep: Any = {"type": "Widget"}
    for _ in range(2000):
        deep = {"type": "List", "items": deep}
    for parameters in ({"properties": {"a": deep}}, {"a": deep}):
        with pytest.raises(ConstraintError, match="at most 64 levels"):
            tool_calls(to_json_schema_tools(_flat(parameters)))


# -- public lists ---------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not there")
@pytest.mark.parametrize(
    ("pattern", "step", "refused", "rejected"),
    [("bfcl/*.json", 2, 2, 0), ("xlam/first_600.jsonl", 6, 0, 2), ("toolcalls/*.json", 9, 4, 16)],
)
def test_public_lists_compile_and_take_their_gold_answers(
    pattern: str, step: int, refused: int, rejected: int
) -> None:
    """Each list compiles in one style, alternating; `scripts.check_tools` checks both styles."""
    records = [each for path in sorted(SHARED.glob(pattern)) for each in read_records(path)[0]]
    reports = [check(records[i::2][::step], style) for i, style in enumerate(STYLES)]
    assert sum(len(report.compiled) for report in reports) >= 100
    assert sum(len(report.refused) for report in reports) <= refused
    assert sum(len(report.rejected) for report in reports) <= rejected
