"""Writer of `report.html`, a self-contained page that needs neither network nor server.

The page is a template with embedded style sheet, scripts, figures (as `data:` URLs) and the values
of `experiments.report.content` as JSON, from which the scripts make the particle explorer. Its
content security policy forbids loading anything.
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from experiments.report.content import MOST_BYTES, Content, content_of, embed
from experiments.report.directory import read_run

NAME = "report.html"
_HERE = Path(__file__).parent / "page"
_SCRIPTS = ("base.js", "genealogy.js", "explorer.js", "main.js")


def write_report(directory: Path) -> Path:
    """Write the page of a finished run to its directory, and return the file.

    Raises:
        ValueError: the directory isn't a finished run, or the page is too large even after
            traces and figures were left out.
    """
    run, path = read_run(directory), directory / NAME
    page = render(content_of(run), run.title)
    size = len(page.encode())
    if size >= MOST_BYTES:
        raise ValueError(
            f"expected a page of less than {MOST_BYTES} bytes, but {path} would have {size}; give "
            "fewer methods and particles"
        )
    path.write_text(page, encoding="utf-8")
    return path


def render(content: Content, title: str) -> str:
    """Return the HTML of the page."""
    import jinja2  # slow to import
    from markdown_it import MarkdownIt

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # Answers may contain URLs and markup, which must not become elements of the page.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.disable(["link", "image", "autolink", "reference"])
    return environment.get_template("report.html").render(
        title=title,
        style=Markup(_text("report.css")),
        scripts=[Markup(_text(name)) for name in _SCRIPTS],
        data=Markup(embed(content.data)),
        table=Markup(markdown.render(content.table)),
        figures=content.figures,
        notes=content.notes,
    )


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
