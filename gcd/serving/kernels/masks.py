"""Compiled steps of a served constraint: next states and packed mask rows, many automata a call.

A **table** is what `gcd.serving.matcher` makes of one token automaton. Compiled code gets it as the
address of its header, an int64 array of sizes and of the addresses of its other arrays, so that one
call serves any number of different automata without touching a Python object in between (an array
argument costs more to hand over than a step takes). Whoever calls keeps the tables alive. A
**cell** says where one sequence is: in which table, in which state, with how many tokens left.

Arrays of a table, S states, C classes, W words a row, P patterns, K cached rows:

    class_of         class of every token
    steps            S: fewest tokens to the end
    reach            S: largest of `steps` after one token; a budget past it changes nothing
    pattern_of       S: the pattern of a state's row of transitions
    target_start     S + 1: where a state's targets lie in `targets`
    pattern_start    P + 1: where a pattern's classes lie in `pattern_class`, `pattern_target`
    pair_start       C + 1: where a class's tokens lie in `pair_word`, `pair_bits`
    dense_of         C: row of `dense` with the class's tokens, -1 if they are pairs
    cost             C: words written for the class, whole rows at the price they have in vectors
    row, key, tag    K: cached rows, the classes in each as a bit set, and a hash of that; the
                     first one is the row of most tokens, and stays
    serial, used     K: number of the content (-1 for none); whether it was used lately
    known_slot       P: slot of the row without a budget, `_UNKNOWN` or `_NARROW`
    known_serial     P: the content that was in that slot
    clock            next serial number; the hand of the eviction clock
    chosen, bits     work space: classes of a row, as a list and as a bit set
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import copied

_UNKNOWN = -1
_NARROW = -2  # assembled from its few tokens as fast as copied

# In words written, part of a row: a cached row pays from a quarter on, as copying runs in vectors.
NARROW_PART = 4
_NEIGHBOURS = 4  # cached rows that a new one is compared with

(
    NUM_CLASSES, NUM_WORDS, NUM_SLOTS, NUM_STATES, NUM_PATTERNS, CLASS_OF, STEPS, REACH,
    PATTERN_OF, TARGET_START, TARGETS, PATTERN_START, PATTERN_CLASS, PATTERN_TARGET, PAIR_START,
    PAIR_WORD, PAIR_BITS, DENSE_OF, DENSE, ROW, KEY, TAG, SERIAL, USED, KNOWN_SLOT, KNOWN_SERIAL,
    CLOCK, CHOSEN, BITS, NUM_TOKENS, COST, HEADER_SIZE,
) = range(32)  # fmt: skip


# A cell: where a sequence is. `END` is the number of tokens up to the end, -1 before it; `LEFT`
# is what is left of the budget, or `NO_BUDGET`.
ADDRESS, STATE, LEFT, COUNT, END, NO_BUDGET, CELL_SIZE = range(7)

REFUSED, TAKEN, NO_TOKEN, NO_ROOM = range(4)


@intrinsic
def _pointer(typing_context, address):
    """An integer as the pointer it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), codegen


@numba.njit(inline="always")
def _int32(address, size):
    return numba.carray(_pointer(address), size, np.int32)


@numba.njit(inline="always")
def _int64(address, size):
    return numba.carray(_pointer(address), size, np.int64)


@helper
def _target(header: np.ndarray, state: int, token_class: int) -> int:
    """The state after a token of a class, -1 for none: a search in the state's pattern."""
    pattern = _int32(header[PATTERN_OF], header[NUM_STATES])[state]
    start = _int32(header[PATTERN_START], header[NUM_PATTERNS] + 1)
    low, high = start[pattern], start[pattern + 1]
    end = high
    classes = _int32(header[PATTERN_CLASS], start[header[NUM_PATTERNS]])
    while low < high:
        middle = (low + high) // 2
        if classes[middle] < token_class:
            low = middle + 1
        else:
            high = middle
    if low == end or classes[low] != token_class:
        return -1
    targets_from = _int32(header[TARGET_START], header[NUM_STATES] + 1)
    local = _int32(header[PATTERN_TARGET], start[header[NUM_PATTERNS]])[low]
    targets = _int32(header[TARGETS], targets_from[header[NUM_STATES]])
    return targets[targets_from[state] + local]


@helper
def next_state(address: int, state: int, remaining: int, token: int) -> int:
    """The state after a token, -1 if it is refused: by the language or by the budget."""
    header = _int64(address, HEADER_SIZE)
    if state < 0:
        return -1
    after = _target(header, state, _int32(header[CLASS_OF], header[NUM_TOKENS])[token])
    if after >= 0 and _int32(header[STEPS], header[NUM_STATES])[after] > remaining - 1:
        return -1
    return after


@kernel
def advance(cells: np.ndarray, history: np.ndarray, row: int, token: int) -> int:
    """One more token of a sequence: `TAKEN`, `REFUSED`, or why it was not looked at."""
    cell = cells[row]
    state = cell[STATE]
    if not 0 <= token < _int64(cell[ADDRESS], HEADER_SIZE)[NUM_TOKENS]:
        return NO_TOKEN
    if cell[COUNT] == history.shape[1]:
        return NO_ROOM
    after = next_state(cell[ADDRESS], state, cell[LEFT], token)
    if after < 0:
        return REFUSED
    history[row, cell[COUNT]] = state
    cell[COUNT] += 1
    cell[STATE] = after
    if cell[END] < 0:
        if after == _int64(cell[ADDRESS], HEADER_SIZE)[NUM_STATES] - 1:
            cell[END] = cell[COUNT]
            cell[LEFT] = cell[NO_BUDGET]  # what follows the end is padding
        elif cell[LEFT] != cell[NO_BUDGET]:
            cell[LEFT] -= 1
    return TAKEN


@kernel
def advance_rows(
    cells: np.ndarray, history: np.ndarray, tokens: np.ndarray, taken: np.ndarray
) -> int:
    """`advance` of every sequence; a row whose token is no id, before anything is done, or -1."""
    for i in range(tokens.size):
        if not 0 <= tokens[i] < _int64(cells[i, ADDRESS], HEADER_SIZE)[NUM_TOKENS]:
            return i
    for i in range(tokens.size):
        taken[i] = advance(cells, history, i, tokens[i]) == TAKEN
    return -1


@helper
def _add(header: np.ndarray, token_class: int, row: np.ndarray) -> None:
    """The row with the tokens of a class."""
    dense = _int32(header[DENSE_OF], header[NUM_CLASSES])[token_class]
    if dense >= 0:
        words = row.size
        source = _int32(header[DENSE] + 4 * words * dense, words)
        for i in range(words):
            row[i] |= source[i]
        return
    start = _int32(header[PAIR_START], header[NUM_CLASSES] + 1)
    word = _int32(header[PAIR_WORD], start[header[NUM_CLASSES]])
    bits = _int32(header[PAIR_BITS], start[header[NUM_CLASSES]])
    for i in range(start[token_class], start[token_class + 1]):
        row[word[i]] |= bits[i]


@helper
def _remove(header: np.ndarray, token_class: int, row: np.ndarray) -> None:
    """The row without the tokens of a class."""
    dense = _int32(header[DENSE_OF], header[NUM_CLASSES])[token_class]
    if dense >= 0:
        words = row.size
        source = _int32(header[DENSE] + 4 * words * dense, words)
        for i in range(words):
            row[i] &= ~source[i]
        return
    start = _int32(header[PAIR_START], header[NUM_CLASSES] + 1)
    word = _int32(header[PAIR_WORD], start[header[NUM_CLASSES]])
    bits = _int32(header[PAIR_BITS], start[header[NUM_CLASSES]])
    for i in range(start[token_class], start[token_class + 1]):
        row[word[i]] &= ~bits[i]


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
def _assemble(header: np.ndarray, num_chosen: int, cost: int, slot: int) -> None:
    """Put the row of the chosen classes into a slot, from nothing or from the nearest row."""
    num_words, num_slots = header[NUM_WORDS], header[NUM_SLOTS]
    num_keys = (header[NUM_CLASSES] + 63) // 64
    chosen = _int32(header[CHOSEN], header[NUM_CLASSES])
    bits = _int64(header[BITS], num_keys)
    serial = _int64(header[SERIAL], num_slots)
    costs = _int32(header[COST], header[NUM_CLASSES])
    row = _int32(header[ROW] + 4 * num_words * slot, num_words)
    # Slot 0 has the widest row of all; the latest are likely neighbours, too, since one character
    # more in a string of bounded length changes little.
    least, nearest = cost, -1
    latest = _int64(header[CLOCK], 2)[0]
    for other in range(num_slots):
        if other == slot or serial[other] < 0:
            continue
        if other > 0 and serial[other] < latest - _NEIGHBOURS:
            continue
        key = _int64(header[KEY] + 8 * num_keys * other, num_keys)
        price = num_words // NARROW_PART
        for i in range(num_keys):
            differ = key[i] ^ bits[i]
            while differ != 0 and price < least:
                price += costs[64 * i + _lowest(differ)]
                differ &= differ - 1
            if price >= least:
                break
        if price < least:
            least, nearest = price, other
    if nearest < 0:
        row[:] = 0
        for i in range(num_chosen):
            _add(header, np.int64(chosen[i]), row)
        return
    copied(row, _int32(header[ROW] + 4 * num_words * nearest, num_words), num_words)
    key = _int64(header[KEY] + 8 * num_keys * nearest, num_keys)
    for i in range(num_keys):
        differ = key[i] ^ bits[i]
        while differ != 0:
            position = _lowest(differ)
            if (bits[i] >> position) & 1:
                _add(header, 64 * i + position, row)
            else:
                _remove(header, 64 * i + position, row)
            differ &= differ - 1


@helper
def _slot_of(header: np.ndarray, num_chosen: int, cost: int) -> int:
    """The slot with the row of the chosen classes, made if need be."""
    num_slots = header[NUM_SLOTS]
    num_keys = (header[NUM_CLASSES] + 63) // 64
    chosen = _int32(header[CHOSEN], header[NUM_CLASSES])
    bits = _int64(header[BITS], num_keys)
    tags, serial = _int64(header[TAG], num_slots), _int64(header[SERIAL], num_slots)
    used = _int64(header[USED], num_slots)
    bits[:] = 0
    for i in range(num_chosen):
        bits[chosen[i] >> 6] |= np.int64(1) << np.int64(chosen[i] & 63)
    tag = np.int64(0)
    for i in range(num_keys):
        tag = (tag ^ bits[i]) * np.int64(0x5851F42D4C957F2D)
        tag ^= tag >> np.int64(29)
    free = -1
    for slot in range(num_slots):
        if serial[slot] < 0:
            free = slot
            break  # slots are filled in order and never emptied
        if tags[slot] == tag:
            key = _int64(header[KEY] + 8 * num_keys * slot, num_keys)
            same = True
            for i in range(num_keys):
                same &= key[i] == bits[i]
            if same:
                return slot
    clock = _int64(header[CLOCK], 2)
    if free < 0:
        # Second chance: the hand passes over rows used since it last came by. Slot 0 stays.
        while used[clock[1]] != 0 or (clock[1] == 0 and num_slots > 1):
            used[clock[1]] = 0
            clock[1] = (clock[1] + 1) % num_slots
        free = clock[1]
        clock[1] = (clock[1] + 1) % num_slots
    _assemble(header, num_chosen, cost, free)
    key = _int64(header[KEY] + 8 * num_keys * free, num_keys)
    copied(key, bits, num_keys)
    tags[free] = tag
    serial[free] = clock[0]
    clock[0] += 1
    return free


@kernel
def fill_row(address: int, state: int, remaining: int, out: np.ndarray) -> None:
    """The packed mask of tokens allowed in a state with so many tokens left; -1 allows none."""
    header = _int64(address, HEADER_SIZE)
    num_words, num_slots, num_states = header[NUM_WORDS], header[NUM_SLOTS], header[NUM_STATES]
    if state < 0:
        out[:] = 0
        return
    num_patterns = header[NUM_PATTERNS]
    pattern = _int32(header[PATTERN_OF], num_states)[state]
    free = _int32(header[REACH], num_states)[state] <= remaining - 1
    known_slot = _int32(header[KNOWN_SLOT], num_patterns)
    known_serial = _int64(header[KNOWN_SERIAL], num_patterns)
    used = _int64(header[USED], num_slots)
    if free and known_slot[pattern] >= 0:
        slot = known_slot[pattern]
        if _int64(header[SERIAL], num_slots)[slot] == known_serial[pattern]:
            used[slot] = 1
            copied(out, _int32(header[ROW] + 4 * num_words * slot, num_words), num_words)
            return

    start = _int32(header[PATTERN_START], num_patterns + 1)
    classes = _int32(header[PATTERN_CLASS], start[num_patterns])
    if free and known_slot[pattern] == _NARROW:
        out[:] = 0
        for i in range(start[pattern], start[pattern + 1]):
            _add(header, np.int64(classes[i]), out)
        return

    local = _int32(header[PATTERN_TARGET], start[num_patterns])
    targets_from = _int32(header[TARGET_START], num_states + 1)
    targets = _int32(header[TARGETS], targets_from[num_states])
    steps = _int32(header[STEPS], num_states)
    chosen = _int32(header[CHOSEN], header[NUM_CLASSES])
    costs = _int32(header[COST], header[NUM_CLASSES])
    first = targets_from[state]
    count, cost = np.int64(0), np.int64(0)
    for i in range(start[pattern], start[pattern + 1]):
        if free or steps[targets[first + local[i]]] <= remaining - 1:
            chosen[count] = classes[i]
            cost += costs[classes[i]]
            count += 1
    if NARROW_PART * cost < num_words or num_slots == 0:
        if free:
            known_slot[pattern] = _NARROW
        out[:] = 0
        for i in range(count):
            _add(header, np.int64(chosen[i]), out)
        return
    slot = _slot_of(header, count, cost)
    used[slot] = 1
    if free:
        known_slot[pattern] = slot
        known_serial[pattern] = _int64(header[SERIAL], num_slots)[slot]
    copied(out, _int32(header[ROW] + 4 * num_words * slot, num_words), num_words)


@kernel
def fill_mask(cells: np.ndarray, row: int, out: np.ndarray) -> None:
    """The mask of one sequence."""
    cell = cells[row]
    fill_row(cell[ADDRESS], cell[STATE], cell[LEFT], out)


@kernel
def fill_masks(cells: np.ndarray, out: np.ndarray) -> None:
    """The mask of every sequence, each in its row."""
    for i in range(cells.shape[0]):
        fill_row(cells[i, ADDRESS], cells[i, STATE], cells[i, LEFT], out[i])


@kernel
def forced(
    address: int,
    state: int,
    remaining: int,
    final: int,
    size: np.ndarray,
    first_token: np.ndarray,
    tokens: np.ndarray,
) -> int:
    """Write tokens from the state on as long as only one is allowed; how many there are.

    Class c has `size[c]` tokens, `first_token[c]` among them.
    """
    header = _int64(address, HEADER_SIZE)
    num_states, num_patterns = header[NUM_STATES], header[NUM_PATTERNS]
    start = _int32(header[PATTERN_START], num_patterns + 1)
    classes = _int32(header[PATTERN_CLASS], start[num_patterns])
    local = _int32(header[PATTERN_TARGET], start[num_patterns])
    targets_from = _int32(header[TARGET_START], num_states + 1)
    targets = _int32(header[TARGETS], targets_from[num_states])
    steps = _int32(header[STEPS], num_states)
    pattern_of = _int32(header[PATTERN_OF], num_states)
    count = 0
    while state != final and count < tokens.size:
        pattern, first = pattern_of[state], targets_from[state]
        allowed, after, token = 0, -1, -1
        for i in range(start[pattern], start[pattern + 1]):
            target = targets[first + local[i]]
            if steps[target] <= remaining - 1:
                allowed += size[classes[i]]
                after, token = target, first_token[classes[i]]
                if allowed > 1:
                    break
        if allowed != 1:
            break
        tokens[count] = token
        count += 1
        state = after
        remaining -= 1
    return count


# -- building tables ------------------------------------------------------------------------
