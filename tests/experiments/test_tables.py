"""Denominators, intervals, tables and figures; differences against the resampling written out."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments import figures
from experiments.arms import ALGORITHMS, METHODS
from experiments.results import WIDTH, on_screen
from experiments.tables import (
    COMPARED,
    VALID,
    WEIGHTED,
    Metric,
    as_markdown,
    as_paired_table,
    as_table,
    bootstrap,
    differences,
    evidence_reference,
    summarize,
    without_constants,
)
from tests.experiments.rows import row

matplotlib.use("Agg")


def test_dead_rows_stay_in_every_denominator():
    rows = [row("lcd", 4, 1.0), row("lcd", 4, 0.0, dead=True, example="1")]
    (record,) = summarize(rows)
    assert record["examples"] == 2
    assert record["weighted_accuracy"] == record["valid"] == record["complete"] == 0.5
    assert record["dead"] == 1
    # Evidence and ESS exist only where something is alive, and are means over those.
    assert record["log_evidence"] == -2.0
    assert record["ess_fraction"] == 0.5
    assert record["tokens"] == 200
    assert record["read"] == 40
    # All dead is a row of zeros, not an error.
    (record,) = summarize([row("lcd", 1, 0.0, dead=True, example=name) for name in "abc"])
    assert record["weighted_accuracy"] == 0.0
    assert record["ess_fraction"] is None
    assert "–" in as_markdown(as_table([record]))


def test_the_best_answer_is_compared_with_the_majority_request_by_request():
    rows = [
        {**row("gcd", 4, accuracy, example=str(i)), "best_correct": best}
        for i, (accuracy, best) in enumerate([(0.75, True), (0.25, True), (0.25, False)])
    ]
    (record,) = summarize(rows)
    assert record["best_over_majority"] == pytest.approx(1 / 3)
    drawn = np.random.default_rng(0).integers(0, 3, (2000, 3))
    low, high = np.quantile(np.array([0, 1, 0])[drawn].mean(axis=1), [0.025, 0.975])
    assert (record["best_over_majority_low"], record["best_over_majority_high"]) == (low, high)
    (line,) = as_table([record])
    assert line["best minus majority"] == f"+33.3 [{100 * low:+.1f}, {100 * high:+.1f}]"


def test_algorithms_are_separate_groups_in_their_order():
    rows = [
        row("gcd", 4, 1.0) | {"budget_removed": 0.25},
        row("lcd", 1, 0.0),
        row("gcd", 4, 0.0, algorithm="discrete"),
        row("gcd", 4, 0.0, example="1"),
    ]
    plain, _, discrete = records = summarize(rows)
    assert [(r["method"], r["algorithm"], r["particles"]) for r in records] == [
        ("gcd", "smc", 4), ("lcd", "smc", 1), ("gcd", "discrete", 4),
    ]  # fmt: skip
    assert (plain["weighted_accuracy"], discrete["weighted_accuracy"]) == (0.5, 0.0)
    assert plain["ess_fraction"] == 0.5
    assert discrete["ess_fraction"] is None  # the answers of a pool aren't a share of N
    table = as_table(records)
    assert [line["algorithm"] for line in table] == ["SMC", "SMC", "discrete"]
    assert "its sd" not in table[0]
    assert [line["removed by budget %"] for line in table] == ["25.0", "–", "–"]
    lines = as_markdown(table).split("\n")
    assert len({len(line) for line in lines}) == 1  # aligned
    assert lines[2].split("|")[1].strip() == "GCD"


def test_an_example_that_is_repeated_counts_once():
    """Its accuracy is the mean over repetitions; so intervals are over examples alone."""
    logs = {"a": (-1.0, -3.0), "b": (-5.0, -5.0)}
    rows = [
        row("gcd", 4, accuracy, example=name, log_evidence=log)
        for name, values in logs.items()
        for accuracy, log in zip((0.0, 1.0), values, strict=True)
    ]
    (record,) = summarize(rows)
    assert (record["examples"], record["repeats"]) == (2, 2)
    assert record["weighted_accuracy_low"] == record["weighted_accuracy_high"] == 0.5
    assert record["log_evidence"] == -3.5
    assert record["log_evidence_sd"] == pytest.approx((2**0.5 + 0) / 2)
    assert [line["its sd"] for line in as_table([record])] == ["0.707"]
    rows[0] |= {"dead": True, "log_evidence": None}
    (record,) = summarize(rows)
    assert record["log_evidence"] == -4
    assert record["log_evidence_sd"] == 0  # of the example that has two


def test_bootstrap_interval_has_its_coverage():
    rng = np.random.default_rng(7)
    truth = 0.3
    hits = 0
    for trial in range(200):
        interval = bootstrap((rng.random(60) < truth).astype(float), seed=trial)
        hits += interval.low <= truth <= interval.high
    # 95% nominal; percentile intervals of small samples cover a little less.
    assert 176 <= hits <= 199


def test_bootstrap_is_deterministic_and_exact_on_constants():
    assert bootstrap([1.0] * 5) == (1.0, 1.0, 1.0)
    assert bootstrap([0, 1, 1, 0, 1], seed=3) == bootstrap([0, 1, 1, 0, 1], seed=3)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap([])


def test_evidence_is_compared_over_all_examples_the_dead_as_none():
    """LCD finds one of two: its mean log is the better one, its share of the evidence half."""
    rows = [
        row("lcd", 4, 1.0, log_evidence=-1.0),
        row("lcd", 4, 0.0, dead=True, example="1"),
        row("gcd", 1, 1.0, log_evidence=-9.0),
        row("gcd", 1, 1.0, log_evidence=-9.0, example="1"),
        row("gcd", 4, 1.0, log_evidence=-1.0),
        row("gcd", 4, 1.0, log_evidence=-3.0, example="1"),
    ]
    lcd, _, gcd = summarize(rows)
    assert lcd["log_evidence"] > gcd["log_evidence"]
    assert (lcd["evidence_found"], gcd["evidence_found"]) == pytest.approx((0.5, 1.0))
    table = as_table([lcd, gcd])
    assert [line["log evidence"] for line in table] == ["-1.000 (of 1)", "-2.000"]
    # Where the evidence itself is known, that is what is compared with.
    exact = row("gcd", 4, 1.0, log_evidence=-2.0, example="1", algorithm="discrete")
    _, _, gcd, whole = summarize([*rows, {**exact, "enumerated": True}])
    assert gcd["evidence_found"] == pytest.approx((1.0 + np.exp(-1.0)) / 2)
    assert whole["evidence_found"] == pytest.approx(1.0)
    # An answer that has no weight found none of it; who estimates nothing is not compared.
    closed = row("lcd", 4, 0.0, example="1") | {"log_evidence": None}
    hmm = [row("hmm", 4, 0.0, example=e) | {"log_evidence": None} for e in "01"]
    lcd, _, gcd, alone = summarize([rows[0], closed, *rows[2:], *hmm])
    assert lcd["evidence_found"] == pytest.approx(0.5)
    assert alone["evidence_found"] is None
    # Without an estimate there is nothing to compare with.
    (alone,) = summarize(hmm)
    assert alone["evidence_found"] is None


def test_the_reference_is_the_estimate_that_varies_least():
    """A method that is far from the evidence isn't the reference for one that is near it."""
    far = [row("gcd", 16, 1.0, log_evidence=-30.0 - int(e), example=e) for e in "01"]
    near = [row("pgcd", 16, 1.0, log_evidence=-12.0 - int(e), example=e) for e in "01"]
    few = [row("lm", 16, 1.0, log_evidence=-1.0), row("lm", 16, 0.0, dead=True, example="1")]
    gcd, pgcd, lm = summarize([*far, *near, *few])
    assert gcd["evidence_found"] == pytest.approx(np.exp(-18.0))
    assert pgcd["evidence_found"] == pytest.approx(1.0)
    assert lm["evidence_found"] == pytest.approx(np.exp(11.0) / 2)
    # It is a mean of estimates, not of their logs.
    rows = [row("gcd", 4, 1.0, log_evidence=log) for log in (np.log(0.2), np.log(0.4))]
    (record,) = summarize(rows)
    assert record["evidence_found"] == pytest.approx(1.0)


def test_constant_columns_are_said_in_a_sentence():
    table = [
        {"method": "LCD", "N": 1, "valid %": "50.0", "complete %": "50.0", "dead": "0"},
        {"method": "GCD", "N": 1, "valid %": "100.0", "complete %": "100.0", "dead": "0"},
    ]
    rest, said = without_constants(table)
    assert rest == [{"method": "LCD", "valid %": "50.0"}, {"method": "GCD", "valid %": "100.0"}]
    assert said == "In every row: N 1, dead 0, complete % as valid %."
    assert without_constants(table[:1])[1] == ""


def test_shares_of_unknown_evidence_are_not_shown():
    rows = [
        row("gcd", 1, 1.0, log_evidence=log, example=e) for e, log in (("0", -1.0), ("1", -9.0))
    ]
    rows += [row("gcd", 4, 1.0, log_evidence=-4.0, example=e) for e in "01"]
    table = as_table(summarize(rows))
    assert [line["evidence found %"] for line in table] == ["> 1000", "100.0 [100.0, 100.0]"]


GCD = [0.0, 1.0, 0.5, 0.0, 1.0, 0.25]
PGCD = [0.5, 1.0, 0.5, 0.25, 0.5, 1.0]


def rows_of(method: str, accuracies: list[float], **options: object) -> list[dict]:
    return [
        row(method, 4, accuracy, example=str(i), **options) for i, accuracy in enumerate(accuracies)
    ]


def interval_of(record: dict) -> tuple[float, float]:
    return record["weighted_accuracy_low"], record["weighted_accuracy_high"]


def test_the_interval_is_that_of_the_difference_over_common_resamples():
    """Both means are taken over the same examples, drawn with replacement, 2000 times."""
    (record,) = differences([*rows_of("gcd", GCD), *rows_of("pgcd", PGCD)], seed=3)
    assert record["weighted_accuracy"] == pytest.approx(np.mean(PGCD) - np.mean(GCD))
    drawn = np.random.default_rng(3).integers(0, 6, (2000, 6))
    paired = np.array(PGCD)[drawn].mean(axis=1) - np.array(GCD)[drawn].mean(axis=1)
    low, high = np.quantile(paired, [0.025, 0.975])
    assert interval_of(record) == pytest.approx((low, high))
    # Without pairing, the interval is that of two independent samples, and wider.
    alone = np.array(GCD)[np.random.default_rng(4).integers(0, 6, (2000, 6))].mean(axis=1)
    apart = np.array(PGCD)[drawn].mean(axis=1) - alone
    assert np.ptp(np.quantile(apart, [0.025, 0.975])) > high - low
    # A difference that is the same in every example has no interval.
    better = [accuracy + 0.125 for accuracy in GCD]
    (record,) = differences([*rows_of("pgcd", better), *rows_of("gcd", GCD)])
    assert (record["weighted_accuracy"], *interval_of(record)) == pytest.approx((0.125,) * 3)


def test_pairs_are_of_one_style_one_algorithm_and_one_number_of_particles():
    def styled(rows: list[dict], style: str) -> list[dict]:
        return [{**each, "style": style} for each in rows]

    rows = [
        *styled(rows_of("gcd", GCD), "json"),
        *styled(rows_of("pgcd", PGCD), "json"),
        *styled(rows_of("gcd", PGCD), "python"),
        *styled(rows_of("pgcd", PGCD), "python"),
        *styled(rows_of("pgcd", PGCD, algorithm="discrete"), "json"),  # no counterpart
    ]
    one, other = differences(rows)
    assert (one["style"], other["style"]) == ("json", "python")
    assert one["weighted_accuracy"] == pytest.approx(np.mean(PGCD) - np.mean(GCD))
    assert other["weighted_accuracy"] == 0
    assert [line["style"] for line in as_paired_table([one, other])] == ["json", "python"]
    assert "style" not in as_paired_table([one])[0]


def test_repetitions_are_averaged_before_examples_are_paired():
    rows = [
        *rows_of("gcd", [0.0, 0.0]),
        *rows_of("gcd", [1.0, 0.0]),
        *rows_of("pgcd", [1.0, 0.0]),
        *rows_of("pgcd", [1.0, 1.0]),
    ]
    (record,) = differences(rows)
    assert (record["examples"], record["weighted_accuracy"]) == (2, 0.5)
    assert interval_of(record) == (0.5, 0.5)


def test_costs_are_multiples_of_the_reference_s():
    dear = [{**each, "seconds": 2.0, "lm_calls": 15} for each in rows_of("pgcd", PGCD)]
    (record,) = differences([*rows_of("gcd", GCD), *dear])
    assert (record["seconds_ratio"], record["lm_calls_ratio"]) == pytest.approx((4.0, 1.5))
    free = [{**each, "seconds": 0.0} for each in rows_of("gcd", GCD)]
    (record,) = differences([*free, *dear])
    assert record["seconds_ratio"] is None
    assert [line["seconds, times"] for line in as_paired_table([record])] == ["–"]
    assert differences(dear) == []  # without the reference
    (found,) = differences([*free, *dear], reference="pgcd")
    assert (found["method"], found["reference"]) == ("gcd", "pgcd")


def test_a_measure_that_no_pair_of_rows_has_is_left_out():
    """A dead row has no log-probability; a set counts if both methods have one."""
    log_p = Metric("log_p", "log p", digits=2, scale=1)

    def with_log_p(method: str, values: list[float | None]) -> list[dict]:
        rows = rows_of(method, [0.0] * 3)
        return [{**row, "log_p": value} for row, value in zip(rows, values, strict=True)]

    gcd = with_log_p("gcd", [-1.0, None, -3.0])
    better = with_log_p("pgcd", [-0.5, -1.0, None])
    (record,) = differences([*gcd, *better], compared=[log_p])
    assert (record["log_p"], record["log_p_low"], record["log_p_high"]) == (0.5, 0.5, 0.5)
    (line,) = as_paired_table([record], [log_p])
    assert line["log p"] == "+0.50 [+0.50, +0.50] (of 1)"
    (record,) = differences([*gcd, *with_log_p("pgcd", [None] * 3)], compared=[log_p])
    assert record["examples"] == 3
    (line,) = as_paired_table([record], [log_p])
    assert line["log p"] == "–"


def test_evidence_is_compared_only_between_methods_that_answered_everything():
    """A repetition without an answer is enough: it is the hard one that would be missing."""

    def with_evidence(method: str, values: list[float | None]) -> list[dict]:
        rows = [*rows_of(method, [0.0] * 2), *rows_of(method, [0.0] * 2)]
        return [{**row, "log_evidence": v} for row, v in zip(rows, values, strict=True)]

    gcd = with_evidence("gcd", [-4.0, -2.0, -6.0, -2.0])
    (record,) = differences([*gcd, *with_evidence("pgcd", [-4.0, -1.0, -4.0, -1.0])])
    assert (record["log_evidence"], record["log_evidence_low"]) == (1.0, 1.0)
    (record,) = differences([*gcd, *with_evidence("lcd", [-1.0, -1.0, None, -1.0])])
    assert "log_evidence" not in record
    assert [line["log evidence"] for line in as_paired_table([record])] == ["–"]


# -- on the screen, and in figures

TITLE = "xlam: 96 requests (xLAM 500 to 599), json and python style, budget gold:1.0 and gold:2.0, "


def printed(rows: list[dict]) -> str:
    pairs = as_paired_table(differences(rows))
    return on_screen(TITLE * 2, summarize(rows), WEIGHTED, pairs, "gcd")


def test_the_widest_table_fits_the_terminal() -> None:
    """Every method and algorithm, styles and budgets, and no column with one value."""
    arms = [(method, algorithm) for method in METHODS for algorithm in ALGORITHMS]
    rows = [
        row(method, particles, accuracy, algorithm=algorithm, dead=dead, log_evidence=i / 99)
        | {"style": style, "read": 9999 + particles, "lm_calls": 9999 + i}
        for style in ("python, gold:1.25", "json, gold:1.25")
        for i, (method, algorithm) in enumerate(arms)
        for particles, accuracy, dead in ((1, 1.0, False), (1024, 0.3, True))
    ]
    lines = printed(rows).splitlines()
    assert max(map(len, lines)) <= WIDTH
    heads = [" ".join(line.split()) for line in lines if line.startswith(("method", "style"))]
    assert heads == [
        *["method algorithm particles accuracy % valid % dead rows evidence % read LM calls"] * 2,
        "style method algorithm particles accuracy (weighted), points log evidence",
    ]


def test_differences_are_printed_with_their_intervals() -> None:
    rows = [
        *(row("lcd", 1, 0.0, example=e, dead=e == "0", log_evidence=-1.0) for e in "0123"),
        *(row("gcd", 1, 0.2, example=e, log_evidence=-1.0) for e in "0123"),
        *(row("pgcd", 1, 0.4 * (e in "03"), example=e, log_evidence=-0.9) for e in "0123"),
    ]
    flat = " ".join(printed(rows).split())
    assert "In every row: algorithm SMC, particles 1" in flat
    assert "Difference to GCD, with 95% intervals:" in flat
    assert "LCD SMC 1 -20.0 [-20.0, -20.0]" in flat
    assert "Difference" not in printed(rows[:4])


def test_enumerated_evidence_is_named_as_the_reference() -> None:
    whole = row("gcd", 4, 1.0, algorithm="discrete") | {"enumerated": True}
    other = [row("gcd", 16, 1.0, example=e) for e in "01"]
    assert evidence_reference([whole]) == (
        "Evidence found is a share of the evidence itself, enumerated (1 of 1 requests); "
        "it is 0 for requests without an answer."
    )
    assert "(1 of 2 requests), else the estimate of GCD, " in evidence_reference([whole, *other])
    assert evidence_reference([row("lcd", 1, 0.0, dead=True)]) == ""


def test_ticks_of_percent_are_true(monkeypatch, tmp_path):
    """At accuracies below a tenth, where whole percents are too coarse for ticks."""
    rows = [
        row(method, 1, float(i < 2 and method == "gcd"), example=f"{i}:{i}")
        | {"style": f"gold:{factor}", "best_correct": False, "valid": method == "gcd"}
        | {"read": 4 * (method == "gcd")}
        for method in ("lcd", "gcd")
        for factor in (1.0, 2.0)
        for i in range(16)
    ]
    drawn = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **_: drawn.setdefault(path.stem, figure)
    )
    found = differences(rows, 0, [*COMPARED, VALID], "lcd")
    files = figures.plot_all(summarize(rows), found, tmp_path, "a title", "settings")
    assert files == {name: tmp_path / f"{name}.png" for name in drawn}
    assert [*drawn] == ["accuracy", "reads", "budgets"]
    assert figures.plot_all(summarize(rows), [], tmp_path, "a title", "settings").keys() == {*drawn}
    for name in ("accuracy", "budgets"):
        drawn[name].canvas.draw()
        checked = 0
        for axis in drawn[name].axes:
            low, high = axis.get_ylim()
            for place, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True):
                if label.get_text().endswith("%") and low <= place <= high:
                    said = float(label.get_text().rstrip("%").replace("\N{MINUS SIGN}", "-")) / 100
                    assert said == pytest.approx(place, abs=1e-9)
                    checked += 1
        assert checked > 8
