"""Sequential Monte Carlo sampling from language models under constraints and budgets.

This table shows the path from a logit to a weight. A proposal draws tokens with probability
p g / Z, where p is the model's probability and g is a factor that depends on the proposal:

    _models                         compute log-probabilities of the next token from logits
    _forward/reader                 apply the sampling temperature; the result is log p
    _proposals                      compute the factor g of each next token

    _inference/particle_filter
        SMC: update the weight W of each particle in these steps. psi is the particle's potential
        before the step, and psi' its potential after the step: g of the last token, or 1 for a
        complete answer.
            compute Z = sum of p g                              _vocabulary
            log W += log Z - log psi
            resample if the weights are uneven                  _inference/resampling
            draw a token x from q = p g / Z                     _vocabulary
            run the model on x and the tokens f forced after x  _forward/reader
            log W += log psi' - log g(x) + sum of log p(f)
    _vocabulary/factors, _inference/selection, _inference/discrete_filter
        The discrete filter doesn't draw x. It gives each continuation of a prefix by one token x
        the score s = W p(x) g(x), and keeps it with probability pi = min(1, s / c).
            log W += log p(x) - log pi + sum of log p(f)
    _results/posterior              normalize the weights of the answers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcd._support.optional import missing
from smc._inference.algorithms import SMC, Discrete
from smc._inference.bounds import Bounds
from smc._inference.deadlines import AbandonedError, CancelToken
from smc._inference.execution import Hooks
from smc._inference.particles import Observation, Population
from smc._inference.resampling import Weights
from smc._interface.asking import Reply, ask, ask_all
from smc._interface.interface import sample, sample_async
from smc._models.hmm_lm import HMMLanguageModel
from smc._models.protocol import (
    LanguageModel,
    OpenedPrompt,
    PromptTooLongError,
    Rows,
    check_prompts,
)
from smc._models.transformers_lm import TransformersLM
from smc._proposals import (
    GCD,
    LCD,
    LM,
    AutomatonPosition,
    Batch,
    GreedyClose,
    MaskProposal,
    Proposal,
)
from smc._proposals.masks import BudgetEffect
from smc._proposals.pgcd import PGCD, HMMLookahead
from smc._proposals.twisted import Expectation, Lookahead, Twisted
from smc._removed import REMOVED
from smc._results.fields import Field, FieldValue
from smc._results.posterior import Diagnostics, Posterior, Sample, sufficient_budget
from smc._results.reliability import Reliability
from smc._search.choosing import Choice, choose, joint
from smc._search.distributions import distribution
from smc._search.searching import Answer, SearchResult, search
from smc._vocabulary.draw import CounterDraw, Draw
from smc._vocabulary.factors import Factors

if TYPE_CHECKING:
    from smc._transformers.generation import generate
    from smc._transformers.logits_processor import BudgetLogitsProcessor

_WITH_TRANSFORMERS = {
    "BudgetLogitsProcessor": "smc._transformers.logits_processor",
    "generate": "smc._transformers.generation",
}

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "PGCD",
    "SMC",
    "AbandonedError",
    "Answer",
    "AutomatonPosition",
    "Batch",
    "Bounds",
    "BudgetEffect",
    "BudgetLogitsProcessor",
    "CancelToken",
    "Choice",
    "CounterDraw",
    "Diagnostics",
    "Discrete",
    "Draw",
    "Expectation",
    "Factors",
    "Field",
    "FieldValue",
    "GreedyClose",
    "HMMLanguageModel",
    "HMMLookahead",
    "Hooks",
    "LanguageModel",
    "Lookahead",
    "MaskProposal",
    "Observation",
    "OpenedPrompt",
    "Population",
    "Posterior",
    "PromptTooLongError",
    "Proposal",
    "Reliability",
    "Reply",
    "Rows",
    "Sample",
    "SearchResult",
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
    "sufficient_budget",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name that needs the optional package `transformers` when it is first used."""
    if name in REMOVED:
        raise AttributeError(f"smc.{name} was removed; {REMOVED[name]}")
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
