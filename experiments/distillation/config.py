"""Settings of a distillation: the typed schema of `configs/distill_hmm.yaml`, and its checks.

All checks that don't need a model run before a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from experiments.commongen.config import TOLD
from experiments.config import (
    DataConfig,
    ModelConfig,
    WandbConfig,
    at_least,
    check_model,
    inside,
    one_of,
    refuse_unused,
)
from experiments.distillation.clones import FEWEST_STATES
from experiments.distillation.prompts import SOURCES
from experiments.rows import Identity, plain
from experiments.tool_calling.answers import STYLES


@dataclass
class DistillConfig:
    """Configuration of one distillation."""

    # Training data.
    source: str = "xlam"  # task whose prompts are answered: "xlam", "json_schema", "commongen", ...
    records: DataConfig = field(default_factory=DataConfig)  # requests to answer
    model: ModelConfig = field(default_factory=ModelConfig)
    style: str = "json"  # with source=xlam: "json", "python", "both" (each request twice)
    # With source=commongen: concepts that prompts name, in turn: "all", "some", "none"
    told: list[str] = field(default_factory=lambda: ["all"])
    num_sequences: int = 20000  # to sample, including held-out sequences
    answers_per_prompt: int = 1  # minimum; more if there are fewer prompts
    max_length: int = 128  # tokens of an answer, EOS included; longer answers are truncated
    sample_batch: int = 64  # answers per sampling batch
    held_out: float = 0.05  # share of the prompts whose answers are held out

    # The HMM and its training.
    num_states: int = 512
    epochs: int = 10  # passes over the data, the first and the last in full batches;
    # 0: none, the model stays as `clones` made it
    batch_size: int = 256  # sequences of a mini-batch
    save_pooled: int | None = None  # tokens seen at most this often share their emissions

    # The run.
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/distill-<fingerprint>
    resume: bool = True  # continue an earlier run in the same directory


_SAMPLING = (
    "source", "records", "style", "told", "num_sequences", "answers_per_prompt", "max_length",
    "sample_batch", "seed",
)  # fmt: skip
_NOT_IDENTITY = ("save_pooled", "wandb", "run_dir", "resume")


def register() -> None:
    """Register the dataclass with Hydra under the name that `configs/distill_hmm.yaml` uses."""
    ConfigStore.instance().store(name="base_distill", node=DistillConfig)


def result_settings(config: DictConfig) -> Identity:
    """Return the settings that determine the model: without logging and device."""
    values = {k: v for k, v in plain(config).items() if k not in _NOT_IDENTITY}
    values["records"].pop("max_skipped")
    for key in ("device", "device_map", "prompt_mib", "adapter"):
        values["model"].pop(key)
    return values


def sampling_settings(config: DictConfig) -> Identity:
    """Return the settings that determine the sampled sequences, which runs can share."""
    values = result_settings(config)
    return {"model": values["model"], **{key: values[key] for key in _SAMPLING}}


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    one_of("source", config.source, tuple(SOURCES))
    one_of("style", config.style, (*STYLES, "both"))
    if not config.told:
        raise ValueError(f"told needs at least one of {', '.join(TOLD)}")
    for told in config.told:
        one_of("told", told, tuple(TOLD))
    check_model(config)
    for key in ("max_length", "sample_batch", "batch_size", "answers_per_prompt"):
        at_least(key, config[key], 1)
    for key in ("save_pooled", "records.offset"):
        at_least(key, OmegaConf.select(config, key), 0)
    at_least("num_sequences", config.num_sequences, 2)
    at_least("num_states", config.num_states, FEWEST_STATES)
    if config.epochs != 0:
        at_least("epochs (the first and the last in full batches)", config.epochs, 2)
    inside("held_out", config.held_out, "(0, 1)", 0 < config.held_out < 1)
    share = config.records.max_skipped
    inside("records.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    if config.records.path and config.records.hub:
        raise ValueError("expected records.path or records.hub, got both; leave one out")
    if config.epochs == 0:
        reason = "with epochs=0 there is no training; leave it out"
        refuse_unused(config, DistillConfig, ("batch_size",), reason)
    others = {key for source in SOURCES.values() for key in source.settings}
    others -= {*SOURCES[config.source].settings}
    reason = f"source={config.source} does not read it; leave it out"
    refuse_unused(config, DistillConfig, tuple(sorted(others)), reason)
    SOURCES[config.source].check(config)
