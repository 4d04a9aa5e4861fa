"""This package samples from language models by sequential Monte Carlo, under constraints and
budgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

from smc.drafters import Drafter, PromptLookup
from smc.draw import CounterDraw, Draw
from smc.interface import sample
from smc.models.protocol import (
    LanguageModel,
    PromptTooLongError,
    Rows,
    check_prompts,
)
from smc.models.transformers_lm import TransformersLM
from smc.posterior import Diagnostics, Posterior, Sample
from smc.proposals import (
    GCD,
    LCD,
    LM,
    AutomatonPosition,
    Batch,
    GreedyClose,
    MaskProposal,
    Proposal,
)
from smc.proposals.lookahead import Expectation, Lookahead
from smc.proposals.pgcd import PGCD, HMMLookahead
from smc.proposals.twisted import Twisted
from smc.searching import Answer, SearchResult, search
from smc.vocabulary.factors import DenseGuide, Guide, TiedGuide
from smc.weights import Weights

if TYPE_CHECKING:
    from smc.decoding.continuous import BudgetBatchProcessor
    from smc.decoding.generation import generate
    from smc.decoding.logits_processor import BudgetLogitsProcessor

_WITH_TRANSFORMERS = {
    "BudgetBatchProcessor": "smc.decoding.continuous",
    "BudgetLogitsProcessor": "smc.decoding.logits_processor",
    "generate": "smc.decoding.generation",
}

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "PGCD",
    "Answer",
    "AutomatonPosition",
    "Batch",
    "BudgetBatchProcessor",
    "BudgetLogitsProcessor",
    "CounterDraw",
    "DenseGuide",
    "Diagnostics",
    "Drafter",
    "Draw",
    "Expectation",
    "GreedyClose",
    "Guide",
    "HMMLookahead",
    "LanguageModel",
    "Lookahead",
    "MaskProposal",
    "Posterior",
    "PromptLookup",
    "PromptTooLongError",
    "Proposal",
    "Rows",
    "Sample",
    "SearchResult",
    "TiedGuide",
    "TransformersLM",
    "Twisted",
    "Weights",
    "check_prompts",
    "generate",
    "sample",
    "search",
]


def __getattr__(name: str) -> Any:
    """What needs `transformers` is loaded when it is asked for: not everybody has that library."""
    if name == "Walk":
        warn("smc.Walk is smc.AutomatonPosition now", DeprecationWarning, stacklevel=2)
        return AutomatonPosition
    if name not in _WITH_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WITH_TRANSFORMERS[name]), name)
    return value
