"""The discrete filter in static shapes against the loop that waits, and the exact walk."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

import smc
from gcd.languages.text.regex import regex
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.lifting import lift
from smc.discrete import DiscreteFilter
from smc.draw import CounterDraw
from smc.prefixes import Reader
from smc.proposals import Batch
from smc.reading import alone
from smc.static import StaticFilter, StaticTransformer
from smc.static.filter_step import ending_tokens
from smc.testing import walk
from tests.smc.test_static import PROPOSALS, ToyForward, pgcd, stories  # noqa: F401
from tests.smc.test_walk import PROMPT, TOY, truth
from tests.smc.toys import CONSTRAINTS, VOCABULARY

OPTIONS = {
    "default": {},
    "plain": {"count_finished": False, "floor": 0.0},
    "share": {"share": 0.5, "floor": 0.0},
    "all": {"share": 0.25, "count_finished": False, "floor": 1e-2},
}
# Options and proposals know nothing of each other: two proposals meet all options, others two.
PAIRS = [
    (name, options)
    for i, name in enumerate(PROPOSALS)
    for j, options in enumerate(OPTIONS)
    if name in ("gcd", "pgcd") or (i + j) % 2 == 0
]


def both(lm, forward, prompts, automata, budgets, proposal, *, particles, ids, temperature=1.0,
         seed=0, **options):  # fmt: skip
    """The outcomes of both loops."""
    batch = Batch(AutomatonBatch(automata), torch.tensor(budgets))
    options = {"count_finished": True, "share": 0.0, "floor": 1e-6, **options}
    shared = {"examples": torch.tensor(ids), "num_particles": particles, "draw": CounterDraw(seed)}
    found = StaticFilter(
        forward, proposal, batch, temperature=temperature, **shared, **options
    ).run(prompts)
    reader = Reader(lm, proposal, batch, temperature=temperature, top_p=1.0, forced_runs=False)
    steps = DiscreteFilter(reader, **shared, **options).steps(prompts)
    return found, alone(steps, lm.vocabulary.size)


def assert_same(found, expected) -> None:
    assert torch.equal(found.example, expected.example)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.length, expected.length)
    assert torch.equal(found.enumerated, expected.enumerated)
    for name in ("log_weight", "log_evidence", "ess"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_the_same_answers_as_the_loop_that_waits(name: str, options: str) -> None:
    names = ("few_words", "a_star_b", "forced", "a_star_b")
    automata = [CONSTRAINTS[each]() for each in names]
    prompts, budgets = [[0], [1, 2], [2, 2, 1], [0, 0]], [4, 6, 3, 8]
    dropped = 0
    for seed, particles in enumerate((1, 2, 3, 7)):
        found, expected = both(
            TOY, ToyForward(TOY), prompts, automata, budgets, PROPOSALS[name](), seed=seed,
            particles=particles, ids=[3, 9, 0, 4], temperature=(1.0, 0.6)[seed % 2],
            **OPTIONS[options],
        )  # fmt: skip
        assert_same(found, expected)
        dropped += int((~found.enumerated).sum())
    assert dropped > 3


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("options", ["default", "share"])
@pytest.mark.parametrize("name", ["lcd", "pgcd"])
def test_the_walk_over_all_choices_sums_to_the_target(name: str, options: str) -> None:
    automaton, budget = CONSTRAINTS["a_star_b"](), 4
    mass: dict[bytes, float] = defaultdict(float)
    total, runs = 0.0, 0

    def run(draw, ids):
        batch = Batch(AutomatonBatch([automaton] * len(ids)), torch.full((len(ids),), budget))
        outcome = StaticFilter(
            ToyForward(TOY), PROPOSALS[name](), batch, examples=torch.tensor(ids), num_particles=2,
            draw=draw, **OPTIONS[options],
        ).run([PROMPT] * len(ids))  # fmt: skip
        answers = list(zip(outcome.example, outcome.tokens, outcome.log_weight.exp(), strict=True))
        return [
            [(tokens.tolist(), float(weight)) for b, tokens, weight in answers if b == i]
            for i in range(len(ids))
        ]

    for probability, found in walk(run):
        total, runs = total + probability, runs + 1
        for tokens, weight in found:
            text = VOCABULARY.decode([token for token in tokens if token >= 0])
            mass[text] += probability * weight
    assert total == pytest.approx(1, abs=1e-10)
    assert runs > 2
    assert dict(mass) == pytest.approx(truth(automaton, budget), abs=1e-10)


@pytest.mark.parametrize("name", ["lm", "lcd", "gcd"])
def test_a_real_model_gives_the_same_answers(stories: smc.TransformersLM, name: str) -> None:  # noqa: F811
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), stories.vocabulary)
    found, expected = both(
        stories, StaticTransformer(stories), [stories.encode("A story. "), stories.encode("The ")],
        [automaton, automaton], [12, 9], PROPOSALS[name](), particles=6, ids=[0, 1],
    )  # fmt: skip
    assert_same(found, expected)


def test_what_may_be_last() -> None:
    automata = [CONSTRAINTS[name]() for name in ("a_star_b", "forced")]
    found = ending_tokens(AutomatonBatch(automata))
    for row, automaton in zip(found.tolist(), automata, strict=True):
        last = automaton.num_states - 1
        expected = {
            v for v in range(VOCABULARY.size) if last in automaton.delta[:, automaton.class_of[v]]
        }
        assert {v for v in row if v >= 0} == expected


def test_refusals_name_what_was_wrong() -> None:
    batch = Batch(AutomatonBatch([CONSTRAINTS["a_star_b"]()]), torch.tensor([4]))
    shared = {"examples": torch.tensor([0]), "draw": CounterDraw(0)}

    class Own(smc.PGCD):
        def score(self, state, log_p):
            return super().score(state, log_p)

    with pytest.raises(ValueError, match="not Own"):
        StaticFilter(ToyForward(TOY), Own(pgcd().hmm), batch, num_particles=2, **shared)
    with pytest.raises(ValueError, match="not GreedyClose"):
        StaticFilter(ToyForward(TOY), smc.GreedyClose(), batch, num_particles=2, **shared)
    with pytest.raises(ValueError, match=r"are \d+ answers, more than 65536; give fewer particles"):
        StaticFilter(ToyForward(TOY), smc.GCD(), batch, num_particles=1 << 15, **shared)


def test_what_is_not_a_number_is_refused() -> None:
    class Broken(ToyForward):
        def step(self, tokens, source, step):
            return super().step(tokens, source, step) * torch.nan

    batch = Batch(AutomatonBatch([CONSTRAINTS["a_star_b"]()]), torch.tensor([4]))
    found = StaticFilter(
        Broken(TOY), smc.GCD(), batch, examples=torch.tensor([0]), draw=CounterDraw(0),
        num_particles=2,
    )  # fmt: skip
    with pytest.raises(FloatingPointError, match="not numbers"):
        found.run([[0]])


def test_what_the_model_says_after_no_prefix_does_not_matter() -> None:
    automata = [CONSTRAINTS[name]() for name in ("few_words", "a_star_b")]
    batch, idle = Batch(AutomatonBatch(automata), torch.tensor([4, 6])), 0

    def run() -> StaticFilter:
        found = StaticFilter(
            ToyForward(TOY), smc.GCD(), batch, examples=torch.arange(2), num_particles=5,
            draw=CounterDraw(0),
        )  # fmt: skip
        found.prepare([[0], [1]])
        return found

    expected, found = run(), run()
    expected.finish()
    for _ in range(found.most):
        slots = found.slots
        empty = slots.row[slots.log_weight.isneginf()]
        found.slots = slots._replace(logits=slots.logits.index_fill(0, empty, torch.nan))
        found.advance()
        idle += len(empty)
    assert idle > 10
    assert_same(found.outcome(), expected.outcome())
