"""The report of a distillation: a table, a curve, a model card, and the same figures in wandb."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import wandb
from omegaconf import DictConfig, OmegaConf

from experiments.distillation import config as distill_config
from experiments.distillation.baselines import Baselines
from experiments.distillation.training import Point
from experiments.harness.checks import writable
from experiments.harness.command import to_repeat
from experiments.harness.figures import plain, plt
from experiments.harness.run import Run
from experiments.harness.tracking import log_summary
from gcd.support.files import read_json
from hmm.checkpoint import CONFIG, WEIGHTS
from hmm.model import HMM
from hmm.transition import Dense

CARD = "README.md"
_TAGS = "tags: [hidden-markov-model, distillation]"  # a card that has them is one of ours


@dataclass(frozen=True)
class Result:
    """The outcome of a distillation, as it is reported.

    Attributes:
        training, held_out: number of sequences and of tokens.
        unended: share of all sequences without an end-of-sequence token.
        curve: held-out log-likelihood a token while training.
        stored: that of the finished model as it was saved, rounded.
        lm: the language model's own, prompts read; None where nothing is known of it.
        baselines: those of unigram and bigram.
        hmm: the model as it was saved.
        source: what the sequences are.
    """

    training: tuple[int, int]
    held_out: tuple[int, int]
    unended: float
    curve: list[Point]
    stored: float
    lm: float | None
    baselines: Baselines
    hmm: HMM
    source: str

    @property
    def rows(self) -> list[tuple[str, float]]:
        """The models and their held-out log-likelihood a token, the best last."""
        rows = [
            ("unigram", self.baselines.unigram),
            ("bigram", self.baselines.bigram),
            ("HMM", self.stored),
        ]
        return rows if self.lm is None else [*rows, ("language model, reading the prompt", self.lm)]


def check_out(out: Path, run_dir: Path) -> None:
    """Check before hours of training that the model can be written to `out`, destroying nothing.

    Raises:
        ValueError: the directory cannot be made or written to, or holds what is not a model of ours
            that may be replaced.
    """
    if out.resolve() == run_dir.resolve():
        raise ValueError(f"out={out} is the run's own directory: give another, or leave it out")
    writable("the model", "out", out)
    if not out.exists():
        return
    names = {path.name.removesuffix(".part") for path in out.iterdir()}
    foreign = sorted(names - {WEIGHTS, CONFIG, CARD})
    described, card = out / CONFIG, out / CARD
    if described.is_file() and "format" not in read_json(described, remedy="remove it"):
        foreign.append(CONFIG)
    if card.is_file() and _TAGS not in card.read_text(encoding="utf-8", errors="replace"):
        foreign.append(CARD)
    if foreign:
        raise ValueError(
            f"{out} holds files that are not of a distilled HMM ({', '.join(foreign[:5])}), and "
            f"the model would have its own {CARD} and {CONFIG} there: give an empty directory with "
            "out=DIR"
        )


def report(result: Result, run: Run, out: Path) -> None:
    """Write, print and log the results, and put the card beside the model in `out`."""
    config = run.config
    table = table_of(result, config.save_dtype)
    figure = run.directory / "curve.png"
    plot_curve(result, figure)
    summary = {
        "source": result.source,
        "training_sequences": result.training[0],
        "training_tokens": result.training[1],
        "held_out_sequences": result.held_out[0],
        "held_out_tokens": result.held_out[1],
        "unended_share": result.unended,
        "num_states": result.hmm.num_states,
        "num_tokens": result.hmm.num_tokens,
        "num_parameters": result.hmm.num_parameters,
        "nats_per_token": dict(result.rows),
        "hmm_before_rounding": result.curve[-1].held_out,
        "bigram_strength": result.baselines.strength,
        "steps": result.curve[-1].step,
        "seed": config.seed,
    }
    (out / CARD).write_text(card(result, config, out, table), encoding="utf-8")

    def log(tracked: wandb.Run) -> None:
        for point in result.curve:
            values = {"epoch": point.epoch, "nats/held_out": point.held_out}
            if point.training is not None:
                values["nats/training"] = point.training
            tracked.log(values, step=point.step)
        shown = pd.DataFrame(result.rows, columns=["model", "nats a token"])
        tracked.log({"table": wandb.Table(dataframe=shown), "curve": wandb.Image(str(figure))})
        log_summary(tracked, summary)

    run.report(table, summary, log, files=("curve.png",), also=f"; the model: {out}/")


def table_of(result: Result, dtype: str) -> str:
    """Write the comparison in Markdown."""
    lines = [
        f"## Held out: {result.held_out[0]} sequences, {result.held_out[1]} tokens",
        "",
        "| model | log-likelihood, nats a token | perplexity | above the unigram |",
        "|---|---:|---:|---:|",
    ]
    floor = result.baselines.unigram
    for name, value in result.rows:
        lines.append(f"| {name} | {value:.4f} | {_perplexity(value)} | {value - floor:+.4f} |")
    if result.lm is None:
        lines.append("| language model | not known | | |")
    lines += [
        "",
        f"Sequences: {result.source}; {result.training[0]} of them ({result.training[1]} tokens) "
        f"for training, those of other prompts held out; {result.unended:.1%} have no "
        "end-of-sequence token. Tokens include it. The HMM, the unigram and the bigram do not see "
        "the prompt; the language model does. "
        f"HMM: {result.hmm.num_states} states, {result.hmm.num_parameters} parameters, as saved in "
        f"{dtype}. Unigram: counts plus one half. Bigram: counts plus "
        f"{result.baselines.strength:g} times the unigram, the best power of two on the held-out "
        "sequences themselves.",
        "",
    ]
    return "\n".join(lines)


def _perplexity(value: float) -> str:
    return f"{math.exp(-value):.2f}" if value > -700 else "inf"


def card(result: Result, config: DictConfig, out: Path, table: str) -> str:
    """Write the README of the model."""
    kind = "dense" if isinstance(result.hmm.transition, Dense) else "Monarch"
    megabytes = (out / WEIGHTS).stat().st_size / 1e6
    last = result.curve[-1]
    return f"""---
license: apache-2.0
{_TAGS}
---

# A hidden Markov model of a language model's answers

{result.hmm.num_states} states, {kind} transitions, {result.hmm.num_tokens} tokens,
{megabytes:.1f} MB in {config.save_dtype}.
Distilled from {result.source}.

    import smc
    from hmm.checkpoint import load
    hmm = load("{out}", vocabulary=lm.vocabulary).hmm  # lm: the model's `smc.TransformersLM`
    proposal = smc.PGCD(hmm, lookahead="in_time")  # for models that read prompts

It is for the tokenizer of the model named here and no other, and sees generated tokens only, never
a prompt.

{table.replace("## ", "## How good it is. ", 1)}
## How it was made

    {command(config)}

{_training(config, last)}
"""


def _training(config: DictConfig, last: Point) -> str:
    begun = _INITIALS[config.init]
    if last.step == 0:
        return f"No training: the parameters are those of\n{begun}."
    return f"""Stepwise expectation-maximisation: {last.step} steps, {last.epoch:.1f} passes, from
{begun}.
Pseudo-counts {config.pseudo_count:g} for each initial and transition entry and, in proportion to
the tokens' frequencies, {config.emission_pseudo_count:g} for the emissions of each state; token
dropout {config.dropout:g}."""


_INITIALS = {
    "random": "random parameters",
    "latent": "latent variable distillation (k-means of the language model's last hidden states, "
    "or logits)",
    "clones": "clones of tokens (k-means of the language model's logits after prefixes; averages\n"
    "of what it says there as parameters)",
}


def command(config: DictConfig) -> str:
    """Give the command that makes this model again, with every setting that is not the default."""
    default = distill_config.result_settings(OmegaConf.structured(distill_config.DistillConfig()))
    given = {**distill_config.result_settings(config), "save_dtype": config.save_dtype}
    usual = {**default, "save_dtype": distill_config.DistillConfig.save_dtype}
    return to_repeat("scripts.distill_hmm", given, usual)


def plot_curve(result: Result, path: Path) -> None:
    """Draw held-out log-likelihood against passes over the data, beside that of other models."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    epochs = [point.epoch for point in result.curve]
    held_out = [point.held_out for point in result.curve]
    axes.plot(epochs, held_out, marker="o", markersize=3, color="#009E73", label="HMM, held out")
    trained = [(p.epoch, p.training) for p in result.curve if p.training is not None]
    if trained:
        x, y = zip(*trained, strict=True)
        axes.plot(x, y, linewidth=1, color="#999999", label="HMM, its batch before the step")
    colours = {"unigram": "#D55E00", "bigram": "#0072B2"}
    for name, value in result.rows:
        if name != "HMM":
            axes.axhline(value, linestyle="--", color=colours.get(name, "black"), label=name)
    axes.set(xlabel="passes over the training sequences", ylabel="log-likelihood, nats a token")
    # Random parameters are far below everything else, and would flatten the rest.
    lowest = min([result.baselines.unigram, *held_out[1:2]])
    highest = max(value for _, value in result.rows)
    axes.set_ylim(lowest - 0.1 * (highest - lowest + 0.1), None)
    plain(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
