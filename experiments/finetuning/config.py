"""Settings of fine-tuning: the typed schema of `configs/finetune_lm.yaml`."""

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
    """Configuration of one fine-tuning."""

    source: str = "xlam"  # task of prompts and answers: "xlam", "commongen", "sql"
    paths: list[str] = field(default_factory=list)  # files of records
    limit: int | None = None  # number of lines per file; null: all
    max_skipped: float = MAX_SKIPPED  # largest share of malformed records
    prompts: int | None = None  # random sample, including held-out prompts; null: all
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    epochs: int = 3
    batch: int = 8  # prompts, with all their answers, per step
    most_tokens: int = 2048  # per forward pass; doesn't affect results
    longest: int = 640  # tokens of a prompt with its answers; longer ones are skipped
    learning_rate: float = 1e-3  # peak of the schedule: warm-up, then a half cosine to zero
    warm_up: float = 0.05  # share of all steps
    clip: float = 1.0  # of the gradient's norm
    held_out: float = 0.04  # share of held-out prompts

    save_minutes: float = 3.0  # between checkpoints
    stop_after: int | None = None  # stop at this step; the same command without it continues
    out: str | None = None  # directory of the finished adapter; default: RUN_DIR/adapter
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/finetune-<fingerprint>
    resume: bool = True  # continue an earlier run in the same directory


NOT_IDENTITY = (
    "most_tokens", "max_skipped", "save_minutes", "stop_after", "out", "wandb", "run_dir", "resume",
    "paths",
)  # fmt: skip


def register() -> None:
    """Register the dataclass with Hydra under the name that `configs/finetune_lm.yaml` uses."""
    ConfigStore.instance().store(name="base_finetune", node=FinetuneConfig)


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    one_of("source", config.source, tuple(SOURCES))
    check_model(config)
    distinct("paths", config.paths)
    for path in config.paths:
        if not Path(path).expanduser().is_file():
            raise ValueError(f"expected paths to be files of records, but {path} does not exist")
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
        raise ValueError(
            f"expected model.dtype to be float32 or bfloat16 for training, got {config.model.dtype}"
        )
    if config.model.adapter not in ("none", "auto"):
        raise ValueError(
            f"expected no adapter, because training begins with the model as released; got "
            f"model.adapter={config.model.adapter}; leave it out"
        )
    if config.model.prompt == "chat":
        raise ValueError(
            "expected model.prompt=compact or none, because training uses compact prompts; got "
            "model.prompt=chat; leave it out"
        )
