"""Several requests over one list of tools.

Which tool is meant then depends on the request alone, and a training that reads the list once for
all of them spends its time on requests and answers.
"""

from __future__ import annotations

import random

from experiments.tool_calling.generator.mixture import (
    AUGMENTED_SHARE,
    SIMPLE_LEVELS,
    SYNTHETIC_SHARE,
)
from experiments.tool_calling.generator.natural import natural_group
from experiments.tool_calling.generator.synthetic import synthetic_group
from experiments.tool_calling.records import ToolRecord


def training_group(rng: random.Random, level: int, identity: str, size: int) -> list[ToolRecord]:
    """`size` records with equal tools at a level of the curriculum, 0 (simplest) to 3."""
    if rng.random() < SYNTHETIC_SHARE[level]:
        return synthetic_group(rng, level, identity, size)
    augment = rng.random() < AUGMENTED_SHARE
    return natural_group(rng, "train", identity, size, augment, simple=level < SIMPLE_LEVELS)
