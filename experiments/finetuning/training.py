"""Training of an adapter with AdamW, for a number of steps that is known in advance.

Batches depend only on the seed and their number, so an interrupted run ends with the same result.
Several processes divide the forward passes of a step and sum their gradients.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

from experiments.finetuning.batches import batch_of, loss_of, pieces
from experiments.finetuning.lessons import Lesson, lessons
from experiments.harness.models import without_renaming
from experiments.harness.run import Run
from gcd._support.files import read_json, write_json

CHECKPOINT = "checkpoint.pt"
_CURVE = "curve.json"


class Point(NamedTuple):
    """A point of the curve: number of steps, and held-out nats per learned token."""

    step: int
    held_out: float


class Split(NamedTuple):
    """Training items and held-out items."""

    training: list[Any]
    held_out: list[Any]


def split(items: Sequence[Any], share: float, seed: int, most: int | None = None) -> Split:
    """Split a random sample of the items, with at least one item in each part.

    Raises:
        ValueError: there are fewer than two items.
    """
    if len(items) < 2:
        raise ValueError(f"expected at least two usable records, got {len(items)}")
    order = list(items)
    random.Random(f"split-{seed}").shuffle(order)
    order = order[:most]
    count = min(len(order) - 1, max(1, round(share * len(order))))
    return Split(order[count:], order[:count])


def add_adapter(model: Any, config: DictConfig) -> Any:
    """Return the model with a new adapter on every linear layer; nothing else is trained."""
    shape = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), without_renaming():
        torch.manual_seed(config.seed)
        return get_peft_model(model, shape)


def rate(step: int, total: int, warm_up: float) -> float:
    """Return the factor of the learning rate: linear warm-up, then a half cosine to zero."""
    first = max(1, round(warm_up * total))
    if step < first:
        return (step + 1) / first
    return 0.5 * (1 + math.cos(math.pi * (step - first) / max(1, total - first)))


class Trainer:
    """A training, new or resumed from its checkpoint.

    The model stays in evaluation mode. Without dropout there is no generator state to save.

    Args:
        data: training and held-out items.

    Raises:
        ValueError: all training or all held-out items are too long, or the checkpoint is damaged.
    """

    def __init__(self, run: Run, adapter: Any, tokenizer: Any, data: Split) -> None:
        config = run.config
        self._run, self._config, self._tokenizer = run, config, tokenizer
        self.adapter = adapter.eval()
        self._model = adapter.get_base_model()
        self._data = data
        self._weights = [each for each in adapter.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=config.learning_rate, weight_decay=0)
        self._held_out = self._usable(data.held_out, epoch=0)
        self.too_long = self._refuse_long(self._usable(data.training, epoch=0))
        self.per_epoch = math.ceil(len(data.training) / config.batch)
        self.total = config.epochs * self.per_epoch
        self.step = 0
        self.curve: list[Point] = []
        self._resume()

    def train(self) -> bool:
        """Train to the end or to `stop_after`; returns whether the training is finished."""
        config = self._config
        last = self.total if config.stop_after is None else min(self.total, config.stop_after)
        if not self.curve:
            self._evaluate()
        saved = time.monotonic()
        with self._run.bar(self.total, "fine-tuning", "step", self.step) as shown:
            epoch, order = -1, []
            while self.step < last:
                if self.step // self.per_epoch != epoch:
                    epoch = self.step // self.per_epoch
                    order = self._order(epoch)
                began = time.monotonic()
                at = self.step % self.per_epoch * config.batch
                chosen = order[at : at + config.batch]
                loss = self._learn(chosen)
                self.step += 1
                if self.step % self.per_epoch == 0:
                    self._evaluate()
                size = sum(lesson.size for lesson in chosen)
                shown.set_postfix_str(
                    f"{loss:.3f} nats per token, {self.curve[-1].held_out:.3f} held out, "
                    f"{size / (time.monotonic() - began):.0f} tokens/s"
                )
                shown.update()
                if time.monotonic() - saved > 60 * config.save_minutes or self.step == last:
                    self._save()
                    saved = time.monotonic()
        return self.step == self.total

    def _usable(self, items: Sequence[Any], epoch: int) -> list[Lesson]:
        config = self._config
        made = lessons(items, config.source, self._tokenizer, config.seed, epoch)
        return [lesson for lesson in made if lesson.size <= config.longest]

    def _refuse_long(self, training: Sequence[Lesson]) -> int:
        """Count the items that are too long; refuse if no item is left in a part."""
        for kind, left, items in (
            ("held-out", self._held_out, self._data.held_out),
            ("training", training, self._data.training),
        ):
            if not left:
                raise ValueError(
                    f"expected {kind} records of at most longest={self._config.longest} tokens, "
                    f"but all {len(items)} are longer; raise longest"
                )
        return sum(map(len, self._data)) - len(training) - len(self._held_out)

    def _order(self, epoch: int) -> list[Lesson]:
        order = self._usable(self._data.training, epoch)
        random.Random(f"order-{self._config.seed}-{epoch}").shuffle(order)
        return order

    def _learn(self, chosen: Sequence[Lesson]) -> float:
        """Take one step; returns nats per learned token of this process's share."""
        if not chosen:  # all lessons of the epoch's last batch are too long
            return math.nan
        count = sum(lesson.learned for lesson in chosen)
        # Sorted by size to balance the processes.
        share = sorted(chosen, key=lambda each: each.size)[self._run.rank :: self._run.world]
        total, mine = 0.0, sum(lesson.learned for lesson in share)
        for piece in pieces(share, self._config.most_tokens):
            loss = loss_of(self._model, batch_of(piece)) / count
            loss.backward()
            total += float(loss.detach()) * count
        if self._run.world > 1:
            for weight in self._weights:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                dist.all_reduce(weight.grad)
        norm = torch.nn.utils.clip_grad_norm_(self._weights, self._config.clip)
        if not math.isfinite(float(norm)):
            raise ValueError(
                f"expected a finite gradient, got {float(norm)} at step {self.step}; lower "
                f"learning_rate={self._config.learning_rate}"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * rate(
                self.step, self.total, self._config.warm_up
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total / mine if mine else math.nan

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Add a point to the curve."""
        total = sum(
            float(loss_of(self._model, batch_of(piece)))
            for piece in pieces(self._held_out, self._config.most_tokens)
        )
        count = sum(lesson.learned for lesson in self._held_out)
        self.curve.append(Point(self.step, total / count))

    def _save(self) -> None:
        if self._run.rank:
            return
        content = {
            "step": self.step,
            "adapter": get_peft_model_state_dict(self.adapter),
            "optimizer": self._optimizer.state_dict(),
        }
        path = self._run.directory / CHECKPOINT
        partial = path.with_suffix(".part")
        torch.save(content, partial)
        write_json([list(point) for point in self.curve], self._run.directory / _CURVE)
        partial.replace(path)

    def _resume(self) -> None:
        path: Path = self._run.directory / CHECKPOINT
        if not path.exists():
            return
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
            raise ValueError(
                f"{path} is damaged; remove it, or give resume=false, and training starts over"
            ) from error
        set_peft_model_state_dict(self.adapter, content["adapter"])
        self._optimizer.load_state_dict(content["optimizer"])
        self.step = content["step"]
        saved = read_json(self._run.directory / _CURVE, list, remedy="give resume=false")
        self.curve = [
            point for point in (Point(*each) for each in saved) if point.step <= self.step
        ]
