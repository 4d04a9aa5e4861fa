"""Sentences are compared with references by corpus BLEU-4 and ROUGE-L.

    BLEU     sacrebleu's, 13a tokenisation, all references of a set; of the corpus, not a mean
    ROUGE-L  rouge_score's F1 without stemming, the best over the references of a set, then the mean

BLEU of a corpus is a function of counts that add over its sentences (Papineni et al. 2002), so an
interval by bootstrap over concept sets draws the counts again, not the texts. An answer that was
not given is an empty sentence: it lowers both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer
from sacrebleu.metrics import BLEU

from experiments.harness.summary import Interval

_BLEU = BLEU(effective_order=True)  # which is for sentences; of a corpus it changes nothing
_RESAMPLES = 1000


def bleu_counts(text: str, references: Sequence[str]) -> Float[np.ndarray, "10"]:
    """Count matches of 1- to 4-grams, such n-grams, and both lengths, of one sentence."""
    score = _BLEU.sentence_score(text, list(references))
    return np.array([*score.counts, *score.totals, score.sys_len, score.ref_len], float)


def bleu(counts: Float[np.ndarray, "10"]) -> float:
    """Compute BLEU-4 from the sum of the counts of a corpus, from 0 to 1."""
    matches, totals, (length, reference) = np.split(counts.astype(int), [4, 8])
    score = BLEU.compute_bleu(
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


@lru_cache(maxsize=1)
def _rouge() -> Any:
    return RougeScorer(["rougeL"], tokenizer=DefaultTokenizer(use_stemmer=False))
