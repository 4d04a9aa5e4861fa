"""This module takes the steps of served constraints: next states and packed mask rows.

A constraint comes as the address of its **table** (`gcd.serving.kernels.table`), so that one call
serves any number of different automata without touching a Python object in between. A **cell** says
where one sequence is: in which table, in which state, with how many tokens left. Helpers, too, take
the address: a table as an argument is more than a hundred numbers, counted references included.
"""

from __future__ import annotations

import numpy as np

from gcd.serving.kernels.table import table_at
from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import copied
from gcd.tokens.kernels.token_graph import fits

_UNKNOWN = -1
_NARROW = -2  # instead of a slot: a row assembled from its few tokens as fast as copied

# In words written, part of a row: a cached row pays from a quarter on, as copying runs in vectors.
NARROW_PART = 4
_NEIGHBOURS = 4  # cached rows that a new one is compared with

# A cell: where a sequence is. `END` is the number of tokens up to the end, -1 before it; `LEFT`
# is what is left of the budget, or `NO_BUDGET`.
ADDRESS, STATE, LEFT, COUNT, END, NO_BUDGET, CELL_SIZE = range(7)

REFUSED, TAKEN, NO_TOKEN, NO_ROOM = range(4)


@helper
def _target(address: int, state: int, token_class: int) -> int:
    """The state after a token of a class, -1 for none: a search in the state's pattern."""
    table = table_at(address)
    pattern = table.pattern_of[state]
    low, high = table.pattern_start[pattern], table.pattern_start[pattern + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if table.pattern_class[middle] < token_class:
            low = middle + 1
        else:
            high = middle
    if low == end or table.pattern_class[low] != token_class:
        return -1
    return table.targets[table.target_start[state] + table.pattern_target[low]]


@helper
def _next_state(address: int, state: int, remaining: int, token: int) -> int:
    """The state after a token, -1 if it is refused: by the language or by the budget."""
    table = table_at(address)
    if state < 0:
        return -1
    after = _target(address, state, table.class_of[token])
    if after >= 0 and not fits(table.steps[after], remaining):
        return -1
    return after


@kernel
def advance(cells: np.ndarray, history: np.ndarray, row: int, token: int) -> int:
    """Append a token to a sequence; return `TAKEN`, `REFUSED`, or why it was not looked at."""
    cell = cells[row]
    state = cell[STATE]
    address = cell[ADDRESS]
    table = table_at(address)
    if not 0 <= token < table.class_of.size:
        return NO_TOKEN
    if cell[COUNT] == history.shape[1]:
        return NO_ROOM
    after = _next_state(address, state, cell[LEFT], token)
    if after < 0:
        return REFUSED
    history[row, cell[COUNT]] = state
    cell[COUNT] += 1
    cell[STATE] = after
    if cell[END] < 0:
        if after == table.steps.size - 1:
            cell[END] = cell[COUNT]
            cell[LEFT] = cell[NO_BUDGET]  # what follows the end is padding
        elif cell[LEFT] != cell[NO_BUDGET]:
            cell[LEFT] -= 1
    return TAKEN


@kernel
def advance_rows(
    cells: np.ndarray, history: np.ndarray, tokens: np.ndarray, taken: np.ndarray
) -> int:
    """Do `advance` for every sequence: -1; or nothing, and return the row whose token is no id."""
    for i in range(tokens.size):
        if not 0 <= tokens[i] < table_at(cells[i, ADDRESS]).class_of.size:
            return i
    for i in range(tokens.size):
        taken[i] = advance(cells, history, i, tokens[i]) == TAKEN
    return -1


@helper
def _change(address: int, token_class: int, row: np.ndarray, add: bool) -> None:
    """The row with the tokens of a class, or without them."""
    table = table_at(address)
    dense = table.dense_of[token_class]
    if dense >= 0:
        source = table.dense[dense]
        for i in range(row.size):
            row[i] = row[i] | source[i] if add else row[i] & ~source[i]
        return
    for i in range(table.pair_start[token_class], table.pair_start[token_class + 1]):
        word, bits = table.pair_word[i], table.pair_bits[i]
        row[word] = row[word] | bits if add else row[word] & ~bits


@helper
def _lowest(bits: int) -> int:
    """Position of the lowest bit that is set."""
    position = 0
    while not (bits >> position) & 255:
        position += 8
    while not (bits >> position) & 1:
        position += 1
    return position


@helper
def _fill(address: int, classes: np.ndarray, first: int, last: int, row: np.ndarray) -> None:
    """The row of the tokens of `classes[first:last]`."""
    row[:] = 0
    add = np.bool_(True)
    for i in range(first, last):
        _change(address, np.int64(classes[i]), row, add)


@helper
def _assemble(address: int, num_chosen: int, cost: int, slot: int) -> None:
    """Put the row of the chosen classes into a slot, from nothing or from the nearest row."""
    table = table_at(address)
    num_slots, num_words = table.row.shape
    bits, serial, row = table.bits, table.serial, table.row[slot]
    # Slot 0 has the widest row of all; the latest are likely neighbours, too, since one character
    # more in a string of bounded length changes little.
    least, nearest = cost, -1
    latest = table.clock[0]
    for other in range(num_slots):
        if other == slot or serial[other] < 0:
            continue
        if other > 0 and serial[other] < latest - _NEIGHBOURS:
            continue
        price = num_words // NARROW_PART
        for i in range(bits.size):
            differ = table.key[other, i] ^ bits[i]
            while differ != 0 and price < least:
                price += table.cost[64 * i + _lowest(differ)]
                differ &= differ - 1
            if price >= least:
                break
        if price < least:
            least, nearest = price, other
    if nearest < 0:
        _fill(address, table.chosen, np.int64(0), num_chosen, row)
        return
    copied(row, table.row[nearest], num_words)
    for i in range(bits.size):
        differ = table.key[nearest, i] ^ bits[i]
        while differ != 0:
            position = _lowest(differ)
            _change(address, 64 * i + position, row, (bits[i] >> position) & 1 != 0)
            differ &= differ - 1


@helper
def _slot_of(address: int, num_chosen: int, cost: int) -> int:
    """The slot with the row of the chosen classes, made if need be."""
    table = table_at(address)
    bits, serial, used, clock = table.bits, table.serial, table.used, table.clock
    num_slots = serial.size
    bits[:] = 0
    for i in range(num_chosen):
        bits[table.chosen[i] >> 6] |= np.int64(1) << np.int64(table.chosen[i] & 63)
    tag = np.int64(0)
    for i in range(bits.size):
        tag = (tag ^ bits[i]) * np.int64(0x5851F42D4C957F2D)
        tag ^= tag >> np.int64(29)
    free = np.int64(-1)
    for slot in range(num_slots):
        if serial[slot] < 0:
            free = np.int64(slot)
            break  # slots are filled in order and never emptied
        if table.tag[slot] == tag:
            same = True
            for i in range(bits.size):
                same &= table.key[slot, i] == bits[i]
            if same:
                return slot
    if free < 0:
        # Second chance: the hand passes over rows used since it last came by. Slot 0 stays.
        while used[clock[1]] != 0 or (clock[1] == 0 and num_slots > 1):
            used[clock[1]] = 0
            clock[1] = (clock[1] + 1) % num_slots
        free = clock[1]
        clock[1] = (clock[1] + 1) % num_slots
    _assemble(address, num_chosen, cost, free)
    copied(table.key[free], bits, bits.size)
    table.tag[free] = tag
    serial[free] = clock[0]
    clock[0] += 1
    return free


@kernel
def fill_row(address: int, state: int, remaining: int, out: np.ndarray) -> None:
    """Write the packed mask of a state with so many tokens left; -1 allows none."""
    if state < 0:
        out[:] = 0
        return
    table = table_at(address)
    num_slots, num_words = table.row.shape
    pattern = table.pattern_of[state]
    free = fits(table.reach[state], remaining)
    known = table.known_slot[pattern] if free else np.int32(_UNKNOWN)
    if known >= 0 and table.serial[known] == table.known_serial[pattern]:
        table.used[known] = 1
        copied(out, table.row[known], num_words)
        return
    first, last = np.int64(table.pattern_start[pattern]), np.int64(table.pattern_start[pattern + 1])
    if known == _NARROW:
        _fill(address, table.pattern_class, first, last, out)
        return

    own = table.target_start[state]
    count, cost = np.int64(0), np.int64(0)
    for i in range(first, last):
        after = table.targets[own + table.pattern_target[i]]
        if free or fits(table.steps[after], remaining):
            token_class = table.pattern_class[i]
            table.chosen[count] = token_class
            cost += table.cost[token_class]
            count += 1
    if NARROW_PART * cost < num_words or num_slots == 0:
        if free:
            table.known_slot[pattern] = _NARROW
        _fill(address, table.chosen, np.int64(0), count, out)
        return
    slot = _slot_of(address, count, cost)
    table.used[slot] = 1
    if free:
        table.known_slot[pattern] = slot
        table.known_serial[pattern] = table.serial[slot]
    copied(out, table.row[slot], num_words)


@kernel
def fill_mask(cells: np.ndarray, row: int, out: np.ndarray) -> None:
    """Write the mask of one sequence."""
    cell = cells[row]
    fill_row(cell[ADDRESS], cell[STATE], cell[LEFT], out)


@kernel
def fill_masks(cells: np.ndarray, out: np.ndarray) -> None:
    """Write the mask of every sequence, each in its row."""
    for i in range(cells.shape[0]):
        fill_row(cells[i, ADDRESS], cells[i, STATE], cells[i, LEFT], out[i])


@kernel
def follow(cells: np.ndarray, row: int, draft: np.ndarray, out: np.ndarray) -> int:
    """Write the masks along a draft and return how many of its tokens are allowed; take none.

    There are rows for all prefixes of the draft, or none at all. Oracle: `advance`, `fill_mask`.
    """
    address, state, left = cells[row, ADDRESS], cells[row, STATE], cells[row, LEFT]
    no_budget = cells[row, NO_BUDGET]
    final = table_at(address).steps.size - 1
    out[:] = 0
    for i in range(draft.size):
        if i < out.shape[0]:
            fill_row(address, state, left, out[i])
        state = _next_state(address, state, left, draft[i])
        if state < 0:
            return i
        if state == final:
            left = no_budget  # what follows the end is padding
        elif left != no_budget:
            left -= 1
    if draft.size < out.shape[0]:
        fill_row(address, state, left, out[draft.size])
    return draft.size


@kernel
def num_allowed(address: int, state: int, remaining: int, size: np.ndarray) -> int:
    """Count the tokens of a mask; class c has `size[c]` of them."""
    table = table_at(address)
    pattern, own = table.pattern_of[state], table.target_start[state]
    count = np.int64(0)
    for i in range(table.pattern_start[pattern], table.pattern_start[pattern + 1]):
        if fits(table.steps[table.targets[own + table.pattern_target[i]]], remaining):
            count += size[table.pattern_class[i]]
    return count


@kernel
def forced(
    address: int,
    state: int,
    remaining: int,
    size: np.ndarray,
    first_token: np.ndarray,
    tokens: np.ndarray,
) -> int:
    """Write the tokens from the state on while only one is allowed; return how many there are.

    Class c has `size[c]` tokens, `first_token[c]` among them.
    """
    table = table_at(address)
    count = 0
    while state != table.steps.size - 1 and count < tokens.size:
        pattern, own = table.pattern_of[state], table.target_start[state]
        allowed, after, token = 0, -1, -1
        for i in range(table.pattern_start[pattern], table.pattern_start[pattern + 1]):
            target = table.targets[own + table.pattern_target[i]]
            if fits(table.steps[target], remaining):
                allowed += size[table.pattern_class[i]]
                after, token = target, first_token[table.pattern_class[i]]
                if allowed > 1:
                    break
        if allowed != 1:
            break
        tokens[count] = token
        count += 1
        state = after
        remaining -= 1
    return count
