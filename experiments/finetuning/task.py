"""Fine-tuning task: train an adapter on a task's answers, and save it with a card and a curve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.distillation.data import digest
from experiments.finetuning import config as settings
from experiments.finetuning.lessons import SOURCES
from experiments.finetuning.training import CHECKPOINT, Trainer, add_adapter, split
from experiments.harness import smollm2
from experiments.harness.models import identity_of, load_model, title_of, write_base
from experiments.harness.results import Identity, plain, to_repeat
from experiments.harness.run import ExperimentTask, Run
from gcd._support.files import read_json, write_json

if TYPE_CHECKING:
    import wandb

_NOT_REPEATED = ("wandb", "run_dir", "resume", "stop_after", "out")


def _read(config: DictConfig) -> list[Any]:
    paths = [Path(path).expanduser() for path in config.paths]
    return SOURCES[config.source].read(paths, config.limit)


def _identity(config: DictConfig, items: list[Any]) -> Identity:
    """Return what determines the result: settings, files and weights."""
    values = {k: v for k, v in plain(config).items() if k not in settings.NOT_IDENTITY}
    for key in ("device", "device_map", "prompt_mib"):
        values["model"].pop(key)
    files = [Path(path).expanduser() for path in config.paths]
    return values | {"data": digest(files), "model_files": identity_of(config.model.path)}


def _run(run: Run, items: list[Any]) -> None:
    config = run.config
    data = split(items, config.held_out, config.seed, config.prompts)
    out = Path(config.out).expanduser() if config.out else run.directory / "adapter"
    if out.exists() and out != run.directory / "adapter":
        raise ValueError(
            f"expected a new directory, but out={out} exists; remove it or give another"
        )
    lm, tokenizer = load_model(config.model)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"expected an end-of-sequence token in the tokenizer of model.path={config.model.path},"
            " because answers must end with it; set eos_token in tokenizer_config.json"
        )
    run.open()
    trainer = Trainer(run, add_adapter(lm.model, config), tokenizer, data)
    if not trainer.train():
        if run.rank == 0:
            print(
                f"stopped after step {trainer.step}; {run.same_command} without stop_after goes on"
            )
        return
    if run.rank == 0:
        _write(run, trainer, out, (len(data.training), len(data.held_out)))
    run.wait()


def _write(run: Run, trainer: Trainer, out: Path, counts: tuple[int, int]) -> None:
    """Save the adapter in half precision with its card, and report the curve."""
    config = run.config
    trainer.adapter.to(torch.float16).save_pretrained(out)
    # The card names the model, not its path on this machine.
    known = read_json(out / "adapter_config.json", remedy="train it again")
    base = smollm2.HUB if config.model.path == smollm2.NAME else config.model.path
    write_json({**known, "base_model_name_or_path": base}, out / "adapter_config.json")
    title = title_of(config.model)
    write_base(out, identity_of(config.model.path), title)
    points = [f"| {point.step} | {point.held_out:.4f} |" for point in trainer.curve]
    curve = "\n".join(["| step | negative log-likelihood, nats per token |", "|---|---|", *points])
    names = [Path(path).name for path in config.paths]
    kept = {k: v for k, v in plain(config).items() if k not in _NOT_REPEATED}
    usual = plain(OmegaConf.structured(settings.FinetuneConfig))
    command = to_repeat("scripts.finetune_lm", kept | {"paths": names}, usual)
    listed = ", ".join(f"`{name}`" for name in names)
    longer = f"; {trainer.too_long} records of more than {config.longest} tokens were left out"
    card = f"""---
library_name: peft
license: apache-2.0
---

# {out.name}

This is a LoRA adapter (Hu et al., arXiv 2106.09685) of the model {title}.
It has rank {config.lora.rank}, covers every linear layer, and is stored in float16.
It was trained on {counts[0]} records of {listed}, to predict the
answers to the compact prompts of `experiments`.

{curve}

{counts[1]} records were held out to compute the log-likelihood{longer if trainer.too_long else ""}.

    {command}
"""
    (out / "README.md").write_text(card, encoding="utf-8")
    summary = {"curve": [point._asdict() for point in trainer.curve], "out": os.fspath(out)}

    def log(tracked: wandb.Run) -> None:
        for point in trainer.curve:
            tracked.log({"step": point.step, "held_out": point.held_out})

    run.report(f"## {out.name}\n\n{curve}\n", summary, log, also=f"; adapter: {out}")


TASK = ExperimentTask(
    "finetune",
    settings.FinetuneConfig,
    settings.check,
    _read,
    _identity,
    _run,
    processes="tensors",
    kept=(CHECKPOINT, "curve.json"),
)
