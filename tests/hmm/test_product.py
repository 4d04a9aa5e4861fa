"""The product of an HMM with a constraint, against sums over all strings."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd import (
    Automaton,
    AutomatonBatch,
    ConstraintError,
    EmptyLanguageError,
    TokenAutomaton,
    Vocabulary,
    lift,
)
from gcd._tokens.rows import Rows
from hmm import (
    HMM,
    expect_all_tokens,
    expect_classes,
    expect_tokens,
    log_likelihood,
    lookahead_table,
)
from hmm import _edges as edges
from hmm import _lookahead as lookahead
from hmm import _recursion as recursion
from hmm._edges import class_emission
from tests.gcd.oracles import byte_automata, checked_inside_strategies, vocabularies
from tests.hmm.oracles import beta_of, log_completed, sparse
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice, few_words


def random_hmm(num_tokens: int, *, seed: int = 0, num_states: int = 6) -> HMM:
    """Make an HMM with positive parameters in float64."""
    generator = torch.Generator().manual_seed(seed)
    return HMM.random(num_states, num_tokens, generator=generator, dtype=torch.float64)


def completions(
    hmm: HMM, automaton: TokenAutomaton, state: int, remaining: int, predicted: np.ndarray
) -> np.ndarray:
    """Return P(the next tokens lead to the end, in at most `remaining`), string by string.

    The last axis of `predicted` has the probabilities of the hidden state.
    """
    if state == automaton.final:
        return predicted.sum(axis=-1)
    total = np.zeros(predicted.shape[:-1])
    for token in range(hmm.num_tokens if remaining > 0 else 0):
        after = automaton.step(state, token)
        if after >= 0:
            joint = (predicted * hmm.emission[token].numpy()) @ hmm.transition.dense().numpy()
            total += completions(hmm, automaton, after, remaining - 1, joint)
    return total


def after_prefix(hmm: HMM, prefix: tuple[int, ...]) -> torch.Tensor:
    """Return the distribution of the next hidden state."""
    predicted = hmm.initial.unsqueeze(0)
    for token in prefix:
        predicted = predicted * hmm.emission[token]
        predicted = (predicted / predicted.sum()).nan_to_num() @ hmm.transition.dense()
    return predicted


def brute_beta(hmm: HMM, automaton: TokenAutomaton, remaining: int) -> np.ndarray:
    A, states = hmm.transition.dense().numpy(), range(automaton.num_states)
    return np.array([completions(hmm, automaton, s, remaining, A) for s in states])


Place = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_places(rows: int, hmm: HMM, batch: AutomatonBatch, most: int) -> Place:
    """Draw distributions of hidden states, states of the batch or -1, and remaining tokens."""
    generator = torch.Generator().manual_seed(0)
    predicted = torch.rand(rows, hmm.num_states, generator=generator, dtype=torch.float64)
    predicted /= predicted.sum(dim=1, keepdim=True)
    states = torch.randint(-1, batch.num_states, (rows,), generator=generator)
    left = torch.randint(0, most + 1, (rows,), generator=generator)
    return predicted.to(hmm.dtype), states, left


@pytest.fixture(params=["compiled", "in layers"])
def _form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the loops for the CPU, and with those for any device."""
    if request.param == "in layers":
        monkeypatch.setattr(recursion, "_COMPILED", ())
        monkeypatch.setattr(lookahead, "_COMPILED", ())


def ends_by_itself() -> TokenAutomaton:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    return lift(choice("ab", "bab", "bb"), vocabulary, eos="accept")


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("make", [*CONSTRAINTS.values(), ends_by_itself])
def test_beta_is_the_sum_over_all_strings(make: Callable[[], TokenAutomaton]) -> None:
    automaton = make()
    hmm = random_hmm(automaton.vocabulary.size)
    table = lookahead_table(hmm, automaton, 8, tolerance=0)
    for remaining in range(9):
        expected = brute_beta(hmm, automaton, remaining)
        assert beta_of(table, remaining).numpy() == pytest.approx(expected, rel=1e-10, abs=0)


@checked_inside_strategies
@settings(max_examples=40)
@given(byte_automata(max_states=4), vocabularies(max_tokens=4), st.integers(0, 99))
def test_random_automata(language: Automaton, vocabulary: Vocabulary, seed: int) -> None:
    try:
        automaton = lift(language, vocabulary)
    except EmptyLanguageError:
        return
    hmm = random_hmm(vocabulary.size, seed=seed, num_states=4)
    table = lookahead_table(hmm, automaton, 5, tolerance=0)
    for remaining in range(5):
        beta = beta_of(table, remaining).numpy()
        expected = brute_beta(hmm, automaton, remaining)
        assert beta == pytest.approx(expected, rel=1e-10, abs=0)
        is_alive = automaton.steps_to_accept <= remaining
        assert ((beta > 0) == is_alive[:, np.newaxis]).all()


def long_automaton() -> TokenAutomaton:
    """Return an automaton with loops, words of several lengths, and a bounded string."""
    words = choice("ab", "ba", "bbb", "abab") + Automaton.literal("b").star()
    counted = choice("a", "b").repeat(0, 6) + Automaton.literal("b")
    return lift(words + counted + choice("a", "aab"), VOCABULARY)


@pytest.fixture
def _threads() -> Iterator[None]:
    """Restore torch's number of threads after a test."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("make", [long_automaton, a_star_b])
def test_rows_are_kept_within_the_bound_that_is_stated(make: Callable[[], TokenAutomaton]) -> None:
    hmm = random_hmm(VOCABULARY.size, seed=6)
    exact = lookahead_table(hmm, make(), 40, tolerance=0)
    for tolerance in (1e-6, 1e-3, 0.1):
        kept = lookahead_table(hmm, make(), 40, tolerance=tolerance)
        for remaining in range(0, 41, 4):
            bound = (1 + tolerance) ** remaining - 1 + 1e-12
            one, other = beta_of(kept, remaining), beta_of(exact, remaining)
            torch.testing.assert_close(one, other, rtol=bound, atol=0)
    assert kept.num_rows < exact.num_rows


def beginning_elsewhere(automaton: TokenAutomaton) -> TokenAutomaton:
    """Return the same automaton with another number of the initial state."""
    order = np.array([*range(1, automaton.final), 0, automaton.final])
    number = np.argsort(order).astype(np.int32)
    delta = automaton.delta[order]
    return dataclasses.replace(
        automaton,
        rows=Rows.of(np.where(delta >= 0, number[delta], -1).astype(np.int32)),
        accepting=automaton.accepting[order],
        steps_to_accept=automaton.steps_to_accept[order],
        initial=int(number[automaton.initial]),
    )


def test_for_given_budgets_what_they_lead_to_is_there_and_the_same() -> None:
    """Check every prefix that can be completed, with every budget; excluded pairs are refused."""
    hmm, automata = random_hmm(VOCABULARY.size, seed=6), [long_automaton(), a_star_b()]
    automata += [automata[0], beginning_elsewhere(few_words())]
    batch, budgets = AutomatonBatch(automata), [[9, 12], [4], [15], [5]]
    whole = lookahead_table(hmm, batch, 20, tolerance=0)
    table = lookahead_table(hmm, batch, 20, budgets=budgets, tolerance=0)
    assert table.num_rows < whole.num_rows
    predicted = hmm.initial.unsqueeze(0)
    starts = zip(batch.initial.tolist(), budgets, strict=True)
    reached = {(state, budget) for state, several in starts for budget in several}
    asked: set[tuple[int, int]] = set()
    while reached:
        asked |= reached
        states, left = torch.tensor(sorted(reached)).T
        here = (predicted.expand(len(states), -1), states, left)
        mine, other = expect_classes(table, *here), expect_classes(whole, *here)
        torch.testing.assert_close(mine.log_joint, other.log_joint, rtol=1e-12, atol=0)
        tokens = torch.arange(VOCABULARY.size).expand(len(states), -1)
        mine, other = expect_tokens(table, *here, tokens), expect_tokens(whole, *here, tokens)
        torch.testing.assert_close(mine.log_joint, other.log_joint, rtol=1e-12, atol=0)
        row, token = (~mine.log_joint.isneginf()).nonzero().T
        after = batch.next(states[row], token)
        reached = set(zip(after.tolist(), (left[row] - 1).tolist(), strict=True)) - asked
    assert len(asked) > 30
    with pytest.raises(ValueError, match="within the budgets of the lookahead table"):
        log_completed(table, predicted, batch.initial[:1], torch.tensor([11]))


def test_between_budgets_far_apart_nothing_is_needed_and_nothing_has_settled() -> None:
    hmm, automaton = random_hmm(VOCABULARY.size, seed=6), few_words()
    budgets = (automaton.fewest_tokens, 50)
    table = lookahead_table(hmm, automaton, 49, budgets=[budgets], tolerance=0)
    assert not (table.completion.entry[20] >= recursion.COMPUTED).any()
    for budget in budgets:
        place = hmm.initial.unsqueeze(0), torch.tensor([automaton.initial]), torch.tensor([budget])
        whole = lookahead_table(hmm, automaton, budget, tolerance=0)
        assert torch.equal(log_completed(table, *place), log_completed(whole, *place))


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("prefix", [(), (0,), (0, 0), (2,)])
@pytest.mark.parametrize("make", [random_hmm, lambda num_tokens: sparse(6, 6, num_tokens)])
def test_expectations_of_classes_and_tokens(
    make: Callable[[int], HMM], prefix: tuple[int, ...]
) -> None:
    """They are zero where completion, or the prefix, is impossible, without NaN."""
    automaton, hmm = a_star_b(), make(VOCABULARY.size)
    table = lookahead_table(hmm, automaton, 8)
    assert not table.completion.b.isnan().any()
    assert not table.completion.log_scale.isnan().any()
    state, predicted = automaton.run(prefix), after_prefix(hmm, prefix)
    A, tokens = hmm.transition.dense().numpy(), torch.arange(VOCABULARY.size).unsqueeze(0)
    for left in (0, 1, 2, 4, 6):
        place = (predicted, torch.tensor([state]), torch.tensor([left]))
        truth = np.zeros((2, VOCABULARY.size))
        for token in automaton.allowed(state, left).tolist():
            weight = predicted[0].numpy() * hmm.emission[token].numpy()
            joint = completions(hmm, automaton, automaton.step(state, token), left - 1, weight @ A)
            truth[:, token] = weight.sum(), joint
        of_classes = [
            np.bincount(automaton.class_of, each, automaton.num_classes) for each in truth
        ]
        for found, (mass, joint) in (
            (expect_tokens(table, *place, tokens), truth),
            (expect_all_tokens(table, *place), truth),
            (expect_classes(table, *place), of_classes),
        ):
            assert found.log_mass[0].exp().numpy() == pytest.approx(mass, rel=1e-10, abs=0)
            assert found.log_joint[0].exp().numpy() == pytest.approx(joint, rel=1e-10, abs=0)
        whole = completions(hmm, automaton, state, left, predicted[0].numpy())
        assert float(log_completed(table, *place).exp()) == pytest.approx(whole, rel=1e-10, abs=0)


# -- numbers ---------------------------------------------------------------------------------


def test_a_literal_of_200_tokens_in_float32() -> None:
    """Its probability, around 1e-700, underflows; its logarithm is exact."""
    vocabulary = Vocabulary.from_bytes([bytes([b]) for b in range(1, 250)] + [b"$"], [249])
    text = bytes(np.random.default_rng(0).integers(1, 250, size=200).tolist())
    automaton = lift(Automaton.literal(text), vocabulary)
    wide = random_hmm(vocabulary.size, num_states=16)
    tokens = torch.tensor([[*(byte - 1 for byte in text), 249]])
    expected = float(log_likelihood(wide, tokens, torch.tensor([201])))
    assert -2000 < expected < -800
    place = (torch.tensor([automaton.initial]), torch.tensor([201]))
    for dtype, rel in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        hmm = wide.to(dtype=dtype)
        table = lookahead_table(hmm, automaton, 201)
        assert table.completion.b.dtype == dtype
        found = log_completed(table, hmm.initial.unsqueeze(0), *place)
        assert float(found) == pytest.approx(expected, rel=rel)
        alive = torch.from_numpy(automaton.steps_to_accept.copy()) <= 201
        entry = table.completion.entry[201][alive].long()
        assert torch.isfinite(table.completion.log_scale[entry]).all()
        assert (table.completion.b[entry].amax(dim=1) == 1).all()


def test_early_stop_of_finite_and_of_infinite_languages() -> None:
    hmm = random_hmm(VOCABULARY.size)
    finite = lookahead_table(hmm, few_words(), 1000, tolerance=0)
    assert finite.settled
    assert finite.max_remaining <= 7
    loop = lookahead_table(hmm, a_star_b(), 1000)
    whole = lookahead_table(hmm, a_star_b(), 1000, tolerance=0)
    assert loop.settled
    assert loop.max_remaining < whole.max_remaining
    assert beta_of(loop, 1000).numpy() == pytest.approx(beta_of(whole, 1000).numpy(), rel=1e-4)
    # Budgets beyond the last row give the result of the last row.
    place = (hmm.initial.unsqueeze(0), torch.tensor([0]))
    assert torch.equal(
        log_completed(loop, *place, torch.tensor([10**6])),
        log_completed(loop, *place, torch.tensor([loop.max_remaining + 1])),
    )


@pytest.mark.usefixtures("_form")
def test_a_too_short_table_is_reported() -> None:
    hmm = random_hmm(VOCABULARY.size)
    table = lookahead_table(hmm, a_star_b(), 4)
    place = (hmm.initial.unsqueeze(0), torch.tensor([0]))
    log_completed(table, *place, torch.tensor([5]))
    with pytest.raises(ValueError, match=r"at most 4 tokens left after the next token, .* got 5"):
        log_completed(table, *place, torch.tensor([6]))


@pytest.mark.parametrize(
    ("bag", "emission_dtype"),
    [(1, torch.float32), (2, torch.bfloat16), (2, torch.float64), (1024, torch.float32)],
)
def test_class_emission(
    bag: int, emission_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "_BAG", bag)
    monkeypatch.setattr(edges, "_WIDENED", 40)
    vocabulary = Vocabulary.from_bytes([bytes([b]) for b in range(40)] + [b"", b""], [40, 41])
    automaton = lift(choice(*(chr(b) + "\x05" for b in range(30)), ""), vocabulary)
    hmm = random_hmm(vocabulary.size).to(emission_dtype=emission_dtype)
    found = class_emission(hmm, automaton)
    expected = torch.zeros(automaton.num_classes, hmm.num_states, dtype=torch.float64)
    expected.index_add_(0, torch.tensor(automaton.class_of).long(), hmm.emission.double())
    allowed = (automaton.delta >= 0).any(axis=0)
    torch.testing.assert_close(found[allowed], expected[allowed], rtol=1e-12, atol=0)
    assert not found[~allowed].any()
    assert found.dtype == hmm.dtype
    both = hmm.emission[[40, 41]].double().sum(dim=0)
    torch.testing.assert_close(found[automaton.eos_class], both, rtol=1e-12, atol=0)


def test_the_sum_of_a_large_class_in_single_precision() -> None:
    """A sequential sum of 60,000 emissions has an error of 2e-6."""
    tokens = [number.to_bytes(3, "big") for number in range(60_000)]
    vocabulary = Vocabulary.from_bytes([*tokens, b""], [len(tokens)])
    automaton = TokenAutomaton.from_position_sets(vocabulary, [range(len(tokens))])
    hmm = random_hmm(vocabulary.size, num_states=2).to(dtype=torch.float32)
    found = class_emission(hmm, automaton)[automaton.class_of[0]].double()
    torch.testing.assert_close(found, hmm.emission[:-1].double().sum(dim=0), rtol=1e-6, atol=0)


# -- batches ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("_form")
def test_a_batch_is_each_automaton_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the sums are computed, and with automata that occur twice."""
    monkeypatch.setattr(lookahead, "_AT_ONCE", 30)
    words, star = few_words(), a_star_b()
    automata = [words, star, words, lift(choice("bb", "aab"), VOCABULARY)]
    hmm = random_hmm(VOCABULARY.size, seed=4)
    batch = AutomatonBatch(automata)
    table = lookahead_table(hmm, batch, 7)
    assert table.completion.entry.shape[1] == batch.num_states - words.num_states, "stored once"
    predicted, states, left = random_places(60, hmm, batch, 7)
    alone = [lookahead_table(hmm, automaton, 7) for automaton in automata]
    for form in (expect_classes, expect_all_tokens):
        together = form(table, predicted, states, left)
        for n, state in enumerate(states.tolist()):
            which = max(0, int(np.searchsorted(batch.offset, state, side="right")) - 1)
            local = torch.tensor([state - batch.offset[which] if state >= 0 else -1])
            mine = form(alone[which], predicted[n : n + 1], local, left[n : n + 1])
            for one, many in zip(mine, together, strict=True):
                width = one.shape[1]
                torch.testing.assert_close(many[n, :width], one[0], rtol=1e-12, atol=0)
                assert not (many[n, width:] > -torch.inf).any()


def transposed(hmm: HMM) -> HMM:
    return dataclasses.replace(hmm, emission=hmm.emission.t().contiguous().t())


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(
    ("num_states", "change", "wait", "at_once", "together", "tolerance"),
    [
        (6, lambda hmm: hmm, False, 1, 1, 0),
        (6, transposed, True, 40, 4, 1e-3),
        (6, lambda hmm: hmm.to(emission_dtype=torch.float32), False, 1 << 20, 7, 0),
        (6, lambda hmm: hmm.to(emission_dtype=torch.bfloat16), True, 1 << 20, 256, 1e-3),
        (16, lambda hmm: hmm, True, 40, 4, 0),
        (150, lambda hmm: hmm, True, 1 << 20, 256, 0),  # more than the loops take at once
        (150, lambda hmm: hmm.to(dtype=torch.float32), False, 40, 4, 1e-3),
    ],
)
def test_all_forms_give_the_same(
    num_states: int,
    change: Callable[[HMM], HMM],
    wait: bool,
    at_once: int,
    together: int,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled loops with any number of threads, and tensor operations, in blocks of any size."""
    monkeypatch.setitem(recursion._AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(recursion, "_TOGETHER", together)
    hmm = change(random_hmm(VOCABULARY.size, seed=4, num_states=num_states))
    automata = [few_words(), a_star_b(), lift(choice("bb", "aab"), VOCABULARY), long_automaton()]
    batch = AutomatonBatch(automata)
    place = random_places(60, hmm, batch, 8)
    tokens = torch.arange(VOCABULARY.size).expand(60, -1)
    forms = []
    for compiled, threads in (("cpu", 1), ("cpu", 3), ("none", 1)):
        monkeypatch.setattr(recursion, "_COMPILED", (compiled,))
        monkeypatch.setattr(lookahead, "_COMPILED", (compiled,))
        torch.set_num_threads(threads)
        table = lookahead_table(hmm, batch, 8, tolerance=tolerance, eventual=True)
        found = [table.completion.entry]
        for each in (table.completion, table.without_budget.completion):
            found += [each.b, each.log_scale]
        found += expect_classes(table, *place, wait=wait)
        found += expect_tokens(table, *place, tokens, wait=wait)
        found += expect_all_tokens(table, *place)
        forms.append(found)
        assert torch.get_num_threads() == threads, "as it was"
    rtol = 1e-12 if hmm.dtype == torch.float64 else 1e-5
    for one, other, tensors in zip(*forms, strict=True):
        assert torch.equal(one, other), "whatever the threads"
        torch.testing.assert_close(one, tensors, rtol=rtol, atol=rtol)


def test_a_table_in_use_can_be_pickled() -> None:
    hmm = random_hmm(VOCABULARY.size, seed=4)
    table = lookahead_table(hmm, a_star_b(), 7, eventual=True)
    place = hmm.initial.unsqueeze(0), torch.tensor([0]), torch.tensor([5])
    expected = expect_classes(table.without_budget, *place)
    expect_classes(table, *place)
    again = pickle.loads(pickle.dumps(table))
    assert torch.equal(expect_classes(again.without_budget, *place)[0], expected[0])


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"automata": choice("a")}, r"got Automaton; convert .* gcd\.lift"),
        ({"hmm": random_hmm(7)}, r"over 6 tokens.*got one over 7 tokens"),
        ({"max_remaining": 0}, "max_remaining"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"hmm": random_hmm(6).to(dtype=torch.bfloat16)}, r"got bfloat16.*emission_dtype"),
        (
            {"automata": AutomatonBatch([few_words()], "meta")},
            "an HMM on meta, the device of the automata, got one on cpu",
        ),
    ],
)
def test_arguments_of_tables_are_checked(given: dict[str, Any], message: str) -> None:
    usual = {"hmm": random_hmm(6), "automata": few_words(), "max_remaining": 4}
    with pytest.raises(ConstraintError, match=message):
        lookahead_table(**usual | given)


def test_memory_is_stated_and_limited() -> None:
    hmm, automaton = random_hmm(VOCABULARY.size), a_star_b()
    alive = sum(int((automaton.steps_to_accept <= r).sum()) - 1 for r in range(4))
    row = hmm.num_states * 8
    needed = (alive + 2) * (row + 8) + 4 * 4 * automaton.num_states + automaton.num_classes * row
    table = lookahead_table(hmm, automaton, 3, max_bytes=needed)
    assert table.num_rows == alive - 2, "behind the b there is nothing to gain by more tokens"
    assert table.num_bytes == needed - 2 * (row + 8)
    with pytest.raises(ConstraintError, match=r"automaton states, 3 tokens.*lower the"):
        lookahead_table(hmm, automaton, 3, max_bytes=needed - 1)
    assert lookahead_table(hmm, automaton, 3, budgets=[[2]], max_bytes=needed - 1).num_rows < alive
