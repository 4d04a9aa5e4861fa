"""Weights of particles in V2, where the drawn tokens are only on the device.

As in V1 (`gcd_vllm._step_weights`), log Z_t = log p(a) - log q(a) at any token a that the mask
allows, where log p and log q are the log-softmax before and after the mask. Both are stored until
the engine has written the drawn token to its buffer of tokens, and are then evaluated at this
token. Under P-GCD, log p - log q isn't log Z, so log Z is passed in. Nothing is copied to the host
before the end. vLLM's own log-probabilities would cost a pass over the logits, a copy to the host,
and time in Python for each row and step.

The drawn tokens are read when the next step begins. They are read earlier if a request enters,
because it may take over a slot whose last token hasn't been read yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd_vllm._weight_table import LOG_P, LOG_Q, LOG_Z, MOST_PARTICLES, WeightTable


class DeviceRows(NamedTuple):
    """Batch rows whose weights were requested, as tensors on the device."""

    at: Int64[Tensor, "R"] | None  # indices of the rows in the logits; None for all
    slots: Int64[Tensor, "R"]  # the engine's slot of each row
    records: Int64[Tensor, "R"]  # index of each row's record in the table
    steps: Int64[Tensor, "R"]  # number of tokens that each row has drawn
    position: Int64[Tensor, "R"]  # index of each row's next token among its slot's tokens
    temperature: Float[Tensor, "R 1"] | None  # T of each row; None if all are 1


class DeviceWeights(WeightTable):
    """Weights of particles in a V2 model runner, whose `LogitsProcRequestState` has the tokens."""

    def __init__(self, requests: Any, most: int = MOST_PARTICLES) -> None:
        super().__init__(requests.device, (), most)
        self._requests = requests
        self._scores = torch.empty((2, 0, 0), dtype=torch.float32, device=self._device)
        self._rows = torch.empty(0, dtype=torch.int64, device=self._device)
        self._last: DeviceRows | None = None
        self._log_z: Float[Tensor, "R"] | None = None  # of the last step, if some rows use P-GCD

    @torch.inference_mode()
    def before_mask(self, logits: Float[Tensor, "L V"], rows: DeviceRows) -> None:
        """Compute log p of all tokens for these rows, from logits that aren't masked yet."""
        self.note_drawn()
        count, size = len(rows.slots), logits.shape[1]
        if self._scores.shape[1] < count or self._scores.shape[2] != size:
            shape = (2, count, size)
            self._scores = torch.empty(shape, dtype=torch.float32, device=self._device)
            self._rows = torch.arange(count, device=self._device)
        self._log_softmax(logits, rows, 0)

    @torch.inference_mode()
    def after_mask(
        self,
        logits: Float[Tensor, "L V"],
        rows: DeviceRows,
        log_z_of: Float64[Tensor, "L"] | None = None,
    ) -> None:
        """Compute log q of all tokens for the rows passed to `before_mask`.

        `log_z_of` is log Z of the rows of the logits that P-GCD has changed, NaN for other rows.
        """
        self._log_softmax(logits, rows, 1)
        self._last, self._log_z = rows, None
        if log_z_of is not None:
            self._log_z = (log_z_of if rows.at is None else log_z_of[rows.at]).float()

    def _log_softmax(self, logits: Float[Tensor, "L V"], rows: DeviceRows, which: int) -> None:
        given = logits if rows.at is None else logits.index_select(0, rows.at)
        if rows.temperature is not None:
            given = given / rows.temperature
        torch.log_softmax(given.float(), -1, out=self._scores[which, : len(rows.slots)])

    @torch.inference_mode()
    def note_drawn(self) -> None:
        """Store log p and log q of the tokens that were drawn in the last step.

        The engine discards steps of unfinished prompts. It repeats them later, which overwrites the
        values stored for the discarded steps.
        """
        last, self._last = self._last, None
        if last is None:
            return
        tokens = self._requests.all_token_ids.gpu
        position = last.position.clamp(max=tokens.shape[1] - 1)
        drawn = tokens[last.slots, position].long()
        found = self._scores[:, self._rows[: len(drawn)], drawn]
        steps = last.steps.clamp(max=self.last_step)
        self._table[last.records, steps, LOG_P : LOG_Q + 1] = found.t()
        if self._log_z is not None:
            self._table[last.records, steps, LOG_Z] = self._log_z
