"""Sequential Monte Carlo over language models, under hard constraints and token budgets."""

from __future__ import annotations

from smc.draw import CounterDraw, Draw
from smc.interface import sample
from smc.language_model import (
    LanguageModel,
    PromptTooLongError,
    Rows,
    check_prompts,
    prompt_lengths,
)
from smc.pgcd import PGCD
from smc.posterior import Diagnostics, Posterior, Sample
from smc.proposals import GCD, LCD, LM, Batch, Guide, Proposal, Walk
from smc.transformers_lm import TransformersLM
from smc.weights import Weights

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "PGCD",
    "Batch",
    "CounterDraw",
    "Diagnostics",
    "Draw",
    "Guide",
    "LanguageModel",
    "Posterior",
    "PromptTooLongError",
    "Proposal",
    "Rows",
    "Sample",
    "TransformersLM",
    "Walk",
    "Weights",
    "check_prompts",
    "prompt_lengths",
    "sample",
]
