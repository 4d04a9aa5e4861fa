"""The most probable answers against plain enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import TokenAutomaton, Vocabulary, lift
from smc.testing import ToyLM, target
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, tiny_model
from tests.smc.walks import HMMAsLM, never

PROMPT = (0, 1)
MIDDLES = itertools.product("ab", ("", "a", "b"), ("", "a", "ba"))
AUTOMATA = {
    **{name: make() for name, make in CONSTRAINTS.items()},
    "many": lift(choice(*{"".join(parts) for parts in MIDDLES}), VOCABULARY),
    "all": lift(gcd.regex("[ab]{0,4}"), VOCABULARY),
}
EVERY = 2000  # more prefixes than any of these languages has


def search(lm: Any, automaton: TokenAutomaton, **options: Any) -> smc.SearchResult:
    return smc.search(lm, PROMPT, automaton, **options)


def ranked(lm: ToyLM, automaton: TokenAutomaton, budget: int, temperature: float = 1.0):
    """All answers with log p, the most probable first."""
    found = target(lm, PROMPT, automaton, budget, temperature=temperature)
    pairs = ((ids, math.log(p)) for ids, p in found.items() if p > 0)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def check(found: smc.SearchResult, truth: list[tuple[tuple[int, ...], float]], wanted: int) -> None:
    """Check the properties of every search: values, order, and optimality if it is claimed."""
    assert len(found.answers) <= wanted
    known = dict(truth)
    logs = [answer.log_p for answer in found.answers]
    assert logs == pytest.approx([known[answer.ids] for answer in found.answers], abs=1e-9)
    assert logs == sorted(logs, reverse=True)
    assert len({answer.ids for answer in found.answers}) == len(logs)
    for answer in found.answers:
        assert answer.answer == VOCABULARY.decode(answer.ids)
    best = [value for _, value in truth[: found.proved]]
    assert logs[: found.proved] == pytest.approx(best, abs=1e-9)
    others = [value for ids, value in truth if ids not in {a.ids for a in found.answers}]
    last = logs[-1] if len(logs) == wanted else -math.inf
    assert max(others, default=-math.inf) <= max(last, found.log_bound) + 1e-9


def problem(name: str, seed: int, slack: int) -> tuple[ToyLM, TokenAutomaton, int]:
    automaton = AUTOMATA[name]
    budget = automaton.fewest_tokens + slack
    return ToyLM(VOCABULARY, seed=seed, spread=2.0), automaton, budget


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(AUTOMATA)),
    seed=st.integers(0, 50),
    slack=st.integers(0, 3),
    rows=st.integers(1, 6),
    answers=st.sampled_from([1, 2, 7]),
    temperature=st.sampled_from([0.5, 1.0]),
    most=st.sampled_from([EVERY, 1, 2, 5, 9]),
)
def test_the_most_probable_answers(name, seed, slack, rows, answers, temperature, most):
    lm, automaton, budget = problem(name, seed, slack)
    truth = ranked(lm, automaton, budget, temperature)
    options = {"answers": answers, "temperature": temperature, "max_rows": rows}
    found = search(lm, automaton, max_tokens=budget, max_reads=most, **options)
    check(found, truth, answers)
    assert found.read <= min(most, found.tokens)
    if found.read < most:
        assert found.proved == len(found.answers) == min(answers, len(truth))


def test_no_prefix_is_read_that_is_less_probable_than_the_best_answer():
    """Also none twice: computed one at a time, they are the prefixes with a higher log p."""
    lm, automaton, budget = problem("all", 4, 3)
    found = search(lm, automaton, max_tokens=budget, max_rows=1)
    read = 0

    def visit(state: int, ids: tuple[int, ...], log_p: float, forced: bool) -> None:
        nonlocal read
        after = lm.log_p(PROMPT + ids).tolist()
        allowed = automaton.allowed(state, budget - len(ids)).tolist()
        for token in allowed:
            there = automaton.step(state, token)
            # Forced tokens are computed with the prefix before them.
            is_read = log_p + after[token] > found.best.log_p or (forced and len(allowed) == 1)
            if there != automaton.final and is_read:
                read += 1
                visit(there, (*ids, token), log_p + after[token], True)

    visit(automaton.initial, (), 0.0, False)
    assert found.read == read


def test_an_answer_is_proved_among_many_improbable_ones():
    """Also if they are more than `max_reads`, and more probable together."""
    letters = [bytes([byte]) for byte in range(65, 105)]
    vocabulary = Vocabulary.from_bytes([*letters, b""], [40])

    class OneLikely(ToyLM):
        def log_p(self, tokens):
            if len(tokens) > len(PROMPT):  # EOS is all but certain
                return torch.tensor([1e-6] * 40 + [1 - 4e-5], dtype=torch.float64).log()
            return torch.tensor([0.2] + [0.8 / 40] * 40, dtype=torch.float64).log()

    automaton = lift(gcd.regex(r"[A-\x68]{1,2}"), vocabulary)
    found = search(OneLikely(vocabulary), automaton, max_tokens=3, max_reads=5, max_rows=1)
    assert (found.best.answer, found.proved, found.read) == (b"A", 1, 1)
    assert found.log_bound == -math.inf


def test_languages_that_end_by_themselves():
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    lm = ToyLM(vocabulary, seed=2)
    nothing = lift(choice(""), vocabulary, eos="accept")
    found = search(lm, nothing, max_tokens=1)
    assert [answer.ids for answer in found.answers] == [()]
    assert (found.answers[0].log_p, found.proved, found.read) == (0.0, 1, 0)
    several = lift(choice("ab", "bb", "bab"), vocabulary, eos="accept")
    found = search(lm, several, max_tokens=3, answers=9)
    truth = ranked(lm, several, 3)
    assert [(a.ids, a.log_p) for a in found.answers] == [(i, pytest.approx(p)) for i, p in truth]


def test_a_model_that_gives_no_answer_any_probability():
    lm = HMMAsLM(VOCABULARY, never([0, 2]))  # neither a nor ab
    found = search(lm, AUTOMATA["a_star_b"], max_tokens=6, answers=4)
    assert [answer.answer for answer in found.answers] == [b"b"] * 2  # with either EOS id
    assert found.proved == 2
    lm = HMMAsLM(VOCABULARY, never([1, 2]))
    found = search(lm, AUTOMATA["a_star_b"], max_tokens=6, answers=4)
    assert (found.answers, found.best, found.proved, found.log_bound) == ((), None, 0, -math.inf)


@pytest.mark.parametrize("name", sorted(AUTOMATA))
def test_a_model_of_transformers(name, monkeypatch):
    """Copied, truncated and extended rows give the values of recomputed prefixes."""
    pytest.importorskip("transformers")
    lm = smc.TransformersLM(tiny_model().double(), None, VOCABULARY)
    monkeypatch.setattr(
        "smc._forward.revisiting.MOST_READ", 2 * VOCABULARY.size
    )  # several passes per run
    automaton = AUTOMATA[name]
    (whole,) = sample_with(
        lm,
        [PROMPT],
        automaton,
        max_tokens=4,
        particles=EVERY,
        proposal=smc.GCD(),
        algorithm="discrete",
        count_finished=False,
    )
    assert whole.enumerated
    truth = sorted((s.log_p for s in whole.particles), reverse=True)
    for rows in (1, 3, EVERY):
        found = search(lm, automaton, max_tokens=4, max_rows=rows, answers=8)
        assert [a.log_p for a in found.answers] == pytest.approx(truth[:8], abs=1e-9)
        assert found.proved == len(found.answers)


@pytest.mark.parametrize("name", list(AUTOMATA))
@pytest.mark.parametrize("rows", [1, 3])
def test_a_search_ends_in_time(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts the prefixes that the model reads."""
    now = [0.0]
    monkeypatch.setattr(smc._inference.deadlines, "_clock", lambda: now[0])

    class Slow(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            now[0] += 0.01
            return super().log_p(tokens)

    lm, automaton, budget = Slow(VOCABULARY, seed=5), AUTOMATA[name], 8
    truth = ranked(lm, automaton, budget)
    options = {"max_tokens": budget, "max_rows": rows, "answers": 2}
    now[0] = 0.0
    whole = search(lm, automaton, **options)
    assert whole.stopped is None
    needed = now[0]
    for part in (0.0, 0.3, 0.6, 2.0):
        now[0] = 0.0
        found = search(lm, automaton, **options, deadline=part * needed)
        check(found, truth, 2)
        assert found.read <= whole.read
    assert found.stopped is None
    assert found.answers == whole.answers
