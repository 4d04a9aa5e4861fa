"""Small whole runs of the task: what it writes, resumption, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from experiments import run as experiment
from hmm._checkpoint import save
from hmm._model import HMM
from scripts import fit_lookahead
from scripts.fit_lookahead import fit
from tests.experiments import composing
from tests.experiments.rows import rows_of, without_seconds
from tests.experiments.toy_model import write_checkpoint

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random model over bytes: what matters here is what the constraint makes of it."""
    return write_checkpoint(tmp_path_factory.mktemp("model"))


def composed(model: Path, *overrides: str):
    small = (
        "+task=commongen", f"model.path={model}", "model.device=cpu", "wandb=disabled",
        "task.methods=[lcd,gcd]", "task.particles=[2]", "task.num_examples=2", "task.budget=32",
    )  # fmt: skip
    return composing.composed(*small, *overrides)


def test_a_run_writes_everything(model, tmp_path):
    directory = experiment.run(composed(model, "task.algorithms=[smc]", f"run_dir={tmp_path}"))
    rows = rows_of(directory)
    assert len(rows) == 4
    for row in rows:
        if row["method"] == "gcd":
            assert row["valid"]
            assert row["complete"]
            assert row["coverage"] == 1
            assert row["weighted_accuracy"] == pytest.approx(1)
            assert row["log_p_per_token"] < 0
            assert row["answer_tokens"] == len(row["answer"].encode()) + 1  # bytes, and EOS
            assert row["answer"] == row["answers"][0]["text"]
        assert len(row["concepts"]) in (3, 4, 5)
    summary = json.loads((directory / "summary.json").read_text())
    gcd_records = [m for m in summary["methods"] if m["method"] == "gcd"]
    assert [m["coverage"] for m in gcd_records] == [1]
    assert all(0 <= m["bleu"] < 0.5 for m in gcd_records)
    table = (directory / "table.md").read_text()
    assert table.count("\n| GCD") == 1
    for name in ("accuracy.png", "reads.png"):
        assert (directory / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tables_alone")
def test_how_far_the_hmm_is_believed_is_fitted_for_what_prompts_tell(
    model, tmp_path, capsys, monkeypatch
):
    values = (0.0, 0.25, 1.0)  # of six
    assert set(values) < set(fit_lookahead.VALUES)
    monkeypatch.setattr(fit_lookahead, "VALUES", values)
    hmm = tmp_path / "hmm"
    drawn = HMM.random(4, 257, generator=torch.Generator().manual_seed(0))
    save(drawn, hmm, config={"eos_token_id": [256]})
    own = ROOT / "data" / "commongen" / "dev_100.jsonl"
    records = f"data.path={shutil.copy(own, tmp_path)}"
    common = (f"hmm.path={hmm}", "task.algorithms=[smc]", "task.methods=[pgcd]", records,
              "task.num_examples=1")  # fmt: skip
    untold = (*common, "task.told=none")

    def note_of(*overrides: str) -> str:
        directory = experiment.run(composed(model, *overrides, f"run_dir={tmp_path / 'run'}"))
        return (directory / "table.md").read_text()

    assert "hmm.lookahead is in_time, none is fitted" in note_of(*common)
    with pytest.raises(ValueError, match=r"the kind commongen/none, .* fitted for no prompts"):
        note_of(*untold, "resume=false")
    with pytest.raises(ValueError, match="expected other records"):
        fit(composed(model, *untold, "data.path=null"))
    with pytest.raises(ValueError, match="expected other records"):
        fit(composed(model, *untold, f"data.path={own}"))
    config = composed(model, *untold, f"run_dir={tmp_path / 'fit'}")
    best = fit(config)
    assert fit(config) == best  # its runs are not known by what is fitted, and are not made again
    said = json.loads((hmm / "config.json").read_text())
    assert said["lookahead"] == {"commongen/none": best}
    means = {
        value: sum(r["log_evidence"] for r in rows_of(tmp_path / "fit" / f"{value:g}"))
        for value in values
    }
    assert means[best] == max(means.values()) > min(means.values())
    assert f"commongen/none: hmm.lookahead={best:g} is kept" in capsys.readouterr().out
    again = note_of(*untold, "resume=false")
    assert f"hmm.lookahead is {best}, fitted for commongen/none" in again
    chosen = rows_of(tmp_path / "fit" / f"{best:g}")
    assert without_seconds(rows_of(tmp_path / "run")) == without_seconds(chosen)
    with pytest.raises(ValueError, match=r"the kind commongen/some, .* fitted for commongen/none"):
        note_of(*common, "task.told=some", "resume=false")
    # Methods with their own lookahead don't need a fit, either.
    fixed = ("task.told=some", "task.methods=[gcd,pgcd_conditional,hmm]")
    assert "fitted" not in note_of(*common, *fixed, "resume=false")
    # A number that is given needs no fit.
    assert "fitted" not in note_of(*common, "hmm.lookahead=0.5", "resume=false")


def test_records_that_cannot_be_run_are_left_out_and_listed(model, tmp_path):
    sets = [
        {"concept_set": "dog_N#run_V", "scene": ["A dog ran."]},
        {"concept_set": "", "scene": ["A dog ran."]},
        {"concept_set": "dog_N#run_V#cat_N", "scene": ["A dog ran."]},
        {"concept_set": "internationalisation_N#cat_N", "scene": ["A cat."]},
        {"concepts": ["naïveté"], "scene": ["A cat."]},
    ]
    data = tmp_path / "sets.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in sets), encoding="utf-8")
    directory = tmp_path / "run"
    save(
        HMM.random(4, 257, generator=torch.Generator().manual_seed(0)),
        tmp_path / "hmm",
        config={"eos_token_id": [256]},
    )
    experiment.run(
        composed(model, f"run_dir={directory}", f"data.path={data}", "task.num_examples=9",
                 "task.methods=[gcd,pgcd]", "task.algorithms=[smc]", "task.max_words=2",
                 "task.budget=20", f"hmm.path={tmp_path / 'hmm'}")
    )  # fmt: skip
    rows = rows_of(directory)
    assert [(row["example"], row["method"]) for row in rows] == [("0:1", "gcd"), ("0:1", "pgcd")]
    for row in rows:
        assert row["valid"]
        assert row["complete"]
        assert row["coverage"] == 1
        assert len(row["answer"].split()) == 2
    refused = [json.loads(x) for x in (directory / "refused.jsonl").read_text().splitlines()]
    assert [(r["record"], r["kind"]) for r in refused] == [
        (2, "malformed"), ("3", "refused"), ("4", "refused"), ("5", "refused"),
    ]  # fmt: skip
    for line, reason in zip(
        refused,
        ["set of concepts is empty", "max_words of at least 3 for 3 groups of keywords, got 2",
         "needs at least 26 tokens", "got 'naïveté'"],
        strict=True,
    ):  # fmt: skip
        assert reason in line["reason"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.budget=5"], "but all 2 were refused; .*the budget is 5"),
        (["task.max_words=1"], "but all 2 were refused; .*max_words .* got 1"),
        (["task.told=most"], "expected task.told to be one of all, some, none, got 'most'"),
        (["task.max_words=0"], "task.max_words to be at least 1, got 0"),
        (["task.budget=vast"], "expected task.budget to be .*got 'vast'"),
        (["data.path=nowhere.jsonl"], "expected an existing file, got nowhere.jsonl"),
        (["data.offset=100"], "less than the number of records, 100, got 100"),
    ],
)
def test_bad_settings_are_one_message_and_leave_nothing(model, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(model, f"run_dir={tmp_path / 'run'}", *overrides))
    assert not (tmp_path / "run").exists()


SHARED = ROOT.parent / "shared"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared models and data are not here")
def test_a_model_of_stories_writes_of_public_sets(tmp_path):
    data = SHARED / "data" / "commongen"
    experiment.run(
        composed(SHARED / "models" / "stories260K", f"run_dir={tmp_path}",
                 f"data.path={data / 'dev.jsonl'}", "data.offset=500", "task.methods=[gcd]",
                 "task.algorithms=[smc]", "task.budget=default", "task.max_words=20")
    )  # fmt: skip
    rows = rows_of(tmp_path)
    assert [row["example"] for row in rows] == ["0:501", "1:502"]
    assert all(row["coverage"] == 1 and row["valid"] and row["complete"] for row in rows)
    assert all(len(row["answer"].split()) <= 20 for row in rows)
