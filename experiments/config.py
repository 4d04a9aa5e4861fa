"""Settings that all tasks share: the typed schema of the files in `configs/`, and their checks.

A YAML file in `configs/` names one of these dataclasses as its base. Hydra therefore rejects
misspelled keys and values of the wrong type before anything is loaded. A task's own settings are a
dataclass in the task's folder, registered by `experiments.run`.

Every check runs before anything is loaded and raises `ValueError` with the key, its value and what
to give instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from smc._inference.algorithms import SMC, Discrete

MAX_SKIPPED = 0.01
"""Largest share of malformed records with which a command succeeds."""
DTYPES = ("float32", "float64", "bfloat16", "float16", "auto")
ENGINES = ("transformers", "vllm")
PROMPTS = ("auto", "compact", "chat")
WANDB_MODES = ("auto", "online", "offline", "disabled")


@dataclass
class DataConfig:
    """Source of records: a file, the hub, or by default the repository."""

    path: str | None = None  # .jsonl in xLAM's format, or .json in the format of `toolcalls`
    hub: str | None = None  # data set name for `datasets.load_dataset`
    split: str = "train"  # split of the hub data set
    offset: int = 0  # records to skip at the start
    max_skipped: float = (
        MAX_SKIPPED  # largest share of malformed records; the command fails above it
    )


@dataclass
class ModelConfig:
    """Any causal language model that `transformers` can load."""

    path: str = "smollm2"  # "smollm2", a checkpoint directory, or a hub name
    adapter: str = "none"  # a directory, "none", or "auto" (the task's adapter in models/, if any)
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", ...
    dtype: str = "float32"  # "float32", "float64", "bfloat16", "float16", "auto" (the file's)
    engine: str = "transformers"  # "vllm" (`experiments.vllm_model`)
    chunk: int = 16  # vllm: tokens after which particles may be resampled
    engine_args: dict[str, Any] = field(default_factory=dict)  # vllm: more arguments of vllm.LLM
    device_map: str = "none"  # "auto": one process spreads the layers over all devices
    prompt_mib: int = 1024  # memory for cached prompts; doesn't affect results
    prompt: str = "auto"  # "compact", "chat", or "auto" (chat if the tokenizer has a template and
    # no adapter is loaded; adapters are trained on compact prompts)


@dataclass
class SMCConfig:
    """Options of SMC (`smc._inference.algorithms.SMC`), and options that all algorithms have."""

    resampling: str = SMC.resampling
    ess_threshold: float = SMC.ess_threshold
    strata: str = SMC.strata

    # Options of all algorithms; see `smc.sample`.
    temperature: float = 1.0
    execution: str = "auto"  # "eager", "static"
    read_ahead: Any = 0  # tokens, or "auto"; 0 so that rows count only what the method itself needs
    max_rows: int = 128  # sequences in the running batch; doesn't affect results


@dataclass
class DiscreteConfig:
    """Options of the discrete particle filter; see `smc._inference.algorithms.Discrete`."""

    count_finished: bool = Discrete.count_finished
    floor: float = Discrete.floor
    kept: int = Discrete.kept


@dataclass
class HMMConfig:
    """The HMM of methods that look ahead, and how they use it; see `smc.PGCD`."""

    path: str = (
        "auto"  # a directory of `scripts.distill_hmm`, or "auto" (the task's HMM in models/)
    )
    paths: dict[str, str] = field(default_factory=dict)  # more HMMs by name, for pgcd:NAME
    # "in_time", "conditional", "joint" or a number from 0 to 1, see `smc.PGCD`; "auto": the number
    # fitted for this kind of prompt (`experiments.arms`), or "in_time" if none is
    lookahead: Any = "auto"
    exact_top_k: int | None = 64  # null: all tokens
    defense: float = 0.01
    max_table_mib: int = 2048  # memory of the lookahead tables; doesn't affect results


@dataclass
class TraceConfig:
    """Traces for the token-by-token view of `report.html`; they don't affect results."""

    examples: int = 8  # number of examples, evenly spread over the run; 0 for none
    particles: int = 64  # trials with more particles aren't traced


@dataclass
class WandbConfig:
    """Logging to Weights & Biases; offline without a login."""

    mode: str = "auto"  # "auto", "online", "offline", "disabled"
    project: str = "globally-constrained-decoding"
    entity: str | None = None
    name: str | None = None


@dataclass
class Config:
    """Configuration of one experiment."""

    task: Any = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    smc: SMCConfig = field(default_factory=SMCConfig)
    discrete: DiscreteConfig = field(default_factory=DiscreteConfig)
    hmm: HMMConfig = field(default_factory=HMMConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/<task>-<fingerprint of what determines the results>
    resume: bool = True  # continue an earlier run in the same directory


@dataclass
class RecordConfig:
    """Settings of tasks that compare methods, algorithms and particle counts on the same records.

    Tasks derive from it and set other defaults.
    """

    num_examples: int = 100
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = "default"  # tokens, "tight", "default", "loose", "gold:1.25", or a list of these
    literals: str = "all"  # "canonical": literal text only in the tokenizer's own tokenization
    reference: str = "gcd"  # the method of paired comparisons


def register() -> None:
    """Register the dataclasses with Hydra under the names that `configs/` uses."""
    store = ConfigStore.instance()
    store.store(name="base", node=Config)
    store.store(group="model", name="base_model", node=ModelConfig)
    store.store(group="smc", name="base_smc", node=SMCConfig)
    store.store(group="wandb", name="base_wandb", node=WandbConfig)


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that isn't in the list."""
    if value not in allowed:
        raise ValueError(f"expected {key} to be one of {', '.join(allowed)}, got {value!r}")


def at_least(key: str, value: int | None, least: int) -> None:
    """Refuse a number below `least`; None is accepted."""
    if value is not None and value < least:
        raise ValueError(f"expected {key} to be at least {least}, got {value}")


def inside(key: str, value: float, interval: str, holds: bool) -> None:
    """Refuse a number outside an interval; `holds` tells whether it is inside."""
    if not holds:
        raise ValueError(f"expected {key} to be in {interval}, got {value}")


def distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse an empty list and a list with duplicates."""
    if not values:
        raise ValueError(f"expected at least one value in {key}, got an empty list")
    if len(set(values)) != len(values):
        raise ValueError(f"expected different values in {key}, got {list(values)}")


def writable(what: str, key: str, directory: Path) -> None:
    """Refuse a directory that can't be created or isn't writable."""
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"cannot write {what} to {directory}, because {parent} isn't a writable directory; "
            f"give another one with {key}=DIR"
        )


def refuse_unused(config: DictConfig, schema: Any, keys: Iterable[str], reason: str) -> None:
    """Raise an error for unused settings that differ from the schema's defaults."""
    usual = OmegaConf.structured(schema)
    values = {key: OmegaConf.select(config, key) for key in keys}
    changed = [f"{k}={v}" for k, v in values.items() if v != OmegaConf.select(usual, k)]
    if changed:
        raise ValueError(f"{', '.join(changed)} would be ignored: {reason}")


def check_model(config: DictConfig) -> None:
    """Check `model.*`, `wandb.*` and `seed`, which all commands have."""
    one_of("model.prompt", config.model.prompt, PROMPTS)
    one_of("model.dtype", config.model.dtype, DTYPES)
    one_of("model.engine", config.model.engine, ENGINES)
    at_least("model.chunk", config.model.chunk, 1)
    one_of("wandb.mode", config.wandb.mode, WANDB_MODES)
    one_of("model.device_map", config.model.device_map, ("none", "auto"))
    if config.model.device_map == "auto":
        reason = "model.device_map=auto takes all devices that there are, in one process"
        refuse_unused(config, {"model": ModelConfig}, ("model.device",), reason)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(f"{reason}: run it without torchrun")
    at_least("model.prompt_mib", config.model.prompt_mib, 0)
    at_least("seed", config.seed, 0)
    # torch rejects larger seeds, partly only after hours.
    inside("seed", config.seed, "[0, 2**63)", config.seed < 1 << 63)
