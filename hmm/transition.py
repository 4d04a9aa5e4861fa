"""The transition of an HMM says how one hidden state follows another, by a full matrix A.

Everything that inference asks of A (H x H, each row a distribution) is a product with a row vector,
a product with a column vector, and, for EM, how often each entry was used: 2 H² operations a
product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
"""How far from one the sum of a distribution may be, by the type its entries are stored in."""

Rows = Float[Tensor, "*B H"]
"""A vector over states, or one for each of a batch."""


def check_distribution(name: str, values: Float[Tensor, "..."], dim: int = -1) -> None:
    """Check that entries are finite and non-negative, and sum to one along `dim`.

    Raises:
        ValueError: otherwise, with the name, the first offending value and where it is.
    """
    tolerance = TOLERANCE.get(values.dtype)
    if tolerance is None:
        raise ValueError(f"{name} has type {values.dtype}; probabilities need {list(TOLERANCE)}")
    # A NaN or an infinity shows in the sums too, so a good array is read twice, not three times.
    sums = values.sum(dim=dim, dtype=torch.promote_types(values.dtype, torch.float32))
    wrong = ~((sums - 1).abs() <= tolerance)
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name} does not hold distributions: the one numbered {where} sums to "
            f"{float(sums[tuple(where)])!r} ({int(wrong.sum())} of {wrong.numel()} are off by more "
            f"than {tolerance}); normalise it, and see whether it holds logarithms or NaN"
        )
    smallest = float(values.amin())
    if smallest < 0:
        raise ValueError(f"{name} holds a negative probability, {smallest!r}")


@dataclass(frozen=True, eq=False)
class Dense:
    """A full transition matrix.

    Attributes:
        matrix: matrix[i, j] = P(next state is j | state is i).
    """

    matrix: Float[Tensor, "H H"]

    def __post_init__(self) -> None:
        if self.matrix.dim() != 2 or self.matrix.shape[0] != self.matrix.shape[1]:
            raise ValueError(f"a transition matrix is square, not {tuple(self.matrix.shape)}")

    @property
    def num_states(self) -> int:
        return self.matrix.shape[0]

    def forward(self, p: Rows, out: Rows | None = None) -> Rows:
        """Return p A: where a state distributed as p is one step later (in `out`, if given)."""
        return torch.matmul(p, self.matrix, out=out)

    def backward(self, v: Rows, out: Rows | None = None) -> Rows:
        """Return A v: the expectation of v at the next state, given the present one (in `out`)."""
        return torch.matmul(v, self.matrix.T, out=out)

    def expected_counts(
        self, before: Float[Tensor, "N H"], after: Float[Tensor, "N H"]
    ) -> Float[Tensor, "H H"]:
        """Return sum_n before[n, i] A[i, j] after[n, j], for each entry of A.

        With `before` the filter and `after` the scaled likelihood of what follows, that is the
        expected number of times each transition was made.
        """
        return (before.T @ after).mul_(self.matrix)

    def rows(self, states: Int64[Tensor, "N"]) -> Float[Tensor, "N H"]:
        """Return the distribution of the next state, given each of these."""
        return self.matrix[states]

    def check(self) -> None:
        """Raise ValueError unless every row is a distribution."""
        check_distribution("the transition matrix", self.matrix)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dense:
        """Return the same transition on another device, or in another type."""
        return Dense(self.matrix.to(device=device, dtype=dtype))
