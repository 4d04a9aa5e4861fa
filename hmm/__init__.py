"""Hidden Markov models (HMMs) over tokens: inference, EM, checkpoints, and lookahead.

    model = hmm.load(directory).hmm                     load a saved model
    model = hmm.HMM.random(num_states, num_tokens)      or make a random one
    step = hmm.em_step(hmm.Step(model), batches)        train by EM, starting from it (`hmm._em`)
    hmm.log_likelihood(model, tokens, lengths)          log P(x) (`hmm._inference`)
    table = hmm.lookahead_table(model, automaton, n)    P(completed within the budget) for all
                                                        prefixes (`hmm._product`)
    hmm.expect_tokens(table, ...)                       the same after each next token
                                                        (`hmm._lookahead`)

The mathematics is in docs/design.md, section 7. `smc.PGCD` samples with such a model.
"""

from __future__ import annotations

from hmm._checkpoint import Checkpoint, load, load_step, save, save_step
from hmm._em import PseudoCounts, Statistics, Step, em_step, expected_statistics, maximize
from hmm._inference import filter_all, filter_step, log_likelihood, marginals, predict_first, sample
from hmm._initialize import distilled
from hmm._lookahead import Expected, expect_all_tokens, expect_classes, expect_tokens
from hmm._model import HMM
from hmm._product import LookaheadTable, lookahead_table
from hmm._removed import REMOVED
from hmm._transition import Dense

__all__ = [
    "HMM",
    "Checkpoint",
    "Dense",
    "Expected",
    "LookaheadTable",
    "PseudoCounts",
    "Statistics",
    "Step",
    "distilled",
    "em_step",
    "expect_all_tokens",
    "expect_classes",
    "expect_tokens",
    "expected_statistics",
    "filter_all",
    "filter_step",
    "load",
    "load_step",
    "log_likelihood",
    "lookahead_table",
    "marginals",
    "maximize",
    "predict_first",
    "sample",
    "save",
    "save_step",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> None:
    if name in REMOVED:
        raise AttributeError(f"hmm.{name} was removed; {REMOVED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
