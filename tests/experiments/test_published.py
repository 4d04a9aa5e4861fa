"""Tables of docs/results.md, of README and of the paper's layout agree with the committed rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import published, tables
from experiments.tables import PAPER


def table(name: str, *archives: str) -> dict[str, dict[str, str]]:
    """The lines of a table by their title."""
    lines = PAPER[name]([row for each in archives for row in published.rows_of(each)])
    return {line.pop(""): line for line in lines}


@pytest.mark.slow("computes every table of the page from all committed rows")
def test_the_page_has_the_tables_that_the_rows_give() -> None:
    page = published.PAGE.read_text(encoding="utf-8")
    assert published.fill(page) == page
    for name in published.TABLES:
        assert f"<!-- table: {name} -->" in page


def test_readme_and_the_page_have_the_same_shares() -> None:
    found = table("readme", "truncation")["json, gold:1.0"]
    page = {line["method"]: line["JSON, 1.0"] for line in published.TABLES["budgets"]()}
    shown = {method: cell.partition(" / ")[0] for method, cell in page.items()}
    assert {method: share.replace("100.0", "100") for method, share in found.items()} == shown
    assert (found["LCD"], found["LCD, greedy close"], found["GCD"]) == ("73.6", "90.3", "100.0")
    every = table("readme", "truncation")
    readme = (published.ROOT / "README.md").read_text(encoding="utf-8")
    shares = every["json, gold:1.25"]
    cells = [f"{float(shares[name]):.0f}%" for name in ("LCD", "LCD, greedy close", "GCD")]
    assert f", trained model | {' | '.join(cells)} |" in readme


def test_the_papers_tables_have_its_layout() -> None:
    first = table("table1", "tool_calls")
    columns = [f"{style}, N = {n}" for style in ("JSON", "Python") for n in (1, 4, 16)]
    assert list(first["LCD"]) == columns
    assert [first["LCD"][each] for each in columns[:3]] == ["70.0", "83.8", "89.9"]
    assert set(first["GCD"].values()) == {"100.0"}
    third = table("table3", "tool_calls", "hmm_sizes")
    titles = ["LCD", "GCD", "P-GCD", "P-GCD H64", "P-GCD H256", "P-GCD H1024"]
    assert list(third) == titles
    sizes = {
        line["states"]: line["right, N = 1, 4, 16"] for line in published.TABLES["hmm_sizes"]()
    }
    assert ", ".join(third["P-GCD H64"].values()) == sizes["64"]
    assert ", ".join(third["P-GCD"].values()) == sizes["512"]
    figure = table("figure2", "tool_calls")
    assert figure["JSON, P-GCD, SMC"] == third["P-GCD"]
    times = [{"method": m, "ms_per_token": t} for m, t in (("lm", 2.0), ("gcd", 3.0), ("lm", 4.0))]
    assert PAPER["table2"](times) == [
        {"": "lm", "ms per token": "3.00", "x LM": "1.00"},
        {"": "gcd", "ms per token": "3.00", "x LM": "1.00"},
    ]


def test_the_command_prints_a_table_and_names_a_run_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(published.ROOT / "data" / "rows" / "truncation.tar.xz")
    monkeypatch.setattr("sys.argv", ["tables", "readme", archive])
    tables.main()
    assert "| 73.6 |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["tables", "readme", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"error: expected a run with rows in {tmp_path}, got"):
        tables.main()


def test_a_wrong_figure_is_replaced_and_an_unknown_table_refused(monkeypatch) -> None:
    monkeypatch.setitem(published.TABLES, "toy", lambda: [{"a": 1}])
    page = "before\n\n<!-- table: toy -->\n\n| a |\n|---|\n| 2 |\n\n<!-- end -->\n\nafter\n"
    assert published.fill(page) == page.replace("| 2 |", "| 1 |")
    with pytest.raises(ValueError, match=r"expected one of budgets, .*, got table: other"):
        published.fill("<!-- table: other -->\n<!-- end -->\n")
