"""Methods of the comparison on a tree."""

from __future__ import annotations

from dataclasses import replace

import torch
from omegaconf import DictConfig

from experiments.arms import METHODS, hmm_settings
from experiments.config import HMMConfig
from experiments.studies.convergence.exact import Exact, Law, log_sum_of_paths, total_variation
from experiments.studies.convergence.problems import Prepared
from experiments.studies.convergence.sampler import TreeProposal, tabulate
from experiments.studies.convergence.tree import Tree
from hmm import HMM
from smc._vocabulary.mixture import defend


def settings_of(config: DictConfig) -> HMMConfig:
    """Return the settings `hmm.*` with the lookahead "conditional".

    The HMM is made of continuations of the same prompts, so every method without a fixed lookahead
    uses "conditional".
    """
    return replace(hmm_settings(config), lookahead="conditional")


def on_tree(
    method: str, prepared: Prepared, tree: Tree, hmm: HMM | None, settings: HMMConfig
) -> TreeProposal:
    """Make the proposal of a method on a tree, with the restricted HMM.

    Raises:
        ValueError: the proposal draws tokens that GCD forbids, which methods without an indicator
            must not do.
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
    """Compute the exact law of a single sample from the proposal's q at every prefix."""
    tree = proposal.tree
    log_q = torch.full((len(tree["token"]),), -torch.inf, dtype=torch.float64)
    inner = (tree["text"][: tree.num_exact] < 0).nonzero().squeeze(1)
    for nodes in inner.split(4096):
        log_p = tree.log_p(nodes)
        factors = defend(proposal.guide(proposal.state(nodes), log_p), log_p)
        tilted = factors.apply(log_p)
        slots = tree.rows(nodes)
        inside = slots >= 0
        steps = (tilted - tilted.logsumexp(dim=1, keepdim=True))[:, :-1]
        log_q[slots[inside]] = steps[inside]
    probabilities = log_sum_of_paths(tree, log_q).exp()
    distance = total_variation(probabilities.numpy(), exact.posterior.numpy())
    return Law(probabilities, min(1.0, float(probabilities.sum())), float(distance))
