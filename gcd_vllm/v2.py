"""The processor of vLLM's V2 model runner, which keeps everything on the device.

The runner samples ahead of the host: when a step's masks are made, the host does not know yet what
the step before has sampled. So states are tensors, one entry for each slot of a request, and follow
the tokens that the runner commits to `all_token_ids[slot, prompt_len:total_len]`, by gathers, in
the same queue of work. Nothing here reads a tensor back.

A slot's state is a function of its constraint and its committed tokens; `count` says how many of
them it has read. When a request enters, or comes back after preemption, its slot starts at the
beginning and reads all that it has. A step commits at most one token more than it had drafts.

Rows along a draft have the state after the draft's tokens, which lie in `input_ids`; that of the
slot stays where the committed tokens have led, so that a draft may be refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcd.serving.pool import NOWHERE, AutomatonPool, Place, on_device
from gcd.tokens.token_automaton import TokenAutomaton
from gcd_vllm import Processor
from gcd_vllm.admission import NAME, engine_of


class EngineProcessor(Processor):
    """Masks the rows of constrained requests in the V2 model runner."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._engine = engine_of(vllm_config)
        self._engine.warm_up()
        self._requests = req_states
        self._drafts = int(vllm_config.num_speculative_tokens or 0)
        slots, device = req_states.max_num_reqs, req_states.device
        self._pool: AutomatonPool | None = None  # until a request has a constraint
        # A slot's place in the pool (4), its budget, state, and how many tokens that has read.
        self._slots = torch.zeros((slots, 7), dtype=torch.int64, device=device)
        self._automata: list[TokenAutomaton | None] = [None] * slots
        self._constrained = np.zeros(slots, np.bool_)
        self._entered: dict[int, tuple[Place, int]] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a request into a slot; whether it has a constraint."""
        before, self._automata[req_idx] = self._automata[req_idx], None
        if before is not None and self._pool is not None:
            self._pool.leave(before)
        text = (getattr(sampling_params, "extra_args", None) or {}).get(NAME)
        if text is None:
            if self._constrained[req_idx]:
                self._entered[req_idx] = NOWHERE, 0
            self._constrained[req_idx] = False
            return False
        length = int(self._requests.prompt_len.np[req_idx])
        if self._pool is None:
            self._pool = self._engine.pool(self._requests.device)
        admitted = self._engine.lodge(self._pool, sampling_params, text, length)
        self._automata[req_idx] = admitted.automaton
        self._constrained[req_idx] = True
        self._entered[req_idx] = admitted.place, admitted.budget
        return True

    def apply_staged_writes(self) -> None:
        """Write the slots that requests have entered, and read the tokens that they came with."""
        if not self._entered:
            return
        rows = [
            [slot, *place, budget, place.initial, 0]
            for slot, (place, budget) in self._entered.items()
        ]
        self._entered.clear()
        written = on_device(torch.tensor(rows), self._slots.device)
        slots = written[:, 0]
        self._slots[slots] = written[:, 1:]
        numbers = [row[0] for row in rows]
        had = self._requests.prefill_len.np[numbers] - self._requests.prompt_len.np[numbers]
        if self._pool is not None and had.any():
            self._follow(self._pool, slots, int(had.max()))

    def _follow(self, pool: AutomatonPool, slots: Tensor, most: int) -> None:
        """Take the slots' states along the tokens committed since, at most so many of each."""
        committed = self._requests.all_token_ids.gpu
        begin = self._requests.prompt_len.gpu[slots].long()
        number = self._requests.total_len.gpu[slots].long() - begin
        here = self._slots[slots]
        places, state, count = here[:, :4], here[:, 5], here[:, 6]
        for _ in range(most):
            behind = count < number
            at = (begin + count).clamp(max=committed.shape[1] - 1)
            after = pool.next(places, state, committed[slots, at].long())
            state = torch.where(behind, after, state)
            count = count + behind.long()
        self._slots[slots, 5] = state
        self._slots[slots, 6] = count

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        constrained = self._constrained[ctx.idx_mapping_np]
        pool = self._pool
        if pool is None or not constrained.any():
            return logits
        self._follow(pool, ctx.idx_mapping.long(), 1 + self._drafts)
        rows, at = ctx.expanded_idx_mapping.long(), None
        local = ctx.expanded_local_pos.long()
        tokens = ctx.input_ids.long()
        one_each = logits.shape[0] == len(constrained)
        if one_each and not constrained.all():
            at = on_device(torch.from_numpy(np.flatnonzero(constrained)), logits.device)
            rows, local, tokens = rows[at], local[at], tokens[at]
        here = self._slots[rows]
        places, budget, state, count = here[:, :4], here[:, 4], here[:, 5], here[:, 6]
        if not one_each:
            for depth in range(1, self._drafts + 1):
                # The row before is that after one token less of the same draft.
                after = pool.next(places, state.roll(1), tokens)
                state = torch.where(local == depth, after, state)
        pool.mask_(logits, places, state, budget - count - local, at)
        return logits
