"""Records in every public spelling, prompts, answers (never evaluated), and rows of posteriors."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gcd
import smc
from experiments.evaluate import Example, Trial, row_of, trials_of
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import (
    STYLES,
    Call,
    Request,
    ToolRecord,
    parse_answer,
    record_handler,
    same_calls,
    signature,
    write_answer,
)
from gcd._languages.tools.call_formats import FORMATS
from smc._results.posterior import Diagnostics
from smc.testing import ToyLM
from tests.gcd.languages.tools.calls import tokenizer_for, write_calls

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

_NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": ["string", "null"]},
        "c": {"enum": list(range(9))},
    },
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"parameters": {}}, "f()"),
        ({}, "f()"),
        ({"parameters": {"a": {"type": "str, optional"}}}, "f(a?: str)"),
        ({"parameters": {"a": {"type": "List[int]", "default": ""}}}, 'f(a: List[int] = "")'),
        ({"parameters": {"a": {"type": "str", "default": "x" * 50}}}, "f(a?: str)"),
        ({"parameters": {"a": "str"}}, "f(a: str)"),
        ({"parameters": {"a": {}}}, "f(a: any)"),
        ({"parameters": {"a": {}, "b": {"type": "str"}}, "required": ["a"]}, "f(a: any, b?: str)"),
        ({"description": " ".join("w" * 30)}, "f() - " + " ".join("w" * 12)),
        (
            {"type": "function", "function": {"name": "f", "parameters": _NESTED}},
            "f(a: array[integer], b?: string | null, c?: 0 | 1 | 2 | 3 | 4 | 5 | ...)",
        ),
    ],
)
def test_signatures(tool: dict[str, Any], expected: str) -> None:
    assert signature(tool if "function" in tool else {"name": "f", **tool}) == expected


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


def test_answers_in_full() -> None:
    calls = [Call("f", {"a": 1, "b": "Zürich"}), Call("g")]
    expected = [{"name": "f", "arguments": {"a": 1, "b": "Zürich"}}, {"name": "g", "arguments": {}}]
    assert write_answer(calls, [], "json") == json.dumps(expected, ensure_ascii=False)
    calls = [Call("f", {"a": 1, "b": 'x"\n', "c": [True, None, {"k": 0.5}]}), Call("g")]
    text = '[f(a=1, b="x\\"\\n", c=[True, None, {"k": 0.5}]), g()]'
    assert write_answer(calls, [], "python") == text


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
    ("style", "text"),
    [
        *(("json", text) for text in ("", "{}", "[1]", '[{"name": "f"}]', "[" * 100_000)),
        ("json", '[{"name": 1, "arguments": {}}]'),
        ("json", '[{"name": "f", "arguments": []}]'),
        ("json", '[{"name": "f", "arguments": {}}'),
        *(("python", text) for text in ("f()", "[f(]", "[f(), ]", "[f() g()]", "['f'(a=1)]")),
        *(("python", f"[f(a={value})]") for value in ("", "1, a=2", "1, **{'a': 2}", "1 2", "'x")),
        *(("python", f"[f(a={value})]") for value in ("open('x')", "{[]: 1}", "1,")),
        *(("python", f"[f({given})]") for given in ("1", "=1", "**{1: 2}", "**{'a'}", "**[]")),
        *(("python", text) for text in ("[f(a=1) b]", "[(a=1)]", "[[f(a=1)]", "[f(a=1]")),
        ("xml", "[]"),
    ],
)
def test_what_is_no_answer_is_refused(style: str, text: str) -> None:
    with pytest.raises(ValueError):
        parse_answer(text, style)


@pytest.mark.parametrize("style", STYLES)
def test_what_has_no_literal_is_refused(style: str) -> None:
    for value in (float("nan"), float("inf"), object(), {1, 2}):
        with pytest.raises(ValueError):
            write_answer([Call("f", {"a": value})], [], style)
    with pytest.raises(ValueError, match="'xml'"):
        write_answer([], [], "xml")


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ({1, 2}, [2, 1], True),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ("1", 1, False),
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


VOCABULARY = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], [256])
TOOL = {"name": "f", "description": "", "parameters": {"a": {"type": "int"}}}
LANGUAGE = gcd.tool_calls(to_json_schema_tools([TOOL]))
RECORD = ToolRecord("7", "Call f with 1.", (TOOL,), (Call("f", {"a": 1}),))
EXAMPLE = Example(
    3, Request(RECORD, "json"), LANGUAGE, gcd.lift(LANGUAGE, VOCABULARY), (1,), 60, {}
)
RIGHT = b'[{"name": "f", "arguments": {"a": 1}}]'
WRONG = b'[{"name": "f", "arguments": {"a": 2}}]'
OPTIONS = SimpleNamespace(max_calls=None, formats="assert", max_bytes=None)
TASK = record_handler(SimpleNamespace(task=OPTIONS), None, Counter())
FOUR = Trial("gcd", "smc", 4)


def test_a_limit_beyond_all_answers_does_not_refuse_a_record():
    tool = {"name": "f", "parameters": {"a": {"type": "str", "maxLength": 1 << 20}}}
    record = ToolRecord("8", "Call f.", (tool,), (Call("f", {"a": "x"}),))
    options = SimpleNamespace(**vars(OPTIONS) | {"formats": "ignore", "max_bytes": 300})
    task = record_handler(SimpleNamespace(task=options), None, Counter())
    language = task.language(Request(record, "json"))
    assert language.max_bytes == 300
    assert language.accepts(task.gold(Request(record, "json")))


BROKEN = b'[{"name": "f", "argu'


def made_by_hand(answers: dict[bytes, float], *, complete: bool, share: float, fragment=b""):
    diagnostics = Diagnostics((), (), (), (), 5, 50, 40, share, 0.1)
    return SimpleNamespace(
        answers=tuple(answers),
        texts=tuple(a.decode() for a in answers),
        best=list(answers)[-1].decode() if answers else None,
        probabilities=tuple(answers.values()),
        dead=not answers,
        complete=complete,
        log_evidence=-1.0 if answers else float("-inf"),
        ess=1.0,
        certified=0.5,
        reliability=SimpleNamespace(label="estimated", log_evidence_error=0.1, ess=1.0),
        budget=SimpleNamespace(removed=0.25),
        stopped="deadline",
        enumerated=False,
        diagnostics=diagnostics,
        particles=(SimpleNamespace(answer=fragment),),
    )


def test_a_dead_row_is_wrong_invalid_and_unfinished():
    dead = made_by_hand({}, complete=False, share=0.0, fragment=BROKEN)
    row = row_of(EXAMPLE, Trial("lcd", "smc", 1), TASK, dead)
    assert row["dead"]
    assert not row["valid"]
    assert not row["complete"]
    assert not row["majority_correct"]
    assert (row["best"], row["best_correct"]) == (None, False)
    assert row["weighted_accuracy"] == 0
    assert row["log_evidence"] is None
    assert (row["budget_removed"], row["stopped"]) == (0.25, "deadline")
    assert row["unfinished"] == BROKEN.decode()
    assert (row["example"], row["share_finished"]) == ("3:7", 0.0)
    assert row["read"] == 50 - len(EXAMPLE.prompt)
    dead.particles = ()  # an empty pool
    row = row_of(EXAMPLE, Trial("lcd", "discrete", 4, 2), TASK, dead)
    assert row["dead"]
    assert row["unfinished"] is None
    assert (row["algorithm"], row["repeat"]) == ("discrete", 2)


def test_repetitions_have_different_seeds_and_the_first_is_the_run_itself():
    task = SimpleNamespace(
        methods=["lcd", "gcd"], algorithms=["smc", "discrete"], particles=[1, 4], repeats=3
    )
    trials = trials_of(task)
    assert len(set(trials)) == len(trials) == 2 * 2 * 2 * 3
    seeds = {trial.repeat: {trial.seed(7), trial.seed(8)} for trial in trials}
    assert seeds[0] == {7, 8}
    assert len(set.union(*seeds.values())) == 6


def test_accuracies_are_of_calls_and_weighted_by_probability():
    found = made_by_hand({WRONG: 0.6, RIGHT: 0.4}, complete=True, share=1.0)
    row = row_of(EXAMPLE, FOUR, TASK, found)
    assert row["valid"]
    assert row["complete"]
    assert row["weighted_accuracy"] == 0.4
    assert not row["majority_correct"]
    assert (row["best"], row["best_correct"]) == (RIGHT.decode(), True)
    assert [a["correct"] for a in row["answers"]] == [False, True]
    assert row["unfinished"] is None
    assert row["gold"] == RIGHT.decode()
    # Validity is checked on the bytes of the chosen answer.
    row = row_of(EXAMPLE, FOUR, TASK, made_by_hand({BROKEN: 1.0}, complete=True, share=1.0))
    assert not row["valid"]
    assert row["weighted_accuracy"] == 0


@pytest.mark.parametrize("style", ["hermes", "pythonic", "gemma4"])
def test_calls_in_a_models_own_format_are_read(style):
    tool = {"name": "f", "parameters": {"a": {"type": "int", "enum": [1, 2]}}}
    record = Request(ToolRecord("9", "Call f.", (tool,), (Call("f", {"a": 1}),)), style)
    one = SimpleNamespace(**vars(OPTIONS) | {"max_calls": 1})
    task = record_handler(SimpleNamespace(task=one), None, Counter())
    language = task.language(record)
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer_for(FORMATS[style]))
    constraint = gcd.lift(language, vocabulary)
    example = Example(0, record, language, constraint, (1,), 200, {})
    [found] = smc.sample(
        ToyLM(vocabulary), [(1,)], constraint, max_tokens=200, particles=9, proposal=smc.GCD()
    )
    row = row_of(example, FOUR, task, found)
    assert row["valid"]
    assert row["parses"]
    assert {a["text"].replace("\ufffd", ""): a["correct"] for a in row["answers"]} == {
        write_calls(FORMATS[style], [("f", {"a": a})]): a == 1 for a in (1, 2)
    }
    assert 0 < row["weighted_accuracy"] < 1
