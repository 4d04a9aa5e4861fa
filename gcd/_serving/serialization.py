"""Serialization of byte automata, to pass them to other processes.

A header of JSON is followed by the compressed arrays. The numbers in the arrays are checked when
they are read, so that invalid bytes can't make a kernel read outside of an array.
"""

from __future__ import annotations

import json
import zlib

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.horizon import Caveat
from gcd._errors import ConstraintError

_LEVEL = 1  # compression level; more takes longer and saves little, as tables are repetitive


def pack(language: Automaton) -> bytes:
    """Serialize a language, without its `factors`."""
    dtype = np.dtype("<i2" if language.num_states < 1 << 15 else "<i4")
    header = [*language.delta.shape, dtype.str, language.max_bytes, language.caveats]
    arrays = (language.delta.astype(dtype), language.accepting, language.class_of_byte)
    content = zlib.compress(b"".join(array.tobytes() for array in arrays), _LEVEL)
    return json.dumps(header).encode() + b"\n" + content


def unpack(packed: bytes) -> Automaton:
    """Return the language that `pack` has serialized.

    Raises:
        ConstraintError: the bytes aren't a serialized language.
    """
    try:
        header, _, compressed = packed.partition(b"\n")
        num_states, num_classes, dtype, max_bytes, caveats = json.loads(header)
        content = zlib.decompress(compressed)
        table = num_states * num_classes * np.dtype(dtype).itemsize
        delta = np.frombuffer(content[:table], dtype).reshape(num_states, num_classes)
        accepting = np.frombuffer(content[table:-NUM_BYTES], np.bool_)
        class_of_byte = np.frombuffer(content[-NUM_BYTES:], np.uint8)
        if accepting.shape != (num_states,) or class_of_byte.shape != (NUM_BYTES,):
            raise ValueError("the arrays have other lengths than the header says")
        if delta.min() < -1 or delta.max() >= num_states or class_of_byte.max() >= num_classes:
            raise ValueError("a state or a class is out of range")
        known = tuple(Caveat(*each) for each in caveats)
        return Automaton(delta.astype(np.int32), accepting, class_of_byte, max_bytes, caveats=known)
    except (ValueError, TypeError, zlib.error) as error:
        raise ConstraintError(
            f"expected the bytes of a packed language, got other bytes: {error}"
        ) from error
