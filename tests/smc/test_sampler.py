"""Results don't depend on batches; further properties of `sample`, and its errors."""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smc
import smc._forward.reader
from gcd import Automaton, AutomatonBatch, InfeasibleBudgetError, TokenAutomaton, Vocabulary, lift
from smc._interface.interface import Room, in_batches
from smc.testing import ToyLM
from tests.smc.calls import arguments, assert_same, sample_with
from tests.smc.cases import PROPOSALS
from tests.smc.toys import CONSTRAINTS, VOCABULARY, Hooked, choice, timeless

# All random choices are enumerated. Checking shapes in these repeated calls takes a third of the
# time; other tests of the sampler check them.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


TOY = ToyLM(VOCABULARY, seed=3, spread=1.5)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "state": {"ess_threshold": 0.8},
    "none": {"ess_threshold": 0.8, "strata": "none", "resampling": "multinomial"},
    "discrete": {"algorithm": "discrete"},
}


def examples() -> dict[str, Any]:
    """Nine examples with answers, budgets and prompts of different lengths."""
    kinds = [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "forced")]
    kinds.append(lift(choice("bb", "ab" * 5, "b" * 9), VOCABULARY))
    return {
        "prompts": [[(i * j) % 3 for j in range(1 + 5 * i % 4)] for i in range(9)],
        "constraint": [kinds[i % 4] for i in range(9)],
        "max_tokens": [(4 + i % 6, 3 + i % 2, 3, 10)[i % 4] for i in range(9)],
    }


def sample(lm: smc.LanguageModel, which: Sequence[int], **options: Any) -> list[smc.Posterior]:
    given = {name: [values[i] for i in which] for name, values in examples().items()}
    given["constraint"] = options.pop("constraint", given["constraint"])
    return sample_with(lm, **given, example_ids=list(which), **{"algorithm": "smc", **options})


@pytest.mark.parametrize(
    ("algorithm", "proposal", "forced_runs"),
    [
        ("state", "lcd", True),
        ("state", "pgcd", True),
        ("discrete", "pgcd", True),
        ("discrete", "gcd", False),
        ("none", "gcd", True),
    ],
)
def test_an_example_gives_the_same_alone(
    algorithm: str, proposal: str, forced_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "proposal": PROPOSALS[proposal](),
        "forced_runs": forced_runs,
        "particles": 3,
        "seed": 5,
        **ALGORITHMS[algorithm],
    }
    expected = [sample(TOY, [i], **options)[0] for i in range(9)]
    # Wide passes are split, so one pass of an example alone may become several in a batch.
    monkeypatch.setattr(smc._forward.reader, "MOST_READ", 3 * 6 * 9 if forced_runs else 1 << 26)
    rows: list[int] = []
    lm = Hooked(lambda runs, lengths: rows.append(len(runs)), seed=3)
    found = sample(lm, range(9), max_rows=13, **options)
    if proposal == "pgcd":  # a lookahead table differs in its last bits in another batch
        assert_same(found, expected)
    else:
        assert [*map(timeless, found)] == [*map(timeless, expected)]
    assert max(rows) <= 13


class Tabled(smc.GCD):
    """A proposal with tables of 40 bytes per example, and a memory limit."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way = self.most = 0
        self.found: dict[int, smc.Posterior] = {}

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        return 40

    def start(self, batch: smc.Batch) -> smc.AutomatonPosition:
        self.under_way += len(batch.budgets)
        self.most = max(self.most, self.under_way)
        return super().start(batch)

    def ended(self, found: dict[int, smc.Posterior]) -> None:
        self.under_way -= len(found)
        self.found.update(found)


@pytest.mark.parametrize(("max_bytes", "most"), [(100, 2), (0, 1)])
def test_tables_under_way_are_bounded(max_bytes: int, most: int) -> None:
    """Limits on lookahead and automata memory affect batches like the limit on rows."""
    tabled = Tabled(max_bytes)
    sample(
        TOY, range(9), proposal=tabled, particles=4, finished=tabled.ended, max_rows=1000,
        # Equal automata with equal budgets share a table, so all of these differ.
        constraint=[replace(automaton) for automaton in examples()["constraint"]],
    )  # fmt: skip
    assert (tabled.under_way, tabled.most) == (0, most)
    assert sorted(tabled.found) == list(range(9))
    started = time.perf_counter()
    expected = sample(TOY, range(9), proposal=smc.GCD(), particles=4)
    assert 0 < sum(p.diagnostics.seconds for p in expected) <= time.perf_counter() - started
    assert [timeless(tabled.found[i]) for i in range(9)] == [timeless(p) for p in expected]


def test_automata_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    automata = [replace(automaton) for automaton in examples()["constraint"]]
    most = 3 * max(8 * automaton.delta.size for automaton in automata) // 2
    monkeypatch.setattr(smc._interface.interface, "MOST_AUTOMATA", most)
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def observe(names: Sequence[int]) -> None:
        under_way.update(names)
        sizes[len(sizes)] = sum(8 * automata[name].delta.size for name in under_way)

    def finished(found: dict[int, smc.Posterior]) -> None:
        under_way.difference_update(found)

    sample(TOY, range(9), proposal=smc.GCD(), particles=4, constraint=automata,
           observe=observe, finished=finished)  # fmt: skip
    assert most // 2 < max(sizes.values()) <= most
    assert len(sizes) > 2


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 9))
def test_batches_keep_the_order_and_are_full(weights: list[int], particles: int) -> None:
    room = Room(rows=20, automata=100, lookahead=math.inf)

    def needs(which: Sequence[int]) -> Room:
        return Room(particles * len(which), sum(weights[i] for i in which), 0)

    batches = in_batches(range(len(weights)), needs, room)
    assert [i for batch in batches for i in batch] == list(range(len(weights)))
    for batch in batches:
        assert len(batch) == 1 or room.holds(needs(batch))
    for batch, after in itertools.pairwise(batches):
        assert not room.holds(needs([*batch, after[0]]))


# -- properties of `sample` ------------------------------------------------------------------------


MASKS = [smc.LM(), smc.LCD(), smc.GCD()]


def sample_from(
    prompts: Sequence[Any],
    automata: TokenAutomaton | list[TokenAutomaton],
    lm: smc.LanguageModel = TOY,
    **options: Any,
) -> list[smc.Posterior]:
    defaults = {"max_tokens": 6, "particles": 4, "proposal": smc.GCD(), "algorithm": "smc"}
    # As users call it, without the type checks of the tests.
    return inspect.unwrap(smc.sample)(lm, prompts, automata, **arguments({**defaults, **options}))


words = st.lists(st.text("ab", min_size=0, max_size=5), min_size=1, max_size=4)


@settings(max_examples=40)
@given(words, st.booleans(), st.integers(0, 3), st.integers(0, 1000))
def test_at_any_feasible_budget_every_gcd_particle_finishes(
    texts: list[str], starred: bool, slack: int, seed: int
) -> None:
    language = choice(*texts)
    language = language.star() + Automaton.literal("b") if starred else language
    automaton = lift(language, VOCABULARY)
    budget = automaton.fewest_tokens + slack
    (found,) = sample_from([[0]], automaton, max_tokens=budget, seed=seed)
    assert (found.complete, found.valid, found.dead) == (True, True, False)
    assert found.diagnostics.share_finished == 1
    assert all(len(each.ids) <= budget for each in found.particles)
    assert all(language.accepts(answer) for answer in found.answers)
    assert sum(found.probabilities) == pytest.approx(1)


def test_lcd_dies_where_gcd_finishes() -> None:
    automaton = CONSTRAINTS["a_star_b"]()
    prompts = [[0, i % 3, i % 2] for i in range(40)]
    lcd = sample_from(prompts, automaton, max_tokens=2, particles=1, proposal=smc.LCD())
    gcd = sample_from(prompts, automaton, max_tokens=2, particles=1)
    assert not any(p.dead for p in gcd)
    dead = [p for p in lcd if p.dead]
    assert 0 < len(dead) < 40
    for p in dead:
        assert (p.texts, p.probabilities, p.ess, p.log_evidence) == ((), (), 0, -math.inf)
        assert (p.complete, p.valid, p.majority) == (False, False, None)
        assert p.expectation(lambda text: 1.0) == p.diagnostics.share_finished == 0
        assert len(p.particles[0].ids) == 2
        with pytest.raises(ValueError, match="dead"):
            p.sample(1)


def test_the_empty_answer_of_a_language_without_eos() -> None:
    """It is certain: nothing is drawn or computed except the prompt, also in a batch."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b"], [])
    empty, word = (lift(choice(text), vocabulary, eos="accept") for text in ("", "ab"))
    lm, prompts = ToyLM(vocabulary, seed=5), [[0], [1], [1, 0]]
    for proposal in MASKS:
        options: dict[str, Any] = {"proposal": proposal, "particles": 60}
        found = sample_from(prompts, [empty, word, empty], lm, max_tokens=2, **options)
        (alone,) = sample_from([[0]], empty, lm, max_tokens=0, **options)
        for p in (found[0], found[2], alone):
            assert (p.texts, p.probabilities, p.log_evidence) == (("",), (1.0,), 0)
            assert (p.complete, p.valid, p.diagnostics.generated) == (True, True, 0)
        (word_alone,) = sample_from([[1]], word, lm, max_tokens=2, example_ids=[1], **options)
        assert timeless(found[1]) == timeless(word_alone)


FORCED = CONSTRAINTS["forced"]()


def test_integers_may_be_those_of_numpy() -> None:
    options = {"particles": np.int64(3), "seed": np.int32(7), "max_rows": np.int64(9)}
    (expected,) = sample_from([[0]], FORCED, max_tokens=4, particles=3, seed=7)
    for budget in (np.int64(4), np.array([4]), [np.int32(4)]):
        (found,) = sample_from(
            [[0]], FORCED, max_tokens=budget, example_ids=np.arange(1), **options
        )
        assert timeless(found) == timeless(expected)


class Untouchable(ToyLM):
    """A model that fails on any forward pass."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Any:
        raise AssertionError("refusals come before any model work")


def test_what_is_too_long_is_refused_with_its_numbers() -> None:
    lm = Untouchable(VOCABULARY, context=10)
    for proposal in MASKS:
        given = {"max_tokens": [3, 2], "example_ids": [8, 9], "proposal": proposal}
        with pytest.raises(InfeasibleBudgetError, match=r"example 9: .*least 3 .*is 2") as e:
            sample_from([[0], [0]], FORCED, lm, **given)
        assert (e.value.needed, e.value.budget) == (3, 2)
    with pytest.raises(
        smc.PromptTooLongError, match=r"example 1 .* of 10 tokens, got 5 tokens and a budget of 6"
    ) as e:
        sample_from([[0] * 4, [0] * 5], FORCED, lm, max_tokens=6)
    assert (e.value.example, e.value.length, e.value.budget, e.value.context) == (1, 5, 6, 10)
    with pytest.raises(ValueError, match=r"at least one token in the prompt, got none"):
        sample_from([[]], FORCED, lm)


def test_greedy_closing_begins_when_the_budget_is_just_enough() -> None:
    automaton, proposal = CONSTRAINTS["a_star_b"](), smc.GreedyClose()
    start = proposal.start(smc.Batch(AutomatonBatch([automaton]), torch.tensor([6])))
    closes = 0
    for state in range(automaton.num_states - 1):
        needed = int(automaton.steps_to_accept[state])
        for left in range(1, 7):
            place = start._replace(states=torch.tensor([state]), remaining=torch.tensor([left]))
            guide = proposal.guide(place, torch.zeros(1, automaton.vocabulary.size))
            expected = automaton.allowed(state, None if needed < left else left).tolist()
            assert guide.log_g[0].exp().nonzero().flatten().tolist() == expected
            closes += needed == left and len(expected) < automaton.allowed(state).size
    assert closes > 0


def test_the_algorithm_is_the_one_that_is_named_or_given() -> None:
    lm = ToyLM(VOCABULARY, seed=1, spread=1.5)

    def found(algorithm: Any, particles: int) -> smc.Posterior:
        options = {"particles": particles, "algorithm": algorithm}
        return sample_from([[0]], CONSTRAINTS["a_star_b"](), lm, **options)[0]

    for particles, name in ((2, "discrete"), (1, "smc")):
        auto, expected = found("auto", particles), found(name, particles)
        assert auto.algorithm == expected.algorithm == name
        assert timeless(auto) == timeless(expected)
    for name, algorithm in (
        ("smc", smc.SMC(ess_threshold=1.0, strata="none")), ("discrete", smc.Discrete(kept=1)),
    ):  # fmt: skip
        own, usual = found(algorithm, 3), found(name, 3)
        assert own.algorithm == usual.algorithm == name
        assert timeless(own) != timeless(usual)
    (exact,) = smc.distribution(TOY, [[0]], CONSTRAINTS["few_words"]())
    assert exact.algorithm == "enumeration"
