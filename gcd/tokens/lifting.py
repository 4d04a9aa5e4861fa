"""Lifting turns a byte automaton into an automaton over the tokens of a vocabulary.

The state after a token is the state after its bytes. From a state the vocabulary's prefix tree is
walked once, leaving subtrees as soon as a byte has no transition.

**Classes.** Tokens with the same column of next states are one class. The partition is refined
state by state, starting from a single block: entries (distinct byte strings) of one block part
when the state sends them to different targets. A step costs as much as there are live tokens, and
no table over states and tokens is ever made. One representative of each class is then walked
again, over a prefix tree of representatives alone, for the table over states and classes.

**Counted runs.** Inside a string literal nearly every token lives, and a schema has such a state
for each string in it, or some twenty for each character of a string of bounded length. There the
vocabulary is not walked at all. The product of a string body with a counter is recognised in the
automaton (`gcd.tokens.kernels.counted_runs`), whatever it was made from: the body's unit is walked
once per vocabulary (`gcd.tokens.profiles`), a token that stays inside moves the
counter by as many units as it completes, and only what follows a way out is walked, once for each
different way. So an intersection with a length limit costs classes, not tokens, for each of its
states. A state that is like such a boundary but for a few words is walked where the two differ.

**Factors.** Where an automaton is known to be a Boolean combination of others
(`Automaton.factors`), tokens with the same columns in all of these have the same column in it. So
the vocabulary is walked for the states of the factors, which add up, and not for those of the
product, which multiply. Representatives alone are walked from every state.

**What is kept.** States that whole tokens reach and from which whole tokens lead to acceptance. A
byte automaton may have others: with no token that begins in the middle of a character, the bytes
of a character cannot be completed. They go, and classes that only they distinguished become one.

Cost: O(V) once, live tree nodes for each state outside counted runs, live classes inside; and the
table itself, states x classes, which is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8, UInt64

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError, check_kind
from gcd.support.stopping import stop_if_asked
from gcd.tokens.canonical import LITERALS, canonical
from gcd.tokens.kernels import lifting as kernels
from gcd.tokens.kernels.classes import (
    from_classes,
    number_tokens,
    one_class,
    refine,
)
from gcd.tokens.kernels.counted_runs import Cells, find_cells
from gcd.tokens.kernels.lifting import Ways
from gcd.tokens.kernels.lifting_table import pass_over_rows
from gcd.tokens.profiles import UnitProfile
from gcd.tokens.segments import Segments
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.trie import read_only
from gcd.tokens.trimming import (
    ENDINGS,
    TokenTable,
    add_end,
    trim,
    trim_numbered,
    with_final,
)
from gcd.tokens.unrolling import count_tokens
from gcd.tokens.vocabulary import Vocabulary


def lift(
    automaton: Automaton | Segments,
    vocabulary: Vocabulary,
    *,
    eos: str = "token",
    literals: str = "all",
) -> TokenAutomaton:
    """Return the token automaton of a language of byte strings.

    Args:
        automaton: the language; or segments, which may have limits of tokens (`gcd.segments`).
        vocabulary: the tokens to spell it with.
        eos: how a text ends. `"token"`: with one of the vocabulary's EOS ids, which is allowed
            exactly where a string of the language ends. `"accept"`, for models that have no
            such id: by itself, on entering an accepting state; this costs no token, and asks
            for a language in which no string is the beginning of another.
        literals: how text that leaves little choice may be spelled. `"all"`: in all ways.
            `"canonical"`: as the tokenizer spells it (`gcd.tokens.canonical`), so that most of it
            is determined. The texts are the same, but a text may take more tokens than in its
            shortest spelling, which is what budgets then count.

    Raises:
        EmptyLanguageError: if the language is empty, or no string of it can be written with
            the vocabulary's tokens; with `"canonical"`, none that the tokenizer can write.
        ConstraintError: if the vocabulary has no EOS id and `eos` is `"token"`; if `eos` is
            `"accept"` and a string of the language begins another one, or segments are lifted; if
            `literals` is `"canonical"` and the vocabulary was not made from a tokenizer; if a
            segment ends with an id that is no special token.
        InfeasibleBudgetError: if a segment's own limit of tokens is too low for it.
    """
    check_kind(
        automaton,
        (Automaton, Segments),
        "what is lifted is a gcd.Automaton or gcd.Segments",
        "compile it first, as gcd.regex and gcd.json_schema do",
    )
    check_kind(
        vocabulary,
        Vocabulary,
        "lift() takes a gcd.Vocabulary",
        "give lm.vocabulary, or gcd.Vocabulary.from_tokenizer(tokenizer)",
    )
    if literals not in LITERALS:
        raise ConstraintError(f"literals must be one of {LITERALS}, got {literals!r}")
    if eos not in ENDINGS:
        raise ConstraintError(f"eos must be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "the vocabulary has no EOS id, so no text could ever end; pass eos_ids when building "
            'it, or lift with eos="accept" if the language itself says where a text ends'
        )
    table = (
        _table_of_segments(automaton, vocabulary, eos)
        if isinstance(automaton, Segments)
        else _table(automaton, vocabulary, eos)
    )
    if table is None:
        raise EmptyLanguageError(why_unwritable(automaton, vocabulary))
    lifted = TokenAutomaton(
        vocabulary, *table, max_bytes=automaton.max_bytes, caveats=automaton.caveats
    )
    if literals == "all":
        return lifted
    table = canonical(lifted)
    if table is None:
        raise EmptyLanguageError(
            "the tokenizer itself can write no string of the language, such as "
            f'{automaton.shortest()[:60]!r}; lift it with literals="all"'
        )
    return TokenAutomaton(
        vocabulary, *table, max_bytes=automaton.max_bytes, caveats=automaton.caveats
    )


def _table(automaton: Automaton, vocabulary: Vocabulary, eos: str) -> TokenTable | None:
    """Return the table of a language; None if no string of it can be written with the tokens."""
    if automaton.is_empty:
        raise EmptyLanguageError("no string satisfies the constraint: its language is empty")
    if eos == "accept":
        _refuse_continuations(automaton)
    if eos == "token":
        found = _numbered_table(automaton, vocabulary, None)
        return None if found is None else found[0]
    delta, class_of, _ = lift_arrays(
        automaton.delta, automaton.class_of_byte, vocabulary, automaton.factors
    )
    accepting = automaton.accepting
    delta, class_of = with_final(delta[:-1, :-1], accepting, class_of, eos)
    return trim(delta, class_of, accepting.size if accepting[0] else 0)


def _numbered_table(
    automaton: Automaton, vocabulary: Vocabulary, max_bytes: int | None
) -> tuple[TokenTable, Int32[np.ndarray, "S1"]] | None:
    """Return the table of a language that ends with EOS, and the number of each byte state in it.

    The last number is that of the final state. None as for `_table`.
    """
    delta, class_of, edges = lift_arrays(
        automaton.delta, automaton.class_of_byte, vocabulary, automaton.factors, max_bytes
    )
    accepting = automaton.accepting
    ends = np.append(np.flatnonzero(accepting), accepting.size).astype(np.int32)
    add_end(delta, accepting)
    class_of[list(vocabulary.eos_ids)] = delta.shape[1] - 1
    edges = np.concatenate([edges, np.stack([ends, np.full_like(ends, accepting.size)], 1)])
    return trim_numbered(delta, class_of, 0, edges)


def lift_numbered(
    automaton: Automaton, vocabulary: Vocabulary, max_bytes: int
) -> tuple[TokenAutomaton, Int32[np.ndarray, "S1"]]:
    """Lift a language as `lift` does, and return the number of each byte state in the result.

    Args:
        automaton: the language; some string of it can be written with the tokens.
        vocabulary: the tokens, EOS included.
        max_bytes: bytes of the table at most.

    Returns:
        The token automaton, and its state for each byte state and, last, for the final state; -1
        for states that whole tokens do not reach.

    Raises:
        ConstraintError: the table would be larger.
    """
    found = _numbered_table(automaton, vocabulary, max_bytes)
    assert found is not None, "some string can be written"
    table, number = found
    lifted = TokenAutomaton(
        vocabulary, *table, max_bytes=automaton.max_bytes, caveats=automaton.caveats
    )
    return lifted, number


def _table_of_segments(segments: Segments, vocabulary: Vocabulary, eos: str) -> TokenTable | None:
    """Return the table of segments; None if no answer can be written with the tokens."""
    if eos == "accept":
        raise ConstraintError(
            'segments end with an EOS id, which counts for the last one; lift them with eos="token"'
        )
    segments.check(vocabulary)
    states = segments.states()
    delta, class_of, _ = lift_arrays(states.delta, states.class_of_byte, vocabulary)
    return count_tokens(segments, states, delta[:-1, :-1], class_of)


def lift_arrays(
    delta: Int32[np.ndarray, "S K"],
    class_of_byte: UInt8[np.ndarray, "256"],
    vocabulary: Vocabulary,
    factors: Sequence[Automaton] = (),
    max_bytes: int | None = None,
) -> tuple[Int32[np.ndarray, "S1 C1"], Int32[np.ndarray, "V"], Int32[np.ndarray, "E 2"]]:
    """Return the token transitions of a byte automaton with initial state 0, without those of EOS.

    `factors` are automata that it is a Boolean combination of; none where they are not known. A
    table of more than `max_bytes` is refused (`ConstraintError`).

    Returns:
        table: the state after a token of each class, -1 for none, from all states, whether whole
            tokens lead there or not; and one row and one column more, for the end.
        class_of: class of every token id, -1 for EOS. Classes are numbered by their first id;
            two ids share one exactly if they have the same targets.
        edges: (state, next state), each pair once.
    """
    trie = vocabulary.trie
    runs = _Runs.of(delta, class_of_byte, vocabulary)
    partition: tuple[np.ndarray, ...] | None = None
    for part in [_Runs.of(f.delta, f.class_of_byte, vocabulary) for f in factors] or [runs]:
        stop_if_asked()
        partition = _split(partition, part, vocabulary)
    assert partition is not None

    # One representative entry for each class is enough for the table. Ids without bytes lead
    # nowhere.
    is_eos = np.zeros(vocabulary.size, np.bool_)
    is_eos[list(vocabulary.eos_ids)] = True
    class_of, first = number_tokens(
        partition[0], trie.entry_of_token, is_eos, 2 * trie.num_entries + 1
    )
    nodes, arrays = trie.part(trie.entry_of_token[first])
    tree = (read_only(runs.tree[0][nodes]), *arrays)
    rows = (runs.delta, tree, trie.max_depth, runs.cells, runs.ways)
    total, live = np.zeros(first.size, np.uint64), np.zeros(first.size, np.int64)
    same = np.arange(first.size)
    stop_if_asked()
    pass_over_rows(*rows, total, live, same, same, np.zeros((0, 0), np.int32))
    alone, agree = same, False
    same = _equal_columns(total, live)
    while not agree:
        stop_if_asked()
        column = np.cumsum(same == alone) - 1
        num_bytes = 4 * (delta.shape[0] + 1) * (int(column[-1]) + 2 if alone.size else 1)
        if max_bytes is not None and num_bytes > max_bytes:
            raise ConstraintError(
                f"expected a table of at most {max_bytes >> 20} MiB, got {num_bytes >> 20} MiB; "
                "simplify the constraint or raise the limit"
            )
        table = np.full((delta.shape[0] + 1, column[-1] + 2 if alone.size else 1), -1, np.int32)
        edges, agree = pass_over_rows(*rows, total, live, same, column, table)
        same, merged = alone, column[same]  # columns of one sum that differ: then none is merged
    class_of[class_of >= 0] = merged[class_of[class_of >= 0]]
    return table, class_of, edges


class _Runs(NamedTuple):
    """What is known of an automaton before the vocabulary is walked: its counted runs.

    Attributes:
        delta: its transitions.
        width: how many bytes each of its byte classes has.
        tree: the prefix tree of the vocabulary, labelled with its byte classes.
        cells, ways: its counted runs and the ways out of them.
        profiles: of the units that repeat in them.
    """

    delta: Int32[np.ndarray, "S K"]
    width: Int64[np.ndarray, "K"]
    tree: tuple[np.ndarray, ...]
    cells: Cells
    ways: Ways
    profiles: list[UnitProfile]

    @classmethod
    def of(
        cls,
        delta: Int32[np.ndarray, "S K"],
        class_of_byte: UInt8[np.ndarray, "256"],
        vocabulary: Vocabulary,
    ) -> _Runs:
        """Find the runs of an automaton."""
        trie = vocabulary.trie
        delta = read_only(np.ascontiguousarray(delta).view())
        label = read_only(class_of_byte[trie.byte])
        width = np.bincount(class_of_byte, minlength=delta.shape[1])
        cells = Cells(*find_cells(delta, width))
        ways = Ways(*kernels.ways_out(delta, cells))
        bounds = zip(cells.unit_start[:-1], cells.unit_start[1:], strict=True)
        profiles = [
            vocabulary.profile(np.ascontiguousarray(cells.units[i:j, class_of_byte]))
            for i, j in bounds
        ]
        tree = (label, trie.depth, trie.skip, trie.entry)
        return cls(delta, width, tree, cells, ways, profiles)


def _split(
    partition: tuple[np.ndarray, ...] | None, runs: _Runs, vocabulary: Vocabulary
) -> tuple[np.ndarray, ...]:
    """Part entries that lead to different states from some state of one automaton."""
    trie, (delta, width, tree, cells, ways, profiles) = vocabulary.trie, runs
    counted = _is_counted(cells)
    partition = _by_profiles(partition, profiles, counted, trie.num_entries)
    for u, profile in enumerate(profiles):
        kernels.split_by_exits(
            partition,
            delta,
            tree,
            trie.max_depth,
            ways.state[ways.unit == u],
            profile.exit_start,
            profile.exits,
            bool(counted[u]),
        )
    reference = kernels.references(delta, width, cells, tree)
    kernels.split_by_states(partition, delta, tree, trie.max_depth, cells.cell, reference)
    return partition


def _equal_columns(
    total: UInt64[np.ndarray, "C"], live: Int64[np.ndarray, "C"]
) -> Int64[np.ndarray, "C"]:
    """For each column the first one with the same sum and as many live rows."""
    order = np.lexsort((live, total))  # stable, so the first of equal ones comes first
    if not order.size:
        return order
    differs = (np.diff(total[order]) != 0) | (np.diff(live[order]) != 0)
    starts = np.flatnonzero(np.append(True, differs))
    first = np.empty_like(order)
    first[order] = np.repeat(order[starts], np.diff(np.append(starts, order.size)))
    return first


def _is_counted(cells: Cells) -> Bool[np.ndarray, "units"]:
    """Units whose runs have a bound, so that it matters how many of them a token completes."""
    boundary = cells.states[cells.start]
    whole = cells.cell_at[boundary] == np.arange(boundary.size)
    chained = cells.unit_of[whole & (cells.after != boundary)]
    return np.bincount(chained, minlength=cells.unit_start.size - 1) > 0


def _by_profiles(
    partition: tuple[np.ndarray, ...] | None,
    profiles: list[UnitProfile],
    counted: Bool[np.ndarray, "units"],
    num_entries: int,
) -> tuple[np.ndarray, ...]:
    """Part entries that end differently inside the runs of some unit."""
    classes = [p.counted if c else p.uncounted for p, c in zip(profiles, counted, strict=True)]
    if partition is None:
        if not classes:
            return one_class(num_entries)
        partition = from_classes(classes[0], int(classes[0].max(initial=-1)) + 1)
        classes = classes[1:]
    for others in classes:
        refine(partition, np.arange(num_entries, dtype=np.int32), others, num_entries)
    return partition


def _refuse_continuations(automaton: Automaton) -> None:
    """Without an EOS token, a string that goes on to a longer one would have no end."""
    goes_on = automaton.accepting & (automaton.delta >= 0).any(axis=1)
    if goes_on.any():
        example = Automaton.minimal(automaton.delta, goes_on, automaton.class_of_byte).shortest()
        raise ConstraintError(
            f'eos="accept" needs a language in which no string begins another one, but {example!r} '
            "is complete and can go on; end every string with a terminator such as a newline, "
            "or use a vocabulary with an EOS id"
        )


def why_unwritable(automaton: Automaton | Segments, vocabulary: Vocabulary) -> str:
    """Say that no string can be written with the tokens, naming bytes that no token has."""
    example = automaton.shortest()
    missing = sorted(set(example) - set(b"".join(vocabulary.token_bytes)))
    reason = f"no string of the language, such as {example[:60]!r}, can be written with the tokens"
    if missing:
        named = ", ".join(f"0x{byte:02X} ({chr(byte)!r})" for byte in missing[:5])
        reason += f": no token has the byte {named}"
    return reason
