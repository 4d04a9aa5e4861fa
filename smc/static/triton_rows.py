"""A Triton kernel copies rows of a cache in place; rows that stay are not touched.

Not measured, as no machine with a GPU was at hand; the oracle is the tensor operation in
`smc.static.forward.move_rows`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

BLOCK = 1024
"""Numbers that one program copies."""


@triton.jit
def _move(piece, source, rows, start, size, stride, width, BLOCK: tl.constexpr):
    """One stretch of one head of one row of one layer."""
    row, head, block = tl.program_id(0) % rows, tl.program_id(1), tl.program_id(2)
    layer = tl.program_id(0) // rows
    other = tl.load(source + row)
    if other != row:
        place = block * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        here = (layer * rows + row).to(tl.int64) * stride + head * width + start
        there = (layer * rows + other).to(tl.int64) * stride + head * width + start
        tl.store(piece + here + place, tl.load(piece + there + place, mask=inside), mask=inside)


def move_rows(
    piece: Float[Tensor, "layers P heads columns d"], source: Int64[Tensor, "P"], first: int
) -> None:
    """Makes row r a copy of row `source[r]` in every layer, from column `first` on, in place.

    A row that is somebody's source must be its own (`smc.static.moves`).
    """
    layers, P, heads, columns, d = piece.shape
    size = (columns - first) * d
    grid = (layers * P, heads, triton.cdiv(size, BLOCK))
    _move[grid](
        piece, source, P, first * d, size, heads * columns * d, columns * d, BLOCK=BLOCK
    )  # fmt: skip
