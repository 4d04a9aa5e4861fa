"""Records with a schema each: how they are read, what is asked, and who finishes in time."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
from hydra import compose, initialize_config_dir
from jinja2 import TemplateError

import gcd
from experiments import run as experiment
from experiments.harness.config import DataConfig
from experiments.harness.records import DataError
from experiments.json_schema.records import build_prompt, gold, load_records, record_of
from tests.experiments.toy_model import write_checkpoint

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
RECORD = {"prompt": "What is a?", "schema": SCHEMA, "completion": {"a": 1}}
MESSAGES = [{"role": "system", "content": "JSON!"}, {"role": "user", "content": "What is a?"}]


class Template:
    """A tokenizer of which only the chat template is asked."""

    chat_template = "there is one"

    def __init__(self, knows_system: bool = True):
        self.knows_system = knows_system

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, True)
        if messages[0]["role"] == "system" and not self.knows_system:
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
        ([1], "a record is an object, not list"),
        ({"prompt": "q"}, "no field 'schema' and no field 'completion'"),
        (RECORD | {"schema": "{"}, "schema is a text that is not JSON"),
        (RECORD | {"schema": "3"}, "a schema is an object, not int"),
        (RECORD | {"completion": "Paris"}, "completion is a text that is not JSON"),
        (RECORD | {"prompt": " "}, "a prompt is a text or a list of messages, not ' '"),
        (RECORD | {"prompt": []}, "a prompt is a text or a list of messages, not"),
        (RECORD | {"prompt": [{"role": "user"}]}, "a message has a role and a content, unlike"),
    ],
)
def test_a_malformed_record_is_passed_over_with_its_reason(row, reason, tmp_path):
    found = load_records(DataConfig(path=str(write(tmp_path / "r.jsonl", row, RECORD))), 5)
    assert len(found.records) == 1
    [skipped] = found.skipped
    assert skipped.position == 1
    assert skipped.reason.startswith(reason)


def test_a_missing_file_is_refused():
    with pytest.raises(DataError, match="no such file: nowhere"):
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
    record = record_of(RECORD | {"prompt": MESSAGES[:1]}, "1")
    with pytest.raises(TemplateError, match="no system here"):
        build_prompt(record, tokenizer=Template(False), kind="chat")


def test_our_records_are_what_they_say():
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
    for schema, record in schemas.items():
        assert gcd.json_schema(schema, whitespace="spaced").accepts(gold(record).encode())


@pytest.mark.slow
def test_a_run_says_who_finishes(tmp_path):
    path = write(tmp_path / "records.jsonl", RECORD, RECORD | {"completion": {"a": -22}})
    overrides = (
        "+task=json_schema", f"model.path={write_checkpoint(tmp_path / 'model')}",
        "model.device=cpu", "wandb=disabled", f"data.path={path}", f"run_dir={tmp_path / 'run'}",
        "task.particles=[2]",
    )  # fmt: skip
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        experiment.run(compose("config", list(overrides)))
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 2 * 3 * 5  # records, budgets, methods
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for row in rows:
        rule = row["style"].removeprefix("gold:")
        needed = len(row["gold"]) + 1  # a token is a byte
        assert row["budget"] == math.ceil(float(rule) * needed)
        if row["method"] == "gcd":
            assert row["valid"]
        if row["method"] in ("gcd", "json_close"):
            assert row["parses"]
        for answer in row["answers"] if row["method"] != "json_close" else ():
            value = json.loads(answer["text"])
            assert validator.is_valid(value)
            assert answer["correct"] == (value == json.loads(row["gold"]))
    assert (tmp_path / "run" / "budgets.png").read_bytes().startswith(b"\x89PNG")
    assert "json_schema: 2 requests" in (tmp_path / "run" / "table.md").read_text()
