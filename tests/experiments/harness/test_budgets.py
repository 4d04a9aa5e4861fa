"""Budgets by name."""

from __future__ import annotations

import gcd
from experiments.harness.budgets import budget_of

VOCABULARY = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], [256])


def test_names_grow_with_the_shortest_answer():
    short = gcd.lift(gcd.literal("abc"), VOCABULARY)  # 3 bytes and EOS
    long = gcd.lift(gcd.literal("abcdefgh"), VOCABULARY)
    assert [budget_of(name, short) for name in ("tight", "default", "loose")] == [20, 40, 112]
    assert [budget_of(name, long) for name in ("tight", "default", "loose")] == [25, 50, 132]


def test_a_number_is_taken_as_it_is():
    assert budget_of(7, gcd.lift(gcd.literal("abc"), VOCABULARY)) == 7
