"""The checks of annotations that every test runs under; see `tests/conftest.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping

_tests_begun = 0


def begin_test() -> None:
    """Start counting calls anew."""
    global _tests_begun
    _tests_begun += 1


def in_some_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Make jaxtyping's decorator one that checks calls 1, 10, 100 … of a function in a test.

    A walk over all choices calls some functions thousands of times with the same kinds of
    arguments. To check the first fifty calls of each took the tests in `test_executions.py` a
    quarter longer. Functions that are made anew in every call of another are left alone, as their
    checks would be compiled every time.
    """

    def decorate(decorated: Any, typechecker: Any) -> Any:
        if "<locals>" in decorated.__qualname__:
            return decorated
        checked = jaxtyped(decorated, typechecker=typechecker)
        if not isinstance(decorated, FunctionType):
            return checked
        test, calls, due = 0, 0, 1

        @functools.wraps(decorated)
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal test, calls, due
            if test != _tests_begun:
                test, calls, due = _tests_begun, 0, 1
            calls += 1
            if calls < due:
                return decorated(*args, **kwargs)
            due *= 10
            return checked(*args, **kwargs)

        return called

    return lambda typechecker: functools.partial(decorate, typechecker=typechecker)


def enforce(modules: list[str]) -> None:
    """Have annotations enforced in these modules, from their import on."""
    jaxtyping.jaxtyped = in_some_calls(jaxtyping.jaxtyped)  # modules look it up by this name
    jaxtyping.install_import_hook(modules, "beartype.beartype")
