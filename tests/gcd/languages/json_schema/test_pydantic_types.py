"""Languages of pydantic classes, against pydantic's own validation."""

from __future__ import annotations

import collections
import contextlib
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
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
import typing_extensions

import gcd
from tests.gcd.languages.json_schema.strategies import compact
from tests.gcd.random_strings import random_strings

pydantic = pytest.importorskip("pydantic")
Field, After, Before = pydantic.Field, pydantic.AfterValidator, pydantic.BeforeValidator


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


def is_valid(validate: Any, value: Any) -> bool:
    try:
        validate(value)
    except pydantic.ValidationError:
        return False
    return True


Decimal, Date, Time, Delta = decimal.Decimal, datetime.date, datetime.time, datetime.timedelta


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


MAY = "2024-05-01T10:20:30"
URLS = [
    "https://u:pw@example.org:80/a/b?c=d#e",
    "mailto:a@b.org",
    "x:",
    "file:///a",
    "http://[::1]/",
]
# Types, and values in their languages.
TYPES: list[tuple[Any, list[Any]]] = [
    (datetime.datetime, ["2024-05-01T10:20:30Z", "0001-01-01T00:00:00+23:59", f"{MAY}.123456"]),
    (pydantic.NaiveDatetime, [MAY, f"{MAY}.5"]),
    (pydantic.AwareDatetime, [f"{MAY}Z", f"{MAY}-01:00"]),
    (Date, ["2024-02-29", "0001-01-01"]),
    (pydantic.PastDate, ["2020-12-31"]),
    (pydantic.condate(gt=Date(2023, 12, 31), le=Date(2024, 3, 9)), ["2024-01-01", "2024-03-09"]),
    (Time, ["10:20:30", "10:20:30.25", "10:20:30Z"]),
    (Delta, ["P1DT2H", "PT1.5S", "-P1D", "P999999999DT23H59M59S", "P142857142W", "PT0S", "P1Y2M"]),
    (Annotated[Delta, Field(gt=Delta(0))], ["PT1S"]),
    (Decimal, [1.5, -3, "1.5", "-0.10", "12345678901234567890.5"]),
    (Annotated[Decimal, Field(max_digits=6, decimal_places=2)], [1234.56, "1234.56", "0.05", 5]),
    (Annotated[Decimal, Field(max_digits=3)], ["1.23", "0.123", 12.3]),
    (Annotated[Decimal, Field(decimal_places=2, ge=0)], ["100000.25", 0.25]),
    (Annotated[Decimal, Field(gt=0, le=5)], ["0.01", "5", 5]),
    (uuid.UUID, ["0f8b3c1e-7a52-1d6b-1c01-5e2f4a6b8d7c"]),
    *(
        (getattr(pydantic, f"UUID{n}"), [f"0f8b3c1e-7a52-{n}d6b-9c01-5e2f4a6b8d7c"])
        for n in (1, 3, 4, 5, 6, 7, 8)
        if hasattr(pydantic, f"UUID{n}")
    ),
    (ipaddress.IPv4Address, ["127.0.0.1"]),
    (ipaddress.IPv6Address, ["::1", "fe80::1:2"]),
    (ipaddress.IPv6Interface, ["::1/128"]),
    (ipaddress.IPv6Network, ["fe80::/16", "::/0"]),
    (pydantic.IPvAnyAddress, ["127.0.0.1", "::1"]),
    (pydantic.IPvAnyInterface, ["127.0.0.1/8", "::1/8"]),
    (pydantic.IPvAnyNetwork, ["10.0.0.0/8", "10.128.0.0/9", "::/0"]),
    (pydantic.AnyUrl, URLS),
    (pydantic.AnyHttpUrl, ["http://a.b/c"]),
    (pydantic.PostgresDsn, ["postgres://a:b@c:5432/d"]),
    (pydantic.Json, ["[1]", '{"a":null}']),
    (pydantic.Json[list[int]], ["[1,2]"]),
    (pydantic.Json[Inner], ['{"code":"1A"}']),
    (bytes, ["é"]),
    (pydantic.SecretStr, ["a"]),
    (pydantic.SecretBytes, ["a"]),
    (pathlib.Path, ["a/b"]),
    (float, [1.5, -3]),
    (pydantic.FiniteFloat, [1.5, -3]),
    (Annotated[float, Field(gt=0, lt=1)], [0.5]),
    (int, [1, -3]),
    (pydantic.StrictStr, ["a"]),
    (pydantic.StrictBool, [True]),
    (Annotated[int, Field(multiple_of=3, ge=-9)], [-9, 0]),
    (Color, ["red"]),
    (Number, [1]),
    (Literal["a", 1, None], ["a", 1, None]),
    (pydantic.UUID4 | None, [None]),
    (Point, [[1, 2.5]]),
    (tuple[int, ...], [[], [1]]),
    (collections.deque[int], [[1]]),
    (dict[int, str], [{}, {"1": "a", "-2": "b"}]),
    (dict[Annotated[int, Field(ge=5)], int], [{"5": 1}]),
    (dict[float, int], [{"1.5": 1}]),
    (dict[Date, int], [{"2024-01-01": 1}]),
    (dict[pydantic.UUID4, int], [{}]),
    (dict[Color, int], [{"red": 1}]),
    (dict[Annotated[str, Field(pattern="\\A\\pL\\z")], int], [{"é": 1}]),
    (pydantic.constr(strip_whitespace=True, min_length=2), ["ab", "a b"]),
    (Inner, [{"code": "1A"}, {"code": "١Z"}]),
    (Annotated[int | float, Field(gt=3, le=8)], [4, 3.5, 8]),
    (Annotated[str | list[int], Field(max_length=2)], ["ab", [1, 2]]),
    (list[Annotated[str, Field(pattern="^[[:alpha:]]$")]], [["a"]]),
    (Person, [{"name": "A"}, {"name": "A", "age": 3}]),
    (Book, [{"title": "A"}, {"title": "A", "year": 3}]),
    (Code, [{"code": "12"}]),
    (pydantic.TypeAdapter(list[Code]), [[{"code": "12"}]]),
    (Hooked, [{"a": 3, "b": 5}]),
    (list[Hooked], [[{"a": 3, "b": 5}]]),
    (Annotated[int, pydantic.WithJsonSchema({"maximum": 3})], [3]),
    (Rechecked, [{"a": 6}, {"a": 6, "b": 7}]),
    (Alias, [4]),
    (NewType("Named", int), [4]),
    (Annotated[Sequence[int], Field(min_length=2), Field(min_length=1)], [[1, 2]]),
    (Annotated[int | float, Field(allow_inf_nan=False)], [1, 2.5]),
    (Annotated[str | list[int], Field(min_length=2)], ["ab", [1, 2]]),
    (Annotated[dict[int, int] | str, Field(min_length=2)], [{"1": 1, "2": 1}]),
    (Annotated[int | float | None, Field(gt=2)], [3, 2.5]),
    (dict[Any, int], [{"a": 1}]),
    (Fruit, [{"kind": "apple"}, {"kind": "pear"}]),
    (list[Fruit], [[], [{"kind": "pear"}]]),
    (Annotated[Basket | Apple, Field(discriminator="kind")], [{"kind": "apple", "size": 1}]),
    (collections.OrderedDict[int, int], [{"1": 1}]),
    (collections.Counter[int], [{"1": 1}]),
    (enum.Enum("E", {"a": 1, "b": "z"}), [1, "z"]),
]
# Values that pydantic refuses for some of the types.
OTHERS: list[Any] = [
    *("2016-12-31T23:59:60Z", "0000-05-01T10:20:30Z", "2023-02-29T10:20:30Z"),
    *("2024-05-01T10:20:30+01:00", "9999-05-01T10:20:30Z", "0000-01-01", "2023-02-29"),
    *("9999-01-01", "2023-12-31", "2024-03-10", "23:59:60Z", "24:00:00", "P1000000000D"),
    *("P9999999999999W", "P", "PT", "P142857143W", "NaN", "Infinity", "x", "", "12345.6", "1.234"),
    *("1234", "0.0012", "-1", "0.125", "0", "5.01", "none", "256.0.0.1", "1::2::3"),
    *("127.0.0.1/33", "::1/129", "10.0.0.1/8", "::1/64", "http://", "http://x:99999", "ftp://a"),
    *("http://a", "postgres://", "{", '["a"]', "1", '{"code":"1a"}', "green", "b", " a"),
    *("\u2003a", "abc", 12345.6, 1.0, -12, 2, [1, "x"], ["x"], {"a": "a"}, {"1.5": "a"}, {"4": 1}),
    *({"x": 1}, {"0000-01-01": 1}, {"ab": 1}, {"code": "1a"}, 8.5, [1, 2, 3], ["]"], {"age": 3}),
    *({"name": "A", "age": -1}, {"year": 3}, {"a": {}}, [{"code": "123"}], {"a": 3}, [{"b": 5}]),
    *({"b": 7}, {"a": "x"}, {"size": 1}, [{"size": 1}], {"kind": "basket", "inner": {}}),
    *({"kind": "basket", "inner": {"kind": "apple"}}, {"1": "a"}),
    *(f"0f8b3c1e-7a52-{n}d6b-{v}c01-5e2f4a6b8d7c" for n in range(1, 9) for v in (1, 9)),
]


@pytest.mark.parametrize(("kind", "values"), TYPES)
def test_the_language_of_a_type_has_values_of_it(kind: Any, values: list[Any]) -> None:
    """Whatever the language has, pydantic reads; it has at least the given values."""
    found = gcd.json_schema(kind)
    adapter = kind if isinstance(kind, pydantic.TypeAdapter) else pydantic.TypeAdapter(kind)
    assert [each for each in found.caveats if each.keyword == "validator"] == []
    for value in values:
        assert found.accepts(compact(value)), value
    others = [value for _, good in TYPES for value in good] + OTHERS
    texts = [*found.enumerate(20), *random_strings(found, 60), *map(compact, others)]
    for text in texts:
        if found.accepts(text):
            adapter.validate_json(text)


@pytest.mark.parametrize(
    ("annotation", "texts"),
    [
        (pydantic.condecimal(max_digits=2, decimal_places=2), ["0", "0.0", '"0"', '"0.0"', "0.5"]),
        (pydantic.condecimal(max_digits=4, decimal_places=2), ["0", '"0"', "12.34", "123.4"]),
        (Annotated[int | float, Field(ge=2**60 + 1)], [str(2**60), str(2**60 + 1)]),
        (pydantic.condate(gt=Date.max), ['"9999-12-31"']),
        (pydantic.condate(lt=Date.min), ['"0001-01-01"']),
        (
            Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(host_required=True)],
            ['"a:b"', '"file:///x"', '"a://b"', '"http://a.b/"'],
        ),
    ],
)
def test_values_at_the_edge_of_a_type_are_judged_as_pydantic_does(
    annotation: Any, texts: list[str]
) -> None:
    found = gcd.Automaton.empty()
    with contextlib.suppress(gcd.EmptyLanguageError):
        found = gcd.json_schema(annotation)
    validate = pydantic.TypeAdapter(annotation).validate_json
    assert [found.accepts(text) for text in texts] == [is_valid(validate, text) for text in texts]


def test_numbers_that_are_infinite_to_a_float_are_left_out() -> None:
    for kind in (Decimal, pydantic.FiniteFloat):
        found = gcd.json_schema(kind)
        assert not any(map(found.accepts, ("1e999", "-1e999", "1" * 310 + ".5")))


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        (pydantic.FilePath, "file system"),
        (pydantic.DirectoryPath, "file system"),
        (pydantic.FutureDate, "clock"),
        (pydantic.FutureDatetime, "clock"),
        (pydantic.ImportString, "imported"),
        (re.Pattern, "regular"),
        (dict[Literal[1, 2], int], "keys"),
        (Annotated[Time, Field(gt=Time(1))], "bounds"),
        (Annotated[Delta, Field(gt=Delta(1))], "bounds"),
        (Annotated[Delta, Field(multiple_of=Delta(1))], "multiple_of"),
        (Annotated[pydantic.Secret[int], Field(gt=2)], "bound"),
        (Annotated[pydantic.SecretStr, Field(min_length=2)], "bound"),
        (Annotated[pathlib.Path, Field(max_length=3)], "bound"),
        (Annotated[uuid.UUID, Field(max_length=99)], "bound"),
        (Annotated[list[int] | Inner, Field(min_length=1)], "bound"),
        (Annotated[bool, Field(gt=0)], "bound"),
        (Annotated[Inner, Field(min_length=1)], "bound"),
        (Annotated[Date | int, Field(gt=3)], "bound"),
        (Annotated[bytes | list[int], Field(max_length=2)], "bound"),
        (Annotated[pydantic.AnyUrl, Field(max_length=12)], "bound"),
        (Annotated[int, Before(abs), Field(gt=3)], "Python code changes"),
        (Annotated[int, After(partial(max, ge=1)), Field(gt=3)], "Python code changes"),
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
        (pydantic.Json[pydantic.Json[int]], "another Json"),
        (Annotated[list[int], pydantic.WithJsonSchema({"type": "string"})], "no value"),
        (Annotated[pydantic.Json[list[int]], Field(min_length=2)], "cannot compile the type"),
        (Annotated[pydantic.Base64Str, Field(min_length=2)], "cannot compile the type"),
        (enum.Enum("E", {"a": Decimal("1.5")}), "constants of type Decimal"),
        (Literal[b"a"], "constants of type bytes"),
        (Annotated[int, Field(validation_alias=pydantic.AliasPath("x", 0))], "cannot compile"),
        (Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(default_port=3)], "cannot compile"),
        (type[int], "cannot compile the type"),
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
        assert texts.accepts(compact({"x": string})) == is_valid(validate, string), string


@pytest.mark.parametrize(
    "pattern",
    [
        r"a$", r"a\Z", r"^\D\W?$", r"(?=.1)[a-c]", r"(?<!a)B", r"[[:a]B", r"(?i)k\b", r"[a&&1]-",
        r"(?a)\W$",
    ],
)  # fmt: skip
def test_patterns_are_pythons_if_the_class_asks_for_it(pattern: str) -> None:
    texts = language(Annotated[str, Field(pattern=pattern)], regex_engine="python-re")
    assert texts == language(Annotated[str, Field(pattern=re.compile(pattern))])
    found = re.compile(pattern).search
    for string in STRINGS:
        assert texts.accepts(compact({"x": string})) == (found(string) is not None), string


def test_only_classes_have_rusts_patterns() -> None:
    schema = {"type": "string", "pattern": r"^\D$"}
    assert gcd.json_schema(schema).accepts('"٣"')
    assert gcd.json_schema(Inner.model_json_schema()).accepts('{"code":"1:]"}')


def test_the_config_of_a_class_holds() -> None:
    with pytest.raises(gcd.ConstraintError, match="bytes value in hex"):
        language(bytes, val_json_bytes="hex")
    texts = language(str, str_min_length=2, str_strip_whitespace=True, str_max_length=3)
    found = [s for s in ("a", "ab", " a", "abcd") if texts.accepts(compact({"x": s}))]
    assert found == ["ab"]


def pick(value: Any) -> str:
    return "a" if isinstance(value, dict) else "b"


Picked = Annotated[
    Annotated[Apple, pydantic.Tag("a")] | Annotated[Pear, pydantic.Tag("b")],
    pydantic.Discriminator(pick),
]


def test_a_union_told_apart_by_a_function_is_a_union() -> None:
    """The function is left to a check; a value that fits several members is not excluded."""
    with pytest.warns(gcd.CaveatWarning, match=r"validator pick at '/items'"):
        found = gcd.json_schema(list[Picked])
    texts = ['[{"kind":"apple"}]', '[{"kind":"pear"}]', "[]", "[1]"]
    assert [found.accepts(text) for text in texts] == [True, True, True, False]
    same = Annotated[
        Annotated[int, pydantic.Tag("a")] | Annotated[float, pydantic.Tag("b")],
        pydantic.Discriminator(lambda value: "a"),
    ]
    assert gcd.json_schema(same, unsupported="ignore").accepts("1")
    with pytest.raises(gcd.UnsupportedSchemaError, match=r"at '/items'.*pick is Python"):
        gcd.json_schema(list[Picked], unsupported="refuse")


def test_an_unsupported_type_is_named_without_a_keyword_that_the_class_does_not_have() -> None:
    late = Annotated[datetime.datetime, Field(gt=datetime.datetime(2020, 1, 1))]
    never = Annotated[pydantic.condate(gt=Date.max - Delta(1)), Field(lt=Date.min + Delta(1))]
    for read, kind, said in (
        (language, late, "^cannot compile the type at '/properties/x': a datetime with bounds is"),
        (language, never, r"because the type date\(.*\) .* exclude"),
        (lambda kind: gcd.tool_calls([model(kind)], style="python"), Date, "compile .*style=.json"),
        (gcd.json_schema, Exception, "pydantic cannot parse the type Exception"),
        (gcd.json_schema, pydantic.json_schema.SkipJsonSchema[int], "it has no JSON schema"),
        (gcd.json_schema, Annotated[int, Field(gt=2.5)], "pydantic cannot parse the type"),
        (language, Callable, "expected types that JSON can represent"),
        (gcd.json_schema, Skipped, "SkipJsonSchema"),
        (gcd.json_schema, Extra, "__pydantic_extra__"),
    ):
        with pytest.raises(gcd.ConstraintError, match=said):
            read(kind)


class Skipped(pydantic.BaseModel):
    a: pydantic.json_schema.SkipJsonSchema[int]


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, Field(pattern="^x")], int]


# -- Python code ------------------------------------------------------------------------------


def positive(value: Any) -> Any:
    return value


def itself(value: Any) -> Any:
    return value


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def is_even(cls, value: int) -> int:
        return value


class Tree(pydantic.BaseModel):
    children: list[Tree] = Field(default_factory=list)

    @pydantic.model_validator(mode="after")
    def is_small(self) -> Any:
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


X = "/properties/x"
INTEGERS = pydantic.TypeAdapter(int)


@pytest.mark.parametrize(
    ("annotation", "code", "pointer"),
    [
        (Annotated[int, After(positive)], "positive", X),
        (Annotated[int, Before(positive)], "positive", X),
        (Annotated[str, Before(str.strip)], "str.strip", X),
        (Annotated[int, pydantic.PlainValidator(int)], "int", X),
        (Annotated[int, After(positive), Before(itself)], "positive, itself", X),
        (Positive, "positive", X),
        (list[Annotated[int, After(positive)]], "positive", f"{X}/items"),
        (dict[Annotated[int, After(positive)], int], "positive", f"{X}/propertyNames"),
        (Even, "Even.is_even", "/$defs/Even/properties/n"),
        (Annotated[str, After(ipaddress.ip_address)], "ip_address", X),
        (Annotated[dict[str, int], After(Even.model_validate)], "BaseModel.model_validate", X),
        (Annotated[str, After(INTEGERS.validate_python)], "TypeAdapter.validate_python", X),
        (Tree, "Tree.is_small", "/$defs/Tree"),
        (Checked, "Checked.__post_init__", "/$defs/Checked"),
        (CheckedModel, "CheckedModel.model_post_init", "/$defs/CheckedModel"),
        (Made, "Made.__init__", "/$defs/Made"),
        (New, "New.__new__", "/$defs/New"),
        (Pair, "Pair.__new__", "/$defs/Pair"),
        (Chained, "positive", X),
        (pydantic.Json[list[Annotated[int, After(positive)]]], "positive", X),
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


def test_private_attributes_and_plain_dataclasses_have_no_code() -> None:
    class Private(pydantic.BaseModel):
        n: int
        _seen: int = pydantic.PrivateAttr(0)

    for kind in (Private, Person, Code, Book, Point):
        assert gcd.json_schema(kind, unsupported="refuse").caveats == ()
    found = gcd.json_schema(CheckedModel, unsupported="ignore")
    assert [caveat.pointer for caveat in found.caveats] == [""], "at the root"


def test_a_pattern_of_a_union_leaves_its_strings() -> None:
    kind = Annotated[str | int, Field(pattern="^a+$")]  # pydantic raises TypeError for numbers
    found = gcd.json_schema(kind, unsupported="refuse")
    assert all(re.fullmatch("a+", json.loads(text)) for text in random_strings(found, 20))
