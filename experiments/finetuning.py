"""Fine-tuning: train a LoRA adapter on a task's answers, with the Trainer of transformers.

Prompts are the compact ones of the task, and only the answer with EOS is learned. The number of
steps is known in advance, and every epoch's examples differ in their random choices, such as the
order of the tools. Checkpoints are written after every epoch; the same command resumes from them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from experiments.commongen.task import ConceptSet, prompt_of, read_training
from experiments.config import (
    MAX_SKIPPED,
    WandbConfig,
    at_least,
    check_model,
    distinct,
    inside,
    one_of,
)
from experiments.distillation.data import digest
from experiments.models import (
    SMOLLM2,
    SMOLLM2_HUB,
    ModelConfig,
    identity_of,
    load_model,
    title_of,
    without_renaming,
    write_base,
)
from experiments.results import write_results
from experiments.sql.databases import build_prompt as build_query_prompt
from experiments.sql.databases import read_databases, read_questions
from experiments.tasks import ExperimentTask, Identity, Run, plain
from experiments.tool_calling.task import (
    STYLES,
    ToolRecord,
    compact_prompt,
    read_xlam,
    write_answer,
)
from hmm._files import read_json, write_json

_SENTENCES = 4  # per concept set and epoch
_IGNORED = -100  # label of a token that isn't learned


@dataclass
class LoraConfig:
    """Shape of the adapter: `peft.LoraConfig`, on every linear layer."""

    rank: int = 16
    alpha: float = 32.0


@dataclass
class FinetuneConfig:
    """Configuration of one fine-tuning; the schema of `configs/finetune_lm.yaml`."""

    source: str = "xlam"  # task of prompts and answers: "xlam", "commongen", "sql"
    paths: list[str] = field(default_factory=list)  # files of records
    limit: int | None = None  # number of lines per file; null: all
    max_skipped: float = MAX_SKIPPED  # largest share of malformed records
    prompts: int | None = None  # random sample, including held-out prompts; null: all
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    epochs: int = 3
    batch: int = 8  # answers per step
    longest: int = 640  # tokens of a prompt with its answer; longer ones are skipped
    learning_rate: float = 1e-3  # peak of the schedule: warm-up, then a half cosine to zero
    warm_up: float = 0.05  # share of all steps
    clip: float = 1.0  # of the gradient's norm
    held_out: float = 0.04  # share of held-out records

    out: str | None = None  # directory of the finished adapter; default: RUN_DIR/adapter
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/finetune-<fingerprint>
    resume: bool = True  # continue an earlier run in the same directory


_NOT_IDENTITY = ("max_skipped", "out", "wandb", "run_dir", "resume", "paths")


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
    for key in ("epochs", "batch", "longest", "lora.rank"):
        at_least(key, OmegaConf.select(config, key), 1)
    for key in ("learning_rate", "clip", "lora.alpha"):
        value = OmegaConf.select(config, key)
        inside(key, value, "(0, infinity)", 0 < value < math.inf)
    inside("max_skipped", config.max_skipped, "[0, 1]", 0 <= config.max_skipped <= 1)
    inside("warm_up", config.warm_up, "[0, 1)", 0 <= config.warm_up < 1)
    inside("held_out", config.held_out, "(0, 1)", 0 < config.held_out < 1)
    one_of("model.dtype", config.model.dtype, ("float32", "bfloat16"))
    one_of("model.adapter", config.model.adapter, ("none", "auto"))  # training starts without
    one_of("model.prompt", config.model.prompt, ("auto", "compact"))


# -- answers to learn


class Answered(NamedTuple):
    """A prompt and its answer."""

    prompt: str
    answer: str


class Source(NamedTuple):
    """Source of answers: reads the items in files; returns an item's answers in an epoch."""

    read: Callable[[Sequence[Path], int | None], list[Any]]
    answered: Callable[[Any, random.Random], list[Answered]]


def _tool_records(paths: Sequence[Path], limit: int | None) -> list[ToolRecord]:
    """Return the records whose answers can be written in both styles."""
    records: list[ToolRecord] = []
    for path in paths:
        found = read_xlam(path).records
        records += found if path.suffix == ".json" else found[:limit]
    return [record for record in records if _writable(record)]


def _writable(record: ToolRecord) -> bool:
    try:
        for style in STYLES:
            write_answer(record.calls, record.tools, style)
    except ValueError:
        return False
    return bool(record.calls)


def _tool_calls(record: ToolRecord, rng: random.Random) -> list[Answered]:
    """Return the prompt and answer of a record in both styles, with its tools in random order."""
    tools = list(record.tools)
    rng.shuffle(tools)
    record = dataclasses.replace(record, tools=tuple(tools))
    return [
        Answered(compact_prompt(record, style), write_answer(record.calls, record.tools, style))
        for style in STYLES
    ]


def _sentences(item: ConceptSet, rng: random.Random) -> list[Answered]:
    """Return at most four sentences with the same concepts."""
    prompt = prompt_of(item, rng)
    some = rng.sample(item.references, min(_SENTENCES, len(item.references)))
    return [Answered(prompt, sentence) for sentence in some]


def _queries(paths: Sequence[Path], limit: int | None) -> list[Answered]:
    """Return questions with their gold queries, as written."""
    found = []
    for path in paths:
        databases = read_databases(path.parent)
        for question in read_questions(path, databases).records[:limit]:
            schema = databases[question.database].schema
            prompt = build_query_prompt(schema, question.text, tokenizer=None, kind="compact")
            found.append(Answered(prompt, question.query))
    return found


SOURCES: dict[str, Source] = {
    "xlam": Source(_tool_records, _tool_calls),
    "commongen": Source(read_training, _sentences),
    "sql": Source(_queries, lambda answered, _: [answered]),
}


def split(items: Sequence[Any], share: float, seed: int, most: int | None) -> tuple[list, list]:
    """Split a random sample of the items into training and held-out ones, at least one of each.

    Raises:
        ValueError: there are fewer than two items.
    """
    if len(items) < 2:
        raise ValueError(f"expected at least two usable records, got {len(items)}")
    order = list(items)
    random.Random(f"split-{seed}").shuffle(order)
    order = order[:most]
    count = min(len(order) - 1, max(1, round(share * len(order))))
    return order[count:], order[:count]


def examples(
    items: Sequence[Any], config: DictConfig, tokenizer: Any, epoch: int = 0
) -> Iterator[dict[str, list[int]]]:
    """Yield tokens and labels of the items' answers in an epoch, leaving out long ones.

    Answers are tokenized separately, as the model generates them, and without a BOS token.
    """
    for number, item in enumerate(items):
        rng = random.Random(f"{config.seed}-{epoch}-{number}")
        for each in SOURCES[config.source].answered(item, rng):
            prompt = tokenizer(each.prompt, verbose=False)["input_ids"]
            answer = tokenizer(each.answer, add_special_tokens=False, verbose=False)["input_ids"]
            learned = [*answer, tokenizer.eos_token_id]
            if len(prompt) + len(learned) <= config.longest:
                labels = [_IGNORED] * len(prompt) + learned
                yield {"input_ids": [*prompt, *learned], "labels": labels}


def collate(batch: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad examples on the right; the padding isn't learned and isn't attended to."""
    width = max(len(each["input_ids"]) for each in batch)
    filler = {"input_ids": 0, "labels": _IGNORED, "attention_mask": 0}
    rows = [{**each, "attention_mask": [1] * len(each["input_ids"])} for each in batch]
    return {
        key: torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in rows])
        for key, fill in filler.items()
    }


# -- training


def _read(config: DictConfig) -> list[Any]:
    paths = [Path(path).expanduser() for path in config.paths]
    return SOURCES[config.source].read(paths, config.limit)


def _identity(config: DictConfig, items: list[Any]) -> Identity:
    """Return what determines the result: settings, files and weights."""
    values = {k: v for k, v in plain(config).items() if k not in _NOT_IDENTITY}
    for key in ("device", "device_map", "prompt_mib"):
        values["model"].pop(key)
    files = [Path(path).expanduser() for path in config.paths]
    return values | {"data": digest(files), "model_files": identity_of(config.model.path)}


def _run(run: Run, items: list[Any]) -> None:
    """Train the adapter, save it in half precision, and report the curve."""
    config = run.config
    training, held_out = split(items, config.held_out, config.seed, config.prompts)
    own = run.directory / "adapter"
    out = Path(config.out).expanduser() if config.out else own
    if out.exists() and out != own:
        raise ValueError(
            f"expected a new directory, but out={out} exists; remove it or give another"
        )
    lm, tokenizer = load_model(config.model)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"expected an end-of-sequence token in the tokenizer of model.path={config.model.path},"
            " because answers must end with it; set eos_token in tokenizer_config.json"
        )
    learned = [
        example
        for epoch in range(config.epochs)
        for example in examples(training, config, tokenizer, epoch)
    ]
    tested = list(examples(held_out, config, tokenizer))
    for kind, found in (("training", learned), ("held-out", tested)):
        if not found:
            raise ValueError(
                f"expected {kind} records of at most longest={config.longest} tokens, but all are "
                "longer; raise longest"
            )
    run.open()
    adapter = add_adapter(lm.model, config)
    curve = train(adapter, learned, tested, run)
    adapter.to(torch.float16).save_pretrained(out)
    # The file names the model, not its path on this machine.
    known = read_json(out / "adapter_config.json", remedy="train it again")
    base = SMOLLM2_HUB if config.model.path == SMOLLM2 else config.model.path
    write_json({**known, "base_model_name_or_path": base}, out / "adapter_config.json")
    write_base(out, identity_of(config.model.path), title_of(config.model))
    lines = [f"| {step} | {loss:.4f} |" for step, loss in curve]
    table = "\n".join(["| step | held-out nats per token |", "|---|---|", *lines])
    summary = {"curve": curve, "records": [len(training), len(held_out)], "out": str(out)}

    history = [{"step": step, "held_out": loss} for step, loss in curve]
    text = f"## {out.name}\n\n{table}\n"
    write_results(run, text, summary, history=history, also=f"; adapter: {out}")


def add_adapter(model: Any, config: DictConfig) -> Any:
    """Return the model with a new adapter on every linear layer; nothing else is trained."""
    from peft import LoraConfig, get_peft_model  # takes seconds to import

    shape = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), without_renaming():
        torch.manual_seed(config.seed)
        return get_peft_model(model, shape)


def train(
    model: Any,
    learned: Sequence[dict[str, list[int]]],
    tested: Sequence[dict[str, list[int]]],
    run: Run,
) -> list[tuple[int, float]]:
    """Train on all examples once, and return the held-out nats per token by step.

    Raises:
        ValueError: the weights are no longer finite.
    """
    from transformers import Trainer, TrainingArguments  # slow to import

    config = run.config
    steps = math.ceil(len(learned) / config.batch)
    epoch = math.ceil(steps / config.epochs)
    arguments = TrainingArguments(
        output_dir=str(run.directory / "checkpoints"), num_train_epochs=1, max_steps=steps,
        per_device_train_batch_size=config.batch, per_device_eval_batch_size=config.batch,
        learning_rate=config.learning_rate, lr_scheduler_type="cosine", weight_decay=0.0,
        warmup_steps=max(1, round(config.warm_up * steps)), max_grad_norm=config.clip,
        eval_strategy="steps", eval_steps=epoch, eval_on_start=True, save_strategy="steps",
        save_steps=epoch, save_total_limit=2, logging_steps=epoch, remove_unused_columns=False,
        seed=config.seed, use_cpu=model.device.type == "cpu", report_to=[],
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, data_collator=collate, train_dataset=learned, eval_dataset=tested
    )
    begun = any((run.directory / "checkpoints").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=begun)
    log = [(int(each["step"]), float(each["eval_loss"])) for each in trainer.state.log_history
           if "eval_loss" in each]  # fmt: skip
    if log[-1][0] < steps:
        log.append((steps, float(trainer.evaluate()["eval_loss"])))
    if not math.isfinite(log[-1][1]):
        raise ValueError(
            f"expected a finite loss, got {log[-1][1]}; lower learning_rate={config.learning_rate}"
        )
    return log


TASK = ExperimentTask(
    "finetune", FinetuneConfig, check, _read, _identity, _run, kept=("checkpoints",)
)
