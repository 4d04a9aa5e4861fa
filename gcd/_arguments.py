"""Checks of arguments: token ids, numbers of tokens, budgets, indices, and arrays for masks.

Engines pass tensors, arrays and lists. Whole numbers in any of these forms are accepted, and so are
arrays on the CPU into which masks are written. Other types raise an error, because numpy would
convert them silently: 126.7 to 126, True to 1, and some arrays to copies.

A wrong index may not raise an error by itself: a negative index of a tensor counts from the end,
and compiled code reads arbitrary memory. On the CPU the values are compared with their bounds,
which takes some microseconds per batch. On other devices this would be a host synchronization, so
only the type is checked, and PyTorch's own device-side assertions apply.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, Int64

from gcd._errors import ConstraintError

if TYPE_CHECKING:
    from torch import Tensor

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_INT = frozenset((int,))
_WHOLE = {f"torch.{name}" for name in ("int64", "int32", "int16", "int8", "uint8")}

Ids = int | np.integer | Iterable[int]
"""One token id, or several."""


def whole_numbers(given: Any, what: str = "token") -> Int64[np.ndarray, "..."]:
    """Return a whole number, or any array of them, as int64; `what` names one in errors."""
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
    """Return `out`, an array or CPU tensor for masks, as an array that shares its memory."""
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
    """View an array or a CPU tensor as an array, without a copy; return None for other types."""
    if isinstance(given, np.ndarray):
        return given
    if not _is_tensor(given):
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


def _is_tensor(given: Any) -> bool:
    # Importing torch takes seconds. It isn't necessary: if there is a tensor, torch is imported.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def check_indices(indices: Tensor, size: int, what: str = "token", least: int = 0) -> None:
    """Raise `ValueError` for indices outside of `least` to `size` - 1; `what` names an item."""
    if not _is_tensor(indices) or str(indices.dtype) not in _WHOLE:
        kind = indices.dtype if _is_tensor(indices) else type(indices).__name__
        raise ValueError(f"expected a tensor of integers, one for each {what}, got {kind}")
    if indices.device.type != "cpu" or not indices.numel():
        return
    values = indices.numpy()
    lowest, highest = int(values.min()), int(values.max())
    if lowest < least or highest >= size:
        wrong = lowest if lowest < least else highest
        raise ValueError(f"expected each {what} in {least}..{size - 1}, got {wrong}")


def check_shapes(*expected: tuple[Tensor, tuple[int, ...], str]) -> None:
    """Raise `ValueError` unless each tensor has its shape; texts name the tensors in errors."""
    for given, shape, what in expected:
        if not _is_tensor(given) or tuple(given.shape) != shape:
            found = tuple(given.shape) if _is_tensor(given) else type(given).__name__
            raise ValueError(f"expected {what} of shape {shape}, got {found}")


def check_tensors(
    shapes: Iterable[tuple[Tensor, tuple[int, ...], str]], *indices: tuple[Tensor, int, str, int]
) -> None:
    """Check shapes as `check_shapes` does, and then indices as `check_indices` does."""
    check_shapes(*shapes)
    for each in indices:
        check_indices(*each)


def as_ids(ids: Ids) -> tuple[int, ...]:
    """Return one id or several as a tuple; raise `ConstraintError` for others, as for `bytes`."""
    try:
        if isinstance(ids, bytes | bytearray):
            raise TypeError
        one = hasattr(ids, "__index__") and not getattr(ids, "ndim", 0)
        return (index(ids),) if one else tuple(map(index, ids))  # type: ignore[arg-type]
    except TypeError as error:
        raise ConstraintError(
            f"expected token ids as whole numbers, got {ids!r}; get ids from "
            "tokenizer.convert_tokens_to_ids(names) or from tokenizer(text, "
            "add_special_tokens=False)"
        ) from error


def check_whole(budget: Any, where: str = "budget") -> None:
    """Raise `ConstraintError` for a budget such as 1.5 or True; `where` begins the message."""
    if isinstance(budget, bool | np.bool_) or not isinstance(budget, int | np.integer):
        raise ConstraintError(f"{where}: expected a whole number of tokens, got {budget!r}")
