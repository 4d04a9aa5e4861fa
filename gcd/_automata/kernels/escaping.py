"""Trees of JSON escapes for an automaton over UTF-8 texts.

The escape `\\uXXXX` writes the bits of a code point as four hexadecimal digits. UTF-8 writes the
same bits as one to four bytes, with up to seven bits in each. From a state between two code points,
the escape of a code point has to lead to the same state as the code point's bytes. The nodes of the
tree are the positions inside an escape. The last digits of an escape contain only bits of the last
one or two UTF-8 bytes. So the node before these digits depends only on the state before these
bytes. A code point above U+FFFF is escaped as two halves, a surrogate pair.

Equal nodes are stored once, and trees for states inside a character are computed once. So the cost
is O(16) for each node and each state in which a code point may begin.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._automata.kernels.subsets import grow_rows

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

# Kinds of nodes. `BEFORE_U` and `BEFORE_BACKSLASH` occur only between the halves of a pair.
DIGIT, BEFORE_U, BEFORE_BACKSLASH, AFTER_BACKSLASH = range(4)
LETTERS = b'"\\/\b\f\n\r\t'
"""Characters that have an escape of two characters, such as `\\n`."""
_DIGIT = cython.declare(cython.int, 0)
_BEFORE_U = cython.declare(cython.int, 1)
_BEFORE_BACKSLASH = cython.declare(cython.int, 2)
_AFTER_BACKSLASH = cython.declare(cython.int, 3)
_UNKNOWN = cython.declare(cython.int, -2)
_WIDTH = cython.declare(cython.int, 16)
_56_BITS = cython.declare(cython.longlong, 0xFFFFFFFFFFFFFF)


@cython.final
@cython.cclass
class _Trees:
    """Trees of the JSON escapes that one automaton allows.

    The nodes are the positions inside an escape, and are numbered from `first_node`.
    """

    step: cython.const[cython.int][:, ::1]
    class_of: cython.const[cython.uchar][::1]
    first_node: cython.int
    count: cython.int
    rows_array: object
    rows: cython.int[:, ::1]
    kinds_array: object
    kinds: cython.int[::1]
    table: cython.int[::1]
    row: cython.int[::1]  # scratch space for 13 rows, because methods call each other
    ends: cython.int[:, ::1]  # results of `end`, by its arguments
    halves: cython.int[:, ::1]  # results of `half`
    digits: cython.int[::1]  # results of `three_digits`
    planes: dict  # results of `first_halves`
    letters: cython.const[cython.uchar][::1]
    leads: cython.const[cython.uchar][::1]  # classes of bytes that begin multibyte characters

    def __init__(self, delta: np.ndarray, class_of_byte: np.ndarray) -> None:
        size: cython.Py_ssize_t = delta.shape[0]
        self.step = delta
        self.class_of = class_of_byte
        self.first_node = size + 2
        self.count = 0
        self.rows_array = np.empty((64, 16), np.int32)
        self.rows = self.rows_array
        self.kinds_array = np.empty(64, np.int32)
        self.kinds = self.kinds_array
        self.table = np.full(256, -1, np.int32)
        self.row = np.empty(13 * 16, np.int32)
        self.ends = np.full((size, 4), -2, np.int32)
        self.halves = np.full((size, 4), -2, np.int32)
        self.digits = np.full(size, -2, np.int32)
        self.planes = {}
        self.letters = np.frombuffer(LETTERS, np.uint8)
        # Avoid np.unique, because its first call imports numpy.ma.
        self.leads = np.flatnonzero(np.bincount(class_of_byte[0xC2:0xF5])).astype(np.uint8)

    @cython.cfunc
    @cython.exceptval(check=False)
    def after(self, state: cython.int, byte: cython.int) -> cython.int:
        """Return the state after reading a byte in a state; -1 if there is none."""
        return self.step[state, self.class_of[byte]] if state >= 0 else -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def slot_of(self, kind: cython.int, row: cython.int[::1]) -> cython.longlong:
        """Return the hash table's index of the node with the targets `row`, or of a free entry."""
        last: cython.longlong = self.table.shape[0] - 1
        key: cython.longlong = kind
        i: cython.int
        other: cython.int
        target: cython.longlong
        for i in range(_WIDTH):
            target = int(row[i])
            key = mix((key & _56_BITS) * 31 + target + 2)
        slot: cython.longlong = key & last
        while self.table[slot] >= 0:
            other = self.table[slot]
            if self.kinds[other] == kind:
                i = 0
                while i < _WIDTH and self.rows[other, i] == row[i]:
                    i += 1
                if i == _WIDTH:
                    break
            slot = (slot + 1) & last
        return slot

    @cython.cfunc
    @cython.exceptval(-3)
    def node(self, kind: cython.int, row: cython.int[::1]) -> cython.int:
        """Return the tree node whose 16 targets are the elements of `row`; -1 if all are -1.

        A node that doesn't exist yet is added.
        """
        i: cython.int = 0
        while i < _WIDTH and row[i] < 0:
            i += 1
        if i == _WIDTH:
            return -1
        slot: cython.longlong = self.slot_of(kind, row)
        if self.table[slot] >= 0:
            return self.first_node + self.table[slot]
        if self.count == self.rows.shape[0]:
            self.rows_array = grow_rows(self.rows_array, self.count + 1)
            self.rows = self.rows_array
            self.kinds_array = np.resize(self.kinds_array, self.rows.shape[0])
            self.kinds = self.kinds_array
        for i in range(_WIDTH):
            self.rows[self.count, i] = row[i]
        self.kinds[self.count] = kind
        self.table[slot] = self.count
        self.count += 1
        if 2 * self.count > self.table.shape[0]:
            self.table = np.full(4 * self.table.shape[0], -1, np.int32)
            for i in range(self.count):
                self.table[self.slot_of(self.kinds[i], self.rows[i])] = i
        return self.first_node + self.count - 1

    @cython.cfunc
    @cython.exceptval(-3)
    def only(self, kind: cython.int, index: cython.int, target: cython.int) -> cython.int:
        """Return the tree node that has a single target: `target`, at index `index`."""
        row: cython.int[::1] = self.row[:16]
        i: cython.int
        for i in range(_WIDTH):
            row[i] = -1
        row[index] = target
        return self.node(kind, row)

    @cython.cfunc
    @cython.exceptval(-3)
    def end(self, state: cython.int, high: cython.int) -> cython.int:
        """Return the node before the last digit of an escape, the low four bits of the last byte.

        `state` is the state before that byte. `high` is the value of the two bits above the digit,
        so the byte is `0x80 + 16 * high + digit`.
        """
        if state < 0:
            return -1
        if self.ends[state, high] == _UNKNOWN:
            row: cython.int[::1] = self.row[16:32]
            i: cython.int
            for i in range(_WIDTH):
                row[i] = self.after(state, 0x80 + 16 * high + i)
            self.ends[state, high] = self.node(_DIGIT, row)
        return self.ends[state, high]

    @cython.cfunc
    @cython.exceptval(-3)
    def two_digits(self, state: cython.int, first: cython.int) -> cython.int:
        """Return the node before an escape's last two digits, if two bytes of the character remain.

        `state` is the state before the two bytes. The two digits determine two bits of the first
        byte: `first` is the smallest of its four possible values.
        """
        row: cython.int[::1] = self.row[32:48]
        i: cython.int
        for i in range(_WIDTH):
            row[i] = self.end(self.after(state, first + (i >> 2)), i & 3)
        return self.node(_DIGIT, row)

    @cython.cfunc
    @cython.exceptval(-3)
    def three_digits(self, state: cython.int) -> cython.int:
        """Return the node before the last three digits, if two bytes of the character remain."""
        if state < 0:
            return -1
        if self.digits[state] == _UNKNOWN:
            row: cython.int[::1] = self.row[48:64]
            i: cython.int
            for i in range(_WIDTH):
                row[i] = self.two_digits(state, 0x80 + 4 * i)
            self.digits[state] = self.node(_DIGIT, row)
        return self.digits[state]

    @cython.cfunc
    @cython.exceptval(-3)
    def half(self, state: cython.int, high: cython.int) -> cython.int:
        """Return the node before a second surrogate's escape, if two bytes of the character remain.

        `state` is the state before these bytes. `high` is the value of the two highest bits that
        the first of these bytes has from the code point.
        """
        if state < 0:
            return -1
        if self.halves[state, high] == _UNKNOWN:
            row: cython.int[::1] = self.row[64:80]
            i: cython.int
            for i in range(_WIDTH):
                row[i] = -1
                if i >= 12:
                    row[i] = self.two_digits(state, 0x80 + 16 * high + 4 * (i - 12))
            i = self.node(_DIGIT, row)
            if i >= 0:
                i = self.only(_DIGIT, 13, i)
                i = self.only(_BEFORE_U, 0, i)
                i = self.only(_BEFORE_BACKSLASH, 0, i)
            self.halves[state, high] = i
        return self.halves[state, high]

    @cython.cfunc
    def first_halves(self, state: cython.int) -> tuple | None:
        """Return the nodes after the digits D8, D9, DA and DB, which begin a surrogate pair.

        Return None if no code point above U+FFFF may follow.
        """
        leads: cython.int[::1] = self.row[80:96]
        row: cython.int[::1] = self.row[96:112]
        deeper: cython.int[::1] = self.row[112:128]
        i: cython.int
        j: cython.int
        k: cython.int
        plane: cython.int
        byte: cython.int
        for i in range(5):
            leads[i] = self.after(state, 0xF0 + i)
        i = 0
        while i < 5 and leads[i] < 0:
            i += 1
        if i == 5:
            return None
        key = (leads[0], leads[1], leads[2], leads[3], leads[4])
        if key not in self.planes:
            found = []
            for k in range(4):
                for j in range(_WIDTH):
                    plane = 4 * k + (j >> 2) + 1
                    for i in range(_WIDTH):
                        byte = 0x80 + 16 * (plane & 3) + 4 * (j & 3) + (i >> 2)
                        deeper[i] = self.half(self.after(leads[plane >> 2], byte), i & 3)
                    row[j] = self.node(_DIGIT, deeper)
                found.append(self.node(_DIGIT, row))
            self.planes[key] = tuple(found)
        halves: tuple = self.planes[key]
        return halves

    @cython.cfunc
    @cython.exceptval(-3)
    def low_digits(self, state: cython.int, is_ascii: cython.bint) -> cython.int:
        """Return the node after the first digit of an escape, if this digit is 0.

        If `is_ascii`, only characters of one byte may follow in this state.
        """
        row: cython.int[::1] = self.row[128:144]
        deeper: cython.int[::1] = self.row[144:160]
        last: cython.int[::1] = self.row[160:176]
        i: cython.int
        j: cython.int
        t: cython.int
        for i in range(_WIDTH):
            row[i] = -1
            deeper[i] = -1
        for i in range(1 if is_ascii else 8):  # one byte up to U+007F, two up to U+07FF
            for j in range(8 if is_ascii else _WIDTH):
                if i == 0 and j < 8:
                    for t in range(_WIDTH):
                        last[t] = self.after(state, 16 * j + t)
                    deeper[j] = self.node(_DIGIT, last)
                else:
                    t = self.after(state, 0xC0 + 4 * i + (j >> 2))
                    deeper[j] = self.end(t, j & 3)
            row[i] = self.node(_DIGIT, deeper)
        if is_ascii:
            return self.node(_DIGIT, row)
        t = self.three_digits(self.after(state, 0xE0))
        if t >= 0:
            for i in range(8, _WIDTH):
                row[i] = self.rows[t - self.first_node, i]
        return self.node(_DIGIT, row)

    @cython.cfunc
    @cython.exceptval(-3)
    def after_backslash(self, state: cython.int) -> cython.int:
        """Return the node after an escape's backslash, for a state where a code point may begin."""
        row: cython.int[::1] = self.row[176:192]
        deeper: cython.int[::1] = self.row[192:208]
        i: cython.int
        is_ascii: cython.bint = True
        for i in range(self.leads.shape[0]):
            if self.step[state, self.leads[i]] >= 0:
                is_ascii = False
        row[0] = self.low_digits(state, is_ascii)
        for i in range(1, _WIDTH):
            row[i] = -1 if is_ascii else self.three_digits(self.after(state, 0xE0 + i))
        halves = None if is_ascii else self.first_halves(state)
        if halves is not None:
            for i in range(_WIDTH):
                deeper[i] = self.rows[row[13] - self.first_node, i] if row[13] >= 0 else -1
            for i in range(4):
                deeper[8 + i] = halves[i]
            row[13] = self.node(_DIGIT, deeper)
        deeper[8] = self.node(_DIGIT, row)
        for i in range(8):
            deeper[i] = self.after(state, self.letters[i])
            deeper[9 + i % 7] = -1
        return self.node(_AFTER_BACKSLASH, deeper)


def escapes(
    delta: np.ndarray, class_of_byte: np.ndarray, max_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Construct the trees of JSON escapes for an automaton over UTF-8 texts.

    The number of the first node is the number of states plus two. The targets of a `DIGIT` node are
    indexed by the digits 0 to 15. `BEFORE_U` and `BEFORE_BACKSLASH` nodes have a single target. An
    `AFTER_BACKSLASH` node has a target for each character in `LETTERS`, and then one for `u`.

    Args:
        delta, class_of_byte: the automaton. A state must allow bytes from 0x80 to 0xBF if and only
            if it is inside a character.
        max_states: stop at more nodes than this. The result may have up to a thousand nodes more.

    Returns:
        The node after a backslash for each state (-1 for none), the 16 targets of each node, and
        the kind of each node.
    """
    trees = _Trees(delta, class_of_byte)
    num_states: cython.int = delta.shape[0]
    after_array = np.full(num_states, -1, np.int32)
    after: cython.int[::1] = after_array
    state: cython.int
    byte: cython.int
    for state in range(num_states):
        byte = 0x80
        while byte < 0xC0 and trees.after(state, byte) < 0:
            byte += 1
        if byte == 0xC0:
            after[state] = trees.after_backslash(state)
        if trees.count > max_states:
            break
    count: cython.Py_ssize_t = trees.count
    return after_array, trees.rows_array[:count], trees.kinds_array[:count]
