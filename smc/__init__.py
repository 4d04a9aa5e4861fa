"""This package samples from language models by sequential Monte Carlo, under constraints and
budgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smc.draw import CounterDraw, Draw
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
from smc.vocabulary.factors import DenseGuide, Guide, TiedGuide
from smc.weights import Weights

if TYPE_CHECKING:
    from smc.generation import generate
    from smc.logits_processor import BudgetLogitsProcessor

_WITH_TRANSFORMERS = {
    "BudgetLogitsProcessor": "smc.logits_processor",
    "generate": "smc.generation",
}

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "PGCD",
    "Batch",
    "BudgetLogitsProcessor",
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
    "generate",
    "prompt_lengths",
    "sample",
]


def __getattr__(name: str) -> Any:
    """What needs `transformers` is loaded when it is asked for: not everybody has that library."""
    if name not in _WITH_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WITH_TRANSFORMERS[name]), name)
    return value
