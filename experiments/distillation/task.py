"""Distilling an HMM from a language model: sample, fit, compare, report.

    sequences   the LM's own answers to training prompts (distill_sampling), or a file of them
    fit         initialise at random, or by latent variable distillation (hmm.initialize), and train
                by stepwise EM with checkpoints, on one process or many (distill_fit)
    compare     held-out log-likelihood a token beside the LM's, a unigram's, a bigram's

Sampled sequences lie in `runs/sequences-<fingerprint>`, shared by all runs that ask for the same
ones; a run's checkpoint, curve, table and finished model in `runs/distill-<fingerprint>`. Several
processes (`torchrun`) need these directories in common.
"""

from __future__ import annotations

import logging
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf

from experiments.distillation import config as distill_config
from experiments.distillation import data as distill_data
from experiments.distillation import sampling as distill_sampling
from experiments.distillation.baselines import compare
from experiments.distillation.data import Sequences
from experiments.distillation.fit import at_random, fit, from_vectors
from experiments.distillation.report import Result, check_out, report
from experiments.distillation.training import Place, Training, mean_log_likelihood
from experiments.harness.config import fingerprint
from experiments.harness.models import identity_of, load_model, resolve_device
from experiments.harness.processes import processes, wait_for_all
from experiments.harness.run_directory import IDENTITY, refuse_another_run, same_command
from experiments.harness.seeds import derived_seed
from gcd.support.files import write_json
from hmm.checkpoint import ENDS, load, save
from hmm.model import HMM
from smc.transformers_lm import TransformersLM

_LOG = logging.getLogger(__name__)


def run(config: DictConfig) -> Path:
    """One distillation from beginning to end, or from where it stopped; returns its directory.

    Raises:
        ValueError: for settings no run could honour, before anything is sampled.
    """
    distill_config.check(config)
    device = resolve_device(config.model.device)
    identity = _identity(config)
    name = f"distill-{fingerprint(identity)}"
    run_dir = Path(config.run_dir) if config.run_dir else Path("runs") / name
    if config.resume:
        refuse_another_run(run_dir, identity)
    out = Path(config.out).expanduser() if config.out else run_dir / "hmm"
    check_out(out, run_dir)
    given = None if config.data.path is None else distill_data.read(config.data.path)
    if given is not None and config.data.vocab_size is not None:
        lm, tokenizer = None, None
        num_tokens, eos_ids = config.data.vocab_size, tuple(sorted(config.data.eos_ids))
    else:
        lm, tokenizer = load_model(config.model)
        num_tokens, eos_ids = lm.vocabulary.size, lm.vocabulary.eos_ids
    if given is not None:
        distill_data.check_tokens(given, num_tokens, f"data.path={config.data.path}")
        if config.init == "latent" and int(given.prompt_lengths.min()) < 1:
            raise ValueError(
                "init=latent reads each sequence after its prompt, and sequence "
                f"{int(given.prompt_lengths.argmin())} of data.path={config.data.path} has none; "
                "use init=random"
            )
        distill_data.split(given, config.held_out, config.seed)  # refused now, not after hours

    rank, world = _join(device)
    place = Place(run_dir, device, rank, world, 60 * config.save_minutes)
    if rank == 0:
        _open(run_dir, config, identity)
    wait_for_all(world)
    if given is None:
        given = _sampled(config, lm, tokenizer, place)

    def initial(training: Sequences) -> HMM:
        return _initial(config, lm, training, num_tokens, eos_ids)

    settings = _training(config)
    try:
        fitted = fit(given, config.held_out, initial, settings, place, config.stop_after)
    except KeyboardInterrupt:
        again = same_command(config)
        _LOG.warning("interrupted: %s goes on from the checkpoint in %s", again, run_dir)
        raise
    training, held_out = fitted.training, fitted.held_out
    if not fitted.finished:
        if rank == 0:
            step = fitted.state.step
            also = "" if config.resume else " and resume=false"
            print(f"stopped after step {step}; the same command without stop_after{also} goes on")
        return run_dir

    dtype = getattr(torch, config.save_dtype)
    if rank == 0:
        described: dict[str, Any] = {"distilled_from": _source(config)}
        vocabulary = None if lm is None else lm.vocabulary
        if vocabulary is None:
            described[ENDS] = list(eos_ids)
        save(fitted.state.hmm, out, vocabulary=vocabulary, config=described, dtype=dtype)
    wait_for_all(world)
    # What counts is the model that others will load: rounded, and normalised again.
    rounded = load(out, num_tokens=num_tokens, device=device).hmm
    stored = mean_log_likelihood(rounded, held_out, settings.piece_size, place)
    if rank == 0:
        held_out = distill_sampling.with_log_likelihood(lm, held_out, config.sample_batch)
        known = held_out.log_likelihood
        result = Result(
            training=(len(training), training.num_tokens),
            held_out=(len(held_out), held_out.num_tokens),
            unended=_unended(training, held_out, eos_ids),
            curve=fitted.curve,
            stored=stored,
            lm=None if bool(known.isnan().any()) else float(known.sum()) / held_out.num_tokens,
            baselines=compare(training, held_out, num_tokens),
            hmm=rounded,
            source=_source(config),
        )
        report(result, config, run_dir, out, fingerprint(identity))
    wait_for_all(world)
    return run_dir


def _identity(config: DictConfig) -> dict[str, Any]:
    """What determines the result: settings, the model's files, the sequences' or records' file."""
    identity = distill_config.result_settings(config)
    if config.data.path is not None:
        path = Path(config.data.path).expanduser()
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        identity["data_sha256"] = distill_data.digest(files)
    if config.data.vocab_size is None:
        identity["model_files"] = identity_of(config.model.path)
    return identity | _records_identity(config)


def _records_identity(config: DictConfig) -> dict[str, str]:
    if config.records.path is None:
        return {}
    path = Path(config.records.path).expanduser()
    if not path.is_file():
        raise ValueError(f"records.path={config.records.path} does not exist")
    return {"records_sha256": distill_data.digest([path])}


def _join(device: torch.device) -> tuple[int, int]:
    """Rank and number of processes; NCCL carries what lies on GPUs, gloo the rest."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized() and device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(days=7))
    return processes()


def _open(run_dir: Path, config: DictConfig, identity: dict[str, Any]) -> None:
    """Make the directory and note whose it is; without `resume`, what was trained there goes."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        shutil.rmtree(run_dir / "checkpoint", ignore_errors=True)
        (run_dir / "curve.json").unlink(missing_ok=True)
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)
    write_json(identity, run_dir / IDENTITY, sort_keys=True)


def _sampled(
    config: DictConfig, lm: TransformersLM | None, tokenizer: Any, place: Place
) -> Sequences:
    """The LM's answers, sampled now as far as they are not there."""
    assert lm is not None
    settings = distill_config.sampling_settings(config)
    settings |= {"model_files": identity_of(config.model.path)} | _records_identity(config)
    directory = place.directory.parent / f"sequences-{fingerprint(settings)}"
    prompts = distill_sampling.prompts_of(
        config.records,
        config.style,
        config.model.prompt,
        config.num_sequences,
        config.seed,
        tokenizer,
    )
    try:
        distill_sampling.sample_to(
            directory,
            lm,
            prompts,
            config.num_sequences,
            max_length=config.max_length,
            batch=config.sample_batch,
            seed=config.seed,
            rank=place.rank,
            world=place.world,
        )
    except KeyboardInterrupt:
        _LOG.warning("interrupted: the same command goes on from the answers in %s", directory)
        raise
    wait_for_all(place.world)
    return distill_data.read(directory, remedy="remove it, and its answers are sampled again")


def _initial(
    config: DictConfig,
    lm: TransformersLM | None,
    training: Sequences,
    num_tokens: int,
    eos_ids: tuple[int, ...],
) -> HMM:
    monarch = distill_config.monarch_of(config)
    if config.init == "random":
        return at_random(config.num_states, num_tokens, seed=config.seed, monarch=monarch)
    assert lm is not None
    # Groups of hidden states need hundreds of vectors each, not those of every sequence.
    if config.latent_sequences is not None and config.latent_sequences < len(training):
        generator = torch.Generator().manual_seed(derived_seed("latent", config.seed))
        shuffled = torch.randperm(len(training), generator=generator)
        training = training.take(shuffled[: config.latent_sequences].sort().values)
    vectors = distill_sampling.hidden_states(lm, training, config.sample_batch)
    return from_vectors(
        vectors,
        training,
        config.num_states,
        num_tokens,
        eos_ids=eos_ids,
        monarch=monarch,
        iterations=config.kmeans_iterations,
        seed=config.seed,
    )


def _training(config: DictConfig) -> Training:
    return Training(
        epochs=config.epochs,
        steps=config.steps,
        full_steps=config.full_steps,
        batch_size=config.batch_size,
        piece_size=config.piece_size,
        step_decay=config.step_decay,
        pseudo_count=config.pseudo_count,
        emission_pseudo_count=config.emission_pseudo_count,
        dropout=config.dropout,
        evaluations=config.evaluations,
        seed=config.seed,
    )


def _unended(training: Sequences, held_out: Sequences, eos_ids: tuple[int, ...]) -> float:
    """Share of the sequences that were cut before their end-of-sequence token."""
    ends = torch.cat([s.tokens[s.lengths.cumsum(0) - 1] for s in (training, held_out)])
    return float((~torch.isin(ends, torch.tensor(eos_ids, dtype=ends.dtype))).double().mean())


def _source(config: DictConfig) -> str:
    """What the sequences are, in words."""
    if config.data.path is not None:
        return f"the sequences of {Path(config.data.path).name}"
    kind = config.records.path or config.records.hub or "the generator's training requests"
    styles = "JSON and Python" if config.style == "both" else config.style
    model = "the embedded language model" if config.model.path == "embedded" else config.model.path
    return f"{config.num_sequences} answers of {model} to {kind}, {styles} style"
