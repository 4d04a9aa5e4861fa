"""Calls of samplers with the options of algorithms and hooks among their own arguments.

Tables of tests combine options in one mapping, as in `{"particles": 2, "ess_threshold": 1.0,
"forced_runs": False}`. `execution="static"` calls `smc.captured.sample`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch

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


def assert_same(
    found: Sequence[smc.Posterior],
    expected: Sequence[smc.Posterior],
    *,
    tolerance: float = 1e-9,
    counts: Sequence[str] = ("running", "alive", "resampled"),
) -> None:
    """Compare particles, weights and these diagnostics of two executions."""
    for one, other in zip(found, expected, strict=True):
        assert [(s.ids, s.finished) for s in one.particles] == [
            (s.ids, s.finished) for s in other.particles
        ]
        for name in ("log_weight", "log_p"):
            values = [getattr(s, name) for s in other.particles]
            assert [getattr(s, name) for s in one.particles] == pytest.approx(values, abs=tolerance)
        assert one.enumerated == other.enumerated
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=tolerance)
        for name in counts:
            assert getattr(one.diagnostics, name) == getattr(other.diagnostics, name), name
        assert one.diagnostics.ess == pytest.approx(other.diagnostics.ess, abs=1e3 * tolerance)


def assert_same_step(one: smc.Observation, other: smc.Observation) -> None:
    """Compare observed steps; a prefix may have several rows."""
    for name in ("example", "tokens", "length"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.row >= 0, other.row >= 0)
    for name in ("ancestor", "tokens", "length"):
        assert torch.equal(getattr(one.after, name), getattr(other.after, name))
    torch.testing.assert_close(one.after.log_weight, other.after.log_weight)
