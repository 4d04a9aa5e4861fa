"""Paired differences, against the resampling written out and against differences by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.tables import Metric, as_paired_table, differences
from tests.experiments.rows import row

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


def test_a_method_that_is_better_by_the_same_everywhere_is_better_for_sure():
    better = [accuracy + 0.125 for accuracy in GCD]
    (record,) = differences([*rows_of("pgcd", better), *rows_of("gcd", GCD)])
    assert (record["weighted_accuracy"], *interval_of(record)) == pytest.approx(
        (0.125, 0.125, 0.125)
    )


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


def test_without_the_reference_there_is_nothing_to_compare():
    assert differences(rows_of("pgcd", PGCD)) == []


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
