"""Metrics of sentences: coverage of the concepts, BLEU, ROUGE-L, and log-probability.

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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

import smc
from experiments.tables import Interval
from experiments.vllm_model import VllmModel
from smc import LanguageModel

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
