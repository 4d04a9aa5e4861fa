"""Graph of a constraint, with the HMM's emission probability of each edge's tokens.

All tokens of a class lead from a state to the same next state, so only the class's total emission
matters: P(token of the class | h). Likewise, all classes that lead from one state to the same next
state form an edge, and the recursion of `hmm._product` only needs the total emission (*mass*) of
the edge. A state inside a string has hundreds of classes, but a handful of edges. Sets of classes
that label several edges are summed once.

Cost: O(V H) for the classes, each allowed token's emission read once; O(D C H) for the D distinct
sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

from gcd import TokenAutomaton
from hmm._kernels import edges as kernels
from hmm._model import HMM
from hmm._precision import in_own_precision

_BAG = 1024  # tokens summed at once; keeps the rounding error of a float32 sum near 1e-6
_WIDENED = 1 << 24  # numbers of emissions widened at once


@torch.no_grad()
def class_emission(hmm: HMM, automaton: TokenAutomaton) -> Float[Tensor, "C H"]:
    """Return P(the token is of class c | hidden state h): sums of emissions, EOS ids included.

    The class of ids that no state allows stays zero, because it is never used. Tokens are summed in
    bags of bounded size, so that float32 is exact to about 1e-6, without atomics.
    """
    if hmm.num_tokens != automaton.vocabulary.size:
        raise ValueError(
            f"expected an automaton over {hmm.num_tokens} tokens, as in the HMM, got "
            f"{automaton.vocabulary.size}; lift the constraint to the HMM's vocabulary"
        )
    allowed = np.flatnonzero((automaton.delta >= 0).any(axis=0))
    tokens = np.flatnonzero(np.isin(automaton.class_of, allowed))
    tokens = tokens[np.argsort(automaton.class_of[tokens], kind="stable")]
    classes = automaton.class_of[tokens]
    total = hmm.initial.new_zeros(automaton.num_classes, hmm.num_states)
    if not tokens.size:
        return total
    # A bag ends where the class changes, or when it is full.
    run_start = np.flatnonzero(np.diff(classes, prepend=-1))
    run_length = np.diff(run_start, append=tokens.size)
    within = np.arange(tokens.size) - np.repeat(run_start, run_length)
    starts = np.flatnonzero(within % _BAG == 0)
    ends = np.append(starts[1:], tokens.size)
    # Emissions of another type are widened, a bounded number of bags at a time.
    narrow = hmm.emission.dtype != hmm.dtype
    step = max(1, _WIDENED // (_BAG * hmm.num_states)) if narrow else len(starts)
    sums = []
    for first in range(0, len(starts), step):
        bags = slice(first, first + step)
        begin, end = starts[bags][0], ends[bags][-1]
        ids = torch.tensor(tokens[begin:end], dtype=torch.int64, device=hmm.device)
        rows = hmm.emission
        if narrow:
            rows, ids = rows[ids].to(hmm.dtype), torch.arange(len(ids), device=hmm.device)
        sums.append(_bag_sums(ids, rows, starts[bags] - begin))
    numbers = torch.arange(len(starts), device=hmm.device)
    bags_of_class = np.flatnonzero(np.diff(classes[starts], prepend=-1))
    present = torch.tensor(classes[run_start], dtype=torch.int64, device=hmm.device)
    total[present] = _bag_sums(numbers, torch.cat(sums), bags_of_class)
    return total


def _bag_sums(
    ids: Int64[Tensor, "n"], rows: Float[Tensor, "m H"], starts: Int64[np.ndarray, "bags"]
) -> Float[Tensor, "bags H"]:
    """Sum rows of consecutive ids in bags, one of which begins at each start."""
    offsets = torch.tensor(starts, dtype=torch.int64, device=ids.device)
    return torch.nn.functional.embedding_bag(ids, rows, offsets, mode="sum")


class Edges(NamedTuple):
    """Edges (source, target, set of classes) of all automata, sorted by source.

    Attributes:
        start: index of each state's first edge, and the number of edges at the end. Final states
            have no edges, because nothing follows the end.
        source, target: states, numbered consecutively over all automata.
        set_of: set of classes of each edge.
        final: the final states.
        steps_to_accept: fewest tokens from each state to the end.
        mass: P(token of the set | h), scaled to a maximum over h of 1.
        log_mass: log of that scale.
    """

    start: Int64[np.ndarray, "states_and_end"]
    source: Int64[np.ndarray, "E"]
    target: Int64[np.ndarray, "E"]
    set_of: Int64[np.ndarray, "E"]
    final: Int64[np.ndarray, "automata"]
    steps_to_accept: Int64[np.ndarray, "S"]
    mass: Float[Tensor, "sets H"]
    log_mass: Float64[Tensor, "sets"]

    @property
    def num_states(self) -> int:
        return len(self.steps_to_accept)

    @classmethod
    @in_own_precision
    def of(cls, automata: Sequence[TokenAutomaton], masses: Sequence[Tensor]) -> Edges:
        """Collect the edges of these automata, with states numbered consecutively."""
        sources, targets, sets, finals, mass = [], [], [], [], []
        states = num_sets = 0
        for automaton, emission in zip(automata, masses, strict=True):
            source, target, which, members = _edges(automaton)
            sources.append(states + source)
            targets.append(states + target)
            sets.append(num_sets + which)
            mass.append(torch.from_numpy(members).to(emission) @ emission)
            finals.append(states + automaton.final)
            states += automaton.num_states
            num_sets += len(members)
        source = np.concatenate(sources)
        degree = np.bincount(source, minlength=states)
        total = torch.cat(mass)
        scale = total.amax(dim=1)
        return cls(
            start=np.cumsum([0, *degree]),
            source=source,
            target=np.concatenate(targets),
            set_of=np.concatenate(sets),
            final=np.array(finals),
            steps_to_accept=np.concatenate(
                [automaton.steps_to_accept for automaton in automata]
            ).astype(np.int64),
            mass=total / torch.where(scale > 0, scale, 1).unsqueeze(1),
            log_mass=scale.double().log(),
        )


def _edges(
    automaton: TokenAutomaton,
) -> tuple[
    Int64[np.ndarray, "E"],
    Int64[np.ndarray, "E"],
    Int64[np.ndarray, "E"],
    UInt8[np.ndarray, "sets C"],
]:
    """Return source, target and set of classes of each edge, and the sets as rows of 0 and 1."""
    delta, C = automaton.delta, automaton.num_classes
    number = np.random.default_rng(0).integers(0, 1 << 64, C, dtype=np.uint64)
    E = kernels.count_edges(delta, automaton.final)
    source, target, signature = np.empty(E, np.int64), np.empty(E, np.int64), np.empty(E, np.uint64)
    kernels.list_edges(delta, automaton.final, number, source, target, signature)
    _, first, set_of = np.unique(signature, return_index=True, return_inverse=True)
    members = (delta[source[first]] == target[first][:, None]).astype(np.uint8)
    assert kernels.labels_match(delta, source, target, set_of, members), "signatures collide"
    return source, target, set_of, members
