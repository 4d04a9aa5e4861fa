"""Mixing of the bits of keys, for hash tables."""

from __future__ import annotations

import cython

_FIRST = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)
_SECOND = cython.declare(cython.ulonglong, 0x94D049BB133111EB)
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # for Python integers
_63_BITS = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)


def mix(value):
    """Mix 64 bits (the finalizer of splitmix64) to spread consecutive keys over the hash table."""
    x: cython.ulonglong = int(value)
    x = x & _64_BITS
    x = ((x ^ (x >> 30)) * _FIRST) & _64_BITS
    x = ((x ^ (x >> 27)) * _SECOND) & _64_BITS
    return (x ^ (x >> 31)) & _63_BITS
