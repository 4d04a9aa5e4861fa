"""Weights of particles in V1, which passes the drawn tokens to the host.

The model's probability of the tokens that the mask allows in step t is

    Z_t = sum over allowed v of p(v)

Here p is the model's distribution at temperature T. An answer drawn under the masks has the
importance weight prod_t Z_t. The log-probability of its token x_t is log p(x_t) under the model,
and log q(x_t) = log p(x_t) - log Z_t under the sampler. In vLLM, logits are divided by T after
logits processors, so the division by T is part of the computation here.

Two passes over the logits per step, a log-softmax before the mask and one after it, give log Z_t:
at any token a that is allowed, log Z_t = log p(a) - log q(a). The first log-softmax is stored in a
buffer until the next step, when the drawn token is known. Buffers are reused, because on a CPU,
allocating memory of this size takes longer than the arithmetic. On a CPU, the second log-softmax is
computed for a few rows at a time, which stay in the cache.

**P-GCD** (`gcd_vllm._twist`) draws from q(v) = p(v) g(v) / Z, so log p - log q differs from token
to token. Z is passed in, and log q of the drawn token is stored with log p.

**Asynchronous scheduling.** V1 then doesn't pass the last token of a request to processors. It is
an EOS if the answer is finished, so log p of every EOS id is stored, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd_vllm._pool import on_device
from gcd_vllm._weight_table import MOST_PARTICLES, Record, WeightTable

# Number of log-softmax entries that are computed at once: on a CPU as many as fit into its cache,
# on a GPU more, to launch fewer kernels.
_AT_ONCE = {"cpu": 1 << 18}
_AT_ONCE_ELSEWHERE = 1 << 26


class WeightedRow(NamedTuple):
    """Batch row whose weights were requested."""

    record: Record  # record of its particle
    row: int  # index of the row in the logits
    # Tokens of the answer that this request has drawn so far; the engine appends to it
    tokens: list[int]
    temperature: float  # T
    # True if the row is drawn from P-GCD's distribution; log q is then stored
    is_twisted: bool = False


class WeightedRows:
    """Batch rows (at least one) whose weights were requested, until the batch changes."""

    def __init__(self, rows: Sequence[WeightedRow], device: torch.device) -> None:
        self.rows = list(rows)
        self._first, numbers = rows[0].row, [each.row for each in rows]
        self._at: Int64[Tensor, "R"] | None = None  # indices in the logits, unless consecutive
        if numbers != list(range(self._first, self._first + len(rows))):
            self._at = on_device(torch.tensor(numbers, device="cpu"), device)
        self._temperature: Float[Tensor, "R 1"] | None = None  # unless all are 1
        if any(each.temperature != 1 for each in rows):
            given = torch.tensor([each.temperature for each in rows], device="cpu")
            self._temperature = on_device(given, device).unsqueeze(1)
        which = [i for i, each in enumerate(rows) if each.is_twisted]
        self.twisted: Int64[Tensor, "T"] | None = None  # indices of P-GCD's rows among the rows
        if which:
            self.twisted = on_device(torch.tensor(which, device="cpu"), device)

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, values: Float64[Tensor, "L"]) -> Float64[Tensor, "R"]:
        """Select the values of these rows from the values of all rows of the logits."""
        if self._at is None:
            return values[self._first : self._first + len(self)]
        return values[self._at]

    def log_softmax(
        self, logits: Float[Tensor, "L V"], part: slice, out: Float[Tensor, "P V"]
    ) -> None:
        """Write log p of all tokens to `out`, for a slice of the rows, at their temperatures."""
        if self._at is None:
            given = logits[self._first + part.start : self._first + part.stop]
        else:
            given = logits.index_select(0, self._at[part])
        if self._temperature is not None:
            given = given / self._temperature[part]
        torch.log_softmax(given.float(), -1, out=out)


class _Step(NamedTuple):
    """Values of the last step, whose drawn tokens aren't known yet."""

    rows: WeightedRows  # the rows of this step
    steps: list[int]  # the number of each row's step
    log_z: Float[Tensor, "R"]  # log Z of each row
    log_q: Float[Tensor, "T V"] | None  # log q of all tokens, for P-GCD's rows


class StepWeights(WeightTable):
    """Weights of the particles of one V1 model runner."""

    def __init__(
        self, device: torch.device, eos_ids: Sequence[int], most: int = MOST_PARTICLES
    ) -> None:
        super().__init__(device, eos_ids, most)
        self._log_p = torch.empty((0, 0), dtype=torch.float32, device=device)
        self._scratch = torch.empty((0, 0), dtype=torch.float32, device=device)
        self._ends = on_device(torch.tensor(self._eos_ids, device="cpu"), device)
        self._last: _Step | None = None

    @torch.inference_mode()
    def before_mask(self, logits: Float[Tensor, "L V"], rows: WeightedRows) -> None:
        """Compute log p of all tokens for these rows, from logits that aren't masked yet."""
        self.note_drawn()
        count, size = len(rows), logits.shape[1]
        if self._log_p.shape[0] < count or self._log_p.shape[1] != size:
            self._log_p = torch.empty((count, size), dtype=torch.float32, device=self._device)
        for part in self._parts(count, size):
            rows.log_softmax(logits, part, self._log_p[part])

    @torch.inference_mode()
    def after_mask(
        self,
        logits: Float[Tensor, "L V"],
        rows: WeightedRows,
        log_z_of: Float64[Tensor, "L"] | None = None,
    ) -> None:
        """Compute log Z of this step.

        `log_z_of` is log Z of the rows of the logits that P-GCD has changed, NaN for other rows.
        """
        count, size = len(rows), logits.shape[1]
        log_z = torch.empty(count, dtype=torch.float32, device=self._device)
        twisted = None
        if rows.twisted is not None:
            twisted = torch.empty((count, size), dtype=torch.float32, device=self._device)
        for part in self._parts(count, size):
            scratch = self._scratch[: part.stop - part.start]
            log_q = scratch if twisted is None else twisted[part]
            rows.log_softmax(logits, part, log_q)
            best, token = log_q.max(dim=1, keepdim=True)
            log_z[part] = (self._log_p[part].gather(1, token) - best).squeeze(1)
        if twisted is not None and log_z_of is not None:
            given = rows.of(log_z_of).float()
            log_z = torch.where(given.isnan(), log_z, given)
            twisted = twisted[rows.twisted]
        self._last = _Step(rows, [len(each.tokens) for each in rows.rows], log_z, twisted)

    def _parts(self, count: int, size: int) -> Iterator[slice]:
        """Divide `count` rows of length `size` into slices; allocate memory for one slice."""
        most = max(1, _AT_ONCE.get(self._device.type, _AT_ONCE_ELSEWHERE) // size)
        if self._scratch.shape[0] < min(most, count) or self._scratch.shape[1] != size:
            shape = (min(most, count), size)
            self._scratch = torch.empty(shape, dtype=torch.float32, device=self._device)
        for start in range(0, count, most):
            yield slice(start, min(start + most, count))

    @torch.inference_mode()
    def note_drawn(self) -> None:
        """Store log Z of the last step, and log p and log q of the tokens that were drawn in it.

        They are NaN for tokens that aren't known.
        """
        last, self._last = self._last, None
        if last is None:
            return
        # A token is unknown if it is a placeholder of -1, or if the step was discarded.
        known = [
            each.tokens[step] if len(each.tokens) > step else -1
            for each, step in zip(last.rows.rows, last.steps, strict=True)
        ]
        table_rows = [each.record.row for each in last.rows.rows]
        steps = [min(step, self.last_step) for step in last.steps]
        numbers = torch.tensor([table_rows, steps, known], dtype=torch.int64, device="cpu")
        table_row, step, token = on_device(numbers, self._device)
        missing, token = (token < 0).unsqueeze(1), token.clamp(min=0).unsqueeze(1)
        log_p = self._log_p[: len(known)]
        values = [last.log_z.unsqueeze(1), log_p.gather(1, token).masked_fill_(missing, torch.nan)]
        log_q = torch.full_like(values[0], torch.nan)
        if last.log_q is not None:
            which = last.rows.twisted
            log_q[which] = last.log_q.gather(1, token[which])
            log_q.masked_fill_(missing, torch.nan)
        self._table[table_row, step] = torch.cat(
            [*values, log_q, log_p.index_select(1, self._ends)], dim=1
        )
