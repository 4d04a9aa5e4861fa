"""An arm is one way to sample: a method, an algorithm, and what the method looks ahead with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from omegaconf import DictConfig

import smc
from experiments.harness.config import HMMConfig
from experiments.harness.methods import METHODS, needs_hmm
from hmm.model import HMM


class Arm(NamedTuple):
    """One way to sample.

    Attributes:
        method: a name of `METHODS`.
        algorithm: a name of `ALGORITHMS`.
        lookahead: a name of `LOOKAHEADS`; None for methods that do not look ahead.
    """

    method: str
    algorithm: str
    lookahead: str | None

    @property
    def label(self) -> str:
        """What rows call the method, such as `pgcd/mild`."""
        return self.method + (f"/{self.lookahead}" if self.lookahead else "")

    @property
    def title(self) -> str:
        """What tables call the method."""
        ahead = f" ({self.lookahead} HMM)" if self.lookahead else ""
        return METHODS[self.method].title + ahead

    def proposal(self, settings: HMMConfig, ahead: Mapping[str, HMM]) -> smc.Proposal:
        """Make the proposal; `ahead` has the HMMs to look ahead with, by name."""
        hmm = None if self.lookahead is None else ahead[self.lookahead]
        return METHODS[self.method].proposal(settings, hmm)


def arms_of(task: DictConfig) -> list[Arm]:
    """Give all arms of a run, in the order of its results."""
    return [
        Arm(method, algorithm, lookahead)
        for algorithm in task.algorithms
        for method in task.methods
        for lookahead in (task.lookaheads if needs_hmm(method) else (None,))
    ]
