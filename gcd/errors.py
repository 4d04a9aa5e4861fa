"""The errors a user can cause, each with what was wrong, the value seen, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PickledError(ValueError):
    """An error that can be pickled and copied, whatever arguments its class takes.

    A pool of processes sends errors to its caller in this way, and hangs where it can't.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, vars(self))


def _remade(kind: type[PickledError], args: tuple[Any, ...], names: dict[str, Any]) -> PickledError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(names)
    return error


class ConstraintError(PickledError):
    """A constraint that cannot be honoured exactly; base class of everything raised here."""


def at(pointer: str) -> str:
    """Say in words where a JSON pointer (RFC 6901) leads."""
    return f"at {pointer!r}" if pointer else "at the root"


class UnsupportedSchemaError(ConstraintError):
    """A schema keyword that is not honoured, refused by name.

    Attributes:
        keyword: the keyword (or type name) that is refused.
        pointer: JSON pointer (RFC 6901) of the schema that holds it, `""` for the root.
    """

    def __init__(self, keyword: str, pointer: str, reason: str = "is not supported") -> None:
        self.keyword = keyword
        self.pointer = pointer
        super().__init__(f"keyword {keyword!r} {at(pointer)} {reason}")


class InfeasibleBudgetError(ConstraintError):
    """The budget is shorter than the shortest completion.

    Attributes:
        needed: fewest tokens, EOS included, from the present state to the end.
        budget: tokens there are.
    """

    def __init__(
        self, needed: int, budget: int, where: str = "", counted: str = "EOS included"
    ) -> None:
        self.needed = needed
        self.budget = budget
        super().__init__(
            f"{where}{': ' if where else ''}needs at least {needed} tokens ({counted}), "
            f"the budget is {budget}; raise the budget or relax the constraint"
        )


class UndecidedBudgetError(InfeasibleBudgetError):
    """The budget is under the guaranteed bound, and the exact distance is not known.

    Attributes:
        needed: tokens, EOS included, within which an answer is guaranteed; fewer may be enough.
        budget: tokens there are.
    """

    def __init__(self, needed: int, budget: int, reason: str) -> None:
        super().__init__(needed, budget)
        self.args = (
            f"expected a budget of at least {needed} tokens (EOS included), within which an answer "
            f"is guaranteed, got {budget}; whether {budget} are enough is not known, because "
            f"{reason}; raise the budget, or lift the constraint with gcd.lift",
        )


class OverlongBudgetError(ConstraintError):
    """A text of the budget's tokens may have more bytes than the constraint was compiled for.

    Attributes:
        longest: most tokens, EOS included, that the constraint holds for.
        budget: tokens there may be, None for no limit.
        caveats: the parts of the constraint that do not hold in longer texts.
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
                "lower the budget, or compile the schema inside `with gcd.state_limit(n):` for a "
                'larger n, or with unsupported="ignore", which leaves this to a check of the text'
            )
        super().__init__(
            f"{where}{': ' if where else ''}the constraint was compiled for texts of at most "
            f"{max_bytes} bytes, which {longest} tokens (EOS included) never exceed, but {given}; "
            f"{remedy}"
        )


class EmptyLanguageError(ConstraintError):
    """No string satisfies the constraint, or none can be written with the vocabulary's tokens."""


class LimitError(ConstraintError):
    """A constraint that would take more states or more work than is allowed.

    Attributes:
        limit: the limit that was passed.
        keyword: the keyword of a schema that took the most, None where it is not known.
        pointer: JSON pointer of the schema that holds it, None where it is not known.
    """

    _needs: str
    _remedy: str

    def __init__(self, limit: int, what: str, hint: str = "", advice: str = "") -> None:
        self.limit = limit
        self.keyword: str | None = None
        self.pointer: str | None = None
        usual = f"simplify the constraint, or raise the limit: `with gcd.{self._remedy}(n):`"
        self._text = f"{what} {self._needs.format(limit)}; {advice or usual}{hint}"
        super().__init__(self._text)

    def add(self, hint: str) -> None:
        """Say something more at the end of the message."""
        self.args = (f"{self}{hint}",)

    def blame(self, keyword: str | None, pointer: str, hint: str = "") -> None:
        """Say which part of a schema is to blame, and perhaps what to do about it."""
        self.keyword, self.pointer = keyword, pointer
        part = f"keyword {keyword!r}" if keyword else "the schema"
        self.args = (f"{part} {at(pointer)}: {self._text}{hint}",)


class StateLimitError(LimitError):
    """An automaton grew past the stated number of states."""

    _needs = "needs more than {} states"
    _remedy = "state_limit"

    def __init__(
        self, limit: int, what: str = "the automaton", hint: str = "", advice: str = ""
    ) -> None:
        super().__init__(limit, what, hint, advice)


class WorkLimitError(LimitError):
    """Compiling a constraint took more work than the stated number of units."""

    _needs = "takes more than {} units of work"
    _remedy = "work_limit"

    def __init__(self, limit: int, what: str = "the constraint") -> None:
        super().__init__(limit, what)


def check_kind(value: object, kinds: type | tuple[type, ...], what: str, instead: str) -> None:
    """Raise `ConstraintError` unless a value is of one of these types.

    Args:
        value: what a user gave; a boolean counts as no number.
        kinds: the type or types that will do.
        what: what is wanted, such as "a pattern is a str".
        instead: what to do about it.
    """
    if not isinstance(value, kinds) or (kinds is int and isinstance(value, bool)):
        raise ConstraintError(f"{what}, got {shown(value)}; {instead}")


def check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise `ConstraintError` unless an option is a whole number in these bounds."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f", at least {least}" if most is None else f" in {least}..{most}"
        raise ConstraintError(f"{name} must be a whole number{bounds}, got {value!r}")


def shown(value: object) -> str:
    """Write a value for a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write integers of thousands of digits
        return f"a value of type {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:77] + "..."


def shown_count(count: int) -> str:
    """A count for a message: in full, or as a power of ten where it has many digits."""
    return str(count) if count < 10**12 else f"about 10^{len(str(count)) - 1}"
