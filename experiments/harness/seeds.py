"""A seed depends only on what it is for, never on what came before."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: object) -> int:
    """Compute a seed from these values, unlike those of others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])
