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

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.convergence.hmm import Recipe, distil, with_own_ends
from experiments.convergence.scale.config import ScaleConfig
from experiments.harness.config import ModelConfig
from experiments.harness.methods import existing_hmm
from experiments.harness.models import ROOT, digest_of, identity_of, load_model
from hmm.checkpoint import load
from hmm.model import HMM
from smc.models.transformers_lm import TransformersLM

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
        lm: what the HMM is of.
        identity: what determines the HMM, as plain values.
        hmm: loads the HMM, or makes it in this directory; `ValueError` for one that is damaged, or
            over another vocabulary (both are named).
    """

    lm: TransformersLM
    identity: dict[str, Any]
    hmm: Callable[[Path], HMM]


def read_source(name: str, task: ScaleConfig) -> Source:
    """Load the language model of a source.

    Args:
        name: "toolcalls" or "stories".

    Raises:
        ValueError: there is no such model, or no HMM.
    """
    if name == "toolcalls":
        path = str(OWN_HMM) if task.toolcalls_hmm == "auto" else task.toolcalls_hmm
        given = existing_hmm("task.toolcalls_hmm", path)
        lm, _ = load_model(ModelConfig(path=task.toolcalls, device="cpu"))
        identity: dict[str, Any] = {"hmm_files": digest_of(given)}
        return Source(lm, identity, lambda _: load(given, vocabulary=lm.vocabulary).hmm)
    lm = with_own_ends(load_model(ModelConfig(path=task.stories, device="cpu"))[0])
    sizes = {"states": task.hmm_states, "sequences": task.hmm_sequences, "length": LENGTH}
    files = identity_of(task.stories)
    prompts = [lm.encode(text) for text in BEGINNINGS]
    # The seed is part of the problem: runs with other seeds have the same truth.
    recipe = Recipe(**sizes, temperature=1.0, seed=0)
    model = {"files": files, "dtype": "float32"}
    identity = {"model_files": files, "recipe": sizes, "prompts": BEGINNINGS}
    return Source(lm, identity, lambda parent: distil(lm, model, prompts, recipe, parent).hmm)
