"""Pool of token automata on one device, with automata added and removed by an engine's requests.

Engines sample on an accelerator, step by step, and a mask must not cause a host synchronization. So
the automata of all requests are in tensors on the device, and so are the states of the batch rows.
Next states and masks are gathers and comparisons, for any automata of the rows. Each batch row has
the location of its automaton (`Place`), as one row of a tensor:

    after(s, v)  = after_flat[ base + s width + class_of[row, v] ]
    mask(s, r)_v = steps_flat[ base + s width + class_of[row, v] ] <= r - 1

where `steps_flat` contains `steps_to_accept` of the state in each entry of `after_flat`. In
contrast, `gcd.AutomatonBatch` and `gcd.BudgetMask` number the states of a fixed list of automata
consecutively.

**Memory** is a flat buffer of 8 bytes per entry, and a row of 4 bytes per token for each automaton.
Each doubles when full, or takes half of what `max_bytes` leaves. Automata that no request uses stay
until their memory is needed; the least recently used are evicted first. Requests with the same
automaton share one copy. If all memory is in use, the next automaton is refused
(`ConstraintError`).

**Every row allows a token.** If no token is allowed (after a draft's token that the constraint
refuses, after the end, or without budget left), the EOS ids are allowed. The sample of such a row
is not used, but a row of minus infinities would turn into NaN.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gcd._errors import ConstraintError
from gcd._tokens.distances import UNREACHABLE, fits
from gcd._tokens.token_automaton import TokenAutomaton

MAX_BYTES = 1 << 30
_FIRST_ENTRIES, _FIRST_ROWS = 1 << 16, 4
# Mask entries computed at once: what fits into a CPU's cache, and fewer launches on a GPU.
_AT_ONCE = {"cpu": 1 << 16}
_AT_ONCE_ELSEWHERE = 1 << 22

DEAD = -1
"""State after a token that is not allowed."""


class Place(NamedTuple):
    """Location of an automaton in the pool; as a row of a tensor, it represents the automaton.

    Attributes:
        base: start of its table.
        width: number of its classes, the last of which is that of EOS.
        row: row of `class_of`.
        initial: its initial state, counted in the automaton.
    """

    base: int
    width: int
    row: int
    initial: int


NOWHERE = Place(0, 0, 0, 0)
"""Place of a batch row without a constraint, whose logits are not masked."""
END = Place(0, 2, 0, 0)
"""Place of a batch row that may only end; it takes no memory."""


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting for the work queued there."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()  # a copy of pageable memory would wait
    return numbers.to(device, non_blocking=True)


class _Entry:
    """Automaton in the pool: its place, its number of entries, and its number of users."""

    def __init__(self, place: Place, size: int) -> None:
        self.place, self.size, self.users = place, size, 0


class AutomatonPool:
    """Token automata over one vocabulary on one device.

    Args:
        size: number of token ids, the width of the logits.
        eos_ids: the ids that end a text.
        device: device of the tensors.
        max_bytes: limit on the bytes of the tensors.
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
        self.widest = END.width  # most classes of any automaton in use
        self.after_flat[: END.width] = DEAD
        self.steps_flat[: END.width] = UNREACHABLE
        class_of = torch.zeros((_FIRST_ROWS, size), dtype=torch.int32, device="cpu")
        class_of[END.row, list(eos_ids)] = END.width - 1
        self.class_of = class_of.to(device)
        # Keyed by identity, because the entry references the automaton. The least recently used is
        # first.
        self._entries: OrderedDict[TokenAutomaton, _Entry] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return 8 * self.after_flat.numel() + 4 * self.class_of.numel()

    def enter(self, automaton: TokenAutomaton) -> Place:
        """Add a user of an automaton, and copy the automaton to the pool if it isn't there.

        Raises:
            ConstraintError: its vocabulary has another size, or there is no room for it.
        """
        if automaton.vocabulary.size != self.size:
            raise ConstraintError(
                f"expected a vocabulary of {self.size} token ids, the width of the logits, got "
                f"{automaton.vocabulary.size}; make the vocabulary as wide as the logits"
            )
        entry = self._entries.get(automaton)
        if entry is None:
            entry = _Entry(self._room(automaton), automaton.delta.size)
            self._write(automaton, entry)  # may raise if memory is exhausted
            self._entries[automaton] = entry
        entry.users += 1
        self._entries.move_to_end(automaton)
        self.widest = max(self.widest, automaton.num_classes)
        return entry.place

    def leave(self, automaton: TokenAutomaton) -> None:
        """Remove a user of an automaton; it stays in the pool until its memory is needed."""
        self._entries[automaton].users -= 1
        used = (entry.place.width for entry in self._entries.values() if entry.users)
        self.widest = max((END.width, *used))

    def _room(self, automaton: TokenAutomaton) -> Place:
        """Find memory for an automaton by evicting unused ones, or by growing the tensors."""
        needed = automaton.delta.size
        while True:
            base, row = self._gap(needed), self._free_row()
            if base is not None and row is not None:
                return Place(base, automaton.num_classes, row, automaton.initial)
            ends = (entry.place.base + entry.size for entry in self._entries.values())
            missing = needed - (self.after_flat.numel() - max((END.width, *ends)))
            if not self._grow(missing if base is None else 0, row is None):
                unused = next((a for a, entry in self._entries.items() if not entry.users), None)
                if unused is None:
                    raise ConstraintError(
                        f"constraint needs {8 * needed / 2**20:.1f} MiB, but running requests "
                        f"leave too little of {self.max_bytes / 2**20:.1f} MiB on the device; "
                        "retry later, or raise the limit"
                    )
                del self._entries[unused]

    def _gap(self, needed: int) -> int | None:
        """Return the first free position for this many entries, or None."""
        begin = END.width
        for entry in sorted(self._entries.values(), key=lambda each: each.place.base):
            if entry.place.base - begin >= needed:
                return begin
            begin = entry.place.base + entry.size
        return begin if self.after_flat.numel() - begin >= needed else None

    def _free_row(self) -> int | None:
        used = {END.row, *(entry.place.row for entry in self._entries.values())}
        return next((row for row in range(self.class_of.shape[0]) if row not in used), None)

    def _grow(self, entries: int, row: bool) -> bool:
        """Grow the tensors if the limit permits; return whether they grew."""
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
        steps = np.where(
            automaton.delta >= 0, automaton.steps_to_accept[automaton.delta], UNREACHABLE
        )
        here = slice(entry.place.base, entry.place.base + entry.size)
        device = self.after_flat.device
        self.after_flat[here] = on_device(
            torch.tensor(automaton.delta, device="cpu").flatten(), device
        )
        self.steps_flat[here] = on_device(torch.tensor(steps, device="cpu").flatten(), device)
        self.class_of[entry.place.row] = on_device(
            torch.tensor(automaton.class_of, device="cpu"), device
        )

    def next(
        self, places: Int64[Tensor, "R 4"], states: Int64[Tensor, "R"], tokens: Int64[Tensor, "R"]
    ) -> Int64[Tensor, "R"]:
        """Return the state after each row's token, `DEAD` if it is not allowed.

        Args:
            places: the place of each row's automaton.
            states: the rows' states, counted in their automata, or `DEAD`.
            tokens: token ids; numbers out of range lead to `DEAD`.
        """
        base, width, row, _ = places.unbind(1)
        is_id = (tokens >= 0) & (tokens < self.size)
        classes = self.class_of[row, torch.where(is_id, tokens, 0)]
        after = self.after_flat[base + states.clamp(min=0) * width + classes].long()
        return torch.where((states >= 0) & is_id, after, DEAD)

    def steps_to_accept(
        self, places: Int64[Tensor, "R 4"], states: Int64[Tensor, "R"]
    ) -> Int64[Tensor, "R"]:
        """Return the fewest tokens, EOS included, from each row's state to its end.

        If no token is allowed, and after the end, the result exceeds any budget.
        """
        entries, exists = self._entries_of(places, states)
        steps = self.steps_flat[entries].masked_fill(~exists, UNREACHABLE)
        return 1 + steps.amin(dim=1).long()

    def mask_(
        self,
        logits: Float[Tensor, "L V"],
        places: Int64[Tensor, "R 4"],
        states: Int64[Tensor, "R"],
        remaining: Int64[Tensor, "R"],
        at: Int64[Tensor, "R"] | None = None,
    ) -> None:
        """Set logits of tokens after which no answer can be completed in time to -inf, in place.

        Args:
            logits: the logits; with `at`, of more rows than are masked.
            places, states: those of each masked row, as in `next`. Rows at `NOWHERE` don't change.
            remaining: tokens left, including the next token and EOS.
            at: the row of `logits` for each of them.
        """
        classes = self._class_mask(places, states, remaining)
        # Adding minus infinity is several times faster than filling by a mask.
        penalty = torch.where(classes, 0.0, -torch.inf).to(logits.dtype)
        step = max(1, _AT_ONCE.get(logits.device.type, _AT_ONCE_ELSEWHERE) // self.size)
        for start in range(0, penalty.shape[0], step):
            part = slice(start, start + step)
            tokens = self.class_of.index_select(0, places[part, 2]).long()
            if at is None:
                logits[part].add_(penalty[part].gather(1, tokens))
            else:
                logits.index_add_(0, at[part], penalty[part].gather(1, tokens))

    def _class_mask(
        self,
        places: Int64[Tensor, "R 4"],
        states: Int64[Tensor, "R"],
        remaining: Int64[Tensor, "R"],
    ) -> Bool[Tensor, "R C"]:
        width = places[:, 1:2]
        classes = torch.arange(self.widest, device=places.device)
        entries, exists = self._entries_of(places, states)
        left = remaining.clamp(max=UNREACHABLE).unsqueeze(1)
        allowed = exists & (states >= 0).unsqueeze(1) & fits(self.steps_flat[entries], left)
        allowed |= ~allowed.any(dim=1, keepdim=True) & (classes == width - 1)
        return allowed | (width == 0)

    def _entries_of(
        self, places: Int64[Tensor, "R 4"], states: Int64[Tensor, "R"]
    ) -> tuple[Int64[Tensor, "R C"], Bool[Tensor, "R C"]]:
        """Return the position of each state's row, class by class, and which classes exist."""
        base, width = places[:, :1], places[:, 1:2]
        classes = torch.arange(self.widest, device=places.device)
        exists = classes < width
        entries = base + states.clamp(min=0).unsqueeze(1) * width + classes
        return torch.where(exists, entries, 0), exists
