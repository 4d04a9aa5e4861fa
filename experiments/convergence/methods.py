"""The methods of the convergence task: on a tree for statistics, on the real model for time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig

import smc
from experiments.convergence.exact import Exact, Law, law_of_one
from experiments.convergence.problems import Prepared
from experiments.convergence.sampler import TreeProposal, tabulate
from experiments.convergence.tree import Tree
from gcd.tokens.batch import AutomatonBatch
from hmm.model import HMM
from hmm.product import MAX_BYTES, bytes_of_table

_TIMING = 1.0
"""Seconds after which no further call is timed."""

TITLES = {
    "lm": "LM (rejection)",
    "lcd": "LCD",
    "gcd": "GCD",
    "pgcd": "P-GCD, class-tied + top 64",
    "pgcd_tied": "P-GCD, class-tied",
    "pgcd_exact": "P-GCD, exact",
    "pgcd_in_time": "P-GCD, in time",
    "pgcd_joint": "P-GCD, joint",
}

_PLAIN: dict[str, Callable[[], Any]] = {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD}
_VARIANTS: dict[str, dict[str, Any]] = {
    "pgcd": {"exact_top_k": 64},
    "pgcd_tied": {"exact_top_k": 0},
    "pgcd_exact": {"exact_top_k": None},
    "pgcd_in_time": {"exact_top_k": 64, "lookahead": "in_time"},
    "pgcd_joint": {"exact_top_k": 64, "lookahead": "joint"},
}


@dataclass(frozen=True)
class Options:
    """Of P-GCD, in all of its variants; see `smc.PGCD`."""

    temper: float = 1.0
    defence: float = 0.01
    potential: bool = True
    max_bytes: int = MAX_BYTES  # of a table of completion probabilities

    @classmethod
    def of(cls, settings: DictConfig) -> Options:
        """What `hmm.*` says of them."""
        limit = settings.max_table_mib << 20
        return cls(settings.temper, settings.defence, settings.potential, limit)


def needs_hmm(method: str) -> bool:
    """Whether a method looks ahead with an HMM."""
    return method in _VARIANTS


def proposal_of(method: str, hmm: HMM | None, options: Options) -> smc.Proposal:
    """The library's proposal; the HMM must be over the tokens that it will see."""
    if method in _PLAIN:
        plain: smc.Proposal = _PLAIN[method]()
        return plain
    assert hmm is not None, "methods that look ahead are given an HMM"
    return smc.PGCD(hmm, **_VARIANTS[method], **vars(options))


def on_tree(
    method: str, prepared: Prepared, tree: Tree, hmm: HMM | None, options: Options
) -> TreeProposal:
    """The same on a tree; P-GCD is asked at every prefix, with the restricted HMM."""
    if method in _PLAIN:
        return TreeProposal(tree, method)
    assert hmm is not None, "methods that look ahead are given an HMM"
    proposal = proposal_of(method, prepared.restriction.hmm(hmm), options)
    return TreeProposal(tree, tabulate(proposal, tree), potential=options.potential)


@torch.inference_mode()
def law_of_sample(proposal: TreeProposal, exact: Exact) -> Law:
    """The exact law of a single sample, by the proposal's own q at every prefix."""
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
    return law_of_one(tree, log_q, exact.posterior)


def refuse_large_tables(
    methods: Sequence[str], prepared: Prepared, hmm: HMM, options: Options
) -> None:
    """Refuses a problem whose table takes more memory than it may, before anything is made of it.

    Args:
        methods: those of the run, of which one looks ahead.
        prepared: the problem.
        hmm: of the size that the table will be for; what is in it does not matter.
        options: with the limit.

    Raises:
        ValueError: with both sizes, and what to lower.
    """
    eventual = any(_VARIANTS[m].get("lookahead") == "in_time" for m in methods if needs_hmm(m))
    size = bytes_of_table(hmm, prepared.constraint, prepared.problem.budget, eventual=eventual)
    if size > options.max_bytes:
        raise ValueError(
            f"problem {prepared.problem.name!r}: the lookahead table of "
            f"{prepared.constraint.num_states} states, a budget of {prepared.problem.budget} and "
            f"{hmm.num_states} hidden states takes {size / 2**20:.1f} MiB, hmm.max_table_mib="
            f"{options.max_bytes >> 20} are allowed; raise it, or lower the budget, "
            "task.hmm_states, or the number of strings"
        )


class Stopwatch:
    """Times one method on one problem, with the real model.

    The first call is not timed: it makes the table of completion probabilities, which the proposal
    keeps for those that follow.
    """

    def __init__(
        self, method: str, prepared: Prepared, hmm: HMM | None, options: Options, config: DictConfig
    ) -> None:
        # The tree is on the CPU; the real model, and what looks ahead for it, where the model is.
        here = None if hmm is None else hmm.to(device=prepared.lm.device)
        self._proposal = proposal_of(method, here, options)
        self._prepared = prepared
        self._config = config
        self._warm = False

    def table_seconds(self) -> float | None:
        """Wall time of the table, as the proposal makes it once a constraint; None if it has none.

        Asked first, else the table is there already.
        """
        constraint, budget = self._prepared.constraint, self._prepared.problem.budget
        if not self._config.task.timed_runs or not self._proposal.memory(constraint, budget):
            return None
        device = self._prepared.lm.device
        automata = AutomatonBatch([constraint], device=device)
        batch = smc.Batch(automata, torch.tensor([budget], device=device))
        started = time.perf_counter()
        self._proposal.start(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return round(time.perf_counter() - started, 5)

    def seconds(self, particles: int) -> float | None:
        """Median wall time of a call of `smc.sample`; None if none is to be timed.

        Over `task.timed_runs` calls, fewer where they take more than `_TIMING` seconds together.
        """
        times: list[float] = []
        if self._config.task.timed_runs and not self._warm:
            self._call(1, 0)
            self._warm = True
        while len(times) < self._config.task.timed_runs and sum(times) < _TIMING:
            started = time.perf_counter()
            self._call(particles, len(times))
            times.append(time.perf_counter() - started)
        return round(statistics.median(times), 5) if times else None

    def _call(self, particles: int, run: int) -> None:
        smc_config = self._config.smc
        smc.sample(
            self._prepared.lm,
            [self._prepared.prompt],
            self._prepared.constraint,
            budget=self._prepared.problem.budget,
            particles=particles,
            proposal=self._proposal,
            resampling=smc_config.resampling,
            ess_threshold=smc_config.ess_threshold,
            temperature=smc_config.temperature,
            seed=self._config.seed,
            example_ids=[run],
            max_rows=max(particles, smc_config.max_rows),
        )
