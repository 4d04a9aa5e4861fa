"""The discrete particle filter: weight times probability, summed over all outcomes of its choices,
equals the target; further properties.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import Automaton, AutomatonBatch, TokenAutomaton, Vocabulary, lift
from hmm import HMM, Dense
from smc._inference import answers
from smc._inference import discrete_filter as discrete
from smc._inference.algorithms import Discrete
from smc._inference.selection import Selection
from smc._vocabulary import passes
from smc._vocabulary.factors import selection_scores
from smc.testing import ToyLM, target
from tests.smc.calls import arguments
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, timeless
from tests.smc.walks import (
    PROMPT,
    TOY,
    HMMAsLM,
    Tilted,
    assert_exact,
    never,
    random_hmm,
    truth,
    walk_sums,
)

# All random choices are enumerated. Checking shapes in these repeated calls takes a third of the
# time; other tests of the sampler check them.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


def many_words() -> TokenAutomaton:
    """Twenty words of up to five letters, with several spellings each."""
    middles = itertools.product("ab", ("", "a", "b"), ("", "a", "ba"))
    return lift(choice(*{"".join(parts) for parts in middles}), VOCABULARY)


PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "tilted": lambda: Tilted(potential=True),
    "conditional": lambda: smc.PGCD(random_hmm(seed=7), exact_top_k=1),
    "in_time": lambda: smc.PGCD(random_hmm(seed=7), exact_top_k=0, lookahead="in_time"),
    "exact": lambda: smc.PGCD(random_hmm(seed=7), exact_top_k=None, defense=0.0),
    "joint": lambda: smc.PGCD(random_hmm(seed=7), exact_top_k=2, lookahead="joint"),
    "wrong": lambda: smc.PGCD(never([1]), exact_top_k=1, defense=0.0),
    "hopeless": lambda: smc.PGCD(never([0, 1, 2, 3, 5]), exact_top_k=1, defense=0.2),
}
PLAIN = {"count_finished": False, "floor": 0.0}
OPTIONS: list[dict[str, Any]] = [
    {},
    PLAIN,
    {"floor": 0.0},
    {**PLAIN, "floor": 0.2},
    {"floor": 0.1},
]
KEPT: list[dict[str, Any]] = [
    {"kept": 1},
    {**PLAIN, "kept": 1},
    {"kept": 2, "floor": 0.1},
]
# Options and proposals are independent: two proposals meet all options, the others two.
PAIRS = [
    (proposal, options)
    for i, proposal in enumerate(PROPOSALS)
    for j, options in enumerate(OPTIONS)
    if proposal in ("gcd", "conditional") or (i + j) % 4 == 0
]


def sample(prompts: Any, automata: Any, lm: Any = TOY, **options: Any) -> list[smc.Posterior]:
    defaults = {"max_tokens": 6, "particles": 4, "proposal": smc.GCD(), "algorithm": "discrete"}
    return inspect.unwrap(smc.sample)(lm, prompts, automata, **arguments({**defaults, **options}))


# -- unbiased ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("proposal", "options"), PAIRS, ids=str)
def test_weights_sum_to_the_target(proposal: str, options: dict) -> None:
    """A step has one uniform number: its outcomes are intervals, which are enumerated."""
    plain = {"algorithm": "discrete"}
    made = PROPOSALS[proposal]()
    for particles, constraint, budget in ((1, many_words, 3), (2, many_words, 4)):
        if proposal == "lm" and particles == 2:
            constraint, budget = CONSTRAINTS["few_words"], 3  # everything competes: many walks
        assert_exact(constraint(), budget, particles=particles, proposal=made, **plain, **options)


@pytest.mark.parametrize("options", KEPT, ids=str)
@pytest.mark.parametrize("proposal", ["lcd", "gcd", "tilted", "conditional", "exact"])
def test_so_they_do_with_prefixes_kept_with_certainty(proposal: str, options: dict) -> None:
    """The prefixes that the model finds most probable are kept, and the others drawn."""
    given = {"particles": options["kept"] + 1, "algorithm": "discrete", **options}
    assert_exact(many_words(), 4, proposal=PROPOSALS[proposal](), **given)


def test_without_a_random_slot_it_is_a_beam_search() -> None:
    """The evidence is a lower bound, the probabilities are those of the model, the bounds hold."""
    for seed, beams, budget in itertools.product(range(3), (1, 2, 4), (3, 5)):
        lm = ToyLM(VOCABULARY, seed=seed)
        given = {"max_tokens": budget, "particles": beams, "kept": beams}
        (found,) = sample([PROMPT], many_words(), lm, **given)
        (other,) = sample([PROMPT], many_words(), lm, seed=7, **given)
        sequences = target(lm, PROMPT, many_words(), budget)
        assert timeless(found) == timeless(other)
        assert {s.ids: math.exp(s.log_weight) for s in found.particles} == pytest.approx(
            {s.ids: sequences[s.ids] for s in found.particles}
        )
        assert found.bounds is not None
        evidence = math.log(sum(sequences.values()))
        assert found.bounds.log_lower <= evidence <= found.bounds.log_upper
        assert found.enumerated == (len(found.particles) == len(sequences))
        assert found.reliability.label in ("unknown", "certified")


def test_a_single_beam_follows_the_lookahead() -> None:
    """With the language model's own HMM: to the token with most of the evidence."""
    hmm, constraint, budget = random_hmm(seed=6), lift(gcd.regex("[ab]{0,4}"), VOCABULARY), 5
    lm = HMMAsLM(VOCABULARY, hmm)
    everything = target(lm, PROMPT, constraint, budget)
    prefix, seen = (), set[tuple[int, ...]]()
    while True:
        mass: dict[tuple[int, ...], float] = defaultdict(float)
        for ids, p in everything.items():
            if ids[: len(prefix)] == prefix:
                mass[ids[: len(prefix) + 1]] += p
        ended = {ids for ids in mass if ids in everything}
        seen |= ended
        if mass.keys() == ended:
            break
        prefix = max(mass.keys() - ended, key=mass.__getitem__)
    given = {"max_tokens": budget, "particles": 1, "kept": 1, "count_finished": False}
    exact = smc.PGCD(hmm, exact_top_k=None, defense=0.0)
    (found,) = sample([PROMPT], constraint, lm, proposal=exact, **given)
    ids = {each.ids for each in found.particles}
    most = max(map(len, ids))  # far less probable prefixes than the answers found aren't kept
    assert ids == {each for each in seen if len(each) <= most}
    (plain,) = sample([PROMPT], constraint, lm, proposal=smc.GCD(), **given)
    assert not {each.ids for each in plain.particles} <= seen


@pytest.mark.parametrize("proposal", ["gcd", "tilted", "conditional", "in_time"])
def test_so_do_those_of_compiled_loops(proposal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force compiled loops, for which these vocabularies are too small by default."""
    monkeypatch.setattr(passes, "NARROW", 0)
    given = {"particles": 2, "proposal": PROPOSALS[proposal](), "algorithm": "discrete"}
    for options in (PLAIN, {"floor": 0.1}):
        assert_exact(many_words(), 4, **given, **options)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize(("particles", "temperature"), [(1, 0.5), (2, 1.0), (3, 0.5), (5, 1.0)])
def test_constraints_budgets_and_temperatures(
    name: str, particles: int, temperature: float
) -> None:
    for budget in (3, 5):
        assert_exact(
            CONSTRAINTS[name](),
            budget,
            temperature,
            particles=particles,
            proposal=smc.GCD(),
            algorithm="discrete",
        )


@pytest.mark.parametrize("texts", [("",), ("ab", "b"), ("ab", "bb", "bab", "aab")])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_language_that_ends_by_itself(texts: tuple[str, ...], options: dict) -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    automaton = lift(choice(*texts), vocabulary, eos="accept")
    given = {"lm": ToyLM(vocabulary, seed=2), "algorithm": "discrete", **options}
    for proposal, budget in ((smc.GCD(), 3), (smc.LM(), 2)):
        assert_exact(automaton, budget, proposal=proposal, **given)


def test_a_pool_that_is_too_large_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_ANSWERS", 2)
    for options in OPTIONS[:3]:
        given = {"particles": 2, "proposal": smc.GCD(), "algorithm": "discrete", **options}
        assert_exact(CONSTRAINTS["few_words"](), 3, **given)


def test_negative_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights without the division by pi, and pi of another threshold, are detected."""
    whole = discrete.select
    expected = truth(many_words(), 4)

    def undivided(*given: Any, **options: Any) -> Selection:
        found = whole(*given, **options)
        return found._replace(log_pi=torch.zeros_like(found.log_pi))

    def rounded(*given: Any, **options: Any) -> Selection:
        found = whole(*given, **options)
        return found._replace(log_pi=found.log_pi * 1.05)

    for wrong in (undivided, rounded):
        monkeypatch.setattr(discrete, "select", wrong)
        mass, *_ = walk_sums(many_words(), 4, proposal=smc.GCD(), algorithm="discrete")
        assert max(abs(mass.get(x, 0.0) - p) for x, p in expected.items()) > 1e-3


# -- exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposal", [p for p in PROPOSALS if p != "lm"])
def test_with_room_for_every_prefix_it_enumerates(proposal: str) -> None:
    for budget in (3, 6):
        automaton = many_words()
        (found,) = sample([PROMPT], automaton, max_tokens=budget, particles=200,
                          proposal=PROPOSALS[proposal](), **PLAIN)  # fmt: skip
        sequences = target(TOY, PROMPT, automaton, budget)
        assert found.enumerated
        assert found.log_evidence == pytest.approx(math.log(sum(sequences.values())), abs=1e-12)
        weights = {each.ids: math.exp(each.log_weight) for each in found.particles}
        assert weights == pytest.approx(sequences, rel=1e-12)
        assert found.complete
        assert found.valid


def test_a_pool_that_was_pruned_is_no_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prefix was dropped, and the sum of the weights is unchanged."""
    monkeypatch.setattr(answers, "MOST_ANSWERS", 5)
    (found,) = sample([PROMPT], many_words(), max_tokens=6, particles=200, **PLAIN)
    assert not any(found.diagnostics.resampled)
    assert not found.enumerated
    assert len(found.particles) == 5
    evidence = sum(target(TOY, PROMPT, many_words(), 6).values())
    assert found.log_evidence == pytest.approx(math.log(evidence), abs=1e-12)


def test_with_too_little_room_nothing_counts_as_enumerated() -> None:
    (found,) = sample([PROMPT], many_words(), max_tokens=6, particles=2)
    assert not found.enumerated
    assert any(found.diagnostics.resampled)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 3))
def test_the_right_model_has_no_variance(seed: int, particles: int, slack: int) -> None:
    """With the language model's own lookahead, scores sum to the evidence before and after every
    selection. So they do with any score that the past determines up to a factor.
    """
    hmm = random_hmm(seed=seed)
    lm = HMMAsLM(VOCABULARY, hmm)
    automaton = many_words()
    budget = automaton.fewest_tokens + slack
    proposal = smc.PGCD(hmm, exact_top_k=None, defense=0.0)
    (found,) = sample([PROMPT], automaton, lm, max_tokens=budget, particles=particles,
                      proposal=proposal, seed=seed, **PLAIN)  # fmt: skip
    expected = math.log(sum(target(lm, PROMPT, automaton, budget).values()))
    assert found.log_evidence == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("options", [{"floor": 0.3}, {"count_finished": True}], ids=str)
def test_negative_control_of_no_variance(options: dict) -> None:
    """Other scores, or random selection of candidates, do have variance."""
    hmm = random_hmm(seed=5)
    lm, automaton = HMMAsLM(VOCABULARY, hmm), many_words()
    proposal = smc.PGCD(hmm, exact_top_k=None, defense=0.0)
    found = sample(
        [PROMPT] * 40, automaton, lm, max_tokens=5, particles=2, proposal=proposal, **options
    )
    evidences = torch.tensor([each.log_evidence for each in found])
    assert float(evidences.std()) > 1e-3


# -- further properties --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "proposal", ["gcd", "tilted", "conditional", "in_time", "wrong", "hopeless"]
)
@pytest.mark.parametrize("options", OPTIONS[::3], ids=str)
def test_no_run_dies_and_no_prefix_is_kept_twice(proposal: str, options: dict) -> None:
    made = PROPOSALS[proposal]()
    for particles, budget in itertools.product((1, 3), (4, 6)):
        found = sample([PROMPT] * 10, many_words(), max_tokens=budget, particles=particles,
                       proposal=made, **options)  # fmt: skip
        for each in found:
            assert not each.dead
            assert each.complete
            assert each.valid
            ids = [s.ids for s in each.particles]
            assert len(set(ids)) == len(ids)
            assert max(each.diagnostics.running) <= particles


def test_never_two_equal_prefixes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []
    lm = ToyLM(VOCABULARY, seed=8, spread=0.1)
    plain = lm.log_p

    def noted(tokens: tuple[int, ...]) -> torch.Tensor:
        read.append(tokens)
        return plain(tokens)

    monkeypatch.setattr(lm, "log_p", noted)
    for particles in (1, 4, 9):
        read.clear()
        (found,) = sample(
            [PROMPT], CONSTRAINTS["a_star_b"](), lm, max_tokens=9, particles=particles
        )
        assert len(set(read)) == len(read)
        assert found.diagnostics.tokens == len(read) - 1 + len(PROMPT)


class Small(ToyLM):
    """A language model with a tiny probability of "a" and of continuing after it."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        log_p = super().log_p(tokens).clone()
        log_p[0] -= 70 * (1 + len(tokens) % 3)
        log_p[2] -= 300
        return log_p.log_softmax(dim=0)


@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_weights_over_many_orders_of_magnitude(options: dict) -> None:
    """A threshold computed as a difference would lose certain prefixes; see `test_selection`."""
    automaton = many_words()
    expected = target(Small(VOCABULARY, seed=4), PROMPT, automaton, 5)
    (found,) = sample([PROMPT], automaton, Small(VOCABULARY, seed=4), max_tokens=5, particles=3,
                      **{**options, "floor": 0.0})  # fmt: skip
    weights = {each.ids: each.log_weight for each in found.particles}
    best = max(expected, key=expected.__getitem__)
    assert weights[best] == pytest.approx(math.log(expected[best]), abs=1e-9)
    assert found.log_evidence == pytest.approx(math.log(sum(expected.values())), abs=1e-6)


def test_dead_is_an_outcome() -> None:
    """LM keeps the most probable prefixes, which may all break the constraint."""
    found = sample([PROMPT] * 99, many_words(), max_tokens=4, particles=1, proposal=smc.LM())
    dead = [each for each in found if each.dead]
    assert 0 < len(dead) < 99
    assert dead[0].particles == ()
    assert dead[0].log_evidence == -math.inf
    assert dead[0].diagnostics.share_finished == 0


def test_fallbacks_are_counted() -> None:
    hopeless = PROPOSALS["hopeless"]()
    (found,) = sample([PROMPT], many_words(), proposal=hopeless)
    assert found.diagnostics.fallbacks > 0
    assert hopeless.counts.fallbacks > 0
    wrong = PROPOSALS["wrong"]()
    sample([PROMPT], many_words(), proposal=wrong)
    assert wrong.counts.holes > 0


def test_finished_answers_stop_stragglers() -> None:
    """If one answer has nearly all the mass, nothing else is computed."""

    class Sure(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            log_p = torch.full((self.vocabulary.size,), -20.0, dtype=torch.float64)
            log_p[0 if len(tokens) == len(PROMPT) else 3] = 0  # "a", then the end
            return log_p.log_softmax(dim=0)

    lm, automaton = Sure(VOCABULARY), lift(Automaton.literal("a").repeat(1, 12), VOCABULARY)
    plain, counted = (
        sample([PROMPT], automaton, lm, max_tokens=13, particles=1, count_finished=count)[0]
        for count in (False, True)
    )
    assert plain.texts[0] == counted.texts[0] == "a"
    assert plain.diagnostics.tokens > 10
    assert counted.diagnostics.tokens <= 4


def test_scores_of_a_mask_are_weights() -> None:
    automaton = many_words()
    batch = smc.Batch(AutomatonBatch([automaton]), torch.tensor([6]))
    gcd = smc.GCD()
    state = gcd.start(batch)
    state = gcd.take(gcd.advance(state, torch.tensor([[0]])), torch.tensor([0, 0]))
    log_p = torch.stack([TOY.log_p((0,)), TOY.log_p((1,))])
    log_weight = torch.tensor([-3.0, -1.0], dtype=torch.float64)
    example = torch.zeros(2, dtype=torch.int64)
    ends = state.ends(by_token=False)
    rivals = selection_scores(gcd.guide(state, log_p), ends, log_p, log_weight, example, 1)
    s = rivals.factors.apply(log_p).exp()
    going = (s > 0).nonzero().tolist()
    assert going
    for r, v in going:
        assert float(s[r, v]) == pytest.approx(math.exp(log_weight[r] + log_p[r, v]), rel=1e-12)
    assert rivals.log_unit.tolist() == [0.0]


class Often(ToyLM):
    """A model that mostly continues with "a", and may end at any time."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        p = torch.tensor([0.9, 0.05, 1e-9, 0.05, 1e-9, 1e-9], dtype=torch.float64)
        return (p / p.sum()).log()


def test_a_lookahead_that_expects_no_end_does_not_starve_unfinished_rows() -> None:
    """Answers compete by weight. With g = 1 they would displace prefixes with g = 1e-5."""
    emission = torch.tensor([[0.5], [0.5], [1e-7], [1e-5], [1e-7], [1e-7]], dtype=torch.float64)
    emission = emission / emission.sum()
    hmm = HMM(torch.ones(1).double(), Dense(torch.ones(1, 1).double()), emission)
    automaton = lift(
        Automaton.literal("a").star() | (Automaton.literal("b") + Automaton.literal("a").star()),
        VOCABULARY,
    )
    lm, budget = Often(VOCABULARY), 40
    given = {"max_tokens": budget, "particles": 16, "proposal": smc.PGCD(hmm)}
    exact = sample([PROMPT], automaton, lm, **{**given, "particles": 4000}, **PLAIN)[0]
    found = sample([PROMPT] * 9, automaton, lm, **given)
    errors = [abs(each.log_evidence - exact.log_evidence) for each in found]
    assert sorted(errors)[4] < 0.1
    assert min(each.diagnostics.tokens for each in found) > 30


def test_classes_that_are_as_many_as_tokens() -> None:
    """Tables of a batch are padded to the most classes, which must not turn them into tokens."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"c", b""], [3])
    two = lift(choice("aa", "bb", "cc", "ab", "ba"), vocabulary)
    four = lift(choice("abc", "b", "ca"), vocabulary)
    assert four.num_classes == vocabulary.size > two.num_classes
    lm = ToyLM(vocabulary, seed=3)
    given = {"max_tokens": 4, "particles": 2, "seed": 5}
    (alone,) = sample([[0]], two, lm, example_ids=[0], **given)
    together = sample([[0], [1]], [two, four], lm, **given)
    assert timeless(together[0]) == timeless(alone)


class Uneven(smc.GCD):
    """Some tokens have their own g, one of them twice; or g is NaN."""

    bad = 0.0

    def guide(self, state: Any, log_p: torch.Tensor) -> Any:
        mask = super().guide(state, log_p)
        tokens = torch.tensor([0, 1, 0]).expand(len(log_p), 3)
        rows = torch.arange(len(log_p)).unsqueeze(1).expand(-1, 3)
        own = mask.at(rows.flatten(), tokens.flatten()).view(-1, 3) + torch.tensor([-1.0, 0.5, -1])
        own = own.double() + self.bad
        return mask._replace(tokens=tokens.contiguous(), by_token=own, alive=None, is_mask=False)


def test_weights_with_a_guide_of_classes_and_tokens() -> None:
    for options in ({}, {"floor": 0.1}):
        given = {"particles": 2, "proposal": Uneven(), "algorithm": "discrete", **options}
        assert_exact(many_words(), 4, **given)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_guide_that_is_no_number_is_refused(bad: float) -> None:
    proposal = Uneven()
    proposal.bad = bad
    with pytest.raises(FloatingPointError, match=r"Uneven\(\), got NaN"):
        sample([PROMPT], many_words(), proposal=proposal)


def test_a_custom_guide_is_the_score() -> None:
    class Mine(smc.PGCD):
        def guide(self, state: Any, log_p: torch.Tensor) -> Any:
            raise RuntimeError("asked")

    with pytest.raises(RuntimeError, match="asked"):
        sample([PROMPT], many_words(), proposal=Mine(random_hmm(seed=1)))


def test_many_last_tokens_end_a_text_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of answers per step are pruned before their tokens are copied."""
    names = [f"{i:03x}".encode() for i in range(1 << 12)]
    vocabulary = Vocabulary.from_bytes([*names, b"x"], [])
    automaton = lift(gcd.regex("[0-9a-f]{3}"), vocabulary, eos="accept")
    monkeypatch.setattr(answers, "MOST_ANSWERS", 100)
    (found,) = sample([[0]], automaton, ToyLM(vocabulary, seed=1), max_tokens=3, particles=3)
    assert found.complete
    assert found.valid
    assert not found.enumerated
    assert len(found.particles) <= 100


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count_finished", 1),
        ("floor", "0.5"),
        ("floor", None),
        ("floor", True),
    ],
)
def test_values_of_another_type(name: str, value: object) -> None:
    """Raise the error even without runtime type checks."""
    made = object.__new__(Discrete)
    for option, chosen in {**vars(Discrete()), name: value}.items():
        object.__setattr__(made, option, chosen)
    with pytest.raises(ValueError, match=f"expected {name} to be .*{value!r}"):
        made.__post_init__()
