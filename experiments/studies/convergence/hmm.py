"""HMM of the convergence study, distilled from free continuations or loaded.

Each language model has one HMM for all problems. The model continues the problems'
prompts freely, without a constraint, for as many tokens as the budgets need (`visited`), and the
visited prefixes are clustered to states (`clones`). The HMM therefore models answers without having
seen a constraint or the current prompt; distillation takes a minute. HMMs are stored in
`runs/convergence-hmm-<fingerprint>` and shared by runs. An interrupted distillation starts over.

For comparison there are a unigram and a bigram of the same continuations, and the language model,
all evaluated on further held-out continuations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

from experiments.distillation.baselines import compare
from experiments.distillation.clones import clone
from experiments.distillation.data import Sequences
from experiments.distillation.training import Worker, mean_log_likelihood
from experiments.rows import bar, derive_seed, fingerprint
from experiments.studies.convergence.visited import MOST_BYTES, Visited, visit
from gcd import Vocabulary
from hmm import HMM, load, save
from smc import LanguageModel, TransformersLM

_HELD_OUT = 0.1
"""Held-out continuations, as a share of the training continuations."""


class Distilled(NamedTuple):
    """An HMM with its origin and quality.

    Attributes:
        hmm: float32.
        note: description of its origin and quality.
        nats: held-out log-likelihood per token of the HMM and other models; empty if unknown.
    """

    hmm: HMM
    note: str
    nats: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that determine a distilled HMM.

    Attributes:
        states: maximum number of states.
        sequences: number of sequences to sample, besides held-out ones.
        length: maximum number of tokens of each sequence.
        temperature: temperature of the language model.
        seed: seed of everything.
    """

    states: int
    sequences: int
    length: int
    temperature: float
    seed: int


def with_own_ends(lm: TransformersLM) -> TransformersLM:
    """Return the model with its own EOS ids, independent of the problem."""
    return TransformersLM(lm.model, lm.tokenizer)


def load_given(directory: str, vocabulary: Vocabulary) -> Distilled:
    """Load the HMM of a checkpoint.

    Raises:
        ValueError: there is no HMM, or the HMM has another vocabulary; the message names both.
    """
    try:
        hmm = load(Path(directory).expanduser(), vocabulary=vocabulary).hmm
    except ValueError as error:
        raise ValueError(f"task.hmm={directory}: {error}") from error
    hmm = hmm.to(dtype=torch.float32)
    return Distilled(hmm, f"HMM of {hmm.num_states} states from {directory}", {})


def distil(
    lm: LanguageModel,
    model: dict[str, Any],
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    parent: Path,
) -> Distilled:
    """Make the HMM of these prompts, or load it if it exists.

    Args:
        lm: the language model, with its own EOS ids.
        model: identity of the model.
        prompts: token ids.
        recipe: other settings that determine the result.
        parent: directory that contains the HMM's directory.
    """
    distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda p: (len(p), p))
    identity = {"model": model, "prompts": distinct, **dataclasses.asdict(recipe)}
    directory = parent / f"convergence-hmm-{fingerprint(identity | {'made_of': 'clones'})}"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / ".lock"):  # concurrent runs make it once
        if not (directory / "hmm").is_dir():
            hmm, nats = _make(lm, distinct, recipe)
            # Renamed once complete, so that a partial HMM of a killed run isn't used.
            partial = directory / "hmm.part"
            save(hmm, partial, vocabulary=lm.vocabulary, config={"held_out": nats})
            partial.replace(directory / "hmm")
    found = load(directory / "hmm", vocabulary=lm.vocabulary)
    nats = found.config["held_out"]
    note = (
        f"HMM of {found.hmm.num_states} states, distilled from {recipe.sequences} free "
        f"continuations of {len(distinct)} prompts, at most {recipe.length} tokens each; held out: "
        + ", ".join(f"{name} {value:.3f}" for name, value in nats.items())
        + " nats per token (the language model reads the prompt, the others do not)"
    )
    return Distilled(found.hmm, note, nats)


def _make(
    lm: LanguageModel, prompts: Sequence[tuple[int, ...]], recipe: Recipe
) -> tuple[HMM, dict[str, float]]:
    """Make the HMM of visited prefixes, and evaluate it on held-out continuations."""
    visited = _continue(lm, prompts, recipe, recipe.sequences, "visited")
    hmm = clone(visited, recipe.states, eos_ids=lm.vocabulary.eos_ids, seed=recipe.seed)
    training = visited.sequences()
    del visited
    some = max(len(prompts), round(_HELD_OUT * recipe.sequences))
    held_out = _continue(lm, prompts, recipe, some, "held out").sequences()
    return hmm, _nats(hmm, training, held_out)


def _continue(
    lm: LanguageModel, prompts: Sequence[tuple[int, ...]], recipe: Recipe, count: int, name: str
) -> Visited:
    """Sample `count` continuations in total, with an equal share per prompt."""
    parts: list[Visited] = []
    with bar(count * recipe.length, f"free continuations, {name}", "token", 0) as shown:
        for number, prompt in enumerate(prompts):
            share = len(range(number, count, len(prompts)))
            seed = derive_seed(name, recipe.seed, prompt)
            u = torch.rand(
                share,
                recipe.length,
                dtype=torch.float64,
                generator=torch.Generator().manual_seed(seed),
            )
            part = visit(
                lm,
                prompt,
                u,
                temperature=recipe.temperature,
                most_bytes=MOST_BYTES - sum(part.log_p.nbytes for part in parts),
                progress=shown.update,
            )
            parts.append(part)
    return Visited.join(parts)


def _nats(hmm: HMM, training: Sequences, held_out: Sequences) -> dict[str, float]:
    """Return held-out log-likelihoods per token."""
    baselines = compare(training, held_out, hmm.num_tokens)
    here = Worker(Path(), torch.device("cpu"))
    return {
        "unigram": baselines.unigram,
        "bigram": baselines.bigram,
        "HMM": mean_log_likelihood(hmm, held_out, 128, here),
        "language model": float(held_out.log_likelihood.sum()) / held_out.num_tokens,
    }
