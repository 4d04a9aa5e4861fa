"""The page in headless Chromium: it renders, steps, and follows its address."""

from __future__ import annotations

import pytest

from experiments.report.page import write_report
from tests.experiments.report import chromium
from tests.experiments.report.toy_run import write_run

pytestmark = pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no Chromium: `make browser` installs it"
)


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory, rows = write_run(tmp_path_factory.mktemp("toy") / "run")
    return write_report(directory), rows


def test_the_page_opens_at_the_end_of_the_first_example(run, browser):
    """Every section is shown, and a phone needs no scrolling sideways."""
    page, rows = run
    found = browser.ask(
        page,
        """
        found.hidden = [...document.querySelectorAll("main > section[hidden]")].map((s) => s.id);
        found.selects = document.querySelectorAll("#trial select").length;
        found.trial = { ...explorer.trace, steps: explorer.trace.steps.length };
        found.step = explorer.step;
        found.width = [document.documentElement.scrollWidth, innerWidth];
        """,
        width=500,
    )
    assert found["hidden"] == []
    assert found["selects"] == 4
    assert found["trial"]["example"] == rows[0]["example"]
    assert found["trial"]["particles"] == 4
    assert found["step"] == found["trial"]["steps"] > 0
    page_width, window_width = found["width"]
    assert page_width <= window_width


def test_the_stepper_moves_and_the_address_has_its_position(run, browser):
    page, _ = run
    address = "#example=1%3Aw1&method=gcd&algorithm=smc&particles=4&step=2"
    found = browser.ask(
        page,
        """
        const all = () => [...document.querySelectorAll("#texts .text")];
        const texts = () => all().map((text) => text.textContent);
        found.start = [byId("where").textContent, texts()];
        byId("forth").click();
        found.forth = [byId("where").textContent, texts()];
        byId("back").click(); byId("back").click();
        found.back = [byId("where").textContent, texts()];
        const right = { key: "ArrowRight", bubbles: true };
        document.body.dispatchEvent(new KeyboardEvent("keydown", right));
        found.key = texts();
        document.querySelectorAll("#texts li")[3].click();
        found.chosen = document.querySelector("#texts li.chosen .text").textContent;
        """,
        address,
    )
    assert found["start"][0].startswith("step 2 of ")
    assert found["forth"][0].startswith("step 3 of ")
    assert found["back"][0].startswith("step 1 of ")
    assert found["key"] == found["start"][1]
    assert len(found["key"]) == 4
    assert found["chosen"] == found["key"][3]
    assert found["forth"][1] != found["key"] != found["back"][1]
    for part in ("example=1%3Aw1", "method=gcd", "particles=4", "step=2", "sequence=3"):
        assert part in found["hash"]


def test_texts_and_tokens_are_those_of_the_trace(run, browser):
    """Every step of every trace is opened, and read back from the page."""
    page, rows = run
    found = browser.ask(
        page,
        """
        const marks = () =>
          [...document.querySelectorAll("#tokens .drawn")].filter((c) => c.textContent).length;
        found.traces = data.traces.map((trace) => {
          Object.assign(explorer, { trace, generations: generationsOf(trace), sequence: 0 });
          showTrial();
          const drawn = [];
          for (let step = 0; step < trace.steps.length; step++) {
            go(step);
            document.querySelectorAll("#texts li").forEach((_, i) => {
              explorer.sequence = i;
              show();
              drawn.push([prefixOf(i) >= 0, marks()]);
            });
          }
          go(trace.steps.length);
          const ends = [...document.querySelectorAll("#texts li")].map((item) =>
            [item.querySelector(".text").textContent, item.querySelector(".small").textContent]);
          return [trace.example, trace.method, trace.algorithm, trace.particles, ends, drawn];
        });
        """,
    )
    by_key = {(r["example"], r["method"], r["algorithm"], r["particles"]): r for r in rows}
    assert len(found["traces"]) == 3 * 8
    for *key, ends, drawn in found["traces"]:
        row = by_key[tuple(key)]
        if key[2] == "smc" and not row["dead"]:
            texts = {text for text, state in ends if "finished" in state}
            assert {answer["text"] for answer in row["answers"]} <= texts
        # A running particle of SMC under GCD draws; what is over has no next token.
        for running, marks in drawn:
            assert running or not marks
            assert not (running and tuple(key[1:3]) == ("gcd", "smc") and key[3] == 1) or marks == 1


def test_the_constraint_can_be_switched_off(run, browser):
    page, _ = run
    script = """
        const first = () => document.querySelector("#tokens tr:nth-child(2)").className;
        found.on = [first(), document.querySelectorAll("#tokens th").length];
        byId("off").click();
        const p = [...document.querySelectorAll("#tokens tr:not(:first-child) td:nth-child(2)")];
        found.off = [byId("heading").textContent, document.querySelectorAll("#tokens th").length,
          p.map((cell) => Number(cell.textContent))];
    """
    found = browser.ask(page, script, "#example=0%3Aw0&method=gcd&algorithm=smc&particles=1&step=1")
    assert found["on"] == ["", 4]  # an allowed token comes first
    heading, columns, p = found["off"]
    assert heading == "What the model would have said"
    assert columns == 3
    assert p == sorted(p, reverse=True)
    assert "off=1" in found["hash"]
