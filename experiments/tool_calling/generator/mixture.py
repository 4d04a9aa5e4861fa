"""What a model is trained on, and what it is judged on.

Training mixes invented records with natural ones, plain and augmented, by the level of the
curriculum; evaluation is natural alone, over tools and argument values that training never sees.
"""

from __future__ import annotations

import random

from experiments.tool_calling.generator.natural import natural_record
from experiments.tool_calling.generator.synthetic import synthetic_record
from experiments.tool_calling.records import ToolRecord

SYNTHETIC_SHARE = (0.6, 0.5, 0.4, 0.3)  # by level
SIMPLE_LEVELS = 2  # below this one, natural records are single calls
AUGMENTED_SHARE = 0.9  # of the natural ones


def generate(num: int, seed: int, split: str = "train") -> list[ToolRecord]:
    """`num` records that are a function of the arguments; the first n do not depend on `num`.

    `held_out` gives natural requests whose tools and argument values (booleans and options of
    enumerations aside) never occur in `train`, which is the full mixture of training.

    Raises:
        ValueError: a negative number, or an unknown split.
    """
    if num < 0:
        raise ValueError(f"{num} records were asked for; give a number of at least 0")
    if split not in ("train", "held_out"):
        raise ValueError(f"unknown split {split!r}: choose train or held_out")
    records = []
    for number in range(num):
        rng = random.Random(f"{split}-{seed}-{number}")
        identity = f"{split}-{seed}-{number}"
        if split == "held_out":
            records.append(natural_record(rng, split, identity))
        else:
            records.append(training_record(rng, len(SYNTHETIC_SHARE) - 1, identity))
    return records


def training_record(rng: random.Random, level: int, identity: str) -> ToolRecord:
    """One record at a level of the curriculum, 0 (simplest) to 3."""
    if rng.random() < SYNTHETIC_SHARE[level]:
        return synthetic_record(rng, level, identity)
    augment = rng.random() < AUGMENTED_SHARE
    return natural_record(rng, "train", identity, augment, simple=level < SIMPLE_LEVELS)
