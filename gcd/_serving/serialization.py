"""Serialization of byte and token automata, to pass them to other processes.

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
from gcd._tokens.distances import steps_to_accept
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary

_LEVEL = 1  # compression level; more takes longer and saves little, as tables are repetitive


def pack(found: Automaton | TokenAutomaton) -> bytes:
    """Serialize a language without its `factors`, or a lifted automaton without its vocabulary."""
    if isinstance(found, TokenAutomaton):
        class_of, vocabulary = found.class_of, found.vocabulary.fingerprint.hex()
    else:
        class_of, vocabulary = found.class_of_byte, ""
    dtype = np.dtype("<i2" if max(found.delta.shape) < 1 << 15 else "<i4")
    more = (found.initial, found.max_bytes, found.caveats)
    arrays = (found.delta.astype(dtype), class_of.astype(dtype), found.accepting)
    content = zlib.compress(b"".join(array.tobytes() for array in arrays), _LEVEL)
    header = json.dumps([vocabulary, *found.delta.shape, dtype.str, *more])
    return header.encode() + b"\n" + content


def unpack(packed: bytes, vocabulary: Vocabulary | None = None) -> Automaton | TokenAutomaton:
    """Return what `pack` has serialized.

    Args:
        packed: the bytes.
        vocabulary: the tokens of a lifted automaton.

    Raises:
        ConstraintError: the bytes aren't those of a language, or of an automaton of these tokens.
    """
    try:
        header, _, compressed = packed.partition(b"\n")
        lifted_to, num_states, num_classes, kind, initial, max_bytes, known = json.loads(header)
        dtype, content = np.dtype(kind), zlib.decompress(compressed)
        table = num_states * num_classes * dtype.itemsize
        delta = np.frombuffer(content[:table], dtype).reshape(num_states, num_classes)
        class_of = np.frombuffer(content[table:-num_states], dtype)
        accepting = np.frombuffer(content[-num_states:], np.bool_)
        if dtype.kind != "i":
            raise ValueError("the arrays aren't of whole numbers")
        if not lifted_to:
            vocabulary, size = None, NUM_BYTES
        elif vocabulary is not None and vocabulary.fingerprint.hex() == lifted_to:
            size = vocabulary.size
        else:
            raise ValueError("it is lifted to another vocabulary")
        if accepting.shape != (num_states,) or class_of.shape != (size,):
            raise ValueError("the arrays have other lengths than the header says")
        if delta.min() < -1 or not max(delta.max(), initial) < num_states or initial < 0:
            raise ValueError("a state is out of range")
        if class_of.min() < 0 or class_of.max() >= num_classes:
            raise ValueError("a class is out of range")
        delta, caveats = delta.astype(np.int32), tuple(Caveat(*each) for each in known)
        if vocabulary is None:
            class_of_byte = class_of.astype(np.uint8)
            return Automaton(delta, accepting, class_of_byte, max_bytes, caveats=caveats)
        steps = steps_to_accept(delta, num_states - 1)
        return TokenAutomaton(
            vocabulary, class_of.astype(np.int32), delta, accepting, steps, initial,
            num_classes - 1, max_bytes, caveats,
        )  # fmt: skip
    except (AssertionError, ValueError, TypeError, zlib.error) as error:
        raise ConstraintError(
            f"expected the bytes of a packed constraint, got other bytes: {error}"
        ) from error
