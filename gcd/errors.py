"""The errors a user can cause, each with what was wrong, the value seen, and what to do."""

from __future__ import annotations


class ConstraintError(ValueError):
    """A constraint that cannot be honoured exactly; base class of everything raised here."""


class UnsupportedSchemaError(ConstraintError):
    """A schema keyword that is not honoured, refused by name.

    Attributes:
        keyword: the keyword (or type name) that is refused.
        pointer: JSON pointer (RFC 6901) of the schema that holds it, `""` for the root.
    """

    def __init__(self, keyword: str, pointer: str, reason: str = "is not supported") -> None:
        self.keyword = keyword
        self.pointer = pointer
        super().__init__(f"keyword {keyword!r} at {pointer or '/'!r} {reason}")


class InfeasibleBudgetError(ConstraintError):
    """The budget is shorter than the shortest completion.

    Attributes:
        needed: fewest tokens, EOS included, from the present state to the end.
        budget: tokens there are.
    """

    def __init__(self, needed: int, budget: int, where: str = "") -> None:
        self.needed = needed
        self.budget = budget
        super().__init__(
            f"{where}{': ' if where else ''}needs at least {needed} tokens (EOS included), "
            f"the budget is {budget}; raise the budget or relax the constraint"
        )


class EmptyLanguageError(ConstraintError):
    """No string satisfies the constraint, or none can be written with the vocabulary's tokens."""


class StateLimitError(ConstraintError):
    """An automaton grew past the stated number of states."""

    def __init__(self, limit: int, what: str = "the automaton") -> None:
        self.limit = limit
        super().__init__(
            f"{what} needs more than {limit} states; simplify the constraint, or raise the limit: "
            "`with gcd.state_limit(n):`"
        )


class WorkLimitError(ConstraintError):
    """Compiling a constraint took more work than the stated number of units."""

    def __init__(self, limit: int, what: str = "the constraint") -> None:
        self.limit = limit
        super().__init__(
            f"{what} takes more than {limit} units of work; simplify it, or raise the limit: "
            "`with gcd.work_limit(n):`"
        )
