"""Diagnostics that explain which tokens a constraint allows after a prefix, and why.

A token is refused for one of three reasons:

1. It never occurs in a text, like a special token.
2. No string of the language continues with its bytes.
3. The shortest completion after it exceeds the budget.

`why_refused` gives the reason in a sentence, with the bytes or the numbers. `inspect_prefix`
reports everything about a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from gcd._arguments import as_ids
from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, check_kind
from gcd._readable import readable_bytes, readable_ranges
from gcd._tokens.distances import fits
from gcd._tokens.token_automaton import TokenAutomaton

_SHOWN = 12  # tokens listed in a message


@dataclass(frozen=True)
class PrefixReport:
    """State of a constraint after a prefix; returned by `inspect_prefix`.

    Attributes:
        tokens: token ids of the prefix.
        text: the prefix as bytes.
        state: automaton state after the prefix; -1 if the constraint refuses the prefix.
        complete: whether the text may end after the prefix.
        needed: fewest tokens from here to the end, EOS included; None for a refused prefix.
        remaining: tokens left in the budget; None without a budget.
        allowed: ids of the tokens that may come next, in ascending order; empty for a refused
            prefix.
        rejected_mass: total probability, in [0, 1], that the model gives to the tokens that may not
            come next; None if `log_p` was not given.
        reason: why the prefix is refused, in a sentence; None if it is allowed.
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
    """Report the state after a prefix, the tokens that may follow, and why a prefix is refused.

    Args:
        automaton: the token automaton of the constraint.
        tokens: the prefix, with or without EOS as the last token.
        remaining: tokens left after the prefix, including the next token and EOS; None without a
            budget.
        log_p: log-probabilities or logits of the next token, shape (V,), as an array or a sequence.
            The function normalizes them.
        language: the byte automaton from which `automaton` was lifted. If it is given, reasons name
            the byte that is not allowed.

    Raises:
        ConstraintError: `log_p` has the wrong shape.
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
    """Return the reason why `token` may not follow a prefix, in one sentence, or None if it may.

    Args:
        automaton, language: as in `inspect_prefix`.
        tokens: the prefix, which the constraint must allow.
        token: id of the token that should follow the prefix.
        remaining: tokens left after the prefix, including `token` and EOS; None without a budget.

    Raises:
        ConstraintError: the constraint refuses the prefix itself.
    """
    _check_lifted(automaton)
    vocabulary = automaton.vocabulary
    tokens = as_ids(tokens)
    state = automaton.run(tokens)
    if state < 0:
        raise ConstraintError(
            f"expected a prefix that the constraint allows, got "
            f"{readable_bytes(vocabulary.decode(tokens))}; call inspect_prefix for the reason"
        )
    if not 0 <= token < vocabulary.size:
        return f"expected a token id in 0..{vocabulary.size - 1}, got {token}"
    after, needed = automaton.step(state, token), int(automaton.steps_to_accept[state])
    if after >= 0:
        if remaining is None or fits(automaton.steps_to_accept[after], remaining):
            return None
        return (
            f"{_describe_token(automaton, token)} needs at least "
            f"{int(automaton.steps_to_accept[after])} more tokens after it, EOS included, "
            f"but the budget leaves {max(remaining - 1, 0)}"
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
        return (
            f"token {token} has no bytes (special, padding or empty), so it never occurs in a text"
        )
    return f"no string of the language {_where_it_breaks(automaton, tokens, token, language)}"


def _check_lifted(automaton: object) -> None:
    check_kind(
        automaton,
        TokenAutomaton,
        "a gcd.TokenAutomaton",
        "make one with gcd.lift(automaton, vocabulary)",
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
        return (
            f"that begins with {readable_bytes(text)} can be spelled with the vocabulary's tokens"
        )
    return f"continues with {_describe_token(automaton, token)} after {readable_bytes(text)}"


def _describe_token(automaton: TokenAutomaton, token: int) -> str:
    return f"token {token} ({readable_bytes(automaton.vocabulary.token_bytes[token])})"


def _mass_outside(
    log_p: Any, allowed: Int64[np.ndarray, "allowed"], automaton: TokenAutomaton
) -> float:
    """Return the total probability of the tokens that are not allowed."""
    values = np.asarray(log_p, dtype=np.float64)
    if values.shape != (automaton.vocabulary.size,):
        raise ConstraintError(
            f"expected log_p of shape ({automaton.vocabulary.size},), one entry per token id; got "
            f"{values.shape}"
        )
    outside = np.ones(values.size, np.bool_)
    outside[allowed] = False
    p = np.exp(values - values.max())
    return float(p[outside].sum() / p.sum())
