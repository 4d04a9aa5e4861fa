"""A run is known by what its models and records are, however the paths to them are spelled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from experiments.models import ROOT, settle
from experiments.run import TASKS, register
from experiments.tasks import Run
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments import composing

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


@pytest.mark.parametrize("changed", ["model/config.json", "hmm/config.json", "records.jsonl"])
def test_other_files_in_the_same_place_are_another_run(places, changed):
    given = ("./model", "./hmm", "records.jsonl")
    before = run_of(*given).directory
    content = Path(changed).read_text()
    if changed == "records.jsonl":
        Path(changed).write_text("".join(content.splitlines(keepends=True)[1:]))
    else:
        Path(changed).write_text(json.dumps({**json.loads(content), "another": 1}))
    assert run_of(*given).directory != before


def test_hub_names_are_names(places):
    one, other = (run_of(name, "hmm", "records.jsonl") for name in ("org/one", "org/other"))
    assert one.directory != other.directory
