"""Every table and figure by name, at tiny size on a toy model, and what each of them says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from experiments import run as experiment
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments.composing import composed
from tests.experiments.rows import RECORD, rows_of
from tests.experiments.toy_model import write_checkpoint

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMES = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[str, ...]:
    """Overrides that make any experiment on tool calls one of seconds."""
    directory = tmp_path_factory.mktemp("tiny")
    model = write_checkpoint(directory / "model")
    for H in (2, 3):
        hmm = HMM.random(H, 257, generator=torch.Generator().manual_seed(H))
        save(hmm, directory / f"hmm{H}", config={"eos_token_id": [256]})
    records = directory / "records.jsonl"
    records.write_text("".join(json.dumps({**RECORD, "id": i}) + "\n" for i in range(2)))
    hmms = f"{{H64:{directory}/hmm2,H256:{directory}/hmm3}}"
    return (
        f"model.path={model}", f"data.path={records}", "wandb=disabled", "task.num_examples=2",
        "task.particles=[2]", "task.budget=tight", "task.max_calls=1", f"hmms={hmms}",
        f"hmm.path={directory}/hmm3", "model.device=cpu", "task.repeats=1",
    )  # fmt: skip


def overrides_of(name: str, tiny: tuple[str, ...]) -> list[str]:
    """The overrides for one experiment; several HMMs, or one."""
    given = [f"+experiment={name}", *(each for each in tiny if not each.startswith("hmm"))]
    several = next(each for each in tiny if each.startswith("hmms="))
    if name == "table3_hmm_size":
        replaced = several.replace("hmms=", "hmm.paths=")
        methods = "task.methods=[lcd,gcd,pgcd:H64,pgcd:H256]"
        return [*given, replaced, methods]
    return [*given, next(each for each in tiny if each.startswith("hmm.path="))]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_composes(name):
    config = composed(f"+experiment={name}", "model.path=somewhere")
    experiment.check(config)


def test_the_paper_s_model_is_a_ready_config():
    config = composed("+experiment=table1_satisfaction", "model=llama3_1_8b")
    assert config.model.path == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.model.dtype, config.model.prompt) == ("bfloat16", "chat")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table1_satisfaction", "table3_hmm_size", "figure2_accuracy"])
def test_the_experiments_of_the_paper_run(name, tiny, tmp_path, request):
    drawn = name == "figure2_accuracy"
    if not drawn:
        request.getfixturevalue("tables_alone")
    config = composed(*overrides_of(name, tiny), f"run_dir={tmp_path}")
    experiment.run(config)
    rows = rows_of(tmp_path)
    task = config.task
    arms = len(task.styles) * len(task.methods) * len(task.algorithms) * len(task.particles)
    assert len(rows) == arms * 2  # two records
    for row in rows:
        if row["method"].partition(":")[0] in ("gcd", "pgcd", "hmm"):
            assert row["valid"]
            assert row["complete"]
        assert row["seconds"] > 0
        assert (row["lm_calls"] == 0) == (row["method"] == "hmm")
    table = (tmp_path / "table.md").read_text()
    assert "Difference to GCD at equal particles" in table
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {d["method"] for d in summary["differences"]} == {*task.methods} - {"gcd"}
    for figure in ("accuracy", "reads") if drawn else ():
        assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_budgets_by_the_right_answer(tiny, tmp_path):
    methods = ["lcd", "gcd"]
    kept = [each for each in tiny if not each.startswith(("hmm", "task.budget"))]
    config = composed(
        "+experiment=truncation",
        *kept,
        "task.styles=[json]",
        f"task.methods=[{','.join(methods)}]",
        f"run_dir={tmp_path}",
    )
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * len(methods) * 3  # two records, three budgets
    gold = '[{"name": "f", "arguments": {"a": 1}}]'
    for row in rows:
        style, _, rule = row["style"].partition(", ")
        assert (style, row["gold"]) == ("json", gold)
        needed = len(gold) + 1  # a token is a byte
        assert row["budget"] == math.ceil(float(rule.removeprefix("gold:")) * needed)
        if row["method"] == "gcd":
            assert row["valid"]
            assert row["parses"]
        if row["dead"]:
            assert not row["valid"]
    table = (tmp_path / "table.md").read_text()
    assert "Budget 1, 1.25 and 2 times the tokens of the gold answer" in table
    assert "Tool calls: 2 requests" in table
    assert (tmp_path / "budgets.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["commongen", "sql"])
def test_an_experiment_of_another_task_runs(name, tiny, tmp_path):
    """One example, on the data of the repository."""
    kept = ("model.", "wandb", "task.budget")
    experiment.run(
        composed(
            f"+experiment={name}", *(each for each in tiny if each.startswith(kept)),
            "task.num_examples=1", "task.methods=[gcd]", "task.algorithms=[smc]",
            "task.particles=[1]", f"run_dir={tmp_path}",
        )
    )  # fmt: skip
    [row] = rows_of(tmp_path)
    assert row["valid"]
    assert row["complete"]
    assert (tmp_path / "reads.png").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("tables_alone")
def test_each_row_of_a_table_by_hmms_is_by_its_own(tiny, tmp_path):
    experiment.run(composed(*overrides_of("table3_hmm_size", tiny), f"run_dir={tmp_path}"))
    rows = rows_of(tmp_path)
    assert {row["method"] for row in rows} == {"lcd", "gcd", "pgcd:H64", "pgcd:H256"}
    evidences = {
        name: [row["log_evidence"] for row in rows if row["method"] == f"pgcd:{name}"]
        for name in ("H64", "H256")
    }
    assert evidences["H64"] != evidences["H256"]
    identity = json.loads((tmp_path / "identity.json").read_text())
    assert identity["hmm_files.H64"] != identity["hmm_files.H256"]


@pytest.mark.slow
@pytest.mark.usefixtures("tables_alone")
def test_all_baselines_stand_side_by_side_in_one_run(tiny, tmp_path):
    """Rejection, LCD, GCD with and without resampling, greedy closing, the HMM alone."""
    hmm = next(each for each in tiny if each.startswith("hmm.path="))
    experiment.run(
        composed(
            "+task=xlam", *(each for each in tiny if not each.startswith("hmm")), hmm,
            "task.methods=[lm,lcd,greedy_close,gcd,pgcd,hmm]",
            "task.algorithms=[smc,smc_none,discrete]", "task.particles=[2]",
            "task.num_examples=1", "task.styles=[python]", f"run_dir={tmp_path}",
        )
    )  # fmt: skip
    rows = rows_of(tmp_path)
    assert len(rows) == 6 * 3
    by_arm = {(r["method"], r["algorithm"]) for r in rows}
    assert len(by_arm) == 18
    for row in rows:
        if row["dead"]:
            assert row["method"] in ("lm", "lcd", "greedy_close")
            assert row["weighted_accuracy"] == 0
            assert not row["valid"]
        elif row["method"] != "hmm":
            assert row["log_evidence"] <= 1e-6
        if row["method"] == "hmm":
            assert row["log_evidence"] is None
            assert row["tokens"] == row["read"] == 0
