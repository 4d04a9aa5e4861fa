"""After sampling, reading goes on until a stated share of the posterior is certainly found.

`read_on` reads the tree of token sequences (`smc.enumerating`), the open branches of the greatest
probability first and several of them in a pass. With F the token sequences found by sampling or by
reading,

    lower = sum of p(a) over a in F
    upper = the least of the two upper bounds, as each of them holds (`smc.Bounds`)

and reading ends once lower / upper is at least `certify`, or `max_tokens_read` tokens were read, or
the time is over.

**Probabilities.** Answers that were read have no particle's weight. All answers are therefore
weighed by what the model gives them, P(y) = sum of p(a) with text(a) = y / lower. The total
variation to the true posterior is 1 - lower / P_lm(C within n), hence at most 1 - `certified`.

**Evidence.** `log_evidence` is the estimate of sampling, which had ended before. It is unbiased,
whether or not reading goes on; an exact value in its place in some of the runs would not be.

Cost: sampling doesn't keep the prefixes that it has read, so those that lead to the answers found
are read again, a whole answer in a pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from gcd.tokens.token_automaton import TokenAutomaton
from smc.deadlines import TimeLimit
from smc.enumerating import NARROW, Tree, read_trees
from smc.models.protocol import LanguageModel
from smc.posterior import Posterior, Sample, content, posterior
from smc.revisiting import TreeReader


class Sampled(NamedTuple):
    """An example that was sampled: prompt as token ids, constraint, budget and posterior."""

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
    """Read the open branches of each example until enough of its posterior was found.

    Args:
        lm: the language model.
        examples: those of a batch.
        certify: the share of the posterior that is to be found.
        max_tokens_read: most tokens that are read for an example; the last pass may exceed it by
            what the model's cache has lost and is read again.
        temperature: that of sampling.
        max_rows: most branches in one pass.
        limit: when reading ends in any case.

    Returns:
        Their posteriors. One that has the share already, or was closed early, stays as it is.
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
    for place, (number, each, tree) in enumerate(zip(chosen, some, trees, strict=True)):
        results[number] = _posterior(
            each, tree, reader.tokens[place], reader.passes[place], seconds
        )
    return results


def _is_open(posterior: Posterior, certify: float) -> bool:
    """Tell whether less than this share was found, of a posterior that wasn't closed early."""
    enough = posterior.enumerated or (posterior.certified or 0.0) >= certify
    return posterior.stopped is None and not enough


def _is_found(sample: Sample) -> bool:
    return sample.finished and sample.log_weight > -math.inf


def _posterior(example: Sampled, tree: Tree, tokens: int, passes: int, seconds: float) -> Posterior:
    """Make the posterior of all answers found, each weighed by what the model gives it."""
    before = example.posterior
    assert before.log_evidence is not None  # known without top_p
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
        exact=True,
        enumerated=False,
        diagnostics=replace(
            how,
            lm_calls=how.lm_calls + passes - 1,
            tokens=how.tokens + tokens,
            read_on=tokens,
            seconds=how.seconds + seconds,
        ),
        log_mass=tree.log_upper,
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
            largest=sampled.largest,
            pareto_k=sampled.pareto_k,
        ),
    )
