"""A vocabulary of single bytes and a few longer tokens, with a schema that it can spell."""

from __future__ import annotations

import gcd

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "n": {"type": "integer", "minimum": 0, "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


def vocabulary() -> gcd.Vocabulary:
    """Return the single bytes, a few longer tokens, and EOS."""
    longer = [b'{"', b'":', b'",', b"name", b"aa", b'a"']
    tokens = [*(bytes([i]) for i in range(256)), *longer, b""]
    return gcd.Vocabulary.from_bytes(tokens, eos_ids=[len(tokens) - 1])
