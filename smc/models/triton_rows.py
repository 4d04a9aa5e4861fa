"""A Triton kernel copies rows of a cache in place; rows that stay are not touched.

Not measured, as no machine with a GPU was at hand; the oracle is the tensor operation in
`smc.models.static_cache.move_rows`.
"""

from __future__ import annotations

import triton
from jaxtyping import Float, Int64
from torch import Tensor

from smc.models.kernels.triton_rows import move

BLOCK = 1024
"""Numbers that one program copies."""


def move_rows(
    piece: Float[Tensor, "layers P heads columns d"], source: Int64[Tensor, "P"], first: int
) -> None:
    """Make row r a copy of row `source[r]` in every layer, from column `first` on, in place.

    A row that is somebody's source must be its own (`smc.static.move`).
    """
    layers, P, heads, columns, d = piece.shape
    size = (columns - first) * d
    grid = (layers * P, heads, triton.cdiv(size, BLOCK))
    move[grid](
        piece, source, P, first * d, size, heads * columns * d, columns * d, BLOCK=BLOCK
    )  # fmt: skip
