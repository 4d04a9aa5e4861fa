"""Records in every public spelling, prompts, answers (never evaluated), and rows of posteriors."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gcd
import smc
from experiments.config import DataConfig
from experiments.evaluate import DataError, Example, Trial, row_of, trials_of
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import (
    STYLES,
    Call,
    Request,
    ToolRecord,
    build_prompt,
    load_records,
    parse_answer,
    read_xlam,
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

_TOOLS = [{"name": "f", "description": "", "parameters": {"a": {"type": "int"}}}]
_GOOD = {"id": 7, "query": "q", "tools": _TOOLS, "answers": [{"name": "f", "arguments": {"a": 1}}]}


def _lines(path: Path, *rows: object) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_json_strings_and_objects_read_alike(tmp_path: Path) -> None:
    strings = {**_GOOD, "tools": json.dumps(_TOOLS), "answers": json.dumps(_GOOD["answers"])}
    result = read_xlam(_lines(tmp_path / "x.jsonl", _GOOD, strings))
    assert result.skipped == ()
    assert result.records[0] == result.records[1]
    assert result.records[0].id == "7"
    assert result.records[0].calls == (Call("f", {"a": 1}),)
    assert result.records[0].tools == tuple(_TOOLS)


def test_line_separators_inside_a_string_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**_GOOD, "query": "a\u2028b\x85c"}, ensure_ascii=False) + "\n\n")
    assert [record.query for record in read_xlam(path).records] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{not json", "Expecting"),
        ([1], "got list"),
        ({"query": "q"}, "expected the fields 'tools' and 'answers'"),
        ({**_GOOD, "tools": "[{"}, "expected JSON in tools"),
        ({**_GOOD, "tools": "{}"}, "tools to be a list"),
        ({**_GOOD, "tools": [3]}, "a tool to be an object"),
        ({**_GOOD, "tools": [{"parameters": {}}]}, "a tool with a name"),
        ({**_GOOD, "tools": [{"name": "f", "parameters": [1]}]}, "parameters of 'f'"),
        ({**_GOOD, "answers": [{"arguments": {}}]}, "an answer with a name"),
        ({**_GOOD, "answers": [{"name": "f", "arguments": [1]}]}, "an object of arguments"),
        ({**_GOOD, "answers": 3}, "answers to be a list"),
        ({**_GOOD, "query": "  "}, "expected a query, got an empty text"),
        ({**_GOOD, "query": 5}, "got int"),
    ],
)
def test_a_malformed_line_is_skipped_with_its_number_and_reason(
    tmp_path: Path, bad: object, reason: str
) -> None:
    result = read_xlam(_lines(tmp_path / "x.jsonl", _GOOD, bad, _GOOD))
    assert len(result.records) == 2
    assert [skipped.position for skipped in result.skipped] == [2]
    assert reason in result.skipped[0].reason


def test_a_file_without_a_good_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 malformed and no well-formed record; the first \(1\)"):
        read_xlam(_lines(tmp_path / "x.jsonl", "{", "[]"))
    with pytest.raises(DataError, match="expected records with"):
        read_xlam(_lines(tmp_path / "empty.jsonl"))


def test_a_missing_file_is_reported_with_the_remedy(tmp_path: Path) -> None:
    for name in ("nowhere.jsonl", "nowhere.json"):
        with pytest.raises(DataError, match=r"expected an existing file, got .*nowhere"):
            read_xlam(tmp_path / name)


def test_a_line_with_a_byte_of_another_encoding_is_malformed(tmp_path: Path) -> None:
    path = _lines(tmp_path / "x.jsonl", _GOOD, _GOOD, _GOOD)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:9] + b"\xe9" + second[9:] + third.replace(b"\n", b"\r\n"))
    result = read_xlam(path)
    assert len(result.records) == 2
    [(position, reason)] = [(skipped.position, skipped.reason) for skipped in result.skipped]
    assert (position, reason) == (2, "expected UTF-8, got 0xe9 at character 10")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"the first \(1\): expected UTF-8, got 0xff"):
        read_xlam(path)
    with pytest.raises(DataError, match="got 0xff in line 1, byte 1 of the file"):
        read_xlam(path.rename(tmp_path / "x.json"))
    with pytest.raises(DataError, match="cannot be read"):
        read_xlam(tmp_path)


def test_hammers_spellings(tmp_path: Path) -> None:
    rows = [
        {
            "query": [
                {"role": "user", "content": "Hello"},
                {"role": "agent", "content": "Yes?"},
            ],
            "tools": _TOOLS,
            "answers": [{"tool": "f", "parameters": {"a": 2}}],
        },
        {"query": "q", "tools": _TOOLS, "answers": [{"name": "f", "arguments": '{"a": 3}'}]},
        "no record",
    ]
    path = tmp_path / "set.json"
    path.write_text(json.dumps(rows))
    result = read_xlam(path)
    assert result.records[0].query == "user: Hello\nagent: Yes?"
    assert [record.id for record in result.records] == ["set-1", "set-2"]
    assert [record.calls[0].arguments["a"] for record in result.records] == [2, 3]
    assert [skipped.position for skipped in result.skipped] == [3]


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(DataError, match="expected a list of records"):
        read_xlam(path)
    path.write_text('{}\n{"a": 1}')
    with pytest.raises(DataError, match=r"\.jsonl"):
        read_xlam(path)


def test_the_hub_reads_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{**_GOOD, "id": i, "answers": json.dumps(_GOOD["answers"])} for i in range(4)]
    table = datasets.Dataset.from_list([{**r, "tools": json.dumps(r["tools"])} for r in rows])
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: table)
    data = DataConfig(hub="someone/set", offset=1)
    assert [r.id for r in load_records(data, 2).records] == ["1", "2"]

    def fail(name: str, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"someone/set.*no route.*or give a file"):
        load_records(data, 2)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_public_files_read_whole() -> None:
    xlam = read_xlam(SHARED / "xlam" / "first_600.jsonl")
    assert (len(xlam.records), len(xlam.skipped)) == (600, 0)
    counts = {
        path.stem: (len(result.records), len(result.skipped))
        for path in sorted((SHARED / "toolcalls").glob("*.json"))
        for result in [read_xlam(path)]
    }
    assert counts == {
        "apibank_l1": (399, 0),
        "apibank_l2": (127, 0),
        "sealtool": (294, 0),
        "toolalpaca": (114, 0),
    }


@pytest.mark.parametrize(
    ("answers", "query", "reason"),
    [
        ('[{"name": "f", "arguments": {"a": NaN}}]', "q", "JSON values only"),
        ('[{"name": "f", "arguments": {"a": Infinity}}]', "q", "JSON values only"),
        (
            '[{"name": "f", "arguments": {}}]',
            "lone \ud800 surrogate",
            "text that UTF-8 can represent",
        ),
    ],
)
def test_what_no_prompt_or_answer_can_hold_is_malformed(tmp_path, answers, query, reason):
    good = {"query": "q", "tools": "[]", "answers": "[]"}
    lines = [good, {**good, "query": query, "answers": answers}]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = read_xlam(path)
    assert len(result.records) == 1
    assert result.skipped[0].position == 2
    assert reason in result.skipped[0].reason


_TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {
        "city": {"type": "str", "description": "The city."},
        "days": {"type": "int", "description": "How many.", "default": 3},
        "unit": {"type": "str, optional", "enum": ["c", "f"]},
    },
}
_RECORD = ToolRecord("1", "Weather in Oslo?", (_TOOL,), (Call("weather", {"city": "Oslo"}),))


class _ChatTokenizer:
    chat_template = "a template"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


class _PlainTokenizer:
    chat_template = None


def test_the_compact_prompt_in_full() -> None:
    assert build_prompt(_RECORD, "json") == (
        'weather(city: str, days: int = 3, unit?: "c" | "f") - Weather of a city\n'
        "Request: Weather in Oslo?\n"
        "Calls in JSON:\n"
    )
    assert build_prompt(_RECORD, "python").endswith("\nCalls in Python:\n")


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"name": "f", "parameters": {}}, "f()"),
        ({"name": "f"}, "f()"),
        ({"name": "f", "parameters": {"a": {"type": "str, optional"}}}, "f(a?: str)"),
        (
            {"name": "f", "parameters": {"a": {"type": "List[int]", "default": ""}}},
            'f(a: List[int] = "")',
        ),
        ({"name": "f", "parameters": {"a": {"type": "str", "default": "x" * 50}}}, "f(a?: str)"),
        ({"name": "f", "parameters": {"a": "str"}}, "f(a: str)"),
        ({"name": "f", "parameters": {"a": {}}}, "f(a: any)"),
        (
            {
                "name": "f",
                "parameters": {"a": {"type": "str"}, "b": {"type": "str"}},
                "required": ["a"],
            },
            "f(a: str, b?: str)",
        ),
        ({"name": "f", "description": " ".join("w" * 30)}, "f() - " + " ".join("w" * 12)),
        (
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "a": {"type": "array", "items": {"type": "integer"}},
                            "b": {"type": ["string", "null"]},
                            "c": {"enum": list(range(9))},
                        },
                        "required": ["a"],
                    },
                },
            },
            "f(a: array[integer], b?: string | null, c?: 0 | 1 | 2 | 3 | 4 | 5 | ...) - d",
        ),
        (
            {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
            },
            "f(a?: string)",
        ),
    ],
)
def test_signatures(tool: dict[str, Any], expected: str) -> None:
    assert signature(tool) == expected


def test_chat_shows_the_tools_in_full_and_the_form_wanted() -> None:
    for style, form in (("json", '[{"name": '), ("python", "[tool_name(")):
        text = build_prompt(_RECORD, style, tokenizer=_ChatTokenizer())
        assert form in text
        assert '"description": "How many."' in text
        assert text.endswith("<user>Weather in Oslo?<assistant>")


def test_auto_follows_the_tokenizer() -> None:
    compact = build_prompt(_RECORD, "json", kind="compact", tokenizer=_ChatTokenizer())
    assert build_prompt(_RECORD, "json", tokenizer=_PlainTokenizer()) == compact
    assert build_prompt(_RECORD, "json") == compact


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="with a chat template"):
        build_prompt(_RECORD, "json", kind="chat", tokenizer=_PlainTokenizer())
    with pytest.raises(ValueError, match="'haiku'"):
        build_prompt(_RECORD, "json", kind="haiku")
    with pytest.raises(ValueError, match="'xml'"):
        build_prompt(_RECORD, "xml")


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


def test_an_empty_pool_is_a_dead_row_too():
    dead = made_by_hand({}, complete=False, share=0.0)
    dead.particles = ()
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


def test_validity_is_checked_on_the_bytes_of_the_chosen_answer():
    row = row_of(EXAMPLE, FOUR, TASK, made_by_hand({BROKEN: 1.0}, complete=True, share=1.0))
    assert not row["valid"]
    assert row["weighted_accuracy"] == 0


@pytest.mark.parametrize("style", ["hermes", "pythonic", "glm45", "deepseek_v31", "gemma4"])
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
