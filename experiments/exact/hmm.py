"""HMM of the convergence study, distilled from free continuations or loaded.

Each run has one HMM for all problems. The model continues the problems' prompts freely, without a
constraint, for as many tokens as the budgets need (`experiments.distillation.sampling`), and the
visited prefixes are clustered to states (`clones`). The HMM therefore models answers without having
seen a constraint or the current prompt; distillation takes a minute. An interrupted distillation
starts over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from experiments.distillation.clones import clone
from experiments.distillation.data import Sequences
from experiments.distillation.lumping import Lumping
from experiments.distillation.prefixes import TopTokenPrefixes
from experiments.distillation.sampling import sample_batch
from experiments.rows import derive_seed
from experiments.tasks import bar
from gcd import Vocabulary
from hmm import HMM, load, save
from smc import LanguageModel

_TOP = 64  # next tokens that are kept of each prefix
_NUMBERS = 1 << 26  # numbers in the distributions of a batch


class Distilled(NamedTuple):
    """An HMM with a description of its origin."""

    hmm: HMM  # float32
    note: str


class Recipe(NamedTuple):
    """Settings that determine a distilled HMM."""

    states: int  # at most
    sequences: int  # to sample
    length: int  # tokens of a sequence, at most
    seed: int


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
    return Distilled(hmm, f"HMM of {hmm.num_states} states from {directory}")


def distill(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], recipe: Recipe, directory: Path
) -> Distilled:
    """Make the HMM of these prompts, or load it if the directory exists."""
    distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda p: (len(p), p))
    if not directory.is_dir():
        sampled = _continue(lm, distinct, recipe)
        # No token is lumped: a constraint may need tokens that the model didn't write.
        every = Lumping.all_but(torch.ones(lm.vocabulary.size, dtype=torch.bool))
        prefixes = TopTokenPrefixes.of(sampled, every)
        hmm = clone(prefixes, recipe.states, eos_ids=lm.vocabulary.eos_ids, seed=recipe.seed)
        # Renamed once complete, so that a partial HMM of a killed run isn't used.
        partial = directory.with_name(directory.name + ".part")
        save(hmm, partial, vocabulary=lm.vocabulary)
        partial.replace(directory)
    found = load(directory, vocabulary=lm.vocabulary).hmm
    note = (
        f"HMM of {found.num_states} states, distilled from {recipe.sequences} free "
        f"continuations of {len(distinct)} prompts, at most {recipe.length} tokens each"
    )
    return Distilled(found, note)


def _continue(lm: LanguageModel, prompts: Sequence[tuple[int, ...]], recipe: Recipe) -> Sequences:
    """Sample continuations, with an equal share per prompt."""
    parts: list[Sequences] = []
    size = max(1, _NUMBERS // lm.vocabulary.size)
    with bar(recipe.sequences, "free continuations", "sequence", 0) as shown:
        for number, prompt in enumerate(prompts):
            share = len(range(number, recipe.sequences, len(prompts)))
            length = recipe.length
            if lm.context is not None:
                length = min(length, lm.context - len(prompt))
            generator = torch.Generator(lm.device)
            generator.manual_seed(derive_seed("visited", recipe.seed, prompt))
            for first in range(0, share, size):
                some = min(size, share - first)
                parts.append(sample_batch(lm, [prompt] * some, length, generator, _TOP))
                shown.update(some)
    return Sequences.join(parts)
