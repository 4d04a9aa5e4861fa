"""Sentences are compared with concepts, with references, and with what the model thinks of them.

    BLEU     sacrebleu's, 13a tokenisation, all references of a set; of the corpus, not a mean
    ROUGE-L  rouge_score's F1 without stemming, the best over the references of a set, then the mean

BLEU of a corpus is a function of counts that add over its sentences (Papineni et al. 2002), so an
interval by bootstrap over concept sets draws the counts again, not the texts. An answer that was
not given is an empty sentence: it lowers both.

Which concepts a sentence has (`covered`) is decided without any automaton, as the constraint is
what it is to be compared with: case is ignored, a hyphen separates words, and a possessive "'s"
belongs to none. So what the constraint accepts has every concept here, and not the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

import smc
from experiments.harness.summary import Interval
from smc.models.protocol import LanguageModel

_BEFORE = r"(?<![\w'’])"
_BEHIND = r"(?!\w)(?!['’](?!s\b)\w)"
_RESAMPLES = 1000


def covered(text: str, inflections: Iterable[Sequence[str]]) -> list[bool]:
    """Tell of each concept whether one of its inflections stands in a text as a whole word."""
    patterns = (f"{_BEFORE}(?:{'|'.join(map(re.escape, words))}){_BEHIND}" for words in inflections)
    return [re.search(pattern, text, re.IGNORECASE) is not None for pattern in patterns]


def bleu_counts(text: str, references: Sequence[str]) -> Float[np.ndarray, "10"]:
    """Count matches of 1- to 4-grams, such n-grams, and both lengths, of one sentence."""
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


# The metrics' imports take a quarter of a second, and are needed when a run has ended.
@lru_cache(maxsize=1)
def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)  # which is for sentences; of a corpus it changes nothing


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    return RougeScorer(["rougeL"], tokenizer=DefaultTokenizer(use_stemmer=False))


@torch.inference_mode()
def log_probability(lm: LanguageModel, prompt: Sequence[int], ids: Sequence[int]) -> float:
    """Compute log p_lm(ids | prompt) at temperature one, in nats, without any constraint.

    Args:
        prompt: token ids.
        ids: tokens of the answer, at least one; EOS counts where it is among them.
    """
    rows, log_p = lm.prefill([list(prompt)])
    total = float(log_p[0, ids[0]])
    if len(ids) > 1:
        run = torch.tensor([list(ids[:-1])], device=log_p.device)
        after = rows.extend(run, torch.tensor([len(ids) - 1], device=log_p.device))[0]
        wanted = torch.tensor(list(ids[1:]), device=after.device)
        total += float(after.double().gather(1, wanted.unsqueeze(1)).sum())
    return total


def tokens_of(posterior: smc.Posterior, answer: bytes) -> tuple[int, ...]:
    """Give the tokens that spell an answer; of several spellings the one of greatest weight."""
    spelled = [sample for sample in posterior.particles if sample.answer == answer]
    return max(spelled, key=lambda sample: sample.log_weight).ids
