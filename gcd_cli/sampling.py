"""Loading of a language model, and sampling from it under a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from safetensors import SafetensorError

import gcd
import smc
from gcd_cli.sources import BadInput

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
    budget: int,
    particles: int,
    proposal: str,
    algorithm: str,
    seed: int,
    hmm: str | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Sample answers to a prompt; return their probabilities and diagnostics.

    Args:
        model: a causal model of `transformers` by directory or hub name, with its tokenizer.
        language: the constraint over bytes, used if the model's vocabulary differs from the one
            that
            `automaton` was lifted to.
        automaton: the constraint over tokens.
        prompt, budget, particles, algorithm, seed, deadline: as in `smc.sample`.
        proposal: a key of `PROPOSALS`, or pgcd.
        hmm: the directory of an HMM, for pgcd. Its lookahead is limited by the available time
            ("in_time"), because the HMM has not been conditioned on the prompt.
    """
    # Comes before the language model is loaded: an HMM over another vocabulary is refused at once.
    method = PROPOSALS[proposal]() if hmm is None else _pgcd(hmm, automaton.vocabulary)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        network = AutoModelForCausalLM.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"expected a model that transformers can load, got {model}: {cause}"
        ) from error
    lm = smc.TransformersLM(network, tokenizer)
    if lm.vocabulary != automaton.vocabulary:
        automaton = gcd.lift(language, lm.vocabulary)
    (posterior,) = smc.sample(
        lm,
        [prompt],
        automaton,
        budget=budget,
        particles=particles,
        proposal=method,
        algorithm=algorithm,
        seed=seed,
        deadline=deadline,
    )
    found = posterior.reliability
    effect = posterior.budget
    assert effect is not None  # always known without top_p
    return {
        "answers": [
            {"text": text, "probability": probability, "error": error, "interval": interval}
            for text, probability, error, interval in zip(
                posterior.texts,
                posterior.probabilities,
                found.probability_errors,
                posterior.intervals or (),
                strict=True,
            )
        ],
        "fields": _fields(posterior),
        "certified": posterior.certified,
        "log_evidence": None if posterior.dead else posterior.log_evidence,
        "log_evidence_error": None if posterior.dead else found.log_evidence_error,
        "reliability": found.label,
        "advice": found.advice,
        "ess": found.ess,
        "valid": posterior.valid,
        "complete": posterior.complete,
        "lm_calls": posterior.diagnostics.lm_calls,
        "seconds": posterior.diagnostics.seconds,
        "budget": {
            "removed": effect.removed,
            "first": effect.first,
            "sufficient": effect.sufficient,
        },
        "stopped": posterior.stopped,
        "overrun": posterior.diagnostics.overrun,
    }


def _fields(posterior: smc.Posterior) -> dict[str, Any]:
    """Return `Posterior.fields` by JSON pointer; empty unless answers are JSON."""
    try:
        return {pointer: asdict(field) for pointer, field in posterior.fields().items()}
    except ValueError:
        return {}


def field_lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Format a table of fields: for each field with a scalar value, its values."""
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
        lines += [
            (f"{estimated(each)} ({rounded(each['interval'])})", f"{pointer} {value}")
            for value, each in values
        ]
    return lines


def estimated(found: dict[str, Any]) -> str:
    """Format a probability and its standard error."""
    return f"{found['probability']:.3f} +- {found['error']:.3f}"


def rounded(interval: tuple[float, float]) -> str:
    """Format the ends with three digits, rounded outward."""
    low, high = interval
    return f"{math.floor(1000 * low) / 1000:.3f} to {math.ceil(1000 * high) / 1000:.3f}"


def _pgcd(directory: str, vocabulary: gcd.Vocabulary) -> smc.Proposal[Any]:
    from hmm.checkpoint import load

    return smc.PGCD(load(directory, vocabulary=vocabulary).hmm, lookahead="in_time")
