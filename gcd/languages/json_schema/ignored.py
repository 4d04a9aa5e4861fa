"""This module tells users of the keywords in their schemas that constrain nothing.

Every draft says that a keyword it does not know is an annotation: a value is judged as if it were
not there. A misspelled constraint looks the same, so none is passed over in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from gcd.errors import at

_SHOWN = 5


class IgnoredKeyword(NamedTuple):
    """An ignored keyword is one that constrains nothing in the draft of its schema.

    Attributes:
        pointer: JSON pointer (RFC 6901) of the schema that holds it, `""` for the root.
        keyword: as it is written.
        reason: why it says nothing, to be read behind the keyword.
    """

    pointer: str
    keyword: str
    reason: str


class IgnoredKeywordWarning(UserWarning):
    """This warning says that a schema has keywords that constrain nothing.

    Attributes:
        ignored: all of them.
    """

    def __init__(self, message: str, ignored: Sequence[IgnoredKeyword] = ()) -> None:
        super().__init__(message)
        self.ignored = tuple(ignored)

    @classmethod
    def of(cls, ignored: Sequence[IgnoredKeyword]) -> IgnoredKeywordWarning:
        """Return a warning of these keywords."""
        listed = [f"{k.keyword!r} {at(k.pointer)} {k.reason}" for k in ignored[:_SHOWN]]
        more = f"; and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
        return cls(
            f"keywords that constrain nothing: {'; '.join(listed)}{more}. All of them are in this "
            'warning\'s `ignored`; unknown="ignore" keeps silent, unknown="refuse" refuses them',
            ignored,
        )


def warn_of(ignored: Sequence[IgnoredKeyword]) -> None:
    """Issue one warning, in the name of whoever called the caller, if anything is ignored."""
    if ignored:
        warnings.warn(IgnoredKeywordWarning.of(ignored), stacklevel=3)
