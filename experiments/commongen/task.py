"""CommonGen task, `+task=commongen`: write a sentence with all given concepts.

The constraint is `gcd.keywords` with one group of inflections per concept, so every finished answer
covers all concepts. BLEU, ROUGE-L and the model's log-probability measure the sentences. Source:
Lin et al., "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense
Reasoning" (Findings of EMNLP 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import DictConfig

import gcd
import smc
from experiments.commongen.metrics import (
    bleu_counts,
    corpus_bleu,
    find_covered,
    log_probability,
    rouge_l,
    tokens_of,
)
from experiments.commongen.records import TOLD, ConceptSet, build_prompt, read_file, read_hub
from experiments.config import RecordConfig, at_least, one_of
from experiments.evaluate import (
    Example,
    Model,
    RecordHandler,
    check_records,
    evaluate,
    identity,
    report,
)
from experiments.models import ROOT
from experiments.records import ReadResult
from experiments.rows import Row
from experiments.tables import Interval, Metric, example_of, group_rows
from experiments.tasks import ExperimentTask, Run
from experiments.vllm_model import load_engine

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
