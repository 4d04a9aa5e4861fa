"""Rows of results, from posteriors made by hand: what LCD leaves unfinished must show."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

import gcd
import smc
from experiments.evaluate import Example, Trial, row_of, trials_of
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import Call, Request, ToolRecord, record_handler
from gcd._languages.tools.call_formats import FORMATS
from smc._results.posterior import Diagnostics
from smc.testing import ToyLM
from tests.gcd.languages.tools.calls import tokenizer_for, write_calls

VOCABULARY = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], [256])
TOOL = {"name": "f", "description": "", "parameters": {"a": {"type": "int"}}}
LANGUAGE = gcd.tool_calls(to_json_schema_tools([TOOL]))
RECORD = ToolRecord("7", "Call f with 1.", (TOOL,), (Call("f", {"a": 1}),))
EXAMPLE = Example(
    3, Request(RECORD, "json"), LANGUAGE, gcd.lift(LANGUAGE, VOCABULARY), (1,), 60, {}
)
RIGHT = b'[{"name": "f", "arguments": {"a": 1}}]'
WRONG = b'[{"name": "f", "arguments": {"a": 2}}]'
OPTIONS = SimpleNamespace(max_calls=None, formats="assert", max_bytes=None)
TASK = record_handler(SimpleNamespace(task=OPTIONS), None, Counter())
FOUR = Trial("gcd", "smc", 4)


def test_a_limit_beyond_all_answers_does_not_refuse_a_record():
    tool = {"name": "f", "parameters": {"a": {"type": "str", "maxLength": 1 << 20}}}
    record = ToolRecord("8", "Call f.", (tool,), (Call("f", {"a": "x"}),))
    options = SimpleNamespace(**vars(OPTIONS) | {"formats": "ignore", "max_bytes": 300})
    task = record_handler(SimpleNamespace(task=options), None, Counter())
    language = task.language(Request(record, "json"))
    assert language.max_bytes == 300
    assert language.accepts(task.gold(Request(record, "json")))


BROKEN = b'[{"name": "f", "argu'


def made_by_hand(answers: dict[bytes, float], *, complete: bool, share: float, fragment=b""):
    diagnostics = Diagnostics((), (), (), (), 5, 50, 40, share, 0.1)
    return SimpleNamespace(
        answers=tuple(answers),
        texts=tuple(a.decode() for a in answers),
        best=list(answers)[-1].decode() if answers else None,
        probabilities=tuple(answers.values()),
        dead=not answers,
        complete=complete,
        log_evidence=-1.0 if answers else float("-inf"),
        ess=1.0,
        certified=0.5,
        reliability=SimpleNamespace(label="estimated", log_evidence_error=0.1, ess=1.0),
        budget=SimpleNamespace(removed=0.25),
        stopped="deadline",
        enumerated=False,
        diagnostics=diagnostics,
        particles=(SimpleNamespace(answer=fragment),),
    )


def test_a_dead_row_is_wrong_invalid_and_unfinished():
    dead = made_by_hand({}, complete=False, share=0.0, fragment=BROKEN)
    row = row_of(EXAMPLE, Trial("lcd", "smc", 1), TASK, dead)
    assert row["dead"]
    assert not row["valid"]
    assert not row["complete"]
    assert not row["majority_correct"]
    assert (row["best"], row["best_correct"]) == (None, False)
    assert row["weighted_accuracy"] == 0
    assert row["log_evidence"] is None
    assert (row["budget_removed"], row["stopped"]) == (0.25, "deadline")
    assert row["unfinished"] == BROKEN.decode()
    assert (row["example"], row["share_finished"]) == ("3:7", 0.0)
    assert row["read"] == 50 - len(EXAMPLE.prompt)


def test_an_empty_pool_is_a_dead_row_too():
    dead = made_by_hand({}, complete=False, share=0.0)
    dead.particles = ()
    row = row_of(EXAMPLE, Trial("lcd", "discrete", 4, 2), TASK, dead)
    assert row["dead"]
    assert row["unfinished"] is None
    assert (row["algorithm"], row["repeat"]) == ("discrete", 2)


def test_repetitions_have_different_seeds_and_the_first_is_the_run_itself():
    task = SimpleNamespace(
        methods=["lcd", "gcd"], algorithms=["smc", "discrete"], particles=[1, 4], repeats=3
    )
    trials = trials_of(task)
    assert len(set(trials)) == len(trials) == 2 * 2 * 2 * 3
    seeds = {trial.repeat: {trial.seed(7), trial.seed(8)} for trial in trials}
    assert seeds[0] == {7, 8}
    assert len(set.union(*seeds.values())) == 6


def test_accuracies_are_of_calls_and_weighted_by_probability():
    found = made_by_hand({WRONG: 0.6, RIGHT: 0.4}, complete=True, share=1.0)
    row = row_of(EXAMPLE, FOUR, TASK, found)
    assert row["valid"]
    assert row["complete"]
    assert row["weighted_accuracy"] == 0.4
    assert not row["majority_correct"]
    assert (row["best"], row["best_correct"]) == (RIGHT.decode(), True)
    assert [a["correct"] for a in row["answers"]] == [False, True]
    assert row["unfinished"] is None
    assert row["gold"] == RIGHT.decode()


def test_validity_is_checked_on_the_bytes_of_the_chosen_answer():
    row = row_of(EXAMPLE, FOUR, TASK, made_by_hand({BROKEN: 1.0}, complete=True, share=1.0))
    assert not row["valid"]
    assert row["weighted_accuracy"] == 0


@pytest.mark.parametrize("style", ["hermes", "pythonic", "glm45", "deepseek_v31", "gemma4"])
def test_calls_in_a_models_own_format_are_read(style):
    tool = {"name": "f", "parameters": {"a": {"type": "int", "enum": [1, 2]}}}
    record = Request(ToolRecord("9", "Call f.", (tool,), (Call("f", {"a": 1}),)), style)
    one = SimpleNamespace(**vars(OPTIONS) | {"max_calls": 1})
    task = record_handler(SimpleNamespace(task=one), None, Counter())
    language = task.language(record)
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer_for(FORMATS[style]))
    constraint = gcd.lift(language, vocabulary)
    example = Example(0, record, language, constraint, (1,), 200, {})
    [found] = smc.sample(
        ToyLM(vocabulary), [(1,)], constraint, max_tokens=200, particles=9, proposal=smc.GCD()
    )
    row = row_of(example, FOUR, task, found)
    assert row["valid"]
    assert row["parses"]
    assert {a["text"].replace("\ufffd", ""): a["correct"] for a in row["answers"]} == {
        write_calls(FORMATS[style], [("f", {"a": a})]): a == 1 for a in (1, 2)
    }
    assert 0 < row["weighted_accuracy"] < 1
