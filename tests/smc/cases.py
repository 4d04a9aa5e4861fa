"""Proposals, examples and languages that several tests of smc share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

import smc
import smc._forward.reader
import smc._inference.execution
from gcd import Automaton, TokenAutomaton, Vocabulary, lift
from hmm import HMM
from smc import AutomatonPosition
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice
from tests.smc.walks import Tilted


class NoPotential(smc.PGCD):
    potential = False


def pgcd(twist: str = "conditional", kind: type[smc.PGCD] = smc.PGCD, **options: Any) -> smc.PGCD:
    generator = torch.Generator().manual_seed(5)
    hmm = HMM.random(3, VOCABULARY.size, generator=generator, dtype=torch.float64)
    return kind(hmm, lookahead=twist, **options)


PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "greedy_close": smc.GreedyClose,
    "own": lambda: Tilted(potential=True),
    "pgcd": lambda: pgcd(exact_top_k=2),
    "in_time": lambda: pgcd("in_time", exact_top_k=0, defense=0.1),
    "no_potential": lambda: pgcd(exact_top_k=1, kind=NoPotential),
    "exact": lambda: pgcd(exact_top_k=None),
}


class Uneven(smc.GCD):
    """Some tokens have their own g, one of them twice; or g is NaN."""

    bad = 0.0

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        mask = super().guide(state, log_p)
        tokens = (torch.arange(3) % 2).expand(len(log_p), 3)
        rows = torch.arange(len(log_p)).unsqueeze(1).expand(-1, 3)
        own = mask.at(rows.flatten(), tokens.flatten()).view(-1, 3) + (1.5 * tokens.double() - 1)
        own = own + self.bad
        return mask._replace(tokens=tokens.contiguous(), by_token=own, alive=None, is_mask=False)


PLAIN: dict[str, Any] = {"count_finished": False, "floor": 0.0}
FILTER = {
    "default": {},
    "plain": PLAIN,
    "no_floor": {"floor": 0.0},
    "floor": {"count_finished": False, "floor": 1e-2},
}


RESAMPLING: dict[str, dict[str, Any]] = {
    "systematic": {"strata": "none", "ess_threshold": 0.5},
    "multinomial": {"strata": "none", "ess_threshold": 1.0, "resampling": "multinomial"},
    "strata": {"strata": "state", "ess_threshold": 0.9},
    "multinomial strata": {"strata": "state", "ess_threshold": 1.0, "resampling": "multinomial"},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": "smc", **options} for name, options in RESAMPLING.items()},
    **{name: {"algorithm": "discrete", **options} for name, options in FILTER.items()},
}


def examples() -> dict[str, Any]:
    names = ("few_words", "a_star_b", "forced", "a_star_b")
    return {
        "prompts": [[0], [1, 2], [2, 2, 1], [0, 0]],
        "constraint": [CONSTRAINTS[each]() for each in names],
        "max_tokens": [4, 6, 3, 8],
        "example_ids": [3, 9, 0, 4],
    }


# A single EOS id, so that the end can be forced too; some texts have two spellings.
FORCED = Vocabulary.from_bytes([b"a", b"b", b"ab", b"c", b""], [4])


LANGUAGES: dict[str, Callable[[], Automaton]] = {
    "forced_between": lambda: choice("acca", "accb", "ba", "bcbb"),
    "forced_first": lambda: choice("cca", "ccb", "ccaa"),
    "forced_last": lambda: choice("accc", "bccb"),
    "all_forced": lambda: choice("ccca"),
    "by_the_budget": lambda: Automaton.literal("c").star() + Automaton.literal("a"),
}


def automaton_of(name: str) -> TokenAutomaton:
    return lift(LANGUAGES[name](), FORCED)


def budget_of(automaton: TokenAutomaton) -> int:
    """A budget for every spelling but the longest, so that the budget matters."""
    return automaton.fewest_tokens + 1


class Anything:
    """Random guesses: forbidden tokens, EOS, and ids that don't exist."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, text: bytes, vocabulary: Vocabulary) -> list[int]:
        """Guess."""
        some = range(-2, vocabulary.size + 2)
        return self._random.sample(some, self._random.randrange(len(some)))


JSON_TOKENS = [
    *(b'{"', b"a", b'":', b"1", b".0", b"2", b",", b'"', b"b", b"[", b"]", b"true", b"}"),
    *(b'"a":1', b'{"a":', b"1}", b"true]}", b'b":[', b""),
]
JSON_VOCABULARY = Vocabulary.from_bytes(JSON_TOKENS, [len(JSON_TOKENS) - 1])
