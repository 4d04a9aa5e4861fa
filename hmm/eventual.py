"""How probably a text is completed at all, whatever it takes: beta without a budget.

    beta_ever(h, s) = the limit of beta_r(h, s) as r grows
                    = sum over h' of  A(h, h') u_ever(h', s)
    u_ever(h, s)    = sum over edges (s, t) of  mass[set, h] beta_ever(h, t)

One system of linear equations instead of a level for each r. A state that cannot lead back to
itself needs its equation once, when its successors are known. So states are taken in layers from
the end, and only those on cycles (the characters of a string, digits, repeated items) are iterated,
from zero upwards, until nothing moves by more than a share `tolerance` of itself. Where a cycle is
left with probability p in each round, that leaves a relative error of tolerance / p. Rounding moves
rows by some units for ever, so no tolerance under `_ROUNDING` of them is asked for; and after
`MAX_ROUNDS` rounds what is there stands for the limit: longer texts are left out.

Cost: a row of the recursion, O(H²), for each state and each round in which it still moves. Layers
are those of the condensation (strongly connected components by scipy), all of one layer at once.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from hmm import recursion
from hmm.edges import Edges
from hmm.kernels import eventual as kernels
from hmm.kernels.recursion import CERTAIN, COMPUTED, NOTHING
from hmm.model import HMM
from hmm.recursion import Completion

MAX_ROUNDS = 10_000
_ROUNDING = 32


@torch.no_grad()
def eventually(hmm: HMM, edges: Edges, tolerance: float) -> Completion:
    """beta_ever as a table of one level, which stands for any remaining budget."""
    S, H = edges.num_states, hmm.num_states
    tolerance = max(tolerance, _ROUNDING * torch.finfo(hmm.dtype).eps)
    room = recursion.rows_at_once(hmm)
    b = hmm.initial.new_zeros(COMPUTED + S + min(room, S), H)
    b[CERTAIN] = 1
    log_scale = torch.full((len(b),), -torch.inf, dtype=torch.float64, device=hmm.device)
    log_scale[CERTAIN] = 0
    row_of = np.full(S, NOTHING)
    row_of[edges.final] = CERTAIN
    level = recursion.Level(row_of, b, log_scale)
    home, scratch = COMPUTED + np.arange(S), COMPUTED + S
    for layer in layers(edges):
        todo = layer
        for _ in range(MAX_ROUNDS):
            if not todo.size:
                break
            has_moved = np.zeros(S, np.bool_)
            for some in np.split(todo, np.arange(room, len(todo), room)):
                moved = some[recursion.rows_of(hmm, edges, level, some, scratch, tolerance)]
                at = torch.tensor(home[moved], device=hmm.device)
                new = slice(scratch, scratch + len(moved))
                b[at], log_scale[at] = b[new].clone(), log_scale[new].clone()
                row_of[moved] = home[moved]
                has_moved[moved] = True
            todo = layer[kernels.affected(layer, edges.start, edges.target, has_moved)]
    b[home[edges.final]], log_scale[home[edges.final]] = 1, 0
    return Completion(
        entry=torch.arange(S, dtype=torch.int32, device=hmm.device).unsqueeze(0),
        b=b[COMPUTED:scratch],
        log_scale=log_scale[COMPUTED:scratch],
        settled=True,
    )


def layers(edges: Edges) -> list[Int64[np.ndarray, "states"]]:
    """All states but the final ones: edges lead into earlier layers, or stay in a component."""
    S = edges.num_states
    graph = csr_array((np.ones(len(edges.source), np.int8), (edges.source, edges.target)), (S, S))
    count, component = connected_components(graph, directed=True, connection="strong")
    before, after = component[edges.source], component[edges.target]
    across = before != after
    depth = kernels.depths(count, before[across], after[across])[component]
    order = np.argsort(depth, kind="stable")
    order = order[~np.isin(order, edges.final)]
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
