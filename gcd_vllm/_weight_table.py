"""Table on the device of the values from which weights are computed, by particle and step.

Values are stored by particle, so they stay correct if batch rows are reused, requests are
preempted, or steps are repeated. There is no host synchronization before `take`. A particle's
values are stored until they are taken. If there are more than `MOST_PARTICLES`, the oldest are
dropped, which limits the memory for aborted requests. `gcd_vllm._step_weights` fills the table in
V1, `gcd_vllm._device_weights` in V2.

Engines run in inference mode, and remote calls don't. The methods here set it, because a tensor
that was created in inference mode can't be changed outside of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor

MOST_PARTICLES = 1 << 16
"""Maximum number of particles whose weights are stored at a time."""
_FIRST_ROWS, _FIRST_STEPS = 64, 64
LOG_Z, LOG_P, LOG_Q, LOG_P_EOS = 0, 1, 2, 3
"""Columns of the table. There is one LOG_P_EOS column for each EOS id."""
NO_ROW = 0
"""Row for values that aren't needed any longer."""


@dataclass(slots=True, eq=False)
class Record:
    """A particle whose values are stored, with its row in the table."""

    row: int  # `NO_ROW` once the values were taken or dropped
    refusal: str | None  # reason why the engine doesn't serve the request; None if it does


class WeightTable:
    """Table of the values from which the weights of an engine's particles are computed.

    Log p of each of the `eos_ids` is stored at every step. The last step of the table is for steps
    beyond the requested number of tokens, which engines with asynchronous scheduling begin before
    they know that an answer has ended.
    """

    def __init__(
        self, device: torch.device, eos_ids: Sequence[int], most: int = MOST_PARTICLES
    ) -> None:
        self._most, self._device, self._eos_ids = most, device, list(eos_ids)
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._table = self._empty(_FIRST_ROWS, _FIRST_STEPS)
        self._free = list(range(NO_ROW + 1, _FIRST_ROWS))
        self.dropped = 0  # number of records whose rows have been dropped so far
        _tables.add(self)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def last_step(self) -> int:
        """Index of the table's last step, which collects the values of superfluous steps."""
        return self._table.shape[1] - 1

    def _empty(self, rows: int, steps: int) -> Float[Tensor, "rows steps K"]:
        shape = (rows, steps, LOG_P_EOS + len(self._eos_ids))
        return torch.full(shape, torch.nan, dtype=torch.float32, device=self._device)

    @torch.inference_mode()
    def begin(self, key: str, steps: int, refusal: str | None) -> Record:
        """Return a particle's record, creating it unless the particle was preempted."""
        record = self._records.get(key)
        if record is None:
            while len(self._records) >= self._most:
                self._drop([next(iter(self._records))])
            if not self._free:
                self._grow(len(self._table), 0)
            record = self._records[key] = Record(self._free.pop(), refusal)
        record.refusal = refusal
        self._grow(0, steps - self.last_step)
        return record

    def _grow(self, rows: int, steps: int) -> None:
        if rows <= 0 and steps <= 0:
            return
        have_rows, have_steps, _ = self._table.shape
        more = max(steps, have_steps) if steps > 0 else 0
        table = self._empty(have_rows + rows, have_steps + more)
        table[:have_rows, : have_steps - 1] = self._table[:, :-1]
        self._table = table
        self._free += range(have_rows, have_rows + rows)

    def _drop(self, keys: Sequence[str]) -> None:
        """Free the rows of the table that hold the values of these particles."""
        records = [self._records.pop(key) for key in keys]
        self._table[[record.row for record in records]] = torch.nan
        for record in records:
            self._free.append(record.row)
            record.row = NO_ROW
        self.dropped += len(records)

    def note_drawn(self) -> None:
        """Store the values of the engine's last step, whose drawn tokens are known now."""
        raise NotImplementedError

    @torch.inference_mode()
    def take(self, run: str) -> dict[str, Any]:
        """Return and delete the values of particles whose keys begin with `run`.

        Returns:
            For each key a list of the values of each step: log Z_t, log p(x_t), log q(x_t), and log
            p of each EOS id. NaN stands for an unknown value, as for log q in V1 without P-GCD. For
            a refused particle, the reason as text.
        """
        self.note_drawn()
        keys = [key for key in self._records if key.startswith(run)]
        if not keys:
            return {}
        values = self._table[[self._records[key].row for key in keys], :-1].cpu()
        log_z = values[:, :, LOG_Z]
        missing = log_z.isnan()
        log_z[missing] = (values[:, :, LOG_P] - values[:, :, LOG_Q])[missing]
        reached = (~log_z.isnan()).long()
        lengths = (reached * torch.arange(1, reached.shape[1] + 1, device="cpu")).amax(dim=1)
        rows = values[:, : int(lengths.max())].tolist()
        found: dict[str, Any] = {}
        for key, steps, length in zip(keys, rows, lengths.tolist(), strict=True):
            found[key] = self._records[key].refusal or steps[:length]
        self._drop(keys)
        return found

    @torch.inference_mode()
    def forget(self, run: str) -> int:
        """Delete the values of all particles whose keys begin with `run`; return their number."""
        keys = [key for key in self._records if key.startswith(run)]
        if keys:
            self._drop(keys)
        return len(keys)


_tables: WeakSet[WeightTable] = WeakSet()
_lock = Lock()


def take(run: str) -> dict[str, Any]:
    """Return and delete the values of particles in all engines; see `WeightTable.take`."""
    found: dict[str, Any] = {}
    with _lock:
        for table in list(_tables):
            found |= table.take(run)
    return found


def forget(run: str) -> int:
    """Delete the values of particles whose keys begin with `run`, in all engines; count them."""
    with _lock:
        return sum(table.forget(run) for table in list(_tables))
