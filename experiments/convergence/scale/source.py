"""This module loads the HMMs that are the language models of the problems at scale.

    toolcalls    an HMM of a model's calls of tools, by default the one that comes with the project
    stories      clones of the prefixes that continuations of twenty beginnings of stories come by
                 (`experiments.convergence.hmm`), of up to `LENGTH` tokens; three minutes of one
                 thread, made once and kept beside the run's directory

The second is made by the recipe of the convergence task as it is. Held out it has -2.136 nats a
token (bigram -2.846, the language model, which reads the beginnings, -1.402). EM from there was
tried on 10 000 continuations, where it took four minutes from -2.163 to -2.134: as much as four
times the continuations give without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gcd
from experiments.convergence.hmm import Recipe, distil, with_own_ends
from experiments.convergence.scale.config import ScaleConfig
from experiments.harness.config import ModelConfig
from experiments.harness.methods import existing_hmm
from experiments.harness.models import ROOT, digest_of, identity_of, load_model
from hmm.checkpoint import load
from hmm.model import HMM
from smc.models.transformers_lm import TransformersLM

SOURCES = ("toolcalls", "stories")
OWN_HMM = ROOT / "models" / "smollm2-xlam-hmm"
LENGTH = 48
BEGINNINGS = (
    "Once upon a time, there was a little girl named Lily. One day, she",
    "Once upon a time, there was a little boy named Tim. One day, he",
    "One day, a little dog named Max",
    "Once upon a time, there was a big bear. The bear",
    "Lily and Tom were friends. They",
    "Tom and his mom went to the park. At the park, they",
    "Once there was a bird who lived in a tree. The bird",
    "Sara had a new toy. She",
    "Ben was a good boy. One day, his mom",
    "Once upon a time, there was a cat. The cat",
    "It was a sunny day. The children",
    "Mia and her dad went to the beach. They",
    "One day, a boy found a ball. He",
    "Once upon a time, there was a girl who loved to play. She",
    "The little rabbit was hungry. He",
    "Anna and Sam were playing in the garden. They",
    "One day, a frog",
    "Tim had a red car. He",
    "Once upon a time, there was a kind old man. He",
    "Lucy was sad. Her friend",
)


class Source(NamedTuple):
    """A language model, of which only vocabulary and HMM are used in the end.

    Attributes:
        name: one of `SOURCES`.
        lm: what the HMM is of.
        identity: what determines the HMM, as plain values.
        hmm: its directory; None for one that is made when it is needed.
    """

    name: str
    lm: TransformersLM
    identity: dict[str, Any]
    hmm: Path | None = None

    @property
    def vocabulary(self) -> gcd.Vocabulary:
        return self.lm.vocabulary


def read_source(name: str, task: ScaleConfig) -> Source:
    """Load the language model of a source.

    Args:
        name: one of `SOURCES`.
        task: settings of the task.

    Raises:
        ValueError: there is no such model, or no HMM.
    """
    if name == "toolcalls":
        path = str(OWN_HMM) if task.toolcalls_hmm == "auto" else task.toolcalls_hmm
        hmm = existing_hmm("task.toolcalls_hmm", path)
        lm, _ = load_model(ModelConfig(path=task.toolcalls, device="cpu"))
        return Source(name, lm, {"hmm_files": digest_of(hmm)}, hmm)
    lm, _ = load_model(ModelConfig(path=task.stories, device="cpu"))
    recipe = {"states": task.hmm_states, "sequences": task.hmm_sequences, "length": LENGTH}
    identity: dict[str, Any] = {
        "model_files": identity_of(task.stories),
        "recipe": recipe,
        "prompts": BEGINNINGS,
    }
    return Source(name, with_own_ends(lm), identity)


def hmm_of(source: Source, states: int, sequences: int, parent: Path) -> HMM:
    """Load the HMM of a source, or make it.

    Args:
        source: as read.
        states, sequences: of the HMM of stories.
        parent: directory in which one that is made is kept.

    Raises:
        ValueError: an HMM over another vocabulary (both are named), or a damaged one.
    """
    if source.hmm is not None:
        return load(source.hmm, vocabulary=source.vocabulary).hmm
    # The seed is part of the problem: runs with other seeds have the same truth.
    recipe = Recipe(states=states, sequences=sequences, length=LENGTH, temperature=1.0, seed=0)
    prompts = [source.lm.encode(text) for text in BEGINNINGS]
    model = {"files": source.identity["model_files"], "dtype": "float32"}
    return distil(source.lm, model, prompts, recipe, parent).hmm
