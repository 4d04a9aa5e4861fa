"""Examples for comparing both algorithms with their definition, and proposals defined by rules.

A rule gives g for one automaton, one state and one token; the proposals give it as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import smc
from gcd import Automaton, TokenAutomaton, Vocabulary, lift, regex
from smc import AutomatonPosition
from smc.testing import ToyLM
from tests.smc.toys import choice

# A single EOS id, so that the end can be forced too; some texts have two spellings.
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"c", b""], [4])
TOKENS = range(VOCABULARY.size)

# Forced runs of several tokens in the middle, at the beginning and at the end, and short ones.
LANGUAGES: dict[str, Callable[[], Automaton]] = {
    "runs": lambda: choice("acca", "accb", "ba", "bcbb"),
    "begins": lambda: choice("cca", "ccb", "ccaa"),
    "stars": lambda: Automaton.literal("a").star() + choice("b", "bccb", "cc"),
    "words": lambda: regex("[ab]{1,4}(cca)?"),
}
PROMPTS, BUDGETS = [(0, 1), (2,), (1, 1, 3), (3, 0), (1, 2)], [6, 7, 9, 7, 8]
NAMES = [3, 8, 0, 1, 5]
NOTHING = -math.inf


class Sure(ToyLM):
    """A model with impossible tokens after some texts, so that particles die in the middle.

    After an impossible token it returns NaN, because nothing should use the values.
    """

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens and tokens[-1] == self.impossible(tokens[:-1]):
            return torch.full((VOCABULARY.size,), math.nan, dtype=torch.float64)
        log_p, token = super().log_p(tokens).clone(), self.impossible(tokens)
        if token is not None:
            log_p[token] = NOTHING
        return log_p.log_softmax(dim=0)

    def impossible(self, tokens: tuple[int, ...]) -> int | None:
        there_is_one = len(tokens) % 3 == 0 and sum(tokens) % 2 == 1
        return (sum(tokens) + 2) % 4 if there_is_one else None


TOY = Sure(VOCABULARY, seed=9, spread=2.0)

LogG = Callable[[TokenAutomaton, int, int, int], float]
"""Arguments: automaton, state, remaining tokens, next token."""


@cache
def automata() -> list[TokenAutomaton]:
    found = [lift(language(), VOCABULARY) for language in LANGUAGES.values()]
    return [*found, found[0]]


# -- proposals -----------------------------------------------------------------------------------


def lm(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    return 0.0


def lcd(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    return 0.0 if automaton.step(state, token) >= 0 else NOTHING


def gcd(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    after = automaton.step(state, token)
    return 0.0 if after >= 0 and automaton.steps_to_accept[after] <= left - 1 else NOTHING


def wave(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """An arbitrary g on the tokens that GCD allows."""
    return gcd(automaton, state, left, token) + math.sin(3 * state + left + 1.7 * token) - 1.5


def guess(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """Variant of `wave` with a certain end, and with tokens and prefixes of probability zero.

    Some expectations exceed one, the maximum for a probability conditional on a token.
    """
    if automaton.step(state, token) == automaton.final:
        return gcd(automaton, state, left, token)
    impossible = (2 * state + left + token) % 5 == 0 or (state + left) % 6 == 0
    more = 0.6 if token != 3 else -0.2
    return NOTHING if impossible and token != 3 else wave(automaton, state, left, token) + more


OWN = (0, 3)
"""Tokens that have their own g under `Tied`."""


def tied(automaton: TokenAutomaton, state: int, left: int, token: int) -> float:
    """Return `wave` for these tokens, and for others that of the first token of their class."""
    if token in OWN:
        return wave(automaton, state, left, token)
    return of_class(automaton, state, left, int(automaton.class_of[token]))


def of_class(automaton: TokenAutomaton, state: int, left: int, klass: int) -> float:
    if klass >= automaton.num_classes:
        return NOTHING
    return wave(automaton, state, left, automaton.class_of.tolist().index(klass)) - 0.3


def of_rows(
    position: AutomatonPosition, log_g: LogG, items: Sequence[int] = TOKENS
) -> torch.Tensor:
    """Log g of every token (or class), for each row."""
    found = torch.empty(len(position.states), len(items), dtype=torch.float64)
    for row, (state, left) in enumerate(
        zip(position.states.clamp(min=0).tolist(), position.remaining.tolist(), strict=True)
    ):
        automaton = position.automata.automata[int(position.automata.automaton_of[state])]
        place = automaton, state - int(position.automata.first_state[state]), left
        values = [log_g(*place, item) for item in items]
        found[row] = torch.tensor(values, dtype=torch.float64)
    return found


class Wave(smc.GCD):
    """The proposal whose g is `wave`."""

    def __init__(self, *, potential: bool) -> None:
        self.potential = potential

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        return smc.Factors.dense(of_rows(state, wave))

    def log_g_of_forced(self, state: AutomatonPosition, tokens: torch.Tensor) -> torch.Tensor:
        return of_rows(state, wave).gather(1, tokens.unsqueeze(1)).squeeze(1)


class Tied(smc.GCD):
    """The proposal whose g is `tied`."""

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        by_class = of_rows(state, of_class, range(state.automata.widest))
        own = torch.tensor([OWN]).expand(len(log_p), -1)
        by_token = of_rows(state, wave, OWN)
        return smc.Factors(
            by_class, own.contiguous(), by_token, state.automata.classes, state.automaton_of_row
        )

    def log_g_of_forced(self, state: AutomatonPosition, tokens: torch.Tensor) -> torch.Tensor:
        return of_rows(state, tied).gather(1, tokens.unsqueeze(1)).squeeze(1)


class Guess(smc.Lookahead[torch.Tensor]):
    """A lookahead with equally probable tokens that expects `guess` of each."""

    def start(self, batch: smc.Batch) -> torch.Tensor:
        return batch.budgets

    def advance(self, state: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return state

    def take(self, state: torch.Tensor, ancestors: torch.Tensor) -> torch.Tensor:
        return state[ancestors]

    def tokens(
        self, state: torch.Tensor, position: AutomatonPosition, tokens: torch.Tensor
    ) -> smc.Expectation:
        log_g = of_rows(position, guess).gather(1, tokens)
        return smc.Expectation(log_g - 1.6, torch.full_like(log_g, -1.6))

    def classes(self, state: torch.Tensor, position: AutomatonPosition) -> smc.Expectation:
        raise NotImplementedError("every token is asked about by itself")


@dataclass(frozen=True)
class Rule:
    """A proposal, the tokens that it allows, and its g (which may be zero with a defense).

    `late`: whether a prefix dies that can't be completed in time.
    """

    proposal: smc.Proposal[Any]
    allows: LogG
    log_g: LogG
    late: bool = False
    defense: float | None = None


RULES: dict[str, Rule] = {
    "lm": Rule(smc.LM(), lm, lm, late=True),
    "lcd": Rule(smc.LCD(), lcd, lcd),
    "gcd": Rule(smc.GCD(), gcd, gcd),
    "wave": Rule(Wave(potential=True), wave, wave),
    "no_potential": Rule(Wave(potential=False), wave, wave),
    "tied": Rule(Tied(), gcd, tied),
    "guess": Rule(
        smc.Twisted(Guess(), exact_top_k=None, defense=0.2),
        gcd,
        lambda *place: min(0.0, guess(*place)),
        defense=0.2,
    ),
    "no_defense": Rule(
        smc.Twisted(Guess(), exact_top_k=None, defense=0.0),
        gcd,
        lambda *place: min(0.0, guess(*place)),
        defense=0.0,
    ),
}
