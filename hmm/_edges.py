"""Graph of a constraint, with the HMM's emission probability of each edge.

From a state of the automaton, all tokens of a class lead to the same next state. All classes that
lead from one state to the same next state form an *edge*. The recursion of `hmm._product` only
needs the probability that a hidden state h emits any token of an edge, the *mass* of the edge. A
state inside a JSON string has hundreds of classes, but only a few edges. If several edges have the
same set of classes, its mass is summed once.

Cost: O(V H) for the masses of the classes, since each allowed token's emission is read once, and
O(D C H) for the masses of D distinct sets of classes.
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

_BAG = 1024  # maximum number of tokens in one sum; keeps its rounding error near 1e-6 in float32
_WIDENED = 1 << 24  # maximum number of emissions that are converted to a wider type at once


@torch.no_grad()
def class_emission(hmm: HMM, automaton: TokenAutomaton) -> Float[Tensor, "C H"]:
    """Return P(token is in class c | hidden state h), for all classes and hidden states.

    Each probability is the sum of the emissions of a class's tokens, including EOS tokens. Classes
    of tokens that no state allows have zeros, because they are never used. Tokens are summed in
    groups of at most `_BAG`. This keeps the relative error of float32 near 1e-6, without atomic
    operations on a GPU.
    """
    if hmm.num_tokens != automaton.vocabulary.size:
        raise ValueError(
            f"expected an automaton over {hmm.num_tokens} tokens, as in the HMM, got one over "
            f"{automaton.vocabulary.size} tokens; lift the constraint to the HMM's vocabulary"
        )
    allowed = np.flatnonzero((automaton.delta >= 0).any(axis=0))
    tokens = np.flatnonzero(np.isin(automaton.class_of, allowed))
    tokens = tokens[np.argsort(automaton.class_of[tokens], kind="stable")]
    classes = automaton.class_of[tokens]
    total = hmm.initial.new_zeros(automaton.num_classes, hmm.num_states)
    if not tokens.size:
        return total
    # A bag is a group of tokens that are summed. It ends where the class changes, or when it is
    # full.
    run_start = np.flatnonzero(np.diff(classes, prepend=-1))
    run_length = np.diff(run_start, append=tokens.size)
    within = np.arange(tokens.size) - np.repeat(run_start, run_length)
    starts = np.flatnonzero(within % _BAG == 0)
    ends = np.append(starts[1:], tokens.size)
    # Half-precision emissions are converted to the HMM's type, a bounded number of bags at a time.
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
    """Return the sum of `rows[ids[starts[i] : starts[i + 1]]]` for each i.

    The last sum continues to the end of `ids`.
    """
    offsets = torch.tensor(starts, dtype=torch.int64, device=ids.device)
    return torch.nn.functional.embedding_bag(ids, rows, offsets, mode="sum")


class Edges(NamedTuple):
    """The edges of all automata, sorted by source state.

    States and sets of classes are numbered consecutively over all automata.

    Attributes:
        start: index of each state's first edge, followed by the number of edges. Final states have
            no edges, because nothing follows the end of a text.
        source, target: the states that each edge connects.
        set_of: index of each edge's set of classes.
        final: the final states, one per automaton.
        steps_to_accept: fewest tokens from each state to the end.
        mass: P(token is in the set | h) of each set of classes, divided by its maximum over h.
        log_mass: log of this maximum.
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
        """Collect the edges of several automata."""
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
    """Find the edges of an automaton.

    Returns:
        The source and target state of each edge; the index of its set of classes; and the sets of
        classes, as rows in which the members are 1 and the other classes are 0.
    """
    delta, C = automaton.delta, automaton.num_classes
    number = np.random.default_rng(0).integers(0, 1 << 64, C, dtype=np.uint64)
    E = kernels.count_edges(delta, automaton.final)
    source, target, signature = np.empty(E, np.int64), np.empty(E, np.int64), np.empty(E, np.uint64)
    kernels.list_edges(delta, automaton.final, number, source, target, signature)
    _, first, set_of = np.unique(signature, return_index=True, return_inverse=True)
    members = (delta[source[first]] == target[first][:, None]).astype(np.uint8)
    assert kernels.labels_match(delta, source, target, set_of, members), "signatures collide"
    return source, target, set_of, members
