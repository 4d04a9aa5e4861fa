"""Public names and arguments (with `=`) that were removed, and what to do instead, until 0.4."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

REMOVED = {
    "BudgetBatchProcessor": "use smc.BudgetLogitsProcessor or smc.generate in model.generate",
    "DenseGuide": "return smc.Factors.dense(log_g) from guide; the sampler computes log Z",
    "Drafter": "prompt lookup guesses the draft tokens",
    "PromptLookup": "prompt lookup is the only drafter; omit it",
    "Guide": "guide returns a smc.Factors",
    "Part": "use smc.sample_async",
    "drafter=": "omit it; prompt lookup guesses the draft tokens",
    "max_particles=": "pass particles",
    "target_error=": "double particles until posterior.reliability.log_evidence_error is small "
    "enough, then sample once more with another seed",
    "potential=": "set the attribute `potential` of the proposal",
    "stream": "use smc.sample_async",
    "top_p=": "pass it to model.generate, with custom_generate=smc.generate(...)",
    "TiedGuide": "return its smc.Factors from guide; the sampler computes log Z",
    "score=": "return smc.Factors with `defense` from guide",
    "Walk": "use smc.AutomatonPosition",
    "execution=": "call smc.captured.sample for captured steps, and omit it otherwise",
}
for _value, _names in {
    "hooks=smc.Hooks": "abandon draw finished forced_runs max_tokens_read observe read_ahead",
    "algorithm=smc.SMC": "ess_threshold resampling strata",
    "algorithm=smc.Discrete": "count_finished floor kept",
}.items():
    REMOVED |= {f"{name}=": f"pass {_value}({name}=...)" for name in _names.split()}


def accept_budget(function: Callable[P, R]) -> Callable[P, R]:
    """Accept `budget=`, the former name of `max_tokens=`; refuse arguments that were removed."""
    known = {*inspect.signature(function).parameters}
    had_them = bool(known & {"algorithm", "hooks"})  # `smc.search` had other ones

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - known:
            if had_them and f"{name}=" in REMOVED:
                raise ValueError(f"{name} was removed; {REMOVED[f'{name}=']}")
        if "budget" in kwargs:
            if "max_tokens" in kwargs:
                raise TypeError("expected max_tokens=, got its former name budget= too; omit it")
            warnings.warn("budget= is deprecated; pass max_tokens=", DeprecationWarning, 2)
            kwargs["max_tokens"] = kwargs.pop("budget")
        return function(*args, **kwargs)

    return call
