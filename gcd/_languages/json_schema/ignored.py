"""Warnings about keywords in a schema that constrain nothing.

All drafts treat unknown keywords as annotations: values are validated as if the keyword were
absent. A misspelled constraint would have no effect either, so a warning lists every such keyword.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from gcd._errors import at

_SHOWN = 5


class IgnoredKeyword(NamedTuple):
    """Schema keyword that has no effect in the draft of the schema.

    Attributes:
        pointer: JSON pointer (RFC 6901) of the schema that contains the keyword, `""` for the root.
        keyword: the keyword as written.
        reason: why it has no effect, as the continuation of a sentence that begins with the
            keyword.
    """

    pointer: str
    keyword: str
    reason: str


class IgnoredKeywordWarning(UserWarning):
    """Warning about schema keywords without effect.

    Attributes:
        ignored: all such keywords.
    """

    def __init__(self, message: str, ignored: Sequence[IgnoredKeyword] = ()) -> None:
        super().__init__(message)
        self.ignored = tuple(ignored)

    @classmethod
    def of(cls, ignored: Sequence[IgnoredKeyword]) -> IgnoredKeywordWarning:
        """Return a warning that lists the given keywords."""
        listed = [f"{k.keyword!r} {at(k.pointer)} {k.reason}" for k in ignored[:_SHOWN]]
        more = f"; and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
        return cls(
            f"keywords without the expected effect: {'; '.join(listed)}{more}. The warning's "
            '`ignored` lists all of them; pass unknown="ignore" to hide it, or unknown="refuse" to '
            "raise an error",
            ignored,
        )


def warn_of(ignored: Sequence[IgnoredKeyword]) -> None:
    """Issue one warning if there are keywords without effect.

    The warning is attributed to the caller of the function that calls this one.
    """
    if ignored:
        warnings.warn(IgnoredKeywordWarning.of(ignored), stacklevel=3)
