"""Impossible settings are refused in one line, before the model runs."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from experiments import run as experiment
from experiments.config import ModelConfig
from experiments.exact import task
from experiments.exact.problems import prepare, read_problems
from experiments.models import ROOT, load_model
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments.exact.test_task import (
    QUICK,
    STORIES,
    composed,
    results,
    written,
)
from tests.experiments.toy_model import write_checkpoint

_OF_THE_FILE = [
    ("[{", "expected JSON"),
    ("{}", "expected a list of problems, got dict"),
    ("[]", "an empty list"),
    ("[3]", "problem 0 is 3"),
    (b"\xff[]", "expected JSON in UTF-8"),
    ('[{"prompt": "x", "budget": 2}]', "lacks 'strings' or 'regex'; give exactly one"),
    ('[{"prompt": "x", "strings": ["a"]}]', "lacks 'budget'"),
    ({"regex": "a"}, "has both 'strings' and 'regex'; give exactly one"),
    ({"budgets": 3}, "unknown key 'budgets'"),
    ({"strings": None}, "strings is null"),
    ({"strings": []}, r"strings is \[\]"),
    ({"strings": ["a", "a"]}, '"a" twice'),
    ({"strings": ["a", 3]}, r'strings is \["a", 3\]'),
    ({"strings": ["\ud800"]}, "give a list of texts in UTF-8"),
    ({"budget": 0}, "budget is 0"),
    ({"budget": 2.5}, r"budget is 2\.5"),
    ({"budget": True}, "budget is true"),
    ({"prompt": 7}, "prompt is 7"),
    ({"prompt": "\ud800"}, r'prompt is "\\ud800"; give text in UTF-8'),
    ({"prompt": []}, r"prompt is \[\]"),
    ({"prompt": [1, -1]}, "prompt is"),
    ({"eos_ids": []}, r"eos_ids is \[\]"),
    ({"eos_ids": ["x"]}, "eos_ids is"),
    ({"eos_ids": [True]}, "eos_ids is"),
    ({"name": ""}, "name is"),
    ({"name": "two\nlines"}, "one line"),
    ({"name": "\udc00"}, "one line"),
    ({"note": 3}, "note is 3"),
    ({"note": "two\nlines"}, "one line"),
    ({"strings": [f"{i}" for i in range(20000)] + ["7"]}, '"7" twice'),
]
_OF_THE_REGEX = [
    (None, "regex is null; give a pattern, or a list"),
    ([], r"regex is \[\]"),
    ([["a"]], r'regex is \[\["a"\]\]'),
    (["a", 3], r'regex is \["a", 3\]'),
    ("a(", r'regex has "a\(": .* or write .* position 1'),
    (["a", "b\n("], r'regex has "b\\n\(": .* position 2'),
    ("(?=a)", "which no text matches"),
    ("\ud800", r'regex has "\\ud800": a lone surrogate'),
    ("a{99999999}", "more than 250000 states"),
    (["(a{600})*", "(a{601})*"], r"regex is \[.*more than 250000 states"),
    (r"[^\x00-\U0010ffff]", "which no text matches; give a pattern that some text matches"),
    (["a+", "b+"], r'regex is \["a\+", "b\+"\], which no text matches'),
]
_OF_THE_MODEL = [
    ({"budget": 10**40}, "the model's context"),
    ({"eos_ids": list(range(512))}, "problem '0'.*no token"),
    ({"strings": ["wide and long"], "budget": 2}, "the budget is 2"),
    ({"eos_ids": [512]}, "eos_ids has 512, but the model's ids are 0 to 511"),
    ({"prompt": [512]}, "the prompt has 512, but"),
    ({"prompt": [5] * 510}, "context"),
    ({"strings": ["the " * 12], "budget": 49}, "distinct token pref"),
]


def refusal(content: object, tmp_path: Path, *overrides: str) -> str:
    """Return the task's error for a file, or for a good problem changed in these fields."""
    path = tmp_path / "problems.json"
    if isinstance(content, dict):
        content = json.dumps([{"prompt": "x", "budget": 6, "strings": ["a", "b"], **content}])
    path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    with pytest.raises(ValueError) as caught:
        experiment.run(composed(f"task.problems={path}", f"run_dir={tmp_path / 'run'}", *overrides))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize(("content", "message"), _OF_THE_FILE)
def test_bad_files_are_refused_before_a_model_is_loaded(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(task, "load_model", None)
    assert re.search(message, refusal(content, tmp_path))


@pytest.mark.parametrize(("value", "message"), _OF_THE_REGEX)
def test_bad_patterns_are_refused_before_a_model_is_loaded(value, message, tmp_path, monkeypatch):
    monkeypatch.setattr(task, "load_model", None)
    entry = {"name": "good", "prompt": "x", "budget": 6}
    content = json.dumps([{**entry, "regex": "a"}, {**entry, "name": "bad", "regex": value}])
    found = refusal(content, tmp_path)
    assert "problem 1" in found
    assert re.search(message, found)


@pytest.mark.parametrize(("content", "message"), _OF_THE_MODEL)
def test_what_a_model_has_no_room_or_token_for_is_refused(content, message, tmp_path):
    assert re.search(message, refusal(content, tmp_path))


def test_a_prompt_without_any_token_is_refused(tmp_path):
    """The toy's tokenizer doesn't add any token."""
    toy = write_checkpoint(tmp_path / "toy")
    assert re.search("at least one token", refusal({"prompt": ""}, tmp_path, f"model.path={toy}"))


@pytest.mark.parametrize("patterns", ["a(b|c)?", [".{1,3}", ".*b.*"], ["[ab]*", "a.*", ".{2,3}"]])
def test_the_answers_are_all_texts_that_match_every_pattern(patterns, tmp_path):
    [problem] = read_problems(
        written(tmp_path / "p.json", [{"prompt": "x", "budget": 4, "regex": patterns}])
    )
    assert problem.strings is None
    every = [patterns] if isinstance(patterns, str) else patterns
    texts = ["".join(letters) for n in range(5) for letters in product("abcd", repeat=n)]
    matching = [text for text in texts if all(re.fullmatch(p, text) for p in every)]
    assert 0 < len(matching) < len(texts)
    assert [text for text in texts if problem.language.accepts(text)] == matching


def test_a_problem_of_patterns_is_that_of_its_texts(tmp_path):
    """The same strings, the same exact posterior; and the note is kept."""
    entry = {"prompt": "x", "budget": 4, "eos_ids": [3]}
    patterns = {**entry, "name": "patterns", "regex": ["(a|b){1,3}", ".*b"], "note": "Ends in b"}
    texts = sorted(
        text
        for n in (1, 2, 3)
        for text in map("".join, product("ab", repeat=n))
        if text.endswith("b")
    )
    file = written(tmp_path / "p.json", [patterns, {**entry, "name": "texts", "strings": texts}])
    experiment.run(composed(f"task.problems={file}", f"run_dir={tmp_path / 'run'}", *QUICK))
    first, second = results(tmp_path / "run")
    assert first["strings"] == second["strings"] == texts
    assert first["posterior"] == second["posterior"]
    assert first["log_evidence"] == second["log_evidence"]
    assert first["note"] == "Ends in b"


@pytest.mark.parametrize("kind", ["builtin", "check", "new"])
def test_the_page_s_own_problems_can_be_enumerated(kind):
    """Nothing is asked of the model; what the page says of budgets and sizes holds.

    Problems of tool calls are for the tokens of another model.
    """
    lm, tokenizer = load_model(ModelConfig(path=str(STORIES), device="cpu"))
    lm.model.forward = Mock(side_effect=AssertionError("the model was asked"))
    problems = read_problems(ROOT / "data" / "convergence" / f"{kind}_stories.json")
    rows = table_rows((ROOT / "docs" / "convergence.md").read_text(encoding="utf-8"))
    for problem in problems:
        ready = prepare(problem, lm, tokenizer, 200_000)
        found = [problem.name, str(problem.budget), str(ready.prefixes)]
        assert any([row[0].removesuffix(" *"), *row[1:3]] == found for row in rows), found
    calls = read_problems(ROOT / "data" / "convergence" / f"{kind}_toolcalls.json")
    assert len(problems) == len(calls) == {"builtin": 5, "check": 3, "new": 6}[kind]
    assert all(each.prompt.count("\nCalls in JSON:\n") == 1 for each in calls)


def table_rows(page: str) -> list[list[str]]:
    """The cells of every table of a page."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.problems=/nowhere/p.json", "expected an existing file"),
        ("model.path=tests/models", "built-in problems are written in the tokens of smollm2 and"),
        ("task.methods=[magic]", "expected task.methods to be .*got 'magic'"),
        ("task.methods=[]", "at least one"),
        ("task.particles=[2,2]", "different values in task.particles"),
        ("task.particles=[0]", "at least 1, got 0"),
        ("task.runs=0", "task.runs to be at least 1"),
        ("task.max_prefixes=300000", r"task.max_prefixes to be in 1\.\.200000"),
        ("task.hmm_states=1", "at least 2"),
        ("task.hmm=/nowhere/hmm", "expected an HMM.*scripts.distill_hmm"),
        ("data.path=x.jsonl", "reads no records"),
        ("hmm.path=x", "takes its HMM from task.hmm"),
        ("hmm.exact_top_k=3", "pgcd_tied"),
        ("seed=-1", "seed to be at least 0"),
    ],
)
def test_bad_settings_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(override))


def test_an_hmm_that_would_not_be_used_is_refused(tmp_path):
    save(HMM.random(2, 3, generator=torch.Generator().manual_seed(0)), tmp_path)
    experiment.check(composed(f"task.hmm={tmp_path}"))
    with pytest.raises(ValueError, match=r"add pgcd, or leave task\.hmm out"):
        experiment.check(composed(f"task.hmm={tmp_path}", "task.methods=[lcd,gcd]"))
