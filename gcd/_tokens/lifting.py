"""Lifting: conversion of a byte automaton into an automaton over the tokens of a vocabulary.

The state after a token is the state after its bytes. From each state, the vocabulary's prefix tree
is traversed once, and a subtree is skipped as soon as a byte has no transition.

**Classes.** Tokens that lead to the same state from every state form one class. At first, all
entries (distinct byte strings of tokens) are in one class. State by state, classes are split if
their entries lead to different states. A split takes time linear in the allowed tokens, and no
table over states and tokens is built. Then a prefix tree with one entry per class is traversed
again, to write the table over states and classes.

**Counted runs.** Inside a string nearly every token is allowed, in about twenty states for each
character of a bounded string. The tree isn't traversed from each of them, but once through the unit
that they repeat (`gcd._tokens.kernels.counted_runs`, `gcd._tokens.trie`). A token that stays inside
the string advances by the units that it completes; tokens that leave it are read once for each
different continuation. If a state differs from one of a run in a few words, only these are read.

**Factors.** If an automaton is known to be a Boolean combination of others (`Automaton.factors`),
tokens that are in one class in each factor are in one class in the combination. So the tree is
traversed from the states of the factors, whose numbers add up, instead of the states of the
product, whose numbers multiply. From the product's states, only one token per class is read.

**Removed states.** A state remains only if whole tokens lead to it, and whole tokens lead from it
to acceptance. Other states are dropped, for example a state in the middle of a character if no
token begins there. Classes that only these states distinguished are merged.

Cost: O(V) once; for each state outside of counted runs, the allowed nodes of the tree; for each
state inside, the allowed classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, EmptyLanguageError, check_kind
from gcd._tokens.kernels import lifting as kernels
from gcd._tokens.kernels.classes import from_classes, number_tokens, one_class, refine
from gcd._tokens.kernels.counted_runs import Cells, find_cells
from gcd._tokens.kernels.lifting import Ways
from gcd._tokens.kernels.lifting_table import follow_classes
from gcd._tokens.rows import Rows
from gcd._tokens.segments import Segments, count_tokens, shortest_prefix
from gcd._tokens.spellings import LITERALS, canonical
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.trie import UnitProfile, read_only
from gcd._tokens.trimming import ENDINGS, TokenTable, trim, trim_rows, with_final
from gcd._tokens.vocabulary import Vocabulary


def lift(
    automaton: Automaton | Segments,
    vocabulary: Vocabulary,
    *,
    eos: str = "token",
    literals: str = "all",
) -> TokenAutomaton:
    """Lift a language over bytes to tokens: return the automaton of its tokenizations.

    Args:
        automaton: the language, or segments with token limits (`gcd.segments`).
        vocabulary: the language model's tokens.
        eos: how a text ends. `"token"`: with one of the vocabulary's EOS ids, which are allowed
            exactly where a string of the language ends. `"accept"`, for models without such an id:
            without a token, as soon as the text is in the language. No string of the language may
            then be a prefix of another.
        literals: allowed tokenizations of fixed text, such as the keys of an object. `"all"`: all
            of them. `"canonical"`: only the tokenizer's own (`gcd._tokens.spellings`), so that most
            tokens of fixed text are forced. The texts are the same, but some may need more tokens
            of the budget.

    Raises:
        EmptyLanguageError: if the language is empty, or the tokens can't spell any of its strings;
            with `"canonical"`, if the tokenizer produces none of them.
        ConstraintError: if the vocabulary has no EOS id and `eos` is `"token"`. If `eos` is
            `"accept"` and a string of the language is a prefix of another string, or segments are
            lifted. If `literals` is `"canonical"` and the vocabulary was not made from a tokenizer.
            If a segment ends with an id that is not a special token, or the vocabulary lacks a
            special token of the language.
        InfeasibleBudgetError: if a segment's token limit is too low.
    """
    check_kind(
        automaton,
        (Automaton, Segments),
        "a gcd.Automaton or gcd.Segments to lift",
        "compile it first, for example with gcd.regex or gcd.json_schema",
    )
    check_kind(
        vocabulary,
        Vocabulary,
        "a gcd.Vocabulary for lift()",
        "pass lm.vocabulary, or gcd.Vocabulary.from_tokenizer(tokenizer)",
    )
    if literals not in LITERALS:
        raise ConstraintError(f"expected literals to be one of {LITERALS}, got {literals!r}")
    if eos not in ENDINGS:
        raise ConstraintError(f"expected eos to be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "expected a vocabulary with EOS ids, got none, so no text could end; pass eos_ids when "
            'building it, or lift with eos="accept" if the language itself defines where texts end'
        )
    marked = vocabulary.with_specials(automaton.specials)
    if isinstance(automaton, Segments):
        automaton.check(vocabulary)
        table = _table_of_segments(automaton, marked, eos)
    else:
        table = _table(automaton, marked, eos)
    if table is None:
        raise EmptyLanguageError(why_unwritable(automaton, marked))
    lifted = TokenAutomaton(
        vocabulary, *table, max_bytes=automaton.max_bytes, caveats=automaton.caveats
    )
    if literals == "all":
        return lifted
    table = canonical(lifted)
    if table is None:
        raise EmptyLanguageError(
            "expected a language with strings that the tokenizer produces, but it produces none of "
            f'them, for example not {automaton.shortest()[:60]!r}; lift it with literals="all"'
        )
    return TokenAutomaton(
        vocabulary, *table, max_bytes=automaton.max_bytes, caveats=automaton.caveats
    )


def _table(automaton: Automaton, vocabulary: Vocabulary, eos: str) -> TokenTable | None:
    """Return the token automaton of a language; None if the tokens can't spell any string."""
    if automaton.is_empty:
        raise EmptyLanguageError(
            "expected a constraint that some string satisfies, got an empty language"
        )
    if eos == "accept":
        _refuse_continuations(automaton)
    accepting = automaton.accepting
    ends = accepting if eos == "token" else np.zeros_like(accepting)
    rows, class_of, num_classes = lift_rows(
        automaton.delta, automaton.class_of_byte, ends, vocabulary, automaton.factors
    )
    if eos == "token":
        return trim_rows(rows, class_of, 0, num_classes)
    delta = rows.dense(num_classes)[:-1, :-1]
    delta, class_of = with_final(delta, accepting, class_of, eos)
    return trim(delta, class_of, accepting.size if accepting[0] else 0)


def _table_of_segments(segments: Segments, vocabulary: Vocabulary, eos: str) -> TokenTable | None:
    """Return the token automaton of segments; None if the tokens can't spell any answer."""
    if eos == "accept":
        raise ConstraintError(
            f'expected eos="token" for segments, got {eos!r}; lift them with eos="token", because '
            "an answer in segments ends with an EOS id"
        )
    states = segments.states()
    never = np.zeros(states.delta.shape[0], np.bool_)
    rows, class_of, num_classes = lift_rows(states.delta, states.class_of_byte, never, vocabulary)
    is_eos = class_of == num_classes - 1
    class_of[is_eos] = -1
    return count_tokens(segments, states, rows.dense(num_classes)[:-1, :-1], class_of)


def lift_rows(
    delta: Int32[np.ndarray, "S K"],
    class_of_byte: UInt8[np.ndarray, "256"],
    ends: Bool[np.ndarray, "S"],
    vocabulary: Vocabulary,
    factors: Sequence[Automaton] = (),
) -> tuple[Rows, Int32[np.ndarray, "V"], int]:
    """Return the transitions under all tokens, the class of each id, and their number.

    The initial state is 0. In the states `ends`, EOS, the last class, leads to an additional last
    state, which only loops under EOS. Classes are numbered by their first ids; two ids share a
    class exactly if they lead to the same state from every state.
    """
    trie = vocabulary.trie
    runs = _Runs.of(delta, class_of_byte, vocabulary)
    partition: tuple[np.ndarray, ...] | None = None
    for part in [_Runs.of(f.delta, f.class_of_byte, vocabulary) for f in factors] or [runs]:
        partition = _split(partition, part, vocabulary)
    assert partition is not None

    # One representative entry for each class is enough for the table. Ids without bytes have no
    # transitions.
    is_eos = np.zeros(vocabulary.size, np.bool_)
    is_eos[list(vocabulary.eos_ids)] = True
    class_of, first = number_tokens(
        partition[0], trie.entry_of_token, is_eos, 2 * trie.num_entries + 1
    )
    nodes, arrays = trie.part(trie.entry_of_token[first])
    tree = (read_only(trie.byte[nodes]), *arrays, runs.tree[-1])
    parts = (runs.delta, tree, trie.max_depth, runs.cells, runs.ways, ends, first.size)
    rows = Rows(*follow_classes(*parts))
    same = rows.equal_classes(first.size + 1)
    is_first = same == np.arange(same.size)
    number = np.where(is_first, np.cumsum(is_first) - 1, -1).astype(np.int32)
    if not is_first.all():
        rows = rows.renumber_classes(number)
        class_of = number[same].take(class_of)
    # EOS is the last class.
    class_of[list(vocabulary.eos_ids)] = number[-1]
    return rows, class_of, int(number[-1]) + 1


class _Runs(NamedTuple):
    """Automaton, vocabulary, and repetitions in the automaton (counted runs), for lifting."""

    delta: Int32[np.ndarray, "S K"]  # its transitions
    width: Int64[np.ndarray, "K"]  # number of bytes in each of its byte classes
    tree: tuple[np.ndarray, ...]  # the prefix tree of the vocabulary, and the class of each byte
    cells: Cells  # cells, ways: its counted runs, and the transitions that leave them
    ways: Ways
    profiles: list[UnitProfile]  # the profile of each unit that these runs repeat

    @classmethod
    def of(
        cls,
        delta: Int32[np.ndarray, "S K"],
        class_of_byte: UInt8[np.ndarray, "256"],
        vocabulary: Vocabulary,
    ) -> _Runs:
        """Find the repetitions in an automaton, and how tokens behave inside of them."""
        trie = vocabulary.trie
        delta = read_only(np.ascontiguousarray(delta).view())
        width = np.bincount(class_of_byte, minlength=delta.shape[1])
        cells = Cells(*find_cells(delta, width))
        ways = Ways(*kernels.ways_out(delta, cells))
        bounds = zip(cells.unit_start[:-1], cells.unit_start[1:], strict=True)
        profiles = [
            vocabulary.profile(np.ascontiguousarray(cells.units[i:j, class_of_byte]))
            for i, j in bounds
        ]
        tree = (trie.byte, trie.depth, trie.skip, trie.entry, read_only(class_of_byte.view()))
        return cls(delta, width, tree, cells, ways, profiles)


def _split(
    partition: tuple[np.ndarray, ...] | None, runs: _Runs, vocabulary: Vocabulary
) -> tuple[np.ndarray, ...]:
    """Split token classes until, from each state, all tokens of a class lead to the same state."""
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


def _is_counted(cells: Cells) -> Bool[np.ndarray, "units"]:
    """Return which units have a bounded number of copies somewhere, so that this number matters."""
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
    """Split token classes whose tokens behave differently inside some repetition."""
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
    """Refuse a language in which a string is a prefix of another one, as texts end without EOS."""
    example = shortest_prefix(automaton)
    if example is not None:
        raise ConstraintError(
            'for eos="accept", expected that no string of the language is a prefix of another, got '
            f"{example!r}; end every string with a terminator such as a newline, or use a "
            "vocabulary with an EOS id"
        )


def why_unwritable(automaton: Automaton | Segments, vocabulary: Vocabulary) -> str:
    """Return the error text for a language that the tokens can't spell; it names missing bytes."""
    example = automaton.shortest()
    missing = sorted(set(example) - set(b"".join(vocabulary.token_bytes)))
    reason = f"no string of the language, such as {example[:60]!r}, can be written with the tokens"
    if missing:
        named = ", ".join(f"0x{byte:02X} ({chr(byte)!r})" for byte in missing[:5])
        reason += f": no token has the byte {named}"
    return reason
