"""This module loads a language model and samples from it under a constraint."""

from __future__ import annotations

from collections.abc import Callable
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
    """Sample answers to a prompt; return them with their probabilities, and how far to trust them.

    Args:
        model: a causal model of `transformers` by directory or hub name, with its tokenizer.
        language: the constraint over bytes, in case the model's vocabulary is another than
            `automaton` was lifted to.
        prompt, budget, particles, algorithm, seed, deadline: as in `smc.sample`.
        proposal: a key of `PROPOSALS`, or pgcd.
        hmm: the directory of an HMM, for pgcd; it looks ahead as far as time goes ("in_time"),
            because it has not read the prompt.
    """
    # Before the language model: an HMM of another vocabulary is refused at once.
    method = PROPOSALS[proposal]() if hmm is None else _pgcd(hmm, automaton.vocabulary)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        network = AutoModelForCausalLM.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{model} holds no model that can be loaded: {cause}") from error
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
    effect = posterior.budget
    assert effect is not None  # known without top_p
    return {
        "answers": [
            {"text": text, "probability": probability, "interval": interval}
            for text, probability, interval in zip(
                posterior.texts, posterior.probabilities, posterior.intervals or (), strict=True
            )
        ],
        "certified": posterior.certified,
        "log_evidence": None if posterior.dead else posterior.log_evidence,
        "ess": posterior.ess,
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


def _pgcd(directory: str, vocabulary: gcd.Vocabulary) -> smc.Proposal[Any]:
    from hmm.checkpoint import load

    return smc.PGCD(load(directory, vocabulary=vocabulary).hmm, lookahead="in_time")
