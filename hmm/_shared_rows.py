"""Storage of an emission matrix without its repeated rows; the matrix is bitwise the same.

An HMM over a vocabulary of 49,152 tokens is trained on sequences in which a few thousand tokens
occur. All other tokens have no counts, and therefore the same row of emission probabilities. So the
matrix (V x H) is stored as its R distinct rows and the row number of each token:

    emission[v] = rows[row_of[v]],      rows (R x H),   row_of (V, int32, 0 <= row_of[v] < R)

Rows are the same if their bytes are equal. They are numbered in the order in which they first
occur, so that each matrix has only one such form. Cost: one pass over V H numbers, which hashes
each row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor


class SharedRows(NamedTuple):
    """A matrix without its repeated rows.

    Attributes:
        rows: the distinct rows; no two have the same bytes.
        row_of: index in `rows` of each row of the matrix.
    """

    rows: Float[Tensor, "R H"]
    row_of: Int32[Tensor, "V"]

    @property
    def nbytes(self) -> int:
        """Number of bytes that the two arrays take, in memory or in a file."""
        return self.rows.nbytes + self.row_of.nbytes

    def matrix(self) -> Float[Tensor, "V H"]:
        """Return the whole matrix, with its repeated rows.

        Raises:
            ValueError: the arrays are inconsistent.
        """
        rows, row_of = self
        if rows.dim() != 2 or row_of.dim() != 1 or row_of.dtype != torch.int32:
            raise ValueError(
                "expected emission_rows to be a matrix and row_of a vector of int32, got shapes "
                f"{tuple(rows.shape)} and {tuple(row_of.shape)}, and row_of in {row_of.dtype}; the "
                "file is damaged, so copy it again"
            )
        if len(row_of) and not 0 <= int(row_of.min()) <= int(row_of.max()) < len(rows):
            raise ValueError(
                f"expected row_of to have numbers from 0 to {len(rows) - 1}, got numbers from "
                f"{int(row_of.min())} to {int(row_of.max())}; the file is damaged, so copy it again"
            )
        return rows[row_of]


def pool_rare(
    emission: Float[Tensor, "V H"], counts: Int64[Tensor, "V"], most: int
) -> Float[Tensor, "V H"]:
    """Set the emissions of each rare token to the mean over all tokens that occurred equally often.

    A token that occurred three times gives little information about the states that emit it. The
    sum of each state's emissions doesn't change.

    Args:
        emission: emission of each token in each state.
        counts: number of times that each token occurred in training.
        most: largest count of a rare token. Tokens with larger counts keep their emissions.
    """
    pooled = emission.clone()
    for count in range(most + 1):
        alike = (counts == count).nonzero()[:, 0].to(emission.device)
        if len(alike):
            pooled[alike] = emission[alike].mean(dim=0)
    return pooled


def share_rows(matrix: Float[Tensor, "V H"]) -> SharedRows:
    """Convert a matrix, of any type and on any device, to its distinct rows.

    The result also has the number of the distinct row for each row of the matrix.
    """
    plain = matrix.detach().to("cpu").contiguous()
    raw = plain.view(torch.uint8).numpy() if plain.numel() else np.empty((len(plain), 0), np.uint8)
    number: dict[bytes, int] = {}
    row_of = [number.setdefault(row.tobytes(), len(number)) for row in raw]
    indices = np.array(row_of, dtype=np.int32)
    first = np.unique(indices, return_index=True)[1]
    return SharedRows(matrix[torch.from_numpy(first).to(matrix.device)], torch.from_numpy(indices))
