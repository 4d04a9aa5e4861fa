"""Records with a schema each: how they are read, what is asked, and who finishes in time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
from jinja2 import TemplateError
from omegaconf import OmegaConf
from transformers import AutoTokenizer

import gcd
from experiments import run as experiment
from experiments.config import DataConfig
from experiments.distillation.prompts import SOURCES
from experiments.evaluate import DataError
from experiments.json_schema.task import build_prompt, gold, load_records, record_of
from experiments.models import PromptError
from tests.experiments import composing
from tests.experiments.toy_model import write_checkpoint

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
RECORD = {"prompt": "What is a?", "schema": SCHEMA, "completion": {"a": 1}}
MESSAGES = [{"role": "system", "content": "JSON!"}, {"role": "user", "content": "What is a?"}]


class Template:
    """A tokenizer with nothing but a chat template."""

    chat_template = "there is one"

    def __init__(self, knows_system: bool = True):
        self.knows_system = knows_system

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, True)
        if any(m["role"] == "system" for m in messages) and not self.knows_system:
            raise TemplateError("no system here")
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_and_texts_of_json_read_alike(tmp_path):
    texts = RECORD | {"schema": json.dumps(SCHEMA), "completion": '{"a": 1}'}
    path = write(tmp_path / "records.jsonl", RECORD, texts | {"id": "1"})
    first, second = load_records(DataConfig(path=str(path)), 2).records
    assert first == second
    in_a_list = tmp_path / "records.json"
    in_a_list.write_text(json.dumps([RECORD]))
    assert load_records(DataConfig(path=str(in_a_list)), 5).records == (first,)
    assert load_records(DataConfig(path=str(path), offset=1), 5).records == (second,)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "expected a record to be a JSON object, got list"),
        ({"prompt": "q"}, "expected the fields 'schema' and 'completion'"),
        (RECORD | {"schema": "{"}, "expected text of JSON in schema"),
        (RECORD | {"schema": "3"}, "expected a schema to be an object, got int"),
        (RECORD | {"completion": "Paris"}, "expected text of JSON in completion"),
        (RECORD | {"prompt": " "}, "expected a prompt to be a text or a list of messages, got ' '"),
        (RECORD | {"prompt": []}, "expected a prompt to be a text or a list of messages, got"),
        (RECORD | {"prompt": [{"role": "user"}]}, "expected a message with a role and a content"),
        (
            RECORD | {"prompt": [*MESSAGES, {"role": "assistant", "content": "1"}]},
            "expected the last message to have the role 'user', got 'assistant'",
        ),
        (RECORD | {"completion": {"a": math.nan}}, "expected an answer with JSON values only"),
        (RECORD | {"completion": {"a": "\ud800"}}, "expected text that UTF-8 can represent"),
        (RECORD | {"prompt": "\ud800"}, "expected text that UTF-8 can represent"),
        (RECORD | {"id": "\ud800"}, "expected text that UTF-8 can represent"),
    ],
)
def test_a_malformed_record_is_passed_over_with_its_reason(row, reason, tmp_path):
    found = load_records(DataConfig(path=str(write(tmp_path / "r.jsonl", row, RECORD))), 5)
    assert len(found.records) == 1
    [skipped] = found.skipped
    assert skipped.position == 1
    assert skipped.reason.startswith(reason)


def test_a_missing_file_is_refused():
    with pytest.raises(DataError, match="expected an existing file, got nowhere"):
        load_records(DataConfig(path="nowhere.jsonl"), 1)


@pytest.mark.parametrize(
    ("request_of", "tokenizer", "kind", "expected"),
    [
        ("q", None, "auto", f"JSON Schema: {json.dumps(SCHEMA)}\nq\nAnswer in JSON:\n"),
        (MESSAGES, None, "compact", "JSON!\nWhat is a?\nAnswer in JSON:\n"),
        (MESSAGES, Template(), "auto", "<system>JSON!<user>What is a?<assistant>"),
        (MESSAGES, Template(False), "chat", "<user>JSON!\n\nWhat is a?<assistant>"),
    ],
)
def test_prompts(request_of, tokenizer, kind, expected):
    record = record_of(RECORD | {"prompt": request_of}, "1")
    assert build_prompt(record, tokenizer=tokenizer, kind=kind) == expected


def test_in_a_chat_the_schema_of_a_text_is_told():
    text = build_prompt(record_of(RECORD, "1"), tokenizer=Template(), kind="chat")
    assert text.startswith("<system>")
    assert json.dumps(SCHEMA) in text
    assert text.endswith("<user>What is a?<assistant>")


def test_a_template_s_own_complaint_is_shown():
    record = record_of(RECORD | {"prompt": [MESSAGES[0], *MESSAGES]}, "1")
    expected = "the roles system, system, user, but this one refuses them: no system here"
    with pytest.raises(PromptError, match=expected):
        build_prompt(record, tokenizer=Template(False), kind="chat")


def test_our_records_are_correct():
    """Right answers are valid by jsonschema's word, and are in the language of their schema."""
    found = load_records(DataConfig(), 1000)
    assert found.skipped == ()
    assert len(found.records) == 100
    assert len({record.id for record in found.records}) == 100
    for record in found.records:
        validator = jsonschema.Draft202012Validator(
            record.schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        validator.validate(record.answer)
    schemas = {json.dumps(record.schema): record for record in found.records}
    assert len(schemas) == 50
    languages = {schema: gcd.json_schema(schema, whitespace="spaced") for schema in schemas}
    for record in found.records:
        assert languages[json.dumps(record.schema)].accepts(gold(record).encode())
        for text in strings(record.answer):  # word for word, or a choice of the schema, or a date
            assert (
                text in record.request
                or json.dumps(text) in json.dumps(record.schema)
                or re.fullmatch(r"\d{4}-\d\d-\d\d", text)
            )


def test_an_hmm_is_distilled_from_answers_to_the_same_prompts(tmp_path):
    path = write(tmp_path / "records.jsonl", RECORD, RECORD | {"prompt": MESSAGES})
    tokenizer = AutoTokenizer.from_pretrained(write_checkpoint(tmp_path / "model"))
    source = SOURCES["json_schema"]
    settings = {"records": {"path": str(path), "hub": None, "split": "train", "offset": 0}}
    config = OmegaConf.create({**settings, "model": {"prompt": "compact"}})
    prompts = source.token_ids(config, 5, tokenizer)
    records = load_records(DataConfig(path=str(path)), 5).records
    wanted = [build_prompt(each, tokenizer=tokenizer, kind="compact") for each in records]
    assert [tokenizer.decode(ids) for ids in prompts] == wanted


def strings(value: object) -> list[str]:
    """All strings of a JSON value, names of members aside."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [text for each in inner for text in strings(each)]
    return [value] if isinstance(value, str) else []


def run(path: Path, tmp_path: Path, *more: str) -> list[dict]:
    """Run the task on a file of records with a toy model, and give its rows."""
    overrides = (
        "+task=json_schema", f"model.path={write_checkpoint(tmp_path / 'model')}",
        "model.device=cpu", "wandb=disabled", f"data.path={path}", f"run_dir={tmp_path / 'run'}",
        *more,
    )  # fmt: skip
    experiment.run(composing.composed(*overrides))
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_what_no_answer_could_be_right_for_is_refused_whatever_the_budget(tmp_path, caplog):
    schema = SCHEMA | {"properties": SCHEMA["properties"] | {"b": {"minimun": 3}}}
    good = RECORD | {"schema": schema, "id": "good"}
    bad = [{"a": "x"}, {"b": 1, "a": 1}, {"a": 1.0}]
    rows = [good, *(good | {"completion": each, "id": f"bad{i}"} for i, each in enumerate(bad))]
    path = write(tmp_path / "records.jsonl", *rows)
    found = run(path, tmp_path, "task.budget=[fewest:1.5,fewest:2.0]", "task.methods=[gcd]",
                "task.reference=gcd")  # fmt: skip
    assert {row["example"].partition(":")[2] for row in found} == {"good"}
    refused = (tmp_path / "run" / "refused.jsonl").read_text()
    assert refused.count("expected a correct answer that satisfies the schema") == 2 * len(bad)
    assert "keywords of schemas that constrain nothing: minimun (1)" in caplog.text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ignored_keywords"] == {"minimun": 1}
    table = (tmp_path / "run" / "table.md").read_text()
    assert "8 examples (a record under a budget): 2 sampled, 6 refused" in table


@pytest.mark.slow
def test_a_run_reports_which_answers_finish(tmp_path):
    path = write(tmp_path / "records.jsonl", RECORD, RECORD | {"completion": {"a": -22}})
    rows = run(path, tmp_path, "task.particles=[2]")
    assert len(rows) == 2 * 3 * 4  # records, budgets, methods
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for row in rows:
        rule = row["style"].removeprefix("gold:")
        needed = len(row["gold"]) + 1  # a token is a byte
        assert row["budget"] == math.ceil(float(rule) * needed)
        if row["method"] == "gcd":
            assert row["valid"]
            assert row["parses"]
        for answer in row["answers"]:
            value = json.loads(answer["text"])
            assert validator.is_valid(value)
            assert answer["correct"] == (value == json.loads(row["gold"]))
    assert (tmp_path / "run" / "budgets.png").read_bytes().startswith(b"\x89PNG")
    assert "JSON by a schema: 2 requests" in (tmp_path / "run" / "table.md").read_text()
