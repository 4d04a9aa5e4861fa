"""Logits processor for vLLM's V2 model runner, with all data on the device.

The runner samples ahead of the host: when a step's masks are computed, the host does not know the
tokens of the previous step yet. So states are tensors, with one entry for each request's slot. They
are updated on the device, by gathers, for the tokens that the runner commits to
`all_token_ids[slot, prompt_len:total_len]`. There are no host synchronizations.

A slot's state is computed from its constraint and its committed tokens; `count` is the number of
tokens processed so far. When a request enters, or returns after preemption, its slot starts at the
beginning and processes all its tokens. A step commits at most one token more than it had drafts.

The runner doesn't report when a request ends. So the device only has to store the automata of the
current batch, and other automata may be evicted. If a slot returns to the batch, its automaton
is added again, possibly at another location. The slot's state stays valid, because states are
numbered within the automaton.

The logits have a row for each token of a draft. The automaton state for a row includes the draft's
tokens up to this row, which are in `input_ids`. A slot's state only includes committed tokens,
because a draft may be rejected.

Particles of P-GCD are drawn from another distribution (`gcd_vllm._device_twist`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcd import TokenAutomaton
from gcd_vllm._admission import NAME, Admitted, admission_of
from gcd_vllm._deadlines import MANY, Deadlines
from gcd_vllm._device_twist import DeviceTwists, SlotStates
from gcd_vllm._device_weights import DeviceRows, DeviceWeights
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._pool import NOWHERE, AutomatonPool, on_device
from gcd_vllm._processor import Processor
from gcd_vllm._twist import Group, TwistedLogits, log_z_of, write
from gcd_vllm._weight_table import NO_ROW, Record


class EngineProcessor(Processor):
    """Logits processor that masks the rows of constrained requests in the V2 model runner."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._admission = admission_of(vllm_config)
        self._admission.warm_up()
        self._requests = req_states
        self._drafts = int(vllm_config.num_speculative_tokens or 0)
        slots, device = req_states.max_num_reqs, req_states.device
        self._pool: AutomatonPool | None = None  # until a request has a constraint
        # A slot's location in the pool (4), its budget, its state, how many tokens the state
        # includes, tokens at the prompt's end that belong to the answer, the row of its weights.
        self._slots = torch.zeros((slots, 9), dtype=torch.int64, device=device)
        self._taken: list[Admitted | None] = [None] * slots
        self._constrained = np.zeros(slots, np.bool_)
        self._placed: dict[int, TokenAutomaton | None] = {}  # the last batch's slots
        self._new: set[int] = set()  # slots that were taken, and are not written yet
        self._until: list[float | None] = [None] * slots
        self._deadlines = Deadlines()
        self._weights: DeviceWeights | None = None
        self._dropped = 0  # records that `_weights` had dropped when this was checked last
        self._particles: dict[int, Record] = {}
        self._weighted = np.zeros(slots, np.bool_)  # slots whose weights are stored
        self._temperatures = np.ones(slots, np.float32)
        self._twists = DeviceTwists(req_states)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Store a new request of the engine in its slot; return whether it has a constraint."""
        self._leave(req_idx)
        if self._weights is not None:
            self._weights.note_drawn()  # a token of the slot's last request is overwritten soon
        self._particles.pop(req_idx, None)
        self._weighted[req_idx] = False
        self._taken[req_idx] = self._until[req_idx] = None
        text = (getattr(sampling_params, "extra_args", None) or {}).get(NAME)
        if text is not None or self._constrained[req_idx]:
            self._new.add(req_idx)
        self._constrained[req_idx] = text is not None
        if text is None:
            return False
        length = int(self._requests.prompt_len.np[req_idx])
        if self._pool is None:
            self._pool = self._admission.pool(self._requests.device)
        taken = self._taken[req_idx] = self._admission.admit_or_refuse(
            sampling_params, text, length
        )
        self._until[req_idx] = self._deadlines.begin(sampling_params, taken.deadline_ms)
        self._temperatures[req_idx] = sampling_params.temperature
        self._note_particle(req_idx, sampling_params, taken.reason)
        return True

    def _note_particle(self, slot: int, params: Any, reason: str | None) -> None:
        """Prepare to store weights for a slot, if its request is a particle that asks for them."""
        key = ParticleRequest.key_of(params)
        if not key:
            return
        if self._weights is None:
            self._weights = DeviceWeights(self._requests)
        self._particles[slot] = self._weights.begin(key, params.max_tokens, reason)
        self._weighted[slot] = not self._drafts

    def apply_staged_writes(self) -> None:
        """Do nothing, because `apply` copies data to the device, depending on the batch."""

    def _leave(self, slot: int) -> None:
        automaton = self._placed.pop(slot, None)
        if automaton is not None and self._pool is not None:
            self._pool.leave(automaton)
        self._twists.leave(slot)

    def _place(self, pool: AutomatonPool, batch: list[int]) -> None:
        """Copy the automata of the batch's requests to the device, unless they are already there.

        If memory is short, automata of other requests are evicted.
        """
        for slot in self._placed.keys() - set(batch):
            self._leave(slot)
        entering = [slot for slot in batch if slot not in self._placed]
        begun: list[list[int]] = []
        # A slot that no longer has a constraint is a row that no mask changes.
        new = [
            [slot, *NOWHERE, 0, 0, 0, 0, NO_ROW]
            for slot in self._new
            if not self._constrained[slot]
        ]
        for slot in sorted(entering, key=self._new.__contains__):  # requests already running first
            taken = self._taken[slot] or Admitted(None, 1)
            if slot not in self._new:  # no room is left for an error text
                taken = taken._replace(room=1)
            wanted, group = self._twists.groups.join(taken, self._admission)
            admitted, location = self._admission.enter_pool(pool, wanted)
            if group is not None and admitted is wanted:
                self._enter_group(slot, group, admitted)
            record = self._particles.get(slot)
            if record is not None:
                record.refusal = admitted.reason
            if slot in self._new or admitted is not taken:
                particle, budget = admitted.particle, admitted.budget
                prefix = 0 if particle is None else particle.prefix_tokens
                if particle is not None and particle.proposal == "lcd":
                    budget = MANY
                weights = NO_ROW if record is None else record.row
                new.append([slot, *location, budget, location.initial, 0, prefix, weights])
            else:
                begun.append([slot, *location])
            self._taken[slot], self._placed[slot] = admitted, admitted.automaton
        if begun:
            written = on_device(torch.tensor(begun, device="cpu"), self._slots.device)
            self._slots[written[:, 0], :4] = written[:, 1:]
        if new:
            written = on_device(torch.tensor(new, device="cpu"), self._slots.device)
            self._slots[written[:, 0]] = written[:, 1:]
            numbers = [row[0] for row in new]
            had = self._requests.prefill_len.np[numbers] - self._requests.prompt_len.np[numbers]
            had = had + np.array([row[-2] for row in new])
            self._follow(pool, written[:, 0], int(had.max()))
        self._new.difference_update(row[0] for row in new)

    def _enter_group(self, slot: int, group: Group, admitted: Admitted) -> None:
        """Draw a slot from P-GCD's distribution while it is in the batch."""
        assert admitted.particle is not None
        tokens = None
        if slot in self._new:
            requests = self._requests
            tokens = int(requests.prefill_len.np[slot] - requests.prompt_len.np[slot])
            tokens += admitted.particle.prefix_tokens
        self._twists.enter(slot, group, float(self._temperatures[slot]), tokens)

    def _follow(self, pool: AutomatonPool, slots: Tensor, most: int) -> None:
        """Advance the automaton states of requests by up to `most` newly committed tokens each."""
        committed = self._requests.all_token_ids.gpu
        here = self._slots[slots]
        begin = self._requests.prompt_len.gpu[slots].long() - here[:, 7]
        number = self._requests.total_len.gpu[slots].long() - begin
        locations, state, count = here[:, :4], here[:, 5], here[:, 6]
        for _ in range(most):
            behind = count < number
            at = (begin + count).clamp(max=committed.shape[1] - 1)
            after = pool.next(locations, state, committed[slots, at].long())
            state = torch.where(behind, after, state)
            count = count + behind.long()
        self._slots[slots, 5] = state
        self._slots[slots, 6] = count

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        constrained, pool = self._constrained[ctx.idx_mapping_np], self._pool
        if pool is None:
            return logits
        now, batch = self._deadlines.step(), ctx.idx_mapping_np[constrained].tolist()
        self._place(pool, batch)
        if not constrained.any():
            return logits
        self._follow(pool, ctx.idx_mapping.long(), 1 + self._drafts)
        rows, at = ctx.expanded_idx_mapping.long(), None
        slots = rows
        local = ctx.expanded_local_pos.long()
        tokens = ctx.input_ids.long()
        one_each = logits.shape[0] == len(constrained)
        if not constrained.all():
            if one_each:
                at = on_device(torch.from_numpy(np.flatnonzero(constrained)), logits.device)
            else:
                # The host knows only the most rows that each request may have, not their number.
                # Rows without a constraint have width 0, and come last.
                most = int(constrained.sum()) * (1 + self._drafts)
                at = (self._slots[rows, 1] == 0).long().argsort(stable=True)[:most]
            rows, local, tokens = rows[at], local[at], tokens[at]
        here = self._slots[rows]
        locations, budget, state, count = here[:, :4], here[:, 4], here[:, 5], here[:, 6]
        if not one_each:
            for depth in range(1, self._drafts + 1):
                # The row before is that after one token less of the same draft.
                after = pool.next(locations, state.roll(1), tokens)
                state = torch.where(local == depth, after, state)
        left = budget - count - local
        fit = self._fit(batch, now)
        if fit is not None:
            needed = pool.steps_to_accept(locations, state)
            left = torch.minimum(left, torch.maximum(fit[rows] - local, needed))
        weighted = self._find_weighted(ctx, slots)
        if weighted is not None and self._weights is not None:
            self._weights.before_mask(logits, weighted)
        twisted: list[TwistedLogits] = []
        if self._twists.has_slots:
            positions = SlotStates(*self._slots[:, 4:8].unbind(1))
            twisted = self._twists.of(logits, ctx.idx_mapping_np.tolist(), positions)
        pool.mask_(logits, locations, state, left, at)
        write(logits, twisted)
        if weighted is not None and self._weights is not None:
            self._weights.after_mask(logits, weighted, log_z_of(twisted, len(logits)))
        return logits

    def _find_weighted(self, ctx: Any, slots: Tensor) -> DeviceRows | None:
        """Return the batch rows whose weights are stored; None if there are none."""
        self._forget_dropped()
        which, device = self._weighted[ctx.idx_mapping_np], self._slots.device
        if not which.any():
            return None
        at = temperature = None
        if not which.all():
            at = on_device(torch.from_numpy(np.flatnonzero(which)), device)
            slots = slots[at]
        given = self._temperatures[ctx.idx_mapping_np[which]]
        if (given != 1).any():
            temperature = on_device(torch.from_numpy(given), device).unsqueeze(1)
        here = self._slots[slots]
        steps = here[:, 6] - here[:, 7]
        position = self._requests.prompt_len.gpu[slots] + steps
        return DeviceRows(at, slots, here[:, 8], steps, position, temperature)

    def _forget_dropped(self) -> None:
        """Stop storing weights of requests whose rows of the weight table were dropped.

        Other particles may use these rows by now.
        """
        if self._weights is None or self._weights.dropped == self._dropped:
            return
        self._dropped = self._weights.dropped
        stale = [slot for slot, record in self._particles.items() if record.row == NO_ROW]
        for slot in stale:
            del self._particles[slot]
        self._weighted[stale] = False

    def _fit(self, batch: list[int], now: float) -> Tensor | None:
        """Return how many tokens each slot's request can draw before its deadline.

        The result is None if no deadline is near enough to matter.
        """
        fits = {slot: self._deadlines.tokens_within(self._until[slot], now) for slot in batch}
        few = {s: fit for s, fit in fits.items() if fit < self._requests.all_token_ids.gpu.shape[1]}
        if not few:
            return None
        fit = torch.full((self._slots.shape[0],), MANY, dtype=torch.int64, device="cpu")
        fit[list(few)] = torch.tensor(list(few.values()), device="cpu")
        return on_device(fit, self._slots.device)
