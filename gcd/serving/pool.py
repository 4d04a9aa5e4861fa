"""A pool of token automata on one device, which come and go with the requests of an engine.

Engines sample on an accelerator, step by step, and must not wait for the host to know a mask. So
the automata of all requests lie in tensors there, and so do the states of the rows; next states and
masks are gathers and comparisons, whatever automata the rows are under. Each row says where its
automaton lies (`Place`), as one row of a tensor:

    after(s, v)  = after_flat[ base + s width + class_of[row, v] ]
    mask(s, r)_v = steps_flat[ base + s width + class_of[row, v] ] <= r - 1

where `steps_flat` holds `steps_to_accept` of the state in each entry of `after_flat`. That is
`gcd.AutomatonBatch` and `gcd.BudgetMask` with room for change: those number the states of a fixed
list of automata through.

**Memory** is a flat buffer of 8 bytes an entry, and a row of 4 bytes a token for each automaton.
Each doubles, or takes half of what `max_bytes` leaves. Automata that no request uses stay until
their room is needed, those unused for longest go first; requests with the same automaton share one
copy. If all room is in use, the next automaton is refused (`ConstraintError`).

**No row is without a token.** Where nothing is allowed (after a draft's token that the constraint
refuses, after the end, with no budget left), the EOS ids are: such a row's sample is not used, but
a row of minus infinities would turn into NaN.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gcd.errors import ConstraintError
from gcd.tokens.distances import UNREACHABLE, fits
from gcd.tokens.token_automaton import TokenAutomaton

MAX_BYTES = 1 << 30
_FIRST_ENTRIES, _FIRST_ROWS = 1 << 16, 4
# Entries of a mask that are made at once: what a CPU's cache holds, and what spares a GPU launches.
_AT_ONCE = {"cpu": 1 << 16}
_AT_ONCE_ELSEWHERE = 1 << 22

DEAD = -1
"""The state after a token that is not allowed."""


class Place(NamedTuple):
    """Where an automaton lies in the pool; as a row of a tensor, it stands for the automaton.

    Attributes:
        base: where its table begins.
        width: number of its classes, the last of which is that of EOS.
        row: row of `class_of`.
        initial: its initial state, counted in the automaton.
    """

    base: int
    width: int
    row: int
    initial: int


NOWHERE = Place(0, 0, 0, 0)
"""The place of a row without a constraint, of which nothing is masked."""
END = Place(0, 2, 0, 0)
"""The place of a row that may only end; it takes no room."""


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device without waiting for what is queued there."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()  # a copy of pageable memory waits
    return numbers.to(device, non_blocking=True)


class _Entry:
    """An automaton in the pool: its place, how many entries it has, and how many use it."""

    def __init__(self, place: Place, size: int) -> None:
        self.place, self.size, self.users = place, size, 0


class AutomatonPool:
    """Token automata over one vocabulary on one device.

    Args:
        size: number of token ids, the width of the logits.
        eos_ids: the ids that end a text.
        device: where the tensors are.
        max_bytes: most bytes of the tensors.
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
        self.widest = END.width  # classes of the automaton that has most, of those in use
        self.after_flat[: END.width] = DEAD
        self.steps_flat[: END.width] = UNREACHABLE
        class_of = torch.zeros((_FIRST_ROWS, size), dtype=torch.int32, device="cpu")
        class_of[END.row, list(eos_ids)] = END.width - 1
        self.class_of = class_of.to(device)
        # Keyed by identity: the entry holds the automaton. Unused for longest comes first.
        self._entries: OrderedDict[TokenAutomaton, _Entry] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return 8 * self.after_flat.numel() + 4 * self.class_of.numel()

    def enter(self, automaton: TokenAutomaton) -> Place:
        """Put an automaton into the pool for one more user.

        Raises:
            ConstraintError: its vocabulary has another size, or there is no room for it.
        """
        if automaton.vocabulary.size != self.size:
            raise ConstraintError(
                f"the constraint knows {automaton.vocabulary.size} token ids, the logits have "
                f"{self.size}; make the vocabulary as wide as the logits"
            )
        entry = self._entries.get(automaton)
        if entry is None:
            entry = _Entry(self._room(automaton), automaton.delta.size)
            self._write(automaton, entry)  # it may fail, for want of memory
            self._entries[automaton] = entry
        entry.users += 1
        self._entries.move_to_end(automaton)
        self.widest = max(self.widest, automaton.num_classes)
        return entry.place

    def leave(self, automaton: TokenAutomaton) -> None:
        """Take one user of an automaton away; it stays in the pool until its room is needed."""
        self._entries[automaton].users -= 1
        used = (entry.place.width for entry in self._entries.values() if entry.users)
        self.widest = max((END.width, *used))

    def _room(self, automaton: TokenAutomaton) -> Place:
        """Find room, which costs automata that nobody uses, or larger tensors."""
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
                        f"the constraints of the running requests leave no room for one of "
                        f"{8 * needed / 2**20:.1f} MiB in {self.max_bytes / 2**20:.1f} MiB on the "
                        "device; ask again later, or raise the limit"
                    )
                del self._entries[unused]

    def _gap(self, needed: int) -> int | None:
        """The first place that is free for so many entries."""
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
        """Make the tensors larger where that is allowed; whether they were."""
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
            places: where each row's automaton lies.
            states: the rows' states, counted in their automata, or `DEAD`.
            tokens: token ids; what is no id leads nowhere.
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

        Where no token is allowed, and after the end, it is more than any budget.
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
        """Set logits of tokens after which no answer can be finished in time to -inf, in place.

        Args:
            logits: the logits; with `at`, of more rows than are masked.
            places, states: of each row that is masked, as for `next`. Rows at `NOWHERE` stay as
                they are.
            remaining: tokens left, the next one and EOS included.
            at: the row of `logits` that each of them is.
        """
        classes = self._class_mask(places, states, remaining)
        # Minus infinity is added to what is refused: several times faster than filling by a mask.
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
        """Return where the row of each state lies, class by class, and which classes there are."""
        base, width = places[:, :1], places[:, 1:2]
        classes = torch.arange(self.widest, device=places.device)
        exists = classes < width
        entries = base + states.clamp(min=0).unsqueeze(1) * width + classes
        return torch.where(exists, entries, 0), exists
