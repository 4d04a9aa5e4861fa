"""A run's output is narrow, and its sentence is computed from its rows."""

from __future__ import annotations

from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.comparison import WIDTH, on_screen
from experiments.harness.methods import METHODS
from experiments.tables import COMPARED, WEIGHTED, differences, evidence_reference, summarize
from tests.experiments.harness.test_summary import row

TITLE = "xlam: 96 requests (xLAM 500 to 599), json and python style, budget gold:1.0 and gold:2.0, "


def printed(rows: list[dict]) -> str:
    found, evidence = differences(rows), evidence_reference(rows)
    return on_screen(TITLE * 2, summarize(rows), found, WEIGHTED, COMPARED, evidence)


def test_the_widest_table_fits_120_columns() -> None:
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
    heads = [line for line in lines if line.startswith("method")]
    assert len(heads) == 2
    assert " ".join(heads[0].split()) == (
        "method algorithm particles accuracy % valid % dead rows evidence % read LM calls"
    )


def test_the_sentence_names_finished_rows_and_differences() -> None:
    rows = [
        *(row("lcd", 1, 0.0, example=e, dead=e == "0", log_evidence=-1.0) for e in "0123"),
        *(row("gcd", 1, 0.2, example=e, log_evidence=-1.0) for e in "0123"),
        *(row("pgcd", 1, 0.4 * (e in "03"), example=e, log_evidence=-0.9) for e in "0123"),
    ]
    flat = " ".join(printed(rows).split())
    assert "GCD and P-GCD finished every request; LCD left up to 1 of 4 unfinished; " in flat
    assert "by more than chance (paired 95% intervals) in 1 of 1 rows of LCD. method" in flat
    assert "In every row: algorithm SMC, particles 1, " in flat
    assert "Evidence found is a share of the estimate of P-GCD, SMC, 1 particle; it is 0" in flat
    flat = " ".join(printed(rows[4:]).split())
    assert "GCD and P-GCD finished every request; accuracy" in flat
    assert "by more than chance (paired 95% intervals) in no row. method" in flat
    assert "differs" not in printed(rows[:4])


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
