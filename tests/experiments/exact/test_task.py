"""The whole task on small problems: outputs, resumption, custom HMMs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import DictConfig

from experiments import run as experiment
from experiments.arms import Arm
from experiments.config import ModelConfig
from experiments.exact import report, task
from experiments.exact.cached import CachedLM
from experiments.models import ROOT, load_model
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments import composing
from tests.experiments.wandb_files import stored_runs

STORIES = ROOT / "tests" / "models" / "stories260K"
SMALL = (
    "+task=convergence",
    "wandb=disabled",
    f"model.path={STORIES}",
    "model.device=cpu",
    "task.particles=[1,4]",
    "task.runs=40",
    "task.draws=60",
    "task.hmm_states=4",
    "task.hmm_sequences=24",
    "task.hmm_length=4",
)
PROMPT = "Request: How old is it?\nCalls in JSON:\n"
PROBLEMS = [
    {"prompt": PROMPT, "budget": 4, "strings": ["12", "3", "wide", "7"]},
    {
        "name": "quoted",
        "prompt": [5, 9, 3],
        "budget": 3,
        "strings": ["ab", "a", "much too long for this"],
        "eos_ids": [3],
    },
]
ARMS = (
    "task.methods=[lcd,gcd,pgcd_tied,pgcd_in_time]",
    "task.algorithms=[smc_none,discrete]",
)  # of the whole run; every method is run below, and against the full vocabulary elsewhere


def composed(*overrides: str) -> DictConfig:
    return composing.composed(*SMALL, *overrides)


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def results(run_dir: Path) -> list[dict]:
    lines = (run_dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("convergence")
    problems = written(directory / "problems.json", PROBLEMS)
    run_dir = directory / "run"
    where = f"task.problems={problems}", f"run_dir={run_dir}"
    assert experiment.run(composed(*where, *ARMS, "wandb.mode=offline")) == run_dir
    return run_dir


def test_figures_and_arms_are_logged(finished):
    overview, *arms = sorted(stored_runs(finished), key=lambda run: run.job_type != "overview")
    for figure in ("medians", "reads"):
        assert overview.file(overview.history[0][f"{figure}/path"]).is_file()
    assert {run.job_type for run in arms} == {"arm"}


def test_own_problems_give_one_line_each(finished):
    first, second = results(finished)
    assert (first["name"], second["name"]) == ("0", "quoted")
    assert first["strings"] == PROBLEMS[0]["strings"]  # in the order given
    assert second["prompt_ids"] == [5, 9, 3]
    assert second["eos_ids"] == [3]
    assert second["posterior"][2] == 0  # it does not fit
    for one in (first, second):
        assert sum(one["posterior"]) == pytest.approx(1)
        assert one["gcd"]["share_valid"] == pytest.approx(1)
        assert 0 < one["lcd"]["share_valid"] <= 1
        assert len(one["estimates"]) == 4 * 2 * 2
        for e in one["estimates"]:
            runs = 1 if e["enumerated"] else max(40, math.ceil(60 / e["particles"]))
            assert e["runs"] == runs
            assert 0 <= e["read"] <= one["prefixes"] - 1 or e["method"] == "lcd"
            assert -1e-9 <= e["tv_low"] - 1e-9 <= e["tv"] <= e["tv_high"] + 1e-9 <= 1 + 2e-9
            single = e["particles"] == 1 and e["algorithm"] != "discrete"
            known = single and e["method"] in ("lcd", "gcd")
            assert (e["tv_exact"] is not None) == (known or e["enumerated"])
            if known:
                assert e["tv_exact"] == pytest.approx(one[e["method"]]["total_variation"])
                assert e["tv"] == pytest.approx(e["tv_exact"], abs=4 * e["tv_floor"] + 1e-6)


def test_the_exact_answer_is_the_model_s(finished):
    """Every tokenization of every string, asked one by one, with nothing of the tree in between."""
    lm, _ = load_model(ModelConfig(path=str(STORIES), device="cpu"))
    texts = lm.vocabulary.token_bytes
    ends = lm.vocabulary.eos_ids
    prompt = lm.encode(PROMPT)

    def spellings(rest: bytes, room: int) -> list[list[int]]:
        if not rest:
            return [[]]
        return [
            [token, *more]
            for token, text in enumerate(texts)
            if room and text and rest.startswith(text)
            for more in spellings(rest[len(text) :], room - 1)
        ]

    def probability(tokens: list[int]) -> float:
        rows, log_p = lm.prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(log_p[0, token])
            log_p = rows.extend(torch.tensor([[token]]), torch.tensor([1]))[:, 0]
        return math.exp(total)

    masses = [
        sum(probability([*tokens, end]) for tokens in spellings(text.encode(), 3) for end in ends)
        for text in PROBLEMS[0]["strings"]
    ]
    one = results(finished)[0]
    assert one["log_evidence"] == pytest.approx(math.log(sum(masses)), rel=1e-4)
    expected = [mass / sum(masses) for mass in masses]
    assert one["posterior"] == pytest.approx(expected, abs=1e-4)


def test_what_is_left_behind(finished):
    table = (finished / "table.md").read_text(encoding="utf-8")
    for text in ("P-GCD, class-tied", "| quoted ", "held out: unigram", "SMC, no resampling"):
        assert text in table
    assert "| discrete " in table
    assert "read, N=4" in table
    for name in ("medians.png", "reads.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["overview"]) == 4 * 2
    assert "strings" not in summary["problems"][0]
    assert (finished / "config.yaml").exists()


@pytest.mark.usefixtures("tables_alone")
def test_an_interrupted_run_goes_on_to_the_same_result(finished, tmp_path, monkeypatch):
    problems = written(tmp_path / "problems.json", PROBLEMS)
    config = composed(f"task.problems={problems}", f"run_dir={tmp_path / 'run'}", *ARMS)
    sample, calls = task.sample_runs, []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == 3:  # in the middle of LCD, which grows its tree as it goes
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    monkeypatch.setattr(task, "sample_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    assert not (tmp_path / "run" / "results.jsonl").exists()
    monkeypatch.setattr(task, "sample_runs", sample)
    experiment.run(config)
    assert len(calls) == 3
    assert results(tmp_path / "run") == results(finished)
    before = (tmp_path / "run" / "results.jsonl").read_text()
    monkeypatch.setattr(task, "sample_runs", None)  # all is there: nothing is made again
    experiment.run(config)
    assert (tmp_path / "run" / "results.jsonl").read_text() == before
    with pytest.raises(ValueError, match=r"task\.runs was 40, is 41"):
        experiment.run(
            composed(
                f"task.problems={problems}", f"run_dir={tmp_path / 'run'}", *ARMS, "task.runs=41"
            )
        )


def test_an_hmm_of_another_vocabulary_is_refused(finished, tmp_path):
    save(HMM.random(3, 17), tmp_path / "hmm")
    problems = written(tmp_path / "problems.json", PROBLEMS)
    with pytest.raises(ValueError, match=r"over 512 tokens.*got one over 17"):
        experiment.run(
            composed(
                f"task.problems={problems}", f"task.hmm={tmp_path / 'hmm'}",
                f"run_dir={tmp_path / 'run'}",
            )
        )  # fmt: skip


@pytest.mark.usefixtures("tables_alone")
def test_a_custom_hmm_is_used(tmp_path):
    save(HMM.random(3, 512), tmp_path / "hmm")
    problems = written(tmp_path / "problems.json", PROBLEMS[:1])
    run_dir = tmp_path / "run"
    hmm = f"task.hmm={tmp_path / 'hmm'}"
    overrides = ("task.methods=[pgcd]", "task.algorithms=[smc]", hmm)
    experiment.run(composed(f"task.problems={problems}", f"run_dir={run_dir}", *overrides))
    assert "HMM of 3 states" in (run_dir / "table.md").read_text()


@pytest.mark.usefixtures("tables_alone")
def test_with_room_for_all_prefixes_every_method_is_exact(tmp_path):
    problems = written(tmp_path / "p.json", PROBLEMS)
    options = (
        "task.particles=[2,64]", "task.algorithms=[discrete,smc_none]",
        "discrete.count_finished=false", "discrete.floor=0",
    )  # fmt: skip
    experiment.run(composed(f"task.problems={problems}", f"run_dir={tmp_path / 'run'}", *options))
    for one in results(tmp_path / "run"):
        for e in one["estimates"]:
            if e["algorithm"] == "discrete" and e["particles"] == 64:
                assert (e["enumerated"], e["runs"]) == (True, 1)
                assert e["tv_exact"] < 1e-12
                assert e["evidence_bias"] == pytest.approx(0, abs=1e-12)
                if e["method"] != "lcd":  # which reads what the budget cuts off, too
                    assert e["read"] == one["prefixes"] - 1
            elif e["algorithm"] == "smc_none":
                assert not e["enumerated"]
                assert e["tv_exact"] is None
                assert e["runs"] >= 40


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["task.methods=[lm,gcd]"],
            r"expected task\.algorithms=\[smc\] with lm in .*got discrete, where all forbidden",
        ),
        (["task.algorithms=[smc_none]", "smc.ess_threshold=0.7"], "no algorithm of this run"),
    ],
)
def test_what_a_tree_cannot_do_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(*overrides))
    experiment.check(composed("task.methods=[lm,gcd]", "task.algorithms=[smc]"))


def frame(tv: dict[str, list[float]], read: dict[str, list[float]], name: str = "p"):
    """Total variations of arms at 1, 4 and 16 particles on a problem."""
    rows = []
    for arm, values in tv.items():
        method, algorithm = arm.split("/")
        for n, value, count in zip((1, 4, 16), values, read[arm], strict=True):
            rows.append({
                "example": name, "method": method, "algorithm": algorithm, "particles": n,
                "best": value, "read": count,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_arms_are_compared_where_they_read_as_much():
    ours, reference = Arm("gcd", "discrete"), report.REFERENCE
    tv = {reference.label: [0.4, 0.2, 0.1], ours.label: [0.3, 0.1, 0.0]}
    reads = {
        "between": [3, 4, 5],
        "less": [1, 1, 1],
        "more": [40, 80, 160],
        "across": [20, 80, 160],
        "equal": [2, 8, 32],
    }
    problems = [
        frame(tv, {reference.label: [2, 8, 32], ours.label: mine}, name)
        for name, mine in reads.items()
    ]
    every = pd.concat(problems)
    across = math.exp(np.interp(math.log(32), np.log([20, 80]), np.log([0.3, 0.1])))
    assert report.equal_reads(every, ours) == {
        16: {
            "between": pytest.approx(1e-6 / 0.1),  # ours never reads as much
            "less": pytest.approx(1e-6 / 0.1),
            "more": None,  # ours always reads more
            "across": pytest.approx(across / 0.1),
            "equal": pytest.approx(1e-6 / 0.1),  # closer is not told apart
        }
    }
    own, other = report.overview(every)
    assert [own[f"N={n}"] for n in (1, 4, 16)] == ["0; 0.4", "0; 0.2", "5; 0.1"]
    assert own["equal reads, its 16"] == "–"
    assert other["equal reads, its 16"] == "1e-05 (4)"
    assert other["read, N=16"] == "32"
    alone = every[every["algorithm"] == "discrete"]
    assert report.equal_reads(alone, ours) == {}  # the reference was not run


QUICK = ("task.methods=[gcd]", "task.algorithms=[smc]", "task.particles=[3]", "task.draws=30")


def test_names_are_shown_as_they_are(tmp_path):
    """Neither figure nor table takes them for markup; the number of particles is custom."""
    name = "$5 | $x_{ or " + "more " * 20
    problems = written(tmp_path / "p.json", [{**PROBLEMS[0], "name": name}])
    experiment.run(composed(f"task.problems={problems}", f"run_dir={tmp_path / 'run'}", *QUICK))
    table = (tmp_path / "run" / "table.md").read_text()
    assert "| $5 \\| $x_{ or" in table
    assert "N=3" in table
    assert (tmp_path / "run" / "reads.png").stat().st_size > 1000


def test_a_model_without_any_answer_is_named(tmp_path, monkeypatch):
    class Silent(CachedLM):
        def log_p(self, nodes):
            return torch.full_like(super().log_p(nodes), -torch.inf)

    monkeypatch.setattr(task, "CachedLM", Silent)
    problems = written(tmp_path / "p.json", PROBLEMS[:1])
    with pytest.raises(ValueError, match=r"problem '0': .* answer with positive prob"):
        experiment.run(composed(f"task.problems={problems}", f"run_dir={tmp_path / 'r'}", *QUICK))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_model_may_be_on_a_gpu(tmp_path):
    problems = written(tmp_path / "p.json", PROBLEMS[:1])
    run_dir = f"run_dir={tmp_path / 'run'}"
    experiment.run(composed(f"task.problems={problems}", run_dir, "model.device=cuda"))
    [one] = results(tmp_path / "run")
    assert sum(one["posterior"]) == pytest.approx(1)


@pytest.mark.usefixtures("tables_alone")
def test_the_hmm_never_sees_a_constraint(tmp_path):
    """Other answers after the same prompts, within the same budgets, have the very same HMM."""
    asked = [{**PROBLEMS[0], "strings": strings} for strings in (["12", "3"], ["wide", "7", "x"])]
    for number, problem in enumerate(asked):
        file = written(tmp_path / f"{number}.json", [problem])
        experiment.run(
            composed(
                f"task.problems={file}", f"run_dir={tmp_path / str(number)}",
                "task.methods=[pgcd]", "task.algorithms=[smc]", "task.particles=[1]",
            )
        )  # fmt: skip
    first, second = (results(tmp_path / str(number))[0] for number in (0, 1))
    assert first["strings"] != second["strings"]
    one, same = (sorted((tmp_path / run / "hmm").glob("*.safetensors")) for run in "01")
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in same] != []
