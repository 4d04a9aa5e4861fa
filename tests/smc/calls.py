"""Calls of samplers with the options of algorithms and hooks among their own arguments.

Tables of tests combine options in one mapping, as in `{"particles": 2, "ess_threshold": 1.0,
"forced_runs": False}`. `execution="static"` calls `smc.captured.sample`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import smc.captured

_HOOKS = [field.name for field in fields(smc.Hooks)]
_KINDS = {"smc": smc.SMC, "discrete": smc.Discrete}


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `smc.sample` for options in one mapping."""
    given = dict(options)
    hooks = {name: given.pop(name) for name in _HOOKS if name in given}
    if hooks:
        given["hooks"] = smc.Hooks(**hooks)
    for name, kind in _KINDS.items():
        own = {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
        if own:
            assert given.get("algorithm", "auto") in ("auto", name), "options of one algorithm"
            given["algorithm"] = kind(**own)
    return given


def sample_with(*given: Any, execution: str = "eager", **options: Any) -> list[smc.Posterior]:
    """Call `smc.sample`, or `smc.captured.sample` for "static"."""
    call = smc.captured.sample if execution == "static" else smc.sample
    return call(*given, **arguments(options))
