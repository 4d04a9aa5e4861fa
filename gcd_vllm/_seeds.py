"""Seeds of requests, derived by hashing.

With `n=64, seed=s`, vLLM gives sample i the seed s + i. So calls with seeds s and s + 1 share 63 of
their 64 samples, and estimates that should be independent are nearly the same. Hashed seeds don't
overlap in this way.
"""

from __future__ import annotations

import struct
from hashlib import blake2b


def request_seed(seed: int, example: int, particle: int, part: int) -> int:
    """Return the seed of one part of one particle, from 0 to 2^63 - 1."""
    low = [number & ((1 << 64) - 1) for number in (seed, example, particle, part)]
    digest = blake2b(struct.pack("<4Q", *low), digest_size=8, person=b"gcd particle").digest()
    return int.from_bytes(digest, "little") >> 1
