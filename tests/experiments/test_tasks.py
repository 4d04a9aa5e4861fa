"""Rows survive interruptions whole; a run is known by what its models and records are."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from experiments.models import ROOT, settle
from experiments.run import TASKS, register
from experiments.tasks import ResultStore, Run, key_of
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments import composing


def row(example: str, particles: int = 1, text: str = "x") -> dict:
    names = {"example": example, "method": "gcd", "algorithm": "smc"}
    return {**names, "particles": particles, "text": text}


def test_rows_are_read_back_and_merged_in_the_order_of_the_keys(tmp_path):
    odd = row("b", text="line\u2028separator, newline \n, é")
    others = [{**row("a"), "algorithm": "discrete"}, {**row("a"), "repeat": 1}]
    rows = [row("a"), odd, *others, row("c", 4)]
    store = ResultStore(tmp_path)
    store.append(reversed(rows))
    again = ResultStore(tmp_path)
    assert len(again) == 5
    keys = [key_of(each) for each in rows]
    assert again.rows(keys) == rows
    assert key_of(row("a", 4)) not in again
    assert key_of({**row("a"), "repeat": 0}) == keys[0]  # the first repetition is the row itself
    before = again.path.read_bytes()
    with pytest.raises(KeyError, match="example='d', method='gcd'"):
        again.merge([*keys, key_of(row("d"))])
    assert again.path.read_bytes() == before  # nothing is merged without all rows
    again.path.write_bytes(before[:-1])  # a row needs its line end
    ResultStore(tmp_path).append(rows[:1])
    assert again.path.read_bytes() == before
    assert again.merge(keys) == rows
    assert [p.name for p in tmp_path.iterdir()] == ["results.jsonl"]
    assert [json.loads(line) for line in again.path.read_text("utf-8").split("\n")[:-1]] == rows


@pytest.mark.parametrize("spoilt", ["{spoilt", "3", "", '{"example": "a"}'])
def test_a_row_spoilt_by_hand_is_named(spoilt, tmp_path):
    store = ResultStore(tmp_path)
    store.append([row("a"), row("b")])
    lines = store.path.read_text().splitlines()
    store.path.write_text("\n".join([lines[0], spoilt, lines[1]]) + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*results\.jsonl .* remove that line"):
        ResultStore(tmp_path)


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EIO])
def test_a_row_that_does_not_fit_on_the_disk_is_not_stored(code, tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    store = ResultStore(tmp_path)
    store.append([row("a")])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as caught:
        store.append([row("b")])
    assert (str(store.path) in str(caught.value)) == (code != errno.EIO)
    assert (len(store), key_of(row("b")) in store) == (1, False)


register()
REQUESTS = ROOT / "tests" / "experiments" / "requests.jsonl"


@pytest.fixture
def places(tmp_path, monkeypatch) -> Path:
    """The current directory, with a model, an HMM and records, and links to them."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "models" / "stories260K", "model")
    save(HMM.random(4, 512, generator=torch.Generator().manual_seed(0)), tmp_path / "hmm")
    shutil.copy(REQUESTS, "records.jsonl")
    for name in ("model", "hmm", "records.jsonl"):
        Path(f"link-{name}").symlink_to(name)
    return tmp_path


def run_of(model: str, hmm: str, records: str, *overrides: str) -> Run:
    given = (
        f"model.path={model}",
        f"hmm.path={hmm}",
        f"data.path={records}",
        "task.methods=[pgcd]",
    )
    config = composing.composed("+task=xlam", "task.num_examples=2", *given, *overrides)
    task = TASKS["xlam"]
    settle(config.model, "xlam")
    return Run(task, config, task.identity(config, task.read(config)))


def test_every_spelling_of_a_place_is_the_same_run(places):
    """Relative and absolute, a slash at the end, a link: one directory of results."""
    spelled = [
        ("./model", "./hmm", "records.jsonl"),
        ("model/", "hmm/", "./records.jsonl"),
        (f"{places}/model", f"{places}/hmm", f"{places}/records.jsonl"),
        ("./link-model", "./link-hmm", "link-records.jsonl"),
    ]
    assert len({run_of(*each).directory for each in spelled}) == 1
    run = run_of(*spelled[0], "run_dir=here")
    run.open()
    run.close()
    Path("here/results.jsonl").write_text("")
    for each in spelled:
        run_of(*each, "run_dir=here").refuse_another()


def test_other_files_in_the_same_place_are_another_run(places):
    given = ("./model", "./hmm", "records.jsonl")
    found = [run_of(*given).directory]
    for changed in ("model/config.json", "hmm/config.json", "records.jsonl"):
        content = Path(changed).read_text()
        if changed == "records.jsonl":
            Path(changed).write_text("".join(content.splitlines(keepends=True)[1:]))
        else:
            Path(changed).write_text(json.dumps({**json.loads(content), "another": 1}))
        found.append(run_of(*given).directory)
    found += [run_of(name, "hmm", "records.jsonl").directory for name in ("org/one", "org/other")]
    assert len(set(found)) == 6
