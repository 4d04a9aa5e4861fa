"""A character-level language model learns one text in minutes.

A small Llama whose tokens are the characters of the text. It has no token that ends a text: a
constraint must say where its strings end (`gcd.lift(..., eos="accept")`). Training depends on the
arguments and the text alone: batch k is drawn with a generator seeded by (seed, k), so an
interrupted training, called again, ends where an uninterrupted one would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

import gcd
from smc import TransformersLM

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

CHECKPOINT = "character_lm.pt"

_SAVE_EVERY = 50  # steps
_WARMUP = 20  # steps
_HELD_OUT = 0.1  # the last part of the text


@dataclass(frozen=True)
class CharacterLM:
    """A trained model, its characters, and the curve of its training.

    Attributes:
        lm: for `smc.sample`; token i is the character `characters[i]`.
        characters: of the text, in code point order.
        losses: (step, nats a character on the training batches, nats on the held-out end).
    """

    lm: TransformersLM
    characters: str
    losses: tuple[tuple[int, float, float], ...]

    @property
    def ids(self) -> dict[str, int]:
        """The token id of each character."""
        return {character: i for i, character in enumerate(self.characters)}


@dataclass(frozen=True)
class Training:
    """The sizes of the model and of its training."""

    steps: int
    batch: int = 16
    context: int = 128  # characters
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    lr: float = 3e-3
    seed: int = 0


def train_characters(
    text: str, training: Training, work: Path, device: torch.device
) -> CharacterLM:
    """Train on the text, or go on with what `work` holds of the same training.

    Raises:
        ValueError: if the text is too short to cut batches from.
    """
    characters = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([number[character] for character in text])
    split = int(len(ids) * (1 - _HELD_OUT))
    if len(ids) - split < training.context + 1:
        least = math.ceil((training.context + 1) / _HELD_OUT)
        raise ValueError(
            f"the text has {len(text)} characters, training needs at least {least}; give a longer "
            "text, or a smaller task.context"
        )
    model = _new_model(len(characters), training, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.lr, betas=(0.9, 0.95))
    losses: list[tuple[int, float, float]] = []
    step, running = 0, 0.0
    work.mkdir(parents=True, exist_ok=True)
    saved, partial = work / CHECKPOINT, (work / CHECKPOINT).with_suffix(".part")
    if saved.exists():
        content = torch.load(saved, map_location=device, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        step, running = content["step"], content["running"]
        losses = [tuple(entry) for entry in content["losses"]]
    with tqdm(total=training.steps, initial=step, desc="training", unit="step") as bar:
        while step < training.steps:
            rows = _rows(ids[:split], training, step).to(device)
            loss = _loss(model, rows)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = training.lr * _share(step, training.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            running += float(loss.detach())
            step += 1
            bar.update()
            if step % _SAVE_EVERY == 0 or step == training.steps:
                done = step - (losses[-1][0] if losses else 0)
                losses.append((step, running / done, held_out_loss(model, ids[split:], training)))
                running = 0.0
                bar.set_postfix_str(f"{losses[-1][2]:.3f} nats a character, held out")
                content = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "running": running,
                    "losses": losses,
                }
                # An interruption leaves the old checkpoint in place.
                torch.save(content, partial)
                partial.replace(saved)
    vocabulary = gcd.Vocabulary.from_bytes([c.encode() for c in characters], eos_ids=())
    return CharacterLM(TransformersLM(model, None, vocabulary), characters, tuple(losses))


def held_out_loss(model: LlamaForCausalLM, ids: Tensor, training: Training) -> float:
    """Compute the loss over the whole windows of these ids, in nats a character."""
    width = training.context + 1
    rows = ids[: len(ids) // width * width].reshape(-1, width)[:64]
    with torch.inference_mode():
        return float(_loss(model, rows.to(model.device)))


def _new_model(size: int, training: Training, device: torch.device) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds that other tasks need not wait

    config = LlamaConfig(
        vocab_size=size,
        hidden_size=training.hidden,
        intermediate_size=3 * training.hidden,
        num_hidden_layers=training.layers,
        num_attention_heads=training.heads,
        num_key_value_heads=training.heads,
        max_position_embeddings=4 * training.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, device)
    return model


def _rows(ids: Tensor, training: Training, step: int) -> Tensor:
    """The windows of one batch, (batch, context + 1)."""
    generator = torch.Generator().manual_seed(training.seed * 1_000_003 + step)
    width = training.context + 1
    starts = torch.randint(len(ids) - width + 1, (training.batch,), generator=generator)
    return ids[starts[:, None] + torch.arange(width)]


def _loss(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    logits = model(input_ids=rows[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:])


def _share(step: int, steps: int) -> float:
    """Share of the full learning rate: warm-up, then half a cosine."""
    return min(1.0, (step + 1) / _WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
