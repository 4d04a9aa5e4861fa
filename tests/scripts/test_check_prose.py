"""The prose check finds the patterns it names, on their lines, and nothing in tables and code."""

from __future__ import annotations

import pytest

from scripts import check_prose

LONG = " ".join(["word"] * (check_prose.MOST_WORDS + 1))
PAGE = f"""---
What: front matter
---
# What a heading says

How to add a task. A link ([how](other.md)) is fine, and so is `What a literal` says.
What about a question? There is no answer, and it is no longer asked.

- The cache
  is no error.
- A cache of its own.

| Who | is no error |
|-----|-------------|

    What indented code says

```python
# What fenced code says
```

{LONG}.
"""
MODULE = f'''"""Whether it is so.

    What a command prints

Args:
    budget: How many tokens are left.
    (other): fine
"""

# Fine. What a comment
# says, of which
# noqa is no part
VALUE = "What a literal says"  # Who reads it
"""That which is documented."""


def refuse(x):
    raise ValueError(f"{{x}} is no number" if x else "{LONG}")
'''


def test_findings_in_a_page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    hints = [(each.line, each.hint) for each in check_prose.check(path)]
    assert [line for line, _ in hints] == [4, 10, 11, 22]
    assert [hint.split()[0] for _, hint in hints] == ["open", "negate", "put", "split"]


def test_findings_in_a_module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    hints = [(each.line, each.hint.split()[0]) for each in check_prose.check(path)]
    assert hints == [
        (1, "open"),
        (6, "open"),
        (10, "open"),
        (11, "use"),
        (13, "open"),
        (14, "name"),
        (18, "negate"),
        (18, "split"),
    ]


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("Return whether it ends, e.g. What is meant.", 0),
        ("Done. Whether it ends is open.", 1),
        ("**How much.** It depends.", 1),
        ("How much? It depends.", 0),
        ("The answer is no.", 0),
        ("A [file](what.md) `of its own` name.", 0),
    ],
)
def test_sentences(text, findings):
    assert len([*check_prose.check_block([check_prose.Line(1, text)])]) == findings


def test_named_files_list_everything_and_all_files_only_what_exceeds_the_baseline(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "page.md"
    path.write_text("What a page says.\n")
    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    monkeypatch.setattr(check_prose, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(check_prose, "files", lambda named: [path])
    assert check_prose.main([]) == 1
    assert capsys.readouterr().out.startswith('page.md:1: open with a verb or a noun, not with "W')
    assert check_prose.main(["--write-baseline"]) == 0
    assert check_prose.main([]) == 0
    assert check_prose.main(["page.md"]) == 1
    path.write_text("What a page says.\n\nHow it does.\n")
    capsys.readouterr()
    assert check_prose.main([]) == 1
    assert "page.md: expected at most 1 findings, got 2" in capsys.readouterr().out
