"""Distillation of an HMM from a language model: sample, train, compare, report.

    sequences   sample the language model's answers to a task's prompts (`prompts`, `sampling`)
    train       initialize by latent variable distillation (hmm.initialize) or with clones of
                tokens (`clones`), and train by stepwise EM with checkpoints, in one or several
                processes (`training`)
    compare     held-out log-likelihood per token of the HMM, the language model, a unigram and a
                bigram

Sampled sequences are in `runs/sequences-<fingerprint>`, which runs with the same sampling share.
Checkpoint, curve, table and model of a run are in `runs/distill-<fingerprint>`. Several processes
(`torchrun`) need both directories on a shared file system.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from experiments.commongen.task import TOLD
from experiments.config import (
    DataConfig,
    WandbConfig,
    at_least,
    check_model,
    inside,
    one_of,
    refuse_unused,
)
from experiments.distillation import data as distill_data
from experiments.distillation import sampling as distill_sampling
from experiments.distillation.clones import FEWEST_STATES, clone
from experiments.distillation.data import Sequences, lumping_of
from experiments.distillation.lumping import Lumping, pool_rare
from experiments.distillation.prefixes import TopTokenPrefixes, after_each_token
from experiments.distillation.prompts import SOURCES
from experiments.distillation.training import (
    Point,
    Schedule,
    Trained,
    Worker,
    mean_log_likelihood,
    train,
)
from experiments.models import ModelConfig, load_model, resolve_device, title_of, weights_of
from experiments.results import write_results
from experiments.tables import as_markdown
from experiments.tasks import (
    ExperimentTask,
    Identity,
    Run,
    derive_seed,
    fingerprint,
    plain,
    wait_for_all,
    without_places,
)
from experiments.tool_calling.task import STYLES
from hmm import HMM, distilled, load, save
from smc import TransformersLM

_LOG = logging.getLogger(__name__)
_OWN = 0.05  # share of the states; with more, EM improves clones less (docs/distillation.md)
_LATENT = 4000  # sequences; clusters need hundreds of vectors each, not all of them
_TOP = 64  # tokens kept of what the language model says at each prefix
INITS = ("clones", "latent")
LM = "language model, reading the prompt"
"""Name of the language model in tables."""


@dataclass
class DistillConfig:
    """Configuration of one distillation."""

    # Training data.
    source: str = "xlam"  # task whose prompts are answered: "xlam", "json_schema", "commongen", ...
    records: DataConfig = field(default_factory=DataConfig)  # requests to answer
    model: ModelConfig = field(default_factory=ModelConfig)
    style: str = "json"  # with source=xlam: "json", "python", "both" (each request twice)
    # With source=commongen: concepts that prompts name, in turn: "all", "some", "none"
    told: list[str] = field(default_factory=lambda: ["all"])
    num_sequences: int = 20000  # to sample, including held-out sequences
    answers_per_prompt: int = 1  # minimum; more if there are fewer prompts
    max_length: int = 128  # tokens of an answer, EOS included; longer answers are truncated
    sample_batch: int = 64  # answers per sampling batch
    held_out: float = 0.05  # share of the prompts whose answers are held out

    # The HMM and its training.
    num_states: int = 512
    init: str = "clones"  # of tokens, by sketches of the LM's logits; or "latent": their k-means
    epochs: int = 10  # passes over the data, the first and the last in full batches;
    # 0: none, the model stays as `init` made it
    batch_size: int = 256  # sequences of a mini-batch
    save_pooled: int | None = None  # tokens seen at most this often share their emissions

    # The run.
    wandb: WandbConfig = field(default_factory=WandbConfig)
    seed: int = 0
    run_dir: str | None = None  # default: runs/distill-<fingerprint>
    resume: bool = True  # continue an earlier run in the same directory


_SAMPLING = (
    "source", "records", "style", "told", "num_sequences", "answers_per_prompt", "max_length",
    "sample_batch", "seed",
)  # fmt: skip
_NOT_IDENTITY = ("save_pooled", "wandb", "run_dir", "resume")


def register() -> None:
    """Register the dataclass with Hydra under the name that `configs/distill_hmm.yaml` uses."""
    ConfigStore.instance().store(name="base_distill", node=DistillConfig)


def _result_settings(config: DictConfig) -> Identity:
    """Return the settings that determine the model: without logging and device."""
    values = {k: v for k, v in plain(config).items() if k not in _NOT_IDENTITY}
    values["records"].pop("max_skipped")
    for key in ("device", "device_map", "prompt_mib", "adapter"):
        values["model"].pop(key)
    return values


def _sampling_settings(config: DictConfig) -> Identity:
    """Return the settings that determine the sampled sequences, which runs can share."""
    values = _result_settings(config)
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
    check_model(config)
    for key in ("max_length", "sample_batch", "batch_size", "answers_per_prompt"):
        at_least(key, config[key], 1)
    for key in ("save_pooled", "records.offset"):
        at_least(key, OmegaConf.select(config, key), 0)
    at_least("num_sequences", config.num_sequences, 2)
    at_least("num_states", config.num_states, FEWEST_STATES)
    if config.epochs != 0:
        at_least("epochs (the first and the last in full batches)", config.epochs, 2)
    inside("held_out", config.held_out, "(0, 1)", 0 < config.held_out < 1)
    share = config.records.max_skipped
    inside("records.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    if config.init == "latent" and importlib.util.find_spec("faiss") is None:
        raise ValueError(
            "init=latent clusters with faiss, which is not installed: "
            "`pip install -c requirements/constraints.txt -e '.[experiments,distillation]'`, or "
            "use init=clones"
        )
    if config.records.path and config.records.hub:
        raise ValueError("expected records.path or records.hub, got both; leave one out")
    if config.epochs == 0:
        reason = "with epochs=0 there is no training; leave it out"
        refuse_unused(config, DistillConfig, ("batch_size",), reason)
    others = {key for source in SOURCES.values() for key in source.settings}
    others -= {*SOURCES[config.source].settings}
    reason = f"source={config.source} does not read it; leave it out"
    refuse_unused(config, DistillConfig, tuple(sorted(others)), reason)
    SOURCES[config.source].check(config)


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
    wait_for_all(run.world)
    _evaluate(run, worker, lumping, fitted, training, held_out, eos_ids)
    wait_for_all(run.world)


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
    _report(summary, fitted.curve, run)


def _identity(config: DictConfig, _: None) -> Identity:
    """Return what determines the result: settings, model files, and files of the records."""
    identity = _result_settings(config)
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
    settings = _sampling_settings(config)
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
    wait_for_all(run.world)
    return distill_data.read(directory, remedy="remove it, and its answers are sampled again")


def _initial(
    config: DictConfig, eos_ids: tuple[int, ...], training: Sequences, lumping: Lumping
) -> HMM:
    """Return the initial HMM, over classes of tokens."""
    ends = tuple(sorted({int(lumping.class_of[token]) for token in eos_ids}))
    if config.init == "clones":
        prefixes = TopTokenPrefixes.of(training, lumping)
        hmm = clone(prefixes, config.num_states, eos_ids=ends, own=_OWN, seed=config.seed)
        _LOG.info(
            "%d states of %d prefixes; the tokens that are listed after each hold %.2f%% of what "
            "the language model expects",
            hmm.num_states, len(prefixes.read), 100 * (1 - prefixes.rest),
        )  # fmt: skip
        return hmm
    if len(training) > _LATENT:
        generator = torch.Generator().manual_seed(derive_seed("latent", config.seed))
        shuffled = torch.randperm(len(training), generator=generator)
        training = training.take(shuffled[:_LATENT].sort().values)
    training, vectors = after_each_token(training, eos_ids)
    tokens, lengths = training.lump(lumping).batch(torch.arange(len(training)))
    return distilled(
        vectors, tokens, lengths, config.num_states, lumping.num_classes, eos_ids=ends,
        seed=config.seed,
    )  # fmt: skip


def _in_words(config: DictConfig) -> str:
    """Describe the origin of the sequences in a phrase."""
    records = Path(config.records.path or config.records.hub or "").name
    settings = [f"{key}={config[key]}" for key in SOURCES[config.source].settings]
    prompts = ", ".join(filter(None, [f"prompts of {config.source}", records, *settings]))
    return f"{config.num_sequences} answers of {title_of(config.model)} to {prompts}"


# -- baselines: a smoothed unigram and bigram model of the same sequences
#
#     unigram    P(v)     = (n(v) + 1/2) / (n + V/2)
#     bigram     P(v | u) = (n(u, v) + m P(v)) / (n(u, ·) + m)
#
# n counts tokens of the training sequences. The first token of a sequence follows a special start
# symbol u. m is the number of pseudo-observations of the unigram (a Dirichlet prior, MacKay and
# Peto 1995). It is the best power of two *on the held-out sequences themselves*, which favors the
# bigram. Only pairs that occur are stored, so the vocabulary's size doesn't matter.

STRENGTHS = tuple(2.0**k for k in range(-6, 17))


def unigram(sequences: Sequences, num_tokens: int) -> Tensor:
    """Estimate P(v) in float64, positive everywhere."""
    counts = torch.bincount(sequences.tokens, minlength=num_tokens).double() + 0.5
    return counts / counts.sum()


@dataclass(frozen=True)
class Baselines:
    """Held-out log-likelihood of both baselines, in nats per token.

    Attributes:
        unigram: nats per token of the unigram model.
        bigram: nats per token of the bigram model.
        strength: m of the bigram model.
    """

    unigram: float
    bigram: float
    strength: float


def compare(training: Sequences, held_out: Sequences, num_tokens: int) -> Baselines:
    """Train both baselines on one part of the sequences, and evaluate them on the other."""
    single = unigram(training, num_tokens)
    context, seen = _contexts(training, num_tokens), training.tokens
    pairs, counts = torch.unique(context * num_tokens + seen, return_counts=True)
    totals = torch.bincount(context, minlength=num_tokens + 1).double()

    context = _contexts(held_out, num_tokens)
    wanted = context * num_tokens + held_out.tokens
    indices = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
    count = torch.where(pairs[indices] == wanted, counts[indices], 0).double()
    total, prior = totals[context], single[held_out.tokens]
    best, strength = -math.inf, STRENGTHS[0]
    for m in STRENGTHS:
        mean = float(((count + m * prior) / (total + m)).log().mean())
        if mean > best:
            best, strength = mean, m
    return Baselines(float(prior.log().mean()), best, strength)


def _contexts(sequences: Sequences, num_tokens: int) -> Tensor:
    """Return the token before each token; for the first of a sequence, the number `num_tokens`."""
    before = sequences.tokens.roll(1)
    before[sequences.lengths.cumsum(0) - sequences.lengths] = num_tokens
    return before


# -- report


def _report(summary: dict[str, Any], curve: Sequence[Point], run: Run) -> None:
    """Write, print and log the results.

    Args:
        summary: plain values, including `nats_per_token`: held-out log-likelihoods by model; the
            last two are the saved HMM and the language model.
        curve: held-out log-likelihood per token during training.
        run: the run, whose directory has the model.
    """
    nats = summary["nats_per_token"]
    shown = [
        {
            "model": name,
            "log-likelihood, nats per token": f"{value:.4f}",
            "perplexity": f"{math.exp(-value):.2f}" if value > -700 else "inf",
            "difference from the unigram": f"{value - nats['unigram']:+.4f}",
        }
        for name, value in nats.items()
    ]
    figure = run.directory / "curve.png"
    _plot_curve(nats, curve, figure)

    history = [
        {"epoch": p.epoch, "nats/held_out": p.held_out}
        | ({} if p.training is None else {"nats/training": p.training})
        for p in curve
    ]
    text = _REPORT.format(table=as_markdown(shown), pooling=_describe_pooling(summary), **summary)
    write_results(
        run, text, summary, tables={"table": shown}, figures={"curve": figure}, numbers=summary,
        history=history, also=f"; the model: {run.directory}/hmm/",
    )  # fmt: skip


_REPORT = """## Evaluation on {held_out_sequences} held-out sequences ({held_out_tokens} tokens)

{table}

The sequences are {source}. {training_sequences} of them ({training_tokens} tokens) were used for
training, and those to other prompts were held out. {unended_share:.1%} were cut off before the
end-of-sequence token, which counts as a token. The HMM, the unigram and the bigram don't see the
prompt; the language model does.

The HMM has {num_states} states and {num_parameters} parameters, and is evaluated as saved in
bfloat16.{pooling} The unigram has one half added to each count. The bigram has
{bigram_strength:g} times the unigram's probabilities added to its counts, the best power of two on
the held-out sequences.
"""


def _describe_pooling(summary: Mapping[str, Any]) -> str:
    most = summary["save_pooled"]
    if most is None:
        return ""
    return (
        f" Tokens that were seen at most {most} times have the mean emissions of all tokens that "
        "were seen equally often. (Before this and before rounding, the log-likelihood was "
        f"{summary['hmm_before_rounding']:.4f}.)"
    )


def _plot_curve(nats: Mapping[str, float], curve: Sequence[Point], path: Path) -> None:
    """Plot held-out log-likelihood against passes over the data, with the other models."""
    # Importing matplotlib takes half a second.
    from matplotlib.figure import Figure

    from experiments.figures import plain

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    epochs = [point.epoch for point in curve]
    held_out = [point.held_out for point in curve]
    axes.plot(epochs, held_out, marker="o", markersize=3, color="#009E73", label="HMM, held out")
    trained = [(p.epoch, p.training) for p in curve if p.training is not None]
    if trained:
        x, y = zip(*trained, strict=True)
        axes.plot(x, y, linewidth=1, color="#999999", label="HMM, its batch before the step")
    colors = {"unigram": "#D55E00", "bigram": "#0072B2"}
    for name, value in nats.items():
        if name != "HMM":
            axes.axhline(value, linestyle="--", color=colors.get(name, "black"), label=name)
    axes.set(xlabel="passes over the training sequences", ylabel="log-likelihood, nats per token")
    # Random parameters are far below everything else and would compress the other curves.
    lowest = min([nats["unigram"], *held_out[1:2]])
    highest = max(nats.values())
    axes.set_ylim(lowest - 0.1 * (highest - lowest + 0.1), None)
    plain(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


TASK = ExperimentTask(
    "distill",
    DistillConfig,
    check,
    lambda config: None,
    _identity,
    _run,
    distributed=True,
    kept=("checkpoint", "curve.json"),
)
