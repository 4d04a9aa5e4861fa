"""Vocabularies: the bytes of each token id, the only data that constraints need.

The size of a vocabulary is the width of the model's logits, which often exceeds the tokenizer's
number of tokens (models are padded for the hardware). Ids without bytes are never allowed, except
for special tokens that end a segment (`gcd._tokens.segments`). The ids that end a text (EOS) are
listed separately, and have no bytes. The text of a sequence of tokens is the concatenation of their
bytes; nothing is stripped from it.
"""

from __future__ import annotations

import binascii
import os
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Int16, Int64

from gcd._arguments import Ids, as_ids, whole_number
from gcd._automata.automaton import SPECIAL
from gcd._errors import ConstraintError, check_kind
from gcd._tokens.canonical_pairs import Segmentation
from gcd._tokens.token_bytes import bytes_of_tokenizer
from gcd._tokens.trie import Trie, UnitProfile

_PROFILES_LOCK = Lock()  # constraints are lifted in several threads
_PROFILES = 16  # cached for one vocabulary; each takes some 10 bytes per token

BITS = 32
"""Number of tokens in a word of a packed mask (`gcd._tokens.batch.pack`)."""


def num_words(num_tokens: int) -> int:
    """Return the number of words in a packed mask: the number of tokens over 32, rounded up."""
    return (num_tokens + BITS - 1) // BITS


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Mapping from every token id to its bytes.

    Attributes:
        size: number of ids V, the width of the model's logits.
        token_bytes: the bytes of each id, `b""` for ids that are never part of an answer.
        eos_ids: the ids that end a text, in ascending order; may be empty (see `gcd.lift`).
        segmentation: the tokenizer's rules for splitting texts into tokens; None if unknown. The
            comparison of vocabularies ignores them.
        special_ids: ids of the tokens that the tokenizer finds in a text before it splits the text,
            such as special tokens, by their text.

    Raises:
        ConstraintError: if an EOS id is outside the vocabulary, or there are no ids.
    """

    size: int
    token_bytes: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    segmentation: Segmentation | None = None
    special_ids: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConstraintError("expected at least one token in a vocabulary, got none")
        if len(self.token_bytes) != self.size:
            raise ConstraintError(
                f"expected {self.size} byte strings, one for each id, got {len(self.token_bytes)}"
            )
        outside = [i for i in self.eos_ids if not 0 <= i < self.size]
        if outside:
            raise ConstraintError(
                f"expected EOS ids in 0..{self.size - 1}, got {outside}; pass a larger size or "
                "other eos_ids"
            )
        assert list(self.eos_ids) == sorted(set(self.eos_ids)), "EOS ids ascend without repetition"
        assert not any(self.token_bytes[i] for i in self.eos_ids), "EOS ids have no bytes"

    @classmethod
    def from_bytes(
        cls, tokens: Sequence[bytes], eos_ids: Ids, size: int | None = None
    ) -> Vocabulary:
        """Make a vocabulary from the bytes of the ids 0, 1, ...

        Args:
            tokens: the bytes of each id, `b""` for an id that is never part of a text.
            eos_ids: the id or ids that end a text; their bytes are dropped.
            size: the width of the model's logits; ids from `len(tokens)` on have no bytes. Defaults
                to `len(tokens)`.

        Raises:
            ConstraintError: if there are more tokens than `size`, or an EOS id is out of range.
        """
        check_kind(tokens, (list, tuple), "tokens as a list", "pass the bytes of each id")
        wrong = next((token for token in tokens if not isinstance(token, bytes)), b"")
        check_kind(wrong, bytes, "tokens as bytes", "encode text in UTF-8")
        size = len(tokens) if size is None else size
        check_kind(size, int, "a vocabulary's size as an int", "pass the width of the logits")
        if size < len(tokens):
            raise ConstraintError(
                f"expected a size of at least {len(tokens)}, the number of ids in use, got {size}; "
                "pass the width of the model's logits"
            )
        ends = tuple(sorted(set(as_ids(eos_ids))))
        padded = list(tokens) + [b""] * (size - len(tokens))
        for i in ends:
            if 0 <= i < size:
                padded[i] = b""
        return cls(size, tuple(padded), ends)

    @classmethod
    def from_ranks(cls, path: str | Path, eos_ids: Ids, size: int | None = None) -> Vocabulary:
        """Read a file of tokens in tiktoken's format, with a line `base64(bytes) id` for each.

        tiktoken calls ids ranks. Ids missing in the file, including special tokens, have no bytes.

        Args:
            path: the file.
            eos_ids: the id or ids that end a text.
            size: the width of the model's logits; by default one more than the largest id.

        Raises:
            ConstraintError: for a line that doesn't have this form, or an id that occurs twice.
        """
        check_kind(path, (str, os.PathLike), "the path of a rank file", "pass a str or a Path")
        bytes_of: dict[int, bytes] = {}
        decode = binascii.a2b_base64
        content = Path(path).read_bytes().removeprefix(BOM_UTF8)
        for number, line in enumerate(content.splitlines(), start=1):
            if not line or line.isspace():
                continue
            try:
                encoded, rank = line.split()
                token, index = decode(encoded, strict_mode=True), int(rank)
            except (ValueError, binascii.Error) as error:
                raise ConstraintError(
                    f"{path}, line {number}: expected a token in base64 and its rank, got "
                    f"{line[:60]!r}; pass a file in tiktoken's format"
                ) from error
            if index < 0 or index in bytes_of:
                raise ConstraintError(
                    f"{path}, line {number}: expected distinct ranks of at least 0, got rank "
                    f"{index}, which is {'negative' if index < 0 else 'given twice'}; correct the "
                    "file"
                )
            bytes_of[index] = token
        ends = as_ids(eos_ids)
        width = max([*bytes_of, *ends], default=-1) + 1
        tokens = [bytes_of.get(i, b"") for i in range(width)]
        return cls.from_bytes(tokens, ends, size)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, size: int | None = None, eos_ids: Ids | None = None
    ) -> Vocabulary:
        """Read the bytes of all tokens from a Hugging Face tokenizer.

        Byte-level BPE and SentencePiece-style tokenizers (`▁` for a space, `<0xAB>` for a byte) are
        supported exactly; the tokenizer's own decoder shows which kind it is. Special tokens have
        no bytes; added tokens that are not special have the bytes of their text. The tokenizer's
        current splitting rules are stored as `segmentation`.

        Args:
            tokenizer: a fast tokenizer of `transformers`, or a `tokenizers.Tokenizer`.
            size: the width of the model's logits; by default one more than the largest id.
            eos_ids: the ids that end a text; by default the tokenizer's `eos_token_id`. A model's
                generation config may have more of them; get them with `eos_ids_of`.

        Raises:
            ConstraintError: for a tokenizer of another kind, or a size too small for its ids.
        """
        tokens = bytes_of_tokenizer(tokenizer)
        if eos_ids is None:
            eos_ids = eos_ids_of(None, tokenizer)
        vocabulary = cls.from_bytes(tokens, eos_ids, size)
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        own = Segmentation(backend.to_str(), type(backend).from_str, vocabulary.token_bytes)
        added = backend.get_added_tokens_decoder().items()
        special_ids = {token.content: index for index, token in added}
        return replace(vocabulary, segmentation=own, special_ids=special_ids)

    def with_specials(self, texts: Sequence[str]) -> Vocabulary:
        """Return the vocabulary in which special tokens have the bytes of `Automaton.special`.

        Raises:
            ConstraintError: there is no such token, or it ends the whole text.
        """
        if not texts:
            return self
        for text in texts:
            if self.special_ids.get(text, -1) in (-1, *self.eos_ids):
                got = "that ends with it" if text in self.special_ids else "without it"
                raise ConstraintError(
                    f"expected a vocabulary with the special token {text!r}, got one {got}; use "
                    "the format of this model, and Vocabulary.from_tokenizer"
                )
        key = tuple(sorted(texts))
        if key not in self._marked:
            tokens = [b"" if SPECIAL in token else token for token in self.token_bytes]
            for text in texts:
                tokens[self.special_ids[text]] = SPECIAL + text.encode() + SPECIAL
            self._marked[key] = Vocabulary(self.size, tuple(tokens), self.eos_ids)
        return self._marked[key]

    @cached_property
    def _marked(self) -> dict[tuple[str, ...], Vocabulary]:
        return {}

    def decode(self, ids: Iterable[int]) -> bytes:
        """Concatenate the bytes of these ids; nothing is stripped, and EOS adds no bytes.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        return b"".join(self.token_bytes[self.check_id(token)] for token in ids)

    def check_id(self, token: int) -> int:
        """Return a token id as an int; raise `ValueError` if it is outside the vocabulary."""
        index = whole_number(token)
        if not 0 <= index < self.size:
            raise ValueError(f"expected a token id in 0..{self.size - 1}, got {index}")
        return index

    @cached_property
    def trie(self) -> Trie:
        """Prefix tree of the tokens."""
        return Trie.build(self.token_bytes)

    @cached_property
    def lengths(self) -> Int64[np.ndarray, "V"]:
        """Number of bytes of each id."""
        return np.fromiter(map(len, self.token_bytes), np.int64, self.size)

    def profile(self, unit: Int16[np.ndarray, "phases 256"]) -> UnitProfile:
        """Return how each token behaves inside a repeated `unit` (`gcd._tokens.trie`).

        The latest results are cached in memory.

        Args:
            unit: transitions of the automaton that is repeated.
        """
        key = unit.tobytes()
        known = self._profiles.get(key)
        if known is None:
            known = UnitProfile.of(unit, self.trie)
        with _PROFILES_LOCK:
            self._profiles[key] = known
            self._profiles.move_to_end(key)
            while len(self._profiles) > _PROFILES:
                self._profiles.popitem(last=False)
        return known

    @cached_property
    def _profiles(self) -> OrderedDict[bytes, UnitProfile]:
        return OrderedDict()

    @cached_property
    def fingerprint(self) -> bytes:
        """Digest of the ids, their bytes and the EOS ids: equal for equal vocabularies."""
        digest = blake2b(digest_size=16)
        digest.update(np.array([self.size, *self.eos_ids], np.int64).tobytes())
        digest.update(self.lengths.tobytes())
        digest.update(b"".join(self.token_bytes))
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Vocabulary({self.size} ids, eos_ids={self.eos_ids})"


def eos_ids_of(model_or_config: Any, tokenizer: Any = None) -> tuple[int, ...]:
    """Collect all ids that end a text, from a model's configs and from its tokenizer.

    Args:
        model_or_config: a `transformers` model, whose generation config and model config are
            used; or one of these configs; or None.
        tokenizer: a tokenizer with `eos_token_id`, or None.

    Returns:
        The ids from all of these sources, ascending; empty if there are none.
    """
    config = getattr(model_or_config, "config", None)
    sources = [
        model_or_config,
        getattr(model_or_config, "generation_config", None),
        config,
        getattr(config, "text_config", None),
        tokenizer,
    ]
    ends: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            ends.update(as_ids(value))
    return tuple(sorted(ends))
