"""The pool, compared with `gcd.BudgetMask` while automata are added and evicted and it is full."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gcd
from gcd_vllm._pool import DEAD, END, NOWHERE, AutomatonPool
from gcd_vllm._v1 import TokenReader
from tests.small_vocabulary import vocabulary

TOKENS = vocabulary()
AUTOMATA = [
    gcd.lift(gcd.regex(pattern), TOKENS)
    for pattern in ("a*b", "[a-z]{1,40}", "(one|two)( more){0,9}", '{"name":"[^"]*"}', "x")
]


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def masked(pool, places, states, left):
    logits = torch.zeros(len(places), TOKENS.size)
    pool.mask_(logits, tensor(*places), tensor(*states), tensor(*left))
    return torch.isfinite(logits)


def check(pool, automaton, place, rng):
    """Check every state's mask with some budget, and its next states."""
    mask, count = gcd.BudgetMask(automaton, int(automaton.steps_to_accept.max())), 0
    states = range(automaton.num_states)
    left = [rng.randint(1, 45) for _ in states]
    expected = mask.mask(tensor(*states), tensor(*left))
    found = masked(pool, [place] * len(states), states, left)
    for row, wanted in zip(found, expected, strict=True):
        if wanted.any():
            count += 1
            assert torch.equal(row, wanted)
        else:
            assert row.nonzero().flatten().tolist() == list(TOKENS.eos_ids)
    assert count
    tokens = tensor(*(rng.randrange(TOKENS.size) for _ in states))
    after = pool.next(tensor(place).expand(len(states), 4), tensor(*states), tokens)
    assert torch.equal(after, mask.batch.next(tensor(*states), tokens))


def test_automata_come_and_go_and_masks_stay_right():
    rng = random.Random(0)
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids, max_bytes=8 * 66_000 + 4 * 263 * 8)
    pool.after_flat, pool.steps_flat = pool.after_flat[:700], pool.steps_flat[:700]
    users = []
    for _ in range(100):
        automaton = rng.choice(AUTOMATA)
        place = pool.enter(automaton)
        users.append((automaton, place))
        for known, where in users:
            check(pool, known, where, rng)
        while len(users) > 2:
            pool.leave(users.pop(rng.randrange(len(users)))[0])


def test_a_full_pool_refuses_and_takes_again_when_there_is_room():
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids)
    pool.max_bytes = pool.nbytes
    entered = AUTOMATA[:3]  # four rows of classes, including one for `END`
    places = [pool.enter(automaton) for automaton in entered]
    with pytest.raises(gcd.ConstraintError, match="retry later"):
        pool.enter(AUTOMATA[3])
    assert pool.enter(entered[0]) == places[0]  # all users share one copy
    pool.leave(entered[1])
    place = pool.enter(AUTOMATA[3])
    check(pool, AUTOMATA[3], place, random.Random(1))
    check(pool, entered[0], places[0], random.Random(1))
    assert pool.nbytes == pool.max_bytes


def test_the_last_part_of_the_room_is_used():
    """Doubling alone would only use half of it."""
    limit = 8 * 200_000
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids, max_bytes=limit)
    places = []
    for size in range(1, 400):
        automaton = gcd.lift(gcd.regex(f"[a-z]{{{60 * size}}}b"), TOKENS)
        try:
            places.append((automaton, pool.enter(automaton)))
        except gcd.ConstraintError:
            break
    assert pool.nbytes <= limit
    taken = sum(8 * automaton.delta.size + 4 * TOKENS.size for automaton, _ in places)
    assert taken + 8 * automaton.delta.size > 0.9 * limit
    for known, place in places[::9]:
        check(pool, known, place, random.Random(2))


def test_masks_are_as_wide_as_the_widest_automaton_in_use():
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids)
    narrow, wide = sorted(AUTOMATA, key=lambda each: each.num_classes)[:: len(AUTOMATA) - 1]
    for automaton in (narrow, wide):
        pool.enter(automaton)
    assert pool.widest == wide.num_classes
    pool.leave(wide)
    assert pool.widest == narrow.num_classes
    check(pool, wide, pool.enter(wide), random.Random(1))


def test_rows_without_a_constraint_rows_that_end_and_rows_that_are_dead():
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids)
    place = pool.enter(AUTOMATA[0])
    found = masked(pool, [NOWHERE, END, place, place], [0, 0, DEAD, 0], [0, 9, 9, 0])
    assert found[0].all()
    for row in found[1:]:
        assert row.nonzero().flatten().tolist() == list(TOKENS.eos_ids)
    logits = torch.zeros(3, TOKENS.size)
    pool.mask_(logits, tensor(END), tensor(0), tensor(1), at=tensor(1))
    assert torch.isfinite(logits).sum(dim=1).tolist() == [TOKENS.size, 1, TOKENS.size]


def test_another_vocabulary_and_tokens_that_are_none():
    pool = AutomatonPool(TOKENS.size + 1, TOKENS.eos_ids)
    with pytest.raises(gcd.ConstraintError, match="as wide as the logits"):
        pool.enter(AUTOMATA[0])
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids)
    place = tensor(pool.enter(AUTOMATA[0])).expand(3, 4)
    given = tensor(-1, TOKENS.size, ord("a"))
    assert (pool.next(place, tensor(0, 0, 0), given) == DEAD).tolist() == [True, True, False]


def test_an_automaton_that_could_not_be_written_is_not_stored(monkeypatch):
    pool = AutomatonPool(TOKENS.size, TOKENS.eos_ids)
    monkeypatch.setattr(AutomatonPool, "_write", None)
    with pytest.raises(TypeError):
        pool.enter(AUTOMATA[0])
    monkeypatch.undo()
    check(pool, AUTOMATA[0], pool.enter(AUTOMATA[0]), random.Random(1))


@given(
    st.sampled_from(AUTOMATA),
    st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(-1, TOKENS.size), max_size=6))),
)
def test_a_reader_agrees_with_a_run_from_the_beginning(automaton, changes):
    reader, tokens = TokenReader(automaton), []
    for kept, more in changes:
        tokens = [*tokens[:kept], *more]
        state = automaton.initial
        for token in tokens:
            if state == DEAD or not 0 <= token < TOKENS.size:
                state = DEAD
                break
            state = int(automaton.delta[state, automaton.class_of[token]])
        assert reader.state(tokens) == state
