"""P-GCD's distribution of the next token, for the rows of an engine's batch.

The engine samples from softmax(logits / T). P-GCD's distribution is

    q(v) = p(v) g(v) / Z,    p = softmax(logits / T),    Z = sum over v of p(v) g(v),

where g is the lookahead of `smc.PGCD`. So the row's logits are replaced by T (log p + log g). A
drawn token multiplies the particle's weight by p / q, and g of the last token is the particle's
potential.

Batch rows with the same constraint, budget and HMM share a `Group`. In V1 (`twist_rows`), the
group's `smc.PGCD` state has one entry for each batch row, and entry 0 for the empty answer. In each
step, a row's new tokens advance its entry from the previous step. If a row is new, or the engine
removed some of its tokens, it starts again at entry 0. For V2, see `gcd_vllm._device_twist`.

Cost of a step: the cost of `smc.PGCD`, and a log-softmax of the rows. The HMM's table is computed
when the first row of a constraint and budget enters. The engine's other requests wait for this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd import AutomatonBatch, TokenAutomaton
from gcd_vllm._admission import Admission, Admitted
from gcd_vllm._pool import on_device
from smc import Batch
from smc._vocabulary.factors import defend


class Group:
    """Batch rows under P-GCD (an `smc.PGCD`) with the same constraint, budget and HMM.

    If the HMM's table would be too large, a `ConstraintError` is raised.
    """

    def __init__(
        self, proposal: Any, automaton: TokenAutomaton, budget: int, device: torch.device
    ) -> None:
        proposal.check([automaton], [budget])
        batch = AutomatonBatch([automaton], device)
        self.proposal = proposal
        # State of the empty answer, and of the rows of the last step, in V1
        self.start = proposal.start(Batch(batch, torch.tensor([budget], device=device)))
        self.state = self.start
        self._device = device

    @torch.inference_mode()
    def step(self, rows: Sequence[TwistedRow]) -> Any:
        """Add these rows' new tokens to the group's state, and return the state of these rows.

        The state of all other rows of the group is dropped.
        """
        slots, new = [0], [[-1]]
        for row in rows:
            slot, tokens = row.unread()
            slots.append(slot)
            new.append(tokens)
        longest = max(map(len, new))
        padded = [tokens + [-1] * (longest - len(tokens)) for tokens in new]
        self.state = self.proposal.advance(
            self.proposal.take(self.state, self._numbers(slots)), self._numbers(padded)
        )
        for number, row in enumerate(rows, start=1):
            row.keep(number)
        return self.proposal.take(self.state, self._numbers(list(range(1, len(slots)))))

    def _numbers(self, values: Any) -> Int64[Tensor, "..."]:
        return on_device(torch.tensor(values, dtype=torch.int64, device="cpu"), self._device)


class TwistedRow:
    """A batch row under P-GCD.

    `prefix` are the answer's tokens from before this request. The engine appends to `tokens`.
    """

    def __init__(
        self, group: Group, prefix: list[int], tokens: list[int], temperature: float
    ) -> None:
        self.group, self.temperature = group, temperature
        self._prefix, self._tokens = prefix, tokens
        self._slot = 0
        self._known: list[int] = []

    def unread(self) -> tuple[int, list[int]]:
        """Return the row's index in the group's state, and the tokens to add to this state.

        A new row, and a row that lost tokens, has index 0 (the empty answer) and all its tokens.
        """
        known = self._known
        if self._slot and self._tokens[: len(known)] == known:
            return self._slot, self._tokens[len(known) :]
        return 0, [*self._prefix, *self._tokens]

    def keep(self, slot: int) -> None:
        """Record the row's index in the group's state, which includes all its tokens so far."""
        self._slot, self._known = slot, list(self._tokens)


class TwistedLogits(NamedTuple):
    """New logits of some rows in one step, which have P-GCD's distribution."""

    rows: Int64[Tensor, "R"]  # indices of the rows in the logits
    logits: Float[Tensor, "R V"]  # their new logits
    log_z: Float64[Tensor, "R"]  # log Z of each row
    known: Bool[Tensor, "R"]  # whether each row has new logits; if not, its masked logits are used


class Groups:
    """The groups of one engine; a group is freed when no row uses it any longer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: WeakValueDictionary[Any, Group] = WeakValueDictionary()

    def join(self, taken: Admitted, admission: Admission) -> tuple[Admitted, Group | None]:
        """Return a request and its group, None without P-GCD; if that fails, its refusal and None.

        If the group is new, its HMM is loaded, and the HMM's table is computed.
        """
        pgcd = None if taken.particle is None else taken.particle.pgcd
        automaton, budget = taken.automaton, taken.budget
        if pgcd is None or automaton is None:
            return taken, None
        key = pgcd, id(automaton), budget
        try:
            group = self._groups.get(key)
            if group is None:
                proposal = pgcd.proposal(automaton.vocabulary, self._device)
                group = self._groups[key] = Group(proposal, automaton, budget, self._device)
            return taken, group
        except Exception as error:  # an error in one request must not stop the engine
            return admission.refuse(error, taken.room), None


@torch.inference_mode()
def twist_rows(
    logits: Float[Tensor, "L V"], rows: Sequence[tuple[int, TwistedRow]]
) -> list[TwistedLogits]:
    """Compute P-GCD's logits of V1's rows from logits that aren't masked yet."""
    groups: dict[int, list[tuple[int, TwistedRow]]] = defaultdict(list)
    for index, row in rows:
        groups[id(row.group)].append((index, row))
    found = []
    for pairs in groups.values():
        at, members = [index for index, _ in pairs], [row for _, row in pairs]
        group = members[0].group
        temperatures = [row.temperature for row in members]
        found.append(twist(logits, at, group.proposal, group.step(members), temperatures))
    return found


def twist(
    logits: Float[Tensor, "L V"],
    rows: Sequence[int],
    proposal: Any,
    state: Any,
    temperatures: Sequence[float],
) -> TwistedLogits:
    """Compute P-GCD's logits of some rows."""
    at = on_device(torch.tensor(rows, device="cpu"), logits.device)
    given = torch.tensor(temperatures, dtype=torch.float32, device="cpu")
    temperature = on_device(given, logits.device).unsqueeze(1)
    log_p = (logits.index_select(0, at).float() / temperature).log_softmax(-1)
    factors = defend(proposal.guide(state, log_p), log_p)
    assert factors.log_z is not None, "the defensive mixture computes it"
    tilted = (factors.apply(log_p) * temperature).to(logits.dtype)
    known = torch.isfinite(factors.log_z) & state.position.running
    return TwistedLogits(at, tilted, factors.log_z, known)


def log_z_of(twisted: Sequence[TwistedLogits], rows: int) -> Float64[Tensor, "L"] | None:
    """Return log Z of each row of the logits; NaN for rows that don't use P-GCD.

    The result is None if no row uses P-GCD.
    """
    if not twisted:
        return None
    found = twisted[0].log_z.new_full((rows,), torch.nan)
    for each in twisted:
        found[each.rows] = torch.where(each.known, each.log_z, torch.nan)
    return found


def write(logits: Float[Tensor, "L V"], twisted: Sequence[TwistedLogits]) -> None:
    """Replace rows of the masked logits by P-GCD's logits, in place."""
    for each in twisted:
        masked = logits.index_select(0, each.rows)
        new = torch.where(each.known.unsqueeze(1), each.logits, masked)
        logits.index_copy_(0, each.rows, new)
