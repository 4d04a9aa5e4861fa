"""What an experiment can be told, with types: the schema behind `configs/`.

Each YAML file in `configs/` names one of these dataclasses as its base, so a misspelt key or a
value of the wrong type is refused when the configuration is composed, before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from experiments.convergence.config import ConvergenceConfig
from experiments.convergence.config import check as check_convergence
from experiments.harness.checks import at_least, left_alone, one_of

METHODS = ("lm", "lcd", "gcd", "pgcd")
STYLES = ("json", "python")
RESAMPLING = ("systematic", "stratified", "multinomial", "residual")
LOOKAHEADS = ("conditional", "in_time", "joint")
BUDGET_NAMES = ("tight", "default", "loose")


@dataclass
class DataConfig:
    """Where records come from: a file, the hub, or (neither given) the embedded generator."""

    path: str | None = None  # .jsonl in xLAM's form, or .json in the form of `toolcalls`
    hub: str | None = None  # data set name for `datasets.load_dataset`
    split: str = "train"  # split of the hub data set
    offset: int = 0  # records to pass over at the start


@dataclass
class ModelConfig:
    """Any causal language model that `transformers` can load."""

    path: str = "embedded"  # "embedded", a checkpoint directory, or a hub name
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", ...
    dtype: str = "float32"  # "float32", "float64", "bfloat16", "float16", "auto" (the file's)
    prompt: str = "auto"  # "compact", "chat", or "auto" (chat where the tokenizer has a template)


@dataclass
class SMCConfig:
    """Options of the sampler; see `smc.sample`."""

    resampling: str = "systematic"
    ess_threshold: float = 0.5
    temperature: float = 1.0
    top_p: float = 1.0
    max_rows: int = 128  # sequences in one forward pass; results do not depend on it


@dataclass
class HMMConfig:
    """What `pgcd` looks ahead with; see `smc.PGCD`."""

    path: str = "auto"  # a directory of `scripts.distill_hmm`, or "auto": the embedded model's own
    lookahead: str = "in_time"  # or "conditional", "joint"
    exact_top_k: int | None = 64  # null: exact for every token
    temper: float = 1.0
    defence: float = 0.01
    potential: bool = True
    max_table_mib: int = 2048  # memory of the lookahead tables; results do not depend on it


@dataclass
class WandbConfig:
    """Logging to Weights & Biases; without a login it stays on disk."""

    mode: str = "auto"  # "auto", "online", "offline", "disabled"
    project: str = "globally-constrained-decoding"
    entity: str | None = None
    name: str | None = None


@dataclass
class XlamConfig:
    """Tool calling: methods x particle counts on the same requests."""

    name: str = "xlam"
    style: str = "json"
    num_examples: int = 48
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    budget: Any = "default"  # a number of tokens, or "tight", "default", "loose"
    max_calls: int | None = None  # None: as many as the budget allows


@dataclass
class ShakespeareConfig:
    """Lines `UPPER+: LOWER+` of a play, by a character-level model trained on the spot."""

    name: str = "shakespeare"
    steps: int = 600  # of training
    context: int = 128  # characters the model is trained to look back over
    num_lines: int = 48  # under each constraint
    particles: int = 16  # for each line
    budget: int = 40  # most characters of a line
    upper: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    lower: str = "abcdefghijklmnopqrstuvwxyz"
    name_length: int = 5  # of the fixed form
    word_length: int = 6


@dataclass
class Config:
    """The whole of one experiment."""

    task: Any = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    smc: SMCConfig = field(default_factory=SMCConfig)
    hmm: HMMConfig = field(default_factory=HMMConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/<task>-<fingerprint of what determines the results>
    resume: bool = True  # go on where an earlier run in the same directory stopped


def register() -> None:
    """Make the dataclasses known to Hydra under the names that `configs/` uses."""
    store = ConfigStore.instance()
    store.store(name="base", node=Config)
    store.store(group="model", name="base_model", node=ModelConfig)
    store.store(group="smc", name="base_smc", node=SMCConfig)
    store.store(group="wandb", name="base_wandb", node=WandbConfig)
    store.store(group="task", name="base_xlam", node=XlamConfig)
    store.store(group="task", name="base_shakespeare", node=ShakespeareConfig)
    store.store(group="task", name="base_convergence", node=ConvergenceConfig)


def fingerprint(identity: dict[str, Any]) -> str:
    """A digest of what determines the results."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def results_config(config: DictConfig) -> dict[str, Any]:
    """The part of the configuration that determines the results, as plain values.

    Not logging, nor batching, nor the device.
    """
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    plain: dict[str, Any] = {str(k): v for k, v in resolved.items()}
    for key in ("wandb", "run_dir", "resume"):
        plain.pop(key, None)
    plain["model"].pop("device", None)
    plain["smc"].pop("max_rows", None)
    plain["hmm"].pop("max_table_mib", None)
    if "pgcd" not in plain["task"].get("methods", ()):
        plain.pop("hmm")
    return plain


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what is allowed."""
    if config.task.name == "shakespeare":
        _check_shakespeare(config)
        _check_no_hmm(config, "+task=shakespeare has no method that looks ahead: leave hmm.* out")
    elif config.task.name == "convergence":
        check_convergence(config)
    else:
        _check_xlam(config.task)
        if "pgcd" not in config.task.methods:
            _check_no_hmm(
                config, "only pgcd looks ahead; add it to task.methods, or leave hmm.* out"
            )
    at_least("seed", config.seed, 0)
    at_least("data.offset", config.data.offset, 0)
    at_least("smc.max_rows", config.smc.max_rows, 1)
    one_of("smc.resampling", config.smc.resampling, RESAMPLING)
    if not (config.smc.temperature > 0 and math.isfinite(config.smc.temperature)):
        raise ValueError(
            f"smc.temperature must be positive and finite, got {config.smc.temperature}"
        )
    if not config.smc.ess_threshold >= 0:
        raise ValueError(f"smc.ess_threshold must be 0 or more, got {config.smc.ess_threshold}")
    if not 0 < config.smc.top_p <= 1:
        raise ValueError(f"smc.top_p must lie in (0, 1], got {config.smc.top_p}")
    _check_hmm(config.hmm)
    if config.data.path and config.data.hub:
        raise ValueError("give data.path or data.hub, not both")
    one_of("model.prompt", config.model.prompt, ("auto", "compact", "chat"))
    one_of("model.dtype", config.model.dtype, ("float32", "float64", "bfloat16", "float16", "auto"))
    one_of("wandb.mode", config.wandb.mode, ("auto", "online", "offline", "disabled"))


def _check_xlam(task: XlamConfig) -> None:
    one_of("task.style", task.style, STYLES)
    for method in task.methods:
        one_of("task.methods", method, METHODS)
    if not task.methods or not task.particles:
        raise ValueError("task.methods and task.particles need at least one entry each")
    for key, values in (("task.methods", task.methods), ("task.particles", task.particles)):
        if len(set(values)) != len(values):
            raise ValueError(f"{key} has an entry twice: {list(values)}")
    for count in task.particles:
        at_least("task.particles", count, 1)
    at_least("task.num_examples", task.num_examples, 1)
    if task.max_calls is not None:
        at_least("task.max_calls", task.max_calls, 1)
    if isinstance(task.budget, bool) or not isinstance(task.budget, int | str):
        raise ValueError(f"task.budget must be a whole number or a name, got {task.budget!r}")
    if isinstance(task.budget, int):
        at_least("task.budget", task.budget, 1)
    else:
        one_of("task.budget", task.budget, (*BUDGET_NAMES, "a number of tokens"))


def _check_hmm(hmm: HMMConfig) -> None:
    one_of("hmm.lookahead", hmm.lookahead, LOOKAHEADS)
    if hmm.exact_top_k is not None:
        at_least("hmm.exact_top_k", hmm.exact_top_k, 0)
    if not 0 < hmm.temper < math.inf:
        raise ValueError(f"hmm.temper must be a positive power, got {hmm.temper}")
    if not 0 <= hmm.defence <= 1:
        raise ValueError(f"hmm.defence must be a share, from 0 to 1, got {hmm.defence}")
    at_least("hmm.max_table_mib", hmm.max_table_mib, 1)


def _check_no_hmm(config: DictConfig, reason: str) -> None:
    keys = [f"hmm.{field.name}" for field in dataclasses.fields(HMMConfig)]
    left_alone(config, Config, keys, reason)


def _check_shakespeare(config: DictConfig) -> None:
    task = config.task
    if config.model.path != "embedded":
        raise ValueError("+task=shakespeare trains its own model: leave model.path out")
    if config.data.hub or config.data.offset:
        raise ValueError("+task=shakespeare reads one text file: data.path=FILE and no more of it")
    for key in ("steps", "context", "num_lines", "particles", "name_length", "word_length"):
        at_least(f"task.{key}", getattr(task, key), 1)
    longest = task.name_length + task.word_length + 3
    if task.budget < longest:
        raise ValueError(
            f"task.budget={task.budget} is shorter than the fixed form's lines, which have "
            f"{longest} characters (task.name_length, task.word_length and three more)"
        )
    both = set(task.upper) & set(task.lower)
    if both or not task.upper or not task.lower or ":" in task.upper or "\n" in task.lower:
        raise ValueError(
            "task.upper and task.lower must be two sets of characters without a common one, the "
            f"first without ':', the second without a line end; got {task.upper!r}, {task.lower!r}"
        )
