"""The settings of fine-tuning, with types: the schema of `configs/finetune_lm.yaml`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from experiments.finetuning.lessons import SOURCES
from experiments.harness.config import MAX_SKIPPED, ModelConfig, WandbConfig
from experiments.harness.settings import at_least, check_model, distinct, inside, one_of


@dataclass
class LoraConfig:
    """Shape of the adapter: `peft.LoraConfig`, on every linear layer."""

    rank: int = 16
    alpha: float = 32.0


@dataclass
class FinetuneConfig:
    """The whole of one fine-tuning."""

    source: str = "xlam"  # whose prompts and answers: "xlam", "commongen", "sql"
    paths: list[str] = field(default_factory=list)  # files of records
    limit: int | None = None  # of each file of lines, the first so many; null: all
    max_skipped: float = MAX_SKIPPED  # share of malformed records; with more the command fails
    prompts: int | None = None  # to learn from, held-out ones included, at random; null: all
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    epochs: int = 3
    batch: int = 8  # prompts, with all their answers, between two changes of the weights
    most_tokens: int = 2048  # in one pass of the model; results do not depend on it
    longest: int = 640  # tokens of a prompt with its answers; longer ones are left out
    learning_rate: float = 1e-3  # the highest: warm-up, then a half cosine to zero
    warm_up: float = 0.05  # share of all steps
    clip: float = 1.0  # of the gradient's norm
    held_out: float = 0.04  # share of the prompts that only the curve sees

    save_minutes: float = 3.0  # between checkpoints
    stop_after: int | None = None  # stop at this step; the same command without it goes on
    out: str | None = None  # where the finished adapter goes; default: RUN_DIR/adapter
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/finetune-<fingerprint of what determines the result>
    resume: bool = True  # go on where an earlier run in the same directory stopped


NOT_IDENTITY = (
    "most_tokens", "max_skipped", "save_minutes", "stop_after", "out", "wandb", "run_dir", "resume",
    "paths",
)  # fmt: skip


def register() -> None:
    """Make the dataclass known to Hydra under the name that `configs/finetune_lm.yaml` uses."""
    ConfigStore.instance().store(name="base_finetune", node=FinetuneConfig)


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    one_of("source", config.source, tuple(SOURCES))
    check_model(config)
    distinct("paths", config.paths)
    for path in config.paths:
        if not Path(path).expanduser().is_file():
            raise ValueError(f"paths: {path} does not exist; give files of records")
    at_least("limit", config.limit, 1)
    at_least("prompts", config.prompts, 2)
    for key in ("epochs", "batch", "most_tokens", "longest", "lora.rank"):
        at_least(key, OmegaConf.select(config, key), 1)
    for key in ("learning_rate", "clip", "lora.alpha"):
        value = OmegaConf.select(config, key)
        inside(key, value, "(0, infinity)", 0 < value < math.inf)
    inside("max_skipped", config.max_skipped, "[0, 1]", 0 <= config.max_skipped <= 1)
    inside("warm_up", config.warm_up, "[0, 1)", 0 <= config.warm_up < 1)
    inside("held_out", config.held_out, "(0, 1)", 0 < config.held_out < 1)
    at_least("stop_after", config.stop_after, 0)
    if config.model.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"model.dtype={config.model.dtype}: train in float32 or bfloat16")
    if config.model.adapter not in ("none", "auto"):
        raise ValueError(
            f"model.adapter={config.model.adapter}: training begins with the model as it comes; "
            "leave it out"
        )
    if config.model.prompt == "chat":
        raise ValueError("model.prompt=chat: lessons are compact prompts; leave it out")
