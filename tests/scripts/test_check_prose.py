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
    lower, upper: How far it goes.

Examples:
  What a command prints
"""

# Fine. What a comment
# says, of which
# noqa is no part
VALUE = "What a literal says"  # Who reads it
"""That which is documented."""


def refuse(x):
    raise ValueError(f"{{x}} is no number" if x else "{LONG}")
'''


def test_findings_in_a_page():
    hints = [(line, hint) for line, hint, _ in check_prose.check(PAGE)]
    assert [line for line, _ in hints] == [4, 10, 11, 22]
    assert [hint.split()[0] for _, hint in hints] == ["open", "negate", "put", "split"]


def test_findings_in_a_module():
    found = check_prose.check(MODULE, is_python=True)
    hints = [f"{line} {hint.split()[0]}" for line, hint, _ in found]
    assert hints == [
        "1 open", "6 open", "8 open", "14 open", "15 use", "17 open", "18 name", "22 negate",
        "22 split",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("Return whether it ends, e.g. What is meant.", 0),
        ("Done. Whether it ends is open.", 1),
        ("**How much.** It depends.", 1),
        ("How much? It depends.", 0),
        ("The answer is no.", 0),
        ("A [file](what.md) `of its own` name.", 0),
        ("Two files, one of which is new, the last of which is old.", 0),
        ("Files, of which one is new.", 1),
        ("It adds nothing of its own.", 0),
        ("A cache pays off.", 0),
        ("A cache pays for it.", 1),
        (f"expected X. {'Word ' * check_prose.MOST_WORDS}", 0),
        (f"Written by K. {'Word ' * check_prose.MOST_WORDS}", 1),
    ],
)
def test_sentences(text, findings):
    assert len(check_prose.check(text)) == findings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("expected a list, got {x}; pass one", 0),
        ("EOS ids have no bytes", 0),
        ("{x} is not a list", 0),
        ("", 1),
        ("Expected a list", 1),
        ("expected a list.", 1),
        ("expected  a list", 1),
        ("expected a listexpected a list", 1),
    ],
)
def test_messages_of_errors(text, number):
    source = f'raise ValueError(f"{text}")\nraise KeyError(name)\n'
    assert len(check_prose.check(source, is_python=True)) == number


def test_findings_fail(tmp_path, monkeypatch, capsys):
    path = tmp_path / "page.md"
    path.write_text("A page says it.\n")
    monkeypatch.setattr(check_prose, "list_files", lambda named: [path])
    assert check_prose.main([]) == 0
    assert capsys.readouterr().out == ""
    path.write_text("What a page says.\n")
    assert check_prose.main([]) == 1
    assert capsys.readouterr().out.startswith(f'{path}:1: open with a verb or a noun, not with "W')
