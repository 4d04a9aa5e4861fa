"""Schemas, patterns, grammars and lists of tools that are refused, by the words of the error."""

from __future__ import annotations

import re
from typing import Any

import pydantic
import pytest

import gcd
from gcd._errors import LimitError, at
from gcd._languages.text.dialects import search_language
from gcd._languages.text.regex import MAX_NESTING

NEWEST = "https://json-schema.org/draft/2020-12/schema"
DRAFT = "http://json-schema.org/draft-0{}/schema#"
N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
API = {"openapi": "3.1.0", "info": {}, "paths": {}, "components": {"schemas": {"A/B": N}}}
LARGE, SIXTY = 10**300, list(range(60))
LONG_TEXT = {"type": "string", "minLength": 9_000, "maxLength": 65_536}
NONE = {"type": "string", "minLength": 3, "maxLength": 2}
WITHIN = {"type": "object", "properties": {"k": NONE, "free": NONE}, "required": ["k"]}
LISTED = {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}
OUTER = {"type": "object", "properties": {"a": {}, "b": LISTED}, "required": ["a", "b"]}
MANY = {"anyOf": [{"properties": {f"p{i}": True}} for i in range(20)]}
TREE = {"type": "object", "properties": {"kids": {"items": {"$ref": "#"}}}, "required": ["kids"]}


def dynamic(way: str, **x: Any) -> dict[str, Any]:
    """Two definitions with one dynamic anchor."""
    named = {"$dynamicAnchor": "n"} if way == "dynamic" else {"$recursiveAnchor": True}
    return {"x": {"$id": "x", **named, **x}, "y": {"$id": "y", **named}}


def nested(depth: int, step: Any) -> Any:
    return step(nested(depth - 1, step)) if depth else {}


def unique(**more: Any) -> dict[str, Any]:
    return {"type": "array", "uniqueItems": True, **more}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SCHEMAS: list[tuple[Any, str]] = [
    # -- not supported
    ({"type": "string", "pattern": r"(a)\1"}, "'pattern' at the root"),
    ({"pattern": r"a\Z"}, r"'pattern' at the root.*write `\$`"),
    ({"properties": {"a/b": {"items": {"disallow": {}}}}}, "'disallow' at '/properties/a~1b/it"),
    ({"anyOf": [{"type": "null"}, {"extends": []}]}, "'extends' at '/anyOf/1'"),
    ({"$ref": "#/$defs/d", "$defs": {"d": {"divisibleBy": 2}}}, "'divisibleBy' at '/[$]defs/d'"),
    ({"items": [{"pattern": r"(a)\1", "type": "string"}]}, "'pattern' at '/items/0'"),
    ({"dependencies": {"a": {"extends": {}}}}, "'extends' at '/dependencies/a'"),
    ({"items": [True], "additionalItems": {"disallow": 1}}, "'disallow' at '/additionalItems'"),
    ({"items": {"uniqueItems": True}}, "'uniqueItems' at '/items'"),
    ({"patternProperties": {r"(x)\1": True}}, "'patternProperties' at the root"),
    ({"items": {"$ref": "https://example.com/schema"}}, "'[$]ref' at '/items'"),
    ({"$defs": dynamic("dynamic"), "items": {"$dynamicRef": "x#n"}}, "'[$]dynamicRef' at '/items'"),
    (
        {"$defs": dynamic("recursive", **{"not": {"$recursiveRef": "#"}}), "items": {"$ref": "x"}},
        "'[$]recursiveRef' at '/[$]defs/x/not'",
    ),
    ({"$schema": DRAFT.format(3)}, "'[$]schema' at the root"),
    ({"$schema": "https://example.com/dialect"}, "'[$]schema' at the root"),
    ({"$schema": DRAFT.format(7), "not": {"$schema": DRAFT.format(4)}}, "'[$]schema' at '/not'"),
    ({"items": {"$ref": "a"}, "$defs": {k: {"$id": "a"} for k in "bc"}}, "'[$]ref' at '/items'"),
    ({"items": {"$ref": "#a"}, "$defs": {k: {"$anchor": "a"} for k in "bc"}}, "'[$]ref' at '/item"),
    ({"items": {"type": "string"}, "not": {"uniqueItems": True}}, "'uniqueItems'"),
    # -- malformed
    ({"properties": []}, "'properties' at the root"),
    ({"properties": {1: {}}}, "'properties' at the root"),
    ({"properties": {"a": 3}}, "the schema at '/properties/a'"),
    ({"properties": {"a": None}}, "'/properties/a' .* got None"),
    ({"properties": {"a": "string"}}, """'/properties/a' .* write {"type": "string"}"""),
    ({"items": {"anyOf": [{}, "text"]}}, "'/items/anyOf/1' .* got 'text'; correct it"),
    ({"properties": {"a": {"pattern": "/^a$/"}}}, r"'/properties/a' .* write '\^a\$'"),
    ({"patternProperties": {"/a$/": {}}}, r"'patternProperties' at the root .* write 'a\$'"),
    ({"items": {"type": "text"}}, "'type' at '/items'"),
    ({"type": None, "description": "a value"}, "'type' at the root .* got None"),
    ({"maxLength": -1}, "'maxLength'.*-1"),
    ({"minimum": "3"}, "'minimum'"),
    ({"minimum": "x", "exclusiveMinimum": True}, "'minimum'"),
    ({"maximum": float("nan")}, "'maximum'"),
    ({"required": ["a", 1]}, "'required'"),
    ({"enum": "abc"}, "'enum'"),
    ({"const": object()}, "'const'"),
    ({"anyOf": []}, "'anyOf'"),
    ({"not": 3}, "'not'"),
    ({"multipleOf": 0}, "'multipleOf'.*0"),
    ({"uniqueItems": 1}, "'uniqueItems'"),
    ({"dependentRequired": {"a": "b"}}, "'dependentRequired'"),
    ({**CITY, "propertyOrdering": "a"}, "'propertyOrdering' at the root .* list of names"),
    ({"$ref": "#nowhere"}, "add an .anchor"),
    ({"allOf": [True], "$ref": "#/allOf/-1"}, "has no target"),
    ({"$ref": "#/title", "title": "t"}, "to be an object or a boolean"),
    ({"$ref": "#"}, "leads back to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads back to itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "leads back to itself"),
    ({"$id": "http://x/", "items": {"$id": "//[y"}}, "expected a URI reference"),
    ({"$schema": NEWEST, "$id": "#foo"}, "anchor"),
    ({"$schema": NEWEST, "properties": {"a": {"$id": "x#y"}}}, "/properties/a"),
    ({"items": [3]}, "the schema at '/items/0'"),
    ({"dependencies": 3}, "'dependencies' at the root"),
    ({"items": [True], "prefixItems": [True]}, "beside prefixItems"),
    ({"dependencies": {"a": ["b"]}, "dependentRequired": {"a": ["c"]}}, "has 'a'"),
    ("string", "expected a JSON schema .* got the text"),
    ('"string"', "to be an object or a boolean"),
    # -- mappings without keywords
    ({"city": "string"}, '"properties": {"city": '),
    ({"title": "t", "city": {"type": "string"}}, '"properties": {"city": '),
    ({"$schema": NEWEST, "minLenth": 3}, "minLenth"),
    ({"A": N, "B": N}, '"properties": {"A": '),
    ({"name": {"type": "string"}, "schema": {"type": "string"}}, '"properties": {"name": '),
    ({"text": {"type": "string"}}, '"properties": {"text": '),
    ({"name": "answer", "strict": True}, "none of its keywords"),
    (API, '"[$]ref": "#/components/schemas/A~1B"'),
    ({"swagger": "2.0", "paths": {}, "definitions": {"A": N}}, '"[$]ref": "#/definitions/A"'),
    ({"name": "f", "description": "d", "parameters": N}, "gcd.tool_calls"),
    ({"type": "function", "function": {"name": "f", "parameters": N}}, "gcd.tool_calls"),
    # -- without values
    (NONE, "schema: type, minLength and maxLength exclude each other; correct the"),
    ({**OUTER, "$defs": {"x": WITHIN}}, "defs/x/properties/k' has no values, bec.*; correct it$"),
    ({"type": "string", "format": "date", "pattern": "/"}, "Empty.*type, format and pattern excl"),
    ({"enum": ["a", "bc"], "maxLength": 0}, "Empty.*enum and maxLength exclude each other"),
    ({"allOf": [{"type": "null"}, {"type": "array"}]}, "type at '/allOf/0' and type at '/allOf/1'"),
    ({"enum": []}, "enum excludes every value"),
    ({"properties": {"d": {"enum": []}}, "required": ["d"], "type": "object"}, "enum excludes ev"),
    ({"type": "integer", "minimum": 1, "exclusiveMaximum": 2, "multipleOf": 2}, "minimum, "),
    ({"type": "string", "not": {"type": "string"}}, "Empty.*schema; correct the schema"),
    ({**CITY, "required": ["a", "b"], "additionalProperties": False}, "Empty.*'a'"),
    ({"type": "object", "required": ["ab"], "patternProperties": {"^a": False}}, "'patternProp"),
    ({"type": "object", "required": ["a"], "propertyNames": {"pattern": "b"}}, "'propertyNames' a"),
    (
        {"$defs": {"n": {**TREE, "properties": {"kids": {"enum": []}}}}, "$ref": "#/$defs/n"},
        "Empty.*the part at '/[$]defs/n/properties/kids' has no values",
    ),
    ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, "a way to end"),
    ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, "max_depth=3"),
    *(
        ({"type": "object", "additionalProperties": False, "minProperties": fewest}, "Empty")
        for fewest in (3, LARGE)
    ),
    # -- too large
    *(
        (schema, "ConstraintError")
        for larger in (-(10**401), 10**5000)
        for schema in ({"minimum": larger}, {"enum": [larger]}, {"minLength": larger})
    ),
    (an_object(a={"type": "string", "maxLength": 10**6}), "State.*'maxLength' at '/properties/a'"),
    ({"items": {"minLength": LARGE}}, "State.*'minLength' at '/items'"),
    ({"$defs": {"a": {"minItems": LARGE}}, "$ref": "#/$defs/a"}, "'minItems' at '/[$]defs/a'"),
    ({"anyOf": [{"minProperties": LARGE}]}, "State.*'minProperties' at '/anyOf/0'"),
    ({"contains": {"const": 1}, "minContains": LARGE}, "State.*'minContains' at the root"),
    ({"items": {"maxItems": 10**7, "items": {"maxItems": 9}}}, "State.*'maxItems' at '/items'"),
    ({"pattern": "(a|b)*a(a|b){20}$"}, "State.*'pattern' at the root"),
    ({"enum": [f"{i}" * 40 for i in range(9_000)]}, "State.*'enum' at the root"),
    (nested(30, lambda inner: an_object(a=inner, b=inner)), "at most 50000 schemas"),
    (nested(200, lambda inner: {"items": inner}), "expected at most .* nested schemas"),
    ({"allOf": [MANY] * 5}, "'anyOf' at '/allOf/0'.*alternatives"),
    ({"patternProperties": {f"^{c}": True for c in "abcdefgh"}}, "'patternProp.*got 8; declare"),
    # Refused before anything is built, not by a limit.
    (unique(items={"oneOf": [{"const": i} for i in SIXTY]}), "Unsupp.*'uniqueItems' at the root"),
    (unique(items={"type": "integer", "minimum": 1, "maximum": 60}, minItems=60), "Unsupp.*unique"),
    (unique(prefixItems=[{"enum": SIXTY[:39]}] * 60, items=False), "Unsupp.*'uniqueItems' at the"),
    (unique(prefixItems=[{"enum": [*range(i, i + 9)]} for i in SIXTY]), "Unsupp.*'uniqueItems' at"),
    ({"type": "object", "additionalProperties": {"const": 1}, "minProperties": 3}, "'minProperti"),
]
BOUNDS: list[tuple[Any, str]] = [  # only upper bounds may be left to a check
    ({"type": "string", "not": {"maxLength": 70_000}}, "State.*maxL.*at '/not'.*ing up to 70000"),
    ({"type": "string", "minLength": 100_000, "maxLength": 200_000}, "State.*'minLength' at the r"),
    (
        {"type": "array", "minItems": 40, "items": LONG_TEXT},
        r"State.*'minItems' at the root.*unsupported=.* maxLength 65536 at '/items'",
    ),
]

BOTH: dict[str, list[str]] = {  # in both dialects of patterns
    "a back-reference is .*at position 3 ": [r"(a)\1"],
    "a back-reference is .*at position 7 ": [r"(?<x>a)\k<x>"],
    "an octal escape": [r"[\1]", r"\01"],
    r"the escape `\\q`": [r"\q"],
    "a lone surrogate": [r"\uD800", "a\ud800"],
    r"`\\x4`": [r"\x4"],
    "after the backslash, got the end": ["a\\", "[a\\"],
    r"a `\(` without": ["(a"],
    r"a `\)` without `\(`.*at position 1 ": ["a)(b"],
    r"a `\[` without `\]`.*at position 0 ": ["["],
    "a quantifier has nothing to repeat": ["*", "a|{2}"],
    r"`\{3,1\}`": ["a{3,1}"],
    "the range `b-a` in ascending order.*at position 1 ": ["[b-a]"],
    r"the property `\\p{Nonsense}`": [r"\p{Nonsense}"],
    "at most 50 nested": ["(" * (MAX_NESTING + 1) + ")" * (MAX_NESTING + 1), "(" * 100_000],
}
PATTERNS: dict[str, list[str]] = {
    "a back-reference is .*at position [48] ": [r"(?P<x>a)(?P=x)", "(a)?(?(1)b)"],
    r"`\\[<b]` means different.*at position 0 ": [r"\<a", r"\b{start}a"],
    "without `\\)`": ["(?=(a)"],
    "an atomic group": ["(?>a)"],
    r"`\+` after a quantifier .*at position [24] ": ["a*+", "a{2}+"],
    "the flag [RLaq]": ["(?R)a", "(?L)a", "(?-a)a", "(?q)a"],
    r"the group `\(\?[)']": ["(?)a", "(?'n'a)"],
    "two groups have the name 'n'.*at position 8 ": ["(?P<n>a)(?P<n>b)"],
    r"a comment `\(\?#` without": ["(?#a"],
    r"a `\[` without `\]`.*at position 1 ": ["a[b[c]"],
    "a quantifier has nothing to repeat": ["{,2}"],
    "flags cannot be repeated": ["(?i)*"],
    "`{ 2 }` means different.*at position 1 ": ["a{ 2 }"],
    "the range": [r"[\w-a]", r"[a-\d]", "[a-[b]]"],
    "`--` at the start of a class": ["[--/]"],
    "a class operator .*at position [14] ": ["[a&&]", "[&&a]"],
    "the class": ["[[:letter:]]"],
    "'[ #]' here under the flag x.*at position [56] ": ["(?x)[a b]", "(?x)[a#]"],
    "white space": ["(?x)a\u2028"],
    r"the property `\\p`": [r"\p"],
    r"the escape `\\G`": [r"\G"],
    "an escape": [r"\U00110000"],
    "at most 50 nested": ["[" * 10_000 + "]" * 10_000],
}
SEARCHES: dict[str, list[str]] = {
    r"the escape `\\[BZk]`": [r"[\B]", r"[\Z]", r"[\k]"],
    r"the anchor `\\A` .* write `\^`": [r"\Aab\Z"],
    r"the anchor `\\[zZ]` .* write `\$`": [r"ab\Z", r"ab\z"],
    "a lone surrogate": [r"\uDE00\uD83D", r"\u{DE00}"],
    "an escape": [r"\u{110000}"],
    r"`\\u{`": [r"\u{}"],
    r"`\\u1`": [r"\u12"],
    r"`\\c`": [r"\c1", r"\c"],
    r"the group `\(\?(ii|-:)` .*at position 0 ": ["(?ii:a)", "(?-:a)"],
    r"the group `\(\?": ["(?x:a)", "(?P<x>a)", "(?>a)", "(?#a)", "(?<1>a)", "(?"],
    r"got `(\(\?=a\)\*|\\b\+)`.*at position 0 ": ["(?=a)*", r"\b+"],
    "a quantifier has nothing to repeat": ["a++", "a{2}{3}"],
    "`{,n}`": ["a{,3}"],
    r"`(\^\*|\$\{2\})`": ["^*a", "a${2}"],
    r"the property `\\p({Greek}|{letter})`": [r"\p{Greek}", r"\p{letter}"],
    "the property": [r"\p{Script=L}", r"\p{gc=Greek}", r"\p{foo=L}"],
    r"the property `\\p`": [r"\pL", r"\p{^L}", r"[\p{}]"],
}

LARK: dict[str, list[str]] = {
    "back-reference": [r"start: /(a)\1/"],
    "atomic group": ["start: /(?>a)/"],
    "look-around": ["start: A\nA: /a(?=b)/"],
    r"`\[:` in a class": ["start: /[[:alpha:]]/"],
    "1 arguments of the template 't', got 0": ['start: t "x"\nt{x}: x'],
    "template arguments": ['start: t{"a"}\nt{x, y}: x y'],
    "name of a file": ["orders.lark"],
    "empty text; write a rule": [""],
    "which has no rule": ["json", "%ignore /a/"],
    "use gcd.json_schema": ['{"type": "object"}'],
    'pass dialect="gbnf"': ['root ::= "a"'],
    "declared but not defined": ["start: A\n%declare A"],
    "import of a file": ["start: A\n%import .other.A"],
    r"import of a file \(nothing.A\)": ["start: A\n%import nothing.A"],
    "lark cannot parse": ["start: A\n%import common.NOTHING", "start: a"],
    "no rule 'start'; use one of begin": ['begin: "a"'],
    "from a smaller to a larger number": ['start: "a" ~ 3..2'],
    "line 1": ["start: ("],
    "no finite text": ['start: "x" start'],
}
GBNF: dict[str, list[str]] = {
    "empty text; write a rule": [" \n"],
    'pass dialect="lark"': ['start: "a"'],
    "reference to tokens": ["root ::= <think>", "root ::= !<[7]> a"],
    "line 1, column 1[35]": ['root ::= "a" (= "b")', 'root ::= "a"{0,-1}'],
    "line 1, column 1 ": ['root := "a"'],
    "another at line 2": ['root ::= "a"\nroot ::= "b"'],
    "no rule 'a'": ["root ::= a"],
    r"escape \\[qd]": [r'root ::= "\q"', r"root ::= [\d]"],
    "from a smaller to a larger character": ["root ::= [z-a]"],
    "at least one character": ["root ::= []"],
    "from a smaller to a larger number": ['root ::= "a"{3,2}'],
    "surrogate": [r'root ::= "\ud800"'],
}
EBNF: dict[str, list[str]] = {
    "use gcd.json_schema for a schema, and gcd.tool_calls": ['[{"name": "f"}]'],
    'pass dialect="lark"': ['?start: "a"'],
    "TagDispatch": ['root ::= TagDispatch(("a", b))'],
}


class Add(pydantic.BaseModel):
    a: int


def undocumented(city: str) -> None: ...


def untyped(city) -> None:  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        city: the city
    """


def types(kind: Any) -> list[Any]:
    return [{"name": "f", "parameters": an_object(**{"a/b": {"items": {"type": kind}}})}]


TOOLS: list[tuple[Any, str]] = [
    ("not a list", "to be a list.*json.loads"),
    (None, "to be a list"),
    ({"name": "f"}, "to be a list.*got .*; put the tool into a list"),
    ({"type": "function", "function": {"name": "f"}}, "; put the tool into a list"),
    ({"tools": 3}, "tools at '/tools' to be a list"),
    ({"tools": [], "functions": []}, "got 'tools' and 'functions'; keep one"),
    ({"tools": [{"description": "x"}]}, r"tool 0 \(at '/tools/0'\): expected a tool with a name"),
    ({"function_declarations": {"name": "f"}}, "tool 0: expected 'function_declarations' to"),
    ([{"functionDeclarations": [3]}], "tool at '/0/functionDeclarations/0' to be an object"),
    ([{"google_search": {}}], "tool with a name, .* got .* 'google_search'; remove it if the "),
    ([{"type": "web_search"}], "a name for tool 0 of type 'web_search', got none; remove it"),
    ([{"type": "custom", "name": "x"}], "for the tool 'x' of type 'custom' at '/0'"),
    ([{"name": "sh", "type": "bash_20250124"}], "tool 'sh' of type 'bash_20250124' at '/0'"),
    ([{"toolSpec": []}], r"tool 0: expected 'toolSpec' to be an object, got \[\]"),
    ([{"toolSpec": {}, "function": {}}], "both 'toolSpec' and 'function'|'function' and"),
    ([{"description": "nameless"}], "tool 0: expected a tool with a name"),
    ([{"name": "f"}, {"name": ""}], "tool 1: expected 'name'"),
    ([{"name": 3}], "tool 0: expected 'name' to be a non-empty string, got 3"),
    ([{"type": "function", "function": "f"}], "tool 0: expected 'function'"),
    ([{"name": "f"}, {"name": "f"}], "got 'f' for both tool 0 and tool 1"),
    ([{"name": "f", "parameters": ["a"]}], r"tool 0 \(f\): expected 'parameters'"),
    ([{"name": "f", "parameters": {"type": ["object", "null"]}}], "to have type 'object'"),
    ([{"type": "function", "name": "x", "function": {"name": "y"}}], "both 'name' and"),
    ([{"name": "f", "input_schema": [1]}], r"tool 0 \(f\): expected 'input_schema' to be a JSON s"),
    ([{"name": "f", "inputSchema": {"a": {"type": "str"}}}], "'inputSchema' to be a JSON"),
    ([{"name": "f", "parameters": {}, "input_schema": {}}], "'f', got both 'parameters' and"),
    ([{"name": "f", "parameters": {"type": "dict"}}], "type 'object', got .* write .*properties"),
    *(
        (
            [{"name": "f", "parameters": {name: {"type": "str"}}}],
            r"tool 0 \(f\).*ing/conversion\.py",
        )
        for name in ("city", "type", "properties", "items", "definitions", "$ref")
    ),
    (types("dict"), r"'/0/parameters/properties/a~1b/items' .* must be one of .* object.*, got 'd"),
    (types("List[int]"), r"must be one of .* array.*, got 'List\[int\]'"),
    (types("str, optional"), "must be one of .* string.*, got 'str, optional'"),
    (types(["float", "null"]), r"must be one of .* number.*, got \['float', 'null'\]"),
    (
        [{"parameters": CITY, "function": {"name": "f"}}],
        "tool 'f' inside .*, got them beside 'func",
    ),
    *(
        ([{key: [{"name": "g"}], "google": {}}], f"'google' at '/0'.*beside '{key}'.* remove it")
        for key in ("function_declarations", "functionDeclarations")
    ),
    ([undocumented], "tool 0.*cannot read the function 'undocumented': .* no docstring"),
    ([untyped], "tool 0.*get_json_schema cannot read the function 'untyped': .* type hint"),
    ([int], "tool 0.*schema of the parameters to have type 'object', got 'integer'"),
    ([Add(a=1)], "tool 0.*pass a mapping, a function or a class"),
    ([Add.model_json_schema()], 'tool 0.*write {"name": "Add", "parameters": schema}'),
    ([{"$ref": "#/$defs/a", "$defs": {"a": {}}}], 'write {"name": "...", "parameters": schema}'),
    ([], "Empty.*there are no tools"),
    ([{"name": "f", "parameters": {**CITY, "required": ["a"], "enum": []}}], "none of the tools"),
    ([{"name": "f", "parameters": an_object(a={"minimum": "low"})}], "'/0/parameters/properties"),
    ([{"name": "f", "parameters": an_object(d={"disallow": 1})}], "'/0/parameters/properties/d'"),
]


def rows(said: dict[str, list[str]]) -> list[tuple[Any, str]]:
    return [(given, message) for message, several in said.items() for given in several]


READERS: list[tuple[str, Any, list[tuple[Any, str]]]] = [
    ("schema", lambda s: gcd.json_schema(s, unknown="ignore", unsupported="refuse"), SCHEMAS),
    ("bounds", gcd.json_schema, BOUNDS),
    ("regex", gcd.regex, rows(BOTH) + rows(PATTERNS)),
    ("search", search_language, rows(BOTH) + rows(SEARCHES)),
    ("lark", gcd.grammar, rows(LARK)),
    ("gbnf", lambda text: gcd.grammar(text, "gbnf"), rows(GBNF)),
    ("ebnf", lambda text: gcd.grammar(text, "ebnf"), rows(EBNF)),
    ("tools", gcd.tool_calls, TOOLS),
]


@pytest.mark.parametrize(
    ("read", "given", "message"),
    [
        pytest.param(read, *row, id=f"{kind} {number}: {row[1][:40]}")
        for kind, read, table in READERS
        for number, row in enumerate(table)
    ],
)
def test_what_is_refused_is_named(read: Any, given: Any, message: str) -> None:
    with pytest.raises(gcd.ConstraintError) as caught:
        read(given)
    error, said = caught.value, str(caught.value)
    assert re.search(message, f"{type(error).__name__}: {said}", re.DOTALL)
    assert len(said) < 1_000
    if isinstance(error, gcd.UnsupportedSchemaError | LimitError) and error.pointer is not None:
        assert f"keyword {error.keyword!r} {at(error.pointer)}" in said
    if read in (gcd.regex, search_language):
        assert f"of the pattern {given[:200]!r}"[:-1] in said
