"""Examples enter a running batch as others leave, and nobody's results depend on who is there."""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

import smc
import smc.reading
from gcd.languages.text.regex import regex
from gcd.tokens.lifting import lift
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from hmm.model import HMM
from smc.language_model import JoiningRows
from smc.reading import JointRows, Reading, Steps, alone
from smc.schedule import ENTERING, MOST_GROUPS, Group, Room, in_groups, run
from smc.testing import ToyLM, ToyRows, target, walk
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice

# All random choices are walked: the same lines run so often that checking their shapes every time
# takes a third of it. Other tests of the sampler check them.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")

STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"


class Watched(ToyLM):
    """A toy that notes what is asked of it: prompts as -1 for each, passes as their rows."""

    def __init__(self, vocabulary: Vocabulary = VOCABULARY, rows: type | None = None) -> None:
        super().__init__(vocabulary, seed=3, spread=1.5)
        self.rows = rows or WatchedRows
        self.log: list[int] = []
        self.most = 0  # rows that one cache had

    @property
    def passes(self) -> list[int]:
        return [rows for rows in self.log if rows > 0]

    @property
    def entered(self) -> bool:
        """Whether prompts were read between the passes of others."""
        return -1 in self.log[next(i for i, rows in enumerate(self.log) if rows > 0) :]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Float[Tensor, "B V"]]:
        self.log += [-1] * len(prompts)
        _, log_p = super().prefill(prompts)
        return self.rows(self, [tuple(prompt) for prompt in prompts]), log_p


class WatchedRows(ToyRows):
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        self._lm.log.append(len(runs))  # type: ignore[attr-defined]
        return super().extend(runs, lengths)

    def join(self, other: ToyRows) -> None:
        super().join(other)
        self._lm.most = max(self._lm.most, len(self._tokens))  # type: ignore[attr-defined]


class Closed:
    """Rows that nobody can join."""

    def __init__(self, lm: Watched, prompts: list[tuple[int, ...]]) -> None:
        rows = WatchedRows(lm, prompts)
        self.extend, self.reorder, self.truncate = rows.extend, rows.reorder, rows.truncate


def pgcd() -> smc.PGCD:
    generator = torch.Generator().manual_seed(5)
    hmm = HMM.random(3, VOCABULARY.size, generator=generator, dtype=torch.float64)
    return smc.PGCD(hmm, exact_top_k=2)


PROPOSALS = {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD, "pgcd": pgcd}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "state": {"ess_threshold": 0.8},
    "none": {"ess_threshold": 0.8, "strata": "none", "resampling": "multinomial"},
    "discrete": {"algorithm": "discrete", "share": 0.3},
}


def examples() -> dict[str, Any]:
    """Nine, whose answers, budgets and prompts are of different lengths."""
    kinds = [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "forced")]
    kinds.append(lift(choice("bb", "ab" * 5, "b" * 9), VOCABULARY))
    return {
        "prompts": [[(i * j) % 3 for j in range(1 + 5 * i % 4)] for i in range(9)],
        "automata": [kinds[i % 4] for i in range(9)],
        "budget": [(4 + i % 6, 3 + i % 2, 3, 10)[i % 4] for i in range(9)],
    }


def sample(lm: smc.LanguageModel, which: Sequence[int], **options: Any) -> list[smc.Posterior]:
    given = {name: [values[i] for i in which] for name, values in examples().items()}
    given["automata"] = options.pop("automata", given["automata"])
    return smc.sample(lm, **given, example_ids=list(which), **options)


def timeless(posterior: smc.Posterior) -> smc.Posterior:
    """Everything but the seconds."""
    return replace(posterior, diagnostics=replace(posterior.diagnostics, seconds=0.0))


def assert_same(found: smc.Posterior, expected: smc.Posterior, proposal: str) -> None:
    """Bit for bit; a table for lookahead differs in its last bits in another batch."""
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
def test_an_example_gives_what_it_gives_alone(
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
    # Passes are cut where runs are not: what a group reads in one pass alone takes it several.
    monkeypatch.setattr(smc.reading, "MOST_READ", 3 * 6 * 9 if forced_runs else 1 << 26)
    lm = Watched()
    found = sample(lm, range(9), max_rows=13, **options)
    for one, same in zip(found, expected, strict=True):
        assert_same(one, same, proposal)
    assert lm.entered
    assert max(lm.most, *lm.passes) <= 13


class Rambling(Watched):
    """Says nothing but what may be said, so that finished answers weigh no more than others."""

    def log_p(self, tokens: tuple[int, ...]) -> Float[Tensor, "V"]:
        log_p = super().log_p(tokens).clone()
        log_p[4] = -torch.inf
        log_p[list(VOCABULARY.eos_ids)] -= 1
        return log_p.log_softmax(dim=0)


@pytest.mark.parametrize(
    "options",
    [
        {"ess_threshold": 1.0, "strata": "none", "resampling": "multinomial"},
        {"algorithm": "discrete", "count_finished": False},
    ],
    ids=str,
)
def test_a_group_never_asks_for_more_rows_than_it_said(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished particle may become a copy of one that runs, and a prefix has several ways on."""
    automaton, lm, read = lift(regex("[ab]+"), VOCABULARY), Rambling(), JointRows.read
    said: dict[int, int] = {}

    def watched(rows: JointRows, readings: dict[int, Reading]) -> Any:
        for number, reading in readings.items():
            assert len(reading.ancestors) <= said.get(number, 20)
            said[number] = reading.most_rows
        return read(rows, readings)

    monkeypatch.setattr(JointRows, "read", watched)
    smc.sample(
        lm, [[i % 3] * (1 + i // 3) for i in range(30)], automaton, budget=12, particles=10,
        proposal=smc.GCD(), max_rows=20, **options,
    )  # fmt: skip
    assert lm.entered
    assert max(lm.most, *lm.passes) <= 20


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_entering_saves_passes(algorithm: str) -> None:
    """Against rows that cannot join, whose groups go one after another, with the same results."""
    options = {"proposal": smc.GCD(), "particles": 4, "max_rows": 16, **ALGORITHMS[algorithm]}
    entering, waiting = Watched(), Watched(rows=Closed)
    assert not isinstance(waiting.prefill([[0]])[0], JoiningRows)
    found, expected = (sample(lm, range(9), **options) for lm in (entering, waiting))
    assert [timeless(p) for p in found] == [timeless(p) for p in expected]
    assert len(entering.passes) < len(waiting.passes)
    assert sum(entering.passes) == sum(waiting.passes)


@pytest.mark.parametrize("options", [{}, {"algorithm": "discrete", "floor": 0.1}], ids=str)
def test_all_walks_of_a_batch_that_others_enter(options: dict[str, Any]) -> None:
    """Weight times probability sums to the target, whoever was in the batch on the way."""
    automaton, prompt, lm = CONSTRAINTS["few_words"](), (0, 1), Watched()
    mass: dict[bytes, float] = defaultdict(float)
    usual: dict[str, Any] = {} if options else {"strata": "none", "ess_threshold": 0.9}

    def run_all(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return smc.sample(
            lm, [prompt] * len(ids), automaton, budget=3, particles=2, proposal=smc.GCD(),
            example_ids=ids, draw=draw, max_rows=8, **usual, **options,
        )  # fmt: skip

    for probability, posterior in walk(run_all, chunk=64):
        assert posterior.log_evidence is not None
        weight = probability * math.exp(posterior.log_evidence)
        for answer, share in zip(posterior.answers, posterior.probabilities, strict=True):
            mass[answer] += weight * share
    expected: dict[bytes, float] = defaultdict(float)
    for ids, p in target(lm, prompt, automaton, 3).items():
        expected[VOCABULARY.decode(ids)] += p
    assert mass == pytest.approx(dict(expected), abs=1e-10)
    assert lm.entered


class Tabled(smc.GCD):
    """Has tables of 40 bytes for each example, and so much room."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way = self.most = 0
        self.found: dict[int, smc.Posterior] = {}

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        return 40

    def start(self, batch: smc.Batch) -> smc.Walk:
        self.under_way += len(batch.budgets)
        self.most = max(self.most, self.under_way)
        return super().start(batch)

    def ended(self, found: dict[int, smc.Posterior]) -> None:
        self.under_way -= len(found)
        self.found.update(found)


@pytest.mark.parametrize(("max_bytes", "most"), [(100, 2), (0, 1)])
def test_tables_under_way_are_bounded(max_bytes: int, most: int) -> None:
    """Memory for lookahead and for automata decides who enters as rows do."""
    tabled = Tabled(max_bytes)
    sample(
        Watched(), range(9), proposal=tabled, particles=4, finished=tabled.ended, max_rows=1000,
        # Equal automata with equal budgets have one table, so here all are different.
        automata=[replace(automaton) for automaton in examples()["automata"]],
    )  # fmt: skip
    assert (tabled.under_way, tabled.most) == (0, most)
    assert sorted(tabled.found) == list(range(9))
    expected = sample(Watched(), range(9), proposal=smc.GCD(), particles=4)
    assert [timeless(tabled.found[i]) for i in range(9)] == [timeless(p) for p in expected]


def test_automata_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    automata = [replace(automaton) for automaton in examples()["automata"]]
    most = 3 * max(8 * automaton.delta.size for automaton in automata) // 2
    monkeypatch.setattr(smc.interface, "MOST_AUTOMATA", most)
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def observe(names: Sequence[int]) -> None:
        under_way.update(names)
        sizes[len(sizes)] = sum(8 * automata[name].delta.size for name in under_way)

    def finished(found: dict[int, smc.Posterior]) -> None:
        under_way.difference_update(found)

    sample(Watched(), range(9), proposal=smc.GCD(), particles=4, automata=automata,
           observe=observe, finished=finished)  # fmt: skip
    assert most // 2 < max(sizes.values()) <= most
    assert len(sizes) > 2


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 9))
def test_groups_keep_the_order_and_fit(weights: list[int], particles: int) -> None:
    room = Room(rows=20, automata=100, lookahead=math.inf)

    def needs(which: Sequence[int]) -> Room:
        return Room(particles * len(which), sum(weights[i] for i in which), 0)

    groups = in_groups(range(len(weights)), needs, room)
    assert [i for group in groups for i in group] == list(range(len(weights)))
    full = 20 // particles
    assert len(groups[0]) <= full
    for group in groups:
        assert len(group) == 1 or room.holds([needs(group)])
    for group, after in itertools.pairwise(groups):
        assert len(after) <= math.ceil(full / ENTERING)
        most = full if group is groups[0] else math.ceil(full / ENTERING)
        assert len(group) == most or not room.holds([needs([*group, after[0]])])


def reads(lm: ToyLM, turns: Sequence[Sequence[int]]) -> Steps[list[float]]:
    """Has rows of one prompt read runs, a turn after another; the last log-probabilities' sums."""
    rows, _ = lm.prefill([[len(turns)]])
    given: Any = rows
    held, found = torch.zeros(1, dtype=torch.int64), []
    for number, lengths in enumerate(turns):
        length = torch.tensor(lengths)
        ancestors = held[torch.arange(len(lengths)) % len(held)]
        runs = (torch.arange(max(lengths)) + length.unsqueeze(1) + number) % 3
        start, left = 0, length
        most = max(len(turn) for turn in turns[number:])
        while start < max(lengths):
            said = yield Reading(given, ancestors, runs[:, start:], left, most)
            width, given = said.shape[1], None
            for row, count in enumerate(left.clamp(max=width).tolist()):
                found.append(float(said[row, :count].exp().square().sum()))
            start, left = start + width, (left - width).clamp(min=0)
            ancestors = torch.arange(len(lengths))
        held = ancestors
    return found


TURNS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=0, max_size=5)


@settings(deadline=None, max_examples=30)
@given(st.lists(TURNS, min_size=1, max_size=7), st.integers(1, 12), st.sampled_from([6, 1 << 26]))
def test_groups_read_together_what_they_read_alone(
    groups: list[list[list[int]]], max_rows: int, most_read: int
) -> None:
    lm = Watched()
    expected = [alone(reads(Watched(), turns), 6) for turns in groups]
    under_way: list[int] = []

    def counted(number: int, turns: list[list[int]]) -> Steps[list[float]]:
        under_way.append(number)
        assert len(under_way) <= MOST_GROUPS
        found = yield from reads(lm, turns)
        under_way.remove(number)
        return found

    waiting = [
        Group(Room(max(map(len, turns), default=0), 0, 0), partial(counted, number, turns))
        for number, turns in enumerate(groups)
    ]
    before = smc.reading.MOST_READ
    smc.reading.MOST_READ = most_read
    try:
        found: Iterator[Any] = run(waiting, Room(max_rows, 1, 1), 6)
        results = {ended.number: ended.result for ended in found}
    finally:
        smc.reading.MOST_READ = before
    assert sorted(results) == list(range(len(groups)))
    for number, each in enumerate(expected):
        assert sum(results[number]) == pytest.approx(sum(each), abs=1e-12)
    largest = max((len(turn) for turns in groups for turn in turns), default=0)
    assert max([0, *lm.passes]) <= max(max_rows, largest)


def test_seconds_are_shared_out() -> None:
    started = time.perf_counter()
    found = sample(Watched(), range(9), proposal=smc.GCD(), particles=4, max_rows=16)
    elapsed = time.perf_counter() - started
    assert all(p.diagnostics.seconds > 0 for p in found)
    assert sum(p.diagnostics.seconds for p in found) <= elapsed


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    transformers = pytest.importorskip("transformers")
    return smc.TransformersLM(
        transformers.AutoModelForCausalLM.from_pretrained(STORIES),
        transformers.AutoTokenizer.from_pretrained(STORIES),
    )


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("algorithm", ["state", "discrete"])
@pytest.mark.parametrize("proposal", ["lcd", "gcd", "pgcd"])
def test_a_transformer_to_rounding(
    stories: smc.TransformersLM, proposal: str, algorithm: str, sharing: bool
) -> None:
    """In float32: the same tokens, weights to 1e-4, prompts shared or copied."""
    texts = ("Once upon a time", "Lily", "One day, a big red dog ran", "The", "Tim and Sam")
    languages = ("(the|a) (cat|dog|bird) (sat|ran)( away)?", "[a-z]{1,6} was happy", "yes|no")
    kinds = [lift(regex(language), stories.vocabulary) for language in languages]
    automata = [kinds[i % 3] for i in range(5)]
    budgets = [int(a.steps_to_accept[a.initial]) + 2 * i for i, a in enumerate(automata)]
    made: smc.Proposal = PROPOSALS[proposal]()
    if proposal == "pgcd":
        generator = torch.Generator().manual_seed(0)
        made = smc.PGCD(HMM.random(4, stories.vocabulary.size, generator=generator))
    lm = smc.TransformersLM(stories.model, stories.tokenizer)
    lm.__dict__["_shares"] = sharing
    options = {"proposal": made, "particles": 4, "seed": 2, **ALGORITHMS[algorithm]}
    found = smc.sample(lm, texts, automata, budget=budgets, max_rows=8, **options)
    for i, same in enumerate(found):
        (expected,) = smc.sample(
            lm, [texts[i]], automata[i], budget=budgets[i], example_ids=[i], **options
        )
        assert [s.ids for s in same.particles] == [s.ids for s in expected.particles]
        weights = [s.log_weight for s in expected.particles]
        assert [s.log_weight for s in same.particles] == pytest.approx(weights, abs=1e-4)


@pytest.mark.parametrize("sharing", [True, False])
def test_a_cache_that_rows_enter_and_leave_stays_small(
    stories: smc.TransformersLM, sharing: bool
) -> None:
    """Columns and prompts of rows that are gone go with them; what is read stays right."""
    lm = smc.TransformersLM(stories.model, stories.tokenizer)
    lm.__dict__["_shares"] = sharing
    rows, _ = lm.prefill([[1, 5, 9]])
    kept: list[list[int]] = [[1, 5, 9]]
    for turn in range(12):
        prompt = [1, *range(3, 4 + turn % 4)]
        more, _ = lm.prefill([prompt])
        rows.join(more)
        kept.append(prompt)
        lengths = torch.tensor([1 + (turn + r) % 3 for r in range(len(kept))])
        runs = torch.arange(3).expand(len(kept), 3) + turn + 20
        said = rows.extend(runs, lengths)
        kept = [old + runs[r, : lengths[r]].tolist() for r, old in enumerate(kept)]
        for r, tokens in enumerate(kept):
            with torch.inference_mode():
                expected = lm.model(torch.tensor([tokens])).logits[0, -1].log_softmax(dim=-1)
            torch.testing.assert_close(said[r, lengths[r] - 1], expected, atol=1e-4, rtol=0)
        if len(kept) > 2:  # the oldest leaves
            rows.reorder(torch.arange(1, len(kept)))
            kept = kept[1:]
            assert rows._width <= max(map(len, kept))
    assert len(rows.prompts().lengths) == len(kept)
    if sharing:
        assert len(rows._prompts.lengths) <= 2 * len(kept)  # type: ignore[attr-defined]
