"""The checks of annotations that every test runs under; see `tests/conftest.py`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping

_counting: list[Callable[[], None]] = []


def begin_test() -> None:
    """Start counting calls anew."""
    for restart in _counting:
        restart()
    _counting.clear()


def in_some_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Make jaxtyping's decorator one that checks calls 1, 10, 100 … of a function in a test.

    The calls are counted over all parameters of a test. A walk over all choices calls some
    functions thousands of times with the same kinds of arguments. Checking the first fifty calls of
    each made the tests in `test_executions.py` a quarter slower, and checking every dataclass that
    is made took half of the tutorial's time. A function's annotations are compiled at its first
    check, which most functions never reach in a process. Functions that are made anew in
    every call of another are left alone, as their checks would be compiled every time.
    """

    def decorate(decorated: Any, typechecker: Any) -> Any:
        check = functools.partial(jaxtyped, typechecker=typechecker)
        if "<locals>" in decorated.__qualname__:
            return decorated
        if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
            decorated.__init__ = _sampled(decorated.__init__, check)
        elif isinstance(decorated, FunctionType):
            return _sampled(decorated, check)
        return decorated

    return lambda typechecker: functools.partial(decorate, typechecker=typechecker)


def _sampled(function: Any, check: Callable[[Any], Any]) -> Any:
    """Return a function that is checked in some of its calls."""
    # The number of calls until the next check: counting down is cheap.
    left, step, checked = 1, 1, None

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal left, step, checked
        left -= 1
        if left:
            return function(*args, **kwargs)
        if step == 1:
            _counting.append(restart)
        left, step = 9 * step, 10 * step
        if checked is None:
            checked = check(function)
        return checked(*args, **kwargs)

    def restart() -> None:
        nonlocal left, step
        left = step = 1

    return called


def enforce(modules: list[str]) -> None:
    """Have annotations enforced in these modules, from their import on."""
    jaxtyping.jaxtyped = in_some_calls(jaxtyping.jaxtyped)  # modules look it up by this name
    installed = jaxtyping.install_import_hook(modules, "beartype.beartype")
    # Each import of any module would be compared with all of these names, and their prefixes.
    installed.hook.should_instrument = frozenset(modules).__contains__
