"""This module runs methods on a tree, for statistics, and on the real model, for time."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

import torch
from omegaconf import DictConfig

import smc
from experiments.convergence.exact import Exact, Law, log_sum_of_paths, total_variation
from experiments.convergence.problems import Prepared
from experiments.convergence.sampler import TreeProposal, tabulate
from experiments.convergence.tree import Tree
from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.config import HMMConfig
from experiments.harness.methods import METHODS, hmm_settings
from experiments.harness.timing import seconds_of, table_seconds
from hmm.model import HMM

_TIMING = 1.0
"""Seconds after which no further call is timed."""


def settings_of(config: DictConfig) -> HMMConfig:
    """Give the settings `hmm.*`, with the lookahead of a model that the HMM resembles.

    The HMM here is made of the very prompts' continuations, so "conditional" is the lookahead of
    every method that does not fix one.
    """
    return replace(hmm_settings(config), lookahead="conditional")


def on_tree(
    method: str, prepared: Prepared, tree: Tree, hmm: HMM | None, settings: HMMConfig
) -> TreeProposal:
    """Make the proposal of a method on a tree, asked at every prefix, with the restricted HMM.

    Raises:
        ValueError: the proposal draws tokens that GCD forbids, as no entry of `METHODS` may that
            has no indicator.
    """
    entry = METHODS[method]
    if entry.indicator is not None:
        return TreeProposal(tree, entry.indicator)
    restricted = prepared.restriction.hmm(hmm) if hmm is not None and entry.needs_hmm else None
    proposal = entry.proposal(settings, restricted)
    try:
        return TreeProposal(tree, tabulate(proposal, tree), potential=proposal.potential)
    except ValueError as error:
        raise ValueError(f"the method {method} cannot be tabulated: {error}") from error


@torch.inference_mode()
def law_of_sample(proposal: TreeProposal, exact: Exact) -> Law:
    """Compute the exact law of a single sample, from the proposal's own q at every prefix."""
    tree = proposal.tree
    log_q = torch.full((len(tree["token"]),), -torch.inf, dtype=torch.float64)
    inner = (tree["text"][: tree.num_exact] < 0).nonzero().squeeze(1)
    for nodes in inner.split(4096):
        log_p = tree.log_p(nodes)
        guide = proposal.guide(proposal.state(nodes), log_p)
        slots = tree.rows(nodes)
        inside = slots >= 0
        steps = (log_p + guide.log_g)[:, :-1] - guide.log_z.unsqueeze(1)
        log_q[slots[inside]] = steps[inside]
    probabilities = log_sum_of_paths(tree, log_q).exp()
    distance = total_variation(probabilities.numpy(), exact.posterior.numpy())
    return Law(probabilities, min(1.0, float(probabilities.sum())), float(distance))


class Stopwatch:
    """A stopwatch for one method on one problem, with the real model.

    The first call of an algorithm is not timed: it makes the table of completion probabilities,
    which the proposal keeps for those that follow, and whatever the algorithm needs once.

    Args:
        hmm: over the model's vocabulary; None where the method needs none.
    """

    def __init__(
        self,
        method: str,
        prepared: Prepared,
        hmm: HMM | None,
        settings: HMMConfig,
        config: DictConfig,
    ) -> None:
        # The tree is on the CPU; the real model, and what looks ahead for it, where the model is.
        here = None if hmm is None else hmm.to(device=prepared.lm.device)
        self._proposal = METHODS[method].proposal(settings, here)
        self._prepared = prepared
        self._config = config
        self._warm: set[str] = set()

    def table_seconds(self) -> float | None:
        """Measure the time of the table; None also if nothing is timed."""
        if not self._config.task.timed_runs:
            return None
        prepared = self._prepared
        budget, device = prepared.problem.budget, prepared.lm.device
        return table_seconds(self._proposal, prepared.constraint, budget, device)

    def seconds(self, algorithm: str, particles: int) -> float | None:
        """Measure the median time of a call of `smc.sample`, in seconds; None if none is timed.

        Over `task.timed_runs` calls, fewer where they take more than `_TIMING` seconds together.
        """
        times: list[float] = []
        if self._config.task.timed_runs and algorithm not in self._warm:
            self._call(algorithm, 1, 0)
            self._warm.add(algorithm)
        while len(times) < self._config.task.timed_runs and sum(times) < _TIMING:
            times.append(seconds_of(partial(self._call, algorithm, particles, len(times))))
        return round(statistics.median(times), 5) if times else None

    def _call(self, algorithm: str, particles: int, run: int) -> None:
        smc_config = self._config.smc
        smc.sample(
            self._prepared.lm,
            [self._prepared.prompt],
            self._prepared.constraint,
            budget=self._prepared.problem.budget,
            particles=particles,
            proposal=self._proposal,
            **ALGORITHMS[algorithm].arguments(self._config),
            temperature=smc_config.temperature,
            seed=self._config.seed,
            example_ids=[run],
            max_rows=max(particles, smc_config.max_rows),
        )
