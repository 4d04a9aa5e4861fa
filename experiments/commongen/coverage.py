"""Which concepts a sentence has is decided here without any automaton.

As the constraint is what it is to be compared with, this shares no code with it, and it is not the
same thing: case is ignored, a hyphen separates words, and a possessive "'s" belongs to none, as
people would say of "The dog's ball-playing" that it has "dog" and "ball". So what the constraint
accepts has every concept here, and not the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BEFORE = r"(?<![\w'’])"
_BEHIND = r"(?!\w)(?!['’](?!s\b)\w)"


def covered(text: str, inflections: Iterable[Sequence[str]]) -> list[bool]:
    """Tell of each concept whether one of its inflections stands in a text as a whole word."""
    patterns = (f"{_BEFORE}(?:{'|'.join(map(re.escape, words))}){_BEHIND}" for words in inflections)
    return [re.search(pattern, text, re.IGNORECASE) is not None for pattern in patterns]
