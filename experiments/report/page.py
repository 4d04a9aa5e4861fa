"""Writer of `report.html`, a self-contained page that needs neither network nor server.

The page is a template with embedded style sheet, script, figures (as `data:` URLs) and plain
values as JSON, from which the script makes the particle explorer. Its content security policy
forbids loading anything. A page has less than `MOST_BYTES`, and figures and traces each get a share
of it. Whole examples (or figures) that don't fit are left out, and a note says what was left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from experiments.arms import ALGORITHMS, method_of
from experiments.report.traces import TOP, Trace, read_traces
from experiments.tables import example_of, group_rows
from experiments.tasks import REPORT

_HERE = Path(__file__).parent / "page"
MOST_BYTES = 10_000_000
FIGURE_BYTES, TRACE_BYTES = 1_500_000, 5_600_000  # base64 adds a third; the rest is for tables


def content_of(traces: Sequence[Trace], figures: Sequence[Path]) -> dict[str, Any]:
    """Return the page's data: values for the script, embedded figures, and notes on omissions."""
    notes: list[str] = []
    numbers = {trace["example"]: int(trace["example"].partition(":")[0]) for trace in traces}
    traces = sorted(traces, key=lambda trace: numbers[trace["example"]])
    kept, taken = [], 0
    for own in group_rows(traces, example_of).values():
        size = sum(len(embed(trace).encode()) + 1 for trace in own)
        if taken + size <= TRACE_BYTES:
            kept += own
            taken += size
    shown = len({trace["example"] for trace in kept})
    if shown < len(numbers):
        notes.append(
            f"Traces of {shown} of {len(numbers)} examples are on this page; all are in "
            "traces.jsonl."
        )
    data = {
        "top": TOP,
        "titles": {
            "method": {t["method"]: method_of(t["method"]).title for t in kept},
            "algorithm": {t["algorithm"]: ALGORITHMS[t["algorithm"]].title for t in kept},
        },
        "tokens": {token: text for trace in kept for token, text in trace["tokens"].items()},
        "traces": [{k: v for k, v in trace.items() if k != "tokens"} for trace in kept],
    }
    images, room = [], FIGURE_BYTES
    for path in figures:
        image = path.read_bytes()
        if len(image) > room:
            notes.append(f"The figure {path.stem} is left out for its size: {path.name}.")
            continue
        room -= len(image)
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        images.append((path.stem, url))
    return {"data": data, "figures": images, "notes": notes}


def embed(values: Any) -> str:
    """Format plain values as JSON that is safe within a script element."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_report(directory: Path) -> Path:
    """Write the page of a finished run to its directory, and return the file.

    Raises:
        ValueError: a file is damaged.
    """
    table = (directory / "table.md").read_text(encoding="utf-8")
    heads = (line.lstrip("# ") for line in table.splitlines() if line.startswith("#"))
    content = content_of(read_traces(directory), sorted(directory.glob("*.png")))
    page, path = render(content, table, next(heads, directory.name)), directory / REPORT
    size = len(page.encode())
    assert size < MOST_BYTES, f"{path} would have {size} bytes, although its parts have limits"
    path.write_text(page, encoding="utf-8")
    return path


def render(content: Mapping[str, Any], table: str, title: str) -> str:
    """Return the HTML of the page."""
    import jinja2  # slow to import
    from markdown_it import MarkdownIt

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    # Answers may contain URLs and markup, which must not become elements of the page.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.disable(["link", "image", "autolink", "reference"])
    return environment.get_template("report.html").render(
        title=title,
        style=Markup((_HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "explorer.js").read_text(encoding="utf-8")),
        table=Markup(markdown.render(table)),
        **{**content, "data": Markup(embed(content["data"]))},
    )
