"""Work limits: constructions are charged, stop at the limit, and cost the same each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gcd import Automaton, StateLimitError, WorkLimitError, work_limit
from gcd._automata import limits
from gcd._automata.limits import (
    DEFAULT_MAX_WORK,
    cache_with_price,
    count_work,
    pay,
    spend,
    work_left,
)
from tests.gcd.oracles import work_of

LETTER = Automaton.byte_set(b"abcdefghijklmnopqrstuvwxyz")
WORDS = [f"{n * n}" for n in range(200)]


def _late_a(gap: int) -> Automaton:
    """`.*a.{gap}`: 2 ** (gap + 1) states."""
    edges = [(0, b"ab", 0), (0, b"a", 1), *((i, b"ab", i + 1) for i in range(1, gap + 1))]
    return Automaton.from_nfa(gap + 2, edges, accepting=[gap + 1])


def _somewhere(count: int) -> Automaton:
    """`count` letters in a row somewhere: few states, each a set of many."""
    free = Automaton.any_bytes()
    return Automaton.concatenate([free, *[LETTER] * count, free])


def _pairs(a: int, b: int) -> Automaton:
    return LETTER.repeat(a, a).star() & LETTER.repeat(b, b).star()


CONSTRUCTIONS: dict[str, Callable[[], Automaton]] = {
    "subsets": lambda: _late_a(10),
    "joined subsets": lambda: _somewhere(200),
    "lone states": lambda: LETTER.repeat(0, 3000),
    "product": lambda: _pairs(30, 31),
    "complement": lambda: ~LETTER.repeat(2000, 2000),
    "strings": lambda: Automaton.from_strings(WORDS),
    "union": lambda: Automaton.union([Automaton.literal(word) for word in WORDS]),
    "reverse": lambda: _late_a(3).reverse().star(),
    "normal form": lambda: Automaton.minimal(
        np.zeros((500, 2), np.int32), np.ones(500, bool), np.zeros(256, np.uint8)
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_every_construction_stops_at_the_limit_on_work(name: str) -> None:
    build = CONSTRUCTIONS[name]
    needed = work_of(build)
    assert needed == work_of(build) > 0
    with work_limit(needed), count_work():
        built = build()
        assert work_left() == 0
    assert built == build()
    for most in (needed - 1, needed // 2, needed // 20, needed // 100):
        with work_limit(most), pytest.raises(WorkLimitError, match="units of work"), count_work():
            build()


def test_work_grows_with_the_sets_and_not_only_with_the_states() -> None:
    assert work_of(lambda: _somewhere(400)) > 3 * work_of(lambda: _somewhere(200))


@pytest.mark.parametrize(
    "name", ["subsets", "joined subsets", "lone states", "product", "complement", "strings"]
)
def test_the_entries_of_a_table_are_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = CONSTRUCTIONS[name]
    size = build().delta.size
    monkeypatch.setattr(limits, "_WORK_PER_CELL", DEFAULT_MAX_WORK)
    monkeypatch.setattr(limits, "_MANY_CELLS", size // 2)
    with count_work(), pytest.raises(WorkLimitError):
        build()


def test_work_is_one_constraints() -> None:
    with work_limit(100):
        spend(60)
        spend(60)  # outside of a meter, each operation is a separate constraint
        with count_work():
            spend(60)
            with count_work():
                assert work_left() == 40
                with pytest.raises(WorkLimitError, match="the part takes more than 100 units"):
                    spend(41, "the part")
    assert work_left() == DEFAULT_MAX_WORK


def test_a_loop_that_gave_up_is_refused() -> None:
    with pytest.raises(WorkLimitError):
        pay(-1, work_left() + 1)
    with pytest.raises(StateLimitError):
        pay(-1, 5)
    pay(3, 5)


def test_what_is_remembered_costs_its_price_again() -> None:
    calls = []

    @cache_with_price(8)
    def build(units: int) -> int:
        calls.append(units)
        if units > 10:
            build(units - 10)
        spend(10)
        return units

    assert [work_of(lambda: build(25)) for _ in range(3)] == [30, 30, 30]
    assert calls == [25, 15, 5]
    with work_limit(29), pytest.raises(WorkLimitError):
        build(25)
