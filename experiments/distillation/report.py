"""Report of a distillation: a table, a curve, and the same figures in wandb."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.distillation.training import Point
from experiments.tasks import Run
from experiments.tracking import log_shown, log_summary

if TYPE_CHECKING:
    import wandb

LM = "language model, reading the prompt"
"""Name of the language model in tables."""


def report(summary: dict[str, Any], curve: Sequence[Point], run: Run) -> None:
    """Write, print and log the results.

    Args:
        summary: plain values, including `nats_per_token`: held-out log-likelihoods by model; the
            last two are the saved HMM and the language model.
        curve: held-out log-likelihood per token during training.
        run: the run, whose directory has the model.
    """
    table = table_of(summary)
    figure = run.directory / "curve.png"
    plot_curve(summary["nats_per_token"], curve, figure)

    def log(tracked: wandb.Run) -> None:
        for point in curve:
            values = {"epoch": point.epoch, "nats/held_out": point.held_out}
            if point.training is not None:
                values["nats/training"] = point.training
            tracked.log(values, step=point.step)
        shown = [
            {"model": m, "nats per token": f"{v:.4f}"} for m, v in summary["nats_per_token"].items()
        ]
        log_shown(tracked, {"table": shown}, {"curve": figure})
        log_summary(tracked, summary)

    run.report(table, summary, log, files=("curve.png",), also=f"; the model: {run.directory}/hmm/")


def table_of(summary: dict[str, Any]) -> str:
    """Format the comparison in Markdown."""
    lines = [
        f"## Evaluation on {summary['held_out_sequences']} held-out sequences "
        f"({summary['held_out_tokens']} tokens)",
        "",
        "| model | log-likelihood, nats per token | perplexity | difference from the unigram |",
        "|---|---:|---:|---:|",
    ]
    nats = summary["nats_per_token"]
    floor = nats["unigram"]
    for name, value in nats.items():
        lines.append(f"| {name} | {value:.4f} | {_perplexity(value)} | {value - floor:+.4f} |")
    lines += [
        "",
        f"The sequences are {summary['source']}. {summary['training_sequences']} of them "
        f"({summary['training_tokens']} tokens) were used for training, and those to other prompts "
        f"were held out. {summary['unended_share']:.1%} were cut off before the end-of-sequence "
        "token, which counts as a token. The HMM, the unigram and the bigram don't see the prompt; "
        "the language model does.",
        "",
        f"The HMM has {summary['num_states']} states and {summary['num_parameters']} parameters, "
        f"and is evaluated as saved in bfloat16.{_describe_pooling(summary)} The unigram has "
        f"one half added to each count. The bigram has {summary['bigram_strength']:g} times the "
        "unigram's probabilities added to its counts, the best power of two on the held-out "
        "sequences.",
        "",
    ]
    return "\n".join(lines)


def _describe_pooling(summary: Mapping[str, Any]) -> str:
    most = summary["save_pooled"]
    if most is None:
        return ""
    return (
        f" Tokens that were seen at most {most} times have the mean emissions of all tokens that "
        "were seen equally often. (Before this and before rounding, the log-likelihood was "
        f"{summary['hmm_before_rounding']:.4f}.)"
    )


def _perplexity(value: float) -> str:
    return f"{math.exp(-value):.2f}" if value > -700 else "inf"


def plot_curve(nats: Mapping[str, float], curve: Sequence[Point], path: Path) -> None:
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
