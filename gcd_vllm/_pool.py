"""Pool of token automata on one device; an engine's requests add and remove automata.

Engines sample on an accelerator, and masks must not cause host synchronizations. So the automata of
all requests and the states of all batch rows are tensors on the device. Next states and masks are
computed by gathers and comparisons, although the batch rows have different automata. For each batch
row, a row of a tensor has the location of its automaton (`Location`):

    after(s, v)  = after_flat[ base + s width + class_of[row, v] ]
    mask(s, r)_v = steps_flat[ base + s width + class_of[row, v] ] <= r - 1

where `steps_flat` has `steps_to_accept` of the state in each entry of `after_flat`. In contrast,
`gcd.AutomatonBatch` and `gcd.BudgetMask` are for a fixed list of automata.

**Memory.** The tables take 8 bytes per entry, in one flat buffer. In a second buffer, each
automaton has a row of 4 bytes per token. A full buffer doubles its size, or takes half of the rest
of `max_bytes` if that is less. Automata that no request uses stay in the pool until their memory is
needed; the least recently used automaton is evicted first. Requests with the same automaton share
one copy. If all memory is in use, the next automaton is refused (`ConstraintError`).

**Every mask allows a token.** If no token is allowed (after a draft token that the constraint
refuses, after the end, or if the budget is used up), the mask allows the EOS ids. The token sampled
from such a mask isn't used, but logits that are all minus infinity would become NaN.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gcd import ConstraintError, TokenAutomaton
from gcd._tokens.distances import UNREACHABLE, fits

MAX_BYTES = 1 << 30
_FIRST_ENTRIES, _FIRST_ROWS = 1 << 16, 4
# Number of mask entries that are computed at once: on a CPU as many as fit into its cache,
# elsewhere more, to launch fewer kernels.
_AT_ONCE = {"cpu": 1 << 16}
_AT_ONCE_ELSEWHERE = 1 << 22

DEAD = -1
"""State after a token that is not allowed."""


class Location(NamedTuple):
    """Location of an automaton in the pool, which is also stored as a row of a tensor."""

    base: int  # index in `after_flat` at which its table starts
    width: int  # number of its token classes; the last class is EOS
    row: int  # its row in `class_of`
    initial: int  # its initial state; states are numbered from 0 in each automaton


NOWHERE = Location(0, 0, 0, 0)
"""Location of a batch row without a constraint; its logits are not masked."""
END = Location(0, 2, 0, 0)
"""Location of a batch row that only allows EOS; it doesn't take additional memory."""


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting for the device's queued work."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()  # copying from pageable memory would wait
    return numbers.to(device, non_blocking=True)


class _Entry:
    """Location and size of an automaton in the pool, and the number of requests that use it."""

    def __init__(self, location: Location, size: int) -> None:
        self.location, self.size, self.users = location, size, 0


class AutomatonPool:
    """Token automata over one vocabulary on one device.

    `size` is the number of token ids, the width of the logits, and `max_bytes` the maximum size of
    the tensors.
    """

    def __init__(
        self,
        size: int,
        eos_ids: Sequence[int],
        device: torch.device | str = "cpu",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.size, self.max_bytes = size, max_bytes
        self.after_flat = torch.empty(_FIRST_ENTRIES, dtype=torch.int32, device=device)
        self.steps_flat = torch.empty_like(self.after_flat)
        self.widest = END.width  # largest number of classes of an automaton in use
        self.after_flat[: END.width] = DEAD
        self.steps_flat[: END.width] = UNREACHABLE
        class_of = torch.zeros((_FIRST_ROWS, size), dtype=torch.int32, device="cpu")
        class_of[END.row, list(eos_ids)] = END.width - 1
        self.class_of = class_of.to(device)
        # Keys are compared by identity. The least recently used automaton comes first.
        self._entries: OrderedDict[TokenAutomaton, _Entry] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return 8 * self.after_flat.numel() + 4 * self.class_of.numel()

    def enter(self, automaton: TokenAutomaton) -> Location:
        """Record that a request uses an automaton, and return the automaton's location.

        If the automaton isn't in the pool, it is copied to it. If running requests leave too little
        memory, an error is raised.
        """
        if automaton.vocabulary.size != self.size:
            raise ConstraintError(
                f"expected a vocabulary of {self.size} token ids, the width of the logits, got "
                f"{automaton.vocabulary.size}; make the vocabulary as wide as the logits"
            )
        entry = self._entries.get(automaton)
        if entry is None:
            size = automaton.num_states * automaton.num_classes
            entry = _Entry(self._room(automaton, size), size)
            self._write(automaton, entry)  # may raise if memory is exhausted
            self._entries[automaton] = entry
        entry.users += 1
        self._entries.move_to_end(automaton)
        self.widest = max(self.widest, automaton.num_classes)
        return entry.location

    def leave(self, automaton: TokenAutomaton) -> None:
        """Record that a request no longer uses an automaton; keep it until memory is needed."""
        self._entries[automaton].users -= 1
        used = (entry.location.width for entry in self._entries.values() if entry.users)
        self.widest = max((END.width, *used))

    def _room(self, automaton: TokenAutomaton, needed: int) -> Location:
        """Find memory for an automaton; if needed, grow the pool or evict unused automata."""
        while True:
            base, row = self._gap(needed), self._free_row()
            if base is not None and row is not None:
                return Location(base, automaton.num_classes, row, automaton.initial)
            ends = (entry.location.base + entry.size for entry in self._entries.values())
            missing = needed - (self.after_flat.numel() - max((END.width, *ends)))
            if not self._grow(missing if base is None else 0, row is None):
                unused = next((a for a, entry in self._entries.items() if not entry.users), None)
                if unused is None:
                    raise ConstraintError(
                        f"constraint needs {8 * needed / 2**20:.1f} MiB, but running requests "
                        f"leave too little of {self.max_bytes / 2**20:.1f} MiB on the device; "
                        "retry later, or raise the limit of the pool"
                    )
                del self._entries[unused]

    def _gap(self, needed: int) -> int | None:
        """Return the start of `needed` free entries in `after_flat`; None if there is none."""
        begin = END.width
        for entry in sorted(self._entries.values(), key=lambda each: each.location.base):
            if entry.location.base - begin >= needed:
                return begin
            begin = entry.location.base + entry.size
        return begin if self.after_flat.numel() - begin >= needed else None

    def _free_row(self) -> int | None:
        used = {END.row, *(entry.location.row for entry in self._entries.values())}
        return next((row for row in range(self.class_of.shape[0]) if row not in used), None)

    def _grow(self, entries: int, row: bool) -> bool:
        """Grow the pool's tensors if `max_bytes` permits; return whether they grew."""
        have, rows = self.after_flat.numel(), self.class_of.shape[0]
        left = self.max_bytes - self.nbytes
        more_rows = max(1, min(rows, left // (8 * self.size))) if row else 0
        left -= 4 * self.size * more_rows
        more = max(entries, min(have, left // 16)) if entries else 0
        if 8 * more > left:
            return False
        if more:
            empty = torch.empty(more, dtype=torch.int32, device=self.after_flat.device)
            self.after_flat = torch.cat([self.after_flat, empty])
            self.steps_flat = torch.cat([self.steps_flat, empty])
        if row:
            new = torch.zeros_like(self.class_of[:1]).expand(more_rows, -1)
            self.class_of = torch.cat([self.class_of, new])
        return True

    def _write(self, automaton: TokenAutomaton, entry: _Entry) -> None:
        delta, steps = automaton.rows.dense(automaton.num_classes), automaton.steps_after()
        here = slice(entry.location.base, entry.location.base + entry.size)
        device = self.after_flat.device
        self.after_flat[here] = on_device(torch.tensor(delta, device="cpu").flatten(), device)
        self.steps_flat[here] = on_device(torch.tensor(steps, device="cpu").flatten(), device)
        self.class_of[entry.location.row] = on_device(
            torch.tensor(automaton.class_of, device="cpu"), device
        )

    def next(
        self,
        locations: Int64[Tensor, "R 4"],
        states: Int64[Tensor, "R"],
        tokens: Int64[Tensor, "R"],
    ) -> Int64[Tensor, "R"]:
        """Return the state after each batch row's token; `DEAD` if the token is not allowed.

        Numbers that aren't token ids lead to `DEAD`, and so does the state `DEAD`. A row of
        `locations` is the `Location` of a batch row's automaton.
        """
        base, width, row, _ = locations.unbind(1)
        is_id = (tokens >= 0) & (tokens < self.size)
        classes = self.class_of[row, torch.where(is_id, tokens, 0)]
        after = self.after_flat[base + states.clamp(min=0) * width + classes].long()
        return torch.where((states >= 0) & is_id, after, DEAD)

    def steps_to_accept(
        self, locations: Int64[Tensor, "R 4"], states: Int64[Tensor, "R"]
    ) -> Int64[Tensor, "R"]:
        """Return the fewest tokens, EOS included, from each batch row's state to the end.

        The result exceeds any budget if no token is allowed, and after the end of the text.
        """
        entries, exists = self._entries_of(locations, states)
        steps = self.steps_flat[entries].masked_fill(~exists, UNREACHABLE)
        return 1 + steps.amin(dim=1).long()

    def mask_(
        self,
        logits: Float[Tensor, "L V"],
        locations: Int64[Tensor, "R 4"],
        states: Int64[Tensor, "R"],
        remaining: Int64[Tensor, "R"],
        at: Int64[Tensor, "R"] | None = None,
    ) -> None:
        """Set logits to -inf, in place, for tokens after which no answer fits into the budget.

        Rows with the location `NOWHERE` don't change. `remaining` counts the tokens left for each
        masked row, including the next token and EOS. `at` is the index in `logits` of each masked
        row; None if all rows are masked, in order.
        """
        classes = self._class_mask(locations, states, remaining)
        # Adding minus infinity is several times faster than filling by a mask.
        penalty = torch.where(classes, 0.0, -torch.inf).to(logits.dtype)
        step = max(1, _AT_ONCE.get(logits.device.type, _AT_ONCE_ELSEWHERE) // self.size)
        for start in range(0, penalty.shape[0], step):
            part = slice(start, start + step)
            tokens = self.class_of.index_select(0, locations[part, 2]).long()
            if at is None:
                logits[part].add_(penalty[part].gather(1, tokens))
            else:
                logits.index_add_(0, at[part], penalty[part].gather(1, tokens))

    def _class_mask(
        self,
        locations: Int64[Tensor, "R 4"],
        states: Int64[Tensor, "R"],
        remaining: Int64[Tensor, "R"],
    ) -> Bool[Tensor, "R C"]:
        width = locations[:, 1:2]
        classes = torch.arange(self.widest, device=locations.device)
        entries, exists = self._entries_of(locations, states)
        left = remaining.clamp(max=UNREACHABLE).unsqueeze(1)
        allowed = exists & (states >= 0).unsqueeze(1) & fits(self.steps_flat[entries], left)
        allowed |= ~allowed.any(dim=1, keepdim=True) & (classes == width - 1)
        return allowed | (width == 0)

    def _entries_of(
        self, locations: Int64[Tensor, "R 4"], states: Int64[Tensor, "R"]
    ) -> tuple[Int64[Tensor, "R C"], Bool[Tensor, "R C"]]:
        """Return where the next state after each token class is stored, for every batch row.

        The results are indices in `after_flat`, and whether the row's automaton has such a class.
        """
        base, width = locations[:, :1], locations[:, 1:2]
        classes = torch.arange(self.widest, device=locations.device)
        exists = classes < width
        entries = base + states.clamp(min=0).unsqueeze(1) * width + classes
        return torch.where(exists, entries, 0), exists
