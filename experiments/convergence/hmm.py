"""The HMM of the convergence task: distilled on the spot, or given.

By default each language model has one, for all of its problems: it is sampled freely from their
prompts, without any constraint, for as many tokens as the budgets ask for; latent variable
distillation begins with k-means of what the model expects next, and EM does the rest. So it is a
model of answers that never saw a constraint, nor knows which of the prompts it is after: an honest,
modest HMM, a minute of work. `task.hmm_for=problem` makes one for each prompt instead. They lie in
`runs/convergence-hmm-<fingerprint>`, shared by all runs that ask for the same ones.

**Vectors for k-means.** A hidden state is to tell what comes next, and that is what the model's
distribution of the next token says: its square root (distances are then Hellinger's), projected to
`_DIMENSIONS` at random, which keeps distances (Johnson and Lindenstrauss 1984). It is there when
the next token is drawn, and costs nothing more.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments import distill_data
from experiments.config import fingerprint
from experiments.distill_baselines import compare
from experiments.distill_data import Sequences
from experiments.distill_fit import Fit, at_random, fit, from_vectors
from experiments.distill_training import Place, Training, derived_seed, mean_log_likelihood
from experiments.processes import bar
from hmm.checkpoint import WEIGHTS, load, load_ctrlg
from hmm.model import HMM
from smc.draw import categorical
from smc.language_model import LanguageModel
from smc.transformers_lm import TransformersLM

_LOG = logging.getLogger(__name__)
_DIMENSIONS = 128
_HELD_OUT = 0.1


class Distilled(NamedTuple):
    """An HMM and what is known of it.

    Attributes:
        hmm: float32.
        note: where it comes from, and how good it is, in words.
        nats: held-out log-likelihood a token of the HMM and of others; empty if unknown.
    """

    hmm: HMM
    note: str
    nats: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to distil.

    Attributes:
        states: H.
        sequences: to sample, held-out ones included.
        length: most tokens of each.
        passes: over the data.
        temperature: of the language model.
        seed: of everything.
    """

    states: int
    sequences: int
    length: int
    passes: int
    temperature: float
    seed: int


def with_own_ends(lm: TransformersLM) -> TransformersLM:
    """The model with the EOS ids that it has itself, whatever a problem says."""
    return TransformersLM(lm.model, lm.tokenizer)


def given(directory: str, num_tokens: int) -> Distilled:
    """The HMM of a checkpoint.

    Raises:
        ValueError: there is none, or it is for another vocabulary (both sizes are named).
    """
    path = Path(directory).expanduser()
    read = load if (path / WEIGHTS).is_file() else load_ctrlg
    try:
        hmm = read(path, num_tokens=num_tokens).hmm
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
    """The HMM of these prompts; found where it was made before, else made, or made to its end.

    Args:
        lm: the language model, with its own EOS ids.
        model: what tells it from others.
        prompts: token ids.
        recipe: what else determines the result.
        parent: where the directory of the HMM lies.
    """
    prompts = sorted({tuple(prompt) for prompt in prompts}, key=lambda p: (len(p), p))
    identity = {"model": model, "prompts": prompts, **dataclasses.asdict(recipe)}
    latent = importlib.util.find_spec("faiss") is not None
    if not latent:
        identity["initial"] = "random"
        _LOG.warning("faiss is not installed: the HMM starts at random, and ends worse")
    place = Place(parent / f"convergence-hmm-{fingerprint(identity)}", torch.device("cpu"))
    sequences, vectors = _sampled(lm, prompts, recipe, place.directory / "sequences")
    size, eos_ids = lm.vocabulary.size, lm.vocabulary.eos_ids

    def initial(training: Sequences) -> HMM:
        """Latent variable distillation where faiss is installed, else random parameters."""
        if not latent:
            return at_random(recipe.states, size, seed=recipe.seed)
        expected = vectors[_within(sequences, training)]
        try:
            return from_vectors(
                expected, training, recipe.states, size, eos_ids=eos_ids, seed=recipe.seed
            )
        except ValueError as error:
            raise ValueError(
                f"task.hmm_states={recipe.states}, task.hmm_sequences={recipe.sequences}: {error}"
            ) from error

    settings = Training(
        epochs=recipe.passes,
        steps=None,
        full_steps=1,
        batch_size=256,
        piece_size=128,
        step_decay=0.7,
        pseudo_count=0.01,
        emission_pseudo_count=0.001,
        dropout=0.0,
        evaluations=10,
        seed=recipe.seed,
    )
    fitted = fit(sequences, _HELD_OUT, initial, settings, place)
    hmm = fitted.state.hmm.to(dtype=torch.float32)
    nats = _nats(hmm, fitted, size, place)
    note = (
        f"HMM of {recipe.states} states, distilled from {recipe.sequences} free continuations of "
        f"{len(prompts)} prompts, at most {recipe.length} tokens each"
        + ("" if latent else ", begun at random")
        + "; held out: "
        + ", ".join(f"{name} {value:.3f}" for name, value in nats.items())
        + " nats a token (the language model reads the prompt, the others do not)"
    )
    return Distilled(hmm, note, nats)


def _nats(hmm: HMM, fitted: Fit, size: int, place: Place) -> dict[str, float]:
    """Held-out log-likelihood a token; computed once."""
    held_out = fitted.held_out
    path = place.directory / "nats.json"
    if not path.is_file():
        baselines = compare(fitted.training, held_out, size)
        nats = {
            "unigram": baselines.unigram,
            "bigram": baselines.bigram,
            "HMM": mean_log_likelihood(hmm, held_out, 128, place),
            "language model": float(held_out.log_likelihood.sum()) / held_out.num_tokens,
        }
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(nats, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _within(sequences: Sequences, part: Sequences) -> Tensor:
    """Which tokens of all sequences belong to those of a part; groups name the sequences."""
    return torch.isin(sequences.groups, part.groups).repeat_interleave(sequences.lengths)


@torch.inference_mode()
def continuations(
    lm: LanguageModel,
    prompt: Sequence[int],
    count: int,
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> tuple[Sequences, Float[Tensor, "n D"]]:
    """Free continuations of one prompt, and what the model expected after each of their tokens.

    At most `length` tokens each, or as many as the model's context leaves room for. The prompt, and
    what several continuations begin with, is read once.
    """
    if lm.context is not None:
        length = min(length, lm.context - len(prompt))
    generator = torch.Generator().manual_seed(derived_seed("continuations", seed, tuple(prompt)))
    projected = torch.Generator().manual_seed(derived_seed("projection", seed))
    size = lm.vocabulary.size
    projection = torch.randn(size, _DIMENSIONS, generator=projected) / _DIMENSIONS**0.5
    eos = torch.tensor(lm.vocabulary.eos_ids)
    tokens = torch.zeros(count, length, dtype=torch.int64)
    vectors = torch.zeros(count, length, _DIMENSIONS)
    lengths = torch.zeros(count, dtype=torch.int64)
    log_likelihood = torch.zeros(count, dtype=torch.float64)
    memory, log_p = lm.prefill([prompt])
    going, row = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    for t in range(length):
        log_p = (log_p.double().cpu() / temperature).log_softmax(dim=1)
        u = torch.rand(len(going), generator=generator, dtype=torch.float64)
        drawn = categorical(log_p).at(row, u)
        log_likelihood[going] += log_p[row, drawn]
        tokens[going, t] = drawn
        lengths[going] += 1
        on = ~torch.isin(drawn, eos)
        going, row, drawn = going[on], row[on], drawn[on]
        if not len(going):
            break
        prefix, row = torch.unique(row * size + drawn, return_inverse=True)
        memory.reorder((prefix // size).to(lm.device))
        token = (prefix % size).unsqueeze(1).to(lm.device)
        log_p = memory.extend(token, torch.ones_like(token[:, 0]))[:, 0]
        vectors[going, t] = ((0.5 * log_p.float().cpu()).exp() @ projection)[row]
    inside = torch.arange(length) < lengths.unsqueeze(1)
    sequences = Sequences(
        tokens[inside],
        lengths,
        log_likelihood,
        torch.zeros(0, dtype=torch.int64),
        torch.zeros_like(lengths),
        torch.arange(count),
    )
    return sequences, vectors[inside]


def _sampled(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], recipe: Recipe, directory: Path
) -> tuple[Sequences, Float[Tensor, "n D"]]:
    """Continuations of all prompts; those of a prompt that is done already are read from disk."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = []
    with bar(recipe.sequences, "free continuations", "sequence", 0) as shown:
        for i, prompt in enumerate(prompts):
            count = len(range(i, recipe.sequences, len(prompts)))
            path = directory / f"{i:03d}.safetensors"
            if not path.is_file():
                sequences, vectors = continuations(
                    lm,
                    prompt,
                    count,
                    recipe.length,
                    temperature=recipe.temperature,
                    seed=recipe.seed,
                )
                partial = path.with_suffix(".part")
                save_file({**_arrays(sequences), "vectors": vectors.bfloat16()}, partial)
                partial.replace(path)
            saved = load_file(path)
            vectors = saved.pop("vectors").float()
            parts.append((Sequences(**saved), vectors))
            shown.update(count)
    sequences = Sequences.joined([part for part, _ in parts])
    # Held out are sequences, not prompts: all of the prompts are to be known.
    sequences = dataclasses.replace(sequences, groups=torch.arange(len(sequences)))
    return sequences, torch.cat([vectors for _, vectors in parts])


def _arrays(sequences: Sequences) -> dict[str, Tensor]:
    return {name: getattr(sequences, name) for name in distill_data.ARRAYS}
