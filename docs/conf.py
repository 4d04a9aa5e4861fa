"""The site is built by Sphinx from the Markdown pages of the whole checkout: `make docs`.

The source folder is the checkout's root, not this one. Pages link to the README, to benchmarks and
to the cards of models, and those links have to work in the site as they do in a file browser.
"""

import re

default_role = "code"
project = "Globally constrained decoding"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "benchmarks/*.md",
    "data/*/README.md",
    "models/*/README.md",
]
exclude_patterns = [".*", "build"]  # many files, and no pages

myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # cards of models begin with a table of facts
    "misc.highlighting_failure",  # blocks that show a grammar between lines of code
]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # signatures would be longer than the explanations
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # index.html, which leads from the top of the site to the first page
html_title = project
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def _plain(app, what, name, obj, options, lines):
    """Docstrings are plain text: stars and bars are mathematics, indented lines are code."""
    text = []
    for line in lines:
        indented = what == "module" and line.startswith("    ")
        if indented and text and not text[-1].strip() and not text[-2].startswith("    "):
            text += ["::", ""]
        text.append(
            line if indented else re.sub(r"([*|])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", line)
        )
    lines[:] = text


def _skip(app, what, name, obj, skip, options):
    """Leave out what a named tuple says of its fields by itself; the class says more."""
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field") else None


def setup(app):
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", _skip)
