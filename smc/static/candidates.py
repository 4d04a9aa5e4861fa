"""Candidates are gone over in static shapes by one of three ways, each of them two functions.

    "torch"     `TENSORS`, tensor operations, the reference
    "blocks"    `COMPILED`, the loops that `smc.candidates` has for the CPU, where nobody waits
    "triton"    sums of blocks of tokens, for CUDA devices (`smc.static.triton_candidates`)

These are the names by which `smc.static.choose` gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from smc.candidates import (
    Known,
    Weighed,
    locate,
    locate_by_tensors,
    weigh,
    weigh_by_tensors,
)
from smc.guide import Factors


class Candidates(NamedTuple):
    """A way to go over all candidates of P prefixes.

    Attributes:
        weigh: as `smc.candidates.weigh`, for exactly K candidates; fewer where a row has no more.
        locate: as `smc.candidates.locate`. Where a target is not in the row's mass, or the row's
            c is zero, any token will do, as nobody asks for it.
    """

    weigh: Callable[[Tensor, Factors, int], Weighed]
    locate: Callable[[Tensor, Factors, Known, Tensor, Tensor, Tensor], Tensor]


TENSORS = Candidates(weigh_by_tensors, locate_by_tensors)
COMPILED = Candidates(weigh, locate)
