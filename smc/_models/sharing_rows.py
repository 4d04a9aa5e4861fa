"""Batch rows of a `transformers` model that share prompts and don't need padding.

A forward pass takes the tokens of all rows, concatenated into one sequence. Padding would be
costly: if one of eighty rows has a forced run of nine tokens, each of the other rows would compute
eight tokens of padding. This took 44 to 69% of the time in batches of tool calls. The attention
separates the rows (`smc._models.shared_prompts`), and is the only operation that pads rows to the
longest run. All other operations of a model process each token independently.

The cache stores the generated tokens of each row from the first column on. Therefore no columns
need to be moved when rows are extended by different lengths or truncated. Each prompt is stored
once, regardless of the number of rows.

Allocating a cache of this size in every step can take longer than the forward pass. So it has spare
columns, and copies of rows are written into arrays that the previous layer no longer needs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from smc._models.rows import normalize
from smc._models.shared_prompts import Groups, Packed, SharedPrompts, attend_to, with_shared_prompts
from smc._models.suitability import num_logits
from smc._models.transformers_internals import cache_argument, pass_through_cache


class SharingRows:
    """The KV cache of R prefixes after their prompts; see `smc._models.protocol.Rows`.

    Args:
        model: a model with plain causal attention.
        prompts: the KV cache of B prompts. At first there is one row per prompt.

    Attributes:
        lengths: number of generated tokens in each row.
    """

    def __init__(self, model: Any, prompts: SharedPrompts) -> None:
        self._whole, self._model = model, with_shared_prompts(model)
        self._prompts = prompts
        self._owner = torch.arange(len(prompts.lengths), device=prompts.lengths.device)
        self._layers = [(keys[:, :, :0], values[:, :, :0]) for keys, values in prompts.layers]
        self._spare: tuple[Tensor, Tensor] | None = None
        self.lengths = torch.zeros_like(prompts.lengths)

    @torch.inference_mode()
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append a run of tokens to each row, in one forward pass without padding."""
        R, T = runs.shape
        inside = torch.arange(T, device=runs.device) < lengths.unsqueeze(1)
        row, column = inside.nonzero(as_tuple=True)
        if not len(row):  # models raise errors for an empty sequence
            shape = R, T, num_logits(self._whole)
            return normalize(torch.empty(shape, dtype=self._model.dtype, device=runs.device))
        position = self.lengths[row] + column
        grown = self.lengths + lengths
        width = int(grown.max())
        self._widen(width)
        log_p = self._forward(runs[row, column], row, position, width)
        self.lengths = grown  # changed only after the forward pass, which may raise an error
        if len(row) == R * T:
            return log_p.view(R, T, log_p.shape[1])
        out = log_p.new_empty(R, T, log_p.shape[1])  # undefined beyond each run's length
        out[row, column] = log_p
        return out

    @torch.inference_mode()
    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows `ancestors`.

        Prompts without a row are removed once they are at least half of the prompts.
        """
        if torch.equal(ancestors.long(), torch.arange(len(self._owner), device=ancestors.device)):
            return
        self._owner, self.lengths = self._owner[ancestors], self.lengths[ancestors]
        used = torch.unique(self._owner)
        if len(used) and 2 * len(used) <= len(self._prompts.lengths):
            self._prompts = self._prompts.take(used)
            self._owner = torch.searchsorted(used, self._owner)
        self._copy(ancestors, int(self.lengths.max()) if len(ancestors) else 0)

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten each row to its first tokens; later tokens will overwrite the other columns."""
        self.lengths = torch.minimum(self.lengths, lengths)

    def _forward(
        self,
        tokens: Int[Tensor, "M"],
        row: Int64[Tensor, "M"],
        position: Int64[Tensor, "M"],
        width: int,
    ) -> Float[Tensor, "M V"]:
        """Return log p after each token, given the token's row and its position in the row.

        `width` is the number of columns that the rows use.
        """
        M, owner = len(row), self._owner[row]
        packed = Packed(
            prompts=self._prompts,
            by_prompt=Groups.of(owner, len(self._prompts.lengths)),
            by_row=Groups.of(row, len(self.lengths)),
            row=row,
            position=position,
            layers=[(keys[:, :, :width], values[:, :, :width]) for keys, values in self._layers],
        )
        with attend_to(packed):
            output = self._model(
                input_ids=tokens.unsqueeze(0),
                # `_attend` ignores the mask. A model that uses it elsewhere fails the self-check.
                attention_mask=position.new_ones((), dtype=torch.bool).expand(1, 1, M, M),
                position_ids=(self._prompts.lengths[owner] + position).unsqueeze(0),
                use_cache=True,
                **cache_argument(self._model, pass_through_cache()()),
            )
        return normalize(output.logits[0])

    def _widen(self, width: int) -> None:
        """Pad the cache on the right to at least `width` columns."""
        held = self._layers[0][0].shape[2]
        if held < width:
            self._spare = None
            pad = partial(torch.nn.functional.pad, pad=(0, 0, 0, _capacity(width) - held))
            for number, (keys, values) in enumerate(self._layers):
                self._layers[number] = pad(keys), pad(values)  # frees the layer's old arrays

    def _copy(self, ancestors: Int[Tensor, "Q"], width: int) -> None:
        """Replace the rows of the cache, which use `width` columns."""
        room = self._layers[0][0].shape[2]
        if room > 2 * _capacity(width):  # only removed rows used them
            room, self._spare = _capacity(width), None
        copied, spare = [], self._spare
        for layer in self._layers:
            if spare is None or (len(spare[0]), spare[0].shape[2]) != (len(ancestors), room):
                keys, values = (
                    x.new_empty(len(ancestors), x.shape[1], room, x.shape[3]) for x in layer
                )
                spare = keys, values
            for old, new in zip(layer, spare, strict=True):
                torch.index_select(old[:, :, :room], 0, ancestors, out=new)
            copied.append(spare)
            spare = layer
        same = spare is not None and spare[0].shape == copied[0][0].shape
        self._layers, self._spare = copied, spare if same else None


def _capacity(width: int) -> int:
    """Return a number of columns for `width` used ones."""
    return width + width // 4 + 8
