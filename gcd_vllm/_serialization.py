"""Serialization of byte and token automata, to pass them to other processes.

A header of JSON is followed by the compressed arrays. The numbers in the arrays are checked when
they are read, so that invalid bytes can't make a kernel read outside of an array.
"""

from __future__ import annotations

import json
import zlib

import numpy as np

from gcd import Automaton, Caveat, ConstraintError, TokenAutomaton, Vocabulary
from gcd._automata.byte_classes import NUM_BYTES
from gcd._tokens.distances import distances_to
from gcd._tokens.rows import Rows

_LEVEL = 1  # compression level; more takes longer and saves little, as tables are repetitive


def pack(found: Automaton | TokenAutomaton) -> bytes:
    """Serialize a language without its `factors`, or a lifted automaton without its vocabulary."""
    if isinstance(found, TokenAutomaton):
        vocabulary, last = found.vocabulary.fingerprint.hex(), found.eos_class
        arrays = [found.class_of, *found.rows]
    else:
        vocabulary, last = "", found.delta.shape[1] - 1
        arrays = [found.class_of_byte.astype(np.int32), found.delta.ravel()]
    arrays = [*arrays, found.accepting.astype(np.int32)]
    sizes = [array.size for array in arrays]
    small = all(array.max(initial=0) < 1 << 15 for array in arrays)
    dtype = np.dtype("<i2" if small else "<i4")
    content = zlib.compress(b"".join(array.astype(dtype).tobytes() for array in arrays), _LEVEL)
    specials = found.specials if isinstance(found, Automaton) else ()
    more = (found.initial, found.max_bytes, found.caveats, specials)
    return json.dumps([vocabulary, last, dtype.str, sizes, *more]).encode() + b"\n" + content


def unpack(packed: bytes, vocabulary: Vocabulary | None = None) -> Automaton | TokenAutomaton:
    """Return what `pack` has serialized; `vocabulary` are the tokens of a lifted automaton."""
    try:
        header, _, compressed = packed.partition(b"\n")
        lifted_to, last, kind, sizes, initial, max_bytes, known, specials = json.loads(header)
        numbers = np.frombuffer(zlib.decompress(compressed), np.dtype(kind)).astype(np.int32)
        caveats = tuple(Caveat(*each) for each in known)
        if sum(sizes) != numbers.size:
            raise ValueError("the lengths of the arrays don't match the header")
        class_of, *rest, ends = np.split(numbers, np.cumsum(sizes)[:-1])
        if class_of.min() < 0 or class_of.max() > last or not 0 <= initial < ends.size:
            raise ValueError("a class or a state is out of range")
        if not lifted_to:
            delta = rest[0].reshape(ends.size, last + 1)
            if class_of.size != NUM_BYTES or delta.min() < -1 or delta.max() >= ends.size:
                raise ValueError("a byte or a state is out of range")
            class_of_byte = class_of.astype(np.uint8)
            return Automaton(
                delta, ends > 0, class_of_byte, max_bytes, (), caveats, tuple(specials)
            )
        if vocabulary is None or vocabulary.fingerprint.hex() != lifted_to:
            raise ValueError("it is lifted to another vocabulary")
        rows = Rows(*rest)
        rows.check(ends.size, last + 1)
        steps = distances_to(ends.size - 1, rows.edges, ends.size)
        return TokenAutomaton(
            vocabulary, class_of, rows, ends > 0, steps, initial, last, max_bytes, caveats
        )
    except (AssertionError, ValueError, TypeError, zlib.error) as error:
        raise ConstraintError(
            f"expected the bytes of a packed constraint, got other bytes: {error}"
        ) from error
