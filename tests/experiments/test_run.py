"""The whole experiment on two requests: outputs, resumption, refusals, one-line errors."""

from __future__ import annotations

import atexit
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from experiments import run as experiment
from experiments.tasks import read_rows, results_config
from experiments.tool_calling import task
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments import composing
from tests.experiments.rows import rows_of, without_seconds

pytestmark = pytest.mark.usefixtures("tables_alone")  # but for what a module shares

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "tests" / "models" / "stories260K"
REQUESTS = Path(__file__).with_name("requests.jsonl")
SMALL = (
    "+task=xlam", "task.num_examples=2", "task.particles=[1,3]", "task.budget=tight",
    "task.max_calls=1", "task.styles=[python]", "task.methods=[lcd,gcd,pgcd]",
    "task.algorithms=[smc,discrete]",
    "wandb=disabled", f"model.path={STORIES}", "model.device=cpu",
    f"data.path={REQUESTS}", "trace.examples=0",
)  # fmt: skip
EXPERIMENT_ROWS = 2 * 3 * 2 * 2


@cache
def hmm(states: int = 8) -> str:
    """The directory of an HMM over the tokens of the model, which has read nothing."""
    directory = Path(tempfile.mkdtemp(prefix="hmm-"))
    atexit.register(shutil.rmtree, directory)
    made = HMM.random(states, 512, generator=torch.Generator().manual_seed(0))
    save(made, directory, config={"eos_token_id": [1, 2]})
    return str(directory)


def composed(*overrides: str):
    config = composing.composed(*SMALL, *overrides)
    if "pgcd" in config.task.methods and not any(o.startswith("hmm.path=") for o in overrides):
        config.hmm.path = hmm()
    return config


def assert_alike(rows: list[dict], others: list[dict]) -> None:
    """The same answers; what is read together may move a log-evidence's last digits."""
    for one, other in zip(rows, others, strict=True):
        assert [a["text"] for a in one["answers"]] == [a["text"] for a in other["answers"]]
        assert one["dead"] == other["dead"]
        if not one["dead"]:
            assert one["log_evidence"] == pytest.approx(other["log_evidence"], rel=1e-4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    assert experiment.run(composed(f"run_dir={run_dir}", "trace.examples=1")) == run_dir
    return run_dir


@pytest.mark.slow
def test_a_run_writes_everything(finished):
    rows = rows_of(finished)
    assert len(rows) == EXPERIMENT_ROWS
    for row in rows:
        if row["method"] in ("gcd", "pgcd"):
            assert row["valid"]
            assert row["complete"]
            assert row["share_finished"] == 1.0
            assert not row["dead"]
        assert 0 <= row["weighted_accuracy"] <= 1
        assert row["lm_calls"] > 0
        assert row["tokens"] > row["read"] >= 0
        assert not (row["enumerated"] and row["algorithm"] == "smc")
        total = sum(a["probability"] for a in row["answers"])
        assert total == pytest.approx(0 if row["dead"] else 1)
        assert row["weighted_accuracy"] == pytest.approx(
            sum(a["probability"] for a in row["answers"] if a["correct"])
        )
    summary = json.loads((finished / "summary.json").read_text())
    assert [(m["method"], m["algorithm"], m["particles"]) for m in summary["methods"]] == [
        (method, algorithm, particles)
        for method in ("lcd", "gcd", "pgcd")
        for algorithm in ("smc", "discrete")
        for particles in (1, 3)
    ]
    table = (finished / "table.md").read_text()
    assert table.count("\n| GCD") == 4
    assert table.count("\n| P-GCD") == 4 + 4  # also in the table of paired differences
    for name in ("accuracy.png", "reads.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
    assert (finished / "config.yaml").exists()


@pytest.mark.slow
def test_batching_does_not_change_results(finished, tmp_path):
    some = ("task.methods=[lcd,pgcd]", "task.particles=[3]", "smc.max_rows=5")
    experiment.run(composed(f"run_dir={tmp_path}", *some))
    expected = [r for r in rows_of(finished) if r["method"] != "gcd" and r["particles"] == 3]
    assert_alike(rows_of(tmp_path), expected)


@pytest.mark.slow
def test_repetitions_are_independent_and_the_first_is_the_run_without_any(tmp_path):
    common = ("task.num_examples=1", "task.methods=[gcd]", "task.particles=[2]")
    experiment.run(composed(*common, f"run_dir={tmp_path / 'once'}"))
    experiment.run(composed(*common, f"run_dir={tmp_path / 'thrice'}", "task.repeats=3"))
    once, thrice = rows_of(tmp_path / "once"), rows_of(tmp_path / "thrice")
    first = [row for row in thrice if row["repeat"] == 0]
    assert without_seconds(once) == without_seconds(first)
    assert len(thrice) == 3 * len(once)
    evidences: dict[tuple, set] = {}
    for row in thrice:
        if not row["enumerated"]:
            name = row["example"], row["algorithm"]
            evidences.setdefault(name, set()).add(row["log_evidence"])
    assert max(map(len, evidences.values())) == 3
    (_, one), (_, other) = (
        (m["algorithm"], m["log_evidence_sd"])
        for m in json.loads((tmp_path / "thrice" / "summary.json").read_text())["methods"]
    )
    assert min(one, other) >= 0
    assert "its sd" in (tmp_path / "thrice" / "table.md").read_text()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_result(finished, tmp_path, interrupted_at):
    some = ("task.methods=[gcd,pgcd]", "task.particles=[3]", "smc.max_rows=4")
    config = composed(f"run_dir={tmp_path}", *some)
    interrupted_at(3)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    kept = rows_of(tmp_path)
    expected = [r for r in rows_of(finished) if r["method"] != "lcd" and r["particles"] == 3]
    assert 0 < len(kept) < len(expected)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"example": "cut sho')
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert all(row in rows for row in kept)  # to the second: they were not made again
    assert_alike(rows, expected)


def test_a_full_disk_names_the_file_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    config = composed(
        f"run_dir={tmp_path}", "smc.max_rows=4", "task.methods=[gcd]", "task.particles=[3]"
    )
    fsync, calls = os.fsync, 0

    def full(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # half of the rows are there
            os.truncate(file, os.stat(file).st_size - 30)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*results\.jsonl: No space .*; make space"):
        experiment.run(config)
    assert re.search(r"interrupted: the same command goes on from [1-9]\d* of 4 rows", caplog.text)
    kept = read_rows(tmp_path / "results.jsonl")
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert len(rows) == 4
    assert all(row in rows for row in kept)


def test_a_disk_that_is_full_from_the_first_leaves_no_rows(tmp_path, monkeypatch, caplog):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("experiments.tasks.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        experiment.run(composed(f"run_dir={tmp_path}", "task.methods=[gcd]"))
    assert "interrupted" not in caplog.text


@pytest.mark.slow
def test_real_records_malformed_ones_and_infeasible_budgets(tmp_path):
    tool = {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {k: {"type": "int", "description": k} for k in ("first", "second")},
    }
    good = {
        "id": 0,
        "query": "What is 2 plus 3?",
        "tools": json.dumps([tool]),
        "answers": json.dumps([{"name": "add", "arguments": {"first": 2, "second": 3}}]),
    }
    long_name = {**tool, "name": "compute_the_sum_of_two_whole_numbers_and_then_tell_me_about_it"}
    answer = {"name": long_name["name"], "arguments": {"first": 2, "second": 3}}
    tight = {
        **good,
        "id": 1,
        "tools": json.dumps([long_name]),
        "answers": json.dumps([answer]),
    }
    data = tmp_path / "records.jsonl"
    data.write_text("\n".join([json.dumps(good), "{not json", json.dumps(tight)]) + "\n")
    run_dir = tmp_path / "run"
    experiment.run(
        composed(
            f"data.path={data}",
            f"run_dir={run_dir}",
            "task.budget=30",
            "task.methods=[gcd]",
            "task.particles=[1]",
            "task.algorithms=[smc]",
        )
    )
    rows = rows_of(run_dir)
    assert {row["example"].split(":")[1] for row in rows} == {"0"}
    refused = [json.loads(x) for x in (run_dir / "refused.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in refused] == ["malformed", "refused"]
    assert "the budget is 30" in refused[1]["reason"]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["records"], summary["malformed"], summary["refused"]) == (2, 1, 1)
    table = (run_dir / "table.md").read_text()
    assert "2 well-formed records: 1 sampled, 1 refused; 1 malformed records left out." in table


@pytest.mark.slow
def test_another_configuration_in_the_same_directory_is_refused(finished):
    with pytest.raises(ValueError, match=r"task\.budget was 'tight', is 'default'"):
        experiment.run(composed(f"run_dir={finished}", "task.budget=default"))


@pytest.mark.slow
def test_other_records_under_the_same_name_are_refused(tmp_path):
    data, run_dir = tmp_path / "records.jsonl", tmp_path / "run"
    record = {
        "query": "Add 2 and 3.",
        "tools": [{"name": "add", "parameters": {"a": {"type": "int"}, "b": {"type": "int"}}}],
        "answers": [{"name": "add", "arguments": {"a": 2, "b": 3}}],
    }
    overrides = (
        f"data.path={data}", f"run_dir={run_dir}", "task.particles=[1]", "task.methods=[gcd]",
        "task.algorithms=[smc]",
    )  # fmt: skip
    with pytest.raises(ValueError, match="records"):
        experiment.run(composed(*overrides))  # no file yet: this must leave nothing behind
    data.write_text(json.dumps(record) + "\n")
    experiment.run(composed(*overrides))
    data.write_text(json.dumps({**record, "query": "Add 4 and 5."}) + "\n")
    with pytest.raises(ValueError, match="records_sha256 was"):
        experiment.run(composed(*overrides))


def test_an_hmm_over_another_vocabulary_is_refused_with_both_sizes(tmp_path):
    save(HMM.random(4, 100, generator=torch.Generator().manual_seed(0)), tmp_path / "hmm")
    with pytest.raises(ValueError, match=r"100.*512|512.*100"):
        experiment.run(composed(f"run_dir={tmp_path / 'run'}", f"hmm.path={tmp_path / 'hmm'}"))


@pytest.mark.parametrize("name", ["hmm.safetensors", "config.json"])
def test_a_damaged_hmm_is_named_before_the_language_model_is_loaded(name, tmp_path, monkeypatch):
    shutil.copytree(hmm(), tmp_path / "hmm")
    damaged = tmp_path / "hmm" / name
    damaged.write_bytes(damaged.read_bytes()[:-20])
    monkeypatch.setattr(task, "load_engine", None)
    with pytest.raises(ValueError, match=rf"hmm\.path=.*{name} cannot be read .* copy it again"):
        experiment.run(composed(f"run_dir={tmp_path / 'run'}", f"hmm.path={tmp_path / 'hmm'}"))
    assert not (tmp_path / "run").exists()


def test_an_hmm_with_other_ends_is_refused_with_both(tmp_path):
    other = HMM.random(4, 512, generator=torch.Generator().manual_seed(0))
    save(other, tmp_path / "hmm", config={"eos_token_id": [5]})
    with pytest.raises(ValueError, match=r"EOS tokens \[1, 2\], got eos_token_id=\[5\]"):
        experiment.run(composed(f"run_dir={tmp_path / 'run'}", f"hmm.path={tmp_path / 'hmm'}"))


def test_results_without_pgcd_do_not_depend_on_the_hmm():
    plain = results_config
    one, other = (plain(composed("task.methods=[gcd]", *o)) for o in ((), ("hmm.defense=0.5",)))
    assert one == other
    assert plain(composed()) != plain(composed("hmm.defense=0.5"))


@pytest.mark.slow
def test_too_little_memory_for_one_record_ends_the_run(tmp_path):
    """It must not leave that record out: results would depend on how much memory there is."""
    data, run_dir = tmp_path / "records.jsonl", tmp_path / "run"

    def record(*names: str) -> str:
        tool = {"name": "add", "parameters": {name: {"type": "int"} for name in names}}
        answers = [{"name": "add", "arguments": dict.fromkeys(names, 2)}]
        return json.dumps({"query": "Add.", "tools": [tool], "answers": answers})

    few = record("a")
    many = record(*(f"number_{i}" for i in range(8)))
    common = (f"data.path={data}", "task.particles=[1]", "task.methods=[pgcd]",
              "task.styles=[json]", "task.algorithms=[smc]", f"hmm.path={hmm(128)}")  # fmt: skip
    data.write_text(f"{few}\n{many}\n")
    with pytest.raises(ValueError, match=r"those of 1 of 2 records .*of record 1:2") as refused:
        experiment.run(composed(*common, f"run_dir={run_dir}", "hmm.max_table_mib=1"))
    assert not run_dir.exists()
    (enough,) = re.findall(r"give (hmm\.max_table_mib=\d+)", str(refused.value))
    experiment.run(composed(*common, f"run_dir={run_dir}", enough))
    assert len(rows_of(run_dir)) == 2
    assert not (run_dir / "refused.jsonl").read_text()


def test_mistakes_are_one_line_before_any_model_work():
    """As a command, which does not load what is needed when a run has ended."""
    command = [sys.executable, "-X", "importtime", "-m", "experiments.run"]
    command += ["+task=xlam", "task.methods=[magic]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "got 'magic'" in done.stderr
    assert "Traceback" not in done.stderr
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "experiments.evaluate" in imported
    late = {"matplotlib", "pandas", "scipy.stats", "wandb", "sacrebleu", "rouge_score"}
    assert not imported & late


def test_a_run_needs_a_task():
    config = composing.composed()
    with pytest.raises(ValueError, match=r"expected a task, got none; add one of \+task=xlam"):
        experiment.check(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["model.path=./nowhere"], "expected a checkpoint in model.path"),
        (["model.device=cuda:99"], "model.device=cuda:99"),
        (["data.offset=4", "data.path=nowhere.json"], "nowhere.json"),
        (
            ["model.path=some/model", "hmm.path=auto"],
            "distilled from model.path=some/model",
        ),
        (["hmm.path=nowhere"], "expected an HMM in hmm.path=nowhere"),
    ],
)
def test_what_is_not_there_is_named(overrides, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        experiment.run(composed(f"run_dir={tmp_path}", *overrides))
