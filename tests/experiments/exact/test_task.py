"""The whole task on small problems: outputs, resumption, custom HMMs, refusals."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from omegaconf import DictConfig

from experiments import run as experiment
from experiments.exact import report, task
from experiments.exact.cached import CachedLM
from experiments.exact.problems import prepare, read_problems
from experiments.exact.task import Distilled, Recipe, distill
from experiments.models import ROOT, ModelConfig, load_model
from gcd import Vocabulary
from hmm._checkpoint import save
from hmm._model import HMM
from smc.testing import ToyLM
from tests.experiments import composing
from tests.experiments.rows import rows_of
from tests.experiments.toy_model import write_checkpoint

STORIES = ROOT / "tests" / "models" / "stories260K"
SMALL = (
    "+task=convergence", "wandb=disabled", f"model.path={STORIES}", "model.device=cpu",
    "task.particles=[1,4]", "task.runs=16", "task.draws=20",
    "task.hmm_states=4", "task.hmm_sequences=24", "task.hmm_length=4",
)  # fmt: skip
PROMPT = "Request: How old is it?\nCalls in JSON:\n"
PROBLEMS: list[dict[str, Any]] = [
    {"prompt": PROMPT, "budget": 4, "strings": ["12", "3", "wide", "7"]},
    {
        "name": "$5 | $x_{ or " + "more " * 20,  # neither figure nor table takes it for markup
        "prompt": [5, 9, 3],
        "budget": 3,
        "strings": ["ab", "a", "much too long for this"],
        "eos_ids": [3],
    },
    {"prompt": "x", "budget": 4, "regex": ["(a|b){1,2}", ".*b"], "note": "Ends in b"},
]
ARMS = (
    "task.methods=[lcd,gcd,pgcd_tied]", "task.algorithms=[smc_none,discrete]",
)  # of the whole run; every method is run against the full vocabulary elsewhere  # fmt: skip


def composed(*overrides: str) -> DictConfig:
    return composing.composed(*SMALL, *overrides)


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def logged() -> dict[str, Any]:
    """Collect the values that the whole run logs."""
    return {}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, logged) -> Path:
    directory = tmp_path_factory.mktemp("convergence")
    problems = written(directory / "problems.json", PROBLEMS)
    run_dir = directory / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.tracking.log", lambda *_, **given: logged.update(given))
        assert experiment.run(composed(f"task.problems={problems}", f"run_dir={run_dir}", *ARMS))
    return run_dir


@pytest.mark.slow("the whole run, which other tests look at, too")
def test_own_problems_give_one_line_each(finished):
    first, second, third = rows_of(finished)
    assert [one["name"] for one in (first, second, third)] == ["0", PROBLEMS[1]["name"], "2"]
    assert first["strings"] == PROBLEMS[0]["strings"]  # in the order given
    assert second["prompt_ids"] == [5, 9, 3]
    assert second["eos_ids"] == [3]
    assert second["posterior"][2] == 0  # it does not fit
    assert third["strings"] == ["ab", "b", "bb"]
    assert third["note"] == "Ends in b"
    for one in (first, second, third):
        assert sum(one["posterior"]) == pytest.approx(1)
        assert one["gcd"]["share_valid"] == pytest.approx(1)
        assert 0 < one["lcd"]["share_valid"] <= 1
        assert len(one["estimates"]) == 3 * 2 * 2
        for e in one["estimates"]:
            runs = 1 if e["enumerated"] else max(16, math.ceil(20 / e["particles"]))
            assert e["runs"] == runs
            assert not (e["enumerated"] and e["algorithm"] == "smc_none")
            assert 0 <= e["read"] <= one["prefixes"] - 1 or e["method"] == "lcd"
            assert -1e-9 <= e["tv_low"] - 1e-9 <= e["tv"] <= e["tv_high"] + 1e-9 <= 1 + 2e-9
            single = e["particles"] == 1 and e["algorithm"] != "discrete"
            known = single and e["method"] in ("lcd", "gcd")
            assert (e["tv_exact"] is not None) == (known or e["enumerated"])
            if known:
                assert e["tv_exact"] == pytest.approx(one[e["method"]]["total_variation"])
                assert e["tv"] == pytest.approx(e["tv_exact"], abs=4 * e["tv_floor"] + 1e-6)


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    """The model and its tokenizer."""
    return load_model(ModelConfig(path=str(STORIES), device="cpu"))


def test_the_exact_answer_is_the_model_s(finished, loaded):
    """Every tokenization of every string, asked one by one, with nothing of the tree in between."""
    lm, _ = loaded
    texts = lm.vocabulary.token_bytes
    ends = lm.vocabulary.eos_ids
    prompt = lm.encode(PROMPT)

    def spellings(rest: bytes, room: int) -> list[list[int]]:
        if not rest:
            return [[]]
        return [
            [token, *more]
            for token, text in enumerate(texts)
            if room and text and rest.startswith(text)
            for more in spellings(rest[len(text) :], room - 1)
        ]

    def probability(tokens: list[int]) -> float:
        rows, log_p = lm.prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(log_p[0, token])
            log_p = rows.extend(torch.tensor([[token]]), torch.tensor([1]))[:, 0]
        return math.exp(total)

    masses = [
        sum(probability([*tokens, end]) for tokens in spellings(text.encode(), 3) for end in ends)
        for text in PROBLEMS[0]["strings"]
    ]
    one = rows_of(finished)[0]
    assert one["log_evidence"] == pytest.approx(math.log(sum(masses)), rel=1e-4)
    expected = [mass / sum(masses) for mass in masses]
    assert one["posterior"] == pytest.approx(expected, abs=1e-4)


def test_what_is_left_behind(finished, logged):
    table = (finished / "table.md").read_text(encoding="utf-8")
    for text in (
        "P-GCD, class-tied", "| $5 \\| $x_{ or", "free continuations of 3 prompts",
        "SMC, no resampling", "| discrete ", "read, N=4",
    ):  # fmt: skip
        assert text in table
    for name in ("medians", "reads"):
        assert (finished / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert logged["figures"][name] == finished / f"{name}.png"
    assert {(row["method"], row["algorithm"]) for row in logged["rows"]} == set(
        product(("lcd", "gcd", "pgcd_tied"), ("smc_none", "discrete"))
    )
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["overview"]) == 3 * 2
    assert "strings" not in summary["problems"][0]
    assert (finished / "config.yaml").exists()


@pytest.mark.usefixtures("tables_alone")
def test_an_interrupted_run_goes_on_to_the_same_result(finished, tmp_path, monkeypatch):
    problems = written(tmp_path / "problems.json", PROBLEMS)
    where = (f"task.problems={problems}", f"run_dir={tmp_path / 'run'}")
    some = ("task.methods=[lcd,gcd]", "task.algorithms=[smc_none]")
    config = composed(*where, *some)
    sample, calls = task.sample_runs, []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == 2:  # in the middle of LCD, which grows its tree as it goes
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    monkeypatch.setattr(task, "sample_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config)
    assert not (tmp_path / "run" / "results.jsonl").exists()
    experiment.run(config)
    assert len(calls) == 1 + 3 * 2 * 2  # no arm twice, but for the one that was interrupted
    for one, other in zip(rows_of(tmp_path / "run"), rows_of(finished), strict=True):
        own = [e for e in other["estimates"] if e["algorithm"] == "smc_none"]
        own = [e for e in own if e["method"] in ("lcd", "gcd")]
        assert one == other | {"estimates": own}
    before = (tmp_path / "run" / "results.jsonl").read_text()
    monkeypatch.setattr(task, "sample_runs", None)  # all is there: nothing is made again
    experiment.run(config)
    assert (tmp_path / "run" / "results.jsonl").read_text() == before
    with pytest.raises(ValueError, match=r"task\.runs was 16, is 17"):
        experiment.run(composed(*where, *some, "task.runs=17"))


@pytest.mark.usefixtures("tables_alone")
def test_with_room_for_all_prefixes_every_method_is_exact(tmp_path):
    """P-GCD with a given HMM is one of them."""
    save(HMM.random(3, 512), tmp_path / "hmm")
    problems = written(tmp_path / "p.json", PROBLEMS)
    experiment.run(
        composed(
            f"task.problems={problems}", f"run_dir={tmp_path / 'run'}", "task.particles=[64]",
            "task.algorithms=[discrete]", "discrete.count_finished=false", "discrete.floor=0",
            f"task.hmm={tmp_path / 'hmm'}",
        )
    )  # fmt: skip
    for one in rows_of(tmp_path / "run"):
        for e in one["estimates"]:
            assert (e["enumerated"], e["runs"]) == (True, 1)
            assert e["tv_exact"] < 1e-12
            assert e["evidence_bias"] == pytest.approx(0, abs=1e-12)
            if e["method"] != "lcd":  # which reads what the budget cuts off, too
                assert e["read"] == one["prefixes"] - 1
    assert "HMM of 3 states" in (tmp_path / "run" / "table.md").read_text()


@pytest.mark.usefixtures("tables_alone")
def test_the_hmm_never_sees_a_constraint(finished, tmp_path):
    """Other answers after the same prompts, within the same budgets, have the very same HMM."""
    others = ({"strings": ["wide", "x"]}, {"strings": ["b"]}, {"regex": "a?"})
    asked = [{**problem, **other} for problem, other in zip(PROBLEMS, others, strict=True)]
    file = written(tmp_path / "p.json", asked)
    own = ("task.methods=[pgcd]", "task.algorithms=[smc]", "task.particles=[1]")
    experiment.run(composed(f"task.problems={file}", f"run_dir={tmp_path / 'run'}", *own))
    found, expected = rows_of(tmp_path / "run"), rows_of(finished)
    assert all(a["strings"] != b["strings"] for a, b in zip(found, expected, strict=True))
    one, same = (
        sorted((run / "hmm").glob("*.safetensors")) for run in (finished, tmp_path / "run")
    )
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in same] != []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_model_may_be_on_a_gpu(tmp_path):
    problems = written(tmp_path / "p.json", PROBLEMS[:1])
    run_dir = f"run_dir={tmp_path / 'run'}"
    experiment.run(composed(f"task.problems={problems}", run_dir, "model.device=cuda"))
    [one] = rows_of(tmp_path / "run")
    assert sum(one["posterior"]) == pytest.approx(1)


def frame(tv: dict[str, list[float]], read: dict[str, list[float]], name: str = "p"):
    """Total variations of arms at 1, 4 and 16 particles on a problem."""
    rows = []
    for arm, values in tv.items():
        method, algorithm = arm.split("/")
        for n, value, count in zip((1, 4, 16), values, read[arm], strict=True):
            rows.append({
                "example": name, "method": method, "algorithm": algorithm, "particles": n,
                "best": value, "read": count,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_the_overview_counts_problems_within_the_goal():
    tv = {"gcd/smc_none": [0.4, 0.2, 0.1], "gcd/discrete": [0.3, 0.1, 0.0]}
    reads = {"gcd/smc_none": [2, 8, 32], "gcd/discrete": [3, 4, 5]}
    every = pd.concat([frame(tv, reads, name) for name in "abc"])
    own, other = report.overview(every)
    assert [own[f"N={n}"] for n in (1, 4, 16)] == ["0; 0.4", "0; 0.2", "3; 0.1"]
    assert [other[f"N={n}"] for n in (1, 4, 16)] == ["0; 0.3", "3; 0.1", "3; 0"]
    assert (own["read, N=16"], other["read, N=16"]) == ("32", "5")


# -- the HMM: the same after any interruption, and whole or not there

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d"], [3])
PROMPTS = ((0, 1), (2,), (0, 1))
RECIPE = Recipe(states=20, sequences=40, length=5, seed=3_000_000_000)


def made(where: Path, recipe: Recipe = RECIPE, lm: ToyLM | None = None) -> Distilled:
    return distill(lm or ToyLM(VOCABULARY, seed=1), PROMPTS, recipe, where / "hmm")


def same(one: Distilled, other: Distilled) -> bool:
    def content(each: Distilled) -> list:
        hmm = each.hmm
        return [each.note, *(x.tolist() for x in (hmm.initial, hmm.transition.dense()))]

    return content(one) == content(other) and torch.equal(one.hmm.emission, other.hmm.emission)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    return made(tmp_path_factory.mktemp("whole"))


def test_it_is_found_again(distilled, tmp_path, monkeypatch):
    made(tmp_path)
    for work in ("sample_batch", "clone"):
        monkeypatch.setattr(task, work, None)
    assert same(made(tmp_path), distilled)
    assert "40 free continuations of 2 prompts" in distilled.note
    assert f"HMM of {distilled.hmm.num_states} states" in distilled.note


@pytest.mark.parametrize(
    ("name", "calls"), [("sample_batch", 2), ("clone", 1), ("save", 1), ("replace", 1)]
)
def test_an_interrupted_one_is_the_same(name, calls, distilled, tmp_path, monkeypatch):
    """Also if it ends after it was written, which is beside the place."""
    owner = Path if name == "replace" else task
    work, done = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        done.extend([None] * (name != "replace" or args[0].is_dir()))
        if len(done) == calls:
            raise KeyboardInterrupt
        return work(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    assert bool(list(tmp_path.glob("hmm.part/*"))) == (name == "replace")
    assert not (tmp_path / "hmm").exists()
    assert same(made(tmp_path), distilled)


@pytest.mark.parametrize("change", [{"seed": 4}, {"states": 9}, {"length": 4}, {"sequences": 41}])
def test_another_recipe_is_another_hmm(change, distilled, tmp_path):
    found = made(tmp_path, RECIPE._replace(**change))
    assert not same(found, distilled)
    assert found.hmm.num_states <= change.get("states", 20)


# -- refusals


def test_an_hmm_that_could_or_would_not_be_used_is_refused(tmp_path):
    save(HMM.random(3, 17), tmp_path / "hmm")
    own = f"task.hmm={tmp_path / 'hmm'}"
    experiment.check(composed(own))
    experiment.check(composed("task.methods=[lm,gcd]", "task.algorithms=[smc]"))
    with pytest.raises(ValueError, match=r"add pgcd, or leave task\.hmm out"):
        experiment.check(composed(own, "task.methods=[lcd,gcd]"))
    problems = written(tmp_path / "problems.json", PROBLEMS[:1])
    with pytest.raises(ValueError, match=r"over 512 tokens.*got one over 17"):
        experiment.run(composed(own, f"task.problems={problems}", f"run_dir={tmp_path / 'run'}"))


def test_a_model_without_any_answer_is_named(tmp_path, monkeypatch):
    class Silent(CachedLM):
        def log_p(self, nodes):
            return torch.full_like(super().log_p(nodes), -torch.inf)

    monkeypatch.setattr(task, "CachedLM", Silent)
    problems = written(tmp_path / "p.json", PROBLEMS[:1])
    with pytest.raises(ValueError, match=r"problem '0': .* answer with positive prob"):
        experiment.run(
            composed(f"task.problems={problems}", f"run_dir={tmp_path / 'r'}", "task.methods=[gcd]")
        )


_OF_THE_FILE = [
    ("[{", "Invalid JSON"),
    ("{}", "expected a list of problems .* got {}"),
    ("[]", r"got \[\] \(List should have at least 1 item"),
    ("[3]", r"problem 0: 3 \(Input should be an object"),
    (b"\xff[]", "expected JSON in UTF-8"),
    ('[{"prompt": "x", "strings": ["a"]}]', "budget is .*Field required"),
    ({"regex": "a"}, "exactly one of strings and regex"),
    ({"budgets": 3}, r"budgets is 3 \(Extra inputs"),
    ({"strings": None}, "exactly one of strings and regex"),
    ({"strings": []}, r"strings is \[\]"),
    ({"strings": ["a", "a"]}, '"a" twice'),
    ({"budget": 0}, "budget is 0"),
    ({"budget": True}, "budget is true"),
    ({"prompt": 7}, "prompt is 7"),
    ({"prompt": [1, -1]}, "prompt is"),
    ({"eos_ids": []}, r"eos_ids is \[\]"),
    ({"name": ""}, "name is"),
    ({"name": "two\nlines"}, "name is .* match pattern"),
    ({"name": "\udc00"}, "Invalid JSON"),
    ({"note": "two\nlines"}, "note is .* match pattern"),
    ({"strings": [f"{i}" for i in range(20000)] + ["7"]}, '"7" twice'),
]
_OF_THE_REGEX = [
    (None, "exactly one of strings and regex"),
    ([], r"regex is \[\]"),
    ([["a"]], r'regex is \[\["a"\]\]'),
    (["a", 3], r'regex is \["a", 3\]'),
    (["a", "b\n("], r'regex has "b\\n\(": .* or write .* position 2'),
    ("(?=a)", "which no text matches"),
    (["(a{600})*", "(a{601})*"], r"regex is \[.*more than 250000 states"),
    (["a+", "b+"], r'regex is \["a\+", "b\+"\], which no text matches; give a pattern that some'),
]
_OF_THE_MODEL = [
    ({"budget": 10**40}, "the model's context"),
    ({"eos_ids": list(range(512))}, "problem 'bad'.*no token"),
    ({"strings": ["wide and long"], "budget": 2}, "the budget is 2"),
    ({"eos_ids": [512]}, "eos_ids has 512, but the model's ids are 0 to 511"),
    ({"prompt": [512]}, "the prompt has 512, but"),
    ({"prompt": [5] * 510}, "context"),
    ({"strings": ["the " * 12], "budget": 49}, "distinct token pref"),
]


def file_of(content: object, tmp_path: Path) -> Path:
    """Write a file of problems; or a good problem, and a good one changed in these fields."""
    if isinstance(content, dict):
        good = {"name": "good", "prompt": "x", "budget": 6, "strings": ["a", "b"]}
        content = json.dumps([good, {**good, "name": "bad", **content}])
    path = tmp_path / "problems.json"
    path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [*_OF_THE_FILE, *(({"strings": None, "regex": x}, m) for x, m in _OF_THE_REGEX)],
)
def test_bad_files_are_refused_in_one_line(content, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        read_problems(file_of(content, tmp_path))
    assert "\n" not in str(caught.value)
    if isinstance(content, dict) and message != "Invalid JSON":
        assert "problem 1" in str(caught.value)


@pytest.mark.parametrize(("content", "message"), _OF_THE_MODEL)
def test_what_a_model_has_no_room_or_token_for_is_refused(content, message, tmp_path, loaded):
    _, problem = read_problems(file_of(content, tmp_path))
    with pytest.raises(ValueError, match=message) as caught:
        prepare(problem, *loaded, 200_000)
    assert "\n" not in str(caught.value)


def test_refusals_leave_nothing_behind(tmp_path, monkeypatch):
    """The toy's tokenizer doesn't add any token to a prompt."""
    toy = write_checkpoint(tmp_path / "toy")

    def refusal(content: object) -> str:
        where = (f"task.problems={file_of(content, tmp_path)}", f"run_dir={tmp_path / 'run'}")
        with pytest.raises(ValueError) as caught:
            experiment.run(composed(*where, f"model.path={toy}"))
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    assert "at least one token" in refusal({"prompt": ""})
    monkeypatch.setattr(task, "load_model", None)
    assert "Invalid JSON" in refusal("[{")


@pytest.mark.parametrize("patterns", ["a(b|c)?", ["[ab]*", "a.*", ".{2,3}"]])
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


@pytest.mark.parametrize("kind", ["builtin", "check", "new"])
def test_the_page_s_own_problems_can_be_enumerated(kind, loaded, monkeypatch):
    """Nothing is asked of the model; what the page says of budgets and sizes holds.

    Problems of tool calls are for the tokens of another model.
    """
    lm, tokenizer = loaded
    monkeypatch.setattr(lm.model, "forward", Mock(side_effect=AssertionError("it was asked")))
    problems = read_problems(ROOT / "data" / "convergence" / f"{kind}_stories.json")
    page = (ROOT / "docs" / "convergence.md").read_text(encoding="utf-8")
    for problem in problems:
        prefixes = prepare(problem, lm, tokenizer, 200_000).prefixes
        row = rf"^\| {re.escape(problem.name)}( \*)? \| {problem.budget} \| {prefixes} \|"
        assert re.search(row, page, re.MULTILINE), problem.name
    calls = read_problems(ROOT / "data" / "convergence" / f"{kind}_toolcalls.json")
    assert len(problems) == len(calls) == {"builtin": 5, "check": 3, "new": 6}[kind]
    assert all(each.prompt.count("\nCalls in JSON:\n") == 1 for each in calls)
