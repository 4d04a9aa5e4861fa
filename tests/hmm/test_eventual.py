"""Completion without a budget: the limit of the recursion, for all kinds of loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gcd
from hmm import HMM, Dense, expect_classes, lookahead_table
from hmm import _eventual as eventual
from hmm._edges import Edges, class_emission
from hmm._eventual import eventually
from tests.hmm.oracles import beta_of

VOCABULARY = gcd.Vocabulary.from_bytes([b"a", b"b", b"c", b"ab", b"bc", b""], [5])
PATTERNS = ["abc", "a*b", "(a|b)*c", "(ab){1,3}", "a(b+c)*", "(a*b)*c*", "c(a|bc(a|b)*){0,2}"]


def parts(pattern: str, hmm: HMM) -> tuple[gcd.TokenAutomaton, Edges]:
    automaton = gcd.lift(gcd.regex(pattern), VOCABULARY)
    return automaton, Edges.of([automaton], [class_emission(hmm, automaton)])


def random_hmm(states: int, seed: int) -> HMM:
    generator = torch.Generator().manual_seed(seed)
    hmm = HMM.random(states, 6, generator=generator)
    return hmm.to(dtype=torch.float64)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_table_without_budgets_is_read_like_any_other(pattern):
    """log_joint of each class equals that of a table with a practically unlimited budget."""
    hmm = random_hmm(3, seed=7)
    automaton = gcd.lift(gcd.regex(pattern), VOCABULARY)
    short = lookahead_table(hmm, automaton, 4, eventual=True, tolerance=1e-13)
    unbounded, long = short.without_budget, lookahead_table(hmm, automaton, 400, tolerance=0)
    states = torch.arange(automaton.num_states)
    predicted = torch.rand(len(states), 3, generator=torch.Generator().manual_seed(1)).double()
    left = torch.full_like(states, 401)
    wanted = expect_classes(long, predicted, states, left)
    found = expect_classes(unbounded, predicted, states, left)
    torch.testing.assert_close(found.log_joint, wanted.log_joint, rtol=1e-9, atol=1e-9)

    # With a budget, the same tokens are alive as in the table with budgets, and the probability of
    # completion in time is at most that of completion at any length.
    left = torch.full_like(states, 3)
    timely, found = (expect_classes(t, predicted, states, left) for t in (short, unbounded))
    assert torch.equal(found.log_joint.isneginf(), timely.log_joint.isneginf())
    assert bool((timely.log_joint <= found.log_joint + 1e-12).all())


def solved(hmm: HMM, edges: Edges) -> torch.Tensor:
    """Compute beta_unbounded by one linear system over all pairs of a state and a hidden state."""
    S, H = edges.num_states, hmm.num_states
    matrix, constant = torch.eye(S * H).double().view(S, H, S, H), torch.zeros(S, H).double()
    mass = edges.mass * edges.log_mass.exp().unsqueeze(1)
    transition = hmm.transition.dense()
    for source, target, which in zip(edges.source, edges.target, edges.set_of, strict=True):
        step = transition * mass[which]
        if target in edges.final:
            constant[source] += step.sum(dim=1)
        else:
            matrix[source, :, target, :] -= step
    return torch.linalg.solve(matrix.reshape(S * H, S * H), constant.flatten()).view(S, H)


def emitting(weights: list[float], hmm: HMM) -> HMM:
    """Return the same model with these emissions, slightly different between hidden states."""
    generator = torch.Generator().manual_seed(5)
    noise = 0.5 + torch.rand(6, hmm.num_states, generator=generator).double()
    emission = torch.tensor(weights).double().unsqueeze(1) * noise
    return HMM(hmm.initial, hmm.transition, emission / emission.sum(dim=0))


LOOPS = [*PATTERNS, "((a|b)*c(ab)*)*", "(a(b(ca)*)*|c)*b", "a*b*c*", "((a|b)(b|c)(c|a))*"]


@pytest.mark.parametrize("pattern", LOOPS)
@pytest.mark.parametrize(
    "weights",
    [[1, 1, 1, 1, 1, 1], [1, 1e-7, 1e-7, 1e-7, 1e-7, 1e-7], [1, 1, 1e-4, 0, 1, 1e-6]],
    ids=["even", "hardly_left", "ab_impossible"],
)
def test_cycles_are_solved_in_a_dozen_sweeps(pattern, weights, monkeypatch):
    hmm = emitting(weights, random_hmm(6, seed=1))
    _, edges = parts(pattern, hmm)
    monkeypatch.setattr(eventual, "MAX_ROUNDS", 12)
    _, b, log_scale, _ = eventually(hmm, edges, 1e-10)
    inner = np.isin(np.arange(edges.num_states), edges.final, invert=True)
    wanted, found = solved(hmm, edges)[inner], (b * log_scale.exp().unsqueeze(1))[inner]
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)
    assert bool(((found > 0) & (found <= 1 + 1e-12)).all())
    torch.testing.assert_close(b[inner].amax(dim=1), torch.ones(int(inner.sum())).double())


def test_hidden_states_that_go_round_in_a_ring_are_no_worse_than_plain_sweeps(monkeypatch):
    """Mixtures of few sweeps hardly help in a ring, and must not do harm.

    A ring is left with probability 1/2: 1e-10 takes 33 rounds, or 660 steps, and a sweep takes
    `REPEATS` + 1 steps. The test allows 50% more.
    """
    H = 20
    monkeypatch.setattr(eventual, "MAX_ROUNDS", 3 * 33 * H // (2 * (eventual.REPEATS + 1)))
    ring = Dense(torch.eye(H).double().roll(1, dims=1))
    emission = torch.full((6, H), 1e-9).double()
    emission[1, 0] = 0.5  # `b` only here
    emission[0] = 1 - emission[1:].sum(dim=0)
    hmm = HMM(torch.full((H,), 1 / H).double(), ring, emission)
    _, edges = parts("a*b", hmm)
    inner = np.isin(np.arange(edges.num_states), edges.final, invert=True)
    _, b, log_scale, _ = eventually(hmm, edges, 1e-10)
    found = (b * log_scale.exp().unsqueeze(1))[inner]
    torch.testing.assert_close(found, solved(hmm, edges)[inner], rtol=1e-6, atol=0)


def test_scales_far_apart_within_a_cycle():
    """One state leads to the other with probability 1e-30 per token, also in float32."""
    hmm = emitting([1, 1e-30, 1e-30, 0, 0, 1e-3], random_hmm(4, seed=2))
    _, edges = parts("(a*ba*c)*", hmm)
    inner = np.isin(np.arange(edges.num_states), edges.final, invert=True)
    wanted = solved(hmm, edges)[inner].log()
    for dtype, rtol in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        narrow = edges._replace(mass=edges.mass.to(dtype))
        _, b, log_scale, _ = eventually(hmm.to(dtype=dtype), narrow, 1e-10)
        found = b[inner].double().log() + log_scale[inner].unsqueeze(1)
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-4)


def test_a_component_does_not_feel_the_others():
    hmm = random_hmm(4, seed=9)
    automata = [gcd.lift(gcd.regex(pattern), VOCABULARY) for pattern in LOOPS]
    masses = [class_emission(hmm, automaton) for automaton in automata]
    edges = Edges.of(automata, masses)
    size = edges.num_states
    _, b, log_scale, _ = eventually(hmm, edges, 1e-8)
    assert b.untyped_storage().nbytes() == size * 4 * 8, "only the result stays in memory"
    assert log_scale.untyped_storage().nbytes() == size * 8
    first = 0
    for automaton, mass in zip(automata, masses, strict=True):
        alone = eventually(hmm, Edges.of([automaton], [mass]), 1e-8)
        own = slice(first, first + automaton.num_states)
        torch.testing.assert_close(b[own], alone.b, rtol=1e-12, atol=0)
        torch.testing.assert_close(log_scale[own], alone.log_scale, rtol=0, atol=1e-12)
        first += automaton.num_states


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_tolerance_at_all_ends_too(dtype):
    hmm = random_hmm(5, 2).to(dtype=dtype)
    automaton = gcd.lift(gcd.regex("(a|b)*c"), VOCABULARY)
    table = lookahead_table(hmm, automaton, 4, eventual=True, tolerance=0)
    limit = beta_of(lookahead_table(hmm, automaton, 400, tolerance=0), 400)
    torch.testing.assert_close(beta_of(table.without_budget, 0), limit, rtol=1e-4, atol=0)


def test_what_the_hmm_holds_impossible_stays_zero():
    hmm = emitting([1, 1, 0, 1, 1, 1], random_hmm(2, 3))  # no c, ever
    automaton, edges = parts("ac", hmm)
    _, b, log_scale, _ = eventually(hmm, edges, 1e-6)
    assert not bool(b[automaton.initial].any())
    assert float(log_scale[automaton.initial]) == -float("inf")
