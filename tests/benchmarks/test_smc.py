"""The benchmark beside `genlm-control` knows the evidence, and counts what forward passes read."""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
from dataclasses import replace

import pytest

import smc
from benchmarks import smc as benchmark
from benchmarks.smc import Case, Passes, Run, Way
from hmm._model import HMM
from smc.testing import ToyLM, target
from tests.smc.toys import CONSTRAINTS, VOCABULARY

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("genlm") is None, reason="genlm-control is an optional extra"
)
TOY = ToyLM(VOCABULARY, seed=1, spread=1.5)
TINY = ["--tiny", "--tokens", "5", "--particles", "2", "--repeats", "1", "--reference", "40"]


def toy_case(name: str, budget: int) -> Case:
    constraints = {"all": CONSTRAINTS[name]()}
    return Case(TOY, HMM.random(2, VOCABULARY.size), [0, 1], constraints, budget)


@pytest.fixture(scope="module")
def tiny() -> dict[str, Case]:
    """The tiny cases by their workload."""
    made = benchmark.tiny(argparse.Namespace(tokens=5, records=1))
    return {title: cases()[0] for title, cases in made.items()}


@pytest.mark.parametrize(("name", "budget"), [("a_star_b", 6), ("few_words", 4), ("forced", 3)])
def test_few_sequences_are_enumerated(name, budget):
    case = toy_case(name, budget)
    every = target(TOY, case.prompt, case.constraints["all"], budget)
    assert benchmark.sequences(case.constraints["all"], budget) == len(every)
    found = benchmark.reference(case, "all", len(every))
    assert found.gap == 0
    assert found.log_evidence == pytest.approx(math.log(sum(every.values())))


def test_many_sequences_are_estimated_twice():
    case = replace(toy_case("a_star_b", 9), lm=ToyLM(VOCABULARY, seed=1, spread=0.3))
    every = target(case.lm, case.prompt, case.constraints["all"], 9)
    found = benchmark.reference(case, "all", len(every) - 1)
    assert 0 < found.gap < 1
    assert math.exp(found.log_evidence) == pytest.approx(sum(every.values()), rel=0.5)


def test_forward_passes_are_counted_as_the_sampler_counts_them(tiny):
    case = tiny["free text"]
    length = len(case.prompt)
    numbers = iter(range(1000))
    with benchmark.count_passes(case.lm.model, lambda: next(numbers)):
        case.lm.prefill([case.prompt])  # kept
    with benchmark.count_passes(case.lm.model, lambda: next(numbers)) as passes:
        (found,) = smc.sample(
            case.lm, [case.prompt], case.constraints["all"], budget=case.budget, particles=4,
            proposal=smc.GCD(), forced_runs=False, algorithm="smc",
        )  # fmt: skip
    case.lm.forget_prompts()
    case.lm.prefill([case.prompt])  # not counted
    assert passes.calls == passes.seconds == found.diagnostics.lm_calls - 1 > 2
    assert passes.positions == found.diagnostics.tokens - length > passes.calls


@needs_package
@pytest.mark.filterwarnings("ignore:Common vocabulary:RuntimeWarning")  # few bytes make few tokens
def test_ways_of_the_package_estimate_the_same_evidence(tiny):
    """Over seeds, the estimates of each average to what enumeration gives."""
    case = tiny["free text"]
    known = benchmark.reference(case, "all", 40)
    assert known.gap == 0
    case.lm.prefill([case.prompt])
    ways = benchmark.theirs(case, 4, direct=True)
    assert len(ways) == 5
    for way in ways:
        runs = [way.prepare(seed)() for seed in range(25)]
        share = [math.exp(log_evidence - known.log_evidence) for log_evidence, _ in runs]
        error = statistics.stdev(share) / math.sqrt(len(share))
        assert abs(statistics.mean(share) - 1) < 4.5 * error + 1e-6, way.name
        assert all(4 <= tokens <= 4 * case.budget for _, tokens in runs)


@needs_package
def test_ways_of_the_package_write_tool_calls(tiny):
    ways = benchmark.theirs(tiny["tool calls"], 2, direct=True)
    assert len(ways) == 4  # there is no pattern that the package could make an automaton of
    for way in ways:
        log_evidence, tokens = way.prepare(0)()
        assert log_evidence < 0
        assert tokens >= 2


def test_table_has_medians_of_timed_runs_and_pools_errors_of_one_law():
    def run(name, law, turn, seconds, inside, error, tokens=30):
        way = Way(name, "all", law, lambda seed: lambda: (0.0, 0))
        return Run(way, (0, turn), seconds, Passes(inside, 5, 9), tokens, error)

    rows = benchmark.table(
        [
            run("ours, GCD", "GCD", 0, None, 1.0, 0.5),
            run("AWRS", "AWRS", 0, None, 1.0, -1.0),
            run("ours, GCD", "GCD", 1, 2.0, 1.5, 0.5),
            run("AWRS", "AWRS", 1, 8.0, 2.0, 1.0),
            run("AWRS, its backend", "AWRS", 1, 16.0, 16.0, 1.0),
            run("ours, GCD", "GCD", 2, 4.0, 3.0, -0.5),
            run("AWRS", "AWRS", 2, 8.0, 2.0, -1.0),
        ]
    )
    of = {row[0]: dict(zip(benchmark.HEADS, row, strict=True)) for row in rows}
    assert list(of) == ["ours, GCD", "AWRS", "AWRS, its backend"]
    ours, awrs, own = of.values()
    assert (ours["runs"], ours["s"], ours["× GCD"]) == ("2", "3", "1.00")
    assert (ours["outside the model, %"], ours["error"]) == ("25", "0.500 (3)")
    assert (ours["passes"], ours["positions"]) == ("5", "9")
    assert float(ours["tokens/s"]) == pytest.approx(statistics.mean([15, 7.5]), abs=0.6)
    assert float(ours["error after 1 s"]) == pytest.approx(0.5 * math.sqrt(3), abs=1e-3)
    assert (awrs["× GCD"], awrs["outside the model, %"]) == ("3.00", "75")
    assert own["× GCD"] == "8.00"  # beside the run of the same turn
    assert awrs["error"] == own["error"] == "1.000 (4)"
    assert own["error after 1 s"] == "4.000"


def test_without_the_package_only_ours_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    benchmark.main(TINY)
    text = capsys.readouterr().out
    assert "genlm-control is not installed" in text
    assert "log evidence 0, all spellings: -17.198 (exact)" in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "| ours" in line]
    names = ["ours, LCD", "ours, GCD", "ours, P-GCD"]
    assert [row[0] for row in rows] == [*names, *names, "ours, GCD"]
    assert [row[1] for row in rows] == 3 * ["all"] + 3 * ["canonical"] + ["all"]
    cells = [dict(zip(benchmark.HEADS, row, strict=True)) for row in rows]
    assert all(0 < float(cell["outside the model, %"]) < 100 for cell in cells)
    forced, spelled = cells[4], cells[6]
    assert int(forced["passes"]) < int(spelled["passes"]) / 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(["--repeats", "0"], "at least one"), (["--records", "-1"], "not negative")],
)
def test_options_that_do_not_fit_are_refused(capsys, options, complaint):
    with pytest.raises(SystemExit):
        benchmark.main(options)
    assert complaint in capsys.readouterr().err
