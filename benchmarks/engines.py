"""Grammar engines behind one interface, configured for the same language.

The language is compact JSON with declared members. Comparable settings:

* `llguidance` narrows its masks to the tokenizer's own tokenization of forced bytes; `no_forcing`
  is set, so that its masks contain all valid tokens like those of the others.
* `xgrammar` takes tokens by their bytes; the EOS id is given as empty bytes.
* No engine writes whitespace between JSON tokens (`{"a":1}`) or adds members.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from gcd import Matcher, TokenAutomaton, Vocabulary, json_schema, lift
from gcd._serving.matcher import masks_of
from gcd._tokens.vocabulary import num_words


class Row:
    """Packed masks in memory that every engine can write: an array and its address."""

    def __init__(self, vocabulary_size: int, rows: int = 1) -> None:
        self.width = num_words(vocabulary_size)
        self.array = np.zeros((rows, self.width), np.int32)
        self.first = self.array[0]
        self.address = self.array.ctypes.data


class Engine(ABC):
    """Interface of an engine; making one does the work that is done once per vocabulary."""

    name: str
    vocabulary_size: int
    ends: set[int]

    @abstractmethod
    def compile(self, schema: Any) -> Any:
        """Return a constraint to make matchers of."""

    @abstractmethod
    def matcher(self, compiled: Any) -> Any:
        """Return a new matcher; caches of this constraint are cleared if possible."""

    def reset(self, matcher: Any) -> None:
        """Reset the matcher, keeping caches."""
        matcher.reset()

    @abstractmethod
    def first(self, matcher: Any, row: Row) -> None:
        """Compute the mask of the next token."""

    @abstractmethod
    def step(self, matcher: Any, token: int, row: Row) -> bool:
        """Take a token and compute the next mask; return whether the token was accepted.

        This is the timed call, so implementations make no unnecessary calls.
        """

    def num_bytes(self, compiled: Any) -> int | None:
        """Return the memory of a constraint and its cached masks, or None if unknown."""
        return None


class Ours(Engine):
    """Matchers of this project."""

    name = "ours"

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        del threads
        self.vocabulary = vocabulary
        # Make the prefix tree, the tables of bounded strings, and the languages of all types.
        lift(json_schema(_ALL_TYPES), vocabulary)

    def compile(self, schema: Any) -> TokenAutomaton:
        return lift(json_schema(schema), self.vocabulary)

    def matcher(self, compiled: TokenAutomaton) -> Matcher:
        masks_of(compiled).forget()
        return Matcher(compiled, budget=None)

    def first(self, matcher: Matcher, row: Row) -> None:
        matcher.fill_mask(row.first)

    def step(self, matcher: Matcher, token: int, row: Row) -> bool:
        taken = matcher.advance(token)
        matcher.fill_mask(row.first)
        return taken

    def num_bytes(self, compiled: TokenAutomaton) -> int | None:
        return masks_of(compiled).nbytes


_ALL_TYPES = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 9},
        "b": {"type": "array", "items": {"type": ["number", "boolean", "null"]}},
        "c": {"type": "integer", "minimum": 0},
        "d": {"type": "object", "additionalProperties": {"enum": ["a", 1]}},
    },
    "required": ["a"],
}


class XGrammar(Engine):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        xgrammar = importlib.import_module("xgrammar")
        self._torch = importlib.import_module("torch")
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)
        self._matcher = xgrammar.GrammarMatcher

    def compile(self, schema: Any) -> Any:
        return self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=True
        )

    def matcher(self, compiled: Any) -> Any:
        return self._matcher(compiled)

    def first(self, matcher: Any, row: Row) -> None:
        matcher.fill_next_token_bitmask(row.array)

    def step(self, matcher: Any, token: int, row: Row) -> bool:
        taken: bool = matcher.accept_token(token)
        matcher.fill_next_token_bitmask(row.array)
        return taken

    def num_bytes(self, compiled: Any) -> int | None:
        return int(compiled.memory_size_bytes)


class LLGuidance(Engine):
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        llguidance = importlib.import_module("llguidance")
        description = _Tokenizer(vocabulary)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(description), n_vocab=vocabulary.size
        )
        self._tokenizer = self._tokenizer.with_slices(llguidance.LLTokenizer.json_slices())
        self._matcher = llguidance.LLMatcher
        self._size = num_words(vocabulary.size) * 4

    def compile(self, schema: Any) -> Any:
        options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        grammar = '%llguidance {"no_forcing": true}\nstart: %json ' + json.dumps(
            {**schema, "x-guidance": options}
        )
        matcher = self._matcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, compiled: Any) -> Any:
        return compiled.deep_copy()

    def first(self, matcher: Any, row: Row) -> None:
        matcher.unsafe_compute_mask_ptr(row.address, self._size)

    def step(self, matcher: Any, token: int, row: Row) -> bool:
        taken: bool = matcher.consume_token(token)
        matcher.unsafe_compute_mask_ptr(row.address, self._size)
        return taken


class _Tokenizer:
    """Tokenizer interface for `llguidance`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.tokens = [
            b"<eos>" if i == self.eos_token_id else token
            for i, token in enumerate(vocabulary.token_bytes)
        ]
        self.special_token_ids = [self.eos_token_id]
        self._spell = longest_match(vocabulary)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._spell(text if isinstance(text, bytes) else text.encode())


class OutlinesCore(Engine):
    name = "outlines-core"

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        del threads
        self._core = importlib.import_module("outlines_core")
        ids_of: dict[bytes, list[int]] = {}
        for index, token in enumerate(vocabulary.token_bytes):
            if token:
                ids_of.setdefault(token, []).append(index)
        self._vocabulary = self._core.Vocabulary(vocabulary.eos_ids[0], ids_of)
        self._width, self._eos = num_words(vocabulary.size), vocabulary.eos_ids[0]

    def compile(self, schema: Any) -> Any:
        pattern = self._core.json_schema.build_regex_from_schema(
            json.dumps(schema), whitespace_pattern=""
        )
        return self._core.Index(pattern, self._vocabulary)

    def matcher(self, compiled: Any) -> Any:
        return self._core.Guide(compiled)

    def first(self, matcher: Any, row: Row) -> None:
        matcher.write_mask_into(row.address, self._width, 4)

    def step(self, matcher: Any, token: int, row: Row) -> bool:
        taken = True
        if token == self._eos:  # has no transition for EOS
            taken = bool(matcher.is_finished())
        else:
            try:
                matcher.advance(token, return_tokens=False)
            except ValueError:
                taken = False
        self.first(matcher, row)
        return taken


COMPETITORS: dict[str, Callable[[Vocabulary, int], Engine]] = {
    "xgrammar": XGrammar,
    "llguidance": LLGuidance,
    "outlines_core": OutlinesCore,
}


def is_installed(module: str) -> bool:
    """Tell whether a module is installed."""
    return importlib.util.find_spec(module) is not None


def longest_match(vocabulary: Vocabulary) -> Callable[[bytes], list[int]]:
    """Tokenize greedily by the longest token, the lowest id among equals."""
    id_of: dict[bytes, int] = {}
    for index, token in enumerate(vocabulary.token_bytes):
        if token:
            id_of.setdefault(token, index)
    longest = max(map(len, id_of))

    def spell(text: bytes) -> list[int]:
        ids, position = list[int](), 0
        while position < len(text):
            size = next(
                n
                for n in range(min(longest, len(text) - position), 0, -1)
                if text[position : position + n] in id_of
            )
            ids.append(id_of[text[position : position + size]])
            position += size
        return ids

    return spell
