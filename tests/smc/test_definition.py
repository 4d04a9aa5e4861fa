"""Both algorithms against their definition: texts, weights and diagnostics, number by number.

Sums over all walks test that the weights are unbiased. They don't test which particles compete, the
threshold, or the reported diagnostics: a sampler that resamples at the wrong time is also unbiased.
So for the same uniform numbers, the whole result of `smc.sample` must equal that of
`tests.smc.definition`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import smc
from smc import CounterDraw, Observation
from smc._inference import answers as pool
from smc._inference.particles import Watch
from smc._transformers.generation import restrict
from smc._vocabulary.draw import Breaks, Keys, Purpose
from tests.smc.calls import sample_with
from tests.smc.definition import Example, answers_of, effective, log_sum, particles_of
from tests.smc.matrix import covering
from tests.smc.rules import BUDGETS, NAMES, PROMPTS, RULES, TOY, Rule, automata

# As users call it: checking shapes in these repeated calls takes long.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


def sampled(rule: Rule, *, top_p: float = 1.0, **options: Any) -> list[smc.Posterior]:
    proposal = rule.proposal if top_p == 1 else restrict(rule.proposal, top_p)
    return sample_with(
        TOY, PROMPTS, automata(), max_tokens=BUDGETS, example_ids=NAMES, proposal=proposal,
        **{"algorithm": "smc", **options},
    )  # fmt: skip


class Seen:
    """An observer that records weights, ancestors, and answers with their weights as they end."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.weights: list[torch.Tensor] = []
        self.ancestors: list[torch.Tensor] = []
        self.ended: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)

    def __call__(self, names: Sequence[int]) -> Watch:
        self.names += names
        return self.note

    def note(self, step: Observation) -> None:
        self.weights += step.log_weight, step.after.log_weight
        self.ancestors.append(step.after.ancestor)
        part = step.ended
        for q in range(0 if part is None else len(part.example)):
            ids, a = tuple(part.tokens[q, : part.length[q]].tolist()), int(part.ancestor[q])
            mine = self.ended[self.names[int(part.example[q])]]
            assert ids not in mine
            mine[ids] = float(part.log_weight[q])
            # The ancestor is the beginning of the text, without the step's tokens.
            before = tuple(step.tokens[a, : step.length[a]].tolist())
            assert before == ids[: len(before)] != ids


TARGETS = {"forced_runs": [True, False], "temperature": [1.0, 0.7], "top_p": [1.0, 0.8]}
OF_PARTICLES = covering(
    rule=[*RULES], strata=["none", "state"], ess_threshold=[0.5, 0.8, 1.0], **TARGETS
)
OF_ANSWERS = covering(
    rule=[name for name in RULES if name != "no_potential"], count_finished=[True, False],
    floor=[0.0, 1e-3, 0.1], kept=[0, 2], **TARGETS,
)  # fmt: skip


def rows_of(rows: list[dict[str, Any]], rule: str) -> Iterator[tuple[int, dict[str, Any], Seen]]:
    """Number, options and observer of the runs of a rule."""
    for number, row in enumerate(rows):
        if row["rule"] == rule:
            yield number, {name: value for name, value in row.items() if name != "rule"}, Seen()


@pytest.mark.parametrize("rule", RULES)
def test_particles_are_those_of_the_definition(rule: str) -> None:
    resampled = finished = 0
    for seed, options, seen in rows_of(OF_PARTICLES, rule):
        found = sampled(RULES[rule], particles=6, seed=seed, observe=seen, **options)
        strata, threshold = options.pop("strata"), options.pop("ess_threshold")
        for place, posterior in enumerate(found):
            example = Example(RULES[rule], place, seed=seed, **options)
            expected = particles_of(example, 6, threshold, strata)
            example.check(posterior)
            assert [each.ids for each in posterior.particles] == [x.ids for x in expected]
            assert [each.finished for each in posterior.particles] == [x.finished for x in expected]
            log_w = [x.log_w for x in expected]
            assert [each.log_weight for each in posterior.particles] == pytest.approx(log_w)
            assert posterior.log_evidence == pytest.approx(log_sum(log_w) - math.log(6))
            assert len(seen.weights) >= len(example.weights)
            number = seen.names.index(NAMES[place])
            for weights, step in zip(example.weights, seen.weights, strict=False):
                assert step.view(-1, 6)[number].tolist() == pytest.approx(weights)
            for ancestors, step in zip(example.ancestors, seen.ancestors, strict=False):
                assert (step.view(-1, 6)[number] - 6 * number).tolist() == ancestors
            assert posterior.ess == pytest.approx(effective(log_w))
            resampled += sum(example.resampled)
            finished += sum(x.finished for x in expected)
    assert resampled
    assert finished


@pytest.mark.parametrize("rule", [name for name in RULES if name != "no_potential"])
def test_answers_are_those_of_the_definition(rule: str) -> None:
    chosen = 0
    for seed, options, seen in rows_of(OF_ANSWERS, rule):
        found = sampled(
            RULES[rule], particles=3, seed=seed, algorithm="discrete", observe=seen, **options
        )
        mine = {name: options.pop(name) for name in ("count_finished", "floor", "kept")}
        for place, posterior in enumerate(found):
            example = Example(RULES[rule], place, seed=seed, **options)
            expected = answers_of(example, 3, **mine)
            example.check(posterior)
            weights = {each.ids: each.log_weight for each in posterior.particles}
            assert weights == pytest.approx(expected)
            assert seen.ended[NAMES[place]] == pytest.approx(expected)
            assert all(each.finished for each in posterior.particles)
            assert posterior.log_evidence == pytest.approx(log_sum(list(expected.values())))
            assert posterior.ess == pytest.approx(effective(list(expected.values())))
            # With top_p, tokens that are never drawn may be missing.
            whole = not any(example.resampled)
            assert posterior.enumerated == whole or (whole and options["top_p"] < 1)
            chosen += sum(example.resampled)
    assert chosen


@pytest.mark.parametrize(
    "options",
    [
        {"ess_threshold": 1.0},
        {"ess_threshold": 1.0, "strata": "none", "resampling": "multinomial"},
        {"algorithm": "discrete"},
        {"algorithm": "discrete", "floor": 0.0, "count_finished": False},
    ],
    ids=str,
)
def test_no_random_number_is_used_twice(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enumeration follows the order of choices and can't detect reuse of numbers."""
    monkeypatch.setattr(pool, "MOST_ANSWERS", 2)
    used: Counter[tuple[int, int, int, Purpose]] = Counter()

    def draw(keys: Keys, breaks: Breaks) -> torch.Tensor:
        # A number without effect, of an ended particle, may repeat.
        points = breaks()
        decides = ((points > 0) & (points < 1)).any(dim=-1)
        step = torch.as_tensor(keys.step).expand_as(keys.example)
        named = (keys.example, keys.particle, step)
        names = zip(*(part[decides].tolist() for part in named), strict=True)
        used.update((*name, keys.purpose) for name in names)
        return CounterDraw(1)(keys, breaks)

    for rule in ("gcd", "wave"):
        used.clear()
        sampled(RULES[rule], particles=5, draw=draw, **options)
        assert {example for example, *_ in used} <= set(NAMES)
        assert len({purpose for *_, purpose in used}) >= 2
        assert set(used.values()) == {1}
