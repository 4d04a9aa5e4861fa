"""Seeds that are functions of what they are for, so that nothing depends on what came before."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: object) -> int:
    """A seed that is a function of these values, unlike those of others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])
