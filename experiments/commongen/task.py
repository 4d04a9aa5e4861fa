"""CommonGen task, `+task=commongen`: write a sentence with all given concepts.

The constraint is `gcd.keywords` with one group of inflections per concept, so every finished answer
covers all concepts. BLEU, ROUGE-L and the model's log-probability measure the sentences. Source:
Lin et al., "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense
Reasoning" (Findings of EMNLP 2020).

    BLEU     sacrebleu with 13a tokenization and all references of a set, of the whole corpus
    ROUGE-L  F1 of rouge_score without stemming, best over the references, mean over the sets

Corpus BLEU is a function of counts that are sums over sentences (Papineni et al. 2002), so the
bootstrap over concept sets resamples counts instead of texts. A missing answer counts as an empty
sentence, which lowers both metrics.

`find_covered` decides which concepts a sentence has without an automaton, so that it can check the
constraint. It ignores case, treats hyphens as separators, and ignores a possessive "'s". Every
sentence that the constraint accepts therefore covers every concept, but not conversely.

**Records.** A record has concepts, reference sentences and, if known, the inflections of each
concept. The public file has `field_N#look_V#stand_V` and all sentences of a set in one row. The hub
has a list of concepts without parts of speech, and one sentence per row.

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
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from omegaconf import DictConfig

import gcd
import smc
from experiments.config import RecordConfig, at_least, one_of
from experiments.evaluate import (
    DataError,
    Example,
    Model,
    ReadResult,
    RecordHandler,
    check_fields,
    check_records,
    evaluate,
    identity,
    load_engine,
    read_file,
    read_hub,
    read_text,
)
from experiments.models import ROOT, chat, is_chat
from experiments.results import report
from experiments.tables import Interval, Metric, example_of, group_rows
from experiments.tasks import ExperimentTask, Row, Run
from experiments.vllm_model import VllmModel
from smc import LanguageModel

EMBEDDED = ROOT / "data" / "commongen" / "dev_100.jsonl"
"""First 100 sets of CommonGen's development set."""
_PUNCTUATION = ",;:'’-"  # within a sentence
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


def read_sets(path: str | Path) -> ReadResult[ConceptSet]:
    """Read the records of a JSON lines file in CommonGen's public format.

    Raises:
        DataError: the file doesn't exist, isn't UTF-8, or has no well-formed record.
    """
    return read_file(path, record_of, _NEEDS)


def read_hub_sets(name: str, split: str) -> ReadResult[ConceptSet]:
    """Read a hub data set whose rows each have one sentence of a concept set.

    Raises:
        DataError: the data set can't be loaded or has no well-formed record.
    """
    rows = read_hub(name, split, record_of, _NEEDS)
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


# -- the task


@dataclass
class CommonGenConfig(RecordConfig):
    """Sentences from concepts: methods x algorithms x particle counts on the same concept sets."""

    name: str = "commongen"
    told: str = "all"  # concepts that the prompt names: "all", "some" (all but one), "none"
    max_words: int | None = None  # null: limited by the budget only


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    check_records(config)
    one_of("task.told", config.task.told, tuple(TOLD))
    at_least("task.max_words", config.task.max_words, 1)


def _read(config: DictConfig) -> ReadResult[ConceptSet]:
    """Load at most `task.num_examples` sets after `data.offset`; malformed ones are skipped."""
    data = config.data
    if data.hub is not None:
        result = read_hub_sets(data.hub, data.split)
    else:
        result = read_sets(data.path or EMBEDDED)
    return result.part(data.offset, config.task.num_examples)


def record_handler(config: DictConfig, lm: Model, tokenizer: Any) -> RecordHandler:
    """Return the functions that define the task on concept sets."""
    task = config.task

    def language(record: ConceptSet) -> gcd.Automaton:
        return gcd.keywords(record.inflections, max_words=task.max_words, punctuation=_PUNCTUATION)

    def columns(example: Example, posterior: smc.Posterior) -> Row:
        record: Any = example.record
        row: Row = {"concepts": list(record.concepts), "answer": posterior.majority}
        if posterior.dead:
            return row | {"coverage": 0.0, "answer_tokens": 0, "log_p_per_token": None}
        found = find_covered(posterior.texts[0], record.inflections)
        ids = tokens_of(posterior, posterior.answers[0])
        return row | {
            "coverage": sum(found) / len(found),
            "answer_tokens": len(ids),
            "log_p_per_token": log_probability(lm, example.prompt, ids) / len(ids),
        }

    def has_all(record: ConceptSet, answer: bytes) -> bool:
        return all(find_covered(answer.decode(errors="replace"), record.inflections))

    return RecordHandler(
        language=language,
        prompt=lambda record: build_prompt(
            record, told=task.told, tokenizer=tokenizer, kind=config.model.prompt
        ),
        is_correct=has_all,
        columns=columns,
    )


def _run(run: Run, read: ReadResult[ConceptSet]) -> None:
    """Compile the constraints, sample the missing rows, and report."""
    config, task = run.config, run.config.task
    lm, tokenizer = load_engine(config)
    prepared, rows = evaluate(run, read, record_handler(config, lm, tokenizer), lm, tokenizer)
    records: list[tuple[str, Any]] = [(e.name, e.record) for e in prepared.examples]
    metrics = metrics_of({name: r.references for name, r in records})
    source = config.data.path or config.data.hub or "CommonGen dev, in the repository"
    report(
        run,
        read,
        prepared,
        rows,
        title=(
            f"Sentences with given concepts: {prepared.num_records} sets ({source}), "
            f"{TOLD[task.told]}"
        ),
        metrics=metrics,
        main=metrics[0],
        notes=[
            "The answer of a row is the most probable one; if all particles died, it is empty. "
            "Brackets are 95% bootstrap intervals over concept sets. `read` is the mean number of "
            "prefixes that the model computed for one set, without the prompt.",
        ],
    )


# -- metrics

_BEFORE = r"(?<![\w'’])"
_BEHIND = r"(?!\w)(?!['’](?!s\b)\w)"
_RESAMPLES = 1000


def find_covered(text: str, inflections: Iterable[Sequence[str]]) -> list[bool]:
    """Return for each concept whether the text has one of its inflections as a whole word."""
    patterns = (f"{_BEFORE}(?:{'|'.join(map(re.escape, words))}){_BEHIND}" for words in inflections)
    return [re.search(pattern, text, re.IGNORECASE) is not None for pattern in patterns]


def bleu_counts(text: str, references: Sequence[str]) -> Float[np.ndarray, "10"]:
    """Count the matching and all 1- to 4-grams of a sentence, its tokens, and a reference's tokens.

    The last number is the length of the reference that is closest in length.
    """
    score = _bleu().sentence_score(text, list(references))
    return np.array([*score.counts, *score.totals, score.sys_len, score.ref_len], float)


def bleu(counts: Float[np.ndarray, "10"]) -> float:
    """Compute BLEU-4 from the sum of the counts of a corpus, from 0 to 1."""
    matches, totals, (length, reference) = np.split(counts.astype(int), [4, 8])
    score = _bleu().compute_bleu(
        matches.tolist(), totals.tolist(), int(length), int(reference), smooth_method="exp"
    )
    return float(score.score) / 100


def corpus_bleu(counts: Float[np.ndarray, "B 10"], seed: int = 0) -> Interval:
    """Compute BLEU-4 of B sentences, with a percentile bootstrap interval over them."""
    drawn = np.random.default_rng(seed).integers(len(counts), size=(_RESAMPLES, len(counts)))
    low, high = np.quantile([bleu(counts[rows].sum(axis=0)) for rows in drawn], [0.025, 0.975])
    return Interval(bleu(counts.sum(axis=0)), float(low), float(high))


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Compute the best ROUGE-L (F1) over the references, from 0 to 1."""
    return float(_rouge().score_multi(list(references), text)["rougeL"].fmeasure)


# Slow to import, and only needed at the end of a run.
@lru_cache(maxsize=1)
def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)  # has no effect on corpus BLEU


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    return RougeScorer(["rougeL"], tokenizer=DefaultTokenizer(use_stemmer=False))


@torch.inference_mode()
def log_probability(
    lm: LanguageModel | VllmModel, prompt: Sequence[int], ids: Sequence[int]
) -> float:
    """Compute log p_lm(ids | prompt) at temperature one, in nats, without a constraint.

    Args:
        lm: the language model.
        prompt: token ids.
        ids: at least one token of the answer, with or without EOS.
    """
    if isinstance(lm, VllmModel):
        return lm.log_probability(prompt, ids)
    rows, log_p = lm.prefill([prompt])
    total = float(log_p[0, ids[0]])
    if len(ids) > 1:
        run = torch.tensor([list(ids[:-1])], device=log_p.device)
        after = rows.extend(run, torch.tensor([len(ids) - 1], device=log_p.device))[0]
        wanted = torch.tensor(list(ids[1:]), device=after.device)
        total += float(after.double().gather(1, wanted.unsqueeze(1)).sum())
    return total


def tokens_of(posterior: smc.Posterior, answer: bytes) -> tuple[int, ...]:
    """Return the tokens of an answer, in the tokenization with the largest weight."""
    spelled = [sample for sample in posterior.particles if sample.answer == answer]
    return max(spelled, key=lambda sample: sample.log_weight).ids


def metrics_of(references: Mapping[str, Sequence[str]]) -> tuple[Metric, ...]:
    """Return the metrics of sentences, the main one first.

    `references` has the reference sentences of each example.
    """

    def score(row: Row, text: str | None) -> float:
        """Return ROUGE-L of a text; 0 without one."""
        return rouge_l(text or "", references[row["example"]])

    def average(row: Row) -> float:
        """Return the posterior mean of ROUGE-L over the answers of a row; 0 without an answer."""
        if not row["answers"]:
            return 0.0
        scores = [score(row, each["text"]) for each in row["answers"]]
        return float(np.average(scores, weights=[each["probability"] for each in row["answers"]]))

    def bleu(rows: Sequence[Row], seed: int) -> Interval:
        """Compute corpus BLEU; repetitions of an example are resampled together."""
        counts = [
            np.sum([bleu_counts(row["answer"] or "", references[name]) for row in own], axis=0)
            for name, own in group_rows(rows, example_of).items()
        ]
        return corpus_bleu(np.stack(counts), seed)

    return (
        Metric(
            "expected_rouge_l", "ROUGE-L (weighted)",
            "the mean of ROUGE-L over all answers, weighted by their probabilities", average,
            compared=True, label="ROUGE-L, weighted by the posterior",
        ),
        Metric(
            "best_rouge_l", "ROUGE-L (best)",
            "ROUGE-L of the answer that the model finds most probable",
            lambda row: score(row, row.get("best")), compared=True,
        ),
        Metric(
            "rouge_l", "ROUGE-L", "the best F1 over the references, times 100",
            lambda row: score(row, row["answer"]),
        ),
        Metric(
            "bleu", "BLEU-4", "computed by sacrebleu over the corpus, times 100", overall=bleu
        ),
        Metric("coverage", "coverage %", "the share of concepts that an independent check finds"),
        Metric(
            "log_p_per_token", "log p a token",
            "the log-probability under the model without a constraint, in nats",
            digits=2, scale=1, compared=True,
        ),
    )  # fmt: skip


TASK = ExperimentTask("commongen", CommonGenConfig, check, _read, identity, _run)
