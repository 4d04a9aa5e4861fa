"""Logits processor for vLLM's V1 model runner, which passes the tokens of each request as a list.

A batch row's state is computed from its constraint and its tokens. The list of tokens belongs to
the engine, which may truncate it (preemption, discarded steps) or replace placeholders of -1 later
(asynchronous scheduling). So if the tokens of the previous step are unchanged, a step continues
after them. Otherwise it starts from the beginning. States and masks are computed on the host, which
has the tokens. Tables on a device would delay the first mask of a large constraint.

The weights of particles' rows (`gcd_vllm._particle_request`) are stored
(`gcd_vllm._step_weights`). Particles of P-GCD are drawn from another distribution
(`gcd_vllm._twist`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcd import TokenAutomaton
from gcd._serving.matcher import masks_of
from gcd_vllm._admission import NAME, Admitted, admission_of, prefix_of
from gcd_vllm._deadlines import MANY, Deadlines
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._pool import DEAD, on_device
from gcd_vllm._processor import Processor
from gcd_vllm._step_weights import StepWeights, WeightedRow, WeightedRows
from gcd_vllm._twist import Groups, TwistedRow, log_z_of, twist_rows, write
from gcd_vllm._weight_table import Record


class TokenReader:
    """Computes the state after a list of tokens, which usually continues the previous call's list.

    The tokens in `prefix` precede every list.
    """

    def __init__(self, automaton: TokenAutomaton, prefix: Sequence[int] = ()) -> None:
        self._automaton = automaton
        self._read: list[int] = []
        self._state = self._initial = automaton.initial
        self._state = self._initial = self.state(prefix)
        self._read = []

    def state(self, tokens: Sequence[int]) -> int:
        """Return the state after all tokens; -1 if a token is not allowed or is not an id."""
        automaton, count = self._automaton, len(self._read)
        if list(tokens[:count]) != self._read:
            self._read, self._state, count = [], self._initial, 0
        for token in tokens[count:]:
            if not 0 <= token < automaton.vocabulary.size:
                return DEAD  # possibly a placeholder, so it and later tokens are not cached
            self._state = automaton.step(self._state, token)
            self._read.append(token)
        return self._state


class _Row:
    """A request in the batch, with its constraint and its tokens so far."""

    def __init__(
        self,
        admitted: Admitted,
        tokens: list[int],
        until: float | None,
        prefix: list[int],
        record: Record | None,
        temperature: float,
        twist: TwistedRow | None,
    ) -> None:
        self.automaton, self.budget = admitted.automaton, admitted.budget
        self.tokens, self.until = tokens, until
        self.record, self.temperature, self.twist = record, temperature, twist
        if admitted.particle is not None:
            self.budget -= len(prefix)
            if admitted.particle.proposal == "lcd":
                self.budget = MANY
        self._reader = None if self.automaton is None else TokenReader(self.automaton, prefix)

    def mask(self, fit: int) -> np.ndarray | None:
        """Return the packed mask of the next token; None if the answer can only end."""
        state = DEAD if self._reader is None else self._reader.state(self.tokens)
        if self.automaton is None or state == DEAD:  # a token isn't allowed, or isn't known yet
            return None
        left = self.budget - len(self.tokens)
        if fit < left:
            left = min(left, max(fit, int(self.automaton.steps_to_accept[state])))
        found = masks_of(self.automaton).row(state, left)
        return found if found.any() else None


class EngineProcessor(Processor):
    """Logits processor that masks the rows of constrained requests in the V1 model runner."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._admission = admission_of(vllm_config)
        self._admission.warm_up()
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._deadlines = Deadlines()
        self._weights: StepWeights | None = None
        self._weighted: WeightedRows | None = None  # of this batch
        self._groups = Groups(device)

    def update_state(self, batch_update: Any) -> None:
        """Update the rows; vLLM lists requests that leave the batch, enter it, and move in it."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, tokens in batch_update.added:
            self._rows.pop(index, None)
            text = (getattr(params, "extra_args", None) or {}).get(NAME)
            if text is not None:
                self._rows[index] = self._row(params, text, prompt, tokens)
        for here, there, kind in batch_update.moved:
            moved, other = self._rows.pop(here, None), self._rows.pop(there, None)
            if moved is not None:
                self._rows[there] = moved
            if other is not None and kind.name == "SWAP":
                self._rows[here] = other
        weighted = [
            WeightedRow(row.record, index, row.tokens, row.temperature, row.twist is not None)
            for index, row in sorted(self._rows.items())
            if row.record is not None
        ]
        self._weighted = WeightedRows(weighted, self._device) if weighted else None

    def _row(self, params: Any, text: str, prompt: list[int] | None, tokens: list[int]) -> _Row:
        length = None if prompt is None else len(prompt)
        taken = self._admission.admit_or_refuse(params, text, length, prompt=prompt or ())
        until = self._deadlines.begin(params, taken.deadline_ms)
        admitted, group = self._groups.join(taken, self._admission)
        particle, temperature = admitted.particle, params.temperature
        prefix = [] if particle is None else prefix_of(particle, prompt or ())
        twist = None if group is None else TwistedRow(group, prefix, tokens, temperature)
        record = self._record(params, admitted)
        return _Row(admitted, tokens, until, prefix, record, temperature, twist)

    def _record(self, params: Any, admitted: Admitted) -> Record | None:
        """Return the record of a particle's weights; None if they weren't requested."""
        key = ParticleRequest.key_of(params)
        if not key:
            return None
        if self._weights is None:
            self._weights = StepWeights(self._device, self._admission.cache.vocabulary.eos_ids)
        return self._weights.begin(key, params.max_tokens, admitted.reason)

    def apply(self, logits: Tensor) -> Tensor:
        if not self._rows:
            return logits
        now, weighted = self._deadlines.step(), self._weighted
        if weighted is not None and self._weights is not None:
            self._weights.before_mask(logits, weighted)
        twists = [(i, row.twist) for i, row in self._rows.items() if row.twist is not None]
        twisted = twist_rows(logits, twists)
        refused = np.ones((len(self._rows), logits.shape[1]), np.bool_)
        for out, row in zip(refused, self._rows.values(), strict=True):
            mask = row.mask(self._deadlines.tokens_within(row.until, now))
            if mask is None:
                out[self._admission.eos_ids] = False
            else:
                bits = np.unpackbits(mask.view(np.uint8), count=out.size, bitorder="little")
                np.equal(bits, 0, out=out)
        penalty = torch.where(on_device(torch.from_numpy(refused), logits.device), -torch.inf, 0.0)
        at = on_device(torch.tensor([*self._rows], device="cpu"), logits.device)
        logits.index_add_(0, at, penalty.to(logits.dtype))
        write(logits, twisted)
        if weighted is not None and self._weights is not None:
            log_z = log_z_of(twisted, len(logits))
            self._weights.after_mask(logits, weighted, log_z_of=log_z)
        return logits
