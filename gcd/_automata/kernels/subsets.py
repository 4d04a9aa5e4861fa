"""Product construction for two automata.

`gcd._automata.kernels.graph` defines the arrays. Result arrays double when they are full, and
states are looked up in open-addressing hash tables. The loop therefore takes amortized linear time
in its output.

Loops that may run long get three limits: states, entries of the table, and units of work. They
return the units that they took (`gcd._automata.limits`). A loop that reaches a limit stops and
returns the count `TOO_MANY`. The returned units then exceed the work limit, unless the loop stopped
because of the limit on states.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

TOO_MANY = -1
_AND = cython.declare(cython.int, 0)
_OR = cython.declare(cython.int, 1)
_PAIR = cython.declare(cython.longlong, 16)  # units per class of a pair of states


def product(
    a: cython.const[cython.int][:, ::1],
    a_accepting: np.ndarray,
    a_column: cython.const[cython.int][::1],
    b: cython.const[cython.int][:, ::1],
    b_accepting: np.ndarray,
    b_column: cython.const[cython.int][::1],
    kind: cython.int,
    limits: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Construct the automaton of the reachable pairs of states of two automata, a and b.

    If one automaton has no next state, an extra state stands for this dead end. Pairs that can no
    longer accept are skipped.

    `a_column` has the column of `a` for each joint byte class. `kind` is 0 for the intersection,
    1 for the union, 2 for the difference. `limits` are most states, table entries, and units of
    work; the result is (delta, accepting, number of states, units of work).
    """
    a_accepts: cython.const[cython.uchar][::1] = a_accepting.view(np.uint8)
    b_accepts: cython.const[cython.uchar][::1] = b_accepting.view(np.uint8)
    max_states: cython.longlong = limits[0]
    max_cells: cython.longlong = limits[1]
    max_work: cython.longlong = limits[2]
    a_dead: cython.longlong = a.shape[0]
    b_dead: cython.longlong = b.shape[0]
    width: cython.longlong = b_dead + 1
    num_classes: cython.Py_ssize_t = a_column.shape[0]
    work: cython.longlong = 0
    capacity: cython.longlong = 32
    delta_array = np.full((capacity, num_classes), -1, np.int32)
    delta: cython.int[:, ::1] = delta_array
    keys_array = np.empty(capacity, np.int64)
    keys: cython.longlong[::1] = keys_array
    table: cython.int[::1] = np.full(128, -1, np.int32)
    last: cython.longlong = 127
    keys[0] = 0
    table[mix(0) & last] = 0
    count: cython.longlong = 1
    current: cython.longlong = 0
    cython.declare(x=cython.longlong, y=cython.longlong, key=cython.longlong)
    cython.declare(last_key=cython.longlong, target=cython.int)
    while current < count:
        i = keys[current] // width
        j = keys[current] % width
        work += _PAIR * num_classes
        if work > max_work or count * num_classes > max_cells:
            return delta_array[:0], np.zeros(0, np.bool_), TOO_MANY, max_work + 1
        last_key = -1
        target = -1
        for k in range(num_classes):
            x = -1
            y = -1
            if i < a_dead:
                x = int(a[i, a_column[k]])
            if j < b_dead:
                y = int(b[j, b_column[k]])
            if x < 0 and (kind != _OR or y < 0):
                continue
            if y < 0 and kind == _AND:
                continue
            key = (x if x >= 0 else a_dead) * width + (y if y >= 0 else b_dead)
            if key == last_key:  # as for most bytes inside a JSON string
                delta[current, k] = target
                continue
            last_key = key
            slot = mix(key) & last
            while table[slot] >= 0 and keys[table[slot]] != key:
                slot = (slot + 1) & last
            target = table[slot]
            if target < 0:
                if count >= max_states:
                    return delta_array[:0], np.zeros(0, np.bool_), TOO_MANY, work
                if count == capacity:
                    capacity *= 2
                    delta_array = grow_rows(delta_array, capacity)
                    delta = delta_array
                    keys_array = np.resize(keys_array, capacity)
                    keys = keys_array
                target = count
                keys[count] = key
                table[slot] = target
                count += 1
                if 2 * count > last + 1:
                    last = 4 * (last + 1) - 1
                    table = np.full(last + 1, -1, np.int32)
                    for s in range(count):
                        slot = mix(keys[s]) & last
                        while table[slot] >= 0:
                            slot = (slot + 1) & last
                        table[slot] = s
            delta[current, k] = target
        current += 1
    accepting = np.zeros(count, np.bool_)
    accepts: cython.uchar[::1] = accepting.view(np.uint8)
    for s in range(count):
        i = keys[s] // width
        j = keys[s] % width
        in_a: cython.bint = i < a_dead and a_accepts[i] != 0
        in_b: cython.bint = j < b_dead and b_accepts[j] != 0
        if kind == _AND:
            accepts[s] = in_a and in_b
        elif kind == _OR:
            accepts[s] = in_a or in_b
        else:
            accepts[s] = in_a and not in_b
    return delta_array[:count], accepting, count, work


def grow_rows(table: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the table, enlarged to at least `num_rows` rows if it has fewer."""
    if num_rows <= table.shape[0]:
        return table
    grown = np.full((max(num_rows, 2 * table.shape[0]), table.shape[1]), -1, np.int32)
    grown[: table.shape[0]] = table
    return grown
