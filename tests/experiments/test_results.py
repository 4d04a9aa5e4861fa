"""A run's output is narrow, and has the intervals of its differences."""

from __future__ import annotations

from experiments.arms import ALGORITHMS, METHODS
from experiments.results import WIDTH, on_screen
from experiments.tables import (
    WEIGHTED,
    as_paired_table,
    differences,
    evidence_reference,
    summarize,
)
from tests.experiments.rows import row

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


def test_another_reference() -> None:
    rows = [row(method, 1, 1.0) for method in ("lcd", "gcd")]
    (found,) = differences(rows, reference="lcd")
    assert (found["method"], found["reference"]) == ("gcd", "lcd")
