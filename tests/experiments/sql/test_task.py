"""The whole task on a toy model that writes bytes: rows, resumption, table, prompt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import gcd
from experiments import run as experiment
from experiments.sql import task as sql
from experiments.sql.task import METRICS
from experiments.tables import as_table, summarize
from smc.testing import ToyLM
from tests.experiments import composing
from tests.experiments import rows as rows_module
from tests.experiments.rows import rows_of

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY = gcd.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(128))], eos_ids=[0])
SCRIPT = """
CREATE TABLE t (a INTEGER, b TEXT);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
"""
LINES = (
    {"db_id": "toy", "question": "All?", "query": "SELECT * FROM t"},
    {"db_id": "toy", "question": "Which a?", "query": "SELECT t.a FROM t"},
    {"db_id": "toy", "question": "None?", "query": "SELECT t.a FROM t WHERE t.a > 9"},
    {"db_id": "other", "question": "Who?", "query": "SELECT 1"},
)


class Tokenizer:
    """One token a byte; there is no chat template."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [1 + byte for byte in text.encode("ascii", "replace")][-8:]}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A composed run with its own data and model."""
    data, model = tmp_path / "data", tmp_path / "model"
    data.mkdir()
    model.mkdir()
    (data / "toy.sql").write_text(SCRIPT)
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    (model / "config.json").write_text("{}")
    monkeypatch.setattr(sql, "load_engine", lambda _: (ToyLM(VOCABULARY), Tokenizer()))

    def made(name: str, *overrides: str):
        return composing.composed(
            "+experiment=sql", "wandb=disabled", "model.device=cpu", f"model.path={model}",
            f"data.path={data}", f"run_dir={tmp_path / name}", "task.methods=[lcd,gcd]",
            "task.algorithms=[smc]", "task.particles=[3]", "task.budget=22",
            "task.subquery_depth=0", "task.tables=1", *overrides,
        )  # fmt: skip

    return made


@pytest.mark.usefixtures("tables_alone")
def test_a_run_writes_rows_and_a_table(config):
    run_dir = experiment.run(config("run"))
    rows = rows_of(run_dir)
    assert len(rows) == 2 * 3
    for row in rows:
        assert row["judged"] == (not row["example"].endswith("toy-3"))
        if row["method"] == "gcd":
            assert row["complete"]
            assert row["valid"]
            assert row["prepares"] == pytest.approx(1)
        assert row["dead"] or all(a["text"].startswith("SELECT ") for a in row["answers"])
    refused = [json.loads(line) for line in (run_dir / "refused.jsonl").read_text().splitlines()]
    assert [(r["record"], r["kind"]) for r in refused] == [(4, "malformed")]
    [unjudged] = (run_dir / "unjudged.jsonl").read_text().splitlines()
    assert json.loads(unjudged)["record"] == "toy-3"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["malformed"], summary["unjudged"]) == (1, 1)
    table = (run_dir / "table.md").read_text()
    for column in ("execution accuracy (weighted) %", "execution accuracy (majority) %"):
        assert f"| {column} " in table
    assert "prepares % as valid %" in table  # the constraint is that queries compile


def test_a_row_shows_the_scores_of_its_answers(config):
    """Answers of one posterior: right in another spelling, right but another query, wrong, bad."""
    made = config("run")
    asked = sql.read(made)
    own = sql.record_handler(made, asked, Tokenizer())
    question = asked.questions.records[1]
    answers = {
        b"select A from T;": 0.4,  # the gold query, as anybody may write it
        b"SELECT t.a FROM t WHERE t.a < 3": 0.3,  # gives the same
        b"SELECT t.b FROM t": 0.2,
        b"SELECT t.c FROM t": 0.06,
        b"DROP TABLE t": 0.04,
    }
    posterior = SimpleNamespace(answers=tuple(answers), probabilities=tuple(answers.values()))
    row = own.columns(SimpleNamespace(record=question), posterior)
    assert row["prepares"] == pytest.approx(0.9)
    assert row["gold"] == question.query
    assert [own.is_correct(question, a) for a in answers] == [True, True, False, False, False]
    assert not own.is_correct(question, b"SELECT '\xff'")
    assert not asked.judge.prepares(question, b"SELECT '\xff'")


def test_execution_accuracy_excludes_records_without_a_measure():
    def row(example: str, judged: bool, right: float, prepares: float) -> dict:
        shares = {"prepares": prepares, "judged": judged, "best_correct": right > 0.5}
        return rows_module.row("gcd", 1, right, example=example) | shares

    rows = [row("1", True, 1.0, 1.0), row("2", True, 0.0, 0.5), row("3", False, 0.0, 0.0)]
    [record] = summarize(rows, metrics=METRICS)
    assert record["examples"] == 3
    assert record["weighted_accuracy"] == record["majority_accuracy"] == 0.5
    assert record["best_accuracy"] == 0.5
    assert record["prepares"] == 0.5
    assert 0 <= record["weighted_accuracy_low"] < 0.5 < record["weighted_accuracy_high"] <= 1
    [line] = as_table([record], METRICS)
    assert line["prepares %"] == "50.0"
    assert line["execution accuracy (weighted) %"] == "50.0 [0.0, 100.0]"
