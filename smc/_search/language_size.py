"""Size of a token automaton's language: its longest answer, and its number of prefixes.

Both refer to token sequences, so a text counts once for each way to split it into tokens. With w(c)
the number of token ids of class c, and paths(t, s) the number of prefixes of t tokens that lead to
state s,

    longest(s)   = max over edges s -> s' of 1 + longest(s'),        longest(final) = 0
    paths(t, s') = sum over edges s -> s' by class c of paths(t - 1, s) w(c)

The second sum only includes edges that the budget allows. The longest answer takes O(E log E), with
E the number of connected pairs of states. The number of prefixes takes O(t S C), with t the step in
which the limit is exceeded.
"""

from __future__ import annotations

import numpy as np

from gcd._tokens.distances import fits
from gcd._tokens.token_automaton import TokenAutomaton


def longest_answer(automaton: TokenAutomaton) -> int | None:
    """Return the number of tokens of a longest answer, EOS included; None if unbounded."""
    pairs = automaton.rows.edges.T
    pairs = pairs[pairs[:, 0] != automaton.final]  # without the loop of the final state
    start = np.searchsorted(pairs[:, 0], np.arange(automaton.num_states + 1))
    waiting = np.bincount(pairs[:, 1], minlength=automaton.num_states)
    layer = np.array([automaton.initial]) if waiting[automaton.initial] == 0 else np.zeros(0, int)
    seen = depth = 0
    while layer.size:  # states all of whose predecessors are in earlier layers
        seen, depth = seen + layer.size, depth + 1
        targets = np.concatenate([pairs[start[s] : start[s + 1], 1] for s in layer.tolist()])
        reached, arrivals = np.unique(targets, return_counts=True)
        waiting[reached] -= arrivals
        layer = reached[waiting[reached] == 0]
    return depth - 1 if seen == automaton.num_states else None


def count_prefixes(automaton: TokenAutomaton, budget: int, most: int) -> int:
    """Count the token sequences that begin an answer of at most `budget` tokens.

    Empty sequences and whole answers don't count. Counting stops at a number above `most`.
    """
    paths = {automaton.initial: 1} if automaton.initial != automaton.final else {}
    total = 0
    width = automaton.tokens_per_class
    for remaining in range(budget, 0, -1):
        after: dict[int, int] = {}
        for state, count in paths.items():
            classes, targets = automaton.rows.row(state)
            goes_on = fits(automaton.steps_to_accept[targets], remaining)
            goes_on &= targets != automaton.final
            tokens_of = width[classes[goes_on]].tolist()
            for target, tokens in zip(targets[goes_on].tolist(), tokens_of, strict=True):
                after[target] = after.get(target, 0) + count * tokens
        total += sum(after.values())
        if total > most or not after:
            break
        paths = after
    return total
