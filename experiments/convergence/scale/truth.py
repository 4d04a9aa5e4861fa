"""This module computes the exact answer where the language model is a hidden Markov model.

Let s be the state of a deterministic token automaton, h the hidden state that will emit the next
token. The joint probability of the prefixes of t tokens that are in (h, s) and can still be
completed obeys

    alpha_0(h, s)  = initial(h) 1{s initial}
    alpha_t(h', s')= sum over s, h of  alpha_{t-1}(h, s) P(tokens s -> s' | h) A(h, h')

and P(C within n) is what has come to the final state in n steps: what leaves a state for it is
summed up and goes no further. Every accepted token sequence has one path, so all tokenisations of a
text count, each once. This runs forwards, and shares with the lookahead of P-GCD, which runs
backwards from every state (`hmm.product`), only the edges; so one checks the other.

**Events** are byte languages D that share out C between them: which tool is called, which keyword
comes first. The posterior probability of one is P(C and D within n) / P(C within n), the same
recursion for the intersection. The sum over events must be P(C within n), which is checked: if they
overlap or leave something out, there is no marginal to compare with.

Cost of one automaton: n (E H + S H²) operations for the S states and E edges in reach, S H numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

import gcd
import smc
from gcd.automata.automaton import Automaton
from gcd.tokens.distances import fits
from hmm.edges import Edges, class_emission
from hmm.model import HMM

_AT_ONCE = 1 << 24  # numbers in one temporary
_TOLERANCE = 1e-9  # by which events may miss the evidence, as a share of it: rounding is 1e-12


class Event(NamedTuple):
    """A set of answers.

    Attributes:
        name: in words.
        language: the answers, as bytes; what the constraint excludes may be among them.
    """

    name: str
    language: Automaton


class Truth(NamedTuple):
    """The exact answer.

    Attributes:
        log_evidence: log P(C within n).
        marginal: P(event | C within n) of each event; sums to one.
    """

    log_evidence: float
    marginal: Float64[np.ndarray, "events"]


class PartitionError(ValueError):
    """Events that overlap, or that leave out a part of the constraint."""


@torch.inference_mode()
def log_evidence(hmm: HMM, automaton: gcd.TokenAutomaton, budget: int) -> float:
    """Compute log P(C within n) under an HMM, exactly but for rounding; -inf where it is zero.

    Args:
        hmm: the language model; give it in float64.
        automaton: C, over the tokens of the HMM.
        budget: n, tokens of an answer, EOS included if C asks for one.
    """
    if automaton.initial == automaton.final:
        return 0.0  # it ends by itself, before the first token
    edges = Edges.of([automaton], [class_emission(hmm, automaton)])
    source, target, sets, steps = map(
        torch.from_numpy, (edges.source, edges.target, edges.set_of, edges.steps_to_accept)
    )
    mass = edges.mass * edges.log_mass.exp().unsqueeze(1)
    alpha = hmm.initial.new_zeros(automaton.num_states, hmm.num_states)
    alpha[automaton.initial] = hmm.initial
    log_scale, parts = 0.0, [-math.inf]
    for remaining in range(budget, 0, -1):
        here = alpha.amax(dim=1) > 0
        on = (here[source] & fits(steps[target], remaining)).nonzero().squeeze(1)
        after = _step(alpha, mass, source[on], target[on], sets[on])
        finished = float(after[automaton.final].sum())
        if finished > 0:
            parts.append(math.log(finished) + log_scale)
        after[automaton.final] = 0
        top = float(after.max())
        if not top > 0:
            break
        going = (after.amax(dim=1) > 0).nonzero().squeeze(1)
        after[going] = hmm.transition.forward(after[going] / top)
        alpha, log_scale = after, log_scale + math.log(top)
    return float(np.logaddexp.reduce(parts))


def _step(
    alpha: Float64[Tensor, "S H"], mass: Tensor, source: Tensor, target: Tensor, sets: Tensor
) -> Float64[Tensor, "S H"]:
    """Sums alpha times the mass of each edge, where the edges lead."""
    after = torch.zeros_like(alpha)
    size = max(1, _AT_ONCE // alpha.shape[1])
    for i, j, k in zip(source.split(size), target.split(size), sets.split(size), strict=True):
        after.index_add_(0, j, alpha[i] * mass[k])
    return after


def truth(
    hmm: HMM,
    language: Automaton,
    events: Sequence[Event],
    vocabulary: gcd.Vocabulary,
    budget: int,
    *,
    ending: str = "token",
) -> Truth:
    """Compute the exact evidence of a constraint, and the posterior probability of each event.

    Args:
        hmm: the language model, in float64.
        language: the constraint C, over bytes.
        events: sets of answers that share out C between them.
        vocabulary: of the HMM.
        budget: n.
        ending: how an answer ends, "token" or "accept"; see `gcd.lift`.

    Raises:
        PartitionError: the events overlap or leave out answers, so their probabilities do not add
            up to that of C.
        ValueError: the HMM gives C no probability.
    """

    def within(part: Automaton) -> float:
        try:
            return log_evidence(hmm, gcd.lift(part, vocabulary, eos=ending), budget)
        except gcd.EmptyLanguageError:
            return -math.inf

    total = within(language)
    if math.isinf(total):
        raise ValueError(
            f"the HMM gives the constraint no probability within {budget} tokens, so there is no "
            "posterior; raise the budget, or take another HMM"
        )
    shares = np.exp([within(language & event.language) - total for event in events])
    if not abs(shares.sum() - 1) <= _TOLERANCE:
        found = ", ".join(
            f"{event.name} {share:.6g}" for event, share in zip(events, shares, strict=True)
        )
        raise PartitionError(
            f"the events do not share out the constraint between them: they have {shares.sum():.9g}"
            f" of its probability ({found}); let every answer be in exactly one"
        )
    return Truth(total, shares / shares.sum())


def marginal(posterior: smc.Posterior, events: Sequence[Event]) -> Float64[np.ndarray, "events"]:
    """Compute the posterior probability of each event among sampled answers.

    It sums to one, to zero where the posterior is dead.

    Raises:
        PartitionError: an answer is in no event, or in several.
    """
    shares = np.zeros(len(events))
    for answer, probability in zip(posterior.answers, posterior.probabilities, strict=True):
        where = [number for number, event in enumerate(events) if event.language.accepts(answer)]
        if len(where) != 1:
            names = ", ".join(events[number].name for number in where) or "none"
            raise PartitionError(f"{answer!r} must be in one event, and is in: {names}")
        shares[where[0]] += probability
    return shares
