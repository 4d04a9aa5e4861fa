"""Segmentation of text by a tokenizer: which pairs of neighboring tokens it produces.

A text can be divided into the tokens of a vocabulary in many ways. The tokenizer's own
tokenization, the **canonical** one, is the only one in a language model's training data. For
byte-pair encoding, pairs of neighbors are enough to recognize it. A sequence of tokens is canonical
if and only if, for every two adjacent tokens, the tokenizer produces these two tokens from their
bytes (Vieira et al., "Language Models over Canonical Byte-Pair Encodings", arXiv 2506.07956). One
direction also holds for Unigram models: if a sequence is canonical, so is every pair of neighbors
in it.

**Contexts.** Before merging tokens, most tokenizers split text by a pattern that depends on the
surrounding characters. In `it's` the letters `'s` are one piece, but in `"'s` they are not. Digits
are split into groups of three. The last of several spaces belongs to the following word. So a pair
that is canonical in some text may be split differently by itself. Therefore each pair is tried by
itself, and then next to a letter, one or two digits, a space, a line feed, and a sign. The
characters used for this are rare and not part of any merge, so they only determine the kind of the
neighbor. A pair that the tokenizer produces in any of these contexts is **admitted**. This admits a
few pairs too many, which only means that some texts can be spelled in several ways. Admitting too
few pairs would exclude texts.

A pair that is not valid UTF-8 cannot be tried, so it is admitted.

Some steps of the tokenizer change a text before splitting it: a space before the first word,
Unicode normalization, special tokens. They are disabled, because an answer continues a prompt and
must be exactly the text of its tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8

from gcd._tokens.token_bytes import elementary_steps

_LETTER, _DIGIT, _SPACE, _SIGN = "ʬ", "௧", "\u2003", "§"
_BEFORE = ("", _SIGN, _LETTER, _SPACE, _DIGIT, 2 * _DIGIT, "\n", f"{_LETTER}'")
"""Texts that are tried before a pair, because they influence how the pair is split."""

_AFTER = ("", _LETTER)
"""Texts that are tried after a pair; they only matter if the pair ends in a space."""

_MOST_PAIRS = 1 << 22
"""Maximum number of cached pairs; each takes nine bytes."""

START = -1
"""Placeholder for the token before the first one of a text."""


class Segmentation:
    """Answers whether a tokenizer produces one token after another; answers are cached.

    Args:
        description: the tokenizer, as `tokenizers.Tokenizer.to_str` writes it.
        parse: function that makes a tokenizer from such a description, such as
            `tokenizers.Tokenizer.from_str`.
        token_bytes: the bytes of each id, `b""` for ids that are never part of a text.
    """

    def __init__(
        self, description: str, parse: Callable[[str], Any], token_bytes: Sequence[bytes]
    ) -> None:
        self._description = description
        self._parse = parse
        self._bytes = token_bytes
        self._known = np.zeros(0, np.int64)  # pairs with an answer, ascending
        self._answers = np.zeros(0, np.bool_)
        self._alone = np.full(len(token_bytes), -1, np.int8)  # 0: no, 1: yes, -1: unknown

    @cached_property
    def fingerprint(self) -> bytes:
        """Digest of everything that determines the answers: merges, splitting rules, tokens."""
        digest = blake2b(digest_size=16)
        for variant in self._variants():
            digest.update(variant.encode())
        digest.update(b"\0".join(self._bytes))
        return digest.digest()

    def encode(self, text: str) -> list[int]:
        """Return the tokenizer's own tokenization of a text in the middle of an answer."""
        ids: list[int] = self._tokenizers[0].encode(text, add_special_tokens=False).ids
        return ids

    def admits(
        self, left: Int[np.ndarray, "pairs"], right: Int[np.ndarray, "pairs"]
    ) -> Bool[np.ndarray, "pairs"]:
        """Return whether the tokenizer produces `left` (-1: the start), then `right`."""
        keys = (left.astype(np.int64) + 1) * len(self._bytes) + right
        asked = np.unique(keys)
        new = asked[~np.isin(asked, self._known, assume_unique=True)]
        if new.size:
            if self._known.size + new.size > _MOST_PAIRS:
                new, self._known, self._answers = asked, self._known[:0], self._answers[:0]
            known = np.concatenate([self._known, new])
            answers = np.concatenate([self._answers, self._ask(new)])
            order = np.argsort(known)
            self._known, self._answers = known[order], answers[order]
        return self._answers[np.searchsorted(self._known, keys)]

    def _ask(self, keys: Int64[np.ndarray, "pairs"]) -> Bool[np.ndarray, "pairs"]:
        """Return which pairs of tokens the tokenizer produces next to some text (in a context)."""
        left, right = np.divmod(keys, len(self._bytes))
        left -= 1
        admitted = self._stand_apart(left, right)
        open_pairs: list[tuple[int, list[int], str]] = []
        for index in np.flatnonzero(~admitted).tolist():
            tokens = [int(t) for t in (left[index], right[index]) if t != START]
            try:
                text = b"".join(self._bytes[token] for token in tokens).decode()
            except UnicodeDecodeError:
                admitted[index] = True
            else:
                open_pairs.append((index, tokens, text))
        for tokenizer in self._tokenizers:
            for after, before in product(_AFTER, _BEFORE):
                tried = [pair for pair in open_pairs if self._may_matter(before, after, *pair[1:])]
                found = _ids(tokenizer, [before + text + after for _, _, text in tried])
                first, last = _ids(tokenizer, [before, after])
                for (index, tokens, _), ids in zip(tried, found, strict=True):
                    admitted[index] = ids == [*first, *tokens, *last]
                open_pairs = [pair for pair in open_pairs if not admitted[pair[0]]]
        return admitted

    def _may_matter(self, before: str, after: str, tokens: list[int], text: str) -> bool:
        """Return whether a pair of tokens has to be tried between the texts `before` and `after`.

        Text after the pair only matters if the pair ends in a space. An apostrophe before the pair,
        as in `it's`, only matters if it doesn't form a single token with the pair's first token.
        """
        if after and not text[-1].isspace():
            return False
        return not before.endswith("'") or b"'" + self._bytes[tokens[0]] not in self._words

    @cached_property
    def _words(self) -> frozenset[bytes]:
        return frozenset(self._bytes)

    def _stand_apart(
        self, left: Int64[np.ndarray, "pairs"], right: Int64[np.ndarray, "pairs"]
    ) -> Bool[np.ndarray, "pairs"]:
        """Return which pairs are admitted because no merge can join their tokens."""
        apart = left != START
        last, first = self._ends
        apart[apart] = ~self._adjacent[last[left[apart]], first[right[apart]]]
        tokens = np.unique(np.concatenate([left[apart], right[apart]]))
        self._ask_alone(tokens[self._alone[tokens] < 0])
        apart[apart] = (self._alone[left[apart]] > 0) & (self._alone[right[apart]] > 0)
        return apart

    def _ask_alone(self, tokens: Int64[np.ndarray, "tokens"]) -> None:
        """Record which of these tokens the tokenizer produces for their bytes alone."""
        texts = {}
        for token in tokens.tolist():
            with suppress(UnicodeDecodeError):
                texts[token] = self._bytes[token].decode()
        self._alone[tokens] = 0
        for tokenizer in self._tokenizers:
            for token, ids in zip(texts, _ids(tokenizer, list(texts.values())), strict=True):
                self._alone[token] |= ids == [token]

    @cached_property
    def _ends(self) -> tuple[UInt8[np.ndarray, "V"], UInt8[np.ndarray, "V"]]:
        """Last and first byte of each token; 0 for tokens without bytes."""
        last = np.array([token[-1] if token else 0 for token in self._bytes], np.uint8)
        return last, np.array([token[0] if token else 0 for token in self._bytes], np.uint8)

    @cached_property
    def _adjacent(self) -> Bool[np.ndarray, "256 256"]:
        """Matrix of byte pairs that are adjacent inside some token."""
        adjacent = np.zeros((256, 256), np.bool_)
        text = np.frombuffer(b"".join(self._bytes), np.uint8)
        lengths = np.fromiter(map(len, self._bytes), np.int64, len(self._bytes))
        inside = np.ones(max(text.size - 1, 0), np.bool_)
        ends = np.cumsum(lengths) - 1
        inside[ends[(ends >= 0) & (ends < inside.size)]] = False
        adjacent[text[:-1][inside], text[1:][inside]] = True
        return adjacent

    @cached_property
    def _tokenizers(self) -> list[Any]:
        return [self._parse(variant) for variant in self._variants()]

    def _variants(self) -> Iterator[str]:
        """Yield the tokenizer's description without the steps that change text before splitting it.

        Some tokenizers take whole words from their vocabulary and ignore the merges. These are also
        yielded without this rule, because inside a longer word the merges decide.
        """
        description = json.loads(self._description)
        description |= {"truncation": None, "padding": None, "post_processor": None}
        description["normalizer"] = _replacements(description.get("normalizer"))
        description["added_tokens"] = [
            token for token in description.get("added_tokens") or [] if not token["special"]
        ]
        for step in elementary_steps(description.get("pre_tokenizer")):
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
                step.pop("add_prefix_space", None)  # its older name
            elif step["type"] == "ByteLevel":
                step["add_prefix_space"] = False
        model = description["model"]
        if "dropout" in model:
            model["dropout"] = None
        yield json.dumps(description)
        if model.get("ignore_merges"):
            model["ignore_merges"] = False
            yield json.dumps(description)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the constructor's arguments, without cached answers and tokenizers."""
        return Segmentation, (self._description, self._parse, self._bytes)


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def _replacements(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Keep the steps of a normalizer that only replace characters, such as a space by `▁`."""
    kept = [step for step in elementary_steps(normalizer) if step["type"] == "Replace"]
    return {"type": "Sequence", "normalizers": kept} if kept else None
