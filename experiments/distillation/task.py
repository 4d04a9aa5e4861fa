"""Distillation of an HMM from a language model: sample, train, compare, report.

    sequences   sample the language model's answers to a task's prompts (`prompts`, `sampling`)
    train       initialize with clones of tokens (`clones`), and train by stepwise EM with
                checkpoints, in one or several processes (`training`)
    compare     held-out log-likelihood per token of the HMM, the language model, a unigram and a
                bigram

Sampled sequences are in `runs/sequences-<fingerprint>`, which runs with the same sampling share.
Checkpoint, curve, table and model of a run are in `runs/distill-<fingerprint>`. Several processes
(`torchrun`) need both directories on a shared file system.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from experiments.distillation import config as distill_config
from experiments.distillation import data as distill_data
from experiments.distillation import sampling as distill_sampling
from experiments.distillation.baselines import compare, unigram
from experiments.distillation.clones import clone
from experiments.distillation.data import Sequences, lumping_of
from experiments.distillation.lumping import Lumping, pool_rare
from experiments.distillation.prefixes import TopTokenPrefixes
from experiments.distillation.prompts import SOURCES
from experiments.distillation.report import LM, report
from experiments.distillation.training import Schedule, Trained, Worker, mean_log_likelihood, train
from experiments.models import load_model, resolve_device, title_of, weights_of
from experiments.rows import Identity, fingerprint, without_places
from experiments.tasks import ExperimentTask, Run
from hmm import HMM, load, save
from smc import TransformersLM

_LOG = logging.getLogger(__name__)
_OWN = 0.05  # share of the states; with more, EM improves clones less (docs/distillation.md)
_TOP = 64  # tokens kept of what the language model says at each prefix


def _run(run: Run, _: None) -> None:
    """Sample sequences, fit an HMM to them, save it, and compare it with simpler models."""
    config = run.config
    lm, tokenizer = load_model(config.model)
    prompts = _prompts(config, tokenizer)  # before hours of sampling
    run.open()
    worker = Worker(run.directory, resolve_device(config.model.device), run.rank, run.world)
    given = _sample(run, lm, prompts)
    num_tokens, eos_ids = lm.vocabulary.size, lm.vocabulary.eos_ids
    training, held_out = distill_data.split(given, config.held_out, config.seed)
    lumping = lumping_of(given, num_tokens, eos_ids)
    fitted = train(
        lambda: _initial(config, eos_ids, training, lumping),
        training.lump(lumping),
        held_out.lump(lumping),
        lumping.sums(unigram(training, num_tokens)),
        Schedule(len(training), config.epochs, config.batch_size, config.seed),
        worker,
    )
    if run.rank == 0:
        hmm = lumping.spread(fitted.state.hmm)
        if config.save_pooled is not None:
            counts = torch.bincount(training.tokens, minlength=num_tokens)
            emission = pool_rare(hmm.emission, counts, config.save_pooled)
            hmm = HMM(hmm.initial, hmm.transition, emission)
        described = {"distilled_from": _in_words(config)}
        save(
            hmm, run.directory / "hmm", vocabulary=lm.vocabulary, config=described,
            dtype=torch.bfloat16,
        )  # fmt: skip
    run.wait()
    _evaluate(run, worker, lumping, fitted, training, held_out, eos_ids)
    run.wait()


def _evaluate(
    run: Run,
    worker: Worker,
    lumping: Lumping,
    fitted: Trained,
    training: Sequences,
    held_out: Sequences,
    eos_ids: tuple[int, ...],
) -> None:
    """Evaluate the model as it will be loaded: rounded and normalized again; and report."""
    num_tokens = len(lumping.class_of)
    rounded = load(run.directory / "hmm", num_tokens=num_tokens, device=worker.device).hmm
    stored = mean_log_likelihood(lumping.lump(rounded), held_out.lump(lumping), worker)
    if run.rank:
        return
    baselines = compare(training, held_out, num_tokens)
    ends = torch.cat([s.tokens[s.lengths.cumsum(0) - 1] for s in (training, held_out)])
    last = fitted.curve[-1]
    summary = {
        "source": _in_words(run.config),
        "training_sequences": len(training),
        "training_tokens": training.num_tokens,
        "held_out_sequences": len(held_out),
        "held_out_tokens": held_out.num_tokens,
        "unended_share": float((~torch.isin(ends, torch.tensor(eos_ids))).double().mean()),
        "num_states": rounded.num_states,
        "num_tokens": rounded.num_tokens,
        "num_parameters": rounded.num_parameters,
        "nats_per_token": {
            "unigram": baselines.unigram,
            "bigram": baselines.bigram,
            "HMM": stored,
            LM: float(held_out.log_likelihood.sum()) / held_out.num_tokens,
        },
        "hmm_before_rounding": last.held_out,
        "save_pooled": run.config.save_pooled,
        "bigram_strength": baselines.strength,
        "steps": last.step,
        "seed": run.config.seed,
    }
    report(summary, fitted.curve, run)


def _identity(config: DictConfig, _: None) -> Identity:
    """Return what determines the result: settings, model files, and files of the records."""
    identity = distill_config.result_settings(config)
    return identity | weights_of(config.model) | _records_identity(config)


def _records_identity(config: DictConfig) -> dict[str, str]:
    """Return a digest of the records, if they are files."""
    if config.records.path is None:
        return {}
    path = Path(config.records.path).expanduser()
    if not path.exists():
        raise ValueError(f"expected an existing file, got records.path={config.records.path}")
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return {"records_sha256": distill_data.digest(files)}


def _prompts(config: DictConfig, tokenizer: Any) -> list[list[int]]:
    """Return the prompts that the language model answers."""
    num = math.ceil(config.num_sequences / config.answers_per_prompt)
    return SOURCES[config.source].token_ids(config, num, tokenizer)


def _sample(run: Run, lm: TransformersLM, prompts: list[list[int]]) -> Sequences:
    """Return the answers of the language model; the missing ones are sampled."""
    config = run.config
    settings = distill_config.sampling_settings(config)
    settings |= weights_of(config.model) | _records_identity(config)
    directory = run.directory.parent / f"sequences-{fingerprint(without_places(settings))}"
    distill_sampling.sample_to(
        directory,
        lm,
        prompts,
        config.num_sequences,
        max_length=config.max_length,
        batch=config.sample_batch,
        seed=config.seed,
        top=_TOP,
        rank=run.rank,
        world=run.world,
    )
    run.wait()
    return distill_data.read(directory, remedy="remove it, and its answers are sampled again")


def _initial(
    config: DictConfig, eos_ids: tuple[int, ...], training: Sequences, lumping: Lumping
) -> HMM:
    """Return the initial HMM, over classes of tokens."""
    ends = tuple(sorted({int(lumping.class_of[token]) for token in eos_ids}))
    prefixes = TopTokenPrefixes.of(training, lumping)
    hmm = clone(prefixes, config.num_states, eos_ids=ends, own=_OWN, seed=config.seed)
    _LOG.info(
        "%d states of %d prefixes; the tokens that are listed after each hold %.2f%% of what "
        "the language model expects",
        hmm.num_states, len(prefixes.read), 100 * (1 - prefixes.rest),
    )  # fmt: skip
    return hmm


def _in_words(config: DictConfig) -> str:
    """Describe the origin of the sequences in a phrase."""
    model = title_of(config.model)
    return f"{config.num_sequences} answers of {model} to {SOURCES[config.source].words(config)}"


TASK = ExperimentTask(
    "distill",
    distill_config.DistillConfig,
    distill_config.check,
    lambda config: None,
    _identity,
    _run,
    distributed=True,
    kept=("checkpoint", "curve.json"),
)
