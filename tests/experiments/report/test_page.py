"""The page stands by itself, is small enough, and holds what the run left."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.report import page as module
from experiments.report.page import content_of, embed, render, write_report
from experiments.report.traces import read_traces
from experiments.tasks import key_of
from tests.experiments.report import chromium
from tests.experiments.report.toy_run import write_run

VOID = {"meta", "input", "img", "br", "hr", "link"}


class Page(HTMLParser):
    """The elements of a page, refused where they are not nested well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("script", "style"):
            parts = self.scripts if self.open[-1] == "script" else self.styles
            parts[-1] += text  # it comes in pieces


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("toy") / "run")


@pytest.fixture(scope="module")
def written(run) -> tuple[Path, list[dict]]:
    """The page, and the rows of its run."""
    return write_report(run[0]), run[1]


@pytest.fixture(scope="module")
def page(written) -> str:
    return written[0].read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    parsed = Page(page)
    assert page.startswith("<!doctype html>")
    assert len(set(parsed.ids)) == len(parsed.ids)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "action", "srcset", "poster", "data"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert not name.startswith("on")
    assert not {tag for tag, _, _ in parsed.attributes} & {"link", "iframe", "object", "base"}
    code = "".join((*parsed.styles, parsed.scripts[1]))
    assert not re.search(r"https?:|//\w+\.|@import|url\(|fetch\(|XMLHttp|import\(", code)
    [policy] = [v for _, n, v in parsed.attributes if n == "content" and "default-src" in v]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    # Every element that scripts ask for is there.
    wanted = set(re.findall(r'byId\("(\w+)"\)', parsed.scripts[1]))
    assert wanted
    assert wanted <= set(parsed.ids)


def test_the_page_holds_every_trace(run, page):
    directory, _ = run
    data = json.loads(Page(page).scripts[0])
    tokens = data["tokens"]
    traces = {key_of(trace): trace for trace in read_traces(directory)}
    assert [trace["example"] for trace in data["traces"]] == [
        f"{n}:w{n}" for n in (0, 1, 2) for _ in range(8)
    ]
    assert {key_of(trace) for trace in data["traces"]} == traces.keys()
    for shown in data["traces"]:
        trace = traces[key_of(shown)]
        assert {**shown, "tokens": None} == {**trace, "tokens": None}
        assert trace["tokens"].items() <= tokens.items()
    assert "Toys &lt;&amp;&gt;" in page  # the table's heading
    assert page.count("</script>") == 2  # though answers have it


def test_a_large_run_is_cut_by_examples_and_the_page_mentions_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TRACE_BYTES", 500_000)
    image = tmp_path / "huge.png"
    image.write_bytes(b"\x89PNG" + bytes(3_000_000))
    traces = [{**t, "example": f"{n}:{t['example']}"} for n in range(40)
              for t in read_traces(run[0])]  # fmt: skip
    content = content_of(traces, [image])
    shown = len(content["data"]["traces"])
    assert 0 < shown < len(traces)
    assert shown % 8 == 0  # whole examples
    kept = {trace["example"] for trace in content["data"]["traces"]}
    assert any(f"Traces of {len(kept)} of 120 examples" in note for note in content["notes"])
    assert any("huge" in note for note in content["notes"])
    text = render(content, "## Toys", "large")
    assert len(text.encode()) < module.MOST_BYTES
    assert all(note.split(":")[0] in text for note in content["notes"])


def test_embedded_values_end_no_script_and_come_back():
    values = {"a": "</script><!-- & \u2028", "b": [-1.5, None], "é": "😀"}
    text = embed(values)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == values


def test_a_run_without_traces_has_a_table_only():
    content = content_of([], [])
    assert content["data"]["traces"] == []
    assert "Toys" in render(content, "## Toys", "only a table")


# -- in headless Chromium: it renders, steps, and follows its address


@pytest.fixture(scope="module")
def browser():
    if chromium.PROGRAM is None:
        pytest.skip("no Chromium: `make browser` installs it")
    with chromium.Chromium() as browser:
        yield browser


def test_the_page_opens_at_the_end_of_the_first_example(written, browser):
    """Every section is shown, and a phone needs no scrolling sideways."""
    page, rows = written
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


def test_the_stepper_moves_and_the_address_has_its_position(written, browser):
    page, _ = written
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


def test_texts_and_tokens_are_those_of_the_trace(written, browser):
    """Every step of every trace is opened, and read back from the page."""
    page, rows = written
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


def test_the_constraint_can_be_switched_off(written, browser):
    page, _ = written
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
