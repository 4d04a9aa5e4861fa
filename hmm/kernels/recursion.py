"""This module has the compiled loops of the recursion for beta; the equations are in `hmm.product`.

`b` holds rows over the hidden states, `log_scale` the log of what each is short of, and `before`
says which row a state has at the level before. Row `NOTHING` is zero, row `CERTAIN` one; from
`COMPUTED` on rows are computed.
"""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import kernel
from gcd.support.kernels.growing import copied
from gcd.tokens.kernels.token_graph import fits

NOTHING, CERTAIN, COMPUTED = range(3)
LEFT_OUT = -1
_BLOCK = 64


@kernel
def needed_states(
    source: np.ndarray,
    target: np.ndarray,
    steps: np.ndarray,
    begin_left: np.ndarray,
    begin_state: np.ndarray,
    needed: np.ndarray,
) -> None:
    """Mark needed[r, s]: a text that begins in `begin_state` with `begin_left` tokens left may
    come to state s with r tokens left, and be completed. `begin_left` falls.
    """
    here = np.zeros(steps.size, np.bool_)
    after = np.zeros(steps.size, np.bool_)
    next_start = 0
    for left in range(needed.shape[0], 0, -1):
        while next_start < begin_left.size and begin_left[next_start] == left:
            here[begin_state[next_start]] = True
            next_start += 1
        after[:] = False
        for edge in range(source.size):
            if here[source[edge]] and fits(steps[target[edge]], left):
                after[target[edge]] = True
        needed[left - 1] = after
        copied(here, after, after.size)


@kernel
def pending(
    states: np.ndarray,
    start: np.ndarray,
    target: np.ndarray,
    now: np.ndarray,
    before: np.ndarray,
    entry: np.ndarray,
    out: np.ndarray,
) -> int:
    """List in `out` the states whose row must be computed; the others keep the one they have.

    A state keeps its row if all that it leads to has kept its own from the level before last to
    the last one: the sum would be the same number by number.
    """
    count = 0
    for state in states:
        same = now[state] >= COMPUTED
        if same:
            for edge in range(start[state], start[state + 1]):
                if now[target[edge]] != before[target[edge]]:
                    same = False
                    break
        if same:
            entry[state] = now[state]
        else:
            out[count] = state
            count += 1
    return count


@kernel(nogil=True, fastmath={"contract"})
def sum_edges(
    first: int,
    last: int,
    states: np.ndarray,
    start: np.ndarray,
    target: np.ndarray,
    set_of: np.ndarray,
    mass: np.ndarray,
    log_mass: np.ndarray,
    before: np.ndarray,
    b: np.ndarray,
    log_scale: np.ndarray,
    u: np.ndarray,
    log_u: np.ndarray,
) -> None:
    """Compute u of each state up to scale, a sum over edges of mass · beta, and log of the scale.

    The sums are written to the first rows of `u`, the scales where the states are, from `first` on.
    Four edges at a time, so that a sum is read and written a quarter as often.
    """
    widest = 0
    for i in range(first, last):
        widest = max(widest, start[states[i] + 1] - start[states[i]])
    row_of = np.zeros(widest + 3, np.int64)
    mass_of = np.zeros(widest + 3, np.int64)
    share = np.zeros(widest + 3, mass.dtype)
    for i in range(first, last):
        begin, end = start[states[i]], start[states[i] + 1]
        top = -np.inf
        for edge in range(begin, end):
            top = max(top, log_scale[before[target[edge]]] + log_mass[set_of[edge]])
        log_u[i] = top
        row = u[i - first]
        row[:] = 0
        if top == -np.inf:
            continue
        count = 0
        for edge in range(begin, end):
            at = before[target[edge]]
            share[count] = math.exp(log_scale[at] + log_mass[set_of[edge]] - top)
            if share[count] > 0:
                row_of[count], mass_of[count] = at, set_of[edge]
                count += 1
        for k in range(count, count + 3):
            row_of[k], mass_of[k], share[k] = NOTHING, mass_of[0], 0
        for k in range(0, count, 4):
            w0, w1, w2, w3 = share[k], share[k + 1], share[k + 2], share[k + 3]
            b0, b1, b2, b3 = b[row_of[k]], b[row_of[k + 1]], b[row_of[k + 2]], b[row_of[k + 3]]
            m0, m1 = mass[mass_of[k]], mass[mass_of[k + 1]]
            m2, m3 = mass[mass_of[k + 2]], mass[mass_of[k + 3]]
            for h in range(row.size):
                row[h] += (w0 * m0[h] * b0[h] + w1 * m1[h] * b1[h]) + (
                    w2 * m2[h] * b2[h] + w3 * m3[h] * b3[h]
                )


@kernel(nogil=True)
def store(
    first: int,
    last: int,
    kept: np.ndarray,
    rows: np.ndarray,
    log_rows: np.ndarray,
    b: np.ndarray,
    log_scale: np.ndarray,
) -> None:
    """Copy the rows that are kept, one behind the other."""
    for k in range(first, last):
        b[k] = rows[kept[k]]
        log_scale[k] = log_rows[kept[k]]


@kernel(nogil=True, fastmath={"nnan", "nsz"})
def rescale(
    first: int,
    last: int,
    states: np.ndarray,
    before: np.ndarray,
    b: np.ndarray,
    log_scale: np.ndarray,
    log_u: np.ndarray,
    tolerance: float,
    rows: np.ndarray,
    log_rows: np.ndarray,
    moved: np.ndarray,
) -> None:
    """Scale rows to a maximum of one, and say which differ from what the state had before.

    A row has moved if some entry differs by more than a share `tolerance` of itself.
    """
    H = rows.shape[1]
    for i in range(first, last):
        row = rows[i]
        top = row[0]
        for h in range(H):
            top = max(top, row[h])
        log_rows[i] = -np.inf
        if top > 0:
            log_rows[i] = log_u[i] + math.log(np.float64(top))
            for h in range(H):
                row[h] /= top
        at = before[states[i]]
        moved[i] = True
        if at < COMPUTED:
            continue
        if log_rows[i] == -np.inf or log_scale[at] == -np.inf:
            moved[i] = log_rows[i] != log_scale[at]
            continue
        rise = log_rows[i] - log_scale[at]
        if abs(rise) > 1 or (tolerance == 0 and rise != 0):
            continue
        factor, old = math.exp(rise), b[at]
        far = False
        for block in range(0, H, _BLOCK):
            for h in range(block, min(H, block + _BLOCK)):
                value = row[h] * factor
                far |= abs(value - old[h]) > tolerance * value
            if far:
                break
        moved[i] = far
