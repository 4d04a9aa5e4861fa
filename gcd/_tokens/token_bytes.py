"""Bytes of every token, from a Hugging Face tokenizer's own description.

A tokenizer stores its tokens as text, in which bytes are encoded in one of two ways:

* **byte-level** (GPT-2 and most later models): every byte is written as one printable character, by
  a fixed table.
* **SentencePiece-style** (Llama 2, Mistral, Gemma, T5): tokens are text in UTF-8, in which `▁`
  stands for a space. Single bytes are tokens named `<0xAB>`.

The tokenizer's `decoder`, which reverses the encoding, shows which of the two is used. A tokenizer
with another decoder (such as WordPiece, which loses spaces) is refused with the decoder's name.
Some decoders also strip a leading space from the text. That step is ignored, because a constraint
has to include the space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gcd._errors import ConstraintError

_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_tokenizer(tokenizer: Any) -> list[bytes]:
    """Return the bytes of the ids 0, 1, ... of a tokenizer; `b""` for special, unused ids."""
    description = _description(tokenizer)
    model = description["model"]
    own = _model_vocabulary(model)
    added = description.get("added_tokens") or []
    width = max([*own.values(), *(token["id"] for token in added)], default=-1) + 1
    decode = _decoder(description)

    tokens = [b""] * width
    for text, index in own.items():
        tokens[index] = decode(text)
    unknown = _unknown_id(model, own)
    if unknown is not None:
        tokens[unknown] = b""
    for token in added:
        if token["special"]:
            tokens[token["id"]] = b""
        elif own.get(token["content"]) != token["id"]:
            # Added tokens are matched as plain text before any encoding applies. (An added token
            # that is also in the model's own vocabulary is an ordinary token that is never split.)
            tokens[token["id"]] = token["content"].encode()
    return tokens


def _description(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise ConstraintError(
            f"expected a fast tokenizer, got {type(tokenizer).__name__}; load it with "
            "AutoTokenizer.from_pretrained(..., use_fast=True), or use Vocabulary.from_bytes"
        )
    description: dict[str, Any] = json.loads(backend.to_str())
    return description


def _model_vocabulary(model: dict[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: (text, score) in order of ids
        return {text: index for index, (text, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def _unknown_id(model: dict[str, Any], own: dict[str, int]) -> int | None:
    """Return the unknown token's id, which stands for text that can't be encoded; or None."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    return own.get(model.get("unk_token") or "")


def elementary_steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the single steps of a decoder, normalizer or pre-tokenizer; flatten its sequences."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for parts in ("decoders", "normalizers", "pretokenizers"):
            for inner in part.get(parts, []):
                yield from elementary_steps(inner)
    else:
        yield part


def _decoder(description: dict[str, Any]) -> Any:
    """Return the function from a token's text to its bytes."""
    model = description["model"]
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix):
            raise ConstraintError(
                "expected tokens that always have the same bytes, got a tokenizer that marks word "
                f"boundaries by {affix}={model[affix]!r}; use a byte-level or SentencePiece-style "
                "tokenizer"
            )
    decoders = list(elementary_steps(description.get("decoder")))
    kinds = [step["type"] for step in decoders]
    before = [step["type"] for step in elementary_steps(description.get("pre_tokenizer"))]
    if "ByteLevel" in (kinds or before):
        return _byte_level
    marks_spaces = any(
        (step["type"] == "Metaspace" and step.get("replacement") == _SPACE_MARK)
        or (
            step["type"] == "Replace"
            and step["pattern"] == {"String": _SPACE_MARK}
            and step["content"] == " "
        )
        for step in decoders
    )
    if marks_spaces:
        return _sentence_piece_bytes if "ByteFallback" in kinds else _sentence_piece_text
    raise ConstraintError(
        "expected a tokenizer whose decoder is ByteLevel or SentencePiece-style (Replace or "
        f"Metaspace of '▁'), got {', '.join(kinds) or None}; build the vocabulary with "
        "Vocabulary.from_bytes"
    )


def _sentence_piece_text(text: str) -> bytes:
    return text.replace(_SPACE_MARK, " ").encode()


def _sentence_piece_bytes(text: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else _sentence_piece_text(text)


def _byte_level(text: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in text)
    except KeyError:
        return text.encode()  # a token added as plain text, without encoding


def _byte_level_table() -> dict[str, int]:
    """Return the byte of each character of the byte-level encoding, which is printable."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _byte_level_table()
