"""Tables of docs/results.md agree with the committed rows."""

from __future__ import annotations

import pytest

from experiments.harness.summary import summarize
from scripts import result_tables


@pytest.mark.slow("computes every table of the page from all committed rows")
def test_the_page_has_the_tables_that_the_rows_give() -> None:
    page = result_tables.PAGE.read_text(encoding="utf-8")
    assert result_tables.fill(page) == page
    for name in result_tables.TABLES:
        assert f"<!-- table: {name} -->" in page


def test_a_table_agrees_with_the_summary_of_the_run() -> None:
    table = result_tables.TABLES["no_adapter"]()
    rows = result_tables.rows_of("no_adapter")
    counts = {
        "complete": True, "share_finished": 1.0, "enumerated": False, "dead": False, "ess": 1.0,
        "forced": 0, "lm_calls": 1, "tokens": 1, "seconds": 1.0,
    }  # fmt: skip
    found = summarize([row | counts for row in rows])
    cells = {
        (line["method"], title): cell
        for line in table
        for title, cell in line.items()
        if title not in ("method", "particles")
    }
    assert len(found) == len(cells) == 15
    titles = {"lm": "LM (rejection)", "lcd": "LCD", "gcd": "GCD"}
    for record in found:
        if record["method"] in titles:
            valid, right = 100 * record["valid"], 100 * record["weighted_accuracy"]
            cell = cells[titles[record["method"]], record["style"].partition(":")[2]]
            shown = [float(part) for part in cell.split(" / ")]
            assert shown == pytest.approx([valid, right], abs=0.051)


def test_a_wrong_figure_is_replaced_and_an_unknown_table_refused(monkeypatch) -> None:
    monkeypatch.setitem(result_tables.TABLES, "toy", lambda: [{"a": 1}])
    page = "before\n\n<!-- table: toy -->\n\n| a |\n|---|\n| 2 |\n\n<!-- end -->\n\nafter\n"
    assert result_tables.fill(page) == page.replace("| 2 |", "| 1 |")
    with pytest.raises(ValueError, match=r"expected one of budgets, .*, got table: other"):
        result_tables.fill("<!-- table: other -->\n<!-- end -->\n")
