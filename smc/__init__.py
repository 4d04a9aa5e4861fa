"""This package samples from language models by sequential Monte Carlo, under constraints and
budgets.
"""

from __future__ import annotations

from smc.draw import CounterDraw, Draw
from smc.guide import DenseGuide, Guide, TiedGuide
from smc.interface import sample
from smc.language_model import (
    LanguageModel,
    PromptTooLongError,
    Rows,
    check_prompts,
    prompt_lengths,
)
from smc.lookahead import Expectation, Lookahead
from smc.pgcd import PGCD, HMMLookahead
from smc.posterior import Diagnostics, Posterior, Sample
from smc.proposals import GCD, LCD, LM, Batch, GreedyClose, MaskProposal, Proposal, Walk
from smc.transformers_lm import TransformersLM
from smc.twisted import Twisted
from smc.weights import Weights

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "PGCD",
    "Batch",
    "CounterDraw",
    "DenseGuide",
    "Diagnostics",
    "Draw",
    "Expectation",
    "GreedyClose",
    "Guide",
    "HMMLookahead",
    "LanguageModel",
    "Lookahead",
    "MaskProposal",
    "Posterior",
    "PromptTooLongError",
    "Proposal",
    "Rows",
    "Sample",
    "TiedGuide",
    "TransformersLM",
    "Twisted",
    "Walk",
    "Weights",
    "check_prompts",
    "prompt_lengths",
    "sample",
]
