"""Lines of a play: valid under every form, equal under the two that say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import run as experiment
from experiments.harness.models import ROOT
from experiments.shakespeare import char_lm
from experiments.shakespeare import task as shakespeare
from experiments.shakespeare.play import write_play

SMALL = [
    "+task=shakespeare",
    "task.steps=12",
    "task.context=32",
    "task.num_lines=4",
    "task.particles=3",
    "task.budget=20",
    "wandb=disabled",
    "model.device=cpu",
]
LINE = re.compile(r"[A-Z]+: [a-z]+\n")


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("config", [*SMALL, *overrides])


def rows_of(run_dir: Path) -> list[dict]:
    lines = (run_dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("lines")
    assert experiment.run(composed(f"run_dir={run_dir}")) == run_dir
    return run_dir


@pytest.mark.slow
def test_every_line_satisfies_the_pattern_and_two_forms_write_the_same(finished):
    rows = rows_of(finished)
    lines = {name: [r["line"] for r in rows if r["method"] == name] for name in
             shakespeare.CONSTRAINTS}  # fmt: skip
    assert {len(written) for written in lines.values()} == {4}
    for row in rows:
        assert row["valid"]
        assert LINE.fullmatch(row["line"])
        assert len(row["line"]) <= 20
    assert lines["wired"] == lines["pattern"]
    assert {len(line) for line in lines["positions"]} == {5 + 2 + 6 + 1}
    evidence = {r["method"]: r["log_evidence"] for r in rows if r["example"] == "0"}
    assert evidence["wired"] == evidence["pattern"]
    for name in ("table.md", "summary.json", "config.yaml", "line.dot"):
        assert (finished / name).stat().st_size > 100
    assert (finished / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_result(finished, tmp_path, monkeypatch):
    config = composed(f"run_dir={tmp_path}")
    monkeypatch.setattr(char_lm, "_SAVE_EVERY", 5)
    loss, calls = char_lm._loss, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(char_lm, "_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    assert (tmp_path / char_lm.CHECKPOINT).exists()
    monkeypatch.setattr(char_lm, "_loss", loss)
    experiment.run(config)
    assert rows_of(tmp_path) == rows_of(finished)
    before = (tmp_path / "results.jsonl").read_text()
    experiment.run(config)  # all is there: nothing is made again
    assert (tmp_path / "results.jsonl").read_text() == before
    with pytest.raises(ValueError, match=r"task.steps was 12, is 13"):
        experiment.run(composed(f"run_dir={tmp_path}", "task.steps=13"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.path=/nowhere/play.txt"], "no such file: /nowhere/play.txt"),
        (["task.budget=13"], "task.budget=13 is shorter"),
        (["task.lower=ABC"], "without a common one"),
        (["task.upper=WXZ"], "no character of UPPER"),
        (["task.context=100000"], "training needs at least"),
        (["model.path=gpt2"], "trains its own model"),
        (["data.offset=3"], "one text file"),
        (["task.steps=0"], "task.steps must be at least 1"),
    ],
)
def test_bad_input_is_named_before_training(overrides, message, tmp_path, monkeypatch):
    monkeypatch.setattr(char_lm, "_loss", None)  # no step is made
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(f"run_dir={tmp_path}", *overrides))


def test_a_text_of_ones_own_is_read(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ÉVA: été\n", encoding="utf-8")
    assert shakespeare.read_text(composed(f"data.path={path}")) == ("ÉVA: été\n", str(path))
    path.write_bytes(b"EVA: a\n\xff\xfe")
    with pytest.raises(ValueError, match=r"line 2, byte 8 of the file is 0xff, which is not UTF-8"):
        shakespeare.read_text(composed(f"data.path={path}"))


def test_the_play_is_lines_of_its_form():
    play = write_play(50, 3)
    assert play == write_play(50, 3) != write_play(50, 4)
    assert all(re.fullmatch(r"[A-Z]+: [a-z ]+\n", line) for line in play.splitlines(True))
    assert any(LINE.fullmatch(line) for line in write_play(200, 0).splitlines(True))
