"""Denominators, intervals and tables."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.harness.summary import as_markdown, as_table, bootstrap, summarize


def row(method: str, particles: int, accuracy: float, *, dead: bool = False) -> dict:
    return {
        "example": "0",
        "method": method,
        "particles": particles,
        "valid": not dead,
        "complete": not dead,
        "share_finished": 0.0 if dead else 1.0,
        "dead": dead,
        "weighted_accuracy": accuracy,
        "majority_correct": accuracy > 0.5,
        "log_evidence": None if dead else -2.0,
        "ess": 0.0 if dead else particles / 2,
        "lm_calls": 10,
        "tokens": 100,
        "seconds": 0.5,
    }


def test_dead_rows_stay_in_every_denominator():
    rows = [row("lcd", 4, 1.0), row("lcd", 4, 0.0, dead=True)]
    (record,) = summarize(rows)
    assert record["examples"] == 2
    assert record["weighted_accuracy"] == record["valid"] == record["complete"] == 0.5
    assert record["dead"] == 1
    # Evidence and ESS exist only where something is alive, and are means over those.
    assert record["log_evidence"] == -2.0
    assert record["ess_fraction"] == 0.5
    assert record["tokens"] == 200


def test_all_dead_is_a_row_of_zeros_not_an_error():
    (record,) = summarize([row("lcd", 1, 0.0, dead=True)] * 3)
    assert record["weighted_accuracy"] == 0.0
    assert record["ess_fraction"] is None
    assert "–" in as_markdown(as_table([record]))


def test_groups_keep_their_order():
    rows = [row("gcd", 4, 1.0), row("lcd", 1, 0.0), row("gcd", 1, 1.0), row("gcd", 4, 0.0)]
    records = summarize(rows)
    assert [(r["method"], r["particles"]) for r in records] == [("gcd", 4), ("lcd", 1), ("gcd", 1)]


def test_bootstrap_interval_has_its_coverage():
    rng = np.random.default_rng(7)
    truth = 0.3
    hits = 0
    for trial in range(200):
        interval = bootstrap((rng.random(60) < truth).astype(float), seed=trial)
        hits += interval.low <= truth <= interval.high
    # 95 % nominal; percentile intervals of small samples cover a little less.
    assert 176 <= hits <= 199


def test_bootstrap_is_deterministic_and_exact_on_constants():
    assert bootstrap([1.0] * 5) == (1.0, 1.0, 1.0)
    assert bootstrap([0, 1, 1, 0, 1], seed=3) == bootstrap([0, 1, 1, 0, 1], seed=3)
    with pytest.raises(ValueError, match="no values"):
        bootstrap([])


def test_markdown_table_is_aligned():
    lines = as_markdown(as_table(summarize([row("gcd", 16, 1.0), row("lcd", 1, 0.5)]))).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split("|")[1].strip() == "GCD"
