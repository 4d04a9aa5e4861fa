"""Token automata from hand-written tables, without any text.

They are for constraints on tokens rather than on text. There are two forms: a set of allowed tokens
for each position, and states with edges between them. `TokenAutomaton.from_position_sets` and
`.from_transitions` make ordinary automata of the tables built here, so budgets, masks and sampling
work as with any other constraint.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from gcd._arguments import Ids
from gcd._errors import ConstraintError, EmptyLanguageError
from gcd._tokens.kernels.classes import number_tokens, one_class, refine
from gcd._tokens.trimming import ENDINGS, TokenTable, trim, with_final
from gcd._tokens.vocabulary import Vocabulary

Edge = tuple[Hashable, Ids, Hashable]
"""Edge: (source state, token id or ids, target state)."""


def from_position_sets(
    vocabulary: Vocabulary, sets: Sequence[Ids], *, eos: str = "token"
) -> TokenTable:
    """Build the table of all texts whose t-th token is from `sets[t]`, with `len(sets)` tokens."""
    edges = []
    for position, ids in enumerate(sets):
        allowed = _ids(vocabulary, ids, f"position {position}")
        if not allowed.size:
            raise EmptyLanguageError(
                f"expected at least one token at position {position}, got none"
            )
        edges.append((position, allowed.tolist(), position + 1))
    return from_transitions(vocabulary, edges, accepting=[len(edges)], initial=0, eos=eos)


def from_transitions(
    vocabulary: Vocabulary,
    edges: Iterable[Edge],
    *,
    accepting: Iterable[Hashable],
    initial: Hashable,
    eos: str = "token",
) -> TokenTable:
    """Build the table of an automaton from its edges; any hashable value names a state.

    Tokens that lead to the same state from every state form a class.
    """
    if eos not in ENDINGS:
        raise ConstraintError(f"expected eos to be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "expected a vocabulary with EOS ids, got none; pass eos_ids when building it, or use "
            'eos="accept"'
        )
    number: dict[Hashable, int] = {initial: 0}
    wired: dict[int, list[tuple[Int64[np.ndarray, "_"], int]]] = {}
    for source, ids, target in edges:
        tokens = _ids(vocabulary, ids, f"the edge {source!r} -> {target!r}")
        start = number.setdefault(source, len(number))
        wired.setdefault(start, []).append((tokens, number.setdefault(target, len(number))))
    ends = [number.setdefault(state, len(number)) for state in accepting]
    names = list(number)
    is_accepting = np.zeros(len(names), np.bool_)
    is_accepting[ends] = True
    if eos == "accept" and not wired.keys().isdisjoint(ends):
        end = next(end for end in ends if end in wired)
        raise ConstraintError(
            'expected accepting states without edges for eos="accept", got edges from '
            f"{names[end]!r}; remove them, or use a vocabulary with an EOS id"
        )

    classes = one_class(vocabulary.size)
    row = np.full(vocabulary.size, -1, np.int32)  # the state after each token from one state
    steps: dict[int, tuple[Int32[np.ndarray, "_"], Int32[np.ndarray, "_"]]] = {}
    for state, wires in wired.items():
        for tokens, after in wires:
            taken = tokens[(row[tokens] >= 0) & (row[tokens] != after)]
            if taken.size:
                raise ConstraintError(
                    f"expected one target for token {taken[0]} from state {names[state]!r}, got "
                    f"{names[row[taken[0]]]!r} and {names[after]!r}; remove one of the edges"
                )
            row[tokens] = after
        allowed = np.flatnonzero(row >= 0).astype(np.int32)
        steps[state] = allowed, row[allowed]
        refine(classes, *steps[state], allowed.size)
        row[allowed] = -1
    is_eos = np.zeros(vocabulary.size, np.bool_)
    is_eos[list(vocabulary.eos_ids)] = True
    every = np.arange(vocabulary.size, dtype=np.int32)
    class_of, first = number_tokens(classes[0], every, is_eos, 2 * vocabulary.size + 1)
    targets = np.full((len(names), first.size), -1, np.int32)
    for state, (allowed, reached) in steps.items():
        targets[state, class_of[allowed]] = reached

    delta, class_of = with_final(targets, is_accepting, class_of, eos)
    table = trim(delta, class_of, len(names) if eos == "accept" and is_accepting[0] else 0)
    if table is None:
        raise EmptyLanguageError(
            f"expected tokens that lead from {initial!r} to one of {len(ends)} accepting states, "
            "got none; check the edges"
        )
    return table


def _ids(vocabulary: Vocabulary, ids: Ids, where: str) -> Int64[np.ndarray, "ids"]:
    """Return these ids in ascending order; raise if one of them is never part of a text."""
    listed = [ids] if isinstance(ids, (int, np.integer)) else list(ids)
    tokens = np.unique(np.array(listed, np.int64))
    outside = tokens[(tokens < 0) | (tokens >= vocabulary.size)]
    if outside.size:
        raise ConstraintError(
            f"{where}: expected token ids in 0..{vocabulary.size - 1}, got {outside[0]}"
        )
    for token in tokens.tolist():
        if token in vocabulary.eos_ids:
            raise ConstraintError(
                f"{where}: expected tokens that don't end the text, got EOS id {token}; remove it, "
                "because accepting states allow EOS automatically"
            )
        if not vocabulary.token_bytes[token]:
            raise ConstraintError(
                f"{where}: expected tokens with bytes, got token {token}, which is special, "
                "padding or empty; remove it"
            )
    return tokens
