"""Rows of a `transformers` model that share their prompts, and read without padding.

A pass is given the tokens of all rows behind each other, as one sequence. Where one row of eighty
is forced to go on by nine tokens, the others do not compute eight of padding (in batches of tool
calls that was 44 to 69 % of the time). What belongs together is sorted out in the attention
(`smc.models.shared_prompts`), the only place where rows are still padded to the longest run;
everything else in a model treats tokens one by one.

The cache has the generated tokens of each row in its first columns, which need no realigning when
rows grow by unequal lengths or are cut back. Prompts are held once, whatever the number of rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from smc.models.rows import normalised
from smc.models.shared_prompts import Groups, Packed, SharedPrompts, attending, sharing
from smc.models.suitability import num_logits
from smc.transformers_internals import cache_argument, pass_through_cache


class SharingRows:
    """The KV cache of what R prefixes have beyond their prompts; see `smc.models.protocol.Rows`.

    Args:
        model: with plain causal attention.
        prompts: what it remembers of B prompts, a row for each to begin with.

    Attributes:
        lengths: tokens of each row, the prompt aside.
    """

    def __init__(self, model: Any, prompts: SharedPrompts) -> None:
        self._whole, self._model = model, sharing(model)
        self._prompts = prompts
        self._owner = torch.arange(len(prompts.lengths), device=prompts.lengths.device)
        self._layers = [(keys[:, :, :0], values[:, :, :0]) for keys, values in prompts.layers]
        self.lengths = torch.zeros_like(prompts.lengths)

    @torch.inference_mode()
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Read all runs in one forward pass; what lies past their lengths is not read."""
        R, T = runs.shape
        inside = torch.arange(T, device=runs.device) < lengths.unsqueeze(1)
        row, column = inside.nonzero(as_tuple=True)
        if not len(row):  # models cannot read an empty sequence
            shape = R, T, num_logits(self._whole)
            return normalised(torch.empty(shape, dtype=self._model.dtype, device=runs.device))
        place = self.lengths[row] + column
        grown = self.lengths + lengths
        self._widen(int(grown.max()))
        log_p = self._read(runs[row, column], row, place)
        self.lengths = grown  # now, as a pass may fail
        if len(row) == R * T:
            return log_p.view(R, T, log_p.shape[1])
        out = log_p.new_empty(R, T, log_p.shape[1])  # what lies past a run's length is undefined
        out[row, column] = log_p
        return out

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Move rows; prompts stay where they are, until at least half of them have no row."""
        if torch.equal(ancestors.long(), torch.arange(len(self._owner), device=ancestors.device)):
            return
        self._owner, self.lengths = self._owner[ancestors], self.lengths[ancestors]
        used = torch.unique(self._owner)
        if len(used) and 2 * len(used) <= len(self._prompts.lengths):
            self._prompts = self._prompts.take(used)
            self._owner = torch.searchsorted(used, self._owner)
        # Columns that only removed rows used are dropped.
        width = int(self.lengths.max()) if len(ancestors) else 0
        self._layers = [
            (keys[:, :, :width][ancestors], values[:, :, :width][ancestors])
            for keys, values in self._layers
        ]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Forget the tokens of a row beyond its first ones; the next ones are written over them."""
        self.lengths = torch.minimum(self.lengths, lengths)

    def _read(
        self, tokens: Int[Tensor, "M"], row: Int64[Tensor, "M"], place: Int64[Tensor, "M"]
    ) -> Float[Tensor, "M V"]:
        """Read tokens, each at its place in its row; gives log-probabilities of the next ones."""
        M, owner = len(row), self._owner[row]
        packed = Packed(
            prompts=self._prompts,
            by_prompt=Groups.of(owner, len(self._prompts.lengths)),
            by_row=Groups.of(row, len(self.lengths)),
            row=row,
            place=place,
            layers=self._layers,
        )
        with attending(packed):
            output = self._model(
                input_ids=tokens.unsqueeze(0),
                # Never read; another function, whose answer is refused, would take it.
                attention_mask=place.new_ones((), dtype=torch.bool).expand(1, 1, M, M),
                position_ids=(self._prompts.lengths[owner] + place).unsqueeze(0),
                use_cache=True,
                **cache_argument(self._model, pass_through_cache()()),
            )
        return normalised(output.logits[0])

    def _widen(self, width: int) -> None:
        """Make room for so many columns."""
        more = width - self._layers[0][0].shape[2]
        if more > 0:
            pad = partial(torch.nn.functional.pad, pad=(0, 0, 0, more))
            self._layers = [(pad(keys), pad(values)) for keys, values in self._layers]
