"""Random numbers of the sampler, drawn by a single function, `Draw`.

Random numbers are a *function*, not a stream: the uniform number of a choice depends only on (seed,
example, particle, step, purpose). The order, the batch and the device of the choices don't matter.
So a batch gives the same results as each example alone, and an interrupted run continues
identically. Such generators are called counter-based (Salmon, Moraes, Dror & Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011). This generator mixes in the five integers one after the other,
each followed by the 64-bit finalizer of splitmix64 (Steele, Lea & Flood, 2014). It uses wrapping
int64 arithmetic, which is the same on CPU and GPU. Cost: about 40 integer operations per number.

`Draw` also gets the *breaks* of each choice: the points in (0, 1) where the outcome changes. The
default generator ignores the breaks. Tests replace it by a function that computes from the breaks
that a draw has, for example, three outcomes with probabilities 0.2, 0.5 and 0.3. So the function
can enumerate all outcomes of tokens and of resampling (`smc.testing.walk`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


class Purpose(IntEnum):
    """The purpose of a random number; numbers for different purposes are independent."""

    TOKEN = 1
    ANCESTOR = 2
    POSTERIOR = 3
    SELECTION = 4
    POOL = 5


class Keys(NamedTuple):
    """The keys of random numbers, as arrays of any shape.

    Attributes:
        example: the example's number from `example_ids` (not its index in the batch).
        particle: number of the particle within its example.
        step: number of the step, from 0; a tensor must have the device of `example` and broadcast
            with it.
        purpose: purpose of all these numbers.
    """

    example: Int64[Tensor, "*M"]
    particle: Int64[Tensor, "*M"]
    step: int | Int64[Tensor, "*#M"]
    purpose: Purpose


Breaks = Callable[[], Tensor]
"""Function that returns the points where the outcome of each choice changes, Float64["*M K"].

The points may be in any order. Repeated points and points outside of (0, 1) are ignored.
"""


@runtime_checkable
class Draw(Protocol):
    """Random number generator: a function that returns a uniform number in (0, 1) for each key."""

    def __call__(self, keys: Keys, breaks: Breaks) -> Float64[Tensor, "*M"]:
        """Return uniform numbers for `keys`, for choices whose outcomes change at `breaks`."""
        ...


class CounterDraw:
    """Default random number generator, whose numbers depend only on the seed and the keys."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __call__(self, keys: Keys, breaks: Breaks) -> Float64[Tensor, "*M"]:
        """Return uniform numbers; see `Draw`."""
        del breaks
        return uniform(self.seed, keys)


# The finalizer's two multipliers and the golden-ratio increment, as signed 64-bit integers.
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)


def uniform(seed: int, keys: Keys) -> Float64[Tensor, "*M"]:
    """Return the uniform number of each key: (k + 1/2) / 2^52 for a 52-bit k, never 0 or 1."""
    state = torch.full_like(keys.example, _as_signed(seed))
    for word in (int(keys.purpose), keys.step, keys.example, keys.particle):
        state = _mix(state + _GOLDEN) ^ word
    bits = _shift_right(_mix(_mix(state + _GOLDEN)), 12)
    return (bits.double() + 0.5) * 2.0**-52


def _as_signed(seed: int) -> int:
    """Return the low 64 bits of an integer as a signed integer."""
    low = seed & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low


def _shift_right(x: Int64[Tensor, "*M"], by: int) -> Int64[Tensor, "*M"]:
    """Shift logically, whereas torch's shift of int64 is arithmetic."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Int64[Tensor, "*M"]) -> Int64[Tensor, "*M"]:
    """Map 64-bit integers one to one, such that each input bit flips about half the output bits."""
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


class Categorical(NamedTuple):
    """R categorical distributions over V outcomes, prepared for repeated draws.

    Attributes:
        weight: exp(log_p - max log_p). The most probable outcome has weight one, so a single
            outcome with log-probability -500 can be drawn like any other.
        cumulative: cumulative sums of `weight`.
        likeliest: an outcome of weight one.
    """

    weight: Float64[Tensor, "R V"]
    cumulative: Float64[Tensor, "R V"]
    likeliest: Int64[Tensor, "R"]

    def breaks(self, rows: Int64[Tensor, "M"]) -> Float64[Tensor, "M V"]:
        """Return the points in (0, 1) where the drawn outcome of each given row changes."""
        cumulative = self.cumulative[rows]
        return cumulative / cumulative[:, -1:]

    def at(self, rows: Int64[Tensor, "M"], u: Float64[Tensor, "M"]) -> Int64[Tensor, "M"]:
        """Return the outcome at quantile u of each given row, by bisection: O(M log V).

        The result is the first outcome whose cumulative weight exceeds u times the total. By
        rounding, there may be no such outcome (if u is close to one), or it may have weight zero (a
        parallel prefix sum isn't necessarily monotone). In both cases the most probable outcome is
        returned, so an outcome of probability zero is never returned.
        """
        V = self.weight.shape[1]
        below = bisect(self.cumulative, rows, u * self.cumulative[rows, -1])
        found = below.clamp(max=V - 1)
        possible = (below < V) & (self.weight[rows, found] > 0)
        return torch.where(possible, found, self.likeliest[rows])


def bisect(
    cumulative: Float64[Tensor, "R V"], rows: Int64[Tensor, "M"], point: Float64[Tensor, "M"]
) -> Int64[Tensor, "M"]:
    """Count the cumulative sums of each given row that are at most `point`: O(M log V)."""
    V = cumulative.shape[1]
    below = torch.zeros_like(rows)
    for bit in reversed(range(V.bit_length())):
        probe = below + (1 << bit)
        reached = cumulative[rows, probe.clamp(max=V) - 1] <= point
        below = torch.where((probe <= V) & reached, probe, below)
    return below


class Draws(NamedTuple):
    """The distributions q of R prefixes, proportional to p g and prepared for drawing.

    Attributes:
        log_z: log of the sum over v of p(v) g(v).
        at: function that returns the token at a quantile of the distribution of each given row.
    """

    log_z: Float64[Tensor, "R"]
    at: Callable[[Int64[Tensor, "M"], Float64[Tensor, "M"]], Int64[Tensor, "M"]]


def categorical(log_p: Float64[Tensor, "R V"]) -> Categorical:
    """Return the distributions proportional to exp(log_p).

    Args:
        log_p: unnormalized log-probabilities; -inf for outcomes that must never be drawn. A row
            without any possible outcome is allowed, but must not be drawn from.
    """
    top, likeliest = log_p.max(dim=1, keepdim=True)
    weight = (log_p - torch.where(top.isneginf(), 0.0, top)).exp()
    return Categorical(weight, weight.cumsum(dim=1), likeliest.squeeze(1))
