"""Transitions between hidden states, as a full matrix or as two block-diagonal factors.

The transition matrix A is H x H, and each row is a distribution. Inference needs the products of A
with a row vector and with a column vector. EM also needs the expected number of uses of each
parameter. `Dense` stores A itself, and a product takes 2 H² operations. `Monarch` stores

    A = L P R P⁻¹,     H = K M,     state h = k M + m  for (k, m)

L and R are block-diagonal, and P is the permutation that transposes the K x M grid of states. L has
K blocks of M x M, and R has M blocks of K x K. Sources: Dao et al., "Monarch", arXiv 2204.00595;
for transitions of an HMM, Zhang et al., "Scaling up probabilistic circuits via monarch matrices",
arXiv 2506.12383. A transition then consists of two draws, first of the new m, then of the new k:

    A[(k, m), (k', m')] = first[k, m, m'] · second[m', k, k']

The only way from (k, m) to (k', m') is through (k, m'), so an entry of A is zero only if one of its
two factors is zero. If the rows of the factors are distributions, so are the rows of A. EM needs
the expected number of uses of each entry of the *factors*, and its M-step is still a normalization.

A product takes 2 H (M + K) operations. There are H (M + K) parameters instead of H²: with 128 x 128
blocks, 4 million instead of 268 million.
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
"""Largest accepted difference between the sum of a distribution and 1, by the entries' type."""


_ROWS_AT_ONCE = 256
"""Rows that are processed at once when uses of Monarch factors are counted.

They and the intermediate results fit into the CPU's cache.
"""

Rows = Float[Tensor, "*B H"]
"""A vector over states, or a batch of such vectors."""


def check_distribution(name: str, values: Float[Tensor, "..."], dim: int = -1) -> None:
    """Check that entries are finite and non-negative, and sum to one along `dim`.

    Raises:
        ValueError: a sum or an entry is invalid. The message has `name` and the first invalid sum;
            if all sums are valid, it has the smallest entry.
    """
    tolerance = TOLERANCE.get(values.dtype)
    if tolerance is None:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in TOLERANCE)
        found = str(values.dtype).removeprefix("torch.")
        raise ValueError(f"expected {name} in one of the types {names}, got {found}")
    # NaN and infinite entries give invalid sums, so they don't need a separate pass.
    sums = values.sum(dim=dim, dtype=torch.promote_types(values.dtype, torch.float32))
    wrong = ~((sums - 1).abs() <= tolerance)
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"expected probabilities that sum to 1 in {name}, got the sum "
            f"{float(sums[tuple(where)])!r} at index {where} ({int(wrong.sum())} of "
            f"{wrong.numel()} sums differ by more than {tolerance}); check the array for "
            "logarithms and NaN, and normalize it"
        )
    smallest = float(values.amin())
    if smallest < 0:
        raise ValueError(f"expected probabilities of at least 0 in {name}, got {smallest!r}")


@dataclass(frozen=True, eq=False)
class Dense:
    """A transition that stores the full matrix.

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
        """The arrays that EM estimates; each last axis is a distribution."""
        return (self.matrix,)

    @in_own_precision
    def forward(self, p: Rows, out: Rows | None = None) -> Rows:
        """Multiply distributions p over states by A; the result is the next state's distribution.

        The result is written to `out` if it is given.
        """
        return torch.matmul(p, self.matrix, out=out)

    @in_own_precision
    def backward(self, v: Rows, out: Rows | None = None) -> Rows:
        """Multiply A by functions v of the next state; the result is their expectation per state.

        The result is written to `out` if it is given.
        """
        return torch.matmul(v, self.matrix.T, out=out)

    @in_own_precision
    def expected_counts(
        self, before: Float[Tensor, "N H"], after: Float[Tensor, "N H"]
    ) -> tuple[Tensor, ...]:
        """Return sum_n before[n, i] A[i, j] after[n, j], for each parameter A[i, j].

        If `before` is the filtered distribution and `after` the scaled likelihood of the later
        tokens, this is the expected number of transitions from i to j.
        """
        return ((before.T @ after).mul_(self.matrix),)

    def rows(self, states: Int64[Tensor, "N"]) -> Float[Tensor, "N H"]:
        """Return the distribution of the next state after each of the given states."""
        return self.matrix[states]

    def dense(self) -> Float[Tensor, "H H"]:
        """Return A as a full matrix of H² numbers."""
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
    """A transition that stores two block-diagonal factors of the matrix; state h = k M + m.

    Attributes:
        first: first[k, m, m'] = P(next m is m' | state is (k, m)).
        second: second[m', k, k'] = P(next k is k' | next m is m', current k is k).
    """

    first: Float[Tensor, "K M M"]
    second: Float[Tensor, "M K K"]

    def __post_init__(self) -> None:
        shape, other = tuple(self.first.shape), tuple(self.second.shape)
        if len(shape) != 3 or (shape[1:], other) != (shape[:0:-1], (shape[1], shape[0], shape[0])):
            raise ValueError(
                "expected Monarch factors of shapes (K, M, M) and (M, K, K), got shapes "
                f"{shape} and {other}"
            )

    @property
    def num_states(self) -> int:
        return self.first.shape[0] * self.first.shape[1]

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The arrays that EM estimates; each last axis is a distribution."""
        return (self.first, self.second)

    # Products with the factors are batched over blocks. They work on columns (H x N), which are the
    # grid (k, m) with N numbers at each point. Exchanging k and m is then a view that `torch.bmm`
    # accepts. With rows (N x H), it would copy every number. So rows are transposed before and
    # after the products.

    def _columns(self, p: Rows) -> Float[Tensor, "K M N"]:
        return p.reshape(-1, self.num_states).T.contiguous().view(*self.first.shape[:2], -1)

    def _rows(self, columns: Float[Tensor, "K M N"], like: Rows, out: Rows | None) -> Rows:
        rows = columns.reshape(self.num_states, -1).T.reshape(like.shape)
        return rows.contiguous() if out is None else out.copy_(rows)

    def _half_forward(self, p: Float[Tensor, "K M N"]) -> Float[Tensor, "M K N"]:
        """Return p L P, the distribution of the intermediate point (k, m') after the first draw."""
        return torch.bmm(self.first.transpose(1, 2), p).transpose(0, 1)

    def _half_backward(self, v: Float[Tensor, "K M N"]) -> Float[Tensor, "K M N"]:
        """Return P R P⁻¹ v, the expectation of v, given the point (k, m') after the first draw."""
        return torch.bmm(self.second, v.transpose(0, 1)).transpose(0, 1)

    @in_own_precision
    def forward(self, p: Rows, out: Rows | None = None) -> Rows:
        """Multiply distributions p over states by A; the result is the next state's distribution.

        The result is written to `out` if it is given.
        """
        between = self._half_forward(self._columns(p))
        arrived = torch.bmm(self.second.transpose(1, 2), between).transpose(0, 1)
        return self._rows(arrived, p, out)

    @in_own_precision
    def backward(self, v: Rows, out: Rows | None = None) -> Rows:
        """Multiply A by functions v of the next state; the result is their expectation per state.

        The result is written to `out` if it is given.
        """
        between = self._half_backward(self._columns(v))
        return self._rows(torch.bmm(self.first, between), v, out)

    @in_own_precision
    def expected_counts(
        self, before: Float[Tensor, "N H"], after: Float[Tensor, "N H"]
    ) -> tuple[Tensor, ...]:
        """Return the expected number of uses of each entry of the two factors.

        See `Dense.expected_counts` for `before` and `after`.
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
        """Return the distribution of the next state after each of the given states."""
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
    """Return the shapes of a transition's arrays: one array for `Dense`, two for `Monarch`.

    Args:
        num_states: H.
        monarch: False for a full matrix; M for blocks of M x M and (H/M) x (H/M); True for the M
            that makes these two sizes most nearly equal.

    Raises:
        ValueError: there are no states, or M does not divide H.
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
        raise ValueError(
            f"expected a Monarch block size that divides {num_states} states, got {inner}"
        )
    outer = num_states // inner
    return ((outer, inner, inner), (inner, outer, outer))


def from_factors(factors: tuple[Tensor, ...]) -> Transition:
    """Make the transition with the given parameters: one array for `Dense`, two for `Monarch`."""
    return Dense(factors[0]) if len(factors) == 1 else Monarch(factors[0], factors[1])
