"""As many particles as a stated error needs, found by rounds of twice as many.

A round samples an example with N particles, and states a standard error of the log evidence
(`smc.reliability`). As long as it is greater than wanted, the next round takes twice as many. Once
it is not, a last round is made with the same N, and is all that is returned.

**Unbiased.** Rounds have random numbers of their own. The N of the last round is a function of the
rounds before it, so given N, its evidence estimate has the expectation P_lm(C within n), and so it
has over all. The round that met the error is not returned: rounds that understate their error miss
something, and choosing those makes the estimate too low. The mean of all rounds has the same flaw,
as their number depends on them. Where a round has the most particles allowed, it is the last,
whatever it states; an enumerated round, which has drawn nothing, is returned at once.

**The error is stated, not known.** It can be small where all particles missed something; the label
and the bounds of the last round say so as always.

Cost: at most three times that of the last round, roughly, if a round costs twice that of the one
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from smc.draw import Breaks, Draw, Keys
from smc.posterior import Diagnostics, Posterior

STRIDE = 1 << 32
"""More than an answer has steps, so that the numbers of rounds are told apart by their step."""


Round = Callable[[Sequence[int], int, Draw, bool], Sequence[Posterior]]
"""Samples the examples at these places with so many particles; whether nothing follows for them."""


def in_rounds(
    sample: Round, count: int, draw: Draw, *, particles: int, most: int, target_error: float
) -> list[Posterior]:
    """Sample examples with as many particles as the error wanted takes.

    Args:
        sample: makes a round.
        count: how many examples there are.
        draw: the source of random numbers of all rounds.
        particles: N of the first round.
        most: the most that N may become.
        target_error: the standard error of the log evidence that is wanted, in nats.

    Returns:
        The last round's posteriors, whose diagnostics count the tokens, passes and seconds of all
        rounds.
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
    """Return the diagnostics of the last round with what all rounds took."""

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
