"""The paper's automata and passes as sparse tensors: Definition 3.2 of arXiv 2606.01926.

Samplers, matchers and the HMM's product use one integer per state and tables over classes instead
(`gcd._tokens.token_automaton`), which needs a deterministic automaton and is faster. Tests compare
the two.

Edges are numbered; an edge has a source, a target and a set of token classes. Then

    T_out  S x E:   edge e leaves state s
    T_in   E x S:   edge e enters state s
    B_f    E x C:   edge e may be taken under class c

and one step of the automaton, for any set of states as a boolean row vector x and any set of
classes as a boolean row vector y, is

    forward:   1{ ((x T_out) o (B_f y)) T_in }          states that are reached from x under y
    backward:  1{ T_out ((T_in x) o (B_f y)) }          states from which x is reached under y

with o the entrywise product. Determinism isn't needed, because state sets are vectors. The matrices
are stored as index arrays: a product with T_out or T_in is a gather or a scatter over edges, O(E)
on any device, and one with B_f is O(nonzeros).

`accepting` are the states in which a token sequence may end. For an automaton lifted from a
language that is the state `final` alone, entered by EOS. The backward pass over n steps,

    alive_0 = accepting;    alive_r = 1{ T_out ( (T_in alive_{r-1}) o (B_f 1) ) }

sets entry s of alive_r if *exactly* r tokens lead from s to an accepting state, in O(n E). It also
covers exact-length languages and non-deterministic automata. If every accepting state has a loop,
as `final` has under EOS, "exactly" and "at most" are equivalent, and alive_r is
1{steps_to_accept <= r}.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64, Integer
from torch import Tensor

from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.token_automaton import TokenAutomaton


@dataclass(frozen=True, eq=False)
class TensorAutomaton:
    """A finite automaton over token classes, deterministic or not.

    Attributes:
        source, target: the states that each edge leaves and enters. No two edges share both.
        label_edge, label_class: the nonzeros of B_f: this edge may be taken under this class.
        initial: states in which a sequence starts.
        accepting: states in which a sequence may end.
        num_classes: number of token classes C.
    """

    source: Int64[Tensor, "E"]
    target: Int64[Tensor, "E"]
    label_edge: Int64[Tensor, "labels"]
    label_class: Int64[Tensor, "labels"]
    initial: Bool[Tensor, "S"]
    accepting: Bool[Tensor, "S"]
    num_classes: int

    @classmethod
    def from_edges(
        cls,
        num_states: int,
        edges: Iterable[tuple[int, int, int]],
        num_classes: int,
        initial: Iterable[int],
        accepting: Iterable[int],
        device: torch.device | str | None = None,
    ) -> TensorAutomaton:
        """Build from triples (source, class, target), any number of them per source and class.

        Raises:
            ValueError: if a state or a class is out of range.
        """
        triples = np.array(sorted(set(edges)), np.int64).reshape(-1, 3)
        starts, ends = np.array(sorted(set(initial)), int), np.array(sorted(set(accepting)), int)
        for name, values, limit in (
            ("a source", triples[:, 0], num_states),
            ("a class", triples[:, 1], num_classes),
            ("a target", triples[:, 2], num_states),
            ("an initial state", starts, num_states),
            ("an accepting state", ends, num_states),
        ):
            wrong = values[(values < 0) | (values >= limit)]
            if wrong.size:
                raise ValueError(f"expected {name} in 0..{limit - 1}, got {wrong[0]}")
        is_initial, is_accepting = np.zeros(num_states, bool), np.zeros(num_states, bool)
        is_initial[starts] = True
        is_accepting[ends] = True
        return cls._from_arrays(triples, num_classes, is_initial, is_accepting, device)

    @classmethod
    def of(
        cls, automaton: TokenAutomaton, device: torch.device | str | None = None
    ) -> TensorAutomaton:
        """Build from a token automaton; sequences end in its state `final`, which loops."""
        rows = [automaton.rows.row(state) for state in range(automaton.num_states)]
        states = np.arange(automaton.num_states)
        triples = np.stack(
            [
                np.repeat(states, [classes.size for classes, _ in rows]),
                np.concatenate([classes for classes, _ in rows]),
                np.concatenate([targets for _, targets in rows]),
            ],
            axis=1,
        )
        ends = states == automaton.initial, states == automaton.final
        return cls._from_arrays(triples, automaton.num_classes, *ends, device)

    @classmethod
    def _from_arrays(
        cls,
        triples: Integer[np.ndarray, "labels 3"],
        num_classes: int,
        initial: Bool[np.ndarray, "S"],
        accepting: Bool[np.ndarray, "S"],
        device: torch.device | str | None,
    ) -> TensorAutomaton:
        pair = triples[:, 0] * np.int64(initial.size) + triples[:, 2]
        edges, label_edge = np.unique(pair, return_inverse=True)
        put = torch.as_tensor
        return cls(
            source=put(edges // initial.size, device=device),
            target=put(edges % initial.size, device=device),
            label_edge=put(label_edge.reshape(-1), device=device),
            label_class=put(triples[:, 1].copy(), device=device),
            initial=put(initial, device=device),
            accepting=put(accepting, device=device),
            num_classes=num_classes,
        )

    @property
    def num_states(self) -> int:
        return self.initial.shape[0]

    @property
    def num_edges(self) -> int:
        return self.source.shape[0]

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def T_out(self) -> Bool[Tensor, "S E"]:  # noqa: N802 (the paper's name)
        """Sparse: edge e leaves state s."""
        edges = torch.arange(self.num_edges, device=self.device)
        return self._sparse(self.source, edges, (self.num_states, self.num_edges))

    @property
    def T_in(self) -> Bool[Tensor, "E S"]:  # noqa: N802
        """Sparse: edge e enters state s."""
        edges = torch.arange(self.num_edges, device=self.device)
        return self._sparse(edges, self.target, (self.num_edges, self.num_states))

    @property
    def B_f(self) -> Bool[Tensor, "E C"]:  # noqa: N802
        """Sparse: edge e may be taken under class c."""
        return self._sparse(self.label_edge, self.label_class, (self.num_edges, self.num_classes))

    def _sparse(
        self, rows: Int64[Tensor, "nnz"], columns: Int64[Tensor, "nnz"], shape: tuple[int, int]
    ) -> Tensor:
        ones = torch.ones(rows.shape[0], dtype=torch.bool, device=self.device)
        indices = torch.stack([rows, columns])
        return torch.sparse_coo_tensor(indices, ones, shape, check_invariants=True).coalesce()

    @cached_property
    def deterministic(self) -> bool:
        """True if there is one initial state and at most one target for each state and class."""
        source = self.source[self.label_edge]
        key = source * self.num_classes + self.label_class
        return int(self.initial.sum()) == 1 and key.unique().numel() == key.numel()

    def edges_under(self, classes: Bool[Tensor, "*N C"]) -> Bool[Tensor, "*N E"]:
        """Return B_f y, where y is `classes`: the edges that may be taken under one of them."""
        return _scatter_any(classes[..., self.label_class], self.label_edge, self.num_edges)

    @cached_property
    def _any_class(self) -> Bool[Tensor, "E"]:
        """B_f 1: every edge has a class by construction."""
        return torch.ones(self.num_edges, dtype=torch.bool, device=self.device)

    def forward(
        self, states: Bool[Tensor, "*N S"], classes: Bool[Tensor, "*N C"] | None = None
    ) -> Bool[Tensor, "*N S"]:
        """Return 1{((x T_out) o (B_f y)) T_in}: states reached from x under y (None: any token)."""
        taken = self._any_class if classes is None else self.edges_under(classes)
        return _scatter_any(states[..., self.source] & taken, self.target, self.num_states)

    def backward(
        self, states: Bool[Tensor, "*N S"], classes: Bool[Tensor, "*N C"] | None = None
    ) -> Bool[Tensor, "*N S"]:
        """Return 1{T_out((T_in x) o (B_f y))}: states from which x is reached under y."""
        taken = self._any_class if classes is None else self.edges_under(classes)
        return _scatter_any(states[..., self.target] & taken, self.source, self.num_states)

    def classes_between(
        self, before: Bool[Tensor, "*N S"], after: Bool[Tensor, "*N S"]
    ) -> Bool[Tensor, "*N C"]:
        """Return the classes of the edges from states of one set to states of the other."""
        taken = before[..., self.source] & after[..., self.target]
        return _scatter_any(taken[..., self.label_edge], self.label_class, self.num_classes)

    def forward_pass(
        self, length: int, classes: Bool[Tensor, "length C"] | None = None
    ) -> Bool[Tensor, "steps S"]:
        """Return, in row t, the states that t tokens lead to from the initial ones.

        Args:
            length: number of tokens; there is one more row.
            classes: classes that the token at each step may have; None for any at every step.
        """
        reached = [self.initial]
        for t in range(length):
            reached.append(self.forward(reached[-1], None if classes is None else classes[t]))
        return torch.stack(reached)

    def backward_pass(self, length: int) -> Bool[Tensor, "steps S"]:
        """Return, in row r, the states from which exactly r tokens lead to an accepting state.

        There are `length` + 1 rows.
        """
        alive = [self.accepting]
        for _ in range(length):
            alive.append(self.backward(alive[-1]))
        return torch.stack(alive)

    def class_mask(
        self,
        states: Bool[Tensor, "N S"],
        remaining: Int64[Tensor, "N"],
        alive: Bool[Tensor, "steps S"],
    ) -> Bool[Tensor, "N C"]:
        """Return the classes of a next token after which the text can end in the tokens left.

        Args:
            states: the states that each prefix leads to, as sets.
            remaining: tokens left, including the next token.
            alive: the backward pass over at least as many steps, less one.
        """
        after = alive[(remaining - 1).clamp(min=0)] & (remaining > 0).unsqueeze(-1)
        return self.classes_between(states, after)

    def steps_to_accept(self) -> Int32[Tensor, "S"]:
        """Return the fewest tokens from each state to an accepting one; 2^30 if there is no path.

        Where accepting states loop, `backward_pass(n)[r] == (steps_to_accept() <= r)`.
        """
        steps = torch.full_like(self.initial, UNREACHABLE, dtype=torch.int32)
        newly, distance = self.accepting, 0
        while bool(newly.any()):
            steps = torch.where(newly, distance, steps)
            newly = self.backward(newly) & (steps == UNREACHABLE)
            distance += 1
        return steps


def _scatter_any(
    values: Bool[Tensor, "*N from"], index: Int64[Tensor, "from"], size: int
) -> Bool[Tensor, "*N to"]:
    """out[..., j] = whether some value with index j is true; deterministic on every device."""
    counts = torch.zeros(*values.shape[:-1], size, dtype=torch.int32, device=values.device)
    return counts.index_add_(-1, index, values.to(torch.int32)) > 0
