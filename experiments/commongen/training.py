"""Training sentences of CommonGen, as concept sets with well-formed sentences.

The file has one line per sentence: concepts, a tab, the sentence. Many sentences are captions
without a capital letter or a full stop, or are very long. They are corrected or dropped.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from experiments.commongen.prompts import build_prompt
from experiments.commongen.records import ConceptSet
from experiments.records import DataError, read_text

FEWEST, MOST = 3, 5  # concepts, as in the development set
_WORDS = range(4, 25)
_UNUSUAL = set('.!?;:"()<>[]/')
_SPLIT = (" '", "'"), (" ,", ","), (" n't", "n't")  # join tokenized contractions


def read_training(paths: Sequence[Path], limit: int | None = None) -> list[ConceptSet]:
    """Read the concept sets that have a well-formed sentence.

    Args:
        paths: the files.
        limit: number of lines to read of each file; None for all.

    Raises:
        DataError: a file can't be read, or there is no such set.
    """
    sets: dict[str, list[str]] = {}
    for path in paths:
        for line in read_text(path).splitlines()[:limit]:
            concepts, _, written = line.partition("\t")
            sentence = well_formed(written)
            if sentence is not None and FEWEST <= len(concepts.split()) <= MOST:
                sets.setdefault(concepts, []).append(sentence)
    if not sets:
        raise DataError(
            f"expected lines with {FEWEST} to {MOST} concepts, a tab and a sentence in "
            f"{', '.join(map(str, paths))}; got no well-formed line"
        )
    return [
        ConceptSet(concepts, tuple(concepts.split()), tuple(sentences), ())
        for concepts, sentences in sets.items()
    ]


def well_formed(text: str) -> str | None:
    """Return the sentence with a capital letter and a full stop, or None if it is malformed."""
    words = " ".join(text.split())
    for apart, joined in _SPLIT:
        words = words.replace(apart, joined)
    words = words.rstrip(" .")
    if len(words.split()) not in _WORDS or not words.isascii() or _UNUSUAL & set(words):
        return None
    return words[0].upper() + words[1:] + "." if words[0].isalpha() else None


def prompt_of(concepts: ConceptSet, rng: random.Random, told: str = "all") -> str:
    """Return the compact prompt, with the concepts in an order independent of the sentence."""
    words = list(concepts.concepts)
    rng.shuffle(words)
    return build_prompt(
        ConceptSet(concepts.id, tuple(words), concepts.references, ()), told=told, kind="compact"
    )
