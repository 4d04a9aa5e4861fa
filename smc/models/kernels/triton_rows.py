"""This Triton kernel copies rows of a cache in place; see `smc.models.triton_rows`."""

import triton
import triton.language as tl


@triton.jit
def move(piece, source, rows, start, size, stride, width, BLOCK: tl.constexpr):
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
