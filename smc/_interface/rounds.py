"""Sampling in rounds of doubling size, until the reported error is small enough.

A round samples an example with N particles, and reports a standard error of the log evidence
(`smc._results.reliability`). As long as the error exceeds the target, the next round doubles N.
Afterwards a last round with the same N is run, and only its result is returned.

**Unbiased.** Each round has its own random numbers. The N of the last round is a function of the
previous rounds, so given N, its evidence estimate has the expectation P_lm(C within n), and
therefore also overall. The round that met the target is not returned: rounds that underestimate
their error have missed probability, so selecting them would make the estimate too low. The mean of
all rounds has the same bias, because their number depends on them. A round with the maximum number
of particles is always the last. An enumerated round, which has drawn nothing, is returned at once.

**The error is estimated.** It can be small if all particles missed the same branches; the label and
the bounds of the last round report this as usual.

Cost: at most about three times that of the last round, if the cost doubles with each round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from smc._results.posterior import Diagnostics, Posterior
from smc._vocabulary.draw import Breaks, Draw, Keys

STRIDE = 1 << 32
"""More steps than an answer can have, so that rounds use different step numbers in their keys."""


Round = Callable[[Sequence[int], int, Draw, bool], Sequence[Posterior]]
"""Samples these examples with N particles and a draw; the flag tells whether the round is final."""


def in_rounds(
    sample: Round, count: int, draw: Draw, *, particles: int, most: int, target_error: float
) -> list[Posterior]:
    """Sample examples with as many particles as the target error requires.

    Args:
        sample: runs a round.
        count: number of examples.
        draw: the source of random numbers for all rounds.
        particles: N of the first round.
        most: maximum of N.
        target_error: the target standard error of the log evidence, in nats.

    Returns:
        The posteriors of the last round, with the tokens, passes and seconds of all rounds in their
        diagnostics.
    """
    results: dict[int, Posterior] = {}
    spent: dict[int, list[tuple[int, Diagnostics]]] = {place: [] for place in range(count)}

    def end(place: int, found: Posterior) -> None:
        results[place] = replace(found, diagnostics=_total(spent[place], found.diagnostics))

    going, N, number = list(range(count)), min(particles, most), 0
    while going:
        is_last = most <= N
        enough, more = [], []
        found = sample(going, N, _Numbered(draw, number), is_last)
        for place, each in zip(going, found, strict=True):
            spent[place].append((N, each.diagnostics))
            if is_last or each.enumerated or each.stopped is not None:
                end(place, each)
            elif each.reliability.log_evidence_error <= target_error:
                enough.append(place)
            else:
                more.append(place)
        if enough:
            last = sample(enough, N, _Numbered(draw, number + 1), True)
            for place, each in zip(enough, last, strict=True):
                spent[place].append((N, each.diagnostics))
                end(place, each)
        going, N, number = more, min(2 * N, most), number + 2
    return [results[place] for place in range(count)]


class _Numbered:
    """The random numbers of one round."""

    def __init__(self, draw: Draw, number: int) -> None:
        self._draw, self._offset = draw, STRIDE * number

    def __call__(self, keys: Keys, breaks: Breaks) -> Float64[Tensor, "*M"]:
        return self._draw(keys._replace(step=keys.step + self._offset), breaks)


def _total(rounds: Sequence[tuple[int, Diagnostics]], last: Diagnostics) -> Diagnostics:
    """Return the diagnostics of the last round, with the totals of all rounds."""

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
