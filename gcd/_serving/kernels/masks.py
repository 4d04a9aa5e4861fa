"""Packed masks of a served constraint, and a cache for masks of many tokens.

A mask is passed as a pointer to its first word or, if the code isn't compiled, as an array.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.gcd._serving.kernels.table import Table
    from cython.cimports.libc.string import memcpy, memset
else:
    from gcd._serving.kernels.table import Table

_UNKNOWN = cython.declare(cython.int, -1)
# Marks a mask of so few tokens that writing them is as fast as copying the mask.
_NARROW = cython.declare(cython.int, -2)

# A mask is cached if writing it takes more than this fraction of its words (a quarter), because
# copying is vectorized.
NARROW_PART = 4
_PART = cython.declare(cython.int, NARROW_PART)
_NEIGHBORS = cython.declare(cython.int, 4)  # latest cached masks that a new mask is compared with

_FACTOR = cython.declare(cython.ulonglong, 0x5851F42D4C957F2D)
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # for Python integers
_ONE = cython.declare(cython.ulonglong, 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _get_cached(table: Table, slot: cython.Py_ssize_t) -> cython.p_int:
    """Return the mask stored at index `slot` of the cache."""
    if cython.compiled:
        return cython.address(table.row[slot, 0])
    return table.row[slot]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(out: cython.p_int, source: cython.p_int, num_words: cython.Py_ssize_t) -> cython.void:
    """Copy a mask."""
    if cython.compiled:
        memcpy(out, source, num_words * cython.sizeof(cython.int))
    else:
        out[:] = source


@cython.cfunc
@cython.exceptval(check=False)
def _clear(out: cython.p_int, num_words: cython.Py_ssize_t) -> cython.void:
    """Write a mask that doesn't allow any token."""
    if cython.compiled:
        memset(out, 0, num_words * cython.sizeof(cython.int))
    else:
        out[:] = 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add(table: Table, token_class: cython.int, row: cython.p_int) -> cython.void:
    """Allow the tokens of a token class in a mask."""
    i: cython.Py_ssize_t
    dense: cython.Py_ssize_t = table.dense_of[token_class]
    if dense >= 0:
        for i in range(table.num_words):
            row[i] = row[i] | table.dense[dense, i]
        return
    for i in range(table.pair_start[token_class], table.pair_start[token_class + 1]):
        row[table.pair_word[i]] = row[table.pair_word[i]] | table.pair_bits[i]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _remove(table: Table, token_class: cython.int, row: cython.p_int) -> cython.void:
    """Exclude the tokens of a token class from a mask."""
    i: cython.Py_ssize_t
    dense: cython.Py_ssize_t = table.dense_of[token_class]
    if dense >= 0:
        for i in range(table.num_words):
            row[i] = row[i] & ~table.dense[dense, i]
        return
    for i in range(table.pair_start[token_class], table.pair_start[token_class + 1]):
        row[table.pair_word[i]] = row[table.pair_word[i]] & ~table.pair_bits[i]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _lowest(bits: cython.ulonglong) -> cython.int:
    """Return the position of the lowest set bit."""
    position: cython.int = 0
    while not (bits >> position) & 255:
        position += 8
    while not (bits >> position) & 1:
        position += 1
    return position


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _difference(table: Table, slot: cython.Py_ssize_t, i: cython.Py_ssize_t) -> cython.ulonglong:
    """Return the token classes in which a cached mask differs from the wanted mask.

    The result is word i of these classes as bits; `table.bits` has the classes of the wanted mask.
    """
    return cython.cast(cython.ulonglong, table.key[slot, i]) ^ cython.cast(
        cython.ulonglong, table.bits[i]
    )


@cython.cfunc
@cython.exceptval(check=False)
def _nearest(table: Table, slot: cython.Py_ssize_t, cost: cython.longlong) -> cython.Py_ssize_t:
    """Return the index of the cached mask that is the best starting point for a new mask.

    `table.bits` has the token classes of the new mask. Candidates are the mask at index 0, which
    has the most tokens, and the latest masks: inside a string of bounded length, the masks before
    and after a character differ little. Return -1 if starting from an empty mask is faster.
    """
    nearest: cython.Py_ssize_t = -1
    other: cython.Py_ssize_t
    i: cython.Py_ssize_t
    price: cython.longlong
    differ: cython.ulonglong
    latest: cython.longlong = table.clock[0]
    for other in range(table.serial.shape[0]):
        if other == slot or table.serial[other] < 0:
            continue
        if other > 0 and table.serial[other] < latest - _NEIGHBORS:
            continue
        price = table.num_words // _PART
        for i in range(table.bits.shape[0]):
            differ = _difference(table, other, i)
            while differ != 0 and price < cost:
                price += table.cost[64 * i + _lowest(differ)]
                differ &= differ - 1
            if price >= cost:
                break
        if price < cost:
            cost = price
            nearest = other
    return nearest


@cython.cfunc
@cython.exceptval(check=False)
def _assemble(
    table: Table, num_chosen: cython.Py_ssize_t, cost: cython.longlong, slot: cython.Py_ssize_t
) -> cython.void:
    """Write the mask of the token classes in `table.chosen` to index `slot` of the cache.

    Start from the cached mask that needs the fewest changes, or from an empty mask.
    """
    row: cython.p_int = _get_cached(table, slot)
    nearest: cython.Py_ssize_t = _nearest(table, slot, cost)
    i: cython.Py_ssize_t
    position: cython.int
    differ: cython.ulonglong
    if nearest < 0:
        _clear(row, table.num_words)
        for i in range(num_chosen):
            _add(table, table.chosen[i], row)
        return
    _copy(row, _get_cached(table, nearest), table.num_words)
    for i in range(table.bits.shape[0]):
        differ = _difference(table, nearest, i)
        while differ != 0:
            position = _lowest(differ)
            if (cython.cast(cython.ulonglong, table.bits[i]) >> position) & 1:
                _add(table, 64 * i + position, row)
            else:
                _remove(table, 64 * i + position, row)
            differ &= differ - 1


@cython.cfunc
@cython.exceptval(check=False)
def _slot_of(
    table: Table, num_chosen: cython.Py_ssize_t, cost: cython.longlong
) -> cython.Py_ssize_t:
    """Return the cache index of the mask of the token classes in `table.chosen`.

    If the mask isn't cached, compute it, and evict another mask if the cache is full.
    """
    num_slots: cython.Py_ssize_t = table.serial.shape[0]
    num_keys: cython.Py_ssize_t = table.bits.shape[0]
    free: cython.Py_ssize_t = -1
    slot: cython.Py_ssize_t
    i: cython.Py_ssize_t
    token_class: cython.int
    same: cython.bint
    tag: cython.ulonglong = 0
    for i in range(num_keys):
        table.bits[i] = 0
    for i in range(num_chosen):
        token_class = cython.cast(cython.int, table.chosen[i])
        table.bits[token_class >> 6] |= _ONE << (token_class & 63)
    for i in range(num_keys):
        tag = ((tag ^ cython.cast(cython.ulonglong, table.bits[i])) * _FACTOR) & _64_BITS
        tag ^= tag >> 29
    for slot in range(num_slots):
        if table.serial[slot] < 0:
            free = slot
            break  # slots are filled in order and never emptied, so the others are empty
        if table.tag[slot] == tag:
            same = True
            for i in range(num_keys):
                if table.key[slot, i] != table.bits[i]:
                    same = False
                    break
            if same:
                return slot
    if free < 0:
        # Second-chance algorithm: the clock hand skips masks used since its last visit. Slot 0 is
        # never evicted.
        free = table.clock[1]
        while table.used[free] != 0 or (free == 0 and num_slots > 1):
            table.used[free] = 0
            free = (free + 1) % num_slots
        table.clock[1] = (free + 1) % num_slots
    _assemble(table, num_chosen, cost, free)
    for i in range(num_keys):
        table.key[free, i] = table.bits[i]
    table.tag[free] = tag
    table.serial[free] = table.clock[0]
    table.clock[0] += 1
    return free


@cython.cfunc
@cython.exceptval(check=False)
def _write_row(
    table: Table, state: cython.int, remaining: cython.longlong, out: cython.p_int
) -> cython.void:
    """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
    pattern: cython.Py_ssize_t
    first: cython.Py_ssize_t
    last: cython.Py_ssize_t
    own: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    i: cython.Py_ssize_t
    free: cython.bint
    known: cython.int
    token_class: cython.int
    count: cython.Py_ssize_t = 0
    cost: cython.longlong = 0
    if state < 0:
        _clear(out, table.num_words)
        return
    pattern = table.pattern_of[state]
    free = table.reach[state] < remaining
    known = table.known_slot[pattern] if free else _UNKNOWN
    if known >= 0 and table.serial[known] == table.known_serial[pattern]:
        table.used[known] = 1
        _copy(out, _get_cached(table, known), table.num_words)
        return
    first = table.pattern_start[pattern]
    last = table.pattern_start[pattern + 1]
    if known == _NARROW:
        _clear(out, table.num_words)
        for i in range(first, last):
            _add(table, table.pattern_class[i], out)
        return

    own = table.target_start[state]
    for i in range(first, last):
        if free or table.steps[table.targets[own + table.pattern_target[i]]] < remaining:
            token_class = table.pattern_class[i]
            table.chosen[count] = token_class
            cost += table.cost[token_class]
            count += 1
    if _PART * cost < table.num_words or table.serial.shape[0] == 0:
        if free:
            table.known_slot[pattern] = _NARROW
        _clear(out, table.num_words)
        for i in range(count):
            _add(table, table.chosen[i], out)
        return
    slot = _slot_of(table, count, cost)
    table.used[slot] = 1
    if free:
        table.known_slot[pattern] = slot
        table.known_serial[pattern] = table.serial[slot]
    _copy(out, _get_cached(table, slot), table.num_words)


@cython.final
@cython.cclass
class ServedTable(Table):
    """Table of a served constraint that also computes and caches its packed masks."""

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def write_row(
        self, state: cython.int, remaining: cython.longlong, out: cython.p_int
    ) -> cython.int:
        """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
        _write_row(self, state, remaining, out)
        return 0
