"""Reading ahead: a forward pass over one row also computes draft tokens, copied from the prompt.

The draft continues the row where its end occurred before in the prompt or the answer: values of
tool calls and words of a question often come from the prompt. The log-probabilities after each
draft token are stored. If the sampler then appends the draft's tokens, they don't need a pass.
Otherwise the draft is removed from the model's cache before its next pass. The draw, the weights
and the selection never depend on a draft. So the distribution is p_lm(x | x in C, |x| <= n) for any
draft. In contrast, speculative decoding in serving engines verifies drafts with local masks, and
samples from LCD's distribution (arXiv 2605.07698).

On a CPU every token of every row takes time, and a pass is saved only if all rows match their
drafts. Therefore only passes over a single row have drafts. Where several tokens are allowed, a
draft has one guess, followed by the tokens that are forced after it. It obeys the constraint and
the budget, and therefore fits into the model's context. A draft never ends an answer.

The search compares bytes instead of tokens, because the same word has different tokens after a
space and after a quotation mark. (Speculative decoding by prompt lookup, Saxena 2023, compares
tokens.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd import Vocabulary
from smc._proposals import GCD, AutomatonPosition

AUTO = 4
"""Number of draft tokens with "auto", to which the forced tokens after the last guess are added."""
MOST_GUESSES = 64
"""Maximum number of guessed tokens that are checked at each position of a draft."""
MOST_PLACES = 64
"""Maximum number of earlier occurrences of a text's end that are checked."""
SHORTEST, LONGEST = 3, 24
"""Minimum and maximum number of bytes of the end to search for."""


class Draft(NamedTuple):
    """Computed tokens after the only row of the language model.

    Attributes:
        tokens: the tokens.
        log_p: log-probabilities of the next token after each of them, at the sampling temperature.
    """

    tokens: Int64[Tensor, "A"]
    log_p: Float[Tensor, "A V"]


def make_draft(
    text: bytes, position: AutomatonPosition, most: int, vocabulary: Vocabulary
) -> Int64[Tensor, "A"]:
    """Return the draft for one row."""
    found: list[int] = []
    while bool(position.running):
        token = int(GCD().forced(position))
        if token < 0 and len(found) < most:
            token = _first_allowed(look_up(text, vocabulary), position, vocabulary)
        if token < 0:
            break
        position = position.advance(torch.full_like(position.states, token).unsqueeze(1))
        if not bool(position.running):
            break
        found.append(token)
        text += decode([token], vocabulary)
    return torch.tensor(found, dtype=torch.int64, device=position.states.device)


def _first_allowed(
    guesses: Sequence[int], position: AutomatonPosition, vocabulary: Vocabulary
) -> int:
    """Return the first guess that the constraint and the budget allow; -1 if there is none."""
    known = [guess for guess in guesses[:MOST_GUESSES] if 0 <= guess < vocabulary.size]
    if not known:
        return -1
    tokens = torch.tensor([known], dtype=torch.int64, device=position.states.device)
    allowed = position.steps_after_tokens(tokens) < position.remaining.unsqueeze(1)
    return known[int(allowed.long().argmax())] if bool(allowed.any()) else -1


def decode(tokens: Iterable[int], vocabulary: Vocabulary) -> bytes:
    """Return the bytes of tokens; -1 and special tokens have no bytes."""
    known = vocabulary.token_bytes
    return b"".join(known[token] or b"" for token in tokens if token >= 0)


def look_up(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that followed an earlier occurrence of the text's end, longest first."""
    by_bytes, longest_token = _ids_by_bytes(vocabulary)
    start = find_source(text)
    ahead = b"" if start is None else text[start : start + longest_token]
    pieces = (ahead[:size] for size in range(len(ahead), 0, -1))
    return [token for piece in pieces for token in by_bytes.get(piece, ())]


def find_source(text: bytes, shortest: int = SHORTEST, longest: int = LONGEST) -> int | None:
    """Find the longest end of the text that also occurs earlier in the text.

    Returns:
        The index after the last earlier occurrence of this end; None if no end of at least
        `shortest` bytes occurs earlier. If the end begins a word, the last occurrence that also
        begins a word is preferred, among at most `MOST_PLACES` occurrences.
    """
    size, position = 0, -1
    while size < min(longest, len(text) - 1):
        earlier = text.rfind(text[-size - 1 :], 0, len(text) - 1)
        if earlier < 0:
            break
        size, position = size + 1, earlier
    if size < max(1, shortest):
        return None
    if _begins_word(text, len(text) - size):
        other = position
        for _ in range(MOST_PLACES):
            if other < 0:
                break
            if _begins_word(text, other):
                position = other
                break
            other = text.rfind(text[-size:], 0, other + size - 1)
    return position + size


def _begins_word(text: bytes, position: int) -> bool:
    """Return whether a word may begin at an index: no letter or digit precedes it."""
    return position == 0 or not (
        text[position - 1 : position].isalnum() or text[position - 1] > 127
    )


@lru_cache(maxsize=4)
def _ids_by_bytes(vocabulary: Vocabulary) -> tuple[Mapping[bytes, Sequence[int]], int]:
    """Return the tokens of each byte string, and the length in bytes of the longest token."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for token, piece in enumerate(vocabulary.token_bytes):
        if piece:
            found[bytes(piece)].append(token)
    return dict(found), max(map(len, found), default=0)
