"""Computation of further answers after sampling, until a given share of the posterior is found.

`read_on` continues in the tree of token sequences (`smc._search.enumerating`). Each pass computes
several *open branches*, which are continuations that weren't computed yet, the most probable first.
Let F be the token sequences found by sampling or by this computation.

    lower = sum of p(a) over a in F
    upper = the smaller of the upper bounds of sampling and of this computation (`smc.Bounds`)

The computation ends once lower / upper is at least `certify`, `max_tokens_read` tokens were
computed, or the time is over.

**Probabilities.** Answers found by this computation have no particle weight. Therefore all answers
are weighted by their probabilities under the model: P(y) is the sum of p(a) with text(a) = y,
divided by lower. The total variation distance from the true posterior is 1 - lower / P_lm(C within
n), and therefore at most 1 - `certified`.

**Evidence.** `log_evidence` remains the estimate from sampling, and this computation doesn't change
it. The estimate is unbiased. Replacing it by an exact value only in some runs would make it biased.

Cost: sampling doesn't keep its computed prefixes. So the prefixes of the found answers are computed
again, one whole answer per pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from gcd import TokenAutomaton
from smc._forward.revisiting import TreeReader
from smc._inference.deadlines import TimeLimit
from smc._models.protocol import LanguageModel
from smc._results.posterior import Posterior, Sample, content, posterior
from smc._search.enumerating import NARROW, Tree, read_trees


class Sampled(NamedTuple):
    """A sampled example: its prompt as token ids, constraint, budget and posterior."""

    prompt: tuple[int, ...]
    automaton: TokenAutomaton
    budget: int
    posterior: Posterior


@torch.inference_mode()
def read_on(
    lm: LanguageModel,
    examples: Sequence[Sampled],
    *,
    certify: float,
    max_tokens_read: int,
    temperature: float,
    max_rows: int,
    limit: TimeLimit | None,
) -> list[Posterior]:
    """Compute the open branches of each example until enough of its posterior is found.

    Returns:
        The posteriors of the examples. A posterior that already has the share, or was closed early,
        is returned unchanged.
    """
    chosen = [number for number, each in enumerate(examples) if _is_open(each.posterior, certify)]
    results = [each.posterior for each in examples]
    if not chosen:
        return results
    started = time.perf_counter()
    some = [examples[number] for number in chosen]
    reader = TreeReader(lm, [each.prompt for each in some], temperature)
    trees = []
    for each in some:
        bounds = each.posterior.bounds
        trees.append(
            Tree(
                each.automaton,
                each.budget,
                max_tokens_read,
                certify,
                reader.eps,
                known={s.ids: s.log_p for s in each.posterior.particles if _is_found(s)},
                log_upper=0.0 if bounds is None else bounds.log_upper,
            )
        )
    read_trees(
        reader,
        trees,
        [NARROW] * len(trees),
        max_rows,
        stop=lambda: limit is not None and limit.reason(0, 1.0) is not None,
        max_tokens=max_tokens_read,
    )
    seconds = (time.perf_counter() - started) / len(trees)
    for index, (number, each, tree) in enumerate(zip(chosen, some, trees, strict=True)):
        results[number] = _posterior(
            each, tree, reader.tokens[index], reader.passes[index], seconds
        )
    return results


def _is_open(posterior: Posterior, certify: float) -> bool:
    """Return whether more of a posterior must be found to reach the share `certify`.

    A posterior whose answers were closed early, or that is complete, isn't continued.
    """
    enough = posterior.enumerated or (posterior.certified or 0.0) >= certify
    return posterior.stopped is None and not enough


def _is_found(sample: Sample) -> bool:
    return sample.finished and sample.log_weight > -math.inf


def _posterior(example: Sampled, tree: Tree, tokens: int, passes: int, seconds: float) -> Posterior:
    """Build the posterior of all found answers, weighted by their model probabilities."""
    before = example.posterior
    assert before.log_evidence is not None  # it is only None with top_p of generate
    vocabulary = example.automaton.vocabulary
    eos = set(vocabulary.eos_ids)
    samples = [
        Sample(ids, vocabulary.decode(content(ids, eos)), log_p, True, log_p)
        for ids, log_p in tree.everything.items()
    ]
    shares = np.exp(np.array([each.log_p for each in samples]) - tree.log_lower)
    how = before.diagnostics
    found = posterior(
        samples,
        example.automaton,
        log_evidence=before.log_evidence,
        ess=1 / float(shares @ shares) if samples else 0.0,
        enumerated=False,
        diagnostics=replace(
            how,
            lm_calls=how.lm_calls + passes - 1,
            tokens=how.tokens + tokens,
            read_on=tokens,
            seconds=how.seconds + seconds,
        ),
        log_upper=tree.log_upper,
        budget=before.budget,
        algorithm=before.algorithm,
    )
    sampled = before.reliability
    return replace(
        found,
        reliability=replace(
            found.reliability,
            log_evidence_error=sampled.log_evidence_error,
            ess=sampled.ess,
        ),
    )
