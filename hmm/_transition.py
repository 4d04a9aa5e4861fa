"""Transitions between hidden states, as a full matrix or as two sparse factors.

Inference needs three operations of the transition matrix A (H x H, each row a distribution): the
products with a row vector and a column vector, and, for EM, the expected use of each parameter.
`Dense` stores A itself: 2 H² operations a product. `Monarch` stores

    A = L P R P⁻¹,     H = K M,     state h = k M + m  for (k, m)

with L and R block-diagonal and P the permutation that transposes the K x M grid of states. L has K
blocks of M x M, and R has M of size K x K each. Sources: Dao et al., "Monarch", arXiv 2204.00595;
for transitions of an HMM, Zhang et al., "Scaling up probabilistic circuits via monarch matrices",
arXiv 2506.12383. A transition then consists of two draws, first the new m, then the new k:

    A[(k, m), (k', m')] = first[k, m, m'] · second[m', k, k']

Every pair of states is connected by exactly one path through the grid, the one over (k, m'). So A
is zero only where a factor is, and each row of A is a distribution if each row of the factors is.
EM needs the expected number of times each *factor* entry was used, and its M-step remains a
normalization. A product costs 2 H (M + K) operations, and there are H (M + K) parameters instead of
H²: with 128 x 128 blocks, 4 million instead of 268 million.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hmm._precision import in_own_precision

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
"""Tolerance on the sum of a distribution, by the type in which its entries are stored."""


_ROWS_AT_ONCE = 256
"""Rows processed together in counting Monarch factors; they and their halves fit into a cache."""

Rows = Float[Tensor, "*B H"]
"""Vector over states, or a batch of them."""


def check_distribution(name: str, values: Float[Tensor, "..."], dim: int = -1) -> None:
    """Check that entries are finite and non-negative, and sum to one along `dim`.

    Raises:
        ValueError: if not; the message has the name, the first invalid value and its position.
    """
    tolerance = TOLERANCE.get(values.dtype)
    if tolerance is None:
        raise ValueError(f"expected {name} in one of {list(TOLERANCE)}, got {values.dtype}")
    # NaN and infinity also show in the sums, so a valid array is read twice, not three times.
    sums = values.sum(dim=dim, dtype=torch.promote_types(values.dtype, torch.float32))
    wrong = ~((sums - 1).abs() <= tolerance)
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"expected distributions in {name}, got one that sums to {float(sums[tuple(where)])!r} "
            f"at index {where} ({int(wrong.sum())} of {wrong.numel()} are off by more than "
            f"{tolerance}); normalize it, and check that it doesn't contain logarithms or NaN"
        )
    smallest = float(values.amin())
    if smallest < 0:
        raise ValueError(f"expected non-negative probabilities in {name}, got {smallest!r}")


@dataclass(frozen=True, eq=False)
class Dense:
    """Full transition matrix.

    Attributes:
        matrix: matrix[i, j] = P(next state is j | state is i).
    """

    matrix: Float[Tensor, "H H"]

    def __post_init__(self) -> None:
        if self.matrix.dim() != 2 or self.matrix.shape[0] != self.matrix.shape[1]:
            raise ValueError(
                f"expected a square transition matrix, got shape {tuple(self.matrix.shape)}"
            )

    @property
    def num_states(self) -> int:
        return self.matrix.shape[0]

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """Arrays that EM estimates; each last axis is a distribution."""
        return (self.matrix,)

    @in_own_precision
    def forward(self, p: Rows, out: Rows | None = None) -> Rows:
        """Return p A, the distribution of the next state if p is that of the state (in `out`)."""
        return torch.matmul(p, self.matrix, out=out)

    @in_own_precision
    def backward(self, v: Rows, out: Rows | None = None) -> Rows:
        """Return A v, the expectation of v at the next state, given each state (in `out`)."""
        return torch.matmul(v, self.matrix.T, out=out)

    @in_own_precision
    def expected_counts(
        self, before: Float[Tensor, "N H"], after: Float[Tensor, "N H"]
    ) -> tuple[Tensor, ...]:
        """Return sum_n before[n, i] A[i, j] after[n, j], for each parameter of A.

        With `before` the filter and `after` the scaled likelihood of what follows, this is the
        expected number of times each transition was made.
        """
        return ((before.T @ after).mul_(self.matrix),)

    def rows(self, states: Int64[Tensor, "N"]) -> Float[Tensor, "N H"]:
        """Return the distribution of the next state, given each of these states."""
        return self.matrix[states]

    def dense(self) -> Float[Tensor, "H H"]:
        """Return A itself."""
        return self.matrix

    def check(self) -> None:
        """Raise `ValueError` unless every row is a distribution."""
        check_distribution("the transition matrix", self.matrix)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dense:
        """Return the same transition on another device, or in another type."""
        return Dense(self.matrix.to(device=device, dtype=dtype))


@dataclass(frozen=True, eq=False)
class Monarch:
    """Transition matrix with two block-diagonal factors; state h = k M + m.

    Attributes:
        first: first[k, m, m'] = P(next m is m' | state is (k, m)).
        second: second[m', k, k'] = P(next k is k' | next m is m', k was k).
    """

    first: Float[Tensor, "K M M"]
    second: Float[Tensor, "M K K"]

    def __post_init__(self) -> None:
        shape, other = tuple(self.first.shape), tuple(self.second.shape)
        if len(shape) != 3 or (shape[1:], other) != (shape[:0:-1], (shape[1], shape[0], shape[0])):
            raise ValueError(
                f"expected Monarch factors of shapes (K, M, M) and (M, K, K), got {shape} and "
                f"{other}"
            )

    @property
    def num_states(self) -> int:
        return self.first.shape[0] * self.first.shape[1]

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """Arrays that EM estimates; each last axis is a distribution."""
        return (self.first, self.second)

    # Both products are batched over blocks. They work on columns, H x N: the grid (k, m) with N
    # numbers at each point. Exchanging k and m is then a view that a product accepts directly; with
    # rows it would copy every number. Rows are transposed on the way in and out.

    def _columns(self, p: Rows) -> Float[Tensor, "K M N"]:
        return p.reshape(-1, self.num_states).T.contiguous().view(*self.first.shape[:2], -1)

    def _rows(self, columns: Float[Tensor, "K M N"], like: Rows, out: Rows | None) -> Rows:
        rows = columns.reshape(self.num_states, -1).T.reshape(like.shape)
        return rows.contiguous() if out is None else out.copy_(rows)

    def _half_forward(self, p: Float[Tensor, "K M N"]) -> Float[Tensor, "M K N"]:
        """Return p L P: the weight at the point (k, m') between the two draws."""
        return torch.bmm(self.first.transpose(1, 2), p).transpose(0, 1)

    def _half_backward(self, v: Float[Tensor, "K M N"]) -> Float[Tensor, "K M N"]:
        """Return P R P⁻¹ v: the expectation of v, given the point (k, m') between the two draws."""
        return torch.bmm(self.second, v.transpose(0, 1)).transpose(0, 1)

    @in_own_precision
    def forward(self, p: Rows, out: Rows | None = None) -> Rows:
        """Return p A, the distribution of the next state if p is that of the state (in `out`)."""
        between = self._half_forward(self._columns(p))
        arrived = torch.bmm(self.second.transpose(1, 2), between).transpose(0, 1)
        return self._rows(arrived, p, out)

    @in_own_precision
    def backward(self, v: Rows, out: Rows | None = None) -> Rows:
        """Return A v, the expectation of v at the next state, given each state (in `out`)."""
        between = self._half_backward(self._columns(v))
        return self._rows(torch.bmm(self.first, between), v, out)

    @in_own_precision
    def expected_counts(
        self, before: Float[Tensor, "N H"], after: Float[Tensor, "N H"]
    ) -> tuple[Tensor, ...]:
        """Return the expected number of times that each entry of the factors was used.

        For `before` and `after` see `Dense.expected_counts`.
        """
        first, second = torch.zeros_like(self.first), torch.zeros_like(self.second)
        for some, theirs in zip(
            before.split(_ROWS_AT_ONCE), after.split(_ROWS_AT_ONCE), strict=True
        ):
            start, end = self._columns(some), self._columns(theirs)
            first.baddbmm_(start, self._half_backward(end).transpose(1, 2))
            second.baddbmm_(self._half_forward(start), end.permute(1, 2, 0))
        return first.mul_(self.first), second.mul_(self.second)

    def rows(self, states: Int64[Tensor, "N"]) -> Float[Tensor, "N H"]:
        """Return the distribution of the next state, given each of these states."""
        k, m = states // self.first.shape[1], states % self.first.shape[1]
        product = self.first[k, m].unsqueeze(1) * self.second[:, k].permute(1, 2, 0)
        return product.reshape(states.shape[0], self.num_states)

    def dense(self) -> Float[Tensor, "H H"]:
        """Return A as a full matrix of H² numbers, for tests and small models."""
        states = torch.arange(self.num_states, device=self.first.device)
        return self.rows(states)

    def check(self) -> None:
        """Raise `ValueError` unless every row of both factors is a distribution."""
        check_distribution("the first Monarch factor", self.first)
        check_distribution("the second Monarch factor", self.second)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Monarch:
        """Return the same transition on another device, or in another type."""
        return Monarch(
            self.first.to(device=device, dtype=dtype), self.second.to(device=device, dtype=dtype)
        )


Transition = Dense | Monarch


def factor_shapes(num_states: int, monarch: bool | int = False) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arrays that make a transition of this kind.

    Args:
        num_states: H.
        monarch: False for a full matrix; M for blocks of M x M and (H/M) x (H/M); True for the
            two most nearly equal.

    Raises:
        ValueError: if there are no states, or M does not divide H.
    """
    if num_states < 1:
        raise ValueError(f"expected at least one state in an HMM, got {num_states}")
    if monarch is False:
        return ((num_states, num_states),)
    if monarch is True:
        inner = max(d for d in range(1, int(num_states**0.5) + 1) if num_states % d == 0)
    else:
        inner = int(monarch)
    if inner < 1 or num_states % inner:
        raise ValueError(f"expected Monarch blocks that divide {num_states} states, got {inner}")
    outer = num_states // inner
    return ((outer, inner, inner), (inner, outer, outer))


def from_factors(factors: tuple[Tensor, ...]) -> Transition:
    """Return the transition with these parameters: one array for `Dense`, two for `Monarch`."""
    return Dense(factors[0]) if len(factors) == 1 else Monarch(factors[0], factors[1])
