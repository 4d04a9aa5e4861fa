"""AWRS of `genlm-control`, another way to sample under a constraint, is run beside ours.

Adaptive weighted rejection sampling (Lipkin et al. 2025, arXiv 2504.05410) computes no mask: it
draws tokens from the language model, without replacement, until the constraint takes one, and
estimates from the rejections what the mask would have left. Particles are weighed by that estimate
and resampled by the package itself.

Model, prompt, tokens, budget and constraint are ours: the package is given the same forward passes
over distinct prefixes (`genlm_potentials.ModelPotential`), and asks the same automaton. Its weights
are proper for the same target, p_lm(x | x in C, |x| <= budget). What differs, and what a comparison
must say:

* it samples one prompt at a time: compare seconds with `smc.max_rows` at the number of particles;
* all particles compete: it runs under the algorithms that have no strata (`ALGORITHMS`);
* under `awrs` the condition is LCD's (completable at some length), as the package is used; under
  `awrs_gcd` it is GCD's, so that no particle is lost to the budget.

It is an optional extra: `pip install '.[awrs]'`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import smc
from experiments.harness.seeds import derived_seed
from gcd.tokens.token_automaton import TokenAutomaton
from smc.models.protocol import LanguageModel
from smc.posterior import Diagnostics, Sample, posterior

PACKAGE = "genlm"
EXTRA = "awrs"
ALGORITHMS = ("smc_paper", "smc_none", "smc_all")
"""The algorithms that it can run under."""


def sample(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    automata: Sequence[TokenAutomaton],
    *,
    budget: Sequence[int],
    particles: int,
    proposal: smc.Proposal,
    resampling: str,
    ess_threshold: float,
    temperature: float,
    top_p: float,
    seed: int,
    example_ids: Sequence[int],
    finished: Callable[[Mapping[int, smc.Posterior]], object] | None = None,
    **_: Any,
) -> list[smc.Posterior]:
    """Sample as `smc.sample` does, with AWRS.

    Args:
        proposal: `smc.GCD()` for GCD's condition, any other for LCD's.
        top_p: must be one.
        others: as for `smc.sample`.

    Raises:
        ValueError: `top_p` is less than one.
    """
    if top_p < 1:
        raise ValueError(f"smc.top_p={top_p}: AWRS draws from the whole vocabulary; leave it at 1")
    genlm = importlib.import_module("experiments.harness.genlm_potentials")
    tables = genlm.tables_of(lm.vocabulary)
    results: dict[int, smc.Posterior] = {}
    examples = zip(example_ids, prompts, automata, budget, strict=True)
    for place, (name, prompt, automaton, limit) in enumerate(examples):
        started = time.perf_counter()
        within = limit if isinstance(proposal, smc.GCD) else None
        model = genlm.ModelPotential(lm, prompt, temperature, tables)
        condition = genlm.ConditionPotential(automaton, within, tables)
        own_seed = derived_seed("awrs", seed, name)
        found = genlm.sequential(
            genlm.awrs(model, condition, own_seed),
            budget=limit,
            particles=particles,
            resampling=resampling,
            ess_threshold=ess_threshold,
            seed=own_seed,
        )
        one = _posterior(found, model, genlm.EOS, automaton, time.perf_counter() - started)
        (finished or results.update)({place: one})
    return list(results.values())


def _posterior(
    found: Any, model: Any, eos: Any, automaton: TokenAutomaton, seconds: float
) -> smc.Posterior:
    """What was found, as our sampler reports it."""
    vocabulary = automaton.vocabulary
    end = (int(vocabulary.eos_ids[0]),)
    samples = []
    for context, log_weight in zip(found.contexts, found.log_weights, strict=True):
        ids, ended = tuple(token for token in context if token is not eos), context[-1] is eos
        samples.append(
            Sample(
                ids=ids + end if ended else ids,
                answer=vocabulary.decode(ids),
                log_weight=float(log_weight),
                finished=ended and log_weight > -float("inf"),
            )
        )
    return posterior(
        samples,
        automaton,
        log_evidence=float(found.log_ml),
        ess=float(found.ess),
        exact=True,
        enumerated=False,
        diagnostics=Diagnostics(
            ess=(),
            resampled=(),
            running=(),
            alive=(),
            lm_calls=model.lm_calls,
            tokens=model.tokens,
            generated=sum(len(sample.ids) for sample in samples),
            share_finished=sum(sample.finished for sample in samples) / len(samples),
            seconds=seconds,
        ),
    )
