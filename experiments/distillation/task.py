"""Distillation of an HMM from a language model: sample, train, compare, report.

    sequences   sample the language model's answers to a task's prompts (`prompts`, `sampling`)
    train       initialize at random, by latent variable distillation (hmm.initialize) or with
                clones of tokens (`clones`), and train by stepwise EM with checkpoints, in one or
                several processes (`training`)
    compare     held-out log-likelihood per token of the HMM, the language model, a unigram and a
                bigram

Sampled sequences are in `runs/sequences-<fingerprint>`, which runs with the same sampling share.
Checkpoint, curve, table and model of a run are in `runs/distill-<fingerprint>`. Several processes
(`torchrun`) need both directories on a shared file system.
"""

from __future__ import annotations

import logging
import math
from dataclasses import fields
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
from experiments.distillation.prefixes import TopTokenPrefixes, after_each_token
from experiments.distillation.prompts import SOURCES
from experiments.distillation.report import LM, check_out, report
from experiments.distillation.training import (
    Training,
    Worker,
    at_random,
    mean_log_likelihood,
    train,
)
from experiments.models import load_model, resolve_device, title_of, weights_of
from experiments.rows import Identity, derive_seed, fingerprint, without_places
from experiments.tasks import ExperimentTask, Run
from hmm import HMM, distilled, load, save
from smc import TransformersLM

_LOG = logging.getLogger(__name__)
_OWN = 0.05  # share of the states; with more, EM improves clones less (docs/distillation.md)


def _read(config: DictConfig) -> Sequences | None:
    """Return the answers of an earlier sampling, or None to sample from the language model."""
    return None if config.data.path is None else distill_data.read(config.data.path)


def _run(run: Run, given: Sequences | None) -> None:
    """Sample sequences, fit an HMM to them, save it, and compare it with simpler models."""
    config = run.config
    device = resolve_device(config.model.device)
    out = Path(config.out).expanduser() if config.out else run.directory / "hmm"
    check_out(out, run.directory)
    lm, tokenizer = load_model(config.model)
    num_tokens, eos_ids = lm.vocabulary.size, lm.vocabulary.eos_ids
    # Check now what would otherwise fail after hours of sampling.
    prompts = _prompts(config, tokenizer) if given is None else []
    if given is not None:
        _check_given(config, given, num_tokens)
    run.open()
    worker = Worker(run.directory, device, run.rank, run.world, 60 * config.save_minutes)
    if given is None:
        given = _sample(run, lm, prompts)

    training, held_out = distill_data.split(given, config.held_out, config.seed)
    lumping = lumping_of(given, num_tokens, eos_ids)
    tested = held_out.lump(lumping)
    settings = _training(config)
    fitted = train(
        lambda: _initial(config, eos_ids, training, lumping),
        training.lump(lumping),
        tested,
        lumping.sums(unigram(training, num_tokens)),
        settings,
        worker,
        config.stop_after,
    )
    if not fitted.finished:
        if run.rank == 0:
            step = fitted.state.step
            also = "" if config.resume else " and resume=false"
            print(f"stopped after step {step}; the same command without stop_after{also} goes on")
        return

    if run.rank == 0:
        described = {"distilled_from": _in_words(config)}
        dtype = getattr(torch, config.save_dtype)
        hmm = lumping.spread(fitted.state.hmm)
        if config.save_pooled is not None:
            counts = torch.bincount(training.tokens, minlength=num_tokens)
            emission = pool_rare(hmm.emission, counts, config.save_pooled)
            hmm = HMM(hmm.initial, hmm.transition, emission)
        save(hmm, out, vocabulary=lm.vocabulary, config=described, dtype=dtype)
    run.wait()
    # Evaluate the model as it will be loaded: rounded and normalized again.
    rounded = load(out, num_tokens=num_tokens, device=device).hmm
    stored = mean_log_likelihood(lumping.lump(rounded), tested, settings.piece_size, worker)
    if run.rank == 0:
        baselines = compare(training, held_out, num_tokens)
        nats = {
            "unigram": baselines.unigram,
            "bigram": baselines.bigram,
            "HMM": stored,
            LM: float(held_out.log_likelihood.sum()) / held_out.num_tokens,
        }
        last = fitted.curve[-1]
        summary = {
            "source": _in_words(config),
            "training_sequences": len(training),
            "training_tokens": training.num_tokens,
            "held_out_sequences": len(held_out),
            "held_out_tokens": held_out.num_tokens,
            "unended_share": _count_truncated(training, held_out, eos_ids),
            "num_states": rounded.num_states,
            "num_tokens": rounded.num_tokens,
            "num_parameters": rounded.num_parameters,
            "nats_per_token": nats,
            "hmm_before_rounding": last.held_out,
            "save_pooled": config.save_pooled,
            "bigram_strength": baselines.strength,
            "steps": last.step,
            "seed": config.seed,
        }
        report(summary, fitted.curve, run, out)
    run.wait()


def _identity(config: DictConfig, given: Sequences | None) -> Identity:
    """Return what determines the result: settings, model files, and files of the records."""
    identity = distill_config.result_settings(config)
    if config.data.path is not None:
        files = Path(config.data.path).expanduser().glob("*.safetensors")
        identity["data_sha256"] = distill_data.digest(sorted(files))
    return identity | weights_of(config.model) | _records_identity(config)


def _records_identity(config: DictConfig) -> dict[str, str]:
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
        top=config.top,
        rank=run.rank,
        world=run.world,
    )
    run.wait()
    return distill_data.read(directory, remedy="remove it, and its answers are sampled again")


def _check_given(config: DictConfig, given: Sequences, num_tokens: int) -> None:
    """Refuse given sequences that can't be used with the model or the settings.

    Causes are tokens outside of the model's vocabulary, too few sequences, and missing next
    distributions if `init` needs them.
    """
    distill_data.check_tokens(given, num_tokens, f"data.path={config.data.path}")
    distill_data.split(given, config.held_out, config.seed)
    if config.init != "random" and not given.answered:
        raise ValueError(
            f"init={config.init} needs the model's next distributions, which data.path="
            f"{config.data.path} doesn't have (it was sampled with top=0): use init=random"
        )


def _initial(
    config: DictConfig, eos_ids: tuple[int, ...], training: Sequences, lumping: Lumping
) -> HMM:
    """Return the initial HMM, over classes of tokens."""
    if config.init == "random":
        return at_random(config.num_states, lumping.num_classes, seed=config.seed)
    if config.init == "latent":
        return _latent(config, eos_ids, training, lumping)
    return _clones(config, eos_ids, training, lumping)


def _clones(
    config: DictConfig, eos_ids: tuple[int, ...], training: Sequences, lumping: Lumping
) -> HMM:
    """Return an HMM of clones of the last tokens of visited prefixes."""
    prefixes = TopTokenPrefixes.of(training, lumping)
    ends = _ends(eos_ids, lumping)
    hmm = clone(prefixes, config.num_states, eos_ids=ends, own=_OWN, seed=config.seed)
    _LOG.info(
        "%d states of %d prefixes; the tokens that are listed after each hold %.2f%% of what the "
        "language model expects",
        hmm.num_states, len(prefixes.read), 100 * (1 - prefixes.rest),
    )  # fmt: skip
    return hmm


def _latent(
    config: DictConfig, eos_ids: tuple[int, ...], training: Sequences, lumping: Lumping
) -> HMM:
    """Return an HMM whose states are clusters of positions with similar sketches."""
    # Clusters need hundreds of vectors each, not all of them.
    if config.latent_sequences is not None and config.latent_sequences < len(training):
        generator = torch.Generator().manual_seed(derive_seed("latent", config.seed))
        shuffled = torch.randperm(len(training), generator=generator)
        training = training.take(shuffled[: config.latent_sequences].sort().values)
    training, vectors = after_each_token(training, eos_ids)
    tokens, lengths = training.lump(lumping).batch(torch.arange(len(training)))
    return distilled(
        vectors,
        tokens,
        lengths,
        config.num_states,
        lumping.num_classes,
        eos_ids=_ends(eos_ids, lumping),
        seed=config.seed,
    )


def _ends(eos_ids: tuple[int, ...], lumping: Lumping) -> tuple[int, ...]:
    """Return the classes of the tokens that end a text."""
    return tuple(sorted({int(lumping.class_of[token]) for token in eos_ids}))


def _training(config: DictConfig) -> Training:
    return Training(**{each.name: config[each.name] for each in fields(Training)})


def _count_truncated(training: Sequences, held_out: Sequences, eos_ids: tuple[int, ...]) -> float:
    """Return the share of sequences that were truncated before EOS."""
    ends = torch.cat([s.tokens[s.lengths.cumsum(0) - 1] for s in (training, held_out)])
    return float((~torch.isin(ends, torch.tensor(eos_ids, dtype=ends.dtype))).double().mean())


def _in_words(config: DictConfig) -> str:
    """Describe the origin of the sequences in a phrase."""
    if config.data.path is not None:
        return f"the sequences of {Path(config.data.path).name}"
    model = title_of(config.model)
    return f"{config.num_sequences} answers of {model} to {SOURCES[config.source].words(config)}"


TASK = ExperimentTask(
    "distill",
    distill_config.DistillConfig,
    distill_config.check,
    _read,
    _identity,
    _run,
    distributed=True,
    kept=("checkpoint", "curve.json"),
)
