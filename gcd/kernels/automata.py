"""Compiled loops over finite automata: reachability, products, subset construction, minimisation.

Conventions: `delta[s, k]` is the state after reading byte class `k` in state `s`, -1 when there is
none; state 0 is initial. Growing results live in arrays that double, so every loop is amortised
linear in what it produces. A result past `max_states` is reported by a negative count.
"""

from __future__ import annotations

import numba
import numpy as np

_AND, _OR, _DIFFERENCE = 0, 1, 2
TOO_MANY = -1


@numba.njit(cache=True)
def _mix(value: int) -> int:
    """A 64-bit finaliser (splitmix64): spreads consecutive keys over the hash table."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@numba.njit(cache=True)
def predecessors(delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Incoming edges, compressed: state t is entered from `sources[offsets[t]:offsets[t+1]]`."""
    num_states, num_classes = delta.shape
    offsets = np.zeros(num_states + 1, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            if delta[s, k] >= 0:
                offsets[delta[s, k] + 1] += 1
    for t in range(num_states):
        offsets[t + 1] += offsets[t]
    sources = np.empty(offsets[num_states], np.int32)
    fill = offsets[:-1].copy()
    for s in range(num_states):
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0:
                sources[fill[t]] = s
                fill[t] += 1
    return offsets, sources


@numba.njit(cache=True)
def coaccessible(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """States from which some accepting state can be reached."""
    num_states = delta.shape[0]
    offsets, sources = predecessors(delta)
    alive = accepting.copy()
    stack = np.empty(num_states, np.int32)
    top = 0
    for s in range(num_states):
        if accepting[s]:
            stack[top] = s
            top += 1
    while top > 0:
        top -= 1
        t = stack[top]
        for i in range(offsets[t], offsets[t + 1]):
            s = sources[i]
            if not alive[s]:
                alive[s] = True
                stack[top] = s
                top += 1
    return alive


@numba.njit(cache=True)
def distances_to_accept(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Fewest symbols from each state to an accepting one; -1 where there is no way."""
    num_states = delta.shape[0]
    offsets, sources = predecessors(delta)
    distance = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    head, tail = 0, 0
    for s in range(num_states):
        if accepting[s]:
            distance[s] = 0
            queue[tail] = s
            tail += 1
    while head < tail:
        t = queue[head]
        head += 1
        for i in range(offsets[t], offsets[t + 1]):
            s = sources[i]
            if distance[s] < 0:
                distance[s] = distance[t] + 1
                queue[tail] = s
                tail += 1
    return distance


@numba.njit(cache=True)
def breadth_first_order(delta: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """New number of each state in breadth-first order over live states, -1 for the rest."""
    num_states, num_classes = delta.shape
    number = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    if not alive[0]:
        return number
    number[0] = 0
    queue[0] = 0
    head, tail = 0, 1
    while head < tail:
        s = queue[head]
        head += 1
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0 and alive[t] and number[t] < 0:
                number[t] = tail
                queue[tail] = t
                tail += 1
    return number


@numba.njit(cache=True)
def renumber(
    delta: np.ndarray, accepting: np.ndarray, number: np.ndarray, num_kept: int
) -> tuple[np.ndarray, np.ndarray]:
    """The automaton over the kept states (`number >= 0`), several old states may share a number."""
    num_states, num_classes = delta.shape
    new_delta = np.full((num_kept, num_classes), -1, np.int32)
    new_accepting = np.zeros(num_kept, np.bool_)
    for s in range(num_states):
        if number[s] >= 0:
            new_accepting[number[s]] = accepting[s]
            for k in range(num_classes):
                t = delta[s, k]
                if t >= 0:
                    new_delta[number[s], k] = number[t]
    return new_delta, new_accepting


@numba.njit(cache=True)
def product(
    a_delta: np.ndarray,
    a_accepting: np.ndarray,
    b_delta: np.ndarray,
    b_accepting: np.ndarray,
    mode: int,
    max_states: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Reachable pairs of two automata over one alphabet: 0 intersection, 1 union, 2 difference.

    A component that has died is numbered as one more state of its automaton; pairs that can no
    longer accept in the given mode are not built. Returns (delta, accepting, number of states).
    """
    a_dead, b_dead = a_delta.shape[0], b_delta.shape[0]
    width = np.int64(b_dead + 1)
    num_classes = a_delta.shape[1]
    capacity = 256
    delta = np.full((capacity, num_classes), -1, np.int32)
    keys = np.empty(capacity, np.int64)
    table = np.full(1024, -1, np.int32)
    keys[0] = 0
    table[_mix(0) & 1023] = 0
    count = 1
    current = 0
    while current < count:
        i, j = keys[current] // width, keys[current] % width
        for k in range(num_classes):
            x = a_delta[i, k] if i < a_dead else -1
            y = b_delta[j, k] if j < b_dead else -1
            if x < 0 and (mode != _OR or y < 0):
                continue
            if y < 0 and mode == _AND:
                continue
            key = np.int64(x if x >= 0 else a_dead) * width + (y if y >= 0 else b_dead)
            slot = _mix(key) & (table.size - 1)
            while table[slot] >= 0 and keys[table[slot]] != key:
                slot = (slot + 1) & (table.size - 1)
            target = table[slot]
            if target < 0:
                if count >= max_states:
                    return delta[:0], np.zeros(0, np.bool_), TOO_MANY
                if count == capacity:
                    capacity *= 2
                    grown = np.full((capacity, num_classes), -1, np.int32)
                    grown[:count] = delta
                    delta = grown
                    longer = np.empty(capacity, np.int64)
                    longer[:count] = keys
                    keys = longer
                target = count
                keys[count] = key
                table[slot] = count
                count += 1
                if 2 * count > table.size:
                    table = np.full(4 * table.size, -1, np.int32)
                    for s in range(count):
                        slot = _mix(keys[s]) & (table.size - 1)
                        while table[slot] >= 0:
                            slot = (slot + 1) & (table.size - 1)
                        table[slot] = s
            delta[current, k] = target
        current += 1
    accepting = np.zeros(count, np.bool_)
    for s in range(count):
        i, j = keys[s] // width, keys[s] % width
        in_a = i < a_dead and a_accepting[i]
        in_b = j < b_dead and b_accepting[j]
        if mode == _AND:
            accepting[s] = in_a and in_b
        elif mode == _OR:
            accepting[s] = in_a or in_b
        else:
            accepting[s] = in_a and not in_b
    return delta[:count], accepting, count


@numba.njit(cache=True)
def _close_and_store(
    members: np.ndarray,
    size: int,
    stamp: np.ndarray,
    round_: int,
    useful: np.ndarray,
    eps_offsets: np.ndarray,
    eps_targets: np.ndarray,
) -> int:
    """Epsilon-close `members[:size]` in place, keep what matters, sort; returns the new size."""
    read = 0
    while read < size:
        s = members[read]
        read += 1
        for i in range(eps_offsets[s], eps_offsets[s + 1]):
            t = eps_targets[i]
            if stamp[t] != round_:
                stamp[t] = round_
                members[size] = t
                size += 1
    kept = 0
    for i in range(size):
        # A state with only epsilon edges says nothing once its closure is in the set.
        if useful[members[i]]:
            members[kept] = members[i]
            kept += 1
    if kept <= 16:
        for i in range(1, kept):
            value = members[i]
            j = i - 1
            while j >= 0 and members[j] > value:
                members[j + 1] = members[j]
                j -= 1
            members[j + 1] = value
    else:
        members[:kept] = np.sort(members[:kept])
    return kept


@numba.njit(cache=True)
def determinize(
    offsets: np.ndarray,
    targets: np.ndarray,
    eps_offsets: np.ndarray,
    eps_targets: np.ndarray,
    initial: np.ndarray,
    nfa_accepting: np.ndarray,
    num_classes: int,
    max_states: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Subset construction (Rabin and Scott 1959) over a non-deterministic automaton.

    Successors of NFA state q on class k are `targets[offsets[q * K + k] : offsets[q * K + k + 1]]`;
    epsilon edges likewise per state. Subsets are kept sorted in one flat array and found again
    through an open-addressing hash table. Cost: O(subsets x K x mean subset size).
    """
    num_nfa = nfa_accepting.size
    useful = np.zeros(num_nfa, np.bool_)
    for q in range(num_nfa):
        useful[q] = nfa_accepting[q] or offsets[(q + 1) * num_classes] > offsets[q * num_classes]
    stamp = np.zeros(num_nfa, np.int64)
    round_ = np.int64(1)
    members = np.empty(num_nfa, np.int32)
    size = 0
    for q in initial:
        if stamp[q] != round_:
            stamp[q] = round_
            members[size] = q
            size += 1
    size = _close_and_store(members, size, stamp, round_, useful, eps_offsets, eps_targets)

    pool = np.empty(max(1024, 2 * size), np.int32)
    starts = np.empty(257, np.int64)
    hashes = np.empty(256, np.int64)
    capacity = 256
    delta = np.full((capacity, num_classes), -1, np.int32)
    table = np.full(1024, -1, np.int32)
    pool[:size] = members[:size]
    starts[0] = 0
    starts[1] = size
    key = np.int64(size)
    for i in range(size):
        key = _mix(key * 31 + members[i] + 1)
    hashes[0] = key
    table[key & 1023] = 0
    count = 1
    current = 0
    while current < count:
        for k in range(num_classes):
            round_ += 1
            size = 0
            for i in range(starts[current], starts[current + 1]):
                cell = pool[i] * np.int64(num_classes) + k
                for e in range(offsets[cell], offsets[cell + 1]):
                    t = targets[e]
                    if stamp[t] != round_:
                        stamp[t] = round_
                        members[size] = t
                        size += 1
            if size == 0:
                continue
            size = _close_and_store(members, size, stamp, round_, useful, eps_offsets, eps_targets)
            if size == 0:
                continue
            key = np.int64(size)
            for i in range(size):
                key = _mix(key * 31 + members[i] + 1)
            slot = key & (table.size - 1)
            target = -1
            while table[slot] >= 0:
                other = table[slot]
                start = starts[other]
                if hashes[other] == key and starts[other + 1] - start == size:
                    same = True
                    for i in range(size):
                        if pool[start + i] != members[i]:
                            same = False
                            break
                    if same:
                        target = other
                        break
                slot = (slot + 1) & (table.size - 1)
            if target < 0:
                if count >= max_states:
                    return delta[:0], np.zeros(0, np.bool_), TOO_MANY
                if count == capacity:
                    capacity *= 2
                    grown = np.full((capacity, num_classes), -1, np.int32)
                    grown[:count] = delta
                    delta = grown
                    longer = np.empty(capacity + 1, np.int64)
                    longer[: count + 1] = starts
                    starts = longer
                    more = np.empty(capacity, np.int64)
                    more[:count] = hashes
                    hashes = more
                end = starts[count] + size
                if end > pool.size:
                    bigger = np.empty(max(2 * pool.size, end), np.int32)
                    bigger[: starts[count]] = pool[: starts[count]]
                    pool = bigger
                pool[starts[count] : end] = members[:size]
                starts[count + 1] = end
                hashes[count] = key
                table[slot] = count
                target = count
                count += 1
                if 2 * count > table.size:
                    table = np.full(4 * table.size, -1, np.int32)
                    for s in range(count):
                        slot = hashes[s] & (table.size - 1)
                        while table[slot] >= 0:
                            slot = (slot + 1) & (table.size - 1)
                        table[slot] = s
            delta[current, k] = target
        current += 1
    accepting = np.zeros(count, np.bool_)
    for s in range(count):
        for i in range(starts[s], starts[s + 1]):
            if nfa_accepting[pool[i]]:
                accepting[s] = True
                break
    return delta[:count], accepting, count


@numba.njit(cache=True)
def _mark(
    element: int, elements: np.ndarray, place: np.ndarray, block: np.ndarray,
    first: np.ndarray, marked: np.ndarray, touched: np.ndarray, num_touched: int,
) -> int:  # fmt: skip
    """Mark one element of a refinable partition; remembers the blocks that have marks."""
    b = block[element]
    i, j = place[element], first[b] + marked[b]
    if i < j:
        return num_touched
    elements[i] = elements[j]
    place[elements[i]] = i
    elements[j] = element
    place[element] = j
    if marked[b] == 0:
        touched[num_touched] = b
        num_touched += 1
    marked[b] += 1
    return num_touched


@numba.njit(cache=True)
def _split(
    elements: np.ndarray, block: np.ndarray, first: np.ndarray, past: np.ndarray,
    marked: np.ndarray, touched: np.ndarray, num_touched: int, num_blocks: int,
) -> int:  # fmt: skip
    """Split every touched block into marked and unmarked; the smaller part gets the new number."""
    for w in range(num_touched):
        b = touched[w]
        middle = first[b] + marked[b]
        if middle == past[b]:
            marked[b] = 0
            continue
        if marked[b] <= past[b] - middle:
            first[num_blocks] = first[b]
            past[num_blocks] = middle
            first[b] = middle
        else:
            past[num_blocks] = past[b]
            first[num_blocks] = middle
            past[b] = middle
        for i in range(first[num_blocks], past[num_blocks]):
            block[elements[i]] = num_blocks
        marked[b] = 0
        marked[num_blocks] = 0
        num_blocks += 1
    return num_blocks


@numba.njit(cache=True)
def minimize_blocks(delta: np.ndarray, accepting: np.ndarray) -> tuple[np.ndarray, int]:
    """Equivalence classes of the states of a trimmed partial automaton; O(edges x log states).

    Valmari and Lehtinen, "Efficient minimization of DFAs with partial transition functions"
    (STACS 2008): states and edges are two partitions that refine each other, and each split
    hands the smaller half on. Every state must be accessible and co-accessible.
    """
    num_states, num_classes = delta.shape
    num_edges = 0
    per_class = np.zeros(num_classes, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            if delta[s, k] >= 0:
                num_edges += 1
                per_class[k] += 1

    state_at = np.arange(num_states).astype(np.int32)
    state_place = state_at.copy()
    state_block = np.zeros(num_states, np.int32)
    state_first = np.zeros(num_states + 1, np.int32)
    state_past = np.zeros(num_states + 1, np.int32)
    state_marked = np.zeros(num_states + 1, np.int32)
    state_touched = np.empty(num_states + 1, np.int32)
    state_past[0] = num_states
    num_blocks = 1
    touched = 0
    for s in range(num_states):
        if accepting[s]:
            touched = _mark(
                s, state_at, state_place, state_block,
                state_first, state_marked, state_touched, touched,
            )  # fmt: skip
    num_blocks = _split(
        state_at, state_block, state_first, state_past,
        state_marked, state_touched, touched, num_blocks,
    )  # fmt: skip
    if num_edges == 0:
        return state_block, num_blocks

    # Edges sorted by class, one block of the edge partition ("cord") for each class in use.
    tail = np.empty(num_edges, np.int32)
    head = np.empty(num_edges, np.int32)
    edge_block = np.empty(num_edges, np.int32)
    edge_first = np.zeros(num_edges + 1, np.int32)
    edge_past = np.zeros(num_edges + 1, np.int32)
    num_cords = 0
    at = np.zeros(num_classes, np.int64)
    cord_of_class = np.zeros(num_classes, np.int32)
    position = 0
    for k in range(num_classes):
        at[k] = position
        if per_class[k] > 0:
            edge_first[num_cords] = position
            position += per_class[k]
            edge_past[num_cords] = position
            cord_of_class[k] = num_cords
            num_cords += 1
    incoming = np.zeros(num_states + 1, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0:
                tail[at[k]] = s
                head[at[k]] = t
                edge_block[at[k]] = cord_of_class[k]
                at[k] += 1
                incoming[t + 1] += 1
    for s in range(num_states):
        incoming[s + 1] += incoming[s]
    into = np.empty(num_edges, np.int32)
    fill = incoming[:-1].copy()
    for e in range(num_edges):
        into[fill[head[e]]] = e
        fill[head[e]] += 1
    edge_at = np.arange(num_edges).astype(np.int32)
    edge_place = edge_at.copy()
    edge_marked = np.zeros(num_edges + 1, np.int32)
    edge_touched = np.empty(num_edges + 1, np.int32)

    next_block = 1
    next_cord = 0
    while next_cord < num_cords:
        touched = 0
        for i in range(edge_first[next_cord], edge_past[next_cord]):
            touched = _mark(
                tail[edge_at[i]], state_at, state_place, state_block,
                state_first, state_marked, state_touched, touched,
            )  # fmt: skip
        num_blocks = _split(
            state_at, state_block, state_first, state_past,
            state_marked, state_touched, touched, num_blocks,
        )  # fmt: skip
        next_cord += 1
        while next_block < num_blocks:
            touched = 0
            for i in range(state_first[next_block], state_past[next_block]):
                s = state_at[i]
                for j in range(incoming[s], incoming[s + 1]):
                    touched = _mark(
                        into[j], edge_at, edge_place, edge_block,
                        edge_first, edge_marked, edge_touched, touched,
                    )  # fmt: skip
            num_cords = _split(
                edge_at, edge_block, edge_first, edge_past,
                edge_marked, edge_touched, touched, num_cords,
            )  # fmt: skip
            next_block += 1
    return state_block, num_blocks
