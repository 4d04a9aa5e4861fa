"""This module explains what a constraint does at a prefix, for people who debug one.

It answers "why can the model not say this here?". A token is refused for one of three reasons: it
is never part of a text (a special token, say), no string of the language goes on that way, or the
shortest way to finish after it is longer than the budget. `why_refused` says in a sentence which of
these it is, with the bytes or the numbers; `inspect_prefix` reports everything about a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, check_kind
from gcd.readable import readable_bytes, readable_ranges
from gcd.tokens.distances import fits
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import as_ids

_SHOWN = 12  # tokens written out


@dataclass(frozen=True)
class PrefixReport:
    """This is what `inspect_prefix` reports about a prefix.

    Attributes:
        tokens: the ids of the prefix.
        text: the bytes that they spell.
        state: the automaton's state after the prefix, -1 if the constraint refuses it.
        complete: whether the text may end after the prefix.
        needed: fewest tokens from here to the end, EOS included; None for a refused prefix.
        remaining: tokens left, None for no budget.
        allowed: the ids that may come next, ascending; none for a refused prefix.
        rejected_mass: probability, in [0, 1], that the model gives to all other ids; None if
            `log_p` was not given.
        reason: why the prefix is refused, in a sentence; None if it is not.
    """

    tokens: tuple[int, ...]
    text: bytes
    state: int
    complete: bool
    needed: int | None
    remaining: int | None
    allowed: Int64[np.ndarray, "allowed"]
    rejected_mass: float | None
    reason: str | None


def inspect_prefix(
    automaton: TokenAutomaton,
    tokens: Iterable[int],
    *,
    remaining: int | None = None,
    log_p: Any = None,
    language: Automaton | None = None,
) -> PrefixReport:
    """Report where a prefix leads, what may follow it, and why it is refused if it is.

    Args:
        tokens: the prefix, without EOS or with it as the last token.
        remaining: tokens left after the prefix, the next one and EOS included; None for no budget.
        log_p: log-probabilities or logits of the next token, shape (V,), as anything that numpy
            can read; they are normalised here.
        language: the byte automaton that was lifted; reasons then name the byte that is wrong.

    Raises:
        ConstraintError: if `log_p` has another shape.
    """
    _check_lifted(automaton)
    prefix = as_ids(tokens)
    text = automaton.vocabulary.decode(prefix)
    state = automaton.initial
    reason = None
    for position, token in enumerate(prefix):
        after = automaton.step(state, token)
        if after < 0:
            why = why_refused(automaton, prefix[:position], token, language=language)
            reason = f"token {position + 1} of the prefix: {why}"
            state = -1
            break
        state = after
    allowed = automaton.allowed(state, remaining) if state >= 0 else np.zeros(0, np.int64)
    return PrefixReport(
        tokens=prefix,
        text=text,
        state=state,
        complete=state >= 0 and bool(automaton.accepting[state]),
        needed=int(automaton.steps_to_accept[state]) if state >= 0 else None,
        remaining=remaining,
        allowed=allowed,
        rejected_mass=None if log_p is None else _mass_outside(log_p, allowed, automaton),
        reason=reason,
    )


def why_refused(
    automaton: TokenAutomaton,
    tokens: Sequence[int],
    token: int,
    *,
    remaining: int | None = None,
    language: Automaton | None = None,
) -> str | None:
    """Say in one sentence why `token` may not follow the prefix; return None if it may.

    Args:
        automaton, tokens, remaining, language: as in `inspect_prefix`.
        token: the id that is asked about; `remaining` counts it.

    Raises:
        ConstraintError: if the prefix itself is refused.
    """
    _check_lifted(automaton)
    vocabulary = automaton.vocabulary
    tokens = as_ids(tokens)
    state = automaton.run(tokens)
    if state < 0:
        raise ConstraintError(
            f"the prefix {readable_bytes(vocabulary.decode(tokens))} is refused already; "
            "inspect_prefix says where"
        )
    if not 0 <= token < vocabulary.size:
        return f"{token} is not one of the vocabulary's {vocabulary.size} ids"
    after, needed = automaton.step(state, token), int(automaton.steps_to_accept[state])
    if after >= 0:
        if remaining is None or fits(automaton.steps_to_accept[after], remaining):
            return None
        return (
            f"{_shown(automaton, token)} leads to a text that needs at least "
            f"{int(automaton.steps_to_accept[after])} more tokens after it, EOS included, "
            f"but only {max(remaining - 1, 0)} are left"
        )
    if state == automaton.final:
        return "the text has ended"
    if token in vocabulary.eos_ids:
        return (
            f"the text is not complete after {readable_bytes(vocabulary.decode(tokens))}: it needs "
            f"at least {needed} more tokens, EOS included"
        )
    special = bool((automaton.delta[:, automaton.class_of[token]] >= 0).any())
    if not vocabulary.token_bytes[token] and not special:
        return f"token {token} has no bytes (special, padding or empty), so no text holds it"
    return f"no string of the language {_where_it_breaks(automaton, tokens, token, language)}"


def _check_lifted(automaton: object) -> None:
    check_kind(
        automaton,
        TokenAutomaton,
        "a prefix of tokens is looked at in a gcd.TokenAutomaton",
        "gcd.lift(automaton, vocabulary) makes one",
    )


def _where_it_breaks(
    automaton: TokenAutomaton, tokens: Sequence[int], token: int, language: Automaton | None
) -> str:
    text = automaton.vocabulary.decode(tokens)
    if language is not None:
        state = language.run(text)
        for byte in automaton.vocabulary.token_bytes[token]:
            after = language.run(bytes([byte]), state) if state >= 0 else -1
            if after < 0 and state >= 0:
                ways = readable_ranges(np.flatnonzero(language.transitions[state] >= 0).tolist())
                return (
                    f"has {readable_bytes(bytes([byte]))} after {readable_bytes(text)}; "
                    f"{f'expected {ways}' if ways else 'it ends'}"
                )
            text, state = text + bytes([byte]), after
        return f"that begins with {readable_bytes(text)} can be finished with the tokens there are"
    return f"goes on with {_shown(automaton, token)} after {readable_bytes(text)}"


def _shown(automaton: TokenAutomaton, token: int) -> str:
    return f"token {token} ({readable_bytes(automaton.vocabulary.token_bytes[token])})"


def _mass_outside(
    log_p: Any, allowed: Int64[np.ndarray, "allowed"], automaton: TokenAutomaton
) -> float:
    """Return the probability of the ids that are not allowed."""
    values = np.asarray(log_p, dtype=np.float64)
    if values.shape != (automaton.vocabulary.size,):
        raise ConstraintError(
            f"log_p has shape {values.shape}, the vocabulary {automaton.vocabulary.size} ids"
        )
    outside = np.ones(values.size, np.bool_)
    outside[allowed] = False
    p = np.exp(values - values.max())
    return float(p[outside].sum() / p.sum())
