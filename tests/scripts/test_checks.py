"""The checks of commit messages and versions refuse what they say, and the tree passes them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts import check_commit, check_version

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Add a check of commit messages", None),
        ("Embed the vocabulary in the automaton", None),
        ("Pass seeds to every process\n\nThe reason stands here. Adding isn't a subject.", None),
        ("Address reviews\n# a comment of git", None),
        ("Merge branch 'main' into a branch whose name is long " + "x" * 50, None),
        ("fixup! Add a check", None),
        ("A" * 72, None),
        ("Added a check", "imperative"),
        ("Adding a check", "imperative"),
        ("Adds a check", "imperative"),
        ("add a check", "capital"),
        ("Tests: add a check", "label"),
        ("Add a check.", "period"),
        ("Add " + "x" * 69, "at most 72 characters, got 73"),
        ("Add a check\nof messages", "empty line"),
        ("# only a comment\n", "empty message"),
    ],
)
def test_bad_messages_are_refused_with_the_reason(message, reason, tmp_path, capsys):
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message)
    assert check_commit.main([str(path)]) == (reason is not None)
    assert (reason or "") in capsys.readouterr().out
    assert bool(check_commit.problems(message)) == (reason is not None)


def test_a_range_of_commits_is_checked_without_merges(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    git("init", "-b", "main")
    for subject in ("Begin", "Broken: a label", "Add one\n\nWith a body"):
        git("commit", "--allow-empty", "-m", subject)
    assert check_commit.main(["--range", "main~2..main"]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert check_commit.main(["--range", "main~1..main"]) == 0


def test_the_version_is_the_same_everywhere():
    assert check_version.problems(ROOT) == []


@pytest.fixture
def tree(tmp_path):
    """Return a folder with a version ready for its release."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nversion = "1.2.0"\nurls = { Repository = "https://example.org/us/x" }\n'
    )
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.0] - 2026-01-31\n\n## [1.1.0]\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("pyproject.toml", "", "", None),
        ("pyproject.toml", "1.2.0", "1.3.0", "tag v1.3.0, got v1.2.0"),
        ("pyproject.toml", "/us/", "/OWNER/", "got OWNER"),
        ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.2.1", "CITATION.cff, got ['1.2.1']"),
        ("CHANGELOG.md", "1.2.0", "1.2.1", "first section of CHANGELOG.md, got 1.2.1"),
        ("CHANGELOG.md", "2026-01-31", "Unreleased", "got Unreleased"),
    ],
)
def test_a_release_is_refused_with_what_disagrees(tree, file, old, new, expected):
    path = tree / file
    path.write_text(path.read_text().replace(old, new, 1))
    found = check_version.problems(tree, "v1.2.0")
    assert (expected is None) == (not found)
    assert expected is None or any(expected in each for each in found)


def test_the_repositorys_address_is_in_one_place():
    address = re.compile(rf"github\.com/{check_version.PLACEHOLDER}\b")
    listed = subprocess.run(
        ["git", "grep", "-lE", address.pattern.replace(r"\b", "")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode > 1:
        pytest.skip("not a checkout of git")
    assert listed.stdout.splitlines() == ["pyproject.toml"]


def test_the_citation_has_what_readers_of_the_format_need():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    keys = {line.partition(":")[0] for line in lines if line and line[0].isalpha()}
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= keys
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [author] = project["authors"]
    assert f"  - name: {author['name']}" in lines
    assert f"license: {project['license']}" in lines


ACTION = re.compile(r"uses: (?P<action>[\w./-]+)@(?P<pin>\S+)(?: # (?P<tag>v[\d.]+))?")


@pytest.mark.parametrize(
    "workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem
)
def test_actions_are_pinned_alike_and_runs_have_no_rights_by_default(workflow):
    text = workflow.read_text(encoding="utf-8")
    assert "\npermissions: {}\n" in text
    every = [
        found
        for each in workflow.parent.glob("*.yml")
        for found in ACTION.finditer(each.read_text("utf-8"))
    ]
    for found in ACTION.finditer(text):
        assert re.fullmatch(r"[0-9a-f]{40}", found["pin"]), found["action"]
        assert found["tag"]
        pins = {other["pin"] for other in every if other["action"] == found["action"]}
        assert pins == {found["pin"]}, found["action"]


def test_hooks_call_what_lint_calls():
    """A hook that `make lint` doesn't know would hold for some contributors only."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert lint
    called = re.findall(r"entry: \.venv/bin/(python -m [\w.]+|\w+)", hooks)
    for tool in set(called) - {"python -m scripts.check_commit"}:
        assert f"$(BIN)/{tool}" in lint[1], tool
    for tool in re.findall(r"\$\(BIN\)/(python -m [\w.]+|\w+)", lint[1]):
        assert tool in called, tool
