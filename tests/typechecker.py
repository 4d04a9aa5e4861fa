"""The checks of annotations that every test runs under; see `tests/conftest.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping

CALLS = 50
"""A function's annotations are checked in so many of its calls by one test, the first ones.

A walk over all choices calls some functions thousands of times, with the same kinds of arguments.
"""

_tests_begun = 0


def begin_test() -> None:
    """Start counting calls anew."""
    global _tests_begun
    _tests_begun += 1


def in_first_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Make jaxtyping's decorator one that enforces in the first `CALLS` calls of a test only.

    Functions that are made anew in every call of another are left alone: to compile their checks
    every time took a fifth of the whole suite.
    """

    def decorate(decorated: Any, typechecker: Any) -> Any:
        if "<locals>" in decorated.__qualname__:
            return decorated
        always = jaxtyped(decorated, typechecker=typechecker)
        if not isinstance(decorated, FunctionType):
            return always
        test, calls = 0, 0

        @functools.wraps(decorated)
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal test, calls
            if test != _tests_begun:
                test, calls = _tests_begun, 0
            calls += 1
            return (always if calls <= CALLS else decorated)(*args, **kwargs)

        return called

    return lambda typechecker: functools.partial(decorate, typechecker=typechecker)


def enforce(modules: list[str]) -> None:
    """Have annotations enforced in these modules, from their import on."""
    jaxtyping.jaxtyped = in_first_calls(jaxtyping.jaxtyped)  # modules look it up by this name
    jaxtyping.install_import_hook(modules, "beartype.beartype")
