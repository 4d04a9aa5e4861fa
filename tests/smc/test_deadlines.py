"""Answers that are closed early are valid, in time, and weighted exactly; asynchronous calls."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import torch

import smc
import smc._inference.deadlines
from gcd import TokenAutomaton, lift, regex
from smc.testing import target
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, Hooked, timeless
from tests.smc.walks import (
    EVERY_STEP,
    PROMPT,
    PROPOSALS,
    TOY,
    Ids,
    Outcomes,
    holds,
    masses,
    outcomes,
    sums,
)


class After:
    """A cancel token that is set after a number of queries, one per step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def still_possible(automaton: TokenAutomaton, budget: int, steps: int) -> dict[bytes, float]:
    """The target restricted to answers that take a shortest completion after some tokens."""
    mass: dict[bytes, float] = defaultdict(float)
    for ids, p in target(TOY, PROMPT, automaton, budget).items():
        state = automaton.run(ids[:steps])
        if len(ids) <= steps or len(ids) - steps == automaton.steps_to_accept[state]:
            mass[automaton.vocabulary.decode(ids)] += p
    return dict(mass)


RESAMPLED = {"particles": 2, **EVERY_STEP}
DISCRETE = {"particles": 1, "algorithm": "discrete"}
STATIC = {"execution": "static"}


@pytest.mark.parametrize(
    ("name", "proposal", "budget", "options", "steps"),
    [
        ("few_words", "gcd", 3, RESAMPLED, 0),
        ("few_words", "gcd", 3, RESAMPLED, 1),
        ("few_words", "gcd", 3, {**RESAMPLED, **STATIC}, 2),
        ("few_words", "tilted", 3, RESAMPLED, 1),
        ("few_words", "tilted_no_potential", 3, RESAMPLED, 2),
        ("few_words", "lcd", 3, RESAMPLED, 1),
        ("a_star_b", "lm", 3, {"particles": 1}, 0),
        ("a_star_b", "lm", 3, {"particles": 1}, 2),
        ("a_star_b", "gcd", 4, DISCRETE, 2),
        ("a_star_b", "gcd", 4, {**DISCRETE, "particles": 2}, 1),
        ("few_words", "tilted", 4, DISCRETE, 1),
        ("few_words", "tilted", 4, DISCRETE, 2),
        ("few_words", "gcd", 4, {**DISCRETE, **STATIC}, 0),
        ("few_words", "gcd", 4, {**DISCRETE, **STATIC}, 2),
    ],
)
def test_weights_are_those_of_the_answers_that_are_still_possible(
    name: str, proposal: str, budget: int, options: dict[str, Any], steps: int
) -> None:
    automaton = CONSTRAINTS[name]()
    truth = masses(TOY, PROMPT, automaton, budget)
    every = {"proposal": PROPOSALS[proposal](), "forced_runs": False, **options}

    def look(found: Outcomes) -> Outcomes:
        for probability, posterior in found:
            assert posterior.complete or proposal in ("lm", "lcd")
            assert holds(posterior, truth, VOCABULARY)
            assert posterior.stopped in (None, "cancelled")
            assert posterior.exact is (posterior.stopped is None)
            assert not (posterior.enumerated and posterior.stopped)
            yield probability, posterior

    found = sums(look(outcomes(automaton, budget, cancel=partial(After, steps), **every)))[0]
    assert found == pytest.approx(still_possible(automaton, budget, steps), abs=1e-10)


def test_the_law_rejects_a_wrong_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing from one distribution and weighing by another breaks the law."""
    automaton, every = CONSTRAINTS["few_words"](), {"proposal": smc.LCD(), "forced_runs": False}

    def weigh(self: Any, position: smc.AutomatonPosition) -> torch.Tensor:
        return position.mask.class_mask(position.states, position.remaining)

    monkeypatch.setattr("smc._inference.closing.ShortestWay.alive", weigh)
    found = sums(outcomes(automaton, 3, cancel=lambda: After(1), particles=1, **every))[0]
    assert found != pytest.approx(still_possible(automaton, 3, 1), abs=1e-3)


def test_a_limit_that_depends_on_what_was_drawn_loses_answers_and_adds_none() -> None:
    automaton, read = CONSTRAINTS["a_star_b"](), set[int]()
    lm = Hooked(lambda runs, lengths: read.update(runs.flatten().tolist()))

    class OnceRead:
        def __init__(self) -> None:
            read.clear()

        def is_set(self) -> bool:
            return 0 in read

    every = {"proposal": smc.GCD(), "forced_runs": False, "particles": 2, "ess_threshold": 0.0}
    found = sums(outcomes(automaton, 4, cancel=OnceRead, lm=lm, chunk=1, **every))[0]
    truth = still_possible(automaton, 4, 4)
    assert all(mass <= truth[answer] + 1e-12 for answer, mass in found.items())
    assert found[b"b"] == pytest.approx(truth[b"b"], abs=1e-12)  # it had ended before
    assert 0 < sum(found.values()) < sum(truth.values()) - 1e-6


def test_forced_tokens_are_read_along() -> None:
    """A shortest completion also takes one forward pass per choice."""
    automaton = lift(regex("a*bababbab"), VOCABULARY)
    every = {"max_tokens": 20, "particles": 3, "proposal": smc.GCD(), "cancel": After(2)}
    (found,) = sample_with(TOY, [PROMPT], automaton, **{"algorithm": "smc", **every})
    passes, most = found.diagnostics.lm_calls, max(len(each.ids) for each in found.particles)
    assert found.valid
    assert passes < most
    needed = automaton.steps_to_accept[automaton.initial]
    assert all(len(each.ids) <= 3 + needed for each in found.particles)


# -- seconds -------------------------------------------------------------------------------------


class Clock:
    """A clock that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(smc._inference.deadlines, "_clock", lambda: self.now)

    def tick(self) -> None:
        self.now += 1.0


class SlowLM(Hooked):
    """A model whose forward passes take a second each on this clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda runs, lengths: clock.tick(), seed=1, spread=0.5)
        self.clock = clock

    def prefill(self, prompts: Any) -> Any:
        self.clock.tick()
        return super().prefill(prompts)

    def log_p(self, tokens: Ids) -> torch.Tensor:
        """Return a low probability of the end of the text."""
        log_p = super().log_p(tokens).clone()
        log_p[list(self.vocabulary.eos_ids)] -= 12.0
        return log_p.log_softmax(dim=0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


LONG = lift(regex("[ab]{5,60}(aba|bab)"), VOCABULARY)  # the shortest answer has 5 tokens and EOS


def timed(clock: Clock, deadline: float, count: int = 1, **options: Any) -> list[smc.Posterior]:
    """Sample from the slow model; all answers are valid and closed early."""
    clock.now = 100.0
    found = sample_with(
        SlowLM(clock), [PROMPT] * count, LONG, max_tokens=64, particles=4, proposal=smc.GCD(),
        deadline=deadline, **{"algorithm": "smc", **options},
    )  # fmt: skip
    for each in found:
        assert each.valid
        assert each.stopped == "deadline"
        assert "closed early (deadline)" in repr(each)
    return found


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_a_slow_model_finishes_in_time(clock: Clock, algorithm: str) -> None:
    (found,) = timed(clock, 20, algorithm=algorithm, forced_runs=False)
    assert found.diagnostics.overrun == 0
    assert 114 <= clock.now <= 120  # the time was used
    assert max(len(each.ids) for each in found.particles) >= 14


def test_a_deadline_below_the_shortest_answer_is_exceeded_and_reported(clock: Clock) -> None:
    for deadline in (0, 2.5):
        (found,) = timed(clock, deadline)
        assert found.diagnostics.overrun == pytest.approx(clock.now - 100 - deadline)
        assert 0 < found.diagnostics.overrun < 9
        lengths = {len(each.ids) for each in found.particles}
        assert lengths == {LONG.fewest_tokens} or deadline > 0


def test_batches_share_the_time(clock: Clock) -> None:
    """Later batches keep their share of the time."""
    found = timed(clock, 60, count=3, max_rows=4, forced_runs=False)
    assert clock.now <= 160
    for each in found:
        assert max(len(sample.ids) for sample in each.particles) >= 12


def test_ample_time_and_asynchronous_calls_change_nothing() -> None:
    given = (TOY, [PROMPT] * 2, CONSTRAINTS["few_words"]())
    every: dict[str, Any] = {"max_tokens": 6, "particles": 5, "proposal": smc.GCD(), "seed": 3}
    plain = [*map(timeless, smc.sample(*given, **every))]
    for deadline in (1e6, math.inf):
        found = smc.sample(*given, **every, deadline=deadline, cancel=threading.Event())
        assert [*map(timeless, found)] == plain
    assert [*map(timeless, asyncio.run(smc.sample_async(*given, **every)))] == plain
    with pytest.raises(ValueError, match="deadline"):
        asyncio.run(smc.sample_async(*given, **every, deadline=-1))


def test_examples_that_had_ended_were_not_stopped() -> None:
    found = smc.sample(
        TOY, [PROMPT, PROMPT], [CONSTRAINTS["forced"](), LONG], max_tokens=[3, 64], particles=2,
        proposal=smc.GCD(), cancel=After(3), algorithm="smc",
    )  # fmt: skip
    assert [each.stopped for each in found] == [None, "cancelled"]
    assert [each.valid for each in found] == [True, True]


def test_answers_that_were_closed_early_estimate_nothing() -> None:
    (found,) = smc.sample(
        TOY, [PROMPT], CONSTRAINTS["few_words"](), max_tokens=5, particles=16, proposal=smc.GCD(),
        cancel=After(0),
    )  # fmt: skip
    assert (found.stopped, found.reliability.label) == ("cancelled", "unknown")


def test_an_abandoned_call_raises() -> None:
    abandon = threading.Event()
    abandon.set()
    with pytest.raises(smc.AbandonedError):
        sample_with(
            TOY, [PROMPT], CONSTRAINTS["few_words"](), max_tokens=4, particles=2,
            proposal=smc.GCD(), abandon=abandon,
        )  # fmt: skip


def test_the_loop_goes_on_and_a_cancelled_task_ends_at_the_next_step() -> None:
    gate, entered, passes = threading.Event(), threading.Event(), []

    def wait(runs: torch.Tensor, lengths: torch.Tensor) -> None:
        """Wait for permission to compute a forward pass."""
        passes.append(runs)
        entered.set()
        assert gate.wait(600)

    lm, options = Hooked(wait, seed=4), {"max_tokens": 64, "particles": 2, "algorithm": "smc"}

    async def main() -> None:
        call = smc.sample_async(lm, [[1]], LONG, proposal=smc.GCD(), **options)
        task = asyncio.create_task(call)
        while not entered.is_set():  # the loop is free during a forward pass
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(passes) == 1
