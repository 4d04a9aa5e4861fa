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

from gcd._errors import ConstraintError, EmptyLanguageError
from gcd._support.kernels.grouping import number_by_first
from gcd._tokens.trimming import ENDINGS, TokenTable, trim, with_final
from gcd._tokens.vocabulary import Ids, Vocabulary

Edge = tuple[Hashable, Ids, Hashable]
"""Edge: (source state, token id or ids, target state)."""

Wire = tuple[Int64[np.ndarray, "_"], int]
"""Edge from a given source state: (token ids in ascending order, number of the target state)."""


def from_position_sets(
    vocabulary: Vocabulary, sets: Sequence[Ids], *, eos: str = "token"
) -> TokenTable:
    """Build the table of all texts whose t-th token is from `sets[t]`, with `len(sets)` tokens.

    Args:
        vocabulary: the tokens.
        sets: for each position, the allowed token id or ids.
        eos: how a text ends, as in `from_transitions`.

    Raises:
        ConstraintError: for an id outside the vocabulary, or an id that is never part of a text.
        EmptyLanguageError: if a position allows no token.
    """
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

    Args:
        vocabulary: the tokens.
        edges: (source, token id or ids, target). The automaton has all states that occur in
            `edges`, `accepting` and `initial`.
        accepting: states in which the text may end.
        initial: the state in which it begins.
        eos: `"token"`: accepting states allow the vocabulary's EOS ids, which edges do not name.
            `"accept"`: a text ends automatically in an accepting state, which has no edges.

    Raises:
        ConstraintError: for an id outside the vocabulary, an EOS id, an id without bytes, or a
            token that leads from one state to two. With `eos="token"`, for a vocabulary without
            EOS. With `eos="accept"`, for an accepting state with edges.
        EmptyLanguageError: if no tokens lead from `initial` to an accepting state.
    """
    if eos not in ENDINGS:
        raise ConstraintError(f"expected eos to be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "expected a vocabulary with EOS ids, got none; pass eos_ids when building it, or use "
            'eos="accept"'
        )
    names: dict[Hashable, int] = {initial: 0}
    wired: dict[int, list[Wire]] = {}
    for source, ids, target in edges:
        tokens = _ids(vocabulary, ids, f"the edge {source!r} -> {target!r}")
        start = names.setdefault(source, len(names))
        wired.setdefault(start, []).append((tokens, names.setdefault(target, len(names))))
    ends = [names.setdefault(state, len(names)) for state in accepting]
    is_accepting = np.zeros(len(names), np.bool_)
    is_accepting[ends] = True
    named = list(names)
    if eos == "accept":
        for end in ends:
            if wired.get(end):
                raise ConstraintError(
                    'expected accepting states without edges for eos="accept", got edges from '
                    f"{named[end]!r}; remove them, or use a vocabulary with an EOS id"
                )

    leaving = [wired.get(state, []) for state in range(len(names))]
    targets, class_of = _classify(leaving, named, vocabulary)
    delta, class_of = with_final(targets, is_accepting, class_of, eos)
    start = len(names) if eos == "accept" and is_accepting[0] else 0
    table = trim(delta, class_of, start)
    if table is None:
        raise EmptyLanguageError(
            f"expected tokens that lead from {initial!r} to one of {len(ends)} accepting states, "
            "got none; check the edges"
        )
    return table


def _classify(
    leaving: Sequence[Sequence[Wire]], names: Sequence[Hashable], vocabulary: Vocabulary
) -> tuple[Int32[np.ndarray, "S C"], Int32[np.ndarray, "V"]]:
    """Group tokens into classes, and return the table over classes and each token's class.

    Tokens that lead to the same state from every state are in one class. The classes are split
    state by state.
    """
    class_of, count = np.zeros(vocabulary.size, np.int64), 1
    for state, wires in enumerate(leaving):
        row = _row(wires, state, names, vocabulary)
        ways = np.unique(row)
        class_of, first = number_by_first(
            class_of * ways.size + np.searchsorted(ways, row), count * ways.size
        )
        count = first.size
    # EOS ids are in no edge, and get no class (number -1).
    usual = np.ones(vocabulary.size, np.bool_)
    usual[list(vocabulary.eos_ids)] = False
    kept, first = number_by_first(class_of[usual].astype(np.int64), count)
    numbered = np.full(vocabulary.size, -1, np.int32)
    numbered[usual] = kept
    columns = np.flatnonzero(usual)[first]
    rows = [_row(wires, state, names, vocabulary)[columns] for state, wires in enumerate(leaving)]
    return np.stack(rows), numbered


def _row(
    wires: Sequence[Wire], state: int, names: Sequence[Hashable], vocabulary: Vocabulary
) -> Int32[np.ndarray, "V"]:
    """Return the state after each token from one state, -1 for none."""
    row = np.full(vocabulary.size, -1, np.int32)
    for tokens, target in wires:
        taken = tokens[(row[tokens] >= 0) & (row[tokens] != target)]
        if taken.size:
            raise ConstraintError(
                f"expected one target for token {taken[0]} from state {names[state]!r}, got "
                f"{names[row[taken[0]]]!r} and {names[target]!r}; remove one of the edges"
            )
        row[tokens] = target
    return row


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
