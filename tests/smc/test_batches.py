"""Results don't depend on how examples are divided into batches."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

import smc
import smc._forward.reader
from gcd import TokenAutomaton, lift, regex
from hmm import HMM
from smc._interface.interface import Room, in_batches
from smc.testing import ToyLM, ToyRows
from tests.smc import toys
from tests.smc.calls import sample_with
from tests.smc.cases import PROPOSALS
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, timeless

# All random choices are enumerated. Checking shapes in these repeated calls takes a third of the
# time; other tests of the sampler check them.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


class Watched(ToyLM):
    """A toy that records its inputs: prompts as -1 each, forward passes as their rows."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, seed=3, spread=1.5)
        self.log: list[int] = []

    @property
    def passes(self) -> list[int]:
        return [rows for rows in self.log if rows > 0]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Float[Tensor, "B V"]]:
        self.log += [-1] * len(prompts)
        _, log_p = super().prefill(prompts)
        return WatchedRows(self, [tuple(prompt) for prompt in prompts]), log_p


class WatchedRows(ToyRows):
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        self._lm.log.append(len(runs))  # type: ignore[attr-defined]
        return super().extend(runs, lengths)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "state": {"ess_threshold": 0.8},
    "none": {"ess_threshold": 0.8, "strata": "none", "resampling": "multinomial"},
    "discrete": {"algorithm": "discrete"},
}


def examples() -> dict[str, Any]:
    """Nine examples with answers, budgets and prompts of different lengths."""
    kinds = [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "forced")]
    kinds.append(lift(choice("bb", "ab" * 5, "b" * 9), VOCABULARY))
    return {
        "prompts": [[(i * j) % 3 for j in range(1 + 5 * i % 4)] for i in range(9)],
        "constraint": [kinds[i % 4] for i in range(9)],
        "max_tokens": [(4 + i % 6, 3 + i % 2, 3, 10)[i % 4] for i in range(9)],
    }


def sample(lm: smc.LanguageModel, which: Sequence[int], **options: Any) -> list[smc.Posterior]:
    given = {name: [values[i] for i in which] for name, values in examples().items()}
    given["constraint"] = options.pop("constraint", given["constraint"])
    return sample_with(lm, **given, example_ids=list(which), **{"algorithm": "smc", **options})


def assert_same(found: smc.Posterior, expected: smc.Posterior, proposal: str) -> None:
    """Compare bit for bit; a lookahead table differs in its last bits in another batch."""
    if proposal != "pgcd":
        assert timeless(found) == timeless(expected)
        return
    assert [s.ids for s in found.particles] == [s.ids for s in expected.particles]
    weights = [s.log_weight for s in expected.particles]
    assert [s.log_weight for s in found.particles] == pytest.approx(weights, abs=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "proposal", "forced_runs"),
    [
        *itertools.product(("state", "discrete"), ("lcd", "gcd", "pgcd"), (True,)),
        *itertools.product(("state", "discrete"), ("gcd",), (False,)),
        ("none", "gcd", True),
        ("none", "pgcd", False),
    ],
)
def test_an_example_gives_the_same_alone(
    algorithm: str, proposal: str, forced_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "proposal": PROPOSALS[proposal](),
        "forced_runs": forced_runs,
        "particles": 3,
        "seed": 5,
        **ALGORITHMS[algorithm],
    }
    expected = [sample(Watched(), [i], **options)[0] for i in range(9)]
    # Wide passes are split, so one pass of an example alone may become several in a batch.
    monkeypatch.setattr(smc._forward.reader, "MOST_READ", 3 * 6 * 9 if forced_runs else 1 << 26)
    lm = Watched()
    found = sample(lm, range(9), max_rows=13, **options)
    for one, same in zip(found, expected, strict=True):
        assert_same(one, same, proposal)
    assert max(lm.passes) <= 13


class Tabled(smc.GCD):
    """A proposal with tables of 40 bytes per example, and a memory limit."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way = self.most = 0
        self.found: dict[int, smc.Posterior] = {}

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        return 40

    def start(self, batch: smc.Batch) -> smc.AutomatonPosition:
        self.under_way += len(batch.budgets)
        self.most = max(self.most, self.under_way)
        return super().start(batch)

    def ended(self, found: dict[int, smc.Posterior]) -> None:
        self.under_way -= len(found)
        self.found.update(found)


@pytest.mark.parametrize(("max_bytes", "most"), [(100, 2), (0, 1)])
def test_tables_under_way_are_bounded(max_bytes: int, most: int) -> None:
    """Limits on lookahead and automata memory affect batches like the limit on rows."""
    tabled = Tabled(max_bytes)
    sample(
        Watched(), range(9), proposal=tabled, particles=4, finished=tabled.ended, max_rows=1000,
        # Equal automata with equal budgets share a table, so all of these differ.
        constraint=[replace(automaton) for automaton in examples()["constraint"]],
    )  # fmt: skip
    assert (tabled.under_way, tabled.most) == (0, most)
    assert sorted(tabled.found) == list(range(9))
    expected = sample(Watched(), range(9), proposal=smc.GCD(), particles=4)
    assert [timeless(tabled.found[i]) for i in range(9)] == [timeless(p) for p in expected]


def test_automata_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    automata = [replace(automaton) for automaton in examples()["constraint"]]
    most = 3 * max(8 * automaton.delta.size for automaton in automata) // 2
    monkeypatch.setattr(smc._interface.interface, "MOST_AUTOMATA", most)
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def observe(names: Sequence[int]) -> None:
        under_way.update(names)
        sizes[len(sizes)] = sum(8 * automata[name].delta.size for name in under_way)

    def finished(found: dict[int, smc.Posterior]) -> None:
        under_way.difference_update(found)

    sample(Watched(), range(9), proposal=smc.GCD(), particles=4, constraint=automata,
           observe=observe, finished=finished)  # fmt: skip
    assert most // 2 < max(sizes.values()) <= most
    assert len(sizes) > 2


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 9))
def test_batches_keep_the_order_and_are_full(weights: list[int], particles: int) -> None:
    room = Room(rows=20, automata=100, lookahead=math.inf)

    def needs(which: Sequence[int]) -> Room:
        return Room(particles * len(which), sum(weights[i] for i in which), 0)

    batches = in_batches(range(len(weights)), needs, room)
    assert [i for batch in batches for i in batch] == list(range(len(weights)))
    for batch in batches:
        assert len(batch) == 1 or room.holds(needs(batch))
    for batch, after in itertools.pairwise(batches):
        assert not room.holds(needs([*batch, after[0]]))


def test_seconds_are_shared_out() -> None:
    started = time.perf_counter()
    found = sample(Watched(), range(9), proposal=smc.GCD(), particles=4, max_rows=16)
    elapsed = time.perf_counter() - started
    assert all(p.diagnostics.seconds > 0 for p in found)
    assert sum(p.diagnostics.seconds for p in found) <= elapsed


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    return toys.stories(dtype=torch.float32)


# All pairs of proposal, algorithm and prompt storage occur.
@pytest.mark.parametrize(
    ("proposal", "algorithm", "sharing"),
    [
        (proposal, algorithm, (i + j) % 2 == 0)
        for i, proposal in enumerate(["lcd", "gcd", "pgcd"])
        for j, algorithm in enumerate(["state", "discrete"])
    ],
)
def test_a_transformer_to_rounding(
    stories: smc.TransformersLM, proposal: str, algorithm: str, sharing: bool
) -> None:
    """In float32 the tokens agree, and weights up to 1e-4, with shared or copied prompts."""
    texts = ("Once upon a time", "Lily", "One day, a big red dog ran")
    languages = ("(the|a) (cat|dog|bird) (sat|ran)( away)?", "[a-z]{1,6} was happy", "yes|no")
    kinds = [lift(regex(language), stories.vocabulary) for language in languages]
    budgets = [a.fewest_tokens + 2 * i for i, a in enumerate(kinds)]
    made: smc.Proposal = PROPOSALS[proposal]()
    if proposal == "pgcd":
        generator = torch.Generator().manual_seed(0)
        made = smc.PGCD(HMM.random(4, stories.vocabulary.size, generator=generator))
    lm = smc.TransformersLM(stories.model, stories.tokenizer)
    lm._shares_prompts = lambda: sharing
    options = {"proposal": made, "particles": 4, "seed": 2, **ALGORITHMS[algorithm]}
    found = sample_with(
        lm, texts, kinds, max_tokens=budgets, max_rows=8, **{"algorithm": "smc", **options}
    )
    for i, same in enumerate(found):
        (expected,) = sample_with(
            lm,
            [texts[i]],
            kinds[i],
            max_tokens=budgets[i],
            example_ids=[i],
            **{"algorithm": "smc", **options},
        )
        assert [s.ids for s in same.particles] == [s.ids for s in expected.particles]
        weights = [s.log_weight for s in expected.particles]
        assert [s.log_weight for s in same.particles] == pytest.approx(weights, abs=1e-4)
