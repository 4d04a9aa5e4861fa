"""Lifting: a byte automaton and a vocabulary give an automaton over tokens.

The state after a token is the state after its bytes. From each state the vocabulary's prefix tree
is walked once, leaving subtrees as soon as a byte has no transition, and only states that whole
tokens reach are visited at all.

**Classes.** Tokens with the same column of next states are one class. The partition is refined
state by state, starting from a single block: entries (distinct byte strings) of one block part
when the state sends them to different targets. A step costs as much as there are live tokens, and
no table over states and tokens is ever made. One representative of each class is then walked
again, over a prefix tree of representatives alone, for the table over states and classes.

**What is kept.** States from which whole tokens lead to acceptance. A byte automaton may have
others: with no token that begins in the middle of a character, the bytes of a character cannot
be completed. They go, and classes that only they told apart become one.

Cost: O(sum over reached states of live tree nodes), in compiled code.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, UInt8

from gcd.assemble import ENDINGS, assemble, merge_classes, with_final
from gcd.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError
from gcd.kernels import lifting as kernels
from gcd.kernels.classes import number_by_first
from gcd.kernels.prefix_tree import sub_trie
from gcd.token_automaton import TokenAutomaton
from gcd.vocabulary import Vocabulary


def lift(automaton: Automaton, vocabulary: Vocabulary, *, eos: str = "token") -> TokenAutomaton:
    """The token automaton of a language of byte strings.

    Args:
        automaton: the language.
        vocabulary: the tokens to spell it with.
        eos: how a text ends. `"token"`: with one of the vocabulary's EOS ids, which is allowed
            exactly where a string of the language ends. `"accept"`, for models that have no
            such id: by itself, on entering an accepting state; this costs no token, and asks
            for a language in which no string is the beginning of another.

    Raises:
        EmptyLanguageError: if the language is empty, or no string of it can be written with
            the vocabulary's tokens.
        ConstraintError: if the vocabulary has no EOS id and `eos` is `"token"`; if `eos` is
            `"accept"` and a string of the language begins another one.
    """
    if eos not in ENDINGS:
        raise ConstraintError(f"eos must be one of {ENDINGS}, got {eos!r}")
    if eos == "token" and not vocabulary.eos_ids:
        raise ConstraintError(
            "the vocabulary has no EOS id, so no text could ever end; pass eos_ids when building "
            'it, or lift with eos="accept" if the language itself says where a text ends'
        )
    if automaton.is_empty:
        raise EmptyLanguageError("no string satisfies the constraint: its language is empty")
    if eos == "accept":
        _refuse_continuations(automaton)

    reached, targets, class_of = lift_arrays(automaton.delta, automaton.class_of_byte, vocabulary)
    accepting = automaton.accepting[reached]
    delta, class_of = with_final(targets, accepting, class_of, eos)
    initial = reached.size if eos == "accept" and accepting[0] else 0
    lifted = assemble(delta, class_of, vocabulary, initial)
    if lifted is None:
        raise EmptyLanguageError(_why_unwritable(automaton, vocabulary))
    return lifted


def lift_arrays(
    delta: Int32[np.ndarray, "S K"],
    class_of_byte: UInt8[np.ndarray, "256"],
    vocabulary: Vocabulary,
) -> tuple[Int32[np.ndarray, "R"], Int32[np.ndarray, "R C"], Int32[np.ndarray, "V"]]:
    """Token transitions of a byte automaton with initial state 0, EOS aside.

    Returns:
        reached: the states that whole tokens lead to, ascending, 0 among them.
        targets: number (in `reached`) of the state after a token of each class, -1 for none.
        class_of: class of every token id, -1 for EOS. Classes are numbered by their first id;
            two ids share one exactly if they have the same targets.
    """
    trie = vocabulary.trie
    delta = np.ascontiguousarray(delta)
    label = class_of_byte[trie.byte]
    width = np.bincount(class_of_byte, minlength=delta.shape[1])
    tree = (label, trie.depth, trie.skip, trie.entry)
    is_reached, class_of_entry = kernels.reachable_classes(
        delta, width, tree, trie.num_entries, trie.max_depth
    )
    reached = np.flatnonzero(is_reached).astype(np.int32)

    # Ids without bytes are alive nowhere: a class of their own until columns are compared.
    no_class = 2 * trie.num_entries + 1
    is_eos = np.zeros(vocabulary.size, np.bool_)
    is_eos[list(vocabulary.eos_ids)] = True
    class_of, first = number_by_first(
        np.append(class_of_entry, np.int32(no_class))[trie.entry_of_token], no_class + 1
    )

    # Walk one representative entry for each class from every state.
    entry_of_class = trie.entry_of_token[first]
    has_bytes = np.flatnonzero(entry_of_class >= 0)
    number = np.full(trie.num_entries, -1, np.int32)
    number[entry_of_class[has_bytes]] = has_bytes
    nodes, depth, skip, entry = sub_trie(trie.depth, trie.skip, trie.entry, number)
    table = kernels.targets(
        reached, delta, (label[nodes], depth, skip, entry), first.size, trie.max_depth
    )
    position = np.full(delta.shape[0] + 1, -1, np.int32)
    position[reached] = np.arange(reached.size)
    targets, class_of = merge_classes(position[table], class_of, is_eos)
    return reached, targets, class_of


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


def _why_unwritable(automaton: Automaton, vocabulary: Vocabulary) -> str:
    """Say that no string can be written with the tokens, naming bytes that no token has."""
    example = automaton.shortest()
    missing = sorted(set(example) - set(b"".join(vocabulary.token_bytes)))
    reason = f"no string of the language, such as {example[:60]!r}, can be written with the tokens"
    if missing:
        named = ", ".join(f"0x{byte:02X} ({chr(byte)!r})" for byte in missing[:5])
        reason += f": no token has the byte {named}"
    return reason
