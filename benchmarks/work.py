"""What a unit of work takes: seconds per unit of each loop that `gcd.work_limit` bounds.

The prices in `gcd.automata` are set so that no loop takes more than some 5 ns a unit on one idle
core; the default limit is then at most about 10 s. Each row is an input that is bad for its loop
(random tables that miss every cache, sets of a thousand members, a cycle that fingerprints cannot
tell apart). Peak memory is the growth of this process over all that went before.

    python -m benchmarks.work
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from gcd.automata.automaton import Automaton
from gcd.automata.limits import metered, state_limit, work_left, work_limit

STATES = 200_000


def _table(rng: np.random.Generator, states: int, classes: int, density: float) -> np.ndarray:
    table = rng.integers(0, states, (states, classes)).astype(np.int32)
    table[rng.random(table.shape) > density] = -1
    return table


def _random(rng: np.random.Generator, states: int, classes: int, density: float) -> Automaton:
    class_of_byte = (np.arange(256) % classes).astype(np.uint8)
    table = _table(rng, states, classes, density)
    return Automaton.minimal(table, rng.random(states) < 0.5, class_of_byte)


def _late_a(gap: int) -> Automaton:
    edges = [(0, b"ab", 0), (0, b"a", 1), *((i, b"ab", i + 1) for i in range(1, gap + 1))]
    return Automaton.from_nfa(gap + 2, edges, accepting=[gap + 1])


def _cycle(states: int) -> Automaton:
    """All but one state accept: minimisation has to go round."""
    table = np.stack([(np.arange(states) + 1) % states, np.arange(states)], axis=1)
    class_of_byte = (np.arange(256) > 97).astype(np.uint8)
    return Automaton.minimal(table.astype(np.int32), np.arange(states) > 0, class_of_byte)


def _builds() -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    free, letters = Automaton.any_bytes(), [Automaton.byte_set(range(97, 123))] * 1500
    words = [bytes(rng.integers(97, 123, 10).astype(np.uint8)) for _ in range(20_000)]
    literals = [Automaton.literal(word) for word in words]
    a, b = (_random(rng, 700, 60, 0.9) for _ in range(2))
    many = Automaton.from_strings(words[:5000])
    return {
        "subset construction, .*a.{16}": lambda: _late_a(16),
        "join, 1500 letters anywhere": lambda: Automaton.concatenate([free, *letters, free]),
        "join, 20 000 words": lambda: Automaton.union(literals),
        "join, 40 000 states 20 times": lambda: many.repeat(0, 20),
        "product, 490 000 random pairs": lambda: a & b,
        "normal form, random dense": lambda: _random(rng, STATES, 40, 0.9),
        "normal form, random sparse": lambda: _random(rng, STATES, 40, 0.3),
        "normal form, one cycle": lambda: _cycle(STATES),
        "strings, 20 000 words": lambda: Automaton.from_strings(words),
        "longest length": lambda: Automaton.from_strings(words).longest_length,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    _late_a(3) | _cycle(3).repeat(2)  # compiles
    print(f"{'loop':34}{'seconds':>9}{'units':>15}{'ns/unit':>9}{'peak GiB':>10}")
    with state_limit(10**7), work_limit(10**11):
        for name, build in _builds().items():
            before = _peak()
            with metered():
                left, began = work_left(), time.perf_counter()
                build()
                seconds, units = time.perf_counter() - began, left - work_left()
            print(
                f"{name:34}{seconds:9.3f}{units:15,}{seconds / units * 1e9:9.2f}"
                f"{_peak() - before:10.2f}"
            )


if __name__ == "__main__":
    main()
