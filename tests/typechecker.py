"""The checks of annotations that every test runs under; see `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function's annotations enforced, unless it is made anew in every call of another.

    Its checks would be compiled every time, which took a fifth of the whole suite.
    """
    return function if "<locals>" in function.__qualname__ else beartype(function)
