"""Rows of a `transformers` model: the KV caches of prefixes in progress.

Rows of different lengths share one rectangular cache.  The invariant that keeps this simple: the
valid columns of row r are always its *last* `lengths[r]` ones, padding being on the left.  Then the
attention mask and the positions follow from the lengths alone, and a sliding attention window,
which models count in columns, counts tokens.  Prefilling pads on the left by itself.  Runs of
unequal lengths, and cutting rows back, leave padding on the right, so the columns of each row are
shifted to restore the invariant (`_align`, one gather per layer).

Padding does not change what is computed for a row beyond the order of floating-point sums: masked
columns have weight exactly zero, and positions count real tokens.

These rows hold prompt and answer, and serve any model with an ordinary cache. For most models those
of `smc.models.sharing_rows` do, which hold each prompt once and are not padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from smc.models.shared_prompts import SharedPrompts
from smc.transformers_internals import cache_argument, is_stateful, planned_layers


class PromptMemory(NamedTuple):
    """What the model remembers of one prompt.

    Attributes:
        length: its tokens.
        layers: keys and values of each layer.
        log_p: log-probabilities of the token after it.
    """

    length: int
    layers: tuple[tuple[Float[Tensor, "heads L d"], Float[Tensor, "heads L d2"]], ...]
    log_p: Float[Tensor, "V"]

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.log_p.nbytes + sum(k.nbytes + v.nbytes for k, v in self.layers)


def together(memories: Sequence[PromptMemory]) -> SharedPrompts:
    """Put prompts beside each other, padded on the left; one alone is not copied."""
    lengths = torch.tensor([memory.length for memory in memories], device=memories[0].log_p.device)
    layers = [
        (_padded([keys for keys, _ in same]), _padded([values for _, values in same]))
        for same in zip(*(memory.layers for memory in memories), strict=True)
    ]
    return SharedPrompts(lengths, layers)


class TransformersRows:
    """The KV cache of R prefixes; see `smc.models.protocol.Rows`.

    Attributes:
        lengths: valid columns of each row, its last ones.
        prompt_lengths: how many of them are the prompt's.

    Raises:
        ValueError: the model has no such cache.
    """

    def __init__(self, model: Any, prompt_lengths: Int64[Tensor, "R"]) -> None:
        from transformers import DynamicCache

        _check_plain(model)
        self._model = model
        # Without a config every layer keeps all columns: sliding windows are left to the mask.
        self._cache: Any = DynamicCache()
        self.prompt_lengths = prompt_lengths
        self.lengths = prompt_lengths

    @classmethod
    def after(cls, model: Any, prompts: SharedPrompts) -> TransformersRows:
        """Make rows of prompts that were read before."""
        rows = cls(model, prompts.lengths)
        for number, (keys, values) in enumerate(prompts.layers):
            rows._cache.update(keys, values, number)
        return rows

    def prompts(self) -> SharedPrompts:
        """Return what is remembered of all rows; nothing is copied."""
        layers = [(layer.keys, layer.values) for layer in self._cache.layers]
        return SharedPrompts(self.lengths, layers)

    def memory(self, row: int, log_p: Float[Tensor, "V"]) -> PromptMemory:
        """Copy what is remembered of one row."""
        length = int(self.lengths[row])
        layers = tuple(
            (layer.keys[row, :, -length:].clone(), layer.values[row, :, -length:].clone())
            for layer in self._cache.layers
        )
        return PromptMemory(length, layers, log_p.clone())

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Read all runs in one forward pass."""
        run_length = runs.shape[1]
        before = self.lengths
        self.lengths = before + lengths
        # The run's padding is on its right: as columns it is cut off again below.
        full = torch.arange(run_length, device=runs.device) < lengths.unsqueeze(1)
        log_p = self.read(torch.where(full, runs, 0), before + run_length)
        if not bool(full.all()):
            self._align(before + run_length, self.lengths)
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Move cache rows; nothing moves where each row is its own ancestor."""
        same = torch.arange(self.lengths.shape[0], device=ancestors.device)
        if torch.equal(ancestors.long(), same):
            return
        self.lengths = self.lengths[ancestors]
        self.prompt_lengths = self.prompt_lengths[ancestors]
        # Drop columns that only removed rows used.
        spare = self._width - int(self.lengths.max()) if len(ancestors) else 0
        for layer in self._cache.layers:
            here = ancestors.to(layer.keys.device)  # layers may lie on several devices
            layer.keys = layer.keys[:, :, spare:].index_select(0, here)
            layer.values = layer.values[:, :, spare:].index_select(0, here)

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Cut columns off, then restore the padding to the left."""
        kept = torch.minimum(self.prompt_lengths + lengths, self.lengths)
        self._align(self.lengths, kept)
        self.lengths = kept

    @torch.inference_mode()
    def read(
        self, tokens: Int[Tensor, "R T"], valid: Int64[Tensor, "R"], **options: int
    ) -> Float[Tensor, "R T2 V"]:
        """Read `tokens` in a forward pass, after which the last `valid` columns of a row count.

        Returns:
            Log-probabilities of the next token after each of the tokens (or after the last one,
            where `options` say so).
        """
        width = self._width + tokens.shape[1]
        mask = _last_columns(valid, width)
        output = self._model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=_positions(mask, tokens.shape[1]),
            use_cache=True,
            **cache_argument(self._model, self._cache),
            **options,
        )
        self._check_memory(width)
        return normalised(output.logits)

    def _align(self, valid: Int64[Tensor, "R"], kept: Int64[Tensor, "R"]) -> None:
        """Keep the first `kept` of each row's last `valid` columns, and move them to the end."""
        width = self._width
        new_width = int(kept.max())
        columns = torch.arange(new_width, device=kept.device) - new_width
        source = (width - valid + kept).unsqueeze(1) + columns
        # What falls before the row's first token becomes padding; any column will do for it.
        source = source.clamp(min=0)[:, None, :, None]
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                index = source.expand(-1, old.shape[1], -1, old.shape[3])
                setattr(layer, name, old.gather(2, index.to(old.device)))

    @property
    def _width(self) -> int:
        """Columns of the cache, padding included."""
        return self._cache.get_seq_length()

    def _check_memory(self, width: int) -> None:
        """Refuse a cache in which a layer has not `width` columns of keys and values.

        Models with another memory (recurrent states, or a cache that they alone know of) leave the
        one they were given empty, and would silently forget all but the last tokens.
        """
        for layer in self._cache.layers or [None]:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            for columns in (keys, values):
                if not isinstance(columns, Tensor) or columns.shape[2] != width:
                    raise ValueError(_no_kv_cache(self._model))


def normalised(logits: Float[Tensor, "*M V"]) -> Float[Tensor, "*M V"]:
    """Give the log-probabilities, in float32 at least."""
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _check_plain(model: Any) -> None:
    # Asked beforehand, as hybrids fail in the middle of a pass when given a plain cache.
    if is_stateful(model) or "other" in planned_layers(model):
        raise ValueError(_no_kv_cache(model))


def _padded(parts: Sequence[Float[Tensor, "heads _ d"]]) -> Float[Tensor, "B heads L d"]:
    """Stack keys or values of unequal lengths, zeros before them."""
    if len(parts) == 1:
        return parts[0].unsqueeze(0)
    width = max(part.shape[1] for part in parts)
    return torch.stack(
        [torch.nn.functional.pad(part, (0, 0, width - part.shape[1], 0)) for part in parts]
    )


def _no_kv_cache(model: Any) -> str:
    """Return the error of a model whose rows cannot be moved."""
    return (
        f"{type(model).__name__} does not keep its memory as one column of keys and values per "
        "token in each layer, so its rows cannot be moved; use a model with an ordinary KV cache"
    )


def _last_columns(lengths: Int64[Tensor, "R"], width: int) -> Bool[Tensor, "R L"]:
    """Return a mask that is true in the last `lengths[r]` of `width` columns."""
    columns = torch.arange(width, device=lengths.device)
    return columns >= width - lengths.unsqueeze(1)


def _positions(mask: Bool[Tensor, "R L"], count: int) -> Int64[Tensor, "R T"]:
    """Return the positions of the last columns; padding has none."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -count:]
