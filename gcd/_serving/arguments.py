"""Arguments from engines: token ids, numbers of tokens, and arrays for masks.

Engines pass tensors, arrays and lists. Whole numbers in any of these forms are accepted, and so are
arrays on the CPU into which masks are written. Other types raise an error, because numpy would
convert them silently: 126.7 to 126, True to 1, and some arrays to copies.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_INT = frozenset((int,))


def whole_numbers(given: Any, what: str = "token") -> Int64[np.ndarray, "..."]:
    """Return whole numbers (an int, or a sequence, an array or a CPU tensor of them) as int64.

    Args:
        given: the numbers.
        what: the name of a number, such as "token", for the error.

    Raises:
        ValueError: if they are floats or booleans, or not on the CPU.
    """
    if type(given) is np.ndarray and given.dtype is _INT64 and given.flags.carray:
        return given
    if type(given) is list or type(given) is tuple:
        if not _INT.issuperset(map(type, given)):
            given = [whole_number(part, what) for part in given]
        try:
            return np.array(given, np.int64)
        except OverflowError:
            raise ValueError(f"expected each {what} as a 64-bit number, got {given!r}") from None
    numbers = array_of(given)
    if numbers is None:
        numbers = np.asarray(given)
    if numbers.size and numbers.dtype.kind not in "iu":  # numpy makes floats of an empty list
        raise ValueError(f"expected each {what} as a whole number, got {given!r}")
    return np.array(numbers, np.int64)  # contiguous, as compiled code requires


def whole_number(given: Any, what: str = "token") -> int:
    """Return one whole number, in any form that `whole_numbers` accepts, as an int."""
    if type(given) is int or isinstance(given, np.integer):
        return int(given)
    numbers = whole_numbers(given, what)
    if numbers.ndim:
        raise ValueError(f"expected one {what}, got {given!r}")
    return int(numbers)


def rows(out: Any, shape: tuple[int, ...]) -> Int32[np.ndarray, "..."]:
    """Return `out`, an array or CPU tensor for masks, as an array that shares its memory.

    Raises:
        ValueError: if `out` doesn't have the shape `shape`, is of another type, isn't contiguous,
            or is read-only.
    """
    array = out if type(out) is np.ndarray else array_of(out)
    if array is None:
        raise ValueError(
            f"expected an int32 array or CPU tensor of shape {shape} for masks, got "
            f"{type(out).__name__}"
        )
    flags = array.flags
    if array.shape != shape or array.dtype != _INT32 or not flags.carray:
        layout = "contiguous" if flags.c_contiguous else "not contiguous"
        layout += "" if flags.writeable else ", read-only"
        raise ValueError(
            f"expected writable contiguous int32 of shape {shape} for masks, got {array.dtype} of "
            f"shape {array.shape}, {layout}"
        )
    return array


def array_of(given: Any) -> np.ndarray | None:
    """View an array or a CPU tensor as an array, without a copy; return None for other types.

    Raises:
        ValueError: if it is a tensor on another device, or of a type that numpy doesn't support.
    """
    if isinstance(given, np.ndarray):
        return given
    # Importing torch takes seconds. It isn't necessary: if there is a tensor, torch is imported.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.Tensor):
        return None
    if given.device.type != "cpu":
        raise ValueError(
            f"expected a tensor on the CPU, got one on {given.device}; copy it with .cpu()"
        )
    try:
        return given.numpy()
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"expected a tensor of a type that numpy supports, got {given.dtype} ({error}); "
            "pass torch.int32"
        ) from error
