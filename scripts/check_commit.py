"""Check the subject of a commit message: imperative, capitalized, at most 72 characters.

    python -m scripts.check_commit FILE                 # a hook for `commit-msg` calls it like this
    python -m scripts.check_commit --range main..HEAD   # every commit that isn't a merge

Mood is checked as far as the first word shows it: "Added", "Adding" and "Adds" are refused, and so
are labels such as "fix:".
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

MOST = 72
EXEMPT = re.compile(r"(?:Merge|Revert|fixup!|squash!|amend!) ")
_FORMS = [
    (re.compile(r"[A-Z][a-z]+ed"), {"Bleed", "Embed", "Exceed", "Feed", "Need", "Proceed", "Seed",
                                    "Shed", "Speed", "Succeed", "Weed"}),
    (re.compile(r"[A-Z][a-z]+ing"), {"Bring", "Ping", "Ring", "String", "Swing"}),
    (re.compile(r"[A-Z][a-z]*(?:[a-rt-z])s"), {"Alias", "Bias", "Canvas", "Focus", "Os"}),
]  # fmt: skip
"""Endings of a first word that isn't an imperative, and imperatives that end like this."""


def problems(message: str) -> list[str]:
    """Return a description of each rule that a commit message breaks."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        return ["expected a subject, got an empty message"]
    subject = lines[0]
    if EXEMPT.match(subject):
        return []
    found = []
    if len(subject) > MOST:
        found.append(f"expected a subject of at most {MOST} characters, got {len(subject)}")
    first = subject.split()[0]
    if first.endswith(":"):
        found.append(f"expected a verb, got the label {first!r}; open with what the commit does")
    elif not first[0].isupper():
        found.append(f"expected a capital letter, got {first!r}")
    elif any(form.fullmatch(first) and first not in fine for form, fine in _FORMS):
        found.append(f"expected an imperative such as 'Add', got {first!r}")
    if subject.endswith("."):
        found.append("expected a subject without a period at its end")
    if len(lines) > 1 and lines[1].strip():
        found.append("expected an empty line between subject and body")
    return [f"{each}: {subject}" for each in found]


def main(arguments: list[str] | None = None) -> int:
    """Print the problems of one message or of a range of commits; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", type=Path, help="a file that holds the message")
    source.add_argument("--range", help="commits as `git log` takes them, such as main..HEAD")
    given = parser.parse_args(arguments)
    if given.range is None:
        messages = [given.file.read_text(encoding="utf-8")]
    else:
        command = ["git", "log", "--no-merges", "--format=%B%x00", given.range]
        log = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        messages = [each.lstrip("\n") for each in log.split("\0") if each.strip()]
    found = [problem for message in messages for problem in problems(message)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
