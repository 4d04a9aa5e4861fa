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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from omegaconf import DictConfig

import gcd
import smc
from experiments.commongen.records import TOLD, ConceptSet, build_prompt, read_file, read_hub
from experiments.config import RecordConfig, at_least, one_of
from experiments.evaluate import (
    Example,
    Model,
    ReadResult,
    RecordHandler,
    check_records,
    evaluate,
    identity,
    load_engine,
)
from experiments.models import ROOT
from experiments.results import report
from experiments.tables import Interval, Metric, example_of, group_rows
from experiments.tasks import ExperimentTask, Row, Run
from experiments.vllm_model import VllmModel
from smc import LanguageModel

EMBEDDED = ROOT / "data" / "commongen" / "dev_100.jsonl"
"""First 100 sets of CommonGen's development set."""
_PUNCTUATION = ",;:'’-"  # within a sentence


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
        result = read_hub(data.hub, data.split)
    else:
        result = read_file(data.path or EMBEDDED)
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
