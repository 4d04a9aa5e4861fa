"""Transitions between hidden states, as a full matrix.

The transition matrix A is H x H, and each row is a distribution. Inference needs the products of A
with a row vector and with a column vector, which take 2 H² operations. EM also needs the expected
number of uses of each parameter.
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

Rows = Float[Tensor, "*B H"]
"""A vector over states, or a batch of such vectors."""


def check_distribution(name: str, values: Float[Tensor, "..."], dim: int = -1) -> None:
    """Check that entries are finite and non-negative, and sum to one along `dim`."""
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
