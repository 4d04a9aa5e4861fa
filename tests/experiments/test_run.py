"""The whole experiment on two requests: outputs, resumption, refusals, one-line errors, seconds."""

from __future__ import annotations

import atexit
import errno
import json
import os
import re
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import smc
from experiments import run as experiment
from experiments.arms import METHODS
from experiments.models import load_model
from experiments.tool_calling import task
from hmm._checkpoint import save
from hmm._model import HMM
from tests import processes
from tests.experiments import composing
from tests.experiments.rows import rows_of

pytestmark = pytest.mark.usefixtures("tables_alone")  # but for what a module shares

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "+task=xlam", "task.num_examples=2", "task.particles=[1,3]", "task.budget=tight",
    "task.max_calls=1", "task.styles=[python]", "task.methods=[lcd,gcd,pgcd]",
    "task.algorithms=[smc,discrete]", "wandb=disabled", "trace.examples=0",
    f"model.path={ROOT / 'tests' / 'models' / 'stories260K'}", "model.device=cpu",
    f"data.path={Path(__file__).with_name('requests.jsonl')}",
)  # fmt: skip


def written(directory: Path, states: int = 4, tokens: int = 512, ends: tuple = (1, 2)) -> Path:
    """Write an HMM that has read nothing."""
    made = HMM.random(states, tokens, generator=torch.Generator().manual_seed(0))
    save(made, directory, config={"eos_token_id": list(ends)})
    return directory


@cache
def hmm(states: int = 8) -> Path:
    """The directory of an HMM over the tokens of the model."""
    directory = Path(tempfile.mkdtemp(prefix="hmm-"))
    atexit.register(shutil.rmtree, directory)
    return written(directory, states)


def composed(*overrides: str):
    config = composing.composed(*SMALL, *overrides)
    if "pgcd" in config.task.methods and not any(o.startswith("hmm.path=") for o in overrides):
        config.hmm.path = str(hmm())
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


@pytest.mark.slow("the whole run, which other tests look at, too")
def test_a_run_writes_everything(finished):
    rows = rows_of(finished)
    assert len(rows) == 2 * 3 * 2 * 2
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
    with pytest.raises(ValueError, match=r"task\.budget was 'tight', is 'default'"):
        experiment.run(composed(f"run_dir={finished}", "task.budget=default"))


@pytest.mark.slow
def test_neither_batches_nor_interruptions_change_results(
    finished, tmp_path, interrupted_at, monkeypatch, caplog
):
    """A run ends by a key, with a row cut short, and on a full disk; then it goes on to the end."""
    some = ("task.methods=[lcd,pgcd]", "task.particles=[3]", "smc.max_rows=4")
    config = composed(f"run_dir={tmp_path}", *some)
    expected = [r for r in rows_of(finished) if r["method"] != "gcd" and r["particles"] == 3]
    interrupted_at(3)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    kept = rows_of(tmp_path)
    assert 0 < len(kept) < len(expected)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"example": "cut sho')

    def full(file: int) -> None:
        os.truncate(file, os.stat(file).st_size - 30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"cannot write .*results\.jsonl: No space .*; make sp"):
            experiment.run(config)
    done = f"{len(kept)} of {len(expected)} rows"
    assert f"interrupted: the same command goes on from {done}" in caplog.text
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert all(row in rows for row in kept)  # to the second: they were not made again
    assert_alike(rows, expected)


@pytest.mark.slow
def test_repetitions_are_independent_and_the_first_is_the_run_without_any(finished, tmp_path):
    own = ("gcd", "smc", 3)
    once = [r for r in rows_of(finished) if (r["method"], r["algorithm"], r["particles"]) == own]
    experiment.run(
        composed(
            "task.methods=[gcd]", "task.algorithms=[smc]", "task.particles=[3]", "task.repeats=3",
            f"run_dir={tmp_path}",
        )
    )  # fmt: skip
    rows = rows_of(tmp_path)
    assert len(rows) == 3 * len(once)
    assert_alike([row for row in rows if row["repeat"] == 0], once)
    for each in once:
        logs = {row["log_evidence"] for row in rows if row["example"] == each["example"]}
        assert len(logs) == 3
    [record] = json.loads((tmp_path / "summary.json").read_text())["methods"]
    assert record["log_evidence_sd"] > 0
    assert "its sd" in (tmp_path / "table.md").read_text()


def test_a_disk_that_is_full_from_the_first_leaves_no_rows(tmp_path, monkeypatch, caplog):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("experiments.tasks.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        experiment.run(composed(f"run_dir={tmp_path}", "task.methods=[gcd]"))
    assert "interrupted" not in caplog.text


@pytest.mark.slow
def test_the_command_lists_what_it_leaves_out_and_fails_above_the_share(tmp_path):
    """A good record, a malformed one, and one that no budget of 30 tokens is enough for."""

    def record(number: int, name: str) -> str:
        parameters = {key: {"type": "int", "description": key} for key in ("first", "second")}
        tool = {"name": name, "description": "Add two numbers.", "parameters": parameters}
        answer = {"name": name, "arguments": {"first": 2, "second": 3}}
        lists = {"tools": json.dumps([tool]), "answers": json.dumps([answer])}
        return json.dumps({"id": number, "query": "What is 2 plus 3?", **lists})

    long = "compute_the_sum_of_two_whole_numbers_and_then_tell_me_about_it"
    data, run_dir = tmp_path / "records.jsonl", tmp_path / "run"
    data.write_text("\n".join([record(0, "add"), "{not json", record(1, long)]) + "\n")
    overrides = (
        f"data.path={data}", f"run_dir={run_dir}", "task.budget=30", "task.methods=[gcd]",
        "task.particles=[1]", "task.algorithms=[smc]",
    )  # fmt: skip
    done = processes.run("-m", "experiments.run", *SMALL, *overrides)
    assert done.returncode == 2, done.stderr
    said = "1 of 3 records (33.3%) are malformed and skipped; the first (2): Expecting"
    assert said in done.stdout + done.stderr
    assert "at most data.max_skipped=0.01 of the records" in done.stderr
    [row] = rows_of(run_dir)
    assert row["example"].split(":")[1] == "0"
    refused = [json.loads(x) for x in (run_dir / "refused.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in refused] == ["malformed", "refused"]
    assert "the budget is 30" in refused[1]["reason"]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["records"], summary["malformed"], summary["refused"]) == (2, 1, 1)
    assert summary["malformed_share"] == pytest.approx(1 / 3, abs=1e-6)
    table = (run_dir / "table.md").read_text()
    assert "2 well-formed records: 1 sampled, 1 refused; 1 malformed records left out." in table
    assert "They are 33.3% of the records in the source." in table
    experiment.run(composed(*overrides, "data.max_skipped=0.4"))


@pytest.mark.parametrize(
    ("tokens", "ends", "damaged", "message"),
    [
        (100, [1, 2], None, "100.*512|512.*100"),
        (512, [5], None, r"EOS tokens \[1, 2\], got eos_token_id=\[5\]"),
        (512, [1, 2], "hmm.safetensors", r"hmm\.path=.*hmm\.safetensors cannot be read .* copy it"),
        (512, [1, 2], "config.json", r"hmm\.path=.*config\.json cannot be read .* copy it again"),
    ],
)
def test_an_hmm_that_does_not_fit_is_refused(tokens, ends, damaged, message, tmp_path, monkeypatch):
    """A damaged one before the language model is loaded."""
    written(tmp_path / "hmm", tokens=tokens, ends=ends)
    if damaged:
        path = tmp_path / "hmm" / damaged
        path.write_bytes(path.read_bytes()[:-20])
        monkeypatch.setattr(task, "load_engine", None)
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(f"run_dir={tmp_path / 'run'}", f"hmm.path={tmp_path / 'hmm'}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_too_little_memory_for_one_record_ends_the_run(tmp_path):
    """It must not leave that record out: results would depend on how much memory there is."""
    data, run_dir = tmp_path / "records.jsonl", tmp_path / "run"

    def record(*names: str) -> str:
        tool = {"name": "add", "parameters": {name: {"type": "int"} for name in names}}
        answers = [{"name": "add", "arguments": dict.fromkeys(names, 2)}]
        return json.dumps({"query": "Add.", "tools": [tool], "answers": answers})

    many = record(*(f"number_{i}" for i in range(8)))
    data.write_text(f"{record('a')}\n{many}\n")
    common = (
        f"data.path={data}", "task.particles=[1]", "task.methods=[pgcd]", "task.styles=[json]",
        "task.algorithms=[smc]", f"hmm.path={hmm(128)}", f"run_dir={run_dir}",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"those of 1 of 2 records .*of record 1:2") as refused:
        experiment.run(composed(*common, "hmm.max_table_mib=1"))
    assert not run_dir.exists()
    (enough,) = re.findall(r"give (hmm\.max_table_mib=\d+)", str(refused.value))
    experiment.run(composed(*common, enough))
    assert len(rows_of(run_dir)) == 2
    assert not (run_dir / "refused.jsonl").read_text()


def test_mistakes_are_one_line_before_any_model_work(tmp_path):
    """As a command, which does not import what is needed when a run has ended."""
    late = ("matplotlib", "pandas", "scipy.stats", "wandb", "sacrebleu", "rouge_score")
    script = tmp_path / "without.py"
    script.write_text(
        "import runpy, scipy, sys\n"
        "vars(scipy).pop('stats', None)\n"
        f"late = {late}\n"
        "parts = [name for name in sys.modules if name.startswith(late)]  # `tests.processes` has\n"
        "sys.modules.update(dict.fromkeys([*late, *parts]))  # importing one is an error\n"
        "runpy.run_module('experiments.run', run_name='__main__', alter_sys=True)\n"
    )
    done = processes.run(str(script), "+task=xlam", "task.methods=[magic]")
    assert done.returncode == 2, done.stderr
    assert "got 'magic'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["model.path=./nowhere"], "expected a checkpoint in model.path"),
        (["model.device=cuda:99"], "model.device=cuda:99"),
        (["model.path=some/model", "hmm.path=auto"], "distilled from model.path=some/model"),
        (["hmm.path=nowhere"], "expected an HMM in hmm.path=nowhere"),
    ],
)
def test_what_is_not_there_is_named(overrides, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        experiment.run(composed(f"run_dir={tmp_path}", *overrides))


# -- seconds, which compare methods: which one comes first does not show in them


def counted(lm: smc.TransformersLM, monkeypatch) -> list[int]:
    """Make the sampler's clock show how many tokens the model has read, padding included."""
    read: list[int] = []

    def count(module: object, args: object, kwargs: dict) -> None:
        read.append(kwargs["input_ids"].numel())

    lm.model.register_forward_pre_hook(count, with_kwargs=True)
    clock = SimpleNamespace(perf_counter=lambda: float(sum(read)))
    monkeypatch.setattr("smc._interface.interface.time", clock)
    monkeypatch.setattr(task, "load_engine", lambda settings: (lm, lm.tokenizer))
    return read


@pytest.mark.slow
@pytest.mark.usefixtures("warmed_up")
@pytest.mark.parametrize(
    ("memory", "kept"), [(64, 2), (0, 0)], ids=["all prompts fit", "no memory for prompts"]
)
def test_the_first_method_is_charged_what_the_others_are(memory, kept, monkeypatch, tmp_path):
    """One method under two names; the second must not find what the first has read."""
    monkeypatch.setitem(METHODS, "again", replace(METHODS["gcd"], title="GCD again"))
    config = composed(
        f"run_dir={tmp_path}", f"model.prompt_mib={memory}", "task.methods=[gcd,again]",
        "task.algorithms=[smc]", "task.particles=[2]", "model.adapter=none",
    )  # fmt: skip
    read = counted(load_model(config.model)[0], monkeypatch)
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 2
    first, again = (
        [row["seconds"] for row in rows if row["method"] == name] for name in ("gcd", "again")
    )
    assert first == pytest.approx(again)
    assert 0 < sum(first) + sum(again) < sum(read)  # before: prompts, and warming up
    note = f"model.prompt_mib={memory}, {2 - kept} prompts"
    assert (note in (tmp_path / "table.md").read_text()) == (kept < 2)
    if kept:  # A run that goes on charges what the whole one does.
        path = tmp_path / "results.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
        counted(load_model(config.model)[0], monkeypatch)
        experiment.run(config)
        assert rows_of(tmp_path) == rows
