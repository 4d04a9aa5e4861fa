"""P-GCD in V2, where the drawn tokens are only on the device.

As in V1 (`gcd_vllm._twist`), a row's logits are replaced by T (log p + log g). The automaton state
and the number of tokens of each slot are those that the masks use (`gcd_vllm._v2`). Here, the HMM's
filter is stored for each slot:

    predicted[slot] = P(hidden state that emits the next token | the answer's tokens)

The filter doesn't depend on the constraint, so there is one tensor for each HMM. In each step, the
filter of a slot is updated for the tokens that the engine has committed since the last update.
There are no host synchronizations, except when a group is made.

When a request enters, or returns after preemption, the filter of its slot starts at the beginning
and processes all tokens of the answer. The runner doesn't report when a request ends. So only the
slots of the current batch have groups, and the tables of other slots can be freed. If a slot
returns to the batch, its group is looked up or made again. The slot's filter stays valid.

Cost of a step: the cost of `smc.PGCD`, and a log-softmax of the rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd_vllm._pool import on_device
from gcd_vllm._twist import Group, Groups, TwistedLogits, twist
from hmm import HMM, predict_first


class SlotStates(NamedTuple):
    """Positions of the answers of all slots, on the device."""

    budget: Int64[Tensor, "slots"]  # maximum number of tokens of the whole answer
    # State in the slot's automaton; -1 once the answer has left the language
    state: Int64[Tensor, "slots"]
    length: Int64[Tensor, "slots"]  # number of tokens that `state` includes
    prefix: Int64[Tensor, "slots"]  # number of tokens at the prompt's end that belong to the answer


class _Filter(NamedTuple):
    """The filter of an HMM, for all slots."""

    hmm: HMM  # the HMM
    # P(hidden state that emits the next token | the slot's tokens)
    predicted: Float[Tensor, "slots H"]
    length: Int64[Tensor, "slots"]  # number of tokens that `predicted` includes


class _Slot(NamedTuple):
    """A slot of the batch under P-GCD."""

    group: Group
    temperature: float


class DeviceTwists:
    """P-GCD in one V2 model runner, whose `LogitsProcRequestState` has the tokens of all slots."""

    def __init__(self, requests: Any) -> None:
        self._requests = requests
        self.groups = Groups(requests.device)
        self._slots: dict[int, _Slot] = {}
        self._new: dict[int, int] = {}  # slots at the beginning, and their number of tokens
        self._filters: dict[int, _Filter] = {}  # by the id of the HMM

    @property
    def has_slots(self) -> bool:
        """Return whether the batch has a slot under P-GCD."""
        return bool(self._slots)

    def enter(self, slot: int, group: Group, temperature: float, new: int | None) -> None:
        """Add a slot to the batch.

        `new` is the number of tokens of the answer, if the slot's request is new or was preempted;
        None if the slot was in the batch before with the same request.
        """
        self._slots[slot] = _Slot(group, temperature)
        if new is not None:
            self._new[slot] = new

    def leave(self, slot: int) -> None:
        """Remove a slot from the batch, if it is in the batch."""
        self._slots.pop(slot, None)
        self._new.pop(slot, None)

    @torch.inference_mode()
    def of(
        self, logits: Float[Tensor, "L V"], batch: list[int], states: SlotStates
    ) -> list[TwistedLogits]:
        """Compute P-GCD's logits of the batch's rows, from logits that aren't masked yet."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, slot in enumerate(batch):
            if slot in self._slots:
                groups[id(self._slots[slot].group)].append(row)
        return [self._of(logits, rows, batch, states) for rows in groups.values()]

    def _of(
        self, logits: Float[Tensor, "L V"], rows: list[int], batch: list[int], states: SlotStates
    ) -> TwistedLogits:
        members = [batch[row] for row in rows]
        group = self._slots[members[0]].group
        slots = self._numbers(members)
        filters = self._filter(group.proposal.hmm)
        new = {slot: self._new.pop(slot) for slot in members if slot in self._new}
        if new:
            first = self._numbers(list(new))
            filters.predicted[first] = predict_first(filters.hmm, len(new))
            filters.length[first] = 0
        tokens = self._unread(slots, filters, states, max([1, *new.values()]))
        model = group.start.model._replace(predicted=filters.predicted[slots])
        model = group.proposal.lookahead.advance(model, tokens)
        length = states.length[slots]
        filters.predicted[slots] = model.predicted
        filters.length[slots] = length
        position = group.start.position._replace(
            states=states.state[slots], remaining=(states.budget[slots] - length).clamp(min=0)
        )
        temperatures = [self._slots[slot].temperature for slot in members]
        state = replace(group.start, position=position, model=model)
        return twist(logits, rows, group.proposal, state, temperatures)

    def _filter(self, hmm: HMM) -> _Filter:
        if id(hmm) not in self._filters:
            first = predict_first(hmm, self._requests.max_num_reqs).clone()
            length = torch.zeros(len(first), dtype=torch.int64, device=first.device)
            self._filters[id(hmm)] = _Filter(hmm, first, length)
        return self._filters[id(hmm)]

    def _unread(
        self, slots: Int64[Tensor, "R"], filters: _Filter, states: SlotStates, most: int
    ) -> Int64[Tensor, "R T"]:
        """Return the tokens of each slot that the filter doesn't include yet, at most `most`.

        Slots with fewer tokens have -1 in the other columns.
        """
        committed = self._requests.all_token_ids.gpu
        at = torch.arange(most, device=slots.device) + filters.length[slots].unsqueeze(1)
        is_unread = at < states.length[slots].unsqueeze(1)
        begin = self._requests.prompt_len.gpu[slots].long() - states.prefix[slots]
        index = (begin.unsqueeze(1) + at).clamp(max=committed.shape[1] - 1)
        return torch.where(is_unread, committed[slots.unsqueeze(1), index].long(), -1)

    def _numbers(self, values: list[int]) -> Int64[Tensor, "R"]:
        numbers = torch.tensor(values, dtype=torch.int64, device="cpu")
        return on_device(numbers, self._requests.device)
