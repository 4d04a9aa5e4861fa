"""Loading of a language model, and sampling from it under a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from safetensors import SafetensorError

import gcd
import smc
from gcd._support.optional import missing
from gcd_cli._sources import BadInput

PROPOSALS: dict[str, Callable[[], smc.Proposal[Any]]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "greedy_close": smc.GreedyClose,
}


def draw(
    model: str,
    language: gcd.Automaton,
    automaton: gcd.TokenAutomaton,
    *,
    prompt: str,
    proposal: str,
    hmm: str | None,
    max_tokens_read: int,
    **settings: Any,
) -> smc.Posterior:
    """Sample answers to a prompt from a causal model of `transformers`, as `smc.sample` does."""
    # The HMM is loaded before the language model, so that an HMM over another vocabulary is refused
    # at once.
    method = PROPOSALS[proposal]() if hmm is None else _pgcd(hmm, automaton.vocabulary)
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise BadInput(str(missing("transformers", "cli", "`gcd sample`"))) from error

    logging.disable_progress_bar()
    try:
        network = AutoModelForCausalLM.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"expected a model that transformers can load, got {model} ({cause}); pass another one"
        ) from error
    lm = smc.TransformersLM(network, tokenizer)
    if lm.vocabulary != automaton.vocabulary:  # which was read from the files only
        automaton = gcd.lift(language, lm.vocabulary)
    hooks = smc.Hooks(max_tokens_read=max_tokens_read)
    (posterior,) = smc.sample(lm, [prompt], automaton, proposal=method, hooks=hooks, **settings)
    return posterior


def draw_from_server(
    url: str,
    constraint: dict[str, Any],
    vocabulary: gcd.Vocabulary,
    *,
    prompt: str,
    **settings: Any,
) -> smc.Posterior:
    """Sample answers to a prompt from a vLLM server, as `gcd_vllm.sample_from_server` does."""
    from gcd_vllm import EngineStoppedError, sample_from_server

    try:
        (posterior,) = sample_from_server(
            url, [prompt], constraint, vocabulary=vocabulary, **settings
        )
    except EngineStoppedError as error:
        raise BadInput(str(error)) from error
    return posterior


def report(posterior: smc.Posterior) -> dict[str, Any]:
    """Return the fields of the command's JSON output for a posterior."""
    found = posterior.reliability
    effect = posterior.budget
    return {
        "answers": [
            {"text": text, "probability": probability, "error": error, "interval": interval}
            for text, probability, error, interval in zip(
                posterior.texts,
                posterior.probabilities,
                found.probability_errors,
                posterior.intervals or [None] * len(posterior.texts),
                strict=True,
            )
        ],
        "fields": _fields(posterior),
        "certified": posterior.certified,
        "log_evidence": None if posterior.dead else posterior.log_evidence,
        "log_evidence_error": None if posterior.dead else found.log_evidence_error,
        "algorithm": posterior.algorithm,
        "reliability": found.label,
        "advice": found.advice,
        "ess": found.ess,
        "valid": posterior.valid,
        "complete": posterior.complete,
        "read_on": posterior.diagnostics.read_on,
        "lm_calls": posterior.diagnostics.lm_calls,
        "seconds": posterior.diagnostics.seconds,
        "budget": None
        if effect is None
        else {"removed": effect.removed, "sufficient": smc.sufficient_budget(posterior)},
        "stopped": posterior.stopped,
        "overrun": posterior.diagnostics.overrun,
    }


def _fields(posterior: smc.Posterior) -> dict[str, Any]:
    """Return `Posterior.fields`, whose keys are JSON pointers; empty if answers aren't JSON."""
    try:
        return {pointer: asdict(field) for pointer, field in posterior.fields().items()}
    except ValueError:
        return {}


def lines_of(found: dict[str, Any], budget: int) -> list[tuple[str, str]]:
    """Format a report: answers, fields, the evidence, and their reliability."""
    lines = [(format_estimate(each), each["text"]) for each in found["answers"]] or [
        ("none", "no answer was completed within the budget")
    ]
    lines += field_lines(found["fields"])
    evidence, error = found["log_evidence"], found["log_evidence_error"]
    spread = f" +- {error:.2g}" if error and math.isfinite(error) else ""
    shown = "zero" if evidence is None else f"e^({evidence:.3f}{spread})"
    lines.append(("", f"P(valid and within {budget} tokens) is about {shown}"))
    if found["certified"] is not None:
        certified = math.floor(1000 * found["certified"]) / 1000
        lines.append(("", f"found at least {certified:.3f} of the posterior with certainty"))
    if found["budget"] is not None:
        lines.append(("", _effect(found["budget"])))
    if found["stopped"] is not None:
        late = f", which was missed by {found['overrun']:.2f} s" if found["overrun"] else ""
        lines.append(("", f"answers were shortened to end by the deadline{late}"))
    lines.append(("", f"{found['reliability']}: {found['advice']}"))
    return lines


def _effect(budget: dict[str, Any]) -> str:
    """Describe, in a sentence, how much probability the budget removed."""
    if not budget["removed"]:
        return "the budget removed nothing of the probability that was seen"
    return (
        f"the budget removed about {budget['removed']:.3f} of the probability; "
        f"{budget['sufficient']} tokens would remove nothing along the answers that were found"
    )


def field_lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Format the scalar values of each field, with their probabilities, as lines."""
    lines = []
    for pointer, field in fields.items():
        values = [(each["value"], each) for each in field["values"] if each["value"][0] not in "[{"]
        if not pointer or not values:
            continue
        if field["absent"] > 0:
            absent = {
                "probability": field["absent"],
                "error": field["absent_error"],
                "interval": field["absent_interval"],
            }
            values.append(("(absent)", absent))
        lines += [(format_estimate(each), f"{pointer} {value}") for value, each in values]
    return lines


def format_estimate(found: dict[str, Any]) -> str:
    """Format a probability, its standard error and its guaranteed interval, rounded outward."""
    shown = f"{found['probability']:.3f} +- {found['error']:.3f}"
    if found["interval"] is None:
        return shown
    low, high = found["interval"]
    return f"{shown} ({math.floor(1000 * low) / 1000:.3f} to {math.ceil(1000 * high) / 1000:.3f})"


def _pgcd(directory: str, vocabulary: gcd.Vocabulary) -> smc.Proposal[Any]:
    """Return P-GCD with the HMM of a directory, which doesn't see the prompt."""
    from hmm import load

    return smc.PGCD(load(directory, vocabulary=vocabulary).hmm, lookahead="in_time")
