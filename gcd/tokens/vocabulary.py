"""A tokenizer as the one thing constraints need of it: the bytes of every token id.

The width of a vocabulary is that of the model's logits, which often exceeds the tokenizer's
(padding for the hardware). Ids without bytes are never allowed; ids that end a text are a list of
their own and have no bytes either, whatever their name looks like. What a sequence of tokens says
is the concatenation of their bytes, nothing stripped.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16

from gcd.errors import ConstraintError
from gcd.tokens import disk_cache as vocabulary_cache
from gcd.tokens.profiles import UnitProfile
from gcd.tokens.token_bytes import bytes_of_tokenizer
from gcd.tokens.trie import Trie

_PROFILES = 16  # kept for one vocabulary; each takes some 10 bytes a token

Ids = int | np.integer | Iterable[int]
"""One token id, or several."""


BITS = 32
"""Tokens in a word of a packed mask (`gcd.tokens.bitmask`)."""


def num_words(num_tokens: int) -> int:
    """Words in a packed mask: the number of tokens over 32, rounded up."""
    return (num_tokens + BITS - 1) // BITS


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token id to bytes.

    Attributes:
        size: number of ids V, the width of the logits.
        token_bytes: the bytes of each id, `b""` for ids that are never part of an answer.
        eos_ids: the ids that end a text, ascending; may be empty (see `gcd.lift`).

    Raises:
        ConstraintError: if an EOS id lies outside the vocabulary or there are no ids at all.
    """

    size: int
    token_bytes: tuple[bytes, ...]
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConstraintError("a vocabulary needs at least one token, got none")
        if len(self.token_bytes) != self.size:
            raise ConstraintError(
                f"a vocabulary of size {self.size} needs as many byte strings, "
                f"got {len(self.token_bytes)}"
            )
        outside = [i for i in self.eos_ids if not 0 <= i < self.size]
        if outside:
            raise ConstraintError(
                f"EOS ids {outside} lie outside the vocabulary, whose ids are 0..{self.size - 1}; "
                "pass a larger size or other eos_ids"
            )
        assert list(self.eos_ids) == sorted(set(self.eos_ids)), "EOS ids ascend without repetition"
        assert not any(self.token_bytes[i] for i in self.eos_ids), "EOS ids have no bytes"

    @classmethod
    def from_bytes(
        cls, tokens: Sequence[bytes], eos_ids: Ids, size: int | None = None
    ) -> Vocabulary:
        """From the bytes of ids 0, 1, ...; ids from `len(tokens)` up to `size` get no bytes."""
        size = len(tokens) if size is None else size
        if size < len(tokens):
            raise ConstraintError(
                f"size {size} is less than the {len(tokens)} ids in use; "
                "the size is the width of the model's logits"
            )
        ends = tuple(sorted(set(_as_ids(eos_ids))))
        padded = list(tokens) + [b""] * (size - len(tokens))
        for i in ends:
            if 0 <= i < size:
                padded[i] = b""
        return cls(size, tuple(padded), ends)

    @classmethod
    def from_ranks(cls, path: str | Path, eos_ids: Ids, size: int | None = None) -> Vocabulary:
        """From a rank file as tiktoken reads it: a line for each token, `base64(bytes) id`.

        Ids that the file leaves out, special tokens among them, have no bytes.

        Raises:
            ConstraintError: on a line that is not of this form, or an id that occurs twice.
        """
        bytes_of: dict[int, bytes] = {}
        decode = binascii.a2b_base64
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            if not line or line.isspace():
                continue
            try:
                encoded, rank = line.split()
                token, index = decode(encoded, strict_mode=True), int(rank)
            except (ValueError, binascii.Error) as error:
                raise ConstraintError(
                    f"{path}, line {number}: expected `base64 rank`, got {line[:60]!r}"
                ) from error
            if index < 0 or index in bytes_of:
                raise ConstraintError(
                    f"{path}, line {number}: rank {index} is "
                    f"{'negative' if index < 0 else 'given twice'}"
                )
            bytes_of[index] = token
        ends = _as_ids(eos_ids)
        width = max([*bytes_of, *ends], default=-1) + 1
        tokens = [bytes_of.get(i, b"") for i in range(width)]
        return cls.from_bytes(tokens, ends, size)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        *,
        size: int | None = None,
        eos_ids: Ids | None = None,
    ) -> Vocabulary:
        """From a Hugging Face fast tokenizer or a `tokenizers.Tokenizer`.

        Byte-level BPE and SentencePiece-style tokenizers (`▁` for a space, `<0xAB>` for a byte)
        are read exactly, the kind being told from the tokenizer's own decoder. Special tokens
        have no bytes; added tokens that are not special have those of their text.

        Args:
            tokenizer: the tokenizer.
            size: the width of the model's logits; by default the largest id and one.
            eos_ids: the ids that end a text; by default the tokenizer's `eos_token_id`. Models
                may have more of them in their generation config: see `eos_ids_of`.

        Raises:
            ConstraintError: for a tokenizer of another kind, or a size too small for its ids.
        """
        tokens = bytes_of_tokenizer(tokenizer)
        if eos_ids is None:
            eos_ids = eos_ids_of(None, tokenizer)
        return cls.from_bytes(tokens, eos_ids, size)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of a sequence of ids, nothing stripped; EOS adds none."""
        return b"".join(self.token_bytes[int(i)] for i in ids)

    @cached_property
    def trie(self) -> Trie:
        """The prefix tree of the tokens, made once, or read from disk (`gcd.tokens.disk_cache`)."""
        arrays = self._load("trie")
        trie = None if arrays is None else Trie.from_arrays(arrays, self.token_bytes)
        if trie is None:
            trie = Trie.build(self.token_bytes)
            self._store("trie", trie.arrays())
        return trie

    def profile(self, unit: Int16[np.ndarray, "places 256"]) -> UnitProfile:
        """What a unit of counted runs says about the tokens, made once or read from disk.

        The latest ones are kept in memory.
        """
        key = unit.tobytes()
        known = self._profiles.pop(key, None)
        if known is None:
            name = blake2b(key, digest_size=8).hexdigest()
            arrays = self._load(name)
            known = None if arrays is None else UnitProfile.from_arrays(arrays, unit, self.trie)
            if known is None:
                known = UnitProfile.of(unit, self.trie)
                self._store(name, known.arrays())
        self._profiles[key] = known  # the latest one last
        while len(self._profiles) > _PROFILES:
            self._profiles.pop(next(iter(self._profiles)))
        return known

    def _load(self, name: str) -> dict[str, np.ndarray] | None:
        worth = self.size >= vocabulary_cache.FEWEST_IDS
        return vocabulary_cache.load(f"{self.fingerprint.hex()}-{name}") if worth else None

    def _store(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        if self.size >= vocabulary_cache.FEWEST_IDS:
            vocabulary_cache.store(f"{self.fingerprint.hex()}-{name}", arrays)

    @cached_property
    def _profiles(self) -> dict[bytes, UnitProfile]:
        return {}

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of the content: equal for equal vocabularies."""
        digest = blake2b(digest_size=16)
        digest.update(np.array([self.size, *self.eos_ids], np.int64).tobytes())
        digest.update(np.fromiter(map(len, self.token_bytes), np.int64, self.size).tobytes())
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
    """All ids that end a text: the generation config's, the model config's, the tokenizer's.

    Args:
        model_or_config: a `transformers` model, a generation config or a model config, or None.
            Of a model both configs are read.
        tokenizer: a tokenizer with `eos_token_id`, or None.
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
            ends.update(_as_ids(value))
    return tuple(sorted(ends))


def _as_ids(ids: Ids) -> tuple[int, ...]:
    return (int(ids),) if isinstance(ids, (int, np.integer)) else tuple(int(i) for i in ids)
