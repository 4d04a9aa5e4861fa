"""The inflections of a concept: what counts as "dog" is "dog" and "dogs".

Where no list is given, they are made by rule with lemminflect (MIT licence), for the part of speech
of the concept where it is known, for all where not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PARTS = {"N": "NOUN", "V": "VERB"}
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def by_rule(word: str, part: str = "") -> tuple[str, ...]:
    """Inflect a word in its basic form.

    Args:
        word: the concept.
        part: of speech, `"N"`, `"V"` or, if it is not known, `""`.

    Raises:
        ValueError: there is no word in it.
    """
    from lemminflect import getAllInflections, getAllInflectionsOOV  # reads its tables: 1 s

    if not _WORD.fullmatch(word):
        raise ValueError(f"the concept {word!r} is no word, so it has no inflections")
    parts = [_PARTS[part]] if part else list(_PARTS.values())
    found = getAllInflections(word, _PARTS.get(part))
    for each in [] if found else parts:  # a word that is in no list
        found |= getAllInflectionsOOV(word, each)
    forms = [form for several in found.values() for form in several]
    return without_capitals([word, *(form for form in forms if _WORD.fullmatch(form))])


def without_capitals(words: Iterable[str]) -> tuple[str, ...]:
    """Drop words that are another one with a capital letter, and those that come twice.

    At the start of a sentence every word has a capital letter, and elsewhere such a form is none.
    """
    distinct = dict.fromkeys(words)
    return tuple(w for w in distinct if w[:1].lower() + w[1:] == w
                 or w[:1].lower() + w[1:] not in distinct)  # fmt: skip
