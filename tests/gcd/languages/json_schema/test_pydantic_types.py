"""Languages of pydantic classes, against pydantic's own validation."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import itertools
import json
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Callable, Hashable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import typing_extensions

import gcd
from tests.gcd.random_strings import random_strings

pydantic = pytest.importorskip("pydantic")
Field = pydantic.Field


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: float


class Inner(pydantic.BaseModel):
    code: str = Field(pattern=r"^\d[[:upper:]]$")


def model(annotation: Any, **config: Any) -> Any:
    return pydantic.create_model(
        "Model", __config__=pydantic.ConfigDict(**config), x=(annotation, ...)
    )


def language(annotation: Any, **config: Any) -> gcd.Automaton:
    return gcd.json_schema(model(annotation, **config), unknown="refuse")


def is_valid(kind: Any, text: str | bytes) -> bool:
    try:
        kind.model_validate_json(text)
    except pydantic.ValidationError:
        return False
    return True


Decimal, Date, Time, Delta = decimal.Decimal, datetime.date, datetime.time, datetime.timedelta
# For each type: values in the language, and values that pydantic refuses.
TYPES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "datetime": (
        datetime.datetime,
        ["2024-05-01T10:20:30Z", "0001-01-01T00:00:00+23:59", "2024-05-01T10:20:30.123456"],
        ["2016-12-31T23:59:60Z", "0000-05-01T10:20:30Z", "2023-02-29T10:20:30Z"],
    ),
    "NaiveDatetime": (
        pydantic.NaiveDatetime,
        ["2024-05-01T10:20:30", "2024-05-01T10:20:30.5"],
        ["2024-05-01T10:20:30Z", "2024-05-01T10:20:30+01:00"],
    ),
    "AwareDatetime": (
        pydantic.AwareDatetime,
        ["2024-05-01T10:20:30Z", "2024-05-01T10:20:30-01:00"],
        ["2024-05-01T10:20:30"],
    ),
    "PastDatetime": (pydantic.PastDatetime, ["2020-05-01T10:20:30Z"], ["9999-05-01T10:20:30Z"]),
    "date": (Date, ["2024-02-29", "0001-01-01"], ["0000-01-01", "2023-02-29"]),
    "PastDate": (pydantic.PastDate, ["2020-12-31"], ["9999-01-01"]),
    "bounded date": (
        Annotated[Date, Field(gt=Date(2023, 12, 31), le=Date(2024, 3, 9))],
        ["2024-01-01", "2024-03-09"],
        ["2023-12-31", "2024-03-10"],
    ),
    "time": (Time, ["10:20:30", "10:20:30.25", "10:20:30Z"], ["23:59:60Z", "24:00:00"]),
    "timedelta": (
        Delta,
        ["P1DT2H", "PT1.5S", "-P1D", "P999999999DT23H59M59S", "P142857142W", "PT0S", "P1Y2M"],
        ["P1000000000D", "P9999999999999W", "P", "PT", "P142857143W"],
    ),
    "positive timedelta": (Annotated[Delta, Field(gt=Delta(0))], ["PT1S"], ["PT0S", "-P1D"]),
    "Decimal": (
        Decimal,
        [1.5, -3, "1.5", "-0.10", "12345678901234567890.5"],
        ["NaN", "Infinity", "x", ""],
    ),
    "Decimal with digits": (
        Annotated[Decimal, Field(max_digits=6, decimal_places=2)],
        [1234.56, "1234.56", "0.05", 5],
        ["12345.6", "1.234", 12345.6],
    ),
    "Decimal with max_digits": (
        Annotated[Decimal, Field(max_digits=3)],
        ["1.23", "0.123", 12.3],
        ["1234", "0.0012"],
    ),
    "Decimal with decimal_places": (
        Annotated[Decimal, Field(decimal_places=2, ge=0)],
        ["100000.25", 0.25],
        ["-1", "0.125"],
    ),
    "Decimal within bounds": (
        Annotated[Decimal, Field(gt=0, le=5)],
        ["0.01", "5", 5],
        ["0", "5.01", 0],
    ),
    "UUID": (uuid.UUID, ["0f8b3c1e-7a52-1d6b-1c01-5e2f4a6b8d7c"], ["none"]),
    **{
        f"UUID{n}": (
            getattr(pydantic, f"UUID{n}"),
            [f"0f8b3c1e-7a52-{n}d6b-9c01-5e2f4a6b8d7c"],
            ["0f8b3c1e-7a52-2d6b-9c01-5e2f4a6b8d7c", f"0f8b3c1e-7a52-{n}d6b-1c01-5e2f4a6b8d7c"],
        )
        for n in (1, 3, 4, 5, 6, 7, 8)
        if hasattr(pydantic, f"UUID{n}")
    },
    "IPv4Address": (ipaddress.IPv4Address, ["127.0.0.1"], ["256.0.0.1"]),
    "IPv6Address": (ipaddress.IPv6Address, ["::1", "fe80::1:2"], ["1::2::3"]),
    "IPv4Interface": (ipaddress.IPv4Interface, ["127.0.0.1/8"], ["127.0.0.1/33"]),
    "IPv6Interface": (ipaddress.IPv6Interface, ["::1/128"], ["::1/129"]),
    "IPv4Network": (ipaddress.IPv4Network, ["10.0.0.0/8", "10.128.0.0/9"], ["10.0.0.1/8"]),
    "IPv6Network": (ipaddress.IPv6Network, ["fe80::/16", "::/0"], ["::1/64"]),
    "IPvAnyAddress": (pydantic.IPvAnyAddress, ["127.0.0.1", "::1"], ["x"]),
    "IPvAnyInterface": (pydantic.IPvAnyInterface, ["127.0.0.1/8", "::1/8"], ["x"]),
    "IPvAnyNetwork": (pydantic.IPvAnyNetwork, ["10.0.0.0/8", "::/0"], ["10.0.0.1/8"]),
    "AnyUrl": (
        pydantic.AnyUrl,
        [
            "https://user:pw@example.org:80/a/b?c=d#e",
            "mailto:a@b.org",
            "x:",
            "file:///a",
            "http://[::1]/",
        ],
        ["http://", "http://x:99999", "x"],
    ),
    "AnyHttpUrl": (pydantic.AnyHttpUrl, ["http://a.b/c"], ["ftp://a"]),
    "PostgresDsn": (pydantic.PostgresDsn, ["postgres://a:b@c:5432/d"], ["http://a", "postgres://"]),
    "RedisDsn": (pydantic.RedisDsn, ["redis://localhost:6379/0"], ["http://a"]),
    "Json": (pydantic.Json, ["[1]", '{"a":null}'], ["{", ""]),
    "Json[list[int]]": (pydantic.Json[list[int]], ["[1,2]"], ['["a"]', "1"]),
    "Json[Inner]": (pydantic.Json[Inner], ['{"code":"1A"}'], ['{"code":"1a"}']),
    "bytes": (bytes, ["é"], [1]),
    "SecretStr": (pydantic.SecretStr, ["a"], [1]),
    "SecretBytes": (pydantic.SecretBytes, ["a"], [1]),
    "Path": (pathlib.Path, ["a/b"], [1]),
    "float": (float, [1.5, -3], ["x"]),
    "FiniteFloat": (pydantic.FiniteFloat, [1.5, -3], []),
    "bounded float": (Annotated[float, Field(gt=0, lt=1)], [0.5], [0, 1]),
    "int": (int, [1, -3], [1.5]),
    "StrictInt": (pydantic.StrictInt, [1], [1.0, "1"]),
    "StrictStr": (pydantic.StrictStr, ["a"], [1]),
    "StrictBool": (pydantic.StrictBool, [True], [1]),
    "multiple": (Annotated[int, Field(multiple_of=3, ge=-9)], [-9, 0], [1, -12]),
    "enum": (Color, ["red"], ["green"]),
    "IntEnum": (Number, [1], [2]),
    "Literal": (Literal["a", 1, None], ["a", 1, None], ["b"]),
    "Optional": (pydantic.UUID4 | None, [None], ["x"]),
    "NamedTuple": (Point, [[1, 2.5]], [[1], [1, "x"]]),
    "tuple": (tuple[int, ...], [[], [1]], [["x"]]),
    "deque": (collections.deque[int], [[1]], [["x"]]),
    "dict of int": (dict[int, str], [{}, {"1": "a", "-2": "b"}], [{"a": "a"}, {"1.5": "a"}]),
    "dict of bounded int": (dict[Annotated[int, Field(ge=5)], int], [{"5": 1}], [{"4": 1}]),
    "dict of float": (dict[float, int], [{"1.5": 1}], [{"x": 1}]),
    "dict of date": (dict[Date, int], [{"2024-01-01": 1}], [{"0000-01-01": 1}]),
    "dict of UUID": (dict[pydantic.UUID4, int], [{}], [{"x": 1}]),
    "dict of enum": (dict[Color, int], [{"red": 1}], [{"x": 1}]),
    "dict of pattern": (
        dict[Annotated[str, Field(pattern=r"\A\pL\z")], int],
        [{"é": 1}],
        [{"1": 1}, {"ab": 1}],
    ),
    "stripped": (
        Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2)],
        ["ab", "a b"],
        [" a", "\u2003a"],
    ),
    "nested": (Inner, [{"code": "1A"}, {"code": "١Z"}], [{"code": "1a"}]),
    "union, bounded": (Annotated[int | float, Field(gt=3, le=8)], [4, 3.5, 8], [3, 8.5]),
    "union, measured": (
        Annotated[str | list[int], Field(max_length=2)],
        ["ab", [1, 2]],
        ["abc", [1, 2, 3]],
    ),
    "lists of patterns": (list[Annotated[str, Field(pattern="^[[:alpha:]]$")]], [["a"]], [["]"]]),
}


@pytest.mark.parametrize("name", TYPES)
def test_texts_of_the_language_are_valid(name: str) -> None:
    annotation, good, bad = TYPES[name]
    kind, texts = model(annotation), language(annotation)
    sampled = [*texts.enumerate(20), *random_strings(texts, 60)]
    assert [text for text in sampled if not is_valid(kind, text)] == []
    assert [each for each in texts.caveats if each.keyword == "validator"] == []
    for value in good:
        text = json.dumps({"x": value}, ensure_ascii=False, separators=(",", ":"))
        assert is_valid(kind, text), value
        assert texts.accepts(text), value
    for value in bad:
        text = json.dumps({"x": value}, ensure_ascii=False, separators=(",", ":"))
        assert not texts.accepts(text), value
        assert not is_valid(kind, text), value


@pytest.mark.parametrize(
    ("annotation", "texts"),
    [
        (pydantic.condecimal(max_digits=2, decimal_places=2), ["0", "0.0", '"0"', '"0.0"', "0.5"]),
        (pydantic.condecimal(max_digits=4, decimal_places=2), ["0", '"0"', "12.34", "123.4"]),
        (Annotated[int | float, Field(ge=2**60 + 1)], [str(2**60), str(2**60 + 1)]),
        (Annotated[Date, Field(gt=Date.max)], ['"9999-12-31"']),
        (Annotated[Date, Field(lt=Date.min)], ['"0001-01-01"']),
        (
            Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(host_required=True)],
            ['"a:b"', '"file:///x"', '"a://b"', '"http://a.b/"'],
        ),
    ],
)
def test_values_at_the_edge_of_a_type_are_judged_as_pydantic_does(
    annotation: Any, texts: list[str]
) -> None:
    try:
        found = gcd.json_schema(annotation)
    except gcd.EmptyLanguageError:
        found = gcd.Automaton.empty()
    whole = model(annotation)
    assert [found.accepts(text) for text in texts] == [
        is_valid(whole, f'{{"x":{text}}}') for text in texts
    ]


@pytest.mark.parametrize("name", ["Decimal", "FiniteFloat"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 310 + ".5"])
def test_numbers_that_are_infinite_to_a_float_are_left_out(name: str, number: str) -> None:
    assert not language(TYPES[name][0]).accepts(f'{{"x":{number}}}')


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        (pydantic.FilePath, "file system"),
        (pydantic.DirectoryPath, "file system"),
        (pydantic.NewPath, "file system"),
        (pydantic.FutureDate, "clock"),
        (pydantic.FutureDatetime, "clock"),
        (pydantic.ImportString, "imported"),
        (re.Pattern, "regular"),
        (dict[Literal[1, 2], int], "keys"),
        (Annotated[Time, Field(gt=Time(1))], "bounds"),
        (Annotated[Delta, Field(gt=Delta(1))], "bounds"),
        (Annotated[Delta, Field(multiple_of=Delta(1))], "multiple_of"),
        (Annotated[pathlib.Path, Field(max_length=3)], "bound"),
        (Annotated[pydantic.Secret[int], Field(gt=2)], "bound"),
        (Annotated[bool, Field(gt=0)], "bound"),
        (Annotated[uuid.UUID, Field(max_length=99)], "bound"),
        (Annotated[Inner, Field(min_length=1)], "bound"),
        (Annotated[list[int] | Inner, Field(min_length=1)], "bound"),
        (Annotated[Date | int, Field(gt=3)], "bound"),
        (Annotated[bytes | list[int], Field(max_length=2)], "bound"),
        (Annotated[pydantic.AnyUrl, Field(max_length=12)], "bound"),
        (Annotated[int, pydantic.BeforeValidator(abs), Field(gt=3)], "Python code changes"),
        (
            Annotated[int, pydantic.AfterValidator(partial(max, ge=1)), Field(gt=3)],
            "Python code changes",
        ),
        (Annotated[set[int | bool], Field(min_length=2)], "minimum size"),
        (Annotated[dict[float, int], Field(min_length=2)], "minimum size"),
        (set[Inner], "hash"),
        (frozenset[dict[str, int]], "hash"),
        (Literal[Color.RED], "constants of type Color"),
        (pydantic.Base64Bytes, "EncodedBytes"),
        (pydantic.ByteSize, "ByteSize"),
        (pydantic.PaymentCardNumber, "PaymentCardNumber"),
        (pydantic.conbytes(max_length=3), "bound"),
        (zoneinfo.ZoneInfo, "tz"),
        (complex, "complex"),
        (fractions.Fraction, "fraction"),
        (Hashable, "custom-error"),
        (dict[bool, int], "keys"),
        (dict[Decimal, int], "keys"),
        (Annotated[pydantic.SecretStr, Field(min_length=2)], "bound"),
        (pydantic.Json[pydantic.Json[int]], "another Json"),
        (Annotated[list[int], pydantic.WithJsonSchema({"type": "string"})], "no value"),
    ],
)
def test_what_no_automaton_says_is_refused_with_its_place(annotation: Any, named: str) -> None:
    with pytest.raises(gcd.ConstraintError, match=named) as caught:
        language(annotation)
    assert "/properties/x" in str(caught.value)


CHARACTERS = "aB1_-\n٣éſK"
STRINGS = ["".join(s) for n in range(4) for s in itertools.product(CHARACTERS, repeat=n)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\D+$", r"\W", r"^\w\b\W", r"\S\z", r"^[[:alpha:]_]{2}", r"[\w&&[^\d_]]$",
        r"^[\pL--[a-k]]",
        r"[a-é~~B]\d", r"(?i)^K", r"(?x) a # b", r"(?m)^1$", r"(?s:a.B)", r"\Aa\x{42}?\z",
        r"(?P<n>a)(?<m>\u{31})", r"^\p{Arabic}|\p{Lu}$", r"a*+B", r"\b{start}B", r"\<a|1\>",
        r"(?U)a+B", r"(?mR)^a$", r"^.$", r"a$", r"(?-u:\w)$", r"^[^[:^digit:]]$", r"^$|\B-",
    ],
)  # fmt: skip
def test_patterns_are_rusts(pattern: str) -> None:
    annotation = Annotated[str, Field(pattern=pattern)]
    validate = pydantic.TypeAdapter(annotation).validate_python
    texts = language(annotation)
    for string in STRINGS:
        try:
            validate(string)
            expected = True
        except pydantic.ValidationError:
            expected = False
        text = json.dumps({"x": string}, ensure_ascii=False, separators=(",", ":"))
        assert texts.accepts(text) == expected, string


@pytest.mark.parametrize(
    "pattern",
    [
        r"a$",
        r"a\Z",
        r"^\D\W?$",
        r"(?=.1)[a-c]",
        r"(?<!a)B",
        r"[[:a]B",
        r"(?i)k\b",
        r"[a&&1]-",
        r"(?a)\W$",
    ],
)
@pytest.mark.parametrize("how", ["config", "compiled"])
def test_patterns_are_pythons_if_the_class_asks_for_it(pattern: str, how: str) -> None:
    if how == "config":
        texts = language(Annotated[str, Field(pattern=pattern)], regex_engine="python-re")
    else:
        texts = language(Annotated[str, Field(pattern=re.compile(pattern))])
    found = re.compile(pattern).search
    for string in STRINGS:
        text = json.dumps({"x": string}, ensure_ascii=False, separators=(",", ":"))
        assert texts.accepts(text) == (found(string) is not None), string


def test_only_classes_have_rusts_patterns() -> None:
    schema = {"type": "string", "pattern": r"^\D$"}
    assert gcd.json_schema(schema).accepts('"٣"')
    assert gcd.json_schema(Inner.model_json_schema()).accepts('{"code":"1:]"}')


def test_lengths_and_stripping_of_the_config_hold() -> None:
    texts = language(str, str_min_length=2, str_strip_whitespace=True, str_max_length=3)
    accepted = [
        s
        for s in ("a", "ab", " a", "abcd")
        if texts.accepts(json.dumps({"x": s}).replace(": ", ":"))
    ]
    assert accepted == ["ab"]


def test_recursive_classes() -> None:
    class Node(pydantic.BaseModel):
        at: pydantic.NaiveDatetime
        next: "Node | None" = None

    Node.model_rebuild(_types_namespace={"Node": Node})
    texts = gcd.json_schema(Node)
    assert texts.accepts('{"at":"2024-01-01T00:00:00","next":{"at":"2024-01-01T00:00:00"}}')
    assert not texts.accepts('{"at":"2024-01-01T00:00:00Z"}')


class Apple(pydantic.BaseModel):
    kind: Literal["apple"] = "apple"
    size: int = 0


class Pear(pydantic.BaseModel):
    kind: Literal["pear"] = "pear"
    size: str = ""


Fruit = Annotated[Apple | Pear, pydantic.Field(discriminator="kind")]


class Basket(pydantic.BaseModel):
    kind: Literal["basket"] = "basket"
    inner: Fruit


@pytest.mark.parametrize(
    "kind",
    [
        Fruit,
        Fruit | None,
        list[Fruit],
        Annotated[Basket | Apple, pydantic.Field(discriminator="kind")],
        collections.OrderedDict[int, int],
        collections.Counter[int],
        enum.Enum("E", {"a": 1, "b": "z"}),
    ],
)
def test_values_are_those_that_the_class_reads(kind: Any) -> None:
    model = pydantic.create_model("M", x=(kind, ...))
    language = gcd.json_schema(model)
    values = (
        "{}",
        '{"size":1}',
        '{"kind":"apple"}',
        '{"kind":"apple","size":1}',
        '{"kind":"pear"}',
        "null",
        '[{"size":1}]',
        '[{"kind":"pear"}]',
        '{"kind":"basket","inner":{}}',
        "[]",
        "1",
        "2",
        '"z"',
        '{"kind":"basket","inner":{"kind":"apple"}}',
        '{"a":1}',
        '{"1":1}',
        '{"1":"a"}',
    )
    accepted = 0
    for value in values:
        text = f'{{"x":{value}}}'
        try:
            model.model_validate_json(text)
        except pydantic.ValidationError:
            assert not language.accepts(text), text
        else:
            accepted += language.accepts(text)
    assert accepted


def pick(value: Any) -> str:
    return "a" if isinstance(value, dict) else "b"


Picked = Annotated[
    Annotated[Apple, pydantic.Tag("a")] | Annotated[Pear, pydantic.Tag("b")],
    pydantic.Discriminator(pick),
]


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[pydantic.Json[list[int]], pydantic.Field(min_length=2)],
        Annotated[pydantic.Base64Str, pydantic.Field(min_length=2)],
        enum.Enum("E", {"a": decimal.Decimal("1.5")}),
        Literal[b"a"],
        Annotated[int, pydantic.Field(validation_alias=pydantic.AliasPath("x", 0))],
        Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(default_port=3)],
        type[int],
        Callable,
    ],
)
def test_types_that_json_does_not_decide_are_refused(kind: Any) -> None:
    with pytest.raises(
        gcd.ConstraintError,
        match=r"cannot compile the type at '/.*': |that JSON can represent",
    ):
        gcd.json_schema(pydantic.create_model("M", x=(kind, ...)))


def test_a_union_told_apart_by_a_function_is_a_union() -> None:
    """The function is left to a check; a value that fits several members is not excluded."""
    with pytest.warns(gcd.CaveatWarning, match=r"validator pick at '/items'"):
        found = gcd.json_schema(list[Picked])
    for text in ('[{"kind":"apple"}]', '[{"kind":"pear"}]', "[]"):
        assert found.accepts(text)
    assert not found.accepts("[1]")
    same = Annotated[
        Annotated[int, pydantic.Tag("a")] | Annotated[float, pydantic.Tag("b")],
        pydantic.Discriminator(lambda value: "a"),
    ]
    assert gcd.json_schema(same, unsupported="ignore").accepts("1")
    with pytest.raises(
        gcd.UnsupportedSchemaError, match=r"'validator' at '/items'.*pick is Python"
    ):
        gcd.json_schema(list[Picked], unsupported="refuse")


def test_an_unsupported_type_is_named_without_a_keyword_that_the_class_does_not_have() -> None:
    late = Annotated[datetime.datetime, Field(gt=datetime.datetime(2020, 1, 1))]
    with pytest.raises(gcd.UnsupportedSchemaError) as caught:
        gcd.json_schema(pydantic.create_model("M", d=(late, ...)))
    expected = "cannot compile the type at '/properties/d': a datetime with bounds is not supported"
    assert str(caught.value).startswith(expected)
    never = Annotated[datetime.date, Field(gt=datetime.date.max - datetime.timedelta(1))]
    never = Annotated[never, Field(lt=datetime.date.min + datetime.timedelta(1))]
    with pytest.raises(gcd.EmptyLanguageError, match=r"because the type date\(.*\) .* exclude"):
        gcd.json_schema(pydantic.create_model("M", d=(never, ...)))
    dated = pydantic.create_model("M", d=(datetime.date, ...))
    with pytest.raises(
        gcd.UnsupportedSchemaError, match=r"cannot compile the type at .*style=.json"
    ):
        gcd.tool_calls([dated], style="python")


def test_bytes_in_another_encoding_are_refused() -> None:
    config = pydantic.ConfigDict(val_json_bytes="hex")
    with pytest.raises(gcd.ConstraintError, match="bytes value in hex"):
        gcd.json_schema(pydantic.create_model("M", __config__=config, x=(bytes, ...)))


# -- types other than models ------------------------------------------------------------------


@dataclasses.dataclass
class Person:
    name: str
    age: Annotated[int, Field(ge=0)] = 0


class Book(typing_extensions.TypedDict):
    title: str
    year: typing_extensions.NotRequired[int]


@pydantic.dataclasses.dataclass
class Code:
    code: Annotated[str, Field(pattern=r"^[[:digit:]]{2}$")]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Person, ['{"name":"A"}', '{"name":"A","age":3}'], ['{"age":3}', '{"name":"A","age":-1}']),
        (Book, ['{"title":"A"}', '{"title":"A","year":3}'], ['{"year":3}']),
        (Code, ['{"code":"12"}'], ['{"code":"1a"}']),
        (Point, ["[1,2.5]"], ["[1]"]),
        (Color, ['"red"'], ['"green"']),
        (Literal["a", 1], ['"a"', "1"], ['"b"']),
        (list[Person], ["[]", '[{"name":"A"}]'], ["[1]"]),
        (int | None, ["1", "null"], ['"a"']),
        (Annotated[int, Field(gt=3)], ["4"], ["3"]),
        (dict[str, Code], ['{"a":{"code":"12"}}'], ['{"a":{}}']),
        (datetime.date, ['"2024-02-29"'], ['"2023-02-29"']),
        (pydantic.TypeAdapter(list[Code]), ['[{"code":"12"}]'], ['[{"code":"123"}]']),
    ],
)
def test_any_type_that_pydantic_reads_is_a_schema(kind: Any, good: Any, bad: Any) -> None:
    adapter = kind if isinstance(kind, pydantic.TypeAdapter) else pydantic.TypeAdapter(kind)
    found = gcd.json_schema(kind)
    for text in (*good, *random_strings(found, 30)):
        adapter.validate_json(text)
        assert found.accepts(text)
    for text in bad:
        assert not found.accepts(text)
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_json(text)


def test_a_type_that_pydantic_cannot_read_is_named() -> None:
    with pytest.raises(gcd.ConstraintError, match="pydantic cannot parse the type Exception"):
        gcd.json_schema(Exception)
    with pytest.raises(gcd.ConstraintError, match="it has no JSON schema"):
        gcd.json_schema(pydantic.json_schema.SkipJsonSchema[int])
    with pytest.raises(gcd.ConstraintError, match="pydantic cannot parse the type"):
        gcd.json_schema(Annotated[int, Field(gt=2.5)])


# -- Python code ------------------------------------------------------------------------------


def positive(value: Any) -> Any:
    if value <= 0:
        raise ValueError("not positive")
    return value


def itself(value: Any) -> Any:
    return value


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Tree(pydantic.BaseModel):
    children: list[Tree] = Field(default_factory=list)

    @pydantic.model_validator(mode="after")
    def is_small(self) -> Any:
        if len(self.children) > 1:
            raise ValueError("many")
        return self


class Positive(int):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(positive, core_schema.int_schema())


@dataclasses.dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        positive(self.n)


class CheckedModel(pydantic.BaseModel):
    n: int
    _seen: int = pydantic.PrivateAttr(0)

    def model_post_init(self, context: Any) -> None:
        positive(self.n)


class Pair(Point):
    def __new__(cls, x: int, y: float) -> Any:
        return super().__new__(cls, positive(x), y)


class New(pydantic.BaseModel):
    n: int

    def __new__(cls, **members: Any) -> Any:
        positive(members["n"])
        return super().__new__(cls)


class Chained:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        plain = core_schema.no_info_plain_validator_function(positive)
        return core_schema.chain_schema([core_schema.int_schema(), plain])


class Made(pydantic.BaseModel):
    n: int

    def __init__(self, n: int) -> None:
        super().__init__(n=positive(n))


@pytest.mark.parametrize(
    ("annotation", "code", "pointer"),
    [
        (Annotated[int, pydantic.AfterValidator(positive)], "positive", "/properties/x"),
        (Annotated[int, pydantic.BeforeValidator(positive)], "positive", "/properties/x"),
        (Annotated[str, pydantic.BeforeValidator(str.strip)], "str.strip", "/properties/x"),
        (Annotated[int, pydantic.PlainValidator(int)], "int", "/properties/x"),
        (
            Annotated[int, pydantic.AfterValidator(positive), pydantic.BeforeValidator(itself)],
            "positive, itself",
            "/properties/x",
        ),
        (Positive, "positive", "/properties/x"),
        (
            list[Annotated[int, pydantic.AfterValidator(positive)]],
            "positive",
            "/properties/x/items",
        ),
        (
            dict[Annotated[int, pydantic.AfterValidator(positive)], int],
            "positive",
            "/properties/x/propertyNames",
        ),
        (Even, "Even.is_even", "/$defs/Even/properties/n"),
        (
            Annotated[str, pydantic.AfterValidator(ipaddress.ip_address)],
            "ip_address",
            "/properties/x",
        ),
        (
            Annotated[dict[str, int], pydantic.AfterValidator(Even.model_validate)],
            "BaseModel.model_validate",
            "/properties/x",
        ),
        (
            Annotated[str, pydantic.AfterValidator(pydantic.TypeAdapter(int).validate_python)],
            "TypeAdapter.validate_python",
            "/properties/x",
        ),
        (Tree, "Tree.is_small", "/$defs/Tree"),
        (Checked, "Checked.__post_init__", "/$defs/Checked"),
        (CheckedModel, "CheckedModel.model_post_init", "/$defs/CheckedModel"),
        (Made, "Made.__init__", "/$defs/Made"),
        (New, "New.__new__", "/$defs/New"),
        (Pair, "Pair.__new__", "/$defs/Pair"),
        (Chained, "positive", "/properties/x"),
        (
            pydantic.Json[list[Annotated[int, pydantic.AfterValidator(positive)]]],
            "positive",
            "/properties/x",
        ),
    ],
)
def test_code_that_no_automaton_runs_is_a_caveat(annotation: Any, code: str, pointer: str) -> None:
    kind = model(annotation)
    caveat = gcd.Caveat("validator", pointer, code, None)
    with pytest.warns(gcd.CaveatWarning, match=re.escape(f"validator {code} at")) as caught:
        found = gcd.json_schema(kind)
    assert found.caveats == (caveat,)
    assert caught[0].message.caveats == (caveat,)  # type: ignore[union-attr]
    assert gcd.json_schema(kind, unsupported="ignore") == found
    with pytest.raises(gcd.UnsupportedSchemaError, match="is Python code") as refused:
        gcd.json_schema(kind, unsupported="refuse")
    assert refused.value.pointer == pointer


def test_code_for_the_whole_class_is_a_caveat_at_the_root() -> None:
    found = gcd.json_schema(Tree, unsupported="ignore")
    assert [(c.pointer, c.value) for c in found.caveats] == [("/$defs/Tree", "Tree.is_small")]

    class Pair(pydantic.BaseModel):
        a: int
        b: int

        @pydantic.model_validator(mode="after")
        def rises(self) -> Any:
            return self

    found = gcd.json_schema(Pair, unsupported="ignore")
    assert [c.pointer for c in found.caveats] == [""]
    assert found.accepts('{"a":2,"b":1}')


def test_private_attributes_and_plain_dataclasses_have_no_code() -> None:
    class Private(pydantic.BaseModel):
        n: int
        _seen: int = pydantic.PrivateAttr(0)

    for kind in (Private, Person, Code, Book, Point):
        assert gcd.json_schema(kind, unsupported="refuse").caveats == ()
