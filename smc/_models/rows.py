"""Batch rows of a `transformers` model: the KV caches of prefixes in progress.

Rows of different lengths share one rectangular cache, padded on the left: the valid columns of row
r are always its *last* `lengths[r]` columns. The lengths therefore determine the attention mask and
the positions. Models measure sliding attention windows in columns. This is correct here, because
there is no padding between the tokens of a row. Prefilling pads on the left. Runs of different
lengths and truncation leave padding on the right, so the columns of each row are shifted afterward
(`_align`, one gather operation per layer).

Padding changes a row's result only through the order of floating-point sums: masked columns have
weight exactly zero, and positions count real tokens.

These rows contain prompt and answer, and support any model with an ordinary cache. Most models also
support the rows of `smc._models.sharing_rows`, which store each prompt once and don't need padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from smc._models.protocol import OpenedPrompt
from smc._models.transformers_internals import cache_argument, is_stateful, list_layers


class SharedPrompts(NamedTuple):
    """Keys and values of B prompts, padded on the left.

    Attributes:
        lengths: number of tokens of each prompt, which are in its last columns.
        layers: keys and values of each layer.
    """

    lengths: Int64[Tensor, "B"]
    layers: Sequence[tuple[Float[Tensor, "B heads L d"], Float[Tensor, "B heads L d2"]]]

    def take(self, prompts: Int64[Tensor, "C"]) -> SharedPrompts:
        """Return a copy of some of the prompts, without columns that are padding in all of them."""
        lengths = self.lengths[prompts]
        spare = self.layers[0][0].shape[2] - int(lengths.max())
        layers = [(k[prompts, :, spare:], v[prompts, :, spare:]) for k, v in self.layers]
        return SharedPrompts(lengths, layers)


def together(prompts: Sequence[OpenedPrompt]) -> SharedPrompts:
    """Batch the keys and values of prompts, padded on the left; a single prompt is not copied."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=prompts[0].log_p.device)
    layers = [
        (_pad([keys for keys, _ in same]), _pad([values for _, values in same]))
        for same in zip(*(prompt.layers for prompt in prompts), strict=True)
    ]
    return SharedPrompts(lengths, layers)


class TransformersRows:
    """The KV cache of R prefixes; see `smc._models.protocol.Rows`.

    Attributes:
        lengths: number of valid columns of each row, which are its last columns.
        prompt_lengths: number of valid columns that belong to the prompt.

    Raises:
        ValueError: the model doesn't have an ordinary KV cache.
    """

    def __init__(self, model: Any, prompt_lengths: Int64[Tensor, "R"]) -> None:
        from transformers import DynamicCache

        _check_plain(model)
        self._model = model
        # Without a config every layer stores all columns; the mask implements sliding windows.
        self._cache: Any = DynamicCache()
        self.prompt_lengths = prompt_lengths
        self.lengths = prompt_lengths

    @classmethod
    def after(cls, model: Any, prompts: SharedPrompts) -> TransformersRows:
        """Create one row per computed prompt."""
        rows = cls(model, prompts.lengths)
        for number, (keys, values) in enumerate(prompts.layers):
            rows._cache.update(keys, values, number)
        return rows

    def prompts(self) -> SharedPrompts:
        """Return the keys and values of all rows as `SharedPrompts`, without copying them."""
        layers = [(layer.keys, layer.values) for layer in self._cache.layers]
        return SharedPrompts(self.lengths, layers)

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append a run of tokens to each row, in one forward pass."""
        run_length = runs.shape[1]
        before = self.lengths
        self.lengths = before + lengths
        # Shorter runs are padded on the right; the padding is removed below.
        full = torch.arange(run_length, device=runs.device) < lengths.unsqueeze(1)
        log_p = self.read(torch.where(full, runs, 0), before + run_length)
        if not bool(full.all()):
            self._align(before + run_length, self.lengths)
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows `ancestors`; do nothing if no row changes."""
        same = torch.arange(self.lengths.shape[0], device=ancestors.device)
        if torch.equal(ancestors.long(), same):
            return
        self.lengths = self.lengths[ancestors]
        self.prompt_lengths = self.prompt_lengths[ancestors]
        # Drop the columns that are padding in all remaining rows.
        spare = self._width - int(self.lengths.max()) if len(ancestors) else 0
        for layer in self._cache.layers:
            here = ancestors.to(layer.keys.device)  # layers may be on different devices
            layer.keys = layer.keys[:, :, spare:].index_select(0, here)
            layer.values = layer.values[:, :, spare:].index_select(0, here)

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten each row to its prompt and its first `lengths[r]` generated tokens."""
        kept = torch.minimum(self.prompt_lengths + lengths, self.lengths)
        self._align(self.lengths, kept)
        self.lengths = kept

    @torch.inference_mode()
    def read(
        self, tokens: Int[Tensor, "R T"], valid: Int64[Tensor, "R"], **options: int
    ) -> Float[Tensor, "R T2 V"]:
        """Run the model on one or more tokens per row."""
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
        return normalize(output.logits)

    def _align(self, valid: Int64[Tensor, "R"], kept: Int64[Tensor, "R"]) -> None:
        """Keep the first `kept` of each row's last `valid` columns, and move them to the end."""
        width = self._width
        new_width = int(kept.max())
        columns = torch.arange(new_width, device=kept.device) - new_width
        source = (width - valid + kept).unsqueeze(1) + columns
        # Columns before the row's first token become padding and may hold any values.
        source = source.clamp(min=0)[:, None, :, None]
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                index = source.expand(-1, old.shape[1], -1, old.shape[3])
                setattr(layer, name, old.gather(2, index.to(old.device)))

    @property
    def _width(self) -> int:
        """Number of cache columns, including padding."""
        return self._cache.get_seq_length()

    def _check_memory(self, width: int) -> None:
        """Raise an error unless every layer has `width` columns of keys and values.

        Models with another kind of memory, such as recurrent states, leave this cache empty. They
        would silently ignore all but the last tokens.
        """
        for layer in self._cache.layers or [None]:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            for columns in (keys, values):
                if not isinstance(columns, Tensor) or columns.shape[2] != width:
                    raise ValueError(_no_kv_cache(self._model))


def normalize(logits: Float[Tensor, "*M V"]) -> Float[Tensor, "*M V"]:
    """Convert logits to log-probabilities, in at least float32."""
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _check_plain(model: Any) -> None:
    # This is checked beforehand, because hybrid models fail inside a forward pass with this cache.
    if is_stateful(model) or "other" in list_layers(model):
        raise ValueError(_no_kv_cache(model))


def _pad(parts: Sequence[Float[Tensor, "heads _ d"]]) -> Float[Tensor, "B heads L d"]:
    """Stack keys or values of different lengths, padded with zeros on the left."""
    if len(parts) == 1:
        return parts[0].unsqueeze(0)
    width = max(part.shape[1] for part in parts)
    return torch.stack(
        [torch.nn.functional.pad(part, (0, 0, width - part.shape[1], 0)) for part in parts]
    )


def _no_kv_cache(model: Any) -> str:
    """Return the error message for a model without an ordinary KV cache."""
    return (
        "expected a model whose KV cache has one column of keys and values per token in each "
        f"layer, got {type(model).__name__}, which has another kind of memory; use another model"
    )


def _last_columns(lengths: Int64[Tensor, "R"], width: int) -> Bool[Tensor, "R L"]:
    """Return a mask that is True in the last `lengths[r]` of `width` columns of row r."""
    columns = torch.arange(width, device=lengths.device)
    return columns >= width - lengths.unsqueeze(1)


def _positions(mask: Bool[Tensor, "R L"], count: int) -> Int64[Tensor, "R T"]:
    """Return the positions of the last `count` columns; padding has position 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -count:]
