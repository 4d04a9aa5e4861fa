"""This module has the settings that every task shares: the typed schema behind `configs/`.

A YAML file in `configs/` names one of these dataclasses as its base, so that a misspelt key or a
value of the wrong type is refused when the configuration is composed, before anything is loaded. A
task's own settings are a dataclass in its own folder (`experiments.tasks` registers them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from smc.algorithms import SMC, Discrete

MAX_SKIPPED = 0.01
"""Share of malformed records up to which a command succeeds."""
DTYPES = ("float32", "float64", "bfloat16", "float16", "auto")
PROMPTS = ("auto", "compact", "chat")
WANDB_MODES = ("auto", "online", "offline", "disabled")


@dataclass
class DataConfig:
    """Where records come from: a file, the hub, or (neither given) the repository."""

    path: str | None = None  # .jsonl in xLAM's form, or .json in the form of `toolcalls`
    hub: str | None = None  # data set name for `datasets.load_dataset`
    split: str = "train"  # split of the hub data set
    offset: int = 0  # records to pass over at the start
    max_skipped: float = MAX_SKIPPED  # share of malformed records; with more the command fails


@dataclass
class ModelConfig:
    """Any causal language model that `transformers` can load."""

    path: str = "smollm2"  # "smollm2", a checkpoint directory, or a hub name
    adapter: str = "none"  # a directory, "none", or "auto" (the task's own in models/, if any)
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", ...
    dtype: str = "float32"  # "float32", "float64", "bfloat16", "float16", "auto" (the file's)
    device_map: str = "none"  # "auto": layers are shared out over all devices of one process
    tensor_parallel: int = 1  # processes under torchrun that hold a model together, or 1
    prompt_mib: int = 1024  # memory for prompts that all methods read; results do not depend on it
    prompt: str = "auto"  # "compact", "chat", or "auto" (chat where the tokenizer has a template
    # and no adapter is loaded; adapters are trained on compact prompts)


@dataclass
class SMCConfig:
    """Options of sequential Monte Carlo (`smc.algorithms.SMC`), and those of all algorithms."""

    resampling: str = cast(str, SMC.resampling)
    ess_threshold: float = SMC.ess_threshold
    strata: str = SMC.strata

    # Of every algorithm; see `smc.sample`.
    temperature: float = 1.0
    top_p: float = 1.0
    execution: str = "auto"  # "eager", "static"
    read_ahead: Any = 0  # tokens, or "auto"; 0, so that rows say what a method itself has to read
    max_rows: int = 128  # sequences in the running batch; results do not depend on it


@dataclass
class DiscreteConfig:
    """Options of the discrete particle filter; see `smc.algorithms.Discrete`."""

    count_finished: bool = Discrete.count_finished
    floor: float = Discrete.floor


@dataclass
class HMMConfig:
    """What methods that need an HMM look ahead with, and how; see `smc.PGCD`."""

    path: str = "auto"  # a directory of `scripts.distill_hmm`, or "auto": the task's own in models/
    paths: dict[str, str] = field(default_factory=dict)  # more, by name: pgcd:NAME takes that one
    # "in_time", "conditional", "joint" or a number from 0 to 1, see `smc.PGCD`; "auto": the number
    # that was fitted for such prompts (`experiments.harness.methods`), "in_time" without any
    lookahead: Any = "auto"
    exact_top_k: int | None = 64  # null: exact for every token
    defence: float = 0.01
    potential: bool = True
    max_table_mib: int = 2048  # memory of the lookahead tables; results do not depend on it


@dataclass
class TraceConfig:
    """What `report.html` shows token by token; results do not depend on it."""

    examples: int = 8  # so many, evenly spread over the run; 0 for none
    particles: int = 64  # trials with more are not traced


@dataclass
class WandbConfig:
    """Logging to Weights & Biases; without a login it stays on disk."""

    mode: str = "auto"  # "auto", "online", "offline", "disabled"
    project: str = "globally-constrained-decoding"
    entity: str | None = None
    name: str | None = None


@dataclass
class Config:
    """The whole of one experiment."""

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
    resume: bool = True  # go on where an earlier run in the same directory stopped


@dataclass
class RecordConfig:
    """Methods x algorithms x particle counts on the same records; a task sets its own defaults."""

    num_examples: int = 100
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = "default"  # tokens, "tight", "default", "loose", "gold:1.25"; or a list of these
    literals: str = "all"  # "canonical": text without choice as the tokenizer spells it
    reference: str = "gcd"  # the method that the others are compared with, pair by pair


def register() -> None:
    """Make the dataclasses known to Hydra under the names that `configs/` uses."""
    store = ConfigStore.instance()
    store.store(name="base", node=Config)
    store.store(group="model", name="base_model", node=ModelConfig)
    store.store(group="smc", name="base_smc", node=SMCConfig)
    store.store(group="wandb", name="base_wandb", node=WandbConfig)
