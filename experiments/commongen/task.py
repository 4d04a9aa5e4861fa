"""CommonGen task, `+task=commongen`: write a sentence with all given concepts.

The constraint is `gcd.keywords` with one group of inflections per concept, so every finished answer
covers all concepts. BLEU, ROUGE-L and the model's log-probability measure the sentences. Source:
Lin et al., "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense
Reasoning" (Findings of EMNLP 2020).
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.commongen.config import TOLD, CommonGenConfig, check
from experiments.commongen.metrics import find_covered, log_probability, tokens_of
from experiments.commongen.prompts import build_prompt
from experiments.commongen.records import ConceptSet, read_file, read_hub
from experiments.commongen.summary import PUBLISHED, as_table, metrics_of
from experiments.evaluate import Example, Model, RecordHandler, evaluate, identity, report
from experiments.models import ROOT
from experiments.records import ReadResult
from experiments.rows import ExperimentTask, Row, Run
from experiments.vllm_model import load_engine

EMBEDDED = ROOT / "data" / "commongen" / "dev_100.jsonl"
"""First 100 sets of CommonGen's development set."""


def _read(config: DictConfig) -> ReadResult[ConceptSet]:
    """Load at most `task.num_examples` sets after `data.offset`; malformed ones are skipped."""
    data, task = config.data, config.task
    if data.hub is not None:
        result = read_hub(data.hub, data.split, task.inflections)
    else:
        result = read_file(data.path or EMBEDDED, task.inflections)
    return result.part(data.offset, task.num_examples)


def record_handler(config: DictConfig, lm: Model, tokenizer: Any) -> RecordHandler:
    """Return the functions that define the task on concept sets."""
    task = config.task

    def language(record: ConceptSet) -> gcd.Automaton:
        return gcd.keywords(
            record.inflections,
            max_words=task.max_words,
            letters=task.letters,
            punctuation=task.punctuation,
        )

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
    published = "; ".join(f"{who}: {metric} {figure}" for who, metric, figure in PUBLISHED)
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
        tabulate=as_table,
        notes=[
            "The answer of a row is the most probable one; if all particles died, it is empty. "
            "Brackets are 95% bootstrap intervals over concept sets. `read` is the mean number of "
            "prefixes that the model computed for one set, without the prompt.",
            f"Published results, with other models and implementations of metrics: {published}.",
        ],
        more={"published": [list(each) for each in PUBLISHED]},
    )


TASK = ExperimentTask("commongen", CommonGenConfig, check, _read, identity, _run)
