"""Records with a schema each: how they are read, what is asked, and who finishes in time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

import gcd
from experiments import run as experiment
from experiments.config import DataConfig
from experiments.distillation.prompts import SOURCES
from experiments.json_schema.task import build_prompt, gold, load_records
from tests.experiments import composing
from tests.experiments.rows import rows_of
from tests.experiments.toy_model import write_checkpoint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
RECORD = {"prompt": "What is a?", "schema": SCHEMA, "completion": {"a": 1}}
MESSAGES = [{"role": "system", "content": "JSON!"}, {"role": "user", "content": "What is a?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"))


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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


def test_an_hmm_is_distilled_from_answers_to_the_same_prompts(tmp_path, model):
    path = write(tmp_path / "records.jsonl", RECORD, RECORD | {"prompt": MESSAGES})
    tokenizer = AutoTokenizer.from_pretrained(model)
    settings = {"path": str(path), "hub": None, "split": "train", "offset": 0}
    config = OmegaConf.create({"records": settings, "model": {"prompt": "compact"}})
    prompts = SOURCES["json_schema"].token_ids(config, 5, tokenizer)
    records = load_records(DataConfig(path=str(path)), 5).records
    wanted = [build_prompt(each, tokenizer=tokenizer, kind="compact") for each in records]
    assert [tokenizer.decode(ids) for ids in prompts] == wanted


def strings(value: object) -> list[str]:
    """All strings of a JSON value, names of members aside."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [text for each in inner for text in strings(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
def test_a_run_reports_which_answers_finish_and_what_none_is_right_for(tmp_path, model, caplog):
    """The last three records' answers are not of their schema; no budget changes that."""
    schema = SCHEMA | {"properties": SCHEMA["properties"] | {"b": {"minimun": 3}}}
    answers = [{"a": 1}, {"a": -22}, {"a": "x"}, {"b": 1, "a": 1}, {"a": 1.0}]
    path = write(
        tmp_path / "records.jsonl",
        *({**RECORD, "schema": schema, "completion": each, "id": f"r{i}"}
          for i, each in enumerate(answers)),
    )  # fmt: skip
    run_dir = experiment.run(
        composing.composed(
            "+task=json_schema", f"model.path={model}", "model.device=cpu", "wandb=disabled",
            f"data.path={path}", f"run_dir={tmp_path / 'run'}", "task.particles=[2]",
            "task.methods=[lcd,gcd]",
        )
    )  # fmt: skip
    rows = rows_of(run_dir)
    assert len(rows) == 2 * 3 * 2  # records, budgets, methods
    assert {row["example"].partition(":")[2] for row in rows} == {"r0", "r1"}
    validator = jsonschema.Draft202012Validator(schema)
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
    assert (run_dir / "budgets.png").read_bytes().startswith(b"\x89PNG")
    refused = (run_dir / "refused.jsonl").read_text()
    assert refused.count("expected a correct answer that satisfies the schema") == 3 * 3
    assert "keywords of schemas that constrain nothing: minimun (1)" in caplog.text
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["ignored_keywords"] == {"minimun": 1}
    table = (run_dir / "table.md").read_text()
    assert "15 examples (a record under a budget): 6 sampled, 9 refused" in table
    assert "JSON by a schema: 2 requests" in table
    assert "Budget 1, 1.25 and 2 times the tokens of the gold answer" in table
