"""This package has the step of sequential Monte Carlo in static shapes, wholly on the device."""

from __future__ import annotations

from smc.static.choose import pass_of
from smc.static.forward import Forward, StaticTransformer
from smc.static.loop import StaticSampler, check_static

__all__ = ["Forward", "StaticSampler", "StaticTransformer", "check_static", "pass_of"]
