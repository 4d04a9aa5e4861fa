"""This package has both algorithms in static shapes, every step of them wholly on the device."""

from __future__ import annotations

from smc.static.choose import candidates_of, pass_of
from smc.static.filter import StaticFilter
from smc.static.forward import Forward, StaticTransformer
from smc.static.sampler import StaticSampler

__all__ = [
    "Forward",
    "StaticFilter",
    "StaticSampler",
    "StaticTransformer",
    "candidates_of",
    "pass_of",
]
