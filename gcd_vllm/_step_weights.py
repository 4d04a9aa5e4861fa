"""Weights of particles, stored on the device where the engine samples.

The model's probability of the tokens that the mask allows in step t is

    Z_t = sum over allowed v of p(v)

Here p is the model's distribution at temperature T. An answer drawn under the masks has the
importance weight prod_t Z_t. The log-probability of its token x_t is log p(x_t) under the model,
and log q(x_t) = log p(x_t) - log Z_t under the sampler. In vLLM, logits are divided by T after
logits processors, so the division by T is part of the computation here.

Two passes over the logits per step, a log-softmax before the mask and one after it, give log Z_t:
at any token a that is allowed, log Z_t = log p(a) - log q(a). The first log-softmax is stored in a
buffer until the next step, when the drawn token is known. Buffers are reused, because on a CPU,
allocating memory of this size takes longer than the arithmetic.

**P-GCD** (`gcd_vllm._twist`) draws from q(v) = p(v) g(v) / Z, so log p - log q differs from token
to token. Z is passed in, and log q of the drawn token is stored with log p.

**Keys.** Values are stored by particle and step, so they stay correct if batch rows are reused,
requests preempted, or steps repeated. There is no host synchronization before `take`. A particle's
values are stored until they are taken. If there are more than `MOST_PARTICLES`, the oldest are
dropped, which limits the memory for aborted requests.

**Asynchronous scheduling.** V1 then doesn't pass the last token of a request to processors. It is
an EOS if the answer is finished, so log p of every EOS id is stored, too.

Engines run in inference mode, and remote calls don't. The methods here set it, because a tensor
that was created in inference mode can't be changed outside of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd._serving.pool import on_device

MOST_PARTICLES = 1 << 16
"""Maximum number of particles whose weights are stored at a time."""
_FIRST_ROWS, _FIRST_STEPS = 64, 64
# Entries of a log-softmax that are computed at once: what fits a CPU's cache, and what spares a GPU
# launches.
_AT_ONCE = {"cpu": 1 << 18}
_AT_ONCE_ELSEWHERE = 1 << 26
LOG_Z, LOG_P, LOG_Q, LOG_P_EOS = 0, 1, 2, 3
"""Columns of the table of values. There is one LOG_P_EOS column for each EOS id."""


class Record:
    """Values of one particle's steps.

    Attributes:
        row: the particle's row in the table; None after its values were taken or dropped.
        refusal: reason why the engine doesn't serve the request; None if it does.
    """

    __slots__ = ("refusal", "row")

    def __init__(self, row: int | None, refusal: str | None) -> None:
        self.row, self.refusal = row, refusal


class WeightedRow(NamedTuple):
    """Batch row whose weights were requested.

    Attributes:
        record: record of its particle.
        row: index of the row in the logits.
        tokens: tokens of the answer that this request has drawn so far; the engine appends to it.
        temperature: T.
        is_twisted: whether the row is drawn from P-GCD's distribution. If so, log q is stored.
    """

    record: Record
    row: int
    tokens: list[int]
    temperature: float
    is_twisted: bool = False


class _Drawn(NamedTuple):
    """Record of a step whose drawn token isn't known yet.

    `twisted` is the row with log q of the token; -1 if log q isn't stored.
    """

    record: Record
    tokens: list[int]
    step: int
    twisted: int


class StepWeights:
    """Weights of the particles of one engine.

    Args:
        device: device of the logits.
        eos_ids: ids that end a text.
        most: maximum number of particles whose values are stored.
    """

    def __init__(
        self, device: torch.device, eos_ids: Sequence[int], most: int = MOST_PARTICLES
    ) -> None:
        self._most, self._device, self._eos_ids = most, device, list(eos_ids)
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._table = self._empty(_FIRST_ROWS, _FIRST_STEPS)
        self._free = list(range(_FIRST_ROWS))
        self._log_p = torch.empty((0, 0), dtype=torch.float32, device=device)
        self._scratch = torch.empty((0, 0), dtype=torch.float32, device=device)
        self._log_q = torch.empty((0, 0), dtype=torch.float32, device=device)
        self._drawn: list[_Drawn] = []
        _stores.add(self)

    def __len__(self) -> int:
        return len(self._records)

    def _empty(self, rows: int, steps: int) -> Float[Tensor, "rows steps K"]:
        shape = (rows, steps, LOG_P_EOS + len(self._eos_ids))
        return torch.full(shape, torch.nan, dtype=torch.float32, device=self._device)

    @torch.inference_mode()
    def begin(self, key: str, steps: int, refusal: str | None) -> Record:
        """Return a particle's record, creating it unless the particle was preempted.

        Args:
            key: name of the particle.
            steps: maximum number of tokens that its request draws.
            refusal: reason why the engine refuses it; None if it doesn't.
        """
        record = self._records.get(key)
        if record is None:
            while len(self._records) >= self._most:
                self._drop(next(iter(self._records)))
            if not self._free:
                self._grow(len(self._table), 0)
            record = self._records[key] = Record(self._free.pop(), refusal)
            self._table[record.row] = torch.nan
        record.refusal = refusal
        self._grow(0, steps - self._table.shape[1])
        return record

    def _grow(self, rows: int, steps: int) -> None:
        if rows <= 0 and steps <= 0:
            return
        have_rows, have_steps, _ = self._table.shape
        more = max(steps, have_steps) if steps > 0 else 0
        table = self._empty(have_rows + rows, have_steps + more)
        table[:have_rows, :have_steps] = self._table
        self._table = table
        self._free += range(have_rows, have_rows + rows)

    def _drop(self, key: str) -> None:
        record = self._records.pop(key)
        assert record.row is not None, "a stored record has a row"
        self._free.append(record.row)
        record.row = None

    @torch.inference_mode()
    def before_mask(self, logits: Float[Tensor, "L V"], rows: Sequence[WeightedRow]) -> None:
        """Compute log p of these rows from logits that aren't masked yet."""
        self._note_drawn()
        count, size = len(rows), logits.shape[1]
        if self._log_p.shape[0] < count or self._log_p.shape[1] != size:
            self._log_p = torch.empty((count, size), dtype=torch.float32, device=self._device)
        scaled = _Scaled.of(logits, rows)
        for part in self._parts(count, size):
            scaled.log_softmax(part, self._log_p[part])

    @torch.inference_mode()
    def after_mask(
        self,
        logits: Float[Tensor, "L V"],
        rows: Sequence[WeightedRow],
        steps: Int64[Tensor, "R"] | None = None,
        log_z_of: Float64[Tensor, "L"] | None = None,
    ) -> None:
        """Store the values of this step.

        Args:
            logits: the masked logits.
            rows: the same rows as before the mask.
            steps: number of each row's step, on the device; needed if the host doesn't know the
                tokens, and log p of drawn tokens isn't stored then. By default the length of
                `tokens`.
            log_z_of: log Z of the rows of the logits that P-GCD has changed, NaN for other rows.
        """
        count, log_p = len(rows), self._log_p
        log_z = torch.empty(count, dtype=torch.float32, device=self._device)
        scaled = _Scaled.of(logits, rows)
        for part in self._parts(count, logits.shape[1]):
            log_q = self._scratch[: part.stop - part.start]
            scaled.log_softmax(part, log_q)
            best, token = log_q.max(dim=1, keepdim=True)
            log_z[part] = (log_p[part].gather(1, token) - best).squeeze(1)
        twisted = [each for each in rows if each.is_twisted]
        if twisted and log_z_of is not None:
            given = log_z_of[self._numbers([(each.row,) for each in rows]).squeeze(1)].float()
            log_z = torch.where(given.isnan(), log_z, given)
            self._log_q = torch.empty(
                (len(twisted), logits.shape[1]), dtype=torch.float32, device=self._device
            )
            _Scaled.of(logits, twisted).log_softmax(slice(0, len(twisted)), self._log_q)
        at = [
            (i, each.record.row, len(each.tokens))
            for i, each in enumerate(rows)
            if each.record.row is not None and len(each.tokens) < self._table.shape[1]
        ]
        if at:
            i, row, step = self._numbers(at).unbind(1)
            if steps is not None:
                step = steps[i].clamp(max=self._table.shape[1] - 1)
            self._table[row, step, LOG_Z] = log_z[i]
            for column, eos in enumerate(self._eos_ids, start=LOG_P_EOS):
                self._table[row, step, column] = log_p[i, eos]
        if steps is None:
            number = iter(range(len(twisted)))
            self._drawn = [
                _Drawn(
                    each.record,
                    each.tokens,
                    len(each.tokens),
                    next(number) if each.is_twisted else -1,
                )
                for each in rows
            ]

    def _parts(self, count: int, size: int) -> Iterator[slice]:
        """Yield the rows that are computed at once, for which there is scratch memory."""
        most = max(1, _AT_ONCE.get(self._device.type, _AT_ONCE_ELSEWHERE) // size)
        if self._scratch.shape[0] < min(most, count) or self._scratch.shape[1] != size:
            shape = (min(most, count), size)
            self._scratch = torch.empty(shape, dtype=torch.float32, device=self._device)
        for start in range(0, count, most):
            yield slice(start, min(start + most, count))

    def _note_drawn(self) -> None:
        """Store log p of the tokens that were drawn after the last step."""
        at = [
            (i, each.record.row, each.step, each.tokens[each.step], each.twisted)
            for i, each in enumerate(self._drawn)
            if each.record.row is not None
            and len(each.tokens) > each.step
            and each.tokens[each.step] >= 0  # a placeholder for a token that isn't known
            and each.step < self._table.shape[1]
        ]
        self._drawn = []
        if at:
            i, row, step, token, _ = self._numbers(at).unbind(1)
            self._table[row, step, LOG_P] = self._log_p[i, token]
        twisted = [each[1:] for each in at if each[-1] >= 0]
        if twisted:
            row, step, token, i = self._numbers(twisted).unbind(1)
            self._table[row, step, LOG_Q] = self._log_q[i, token]

    def _numbers(self, rows: list[tuple[Any, ...]]) -> Int64[Tensor, "R C"]:
        return on_device(torch.tensor(rows, dtype=torch.int64, device="cpu"), self._device)

    @torch.inference_mode()
    def take(self, run: str) -> dict[str, Any]:
        """Return and delete the values of all particles whose keys begin with `run`.

        Returns:
            For each key a list of the values of each step: log Z_t, log p(x_t), log q(x_t), and log
            p of each EOS id. NaN stands for an unknown value, as for log q without P-GCD. For a
            refused particle, the reason as text.
        """
        self._note_drawn()
        keys = [key for key in self._records if key.startswith(run)]
        if not keys:
            return {}
        values = self._table[[self._records[key].row for key in keys]].cpu()
        reached = (~values[:, :, LOG_Z].isnan()).long()
        lengths = (reached * torch.arange(1, reached.shape[1] + 1, device="cpu")).amax(dim=1)
        found: dict[str, Any] = {}
        for key, steps, length in zip(keys, values, lengths.tolist(), strict=True):
            found[key] = self._records[key].refusal or steps[:length].tolist()
            self._drop(key)
        return found

    def forget(self, run: str) -> int:
        """Delete the values of all particles whose keys begin with `run`; return their number."""
        keys = [key for key in self._records if key.startswith(run)]
        for key in keys:
            self._drop(key)
        return len(keys)


class _Scaled(NamedTuple):
    """Rows of logits, and the temperature of each.

    Attributes:
        logits: logits of the whole batch.
        first: index of the first row, if the rows are consecutive.
        at: indices of the rows otherwise.
        temperature: temperature of each row; None if all are 1.
    """

    logits: Float[Tensor, "L V"]
    first: int
    at: Int64[Tensor, "R"] | None
    temperature: Float[Tensor, "R 1"] | None

    @classmethod
    def of(cls, logits: Float[Tensor, "L V"], rows: Sequence[WeightedRow]) -> _Scaled:
        numbers, first = [each.row for each in rows], rows[0].row
        at = temperature = None
        if numbers != list(range(first, first + len(rows))):
            at = on_device(torch.tensor(numbers, device="cpu"), logits.device)
        if any(each.temperature != 1 for each in rows):
            given = torch.tensor([each.temperature for each in rows], device="cpu")
            temperature = on_device(given, logits.device).unsqueeze(1)
        return cls(logits, first, at, temperature)

    def log_softmax(self, part: slice, out: Float[Tensor, "P V"]) -> None:
        """Write log p at each row's temperature, for a part of the rows."""
        if self.at is None:
            given = self.logits[self.first + part.start : self.first + part.stop]
        else:
            given = self.logits.index_select(0, self.at[part])
        if self.temperature is not None:
            given = given / self.temperature[part]
        torch.log_softmax(given.float(), -1, out=out)


_stores: WeakSet[StepWeights] = WeakSet()
_lock = Lock()


def take(run: str) -> dict[str, Any]:
    """Call `StepWeights.take` for all engines of this process."""
    found: dict[str, Any] = {}
    with _lock:
        for store in list(_stores):
            found |= store.take(run)
    return found


def forget(run: str) -> int:
    """Call `StepWeights.forget` for all engines of this process."""
    with _lock:
        return sum(store.forget(run) for store in list(_stores))
