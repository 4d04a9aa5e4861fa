"""The command `gcd`: answers against the library's own, exit codes, and one error for bad input."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd_cli import _drawing as drawing
from gcd_cli import _explaining as explaining
from gcd_cli import _sources as sources
from gcd_cli._main import _LANGUAGE_OPTIONS, main
from gcd_cli._sampling import field_lines
from smc import Bounds
from smc._results.fields import fields_of
from tests import processes
from tests.gcd.oracles import byte_automata

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tests/models/stories260K"
ALARM = "docs/alarm.json"
PATTERN = " (little|big) [a-z]{3,9}"
INTEGER_A = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=stdin, prog_name="gcd")
    assert result.exit_code == code, (result.output, result.exception)
    return result


def report(*arguments: str, code: int = 0, stdin: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code, stdin=stdin).stdout)
    return found


# -- its page -------------------------------------------------------------------------------


def test_the_readme_shows_the_printed_output() -> None:
    """Every `$ gcd …` on the page, run, but for seconds, which differ."""
    readme = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    shown = [
        line
        for block in re.findall(r"```console\n(.*?)```", readme, flags=re.DOTALL)
        for line in re.split(r"^\$ gcd ", block, flags=re.MULTILINE)[1:]
    ]
    assert {line.split()[0] for line in shown} >= {"compile", "explain"}
    for example in shown:
        command, _, output = example.partition("\n")
        result = CliRunner().invoke(main, shlex.split(command))
        assert result.exit_code in (0, 1)
        assert [_timeless(line) for line in result.output.splitlines()] == [
            _timeless(line) for line in output.splitlines()
        ]


def _timeless(line: str) -> str:
    return re.sub(r"\d+\.\d\d s", "_ s", line)


def test_bytes_that_are_no_character_are_escaped() -> None:
    found = run("explain", "--regex", "Zé|Z€", "Zè", code=1).stdout
    assert "'\\xA8' after 'Z\\xC3'; expected \\xA9" in found
    assert "at least 1 bytes, '\\xA9'" in found
    prefix = os.fsdecode(b"ab\xff")
    assert "byte 3 (line 1, column 3) is" in run("explain", "--regex", "abc", prefix, code=1).output


# -- where a text stands ---------------------------------------------------------------------


@settings(max_examples=25)
@given(byte_automata(), st.binary(max_size=6))
def test_standing_agrees_with_strings_of_the_language(language: gcd.Automaton, text: bytes) -> None:
    if language.is_empty:
        return
    found = explaining.standing(language, text)
    begun = text[: found.viable]
    assert found.in_language == language.accepts(text) == (found.reason() is None)
    assert found.may_end == language.accepts(begun)
    assert language.accepts(begun + found.completion)
    assert language.run(begun) == found.state
    if found.is_refused:
        assert language.run(text[: found.viable + 1]) < 0
        assert f"byte {found.viable + 1} " in (found.reason() or "")
    shorter = [s for s in language.enumerate(200) if s.startswith(begun)]
    if shorter:
        assert min(map(len, shorter)) == len(begun) + len(found.completion)


@pytest.mark.parametrize(
    ("prefix", "code", "says"),
    [
        ('{"hour":2', 0, "next        , 0-3"),
        ('{"hour":27', 1, "byte 10 (line 1, column 10) is '7' after '{\"hour\":2'; expected , 0-3"),
        ('{"hour":7,"minute":0}', 0, "the text may end here"),
        ('{"hour":7,"minute":0}}', 1, "expected the end"),
    ],
)
def test_explaining_bytes(prefix: str, code: int, says: str) -> None:
    assert says in run("explain", ALARM, prefix, code=code).output


def test_explaining_tokens_agrees_with_the_automaton() -> None:
    language = sources.language(ALARM, "schema")
    automaton = gcd.lift(language, sources.vocabulary(MODEL))
    prefix = b'{"hour":2'
    state = automaton.initial
    for byte in prefix:  # one state for all spellings: here, byte by byte
        state = automaton.step(state, automaton.vocabulary.token_bytes.index(bytes([byte])))
    needed = int(automaton.steps_to_accept[state])
    found = report("explain", ALARM, prefix.decode(), "--tokenizer", MODEL)["in_tokens"]
    assert found["fewest_tokens"] == needed
    assert found["allowed"] == automaton.allowed(state).size
    for slack, code in ((0, 0), (-1, 1)):
        budget = found["tokens"] + needed + slack
        if budget < automaton.steps_to_accept[automaton.initial]:
            continue
        tight = report(
            *("explain", ALARM, prefix.decode(), "--tokenizer", MODEL, "--max-tokens", str(budget)),
            code=code,
        )["in_tokens"]
        assert tight["fits"] == (code == 0)
        assert tight["allowed"] == automaton.allowed(state, budget - found["tokens"]).size


# -- checking --------------------------------------------------------------------------------


def test_checking_files(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text('{"hour":7,"minute":30}\n')
    assert "expected the end" in run("check", ALARM, str(answer), code=1).output
    assert run("check", ALARM, str(answer), "--strip").output == "yes  22 bytes\n"
    said = report("check", ALARM, "-", stdin='{"hour":7,"minute":', code=1)
    assert said["reason"].startswith("the text is not complete after")
    assert not said["refused"]
    assert said["completion"] == "0}"
    assert (
        "line 2, column 2" in run("check", "--regex", r"a\nbc", "-", stdin="a\nbd", code=1).output
    )
    assert run("check", ALARM, "-", "--whitespace", "flexible", stdin='{ "hour": 7,\n"minute":0}')


def test_a_text_must_fit_the_budget() -> None:
    text = '{"hour":7,"minute":30,"label":"the little girl"}'
    arguments = ("check", ALARM, "-", "--tokenizer", MODEL, "--max-tokens")
    tokens = report(*arguments, "1000", stdin=text)["in_tokens"]["tokens"]
    assert tokens < len(text)
    run(*arguments, str(tokens + 1), stdin=text)
    said = run(*arguments, str(tokens), stdin=text, code=1).output
    assert f"the text needs {tokens + 1} tokens, EOS included, but the budget is {tokens}" in said


@pytest.mark.parametrize("budget", [1, 18])
def test_where_no_text_fits_the_answer_is_no(budget: int) -> None:
    """Every text takes 19 tokens at least: a lower budget is not bad input, but too low."""
    options = ("--tokenizer", MODEL, "--max-tokens", str(budget))
    said = run("check", ALARM, "-", *options, stdin='{"hour":7,"minute":30}', code=1).output
    assert f"the text needs 20 tokens, EOS included, but the budget is {budget}" in said
    assert "expected" in run("check", ALARM, "-", *options, stdin="{}", code=1).output
    found = report("explain", ALARM, '{"hour":2', *options, code=1)["in_tokens"]
    assert found["remaining"] == budget - found["tokens"] < found["fewest_tokens"]
    assert (found["fits"], found["allowed"]) == (False, 0)
    refused = run("explain", ALARM, '{"hour":2', *options, code=1).output
    assert refused.startswith("refused")
    assert "viable" not in refused
    assert f"the text needs 19 tokens, EOS included, but the budget is {budget}" in refused
    assert "at least 8 so far, " in refused
    enough = (*options[:-1], "19")
    assert run("explain", ALARM, '{"hour":2', *enough).output.startswith("viable")


# -- compiling -------------------------------------------------------------------------------


def test_compiling_reports_the_same_as_the_library(tmp_path: Path) -> None:
    found = report("compile", ALARM, "--tokenizer", MODEL)
    language = sources.language(ALARM, "schema")
    automaton = gcd.lift(language, sources.vocabulary(MODEL))
    assert found["states"] == language.num_states
    assert found["shortest"].encode() == language.shortest()
    tokens = found["tokens"]
    assert tokens["states"] == automaton.num_states
    assert tokens["classes"] == automaton.num_classes
    assert tokens["fewest_tokens"] == automaton.steps_to_accept[automaton.initial]
    assert tokens["memory_bytes"] == automaton.nbytes
    file = tmp_path / "drawing.dot"
    run("compile", "--regex", "ab|c", "--draw", str(file))
    assert file.read_text() == drawing.to_dot(gcd.regex("ab|c"))
    says = run("compile", "--regex", "a", "--draw", str(tmp_path / "none" / "a.dot"), code=2).stderr
    assert re.search("cannot write .*a.dot: No such file", says)


def test_other_languages(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "f", "parameters": INTEGER_A}]))
    call = '[{"name": "f", "arguments": {"a": 1}}]'
    assert report("check", "--tools", str(tools), "-", stdin=call)["in_language"]
    database = tmp_path / "people.sqlite"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE people (age INTEGER)")
    query = "SELECT people.age FROM people"
    assert report("check", "--sql", str(database), "-", stdin=query)["in_language"]


def test_compiling_a_grammar_reports_its_extent(tmp_path: Path) -> None:
    file = tmp_path / "brackets.gbnf"
    file.write_text('root ::= "(" root ")" | digit\ndigit ::= [0-9]')
    found = report("compile", "--grammar", str(file), "--max-depth", "2")
    assert "at most 2 nested uses of root" in found["extent"]
    assert found["extent"] in run("compile", "--grammar", str(file), "--max-depth", "2").output
    assert run("check", "--grammar", f"{file}#digit", "-", stdin="7").exit_code == 0
    other = tmp_path / "brackets.txt"
    other.write_text("")
    assert ".gbnf or .ebnf" in run("compile", "--grammar", str(other), code=2).output


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    for name, text, answer, options in (
        ("schema.json", '{"const": 1}', "1", []),
        (
            "tools.json",
            '[{"name": "f", "parameters": {}}]',
            '[{"name": "f", "arguments": {}}]',
            ["--tools"],
        ),
        ("a.gbnf", 'root ::= "a"', "a", ["--grammar"]),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        arguments = "check", *options, str(tmp_path / name), "-"
        assert run(*arguments, stdin=answer).stdout.startswith("yes")
        run(*arguments, stdin=f"\ufeff{answer}", code=1)
        run(*arguments, "--strip", stdin=f"\ufeff{answer}\n")


@pytest.fixture(scope="module")
def lm() -> smc.TransformersLM:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / MODEL
    return smc.TransformersLM(
        AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )


def test_a_directory_is_read_as_transformers_reads_it(lm: smc.TransformersLM) -> None:
    assert sources.vocabulary(MODEL) == lm.vocabulary


def test_a_model_may_be_named_as_on_the_hub() -> None:
    repository = processes.hub() / "models--somebody--stories"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(MODEL, repository / "snapshots" / ("0" * 40))
    arguments = ["--regex", PATTERN, "--max-tokens", "9", "--particles", "2", "--json"]
    # The hub cannot be reached, but there is a cache of it.
    done = processes.run("-m", "gcd_cli", "sample", *arguments, "--model", "somebody/stories")
    assert done.returncode == 0, done.stderr
    same = report("sample", *arguments[:-1], "--model", MODEL)
    assert json.loads(done.stdout)["answers"] == same["answers"]


def test_a_name_that_the_hub_does_not_give_is_bad_input() -> None:
    arguments = ("compile", ALARM, "--tokenizer", "somebody/nothing")
    done = processes.run("-m", "gcd_cli", *arguments)  # offline
    assert done.returncode == 2
    assert done.stdout == ""
    assert "somebody/nothing is neither a directory nor a model" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# -- sampling --------------------------------------------------------------------------------


def test_sampling_is_that_of_the_library(lm: smc.TransformersLM) -> None:
    arguments = ["sample", "--regex", PATTERN, "--model", MODEL, "--max-tokens", "9"]
    arguments += ["--particles", "8", "--prompt", "Once there was a", "--seed", "3"]
    arguments += ["--algorithm", "smc", "--proposal", "lcd"]
    found = report(*arguments)
    automaton = gcd.lift(gcd.regex(PATTERN), lm.vocabulary)
    (posterior,) = smc.sample(
        lm, ["Once there was a"], automaton, max_tokens=9, particles=8, proposal=smc.LCD(), seed=3,
        algorithm="smc",
    )  # fmt: skip
    effect = posterior.budget
    assert [answer["text"] for answer in found["answers"]] == list(posterior.texts)
    assert [a["probability"] for a in found["answers"]] == pytest.approx(posterior.probabilities)
    assert found["log_evidence"] == pytest.approx(posterior.log_evidence)
    assert found["certified"] == pytest.approx(posterior.certified)
    assert found["budget"]["removed"] == pytest.approx(effect.removed)
    assert found["budget"]["sufficient"] == smc.sufficient_budget(posterior)
    assert [tuple(a["interval"]) for a in found["answers"]] == [
        pytest.approx(interval) for interval in posterior.intervals
    ]
    shown = run(*arguments).output
    assert re.search(r"\d\.\d{3} \+- \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)", shown)
    assert f"at least {math.floor(1000 * posterior.certified) / 1000:.3f} of the posterior" in shown
    assert effect.removed
    assert f"the budget removed about {effect.removed:.3f} of the probability" in shown


def test_sampling_reads_on_until_a_share_is_certain() -> None:
    arguments = ["sample", "--regex", "(yes|no|maybe)", "--model", MODEL, "--max-tokens", "9"]
    options = ["--particles", "2", "--certify", "0.9"]
    found = report(*arguments, *options)
    assert found["certified"] >= 0.9
    assert found["read_on"] > 0
    assert found["algorithm"] == "discrete"
    assert found["reliability"] == "certified"
    assert found["answers"][0]["error"] == pytest.approx(1 - found["certified"])
    less = report(*arguments, *options, "--max-tokens-read", "1")
    assert less["read_on"] < found["read_on"]
    assert "0" in run(*arguments, "--certify", "0", code=2).stderr


def test_sampling_ends_by_a_deadline() -> None:
    arguments = ["sample", "--regex", r"[a-z ]{2,30}\.", "--model", MODEL, "--max-tokens", "40"]
    options = ["--particles", "2", "--prompt", "Once there was a", "--deadline"]
    found = report(*arguments, *options, "0")
    assert (found["valid"], found["stopped"]) == (True, "deadline")
    assert found["overrun"] > 0
    shown = run(*arguments, *options, "0").output
    assert re.search(r"shortened to end by the deadline, which was missed by \d+\.\d\d s", shown)
    found = report(*arguments, *options, "1e6")
    assert (found["stopped"], found["overrun"]) == (None, 0)
    assert "-1" in run(*arguments, *options, "-1", code=2).stderr


def test_the_fields_of_json_answers_are_shown() -> None:
    arguments = ["sample", ALARM, "--model", MODEL, "--max-tokens", "24", "--particles", "4"]
    found = report(*arguments)
    hour = found["fields"]["/hour"]
    shares: dict[str, float] = {}
    for answer in found["answers"]:
        value = str(json.loads(answer["text"])["hour"])
        shares[value] = shares.get(value, 0.0) + answer["probability"]
    assert {each["value"]: each["probability"] for each in hour["values"]} == pytest.approx(shares)
    low, high = hour["values"][0]["interval"]
    assert 0 <= low <= high <= 1
    lines = field_lines(found["fields"])
    assert [name for _, name in lines if name.startswith("/hour")] == [
        f"/hour {each['value']}" for each in hour["values"]
    ]
    assert all(
        re.fullmatch(r"\d\.\d{3} \+- \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)", shown)
        for shown, _ in lines
    )


def test_a_field_that_is_not_in_every_answer_has_a_line_for_that() -> None:
    texts, log_p = ['{"a":1,"b":[2]}', "{}"], [math.log(0.25), math.log(0.5)]
    bounds = Bounds(math.log(0.75), math.log(0.8))
    fields = fields_of(texts, [1 / 3, 2 / 3], lambda group, count: [0.1] * count, log_p, bounds)
    assert field_lines({pointer: asdict(field) for pointer, field in fields.items()}) == [
        ("0.333 +- 0.100 (0.312 to 0.376)", "/a 1"),
        ("0.667 +- 0.100 (0.624 to 0.688)", "/a (absent)"),
        ("0.333 +- 0.100 (0.312 to 0.376)", "/b/0 2"),
        ("0.667 +- 0.100 (0.624 to 0.688)", "/b/0 (absent)"),
    ]


def test_sampling_with_an_hmm(tmp_path: Path) -> None:
    from hmm._checkpoint import save
    from hmm._model import HMM

    vocabulary = sources.vocabulary(MODEL)
    model = HMM.random(4, vocabulary.size)
    save(model, tmp_path / "hmm", vocabulary=vocabulary)
    arguments = ["sample", "--regex", PATTERN, "--model", MODEL]
    options = ["--max-tokens", "9", "--particles", "4", "--proposal", "pgcd"]
    found = report(*arguments, *options, "--hmm", str(tmp_path / "hmm"))
    assert found["valid"]
    assert found["complete"]
    assert "only one of them; add the other" in run(*arguments, *options, code=2).stderr
    assert "none" in run(*arguments, *options, "--hmm", str(tmp_path / "none"), code=2).stderr


# -- bad input -------------------------------------------------------------------------------


TOKENS = f"{ALARM} --tokenizer"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compile {folder}/broken.json", "expected JSON in .*broken.json, got a syntax error at"),
        ("compile {folder}/none.json", "cannot read .*none.json: No such file"),
        ("compile --regex a(b", "b"),
        ("compile {folder}/odd.json", "keyword 'type' at the root"),
        ("compile {folder}/empty.json", "no (string|value) satisfies"),
        ("compile {folder}/deep.json", "deep.json is nested too deeply"),
        (f"compile {TOKENS} {{folder}}/no", "no is not a directory"),
        (f"compile {TOKENS} {{folder}}", "tokenizer.json does not exist"),
        (f"compile {TOKENS} {{folder}}/damaged", "expected a tokenizer in .*tokenizer.json"),
        (f"compile {TOKENS} {{folder}}/list", "expected a JSON object in .*config.json"),
        (f"compile {TOKENS} {{folder}}/words", "got 'many'"),
        ("compile --sql {folder}/tables.json#zoo", "got 'zoo'"),
        (f"compile {ALARM} --draw a.png", "expected a .svg or .dot file"),
        ("compile --regex a --max-depth 3", "expected --max-depth with JSON schemas and tool"),
        ("compile --regex a --max-bytes 3", "expected --max-bytes with JSON schemas and tool"),
        (f"compile {ALARM} --max-bytes 0", "expected max_bytes to be a whole number"),
        (f"explain {ALARM} {{{{ --max-tokens 3", "expected --tokenizer MODEL with --max-tokens"),
        (f"check {ALARM} {{folder}}/none.txt", "cannot read .*none.txt"),
        (f"sample {ALARM} --model {MODEL} --max-tokens 18", "at least 19 tokens"),
        (f"sample {ALARM} --model {{folder}}/no --max-tokens 9", "not a directory"),
    ],
)
def test_bad_input_is_one_error_before_work(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text('{\n "type"= 3}')
    (tmp_path / "odd.json").write_text('{"type": "date"}')
    (tmp_path / "empty.json").write_text("false")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "tables.json").write_text("[]")
    for name, file, content in (
        ("damaged", "tokenizer.json", "{"),
        ("list", "config.json", "[]"),
        ("words", "config.json", '{"vocab_size": "many"}'),
    ):
        shutil.copytree(ROOT / MODEL, tmp_path / name, copy_function=os.symlink)
        (tmp_path / name / file).unlink()
        (tmp_path / name / file).write_text(content)
    monkeypatch.setitem(sys.modules, "gcd_cli._sampling", None)  # ensures that no model is loaded
    result = run(*command.format(folder=tmp_path).split(), code=2)
    assert re.search(says, result.stderr), result.stderr
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1


def test_a_damaged_model_is_bad_input(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"short")
    options = ["--regex", PATTERN, "--max-tokens", "9"]
    says = run("sample", "--model", str(tmp_path / "model"), *options, code=2).stderr
    assert "expected a model that transformers can load" in says


def test_tool_lists_and_schemas_have_the_same_options(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 1 << 20}}}
    schema["properties"]["b"] = {"type": "string", "format": "date", "minLenth": 3}
    tools, parameters = tmp_path / "tools.json", tmp_path / "schema.json"
    tools.write_text(json.dumps([{"name": "f", "parameters": schema}]))
    parameters.write_text(json.dumps(schema))
    options = ["--max-bytes", "60", "--formats", "ignore", "--unknown", "ignore"]
    answers = '[{"name": "f", "arguments": {"b": "soon"}}]', '{"b":"soon"}'
    for file, more, answer in zip((tools, parameters), (["--tools"], []), answers, strict=True):
        result = run("check", str(file), "-", *more, *options, stdin=answer)
        assert result.stdout.startswith("yes")
        assert not result.stderr
        says = run("check", str(file), "-", *more, *options, stdin=answer + 50 * " ", code=2).stderr
        assert "expected a text of at most 60 bytes" in says
        says = run("compile", str(file), *more, "--unknown", "refuse", code=2).stderr
        assert "keyword 'minLenth' at" in says


def test_all_commands_are_told_of_a_constraint_in_the_same_way() -> None:
    ways = [
        [
            (type(parameter), *parameter.opts, getattr(parameter, "help", None))
            for parameter in command.params
            if parameter.name in ("given", "kind", *_LANGUAGE_OPTIONS)
        ]
        for command in main.commands.values()
    ]
    assert len(ways) == 4
    assert len(ways[0]) == 12
    assert all(sorted(way, key=repr) == sorted(ways[0], key=repr) for way in ways)
    for command in main.commands:
        assert f"  gcd {command} " in run(command, "--help").output.partition("Examples:")[2]


def test_help_loads_no_library() -> None:
    """`gcd --help` is fast, because slow imports are left to the commands that need them."""
    program = (
        "import sys; from gcd_cli._main import main; main(['--help'], standalone_mode=False); "
        "print(sorted({'gcd', 'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.endswith("[]\n")


def test_what_a_schema_leaves_to_a_check_is_printed(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean", "minLenth": 3}')
    result = run("check", str(schema), "-", "--json", stdin="true")
    assert "Warning: keywords without the expected effect: 'minLenth'" in result.stderr
    assert json.loads(result.stdout)["in_language"]
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    long = {"type": "string", "maxLength": 65_536}
    schema.write_text(json.dumps({"type": "object", "properties": {"a": long, "b": unique}}))
    said = [
        "maxLength 65536 at '/properties/a' is only enforced in texts of at most 65538 bytes",
        "uniqueItems True at '/properties/b' is not enforced",
    ]
    assert report("compile", str(schema))["caveats"] == said
    explained = run("explain", str(schema), '{"a":"', "--tokenizer", MODEL).output
    assert all(each in explained for each in said)
    over = run(
        "check", str(schema), "-", "--tokenizer", MODEL, "--max-tokens", "99999", stdin="{}", code=2
    )
    assert "maxLength 65536 at '/properties/a'" in over.output


def test_texts_are_spelled_with_the_fewest_tokens() -> None:
    vocabulary = gcd.Vocabulary.from_bytes([b"a", b"aa", b"aab", b"b", b""], [4])
    automaton = gcd.lift(gcd.regex("a{3}b"), vocabulary)
    found = [explaining.spell(automaton, text) for text in (b"", b"aaa", b"aaab", b"ab", b"c")]
    assert [tokens and len(tokens) for tokens in found] == [[], 2, 2, None, None]
