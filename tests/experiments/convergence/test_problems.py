"""What no run could honour is refused in one line, before a model is asked anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments import run as experiment
from experiments.convergence import task
from experiments.convergence.problems import prepare, read_problems
from experiments.harness.models import load_model
from tests.experiments.convergence.test_convergence import composed, written

_OF_THE_FILE = [
    ("[{", "not JSON"),
    ("{}", "a list of problems is wanted, got dict"),
    ("[]", "an empty list"),
    ("[3]", "problem 0 is 3"),
    (b"\xff[]", "not JSON in UTF-8"),
    ('[{"prompt": "x", "budget": 2}]', "lacks 'strings'"),
    ({"budgets": 3}, "unknown key 'budgets'"),
    ({"strings": None}, "strings is null"),
    ({"strings": []}, r"strings is \[\]"),
    ({"strings": ["a", "a"]}, '"a" twice'),
    ({"strings": ["a", 3]}, "strings holds 3"),
    ({"strings": ["\ud800"]}, "cannot be written in UTF-8"),
    ({"budget": 0}, "budget is 0"),
    ({"budget": 2.5}, r"budget is 2\.5"),
    ({"budget": True}, "budget is true"),
    ({"prompt": 7}, "prompt is 7"),
    ({"prompt": "\ud800"}, r'prompt is "\\ud800", which cannot be written in UTF-8'),
    ({"prompt": []}, r"prompt is \[\]"),
    ({"prompt": [1, -1]}, "prompt is"),
    ({"eos_ids": []}, r"eos_ids is \[\]"),
    ({"eos_ids": ["x"]}, "eos_ids is"),
    ({"eos_ids": [True]}, "eos_ids is"),
    ({"name": ""}, "name is"),
    ({"name": "two\nlines"}, "one line"),
    ({"name": "\udc00"}, "one line"),
    ({"strings": [f"{i}" for i in range(20000)] + ["7"]}, '"7" twice'),
]
_OF_THE_MODEL = [
    ({"budget": 10**40}, "the model's context"),
    ({"eos_ids": list(range(2048))}, "problem '0'.*no token"),
    ({"strings": ["wide and long"], "budget": 2}, "the budget is 2"),
    ({"eos_ids": [2048]}, "eos_ids has 2048, but the model's ids are 0 to 2047"),
    ({"prompt": [2048]}, "the prompt has token 2048"),
    ({"prompt": ""}, "no tokens"),
    ({"prompt": [5] * 2046}, "context"),
    ({"strings": ["temperatureinformationregistration"], "budget": 36}, "distinct token pref"),
]


def refusal(content: object, tmp_path: Path, *overrides: str) -> str:
    """What the task says of a file, or of one problem that differs from a good one in this."""
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


@pytest.mark.parametrize(("content", "message"), _OF_THE_MODEL)
def test_bad_problems_are_refused_before_the_model_is_asked(
    content, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(task, "Evaluator", None)
    monkeypatch.setattr(task, "distil", None)
    assert re.search(message, refusal(content, tmp_path))


def test_what_the_hmm_cannot_do_is_refused_before_it_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "Evaluator", None)
    monkeypatch.setattr(task, "distil", None)
    many = [{"prompt": [5, i], "budget": 3, "strings": ["a"], "name": str(i)} for i in range(30)]
    found = refusal(json.dumps(many), tmp_path, "task.hmm_sequences=29")
    assert "task.hmm_sequences=29 is less than one for each of 30 prompts" in found
    cubes = {"strings": [str(i**3) for i in range(100, 400)], "budget": 8}
    found = refusal(cubes, tmp_path, "hmm.max_table_mib=1", "task.hmm_states=512")
    assert re.search(r"of 820 states, a budget of 8 .* hmm\.max_table_mib=1 are allowed", found)


def test_a_tree_that_is_too_large_names_its_size(tmp_path):
    lm, tokenizer = load_model(composed().model)
    path = written(tmp_path / "p.json", [{"prompt": "x", "budget": 5, "strings": ["wide", "long"]}])
    [problem] = read_problems(path)
    ready = prepare(problem, lm, tokenizer, 200_000)
    prefixes = ready.tree().num_prefixes
    assert ready.prefixes == prefixes
    with pytest.raises(ValueError, match=rf"{prefixes} distinct token prefixes.*lower the budget"):
        prepare(problem, lm, tokenizer, prefixes - 1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.problems=/nowhere/p.json", "no such file"),
        ("task.methods=[magic]", "'magic' for task.methods"),
        ("task.methods=[]", "at least one"),
        ("task.particles=[2,2]", "twice"),
        ("task.particles=[0]", "at least 1, got 0"),
        ("task.runs=0", "task.runs must be at least 1"),
        ("task.max_prefixes=300000", r"task.max_prefixes must lie in 1\.\.200000"),
        ("task.models=[a,a]", "twice"),
        ("task.hmm_for=nobody", "'nobody' for task.hmm_for"),
        ("task.hmm_states=1", "at least 2"),
        ("smc.top_p=0.9", "changes the target"),
        ("task.hmm=/nowhere/hmm", "no HMM there.*scripts.distill_hmm"),
        ("data.path=x.jsonl", "reads no records"),
        ("hmm.path=x", "takes its HMM from task.hmm"),
        ("hmm.exact_top_k=3", "pgcd_tied"),
        ("seed=-1", "seed must be at least 0"),
    ],
)
def test_bad_settings_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(override))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.methods=[lcd,gcd]"], "add pgcd, or leave task.hmm out"),
        (["task.hmm_for=problem"], "one HMM for all problems"),
        (["task.models=[embedded,other]"], "one vocabulary"),
    ],
)
def test_an_hmm_that_would_not_be_used_is_refused(overrides, message, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    experiment.check(composed(f"task.hmm={tmp_path}"))
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(f"task.hmm={tmp_path}", *overrides))


def test_a_model_that_would_not_be_used_is_refused():
    with pytest.raises(ValueError, match=r"model\.path=here and task\.models=\['there'\]"):
        experiment.check(composed("model.path=here", "task.models=[there]"))
