"""A language model in static shapes reads one token of each of P rows, and gives log p for each.

Rows are in lock step: after t tokens every row has t generated columns, those of rows that are over
being of no meaning. So positions are the same for all rows but for the lengths of their prompts,
nothing is ever aligned, and shapes stay as they are from the first step to the last, which is what
a captured graph needs.

`StaticTransformer` does that for causal models of `transformers`, with their `StaticCache`. Prompts
are read once each, then stand in the cache once for every particle. They are the same for all
particles of an example, so rows that become copies of others copy generated columns only.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smc.transformers_internals import (
    attention_name,
    cache_argument,
    is_stateful,
    planned_layers,
    set_static_length,
    static_cache,
)


class NotStaticError(ValueError):
    """Something that static shapes cannot serve; the message says what, and what to do."""


@runtime_checkable
class StaticLanguageModel(Protocol):
    """A language model that can also read in static shapes; see `smc.LanguageModel`."""

    def static_forward(self) -> Forward:
        """Return the model as one that reads in static shapes.

        Raises:
            NotStaticError: this model cannot.
        """
        ...


@runtime_checkable
class Forward(Protocol):
    """A language model that reads in static shapes; its memory changes in place."""

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Read each prompt (token ids), and make N rows of each, with room for `budget` tokens.

        Returns:
            Log-probabilities of the first token.
        """
        ...

    def step(
        self, tokens: Int64[Tensor, "P"], source: Int64[Tensor, "P"], step: Int64[Tensor, ""]
    ) -> Float[Tensor, "P V"]:
        """Make row r a copy of what was row `source[r]`, and append `tokens[r]` to it.

        Args:
            tokens: any id for a row that is over.
            source: precondition: any row r that is used as a source has source[r] = r.
            step: how many tokens have been appended before.

        Returns:
            Log-probabilities of the next token.
        """
        ...

    def rewind(self) -> None:
        """Forget all generated tokens."""
        ...


class StaticTransformer:
    """A `Forward` of a causal `transformers` model.

    Args:
        model: it must attend to all that came before, and its attention must take a mask
            with a value for each column ("sdpa" or "eager").
        context: positions that it was built for; None for no limit.

    Raises:
        NotStaticError: it does not.
    """

    def __init__(self, model: Any, context: int | None = None) -> None:
        if is_stateful(model) or not planned_layers(model) <= {"full"}:
            raise NotStaticError(
                f"{type(model).__name__} does not attend to all columns in every layer (a sliding "
                "window, or a recurrent state), which static shapes need; give execution='eager'"
            )
        attention = attention_name(model.config) or "eager"
        if attention not in ("sdpa", "eager"):
            raise NotStaticError(
                f"the model's attention is {attention!r}, which takes no mask of its own columns; "
                "load it with attn_implementation='sdpa'"
            )
        if torch.is_autocast_enabled(model.device.type):
            raise NotStaticError(
                "under torch.autocast keys and values have different types, and static memory has "
                "one; give execution='eager', or load the model in the lower precision"
            )
        if len({parameter.device for parameter in model.parameters()}) > 1:
            raise NotStaticError(
                "the model lies on several devices, and static shapes are for one; give "
                "execution='eager'"
            )
        self.model = model
        # For a model without a limit any number will do that an integer can hold.
        self._last_position = (context or 1 << 62) - 1
        self._last_only = (
            {"logits_to_keep": 1}
            if "logits_to_keep" in inspect.signature(model.forward).parameters
            else {}
        )

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.device

    @torch.inference_mode()
    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Read all prompts in one forward pass, padded on the left; see `Forward`."""
        from transformers import DynamicCache

        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        column = torch.arange(width, device=self.device)
        full = column >= (width - lengths).unsqueeze(1)
        read = DynamicCache()
        logits = self.model(
            input_ids=tokens,
            attention_mask=full.long(),
            position_ids=(full.long().cumsum(dim=1) - 1).clamp(min=0),
            use_cache=True,
            **cache_argument(self.model, read),
            **self._last_only,
        ).logits[:, -1]

        each = torch.arange(len(prompts), device=self.device).repeat_interleave(num_particles)
        self.width, self.columns = width, width + budget
        self._lengths = lengths[each]
        self._first = (width - lengths)[each].unsqueeze(1)
        # All layers in one piece of memory, so that rows are moved in one operation.
        pieces = []
        for side in ("keys", "values"):
            parts = [getattr(layer, side) for layer in read.layers]
            heads, size = parts[0].shape[1], parts[0].shape[3]
            piece = parts[0].new_zeros(len(parts), len(each), heads, self.columns, size)
            for number, part in enumerate(parts):
                piece[number, :, :, :width] = part[each]
            pieces.append(piece)
        self._keys, self._values = pieces
        self._cache = static_cache(self.model, self.columns, self._keys, self._values)
        self.rewind()
        return _log_p(logits)[each]

    @torch.inference_mode()
    def step(
        self, tokens: Int64[Tensor, "P"], source: Int64[Tensor, "P"], step: Int64[Tensor, ""]
    ) -> Float[Tensor, "P V"]:
        """Move rows and read a token of each; see `Forward`."""
        for piece in (self._keys, self._values):
            move_rows(piece, source, self.width)
        column = torch.arange(self.columns, device=self.device)
        seen = (column >= self._first) & (column <= self.width + step)
        lowest = torch.finfo(self.model.dtype).min
        mask = torch.zeros_like(seen, dtype=self.model.dtype).masked_fill(~seen, lowest)
        logits = self.model(
            input_ids=tokens.unsqueeze(1),
            attention_mask=mask[:, None, None, :],
            # A row that is over goes on until the last one is, perhaps beyond the model's context.
            position_ids=(self._lengths + step).clamp(max=self._last_position).unsqueeze(1),
            use_cache=True,
            **cache_argument(self.model, self._cache),
        ).logits[:, 0]
        return _log_p(logits)

    def rewind(self) -> None:
        """Forget all generated tokens; see `Forward`."""
        set_static_length(self._cache, self.width)


def _log_p(logits: Float[Tensor, "P V"]) -> Float[Tensor, "P V"]:
    """Normalise in the logits' precision, float32 at least."""
    return logits.log_softmax(dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))


def move_rows(
    piece: Float[Tensor, "layers P heads columns d"], source: Int64[Tensor, "P"], first: int
) -> None:
    """Make row r a copy of row `source[r]` in every layer, from column `first` on, in place."""
    if piece.is_cuda and importlib.util.find_spec("triton") is not None:
        from smc.models.kernels.triton_rows import move_rows as in_place

        in_place(piece, source, first)
        return
    generated = piece[:, :, :, first:]
    generated.copy_(generated.index_select(1, source))
