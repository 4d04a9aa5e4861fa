"""Sequential Monte Carlo sampling from language models under constraints and budgets.

The path from a logit to a weight, by module:

    models           log-probabilities of the next token, normalized from logits
    prefixes         p_lm = p, the log-probabilities at the sampling temperature
    proposals        g of the next token, and Z = sum p g
    vocabulary       a token x, drawn from q = p g / Z
    eager, static    a forward pass over x and the tokens f that are forced after it

    step             SMC: with W the weight of a particle, psi its potential, and psi' the potential
                     after the step (g of the last token; 1 for a complete answer),
                         log W += log Z - log psi                            before the draw
                         log W += log psi' - log g(x) + sum of log p(f)      after the draw
    competition, selection, filter
                     the discrete filter: x is not drawn. A prefix with its next token x has the
                     score s = W p(x) g(x), and is kept with probability pi = min(1, s / c),
                         log W += log p(x) - log pi + sum of log p(f)
    posterior        answers with normalized weights
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

from gcd.support.optional import missing
from smc.asking import Reply, ask, ask_all
from smc.asynchronous import Part, sample_async, stream
from smc.bounds import Bounds
from smc.budgeting import BudgetEffect
from smc.choosing import Choice, choose
from smc.deadlines import AbandonedError, CancelToken
from smc.distributions import distribution
from smc.drafters import Drafter, PromptLookup
from smc.draw import CounterDraw, Draw
from smc.fields import Field, FieldValue
from smc.interface import sample
from smc.joint import joint
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
from smc.reliability import Reliability
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
    "AbandonedError",
    "Answer",
    "AutomatonPosition",
    "Batch",
    "Bounds",
    "BudgetBatchProcessor",
    "BudgetEffect",
    "BudgetLogitsProcessor",
    "CancelToken",
    "Choice",
    "CounterDraw",
    "DenseGuide",
    "Diagnostics",
    "Drafter",
    "Draw",
    "Expectation",
    "Field",
    "FieldValue",
    "GreedyClose",
    "Guide",
    "HMMLookahead",
    "LanguageModel",
    "Lookahead",
    "MaskProposal",
    "Part",
    "Posterior",
    "PromptLookup",
    "PromptTooLongError",
    "Proposal",
    "Reliability",
    "Reply",
    "Rows",
    "Sample",
    "SearchResult",
    "TiedGuide",
    "TransformersLM",
    "Twisted",
    "Weights",
    "ask",
    "ask_all",
    "check_prompts",
    "choose",
    "distribution",
    "generate",
    "joint",
    "sample",
    "sample_async",
    "search",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import names that need `transformers` on first access, because it is optional."""
    if name == "Walk":
        warn("smc.Walk is deprecated; use smc.AutomatonPosition", DeprecationWarning, stacklevel=2)
        return AutomatonPosition
    if name not in _WITH_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_WITH_TRANSFORMERS[name])
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise missing("transformers", "models", f"smc.{name}") from error
    value = globals()[name] = getattr(module, name)
    return value
