"""T_out, T_in and B_f: one step of state sets, compared with the edges themselves."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd import TensorAutomaton
from gcd._tokens.distances import UNREACHABLE
from tests.gcd.oracles import EdgeList, checked_inside_strategies, edge_lists, nfa_states, strings

pytestmark = checked_inside_strategies

LENGTH = 5


def _members(vector: torch.Tensor) -> set[int]:
    return set(vector.nonzero().flatten().tolist())


def _vector(members: set[int], size: int) -> torch.Tensor:
    return torch.tensor([i in members for i in range(size)])


@settings(max_examples=60)
@given(edge_lists(), st.data())
def test_steps_are_those_of_the_edges(nfa: EdgeList, data: st.DataObject) -> None:
    automaton = TensorAutomaton.from_edges(*nfa)
    keys = [(s, c) for s, c, _ in set(nfa.edges)]
    assert automaton.deterministic == (len(nfa.initial) == 1 and len(keys) == len(set(keys)))
    states = data.draw(st.sets(st.integers(0, nfa.num_states - 1)))
    classes = data.draw(st.sets(st.integers(0, nfa.num_classes - 1)))
    x, y = _vector(states, nfa.num_states), _vector(classes, nfa.num_classes)
    assert _members(automaton.forward(x, y)) == {
        t for s, c, t in nfa.edges if s in states and c in classes
    }
    assert _members(automaton.backward(x, y)) == {
        s for s, c, t in nfa.edges if t in states and c in classes
    }
    assert _members(automaton.forward(x)) == {t for s, _, t in nfa.edges if s in states}
    assert _members(automaton.backward(x)) == {s for s, _, t in nfa.edges if t in states}
    assert _members(automaton.classes_between(x, ~x)) == {
        c for s, c, t in nfa.edges if s in states and t not in states
    }


@settings(max_examples=40)
@given(edge_lists(), st.data())
def test_steps_are_the_matrix_products_of_the_definition(
    nfa: EdgeList, data: st.DataObject
) -> None:
    automaton = TensorAutomaton.from_edges(*nfa)
    x = torch.tensor(data.draw(st.lists(st.booleans(), min_size=nfa.num_states, max_size=5)))
    x = x[: nfa.num_states]
    y = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    y = y[: nfa.num_classes]
    T_out, T_in, B_f = (
        matrix.to_dense().float() for matrix in (automaton.T_out, automaton.T_in, automaton.B_f)
    )
    edges_under = B_f @ y.float()
    forward = ((x.float() @ T_out) * edges_under) @ T_in
    backward = T_out @ ((T_in @ x.float()) * edges_under)
    assert torch.equal(automaton.forward(x, y), forward > 0)
    assert torch.equal(automaton.backward(x, y), backward > 0)


def test_matrices_have_one_edge_for_each_pair_of_states() -> None:
    automaton = TensorAutomaton.from_edges(
        2, [(0, 0, 1), (0, 1, 1), (0, 1, 0), (0, 0, 1)], 2, [0], [1]
    )
    assert automaton.T_out.to_dense().tolist() == [[True, True], [False, False]]
    assert automaton.T_in.to_dense().tolist() == [[True, False], [False, True]]
    assert automaton.B_f.to_dense().tolist() == [[False, True], [True, True]]


# -- the passes, for any automaton ----------------------------------------------------------


@settings(max_examples=40)
@given(edge_lists())
def test_backward_pass_finds_completions_of_exactly_each_length(nfa: EdgeList) -> None:
    alive = TensorAutomaton.from_edges(*nfa).backward_pass(LENGTH)
    accepting = set(nfa.accepting)
    for state in range(nfa.num_states):
        lengths = {
            len(string)
            for string in strings(range(nfa.num_classes), LENGTH)
            if nfa_states(nfa, [state], string) & accepting
        }
        assert set(alive[:, state].nonzero().flatten().tolist()) == lengths


@settings(max_examples=40)
@given(edge_lists(), st.data())
def test_forward_pass_finds_the_states_that_strings_lead_to(
    nfa: EdgeList, data: st.DataObject
) -> None:
    row = st.lists(st.booleans(), min_size=nfa.num_classes, max_size=nfa.num_classes)
    classes = torch.tensor(data.draw(st.lists(row, min_size=4, max_size=4)))
    automaton = TensorAutomaton.from_edges(*nfa)
    free, restricted = automaton.forward_pass(4), automaton.forward_pass(4, classes)
    for t in range(5):
        anything, allowed = set(), set()
        for string in strings(range(nfa.num_classes), t):
            if len(string) == t:
                states = nfa_states(nfa, nfa.initial, string)
                anything |= states
                if all(classes[i, c] for i, c in enumerate(string)):
                    allowed |= states
        assert set(free[t].nonzero().flatten().tolist()) == anything
        assert set(restricted[t].nonzero().flatten().tolist()) == allowed


@settings(max_examples=40)
@given(edge_lists())
def test_allowed_classes_are_those_with_a_completion_of_an_nfa(nfa: EdgeList) -> None:
    automaton = TensorAutomaton.from_edges(*nfa)
    alive = automaton.backward_pass(LENGTH)
    words = {
        string
        for string in strings(range(nfa.num_classes), LENGTH)
        if nfa_states(nfa, nfa.initial, string) & set(nfa.accepting)
    }
    for prefix in strings(range(nfa.num_classes), 2):
        members = nfa_states(nfa, nfa.initial, prefix)
        states = torch.tensor([s in members for s in range(nfa.num_states)])
        for total in range(len(prefix) + 1, LENGTH + 1):
            left = torch.tensor([total - len(prefix)])
            (allowed,) = automaton.class_mask(states.unsqueeze(0), left, alive)
            truth = {
                w[len(prefix)] for w in words if len(w) == total and w[: len(prefix)] == prefix
            }
            assert set(allowed.nonzero().flatten().tolist()) == truth


@settings(max_examples=60)
@given(edge_lists(looping=True))
def test_the_two_forms_are_the_same_function(nfa: EdgeList) -> None:
    automaton = TensorAutomaton.from_edges(*nfa)
    steps = automaton.steps_to_accept()
    for remaining, alive in enumerate(automaton.backward_pass(2 * nfa.num_states)):
        assert torch.equal(alive, steps <= remaining)
    assert ((steps < nfa.num_states) | (steps == UNREACHABLE)).all()
