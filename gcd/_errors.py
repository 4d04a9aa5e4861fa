"""Exception classes of gcd, and helpers that check arguments and format messages.

Each message gives the cause, the value that was found, and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PickledError(ValueError):
    """Base class of errors that can be pickled and copied, whatever their constructors' arguments.

    A process pool pickles errors to send them to its caller, and hangs if pickling fails.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, vars(self))


def _remade(kind: type[PickledError], args: tuple[Any, ...], names: dict[str, Any]) -> PickledError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(names)
    return error


class ConstraintError(PickledError):
    """Base class for errors about constraints and budgets that cannot be enforced exactly."""


def at(pointer: str) -> str:
    """Return the location of a JSON pointer in words: "at '/a/b'", or "at the root" for `""`."""
    return f"at {pointer!r}" if pointer else "at the root"


class UnsupportedSchemaError(ConstraintError):
    """Error for an unsupported keyword in a schema; the message names the keyword.

    Attributes:
        keyword: the unsupported keyword, or the name of an unsupported type; "" for a Python type.
        pointer: JSON pointer (RFC 6901) of the schema that contains the keyword, `""` for the root.
    """

    def __init__(self, keyword: str, pointer: str, reason: str = "") -> None:
        self.keyword = keyword
        self.pointer = pointer
        message = f"keyword {keyword!r} {at(pointer)} is not supported"
        if not keyword:
            message = f"cannot compile the type {at(pointer)}"
        super().__init__(f"{message}: {reason}" if reason else message)


class InfeasibleBudgetError(ConstraintError):
    """Error for a budget that is smaller than the shortest completion.

    Attributes:
        needed: fewest tokens, EOS included, from the current state to the end of the text.
        budget: the budget in tokens.
    """

    def __init__(
        self, needed: int, budget: int, where: str = "", counted: str = "EOS included"
    ) -> None:
        self.needed = needed
        self.budget = budget
        super().__init__(
            f"{where}{': ' if where else ''}needs at least {needed} tokens ({counted}), "
            f"but the budget is {budget}; raise the budget or relax the constraint"
        )


class OverlongBudgetError(ConstraintError):
    """Error for a budget that allows longer texts than the constraint was compiled for.

    Attributes:
        longest: largest allowed budget in tokens, EOS included.
        budget: the budget in tokens; None if there is no budget.
        caveats: the parts of the constraint that are not enforced in longer texts.
    """

    def __init__(
        self,
        longest: int,
        budget: int | None,
        max_bytes: int,
        where: str = "",
        *,
        caveats: Sequence[Any] = (),
    ) -> None:
        self.longest = longest
        self.budget = budget
        self.caveats = tuple(caveat for caveat in caveats if not caveat.is_unchecked)
        given = "there is no budget" if budget is None else f"the budget is {budget}"
        listed = "; ".join(map(str, self.caveats[:3]))
        remedy = "lower the budget or raise max_bytes"
        if self.caveats:
            given += f" ({listed})"
            remedy = (
                "lower the budget, or compile the schema inside `with gcd.state_limit(n):` with a "
                'larger n, or with unsupported="ignore" and validate the text afterwards'
            )
        super().__init__(
            f"{where}{': ' if where else ''}the constraint was compiled for texts of at most "
            f"{max_bytes} bytes, so the budget may be at most {longest} tokens (EOS included), "
            f"but {given}; {remedy}"
        )


class EmptyLanguageError(ConstraintError):
    """Error for a constraint that no text satisfies, or none that the tokens can spell."""


class LimitError(ConstraintError):
    """Error for a constraint that needs more states or more work than a limit allows.

    Attributes:
        limit: the limit that was exceeded.
        keyword: the schema keyword that took the most states or work; None if unknown.
        pointer: JSON pointer of the schema that contains the keyword; None if unknown.
    """

    _what: str
    _needs: str
    _remedy: str

    def __init__(self, limit: int, what: str = "") -> None:
        self.limit = limit
        self.keyword: str | None = None
        self.pointer: str | None = None
        remedy = f"simplify the constraint, or raise the limit: `with gcd.{self._remedy}(n):`"
        self._text = f"{what or self._what} {self._needs.format(limit)}; {remedy}"
        super().__init__(self._text)

    def add(self, hint: str) -> None:
        """Append a hint to the message."""
        self.args = (f"{self}{hint}",)

    def blame(self, keyword: str | None, pointer: str) -> None:
        """Begin the message with the keyword of a schema that took the most states or work."""
        self.keyword, self.pointer = keyword, pointer
        part = f"keyword {keyword!r}" if keyword else "the schema"
        self.args = (f"{part} {at(pointer)}: {self._text}",)


class StateLimitError(LimitError):
    """Error for an automaton with more states than `gcd.state_limit` allows."""

    _what = "the automaton"
    _needs = "needs more than {} states"
    _remedy = "state_limit"


class WorkLimitError(LimitError):
    """Error for a constraint that takes more work to compile than `gcd.work_limit` allows."""

    _what = "the constraint"
    _needs = "takes more than {} units of work"
    _remedy = "work_limit"


def check_kind(value: object, kinds: type | tuple[type, ...], what: str, instead: str) -> None:
    """Raise "expected `what`, got the value; `instead`" unless a value has one of the types."""
    if not isinstance(value, kinds) or (kinds is int and isinstance(value, bool)):
        raise ConstraintError(f"expected {what}, got {show(value)}; {instead}")


def check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise `ConstraintError` unless an option is a whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f", at least {least}" if most is None else f" in {least}..{most}"
        raise ConstraintError(f"expected {name} to be a whole number{bounds}, got {value!r}")


def show(value: object) -> str:
    """Format a value for an error message, cut to 80 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, or deep nesting
        return f"a value of type {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:77] + "..."


def show_first(items: Sequence[object], most: int = 5) -> str:
    """List the first items for a warning, with the number of the others."""
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(map(str, items[:most])) + more


def show_count(count: int) -> str:
    """Format a count for an error message; from 10^12 on, show only the power of ten."""
    return str(count) if count < 10**12 else f"about 10^{len(str(count)) - 1}"
