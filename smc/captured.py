"""`smc.sample` in steps of constant shapes, which are captured as a graph on a CUDA device.

A captured step has a row of the model for each particle, and computes forced tokens one by one. On
CUDA devices it is often faster than `smc.sample` for a single prompt, and slower for hundreds of
particles (`benchmarks/claims.md`). The target is the same, and so are the tokens of the same seed
if no tokens are forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gcd import TokenAutomaton
from smc._inference.captured import run_captured
from smc._inference.execution import Hooks, hooks_of
from smc._interface import interface
from smc._models.protocol import LanguageModel, Messages, Prompt, check_model
from smc._models.static_cache import Forward, NotStaticError, StaticLanguageModel
from smc._removed import accept_budget
from smc._results.posterior import Posterior

__all__ = ["Forward", "NotStaticError", "StaticLanguageModel", "sample"]


def __dir__() -> list[str]:
    return __all__


@accept_budget
def sample(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    *,
    hooks: Hooks | None = None,
    **arguments: Any,
) -> list[Posterior]:
    """Sample answers as `smc.sample` does, in captured steps.

    With `hooks.observe`, no graph is captured. `hooks.forced_runs` has no effect.

    Args:
        lm, prompts, constraint, hooks, arguments: as for `smc.sample`.

    Raises:
        NotStaticError: the model or the proposal can't be captured. That an operation of the model
            can't be captured is only detected when the first batch starts.

    Errors of `smc.sample` are raised, too.
    """
    check_model(lm)
    hooks = hooks_of(hooks, "run")
    if hooks.read_ahead not in (0, "auto"):
        raise NotStaticError(
            "expected read_ahead to be 0 or 'auto' in captured steps, got "
            f"{hooks.read_ahead}; omit it, or call smc.sample"
        )
    if not isinstance(lm, StaticLanguageModel):
        raise NotStaticError(
            "expected a language model with static_forward() for captured steps, got "
            f"{type(lm).__name__}; call smc.sample"
        )
    run = partial(run_captured, forward=lm.static_forward())
    return interface.sample(lm, prompts, constraint, hooks=replace(hooks, run=run), **arguments)
