"""Searches against enumeration, on small problems of docs/convergence.md and a real model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.search import NEAR, best_by_enumeration, searches
from experiments.config import ModelConfig
from experiments.exact.problems import prepare, read_problems
from experiments.models import load_model
from hmm import HMM

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("unchecked_annotations")
def test_a_proved_answer_is_the_best_of_all() -> None:
    lm, tokenizer = load_model(ModelConfig(path=str(ROOT / "tests" / "models" / "stories260K")))
    problems = read_problems(ROOT / "data" / "convergence" / "check_stories.json")[:2]
    problems += read_problems(ROOT / "data" / "convergence" / "new_stories.json")[-1:]
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(4, lm.vocabulary.size, generator=generator)  # no lookahead can make it wrong
    proved = 0
    for problem in problems:
        prepared = prepare(problem, lm, tokenizer, 1000)
        best = best_by_enumeration(prepared)
        for name, found in searches(prepared, hmm, 1000):
            (answer,) = found.answers
            assert prepared.constraint.accepts(answer.ids[:-1])
            assert len(answer.ids) <= problem.budget
            assert answer.log_p < best + NEAR
            if found.proved or name == "best first":
                assert math.isclose(answer.log_p, best, abs_tol=NEAR), (problem.name, name)
            proved += found.proved
    assert proved > len(problems)  # beams, too, prove some of theirs
