"""Concept sets of CommonGen, with the inflections that count, and their prompts.

A record has concepts, reference sentences and, if known, the inflections of each concept. The
public file has `field_N#look_V#stand_V` and all sentences of a set in one row. The hub has a list
of concepts without parts of speech, and one sentence per row.

Inflections are words as they appear within a sentence. A capitalized form is dropped if the same
word without a capital is in the list, because the first word of a sentence is capitalized anyway.
Without such a list, lemminflect (MIT license) makes the inflections by rule, for the part of
speech of the concept if it is known and for all parts of speech otherwise.

**Prompts.** `compact` is the format that adapters are trained on. The sentence follows the line
feed and starts with its capital letter:

    Concepts: dog, ball, park
    Sentence:

`chat` states the task in words, in the tokenizer's chat template. A prompt can name all concepts,
all but one (`some`), or none (`told`), although the constraint always requires all of them.

**Training sentences** are in a file with one line per sentence: concepts, a tab, the sentence. Many
are captions without a capital letter or a full stop, or are very long. They are corrected or
dropped.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import evaluate
from experiments.config import one_of
from experiments.evaluate import DataError, ReadResult, check_fields, read_text
from experiments.models import chat, is_chat

TOLD = {
    "all": "all named in the prompt",
    "some": "all but one named in the prompt",
    "none": "none named in the prompt",
}
"""Descriptions of the number of concepts that a prompt names."""
_PARTS = {"N": "NOUN", "V": "VERB"}
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_NEEDS = (
    "concept_set, such as dog_N#run_V (or concepts, a list), and scene, a list of sentences (or "
    "target, one sentence)"
)


@dataclass(frozen=True)
class ConceptSet:
    """A set of concepts with reference sentences.

    Attributes:
        id: unique within the source.
        concepts: the words as given, in their base forms.
        references: reference sentences.
        inflections: for each concept, the non-empty list of words that count as it.
    """

    id: str
    concepts: tuple[str, ...]
    references: tuple[str, ...]
    inflections: tuple[tuple[str, ...], ...]


def read_file(path: str | Path) -> ReadResult[ConceptSet]:
    """Read the records of a JSON lines file in CommonGen's public format.

    Raises:
        DataError: the file doesn't exist, isn't UTF-8, or has no well-formed record.
    """
    return evaluate.read_file(path, record_of, _NEEDS)


def read_hub(name: str, split: str) -> ReadResult[ConceptSet]:
    """Read a hub data set whose rows each have one sentence of a concept set.

    Raises:
        DataError: the data set can't be loaded or has no well-formed record.
    """
    rows = evaluate.read_hub(name, split, record_of, _NEEDS)
    merged: dict[tuple[str, ...], ConceptSet] = {}
    for record in rows.records:
        first = merged.get(record.concepts, record)
        references = dict.fromkeys((*first.references, *record.references))
        merged[record.concepts] = replace(first, references=tuple(references))
    return ReadResult(tuple(merged.values()), rows.skipped, rows.total)


def record_of(row: Any, default_id: str) -> ConceptSet:
    """Make a record from a parsed row; raise a `ValueError` if it is malformed."""
    fields = check_fields(row)
    concepts = _concepts(fields)
    references = fields.get("scene", fields.get("target"))
    sentences = [references] if isinstance(references, str) else references
    if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
        raise ValueError(f"expected sentences in scene or target, got {references!r}")
    sentences = [sentence.strip() for sentence in sentences if sentence.strip()]
    if not sentences:
        raise ValueError("expected at least one reference sentence, got none")
    given = fields.get("inflections")
    words = (
        [by_rule(*each) for each in concepts]
        if given is None
        else _check_inflections(given, concepts)
    )
    identity = fields.get("id")
    return ConceptSet(
        id=default_id if identity is None else str(identity),
        concepts=tuple(word for word, _ in concepts),
        references=tuple(sentences),
        inflections=tuple(words),
    )


def _concepts(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the concepts and their parts of speech (`""` if unknown)."""
    given = fields.get("concept_set", fields.get("concepts"))
    names = given.split("#") if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected a list of words in concept_set or concepts, got {given!r}")
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise ValueError("the set of concepts is empty")
    return [(n[:-2], n[-1]) if n.endswith(("_N", "_V")) else (n, "") for n in names]


def _check_inflections(given: Any, concepts: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    if not isinstance(given, list) or len(given) != len(concepts):
        raise ValueError(
            f"expected a list of inflections for each of {len(concepts)} concepts, got {given!r}"
        )
    for (word, _), words in zip(concepts, given, strict=True):
        if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
            raise ValueError(f"expected the inflections of {word!r} to be words, got {words!r}")
        if not words:
            raise ValueError(f"the concept {word!r} has no inflections")
    return [without_capitals(words) for words in given]


def by_rule(word: str, part: str = "") -> tuple[str, ...]:
    """Return the inflections of a word.

    Args:
        word: base form of the concept.
        part: part of speech, `"N"`, `"V"` or `""` if unknown.

    Raises:
        ValueError: `word` has no letters.
    """
    from lemminflect import getAllInflections, getAllInflectionsOOV  # takes 1 s to import

    if not _WORD.fullmatch(word):
        raise ValueError(f"the concept {word!r} isn't a word, so it has no inflections")
    parts = [_PARTS[part]] if part else list(_PARTS.values())
    found = getAllInflections(word, _PARTS.get(part))
    for each in [] if found else parts:  # an unknown word
        found |= getAllInflectionsOOV(word, each)
    forms = [form for several in found.values() for form in several]
    return without_capitals([word, *(form for form in forms if _WORD.fullmatch(form))])


def without_capitals(words: Iterable[str]) -> tuple[str, ...]:
    """Drop duplicates, and each capitalized word that is also in the list in lower case."""
    distinct = dict.fromkeys(words)
    return tuple(w for w in distinct if w[:1].lower() + w[1:] == w
                 or w[:1].lower() + w[1:] not in distinct)  # fmt: skip


_WORDED = (
    "Write one short sentence about an everyday scene. It must use all of the given words, in any "
    "form and in any order. Reply with the sentence only."
)
_FREE = "Write one short sentence about an everyday scene. Reply with the sentence only."


def build_prompt(
    record: ConceptSet, *, told: str = "all", tokenizer: Any = None, kind: str = "auto"
) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    Args:
        record: the concept set.
        tokenizer: tokenizer whose chat template is used.
        kind: "compact", "chat", or "auto".
        told: how many concepts to name, one of `TOLD`. The concept that "some" leaves out depends
            only on the set.

    Raises:
        ValueError: `kind` or `told` is unknown, or `kind` is `chat` without a chat template.
    """
    concepts = ", ".join(_choose_concepts(record, told))
    if is_chat(kind, tokenizer):
        return chat(
            tokenizer,
            _WORDED if concepts else _FREE,
            f"Words: {concepts}" if concepts else "A sentence, please.",
        )
    return f"Concepts: {concepts}".rstrip() + "\nSentence:\n"


def _choose_concepts(record: ConceptSet, told: str) -> list[str]:
    one_of("told", told, tuple(TOLD))
    if told == "none":
        return []
    named = list(record.concepts)
    if told == "some":
        named.pop(random.Random(f"told-{record.id}").randrange(len(named)))
    return named


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
