"""Coverage, BLEU and ROUGE-L against the public implementations and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sacrebleu
import torch

import gcd
from experiments.commongen.task import (
    EMBEDDED,
    bleu,
    bleu_counts,
    corpus_bleu,
    find_covered,
    log_probability,
    metrics_of,
    read_sets,
    rouge_l,
)
from experiments.tables import as_table, summarize
from smc.testing import ToyLM

RECORDS = read_sets(EMBEDDED).records


@pytest.mark.parametrize(
    ("text", "is_covered"),
    [
        ("The cat.", True),
        ("The Cats!", True),
        ("The category.", False),
        ("A concat.", False),
        ("The cat's ball.", True),
        ("The cat-like dog.", True),
        ("A cat'll come.", False),
        ("", False),
    ],
)
def test_coverage_of_traps(text, is_covered):
    assert find_covered(text, [["cat", "cats"]]) == [is_covered]


def test_what_the_constraint_accepts_has_every_concept():
    for record in RECORDS[:10]:
        language = gcd.keywords(record.inflections)
        for text in language.enumerate(50):
            assert all(find_covered(text.decode(), record.inflections)), text
        assert not all(find_covered("Nothing of it.", record.inflections))


def test_bleu_of_a_corpus_is_sacrebleus():
    texts = [record.references[0] for record in RECORDS[:40]]
    references = [record.references[1:] for record in RECORDS[:40]]
    texts[3] = ""
    counts = np.stack([bleu_counts(t, r) for t, r in zip(texts, references, strict=True)])
    most = max(map(len, references))
    streams = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    theirs = sacrebleu.corpus_bleu(texts, streams).score
    assert 100 * bleu(counts.sum(axis=0)) == pytest.approx(theirs, abs=1e-9)
    interval = corpus_bleu(counts, seed=1)
    assert interval.low < interval.mean < interval.high
    assert interval == corpus_bleu(counts, seed=1)
    whole = corpus_bleu(np.repeat(counts[:1], 5, axis=0))
    assert whole.low == whole.mean == whole.high  # all sets alike


def test_rouge_is_the_best_over_references():
    # "the dog ran" is the longest common subsequence: recall 3/4, precision 3/5.
    assert rouge_l("The big dog then ran.", ["A cat.", "The dog ran home."]) == pytest.approx(
        2 * 0.75 * 0.6 / 1.35
    )
    assert rouge_l("", ["A cat."]) == 0
    assert rouge_l("A cat.", ["A cat.", "Nothing."]) == 1


def test_log_probability_is_the_models_own():
    vocabulary = gcd.Vocabulary.from_bytes([b"", b"a", b"b"], eos_ids=[0])
    lm = ToyLM(vocabulary)
    ids = [1, 2, 2, 0]
    by_hand = 0.0
    for t in range(len(ids)):
        rows, log_p = lm.prefill([[1]])
        if t:
            log_p = rows.extend(torch.tensor([ids[:t]]), torch.tensor([t]))[:, -1]
        by_hand += float(log_p[0, ids[t]])
    assert log_probability(lm, [1], ids) == pytest.approx(by_hand, abs=1e-9)
    total = sum(math.exp(log_probability(lm, [1], [a, b])) for a in range(3) for b in range(3))
    assert total == pytest.approx(1, abs=1e-6)


def test_dead_rows_count_in_every_denominator():
    def row(example, answer, particles=1, **more):
        return {
            "example": example, "method": "lcd", "algorithm": "smc", "particles": particles,
            "dead": answer is None, "answer": answer, "coverage": float(answer is not None),
            "log_p_per_token": None if answer is None else -2.0, "weighted_accuracy": 1.0,
            "majority_correct": answer is not None, "valid": True, "complete": True,
            "share_finished": 1.0, "enumerated": False, "ess": 1.0, "log_evidence": -1.0,
            "read": 3, "forced": 1, "lm_calls": 4, "tokens": 5, "seconds": 0.5,
            "answers": [
                {"text": answer, "probability": 0.75},
                {"text": "nothing alike", "probability": 0.25},
            ] if answer else [],
            **more,
        }  # fmt: skip

    references = {"0": ["The dog ran home today."], "1": ["A cat sat on the mat."]}
    metrics = metrics_of(references)
    rows = [row("0", "The dog ran home today."), row("1", None)]
    [record] = summarize(rows, metrics=metrics)
    assert record["coverage"] == 0.5
    assert record["rouge_l"] == 0.5
    assert record["expected_rouge_l"] == 0.375  # three quarters of one set, nothing of the other
    best = next(metric.of for metric in metrics if metric.name == "best_rouge_l")
    assert best(row("0", "nothing alike", best="The dog ran home today.")) == 1
    assert best(row("1", None)) == 0
    assert record["log_p_per_token"] == -2.0
    # 6 of 13 reference tokens were written, all matched: the brevity penalty alone.
    assert record["bleu"] == pytest.approx(math.exp(1 - 13 / 6))
    [dead] = summarize([row("0", None), row("1", None)], metrics=metrics)
    assert dead["bleu"] == 0
    assert dead["log_p_per_token"] is None
    table = as_table([record, dead], metrics)
    assert [line["log p a token"] for line in table] == ["-2.00 [-2.00, -2.00]", "–"]
