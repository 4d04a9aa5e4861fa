"""Settings that all tasks share: the typed schema of the files in `configs/`, and their checks.

A YAML file in `configs/` names one of these dataclasses as its base. Hydra therefore rejects
misspelled keys and values of the wrong type before anything is loaded. A task's own settings are a
dataclass in the task's folder, registered by `experiments.run`.

Every check runs before anything is loaded and raises `ValueError` with the key, its value and what
to give instead.

**Budgets** count generated tokens, EOS included. A named budget is a linear function of the fewest
tokens that any answer needs, so it adapts to long tool names and to terse notations:

                                   gold answers of xLAM records 500 to 599 that fit, in
    name      tokens               SmolLM2's tokens, in JSON and in Python style
    tight     1 x fewest + 16           20%,  29%
    default   2 x fewest + 32           72%,  82%
    loose     4 x fewest + 96          100%, 100%

`gold:1.25` models users who know roughly how long answers are: it is 1.25 times the tokens of the
gold answer, rounded up. A record whose gold answer isn't in its language is refused. `fewest:1.25`
is 1.25 times the fewest tokens of any answer. With a list of budgets, each record becomes one
example per budget.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf

from experiments.models import PROMPTS, ModelConfig
from gcd import ConstraintError, TokenAutomaton
from smc import SMC, Discrete

MAX_SKIPPED = 0.01
"""Largest share of malformed records with which a command succeeds."""
DTYPES = ("float32", "float64", "bfloat16", "float16", "auto")
ENGINES = ("transformers", "vllm")
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
class SMCConfig:
    """Options of SMC (`smc.SMC`), and options that all algorithms have."""

    resampling: str = SMC.resampling
    ess_threshold: float = SMC.ess_threshold
    strata: str = SMC.strata

    # Options of all algorithms; see `smc.sample` and `smc.Hooks`.
    temperature: float = 1.0
    execution: str = "auto"  # "static": `smc.captured.sample`
    max_rows: int = 128  # sequences in the running batch; doesn't affect results


@dataclass
class DiscreteConfig:
    """Options of the discrete particle filter; see `smc.Discrete`."""

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
    """Logging to Weights & Biases; offline without a login. `wandb=MODE` is short for the mode."""

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
    store.store(group="smc", name="default", node=SMCConfig)
    for mode in WANDB_MODES:
        store.store(group="wandb", name=mode, node=WandbConfig(mode=mode))


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
    if config.model.engine == "transformers":
        keys = ("model.chunk", "model.engine_args")
        reason = "it is for model.engine=vllm; leave it out"
        refuse_unused(config, {"model": ModelConfig}, keys, reason)
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


# -- budgets

LINEAR = {"tight": (1, 16), "default": (2, 32), "loose": (4, 96)}  # factor, tokens on top
FACTORS = {"gold": "tokens of the gold answer", "fewest": "fewest tokens of any answer"}
"""Kinds of multiples, with a description of what is multiplied."""


def budget_of(
    spec: int | str,
    automaton: TokenAutomaton,
    gold: Sequence[int] | None = None,
) -> int:
    """Compute a budget in tokens.

    Args:
        spec: tokens; a name of `LINEAR`; or a multiple such as `gold:1.25`.
        automaton: the constraint, for the fewest tokens of an answer.
        gold: tokens of the gold answer without EOS, if there is one.

    Raises:
        ConstraintError: `spec` is a multiple of a gold answer that the constraint excludes.
        ValueError: `spec` is a multiple of a gold answer and there is none.
    """
    if isinstance(spec, int):
        return spec
    fewest = automaton.fewest_tokens
    if isinstance(spec, str) and ":" in spec:
        name, factor = multiple_of(spec)
        if name == "fewest":
            return math.ceil(factor * fewest)
        if gold is None:
            raise ValueError(
                f"expected a task whose records have a gold answer for task.budget={spec}, got one "
                f"without; give fewest:{factor:g}, or a number of tokens"
            )
        if not automaton.accepts(gold):
            raise ConstraintError("expected a gold answer that satisfies the record's constraint")
        return math.ceil(factor * (len(gold) + 1))
    times, extra = LINEAR[spec]
    return times * fewest + extra


def multiple_of(spec: str) -> tuple[str, float]:
    """Parse `gold:1.25` as ("gold", 1.25).

    Raises:
        ValueError: `spec` isn't of this form.
    """
    name, _, factor = spec.partition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if name not in FACTORS or not 1 <= value < math.inf:
        raise ValueError(f"expected a multiple such as gold:1.25 or fewest:1.25, got {spec!r}")
    return name, value


def budgets_in(spec: Any) -> list[Any]:
    """Return the budgets of a run as a list."""
    return list(spec) if isinstance(spec, ListConfig | list) else [spec]


def title_of_budgets(spec: Any) -> str:
    """Describe the budgets of a run."""
    budgets = budgets_in(spec)
    if len(budgets) > 1 and all(":" in str(each) for each in budgets):
        name, _ = multiple_of(budgets[0])
        *first, last = (f"{multiple_of(each)[1]:g}" for each in budgets)
        return f"{', '.join(first)} and {last} times the {FACTORS[name]}"
    return " and ".join(map(str, budgets))


def part_of(style: str, spec: Any) -> str:
    """Return a name for the rows of a run that have this style of answers and this budget."""
    return f"{style}, {spec}" if style else f"{spec}"


def multiple_in(part: str) -> tuple[str, float] | None:
    """Return the style and the factor in a name by `part_of`; None if the budget has no factor."""
    style, _, spec = part.rpartition(", ")
    try:
        return style, multiple_of(spec)[1]
    except ValueError:
        return None


def check_budget(key: str, spec: Any) -> None:
    """Refuse a setting that is neither a budget nor a list of distinct budgets."""
    if isinstance(spec, ListConfig):
        for each in spec:
            check_budget(key, each)
        multiples = [multiple_of(each) for each in spec if ":" in str(each)]
        others = [each for each in spec if ":" not in str(each)]
        different = len(set(multiples)) == len(multiples) and len(set(others)) == len(others)
        if not spec or not different:
            raise ValueError(f"expected {key} to be one or several different budgets, got {spec!r}")
        if len({name for name, _ in multiples}) > 1:
            raise ValueError(
                f"expected multiples of either gold or fewest in {key}, because they share a "
                f"figure; got {spec!r}; make two runs"
            )
        return
    if isinstance(spec, bool) or not isinstance(spec, int | str):
        raise ValueError(f"expected {key} to be a whole number or a name, got {spec!r}")
    if isinstance(spec, int):
        at_least(key, spec, 1)
    elif ":" in spec:
        multiple_of(spec)
    elif spec not in LINEAR:
        raise ValueError(
            f"expected {key} to be a number of tokens, one of {', '.join(LINEAR)}, or a multiple "
            f"such as gold:1.25, got {spec!r}"
        )
