"""Settings of a distillation: the typed schema of `configs/distill_hmm.yaml`, and its checks.

All checks that don't need a model run before a model is loaded.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass, field
from pathlib import Path

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

INITS = ("random", "latent", "clones")
SAVE_DTYPES = ("float32", "float16", "bfloat16")


@dataclass
class SampledConfig:
    """Sequences of an earlier sampling, to use instead of new ones."""

    path: str | None = None  # directory of an earlier sampling, `runs/sequences-...`


@dataclass
class DistillConfig:
    """Configuration of one distillation."""

    # Training data.
    data: SampledConfig = field(default_factory=SampledConfig)
    source: str = "xlam"  # task whose prompts are answered: "xlam", "commongen", "sql"
    records: DataConfig = field(default_factory=DataConfig)  # requests to answer
    model: ModelConfig = field(default_factory=ModelConfig)
    style: str = "json"  # with source=xlam: "json", "python", "both" (each request twice)
    # With source=commongen: concepts that prompts name, in turn: "all", "some", "none"
    told: list[str] = field(default_factory=lambda: ["all"])
    num_sequences: int = 20000  # to sample, including held-out sequences
    answers_per_prompt: int = 1  # minimum; more if there are fewer prompts
    max_length: int = 128  # tokens of an answer, EOS included; longer answers are truncated
    sample_batch: int = 64  # answers per sampling batch
    top: int = 64  # tokens kept of what the LM says at each prefix, with a sketch of its logits;
    # 0: nothing is kept, which init=random does without
    held_out: float = 0.05  # share of the prompts whose answers are held out

    # The HMM.
    num_states: int = 512
    init: str = "random"  # or "latent": k-means of sketches of the LM's logits; or "clones": of
    # tokens, by such sketches

    # Training.
    epochs: int = 10  # passes over the data, the first and the last ones in full batches included;
    # 0: none, the model stays as `init` made it
    steps: int | None = None  # mini-batch steps, overriding `epochs`
    full_steps: int = 1  # full-batch steps at the end
    batch_size: int = 256  # sequences of a mini-batch
    piece_size: int = 128  # sequences of one E-step; processes divide a batch into pieces
    step_decay: float = 0.7  # kappa of the step sizes (k + 2)^-kappa
    pseudo_count: float = 0.01  # for each initial and transition entry
    emission_pseudo_count: float = 2.0  # for each state, in proportion to token frequencies
    latent_sequences: int | None = 4000  # random sample for init=latent; null: all

    # The run.
    evaluations: int = 30  # approximate number of points of the held-out curve
    save_minutes: float = 3.0  # between checkpoints
    save_dtype: str = "bfloat16"  # of the finished model's file
    save_pooled: int | None = None  # tokens seen at most this often share their emissions
    out: str | None = None  # directory of the finished model; default: RUN_DIR/hmm
    stop_after: int | None = None  # stop at this step; the same command without it continues
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/distill-<fingerprint>
    resume: bool = True  # continue an earlier run in the same directory


_SAMPLING = (
    "source", "records", "style", "told", "num_sequences", "answers_per_prompt", "max_length",
    "sample_batch", "top", "seed",
)  # fmt: skip
_NOT_IDENTITY = (
    "evaluations", "save_minutes", "save_dtype", "save_pooled", "out", "stop_after", "wandb",
    "run_dir", "resume",
)  # fmt: skip


def register() -> None:
    """Register the dataclass with Hydra under the name that `configs/distill_hmm.yaml` uses."""
    ConfigStore.instance().store(name="base_distill", node=DistillConfig)


def result_settings(config: DictConfig) -> Identity:
    """Return the settings that determine the model: without logging, device and checkpoints."""
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
    one_of("init", config.init, INITS)
    one_of("source", config.source, tuple(SOURCES))
    one_of("style", config.style, (*STYLES, "both"))
    if not config.told:
        raise ValueError(f"told needs at least one of {', '.join(TOLD)}")
    for told in config.told:
        one_of("told", told, tuple(TOLD))
    one_of("save_dtype", config.save_dtype, SAVE_DTYPES)
    check_model(config)
    for key in ("num_states", "max_length", "sample_batch", "batch_size", "piece_size",
                "evaluations", "latent_sequences", "answers_per_prompt"):  # fmt: skip
        at_least(key, config[key], 1)
    for key in ("top", "full_steps", "save_pooled", "records.offset", "stop_after", "steps"):
        at_least(key, OmegaConf.select(config, key), 0)
    if config.data.path is None:
        at_least("num_sequences", config.num_sequences, 2)
    if config.steps is None and config.epochs != 0:
        at_least("epochs (the first pass and full_steps included)", config.epochs,
                 1 + config.full_steps)  # fmt: skip
    inside("held_out", config.held_out, "(0, 1)", 0 < config.held_out < 1)
    share = config.records.max_skipped
    inside("records.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    inside("step_decay", config.step_decay, "(0.5, 1]", 0.5 < config.step_decay <= 1)
    minutes = config.save_minutes
    inside("save_minutes", minutes, "[0, infinity)", 0 <= minutes < math.inf)
    for key in ("pseudo_count", "emission_pseudo_count"):
        inside(key, config[key], "(0, infinity)", 0 < config[key] < math.inf)
    _check_model(config)
    _check_init(config)
    _check_data(config)
    _check_ignored(config)
    if config.data.path is None:
        SOURCES[config.source].check(config)


def _check_model(config: DictConfig) -> None:
    if config.init == "latent" and importlib.util.find_spec("faiss") is None:
        raise ValueError(
            "init=latent clusters with faiss, which is not installed: "
            "`pip install -c requirements/constraints.txt -e '.[experiments,distillation]'`, or "
            "use init=clones"
        )


def _check_init(config: DictConfig) -> None:
    if config.init != "random" and config.data.path is None:
        at_least(f"top (with init={config.init}, made of what is kept)", config.top, 1)
    if config.init != "clones":
        return
    at_least("num_states (with init=clones)", config.num_states, FEWEST_STATES)


def _check_data(config: DictConfig) -> None:
    data = config.data
    if config.records.path and config.records.hub:
        raise ValueError("expected records.path or records.hub, got both; leave one out")
    if data.path is None:
        return
    if not Path(data.path).expanduser().is_dir():
        raise ValueError(
            f"expected data.path to be the directory of an earlier sampling, got {data.path}; give "
            "one, such as runs/sequences-..."
        )
    if config.records.path or config.records.hub:
        raise ValueError(
            "expected either data.path, with sampled sequences, or records.*, with requests to "
            "sample answers to; got both, so leave one out"
        )


def _check_ignored(config: DictConfig) -> None:
    """Refuse unused settings, which would only change the name of the run."""

    def refuse(keys: tuple[str, ...], reason: str) -> None:
        refuse_unused(config, DistillConfig, keys, reason)

    if config.steps is not None:
        refuse(("epochs",), f"steps={config.steps} is their number; give one of them")
    if config.init != "latent":
        refuse(("latent_sequences",), "it goes with init=latent")
    if config.steps is None and config.epochs == 0:
        refuse(
            ("full_steps", "batch_size", "step_decay", "pseudo_count", "emission_pseudo_count"),
            "with epochs=0 there is no training; leave it out",
        )  # fmt: skip
    others = {key for source in SOURCES.values() for key in source.settings}
    others -= {*SOURCES[config.source].settings}
    refuse(tuple(sorted(others)), f"source={config.source} does not read it; leave it out")
    if config.data.path is None:
        return
    refuse(
        ("source", "style", "told", "num_sequences", "answers_per_prompt", "max_length",
         "sample_batch", "top", "model.prompt", "records.split", "records.offset"),
        "data.path holds the sequences, so none are sampled; leave it out",
    )  # fmt: skip
