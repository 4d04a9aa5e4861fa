"""Sampling in rounds with twice as many particles each, until the reported error is small enough.

A round samples an example with N particles, and reports a standard error of the log evidence
(`smc._results.reliability`). While this error exceeds the target, the next round has twice as many
particles. When a round meets the target, a last round with the same N is run, and only its result
is returned.

**The result is unbiased.** Each round has separate random numbers. The N of the last round depends
only on the previous rounds. So whatever N is, the expectation of the last round's evidence estimate
is P_lm(C within n). Returning the round that met the target would be
biased: rounds that missed probability underestimate their error, so the returned evidence would be
too low on average. The mean over all rounds would be biased, too, because the number of rounds
depends on their results. A round with the maximum number of particles is always the last. A round
that enumerated all answers is returned at once, because it contains no randomness.

**The error is an estimate.** It can be too small if all particles missed the same branches. The
label and the bounds of the last round report this as usual.

Cost: at most about three times the cost of the last round, if doubling N doubles the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from smc._results.posterior import Diagnostics, Posterior
from smc._vocabulary.draw import Breaks, Draw, Keys

STRIDE = 1 << 32
"""Offset between the step numbers of two rounds in the keys of random numbers.

It exceeds the number of steps of any answer, so the keys of two rounds are never equal.
"""


Round = Callable[[Sequence[int], int, Draw, bool], Sequence[Posterior]]
"""Function that samples examples, given by their numbers, with N particles and a draw.

The last argument tells whether the round is the last one of these examples.
"""


def in_rounds(
    sample: Round, count: int, draw: Draw, *, particles: int, most: int, target_error: float
) -> list[Posterior]:
    """Sample examples with as many particles as the target error requires.

    Args:
        sample: function that runs one round.
        count: number of examples.
        draw: the source of random numbers for all rounds.
        particles: number of particles of the first round.
        most: maximum number of particles.
        target_error: the target standard error of the log evidence, in nats.

    Returns:
        The posterior of each example's last round. Its diagnostics count the tokens, passes and
        seconds of all rounds.
    """
    results: dict[int, Posterior] = {}
    spent: dict[int, list[tuple[int, Diagnostics]]] = {index: [] for index in range(count)}

    def end(index: int, found: Posterior) -> None:
        results[index] = replace(found, diagnostics=_total(spent[index], found.diagnostics))

    going, N, number = list(range(count)), min(particles, most), 0
    while going:
        is_last = most <= N
        enough, more = [], []
        found = sample(going, N, _Numbered(draw, number), is_last)
        for index, each in zip(going, found, strict=True):
            spent[index].append((N, each.diagnostics))
            if is_last or each.enumerated or each.stopped is not None:
                end(index, each)
            elif each.reliability.log_evidence_error <= target_error:
                enough.append(index)
            else:
                more.append(index)
        if enough:
            last = sample(enough, N, _Numbered(draw, number + 1), True)
            for index, each in zip(enough, last, strict=True):
                spent[index].append((N, each.diagnostics))
                end(index, each)
        going, N, number = more, min(2 * N, most), number + 2
    return [results[index] for index in range(count)]


class _Numbered:
    """A `Draw` whose random numbers are different in each round."""

    def __init__(self, draw: Draw, number: int) -> None:
        self._draw, self._offset = draw, STRIDE * number

    def __call__(self, keys: Keys, breaks: Breaks) -> Float64[Tensor, "*M"]:
        return self._draw(keys._replace(step=keys.step + self._offset), breaks)


def _total(rounds: Sequence[tuple[int, Diagnostics]], last: Diagnostics) -> Diagnostics:
    """Return the last round's diagnostics, with tokens, passes and seconds of all rounds."""

    def add(value: Callable[[Diagnostics], float]) -> float:
        return sum(value(each) for _, each in rounds)

    return replace(
        last,
        rounds=tuple(particles for particles, _ in rounds),
        lm_calls=int(add(lambda each: each.lm_calls)),
        tokens=int(add(lambda each: each.tokens)),
        seconds=add(lambda each: each.seconds),
        start_seconds=add(lambda each: each.start_seconds),
    )
