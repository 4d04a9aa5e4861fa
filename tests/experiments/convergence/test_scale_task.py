"""The task at scale, end to end on little, and its problems."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

import gcd
import smc
from experiments import run as experiment
from experiments.convergence.exact import total_variation
from experiments.convergence.scale import sentences, source
from experiments.convergence.scale.config import PROBLEMS, ScaleConfig
from experiments.convergence.scale.measures import measured
from experiments.convergence.scale.sentences import SENTENCES
from experiments.convergence.scale.tools import TOOLS
from experiments.convergence.scale.truth import Event, Truth, truth
from experiments.harness.budgets import budget_of
from hmm.checkpoint import save
from hmm.model import HMM
from smc.models.hmm_lm import in_double

ROOT = Path(__file__).resolve().parents[3]
QUIET = ("wandb=disabled", "model.device=cpu", "+task=convergence_scale")
STORIES = ROOT / "tests" / "models" / "stories260K"
LITTLE = (
    f"task.toolcalls={STORIES}", "task.problems=[tool-tight]", "task.methods=[gcd,pgcd]",
    "task.lookaheads=[strong]", "task.particles=[1,2]", "task.seeds=2",
)  # fmt: skip


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("config", [*QUIET, *overrides])


def rows_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]


def without_times(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.fixture(scope="module")
def hmm(tmp_path_factory) -> str:
    """An HMM over the tokens of a small model, which has read nothing."""
    directory = tmp_path_factory.mktemp("hmm")
    save(HMM.random(6, 512, generator=torch.Generator().manual_seed(0)), directory)
    return f"task.toolcalls_hmm={directory}"


def test_a_run_is_complete_and_goes_on_where_it_stopped(tmp_path, monkeypatch, hmm):
    config = composed(*LITTLE, hmm, f"run_dir={tmp_path / 'run'}")
    sample, calls = smc.sample, []

    def interrupted(*args, **kwargs):
        if len(kwargs["example_ids"]) == 1:  # it warms up
            return sample(*args, **kwargs)
        calls.append(kwargs["particles"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    monkeypatch.setattr(smc, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    truths = tmp_path / "run" / "truths" / "tool-tight.json"
    before = truths.stat().st_mtime_ns
    experiment.run(config)
    assert truths.stat().st_mtime_ns == before
    assert calls == [1, 2, 1] + [1, 2] * 3  # what was there was not made again

    rows = rows_of(tmp_path / "run")
    heads = [(r["example"], r["method"], r["algorithm"], r["particles"]) for r in rows]
    assert heads == [
        ("tool-tight", method, algorithm, n)
        for algorithm in ("smc", "discrete")
        for method in ("gcd", "pgcd/strong")
        for n in (1, 2)
    ]
    exact = json.loads(truths.read_text())
    assert sum(exact["marginal"]) == pytest.approx(1)
    for row in rows:
        assert len(row["log_evidences"]) == row["runs"] == 2
        assert row["dead"] == 0
        shares = np.array(row["marginals"])
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
        found = np.abs(shares.mean(axis=0) - exact["marginal"]).sum() / 2
        assert row["total_variation"] == pytest.approx(found, abs=1e-6)
        assert row["tokens"] > 30
        assert (row["table_seconds"] is None) == (row["method"] == "gcd")
    table = (tmp_path / "run" / "table.md").read_text()
    assert "P-GCD (strong HMM)" in table
    assert f"Exact: log evidence {exact['log_evidence']:.4f}; set_alarm" in table

    truths.write_text(json.dumps(exact | {"hmm": "another"}))
    with pytest.raises(ValueError, match="is the truth of another HMM than the one there is now"):
        experiment.run(config)

    whole = composed(*LITTLE, hmm, f"run_dir={tmp_path / 'whole'}")
    experiment.run(whole)
    assert without_times(rows_of(tmp_path / "whole")) == without_times(rows)


def test_an_hmm_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "load_model", None)
    monkeypatch.setattr(source, "OWN_HMM", tmp_path / "none")
    for overrides, message in (
        ([], r"task\.toolcalls_hmm=.*none: no HMM there .*scripts\.distill_hmm"),
        (["task.toolcalls_hmm=/nowhere"], r"task\.toolcalls_hmm=/nowhere: no HMM there"),
    ):
        with pytest.raises(ValueError, match=message):
            experiment.run(composed(*LITTLE, *overrides, f"run_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.problems=[tool]"], "'tool' for task.problems: use one of tool-tight, "),
        (["task.problems=[]"], "task.problems needs at least one entry"),
        (
            ["task.algorithms=[annealing]"],
            "'annealing' for task.algorithms: use one of smc, smc_paper",
        ),
        (["task.lookaheads=[own,own]"], "task.lookaheads has an entry twice"),
        (["task.methods=[gcd]", "task.lookaheads=[own]"], "has none: add pgcd"),
        (["task.seeds=0"], "task.seeds must be at least 1, got 0"),
        (["task.stories=/nowhere"], "no model there, and the problems three-words, "),
        (["smc.temperature=0.5"], "smc.temperature=0.5: the exact answer is known at 1"),
        (["smc.top_p=0.5"], "smc.top_p=0.5 changes the target"),
        (["hmm.path=/tmp"], "hmm.path=/tmp would be ignored"),
        (["data.path=x.jsonl"], "data.path=x.jsonl would be ignored"),
    ],
)
def test_settings_are_checked(overrides, message, tmp_path):
    little = [] if "stories" in overrides[0] else ["task.problems=[tool-tight]"]
    config = composed(*little, *overrides, f"run_dir={tmp_path / 'run'}")
    with pytest.raises(ValueError, match=message):
        experiment.run(config)
    assert not (tmp_path / "run").exists()


# The problems.


@pytest.mark.parametrize("name", PROBLEMS)
def test_events_share_out_the_answers_of_a_problem(name):
    """As languages, whatever the model and the budget."""
    made = PROBLEMS[name](name)
    languages = [event.language & made.language for event in made.events]
    assert gcd.Automaton.union(languages) == made.language
    for number, one in enumerate(languages):
        assert not one.is_empty
        assert all((one & other).is_empty for other in languages[:number])
    assert len({event.name for event in made.events}) == len(made.events) >= 3


@pytest.mark.parametrize("name", TOOLS)
def test_calls_are_of_the_tools(name):
    made = TOOLS[name](name)
    for event in made.events:
        shortest = json.loads((event.language & made.language).shortest())
        [call] = shortest
        arguments = call["arguments"]
        meant = {"tool": call["name"], "genre": arguments.get("genre")}.get(name.split("-")[0])
        members = " and ".join(arguments) if len(arguments) == 2 else "more"
        assert event.name == (meant or members)


def test_keywords_occur_as_whole_words():
    language = sentences.any_order(["dog", "park"]) & sentences.of_words(1, 4)
    for text, accepted in (
        (" a dog park.", True), (" park a dog.", True), (" dog dog park.", True),
        (" dogs park.", False), (" dog.", False), (" dog park", False), ("dog park.", False),
        (" dog a a a park.", False), (" dog  park.", False), (" dog park..", False),
    ):  # fmt: skip
        assert language.accepts(text) == accepted, text
    ordered = sentences.in_order(["dog", "park"])
    assert ordered.accepts(" park dog a park.")
    assert not ordered.accepts(" park dog.")
    first = sentences.first("dog", ["dog", "park"])
    assert first.accepts(" a dogs dog park.")
    assert not first.accepts(" a park dog.")


def test_budgets_are_linear_in_the_fewest_tokens():
    vocabulary = gcd.Vocabulary.from_bytes([b"", b"a", b"b"], eos_ids=[0])
    constraint = gcd.lift(gcd.literal("aba"), vocabulary)
    assert budget_of((2, 3), constraint) == 11
    assert budget_of((0, 60), constraint) == 60


def test_sentences_have_an_exact_answer(tmp_path, monkeypatch):
    """Of an HMM made of few continuations, which is as much of a model as a good one."""
    monkeypatch.setattr(source, "LENGTH", 12)
    settings = ScaleConfig(stories=str(STORIES), hmm_states=64, hmm_sequences=40)
    stories = source.read_source("stories", settings)
    hmm = in_double(stories.hmm(tmp_path))
    assert stories.hmm(tmp_path).num_states == hmm.num_states
    assert len(list(tmp_path.iterdir())) == 1  # made once
    made = SENTENCES["four-words-tight"]("four-words-tight")
    one = made.lifted(stories.lm.vocabulary)
    exact = truth(
        hmm, made.language, made.events, stories.lm.vocabulary, one.budget, ending=made.ending
    )
    assert -200 < exact.log_evidence < 0


# The measures.


class Run:
    """A sampled posterior, as far as measures look at it."""

    def __init__(self, shares: dict[bytes, float], log_evidence: float) -> None:
        self.answers, self.probabilities = tuple(shares), tuple(shares.values())
        self.log_evidence, self.ess, self.dead = log_evidence, 1.0, not shares
        self.diagnostics = smc.Diagnostics((), (), (), (), 3, 10, 0, 1.0, 0.5)


EVENTS = [Event("a", gcd.regex("a.*")), Event("b", gcd.regex("b.*"))]
EXACT = Truth(math.log(0.5), np.array([0.7, 0.3]))


def test_measures_are_what_they_say():
    runs = [Run({b"ab": 0.5, b"a": 0.3, b"b": 0.2}, math.log(0.4)), Run({b"b": 1.0}, math.log(0.8))]
    found = measured(runs, EVENTS, EXACT)
    assert found["log_mean_evidence"] == pytest.approx(math.log(0.6))
    assert found["mean_log_evidence"] == pytest.approx(math.log(0.4 * 0.8) / 2)
    assert found["sd_log_evidence"] == pytest.approx(math.log(2) / math.sqrt(2))
    assert found["marginals"] == [[0.8, 0.2], [0.0, 1.0]]
    assert found["total_variation"] == pytest.approx(0.3)
    assert found["total_variation_one_run"] == pytest.approx((0.1 + 0.7) / 2)
    assert (found["tokens"], found["lm_calls"], found["dead"]) == (10, 3, 0)


def test_a_dead_run_counts_against_the_mean():
    dead = Run({}, -math.inf)
    found = measured([Run({b"a": 0.7, b"b": 0.3}, 0.0), dead], EVENTS, EXACT)
    assert found["total_variation"] == pytest.approx(0.5)
    assert found["log_mean_evidence"] == pytest.approx(math.log(0.5))
    assert (found["dead"], found["sd_log_evidence"]) == (1, None)
    alone = measured([dead], EVENTS, EXACT)
    assert (alone["mean_log_evidence"], alone["log_mean_evidence"]) == (None, None)
    assert total_variation(np.zeros(2), EXACT.marginal) == 1


def test_noise_is_that_of_the_mean():
    """Of many means of runs that are right, the average total variation is what is reported."""
    generator = np.random.default_rng(0)

    def runs(count: int) -> list[Run]:
        return [Run({b"a" if u < 0.7 else b"b": 1.0}, 0.0) for u in generator.random(count)]

    found = [measured(runs(40), EVENTS, EXACT) for _ in range(300)]
    mean = np.mean([each["total_variation"] for each in found])
    assert mean == pytest.approx(np.mean([f["total_variation_noise"] for f in found]), rel=0.15)
