"""Cached tables: same values, found again, bounded, and freed with their automata."""

from __future__ import annotations

import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

import smc
from gcd import AutomatonBatch, ConstraintError, lift
from hmm import HMM, lookahead_table
from smc._proposals import pgcd
from smc._proposals.pgcd import TableCache
from smc.testing import ToyLM
from tests.hmm.oracles import log_completed
from tests.smc.calls import sample_with
from tests.smc.toys import VOCABULARY, a_star_b, choice, few_words

HMM_ = HMM.random(
    4, VOCABULARY.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of automata of each computed table."""
    sizes: list[int] = []

    def counted(hmm: HMM, batch: AutomatonBatch, *rest: object, **options: object) -> object:
        sizes.append(len(batch))
        return lookahead_table(hmm, batch, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pgcd, "lookahead_table", counted)
    return sizes


def test_a_batch_whose_automata_and_budgets_are_known_is_served(built: list[int]) -> None:
    automata = [few_words(), a_star_b(), lift(choice("abb", "bba"), VOCABULARY)]
    cache = TableCache(1 << 30, eventual=True)
    cache.table(HMM_, AutomatonBatch(automata), [4, 6, 5])
    for which in ([0, 1, 2], [2], [1, 0], [1, 1, 2]):
        batch = AutomatonBatch([automata[i] for i in which])
        budgets = [[4, 6, 5][i] for i in which]
        found = cache.table(HMM_, batch, budgets)
        fresh = lookahead_table(HMM_, batch, 8, eventual=True)
        rows = torch.arange(len(which))
        place = (HMM_.initial.expand(len(which), -1), batch.initial[rows], torch.tensor(budgets))
        for mine, other in ((found, fresh), (found.without_budget, fresh.without_budget)):
            torch.testing.assert_close(
                log_completed(mine, *place), log_completed(other, *place), rtol=1e-12, atol=0
            )
    assert built == [3]
    cache.table(HMM_, AutomatonBatch(automata[:1]), [5])  # another budget
    cache.table(HMM_, AutomatonBatch([few_words()]), [4])  # another automaton
    assert built == [3, 1, 1]


def test_the_bound_and_the_least_recently_used_entry(built: list[int]) -> None:
    automata = [AutomatonBatch([few_words()]) for _ in range(3)]
    size = lookahead_table(HMM_, automata[0], 3, budgets=[[4]]).num_bytes
    cache = TableCache(2 * size)
    for batch in (automata[0], automata[1], automata[0], automata[2], automata[0], automata[1]):
        cache.table(HMM_, batch, [4])
        assert cache.num_bytes <= cache.max_bytes
    assert len(built) == 4, "0, 1, 2, and 1 again"
    with pytest.raises(ConstraintError, match="MiB"):
        TableCache(size // 2).table(HMM_, automata[0], [4])


def test_a_table_can_be_given_back(built: list[int]) -> None:
    cache, batch = TableCache(1 << 30), AutomatonBatch([few_words()])
    cache.table(HMM_, batch, [4])
    cache.clear()
    assert cache.num_bytes == 0
    cache.table(HMM_, batch, [4])
    assert len(built) == 2


def test_threads_that_ask_for_the_same_table_make_it_once(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, batch = TableCache(1 << 30), AutomatonBatch([few_words()])
    meeting, make = threading.Barrier(2), pgcd.lookahead_table

    def met(*args: object, **options: object) -> object:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)  # gives the other thread time to arrive
        return make(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pgcd, "lookahead_table", met)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: cache.table(HMM_, batch, [4]), range(2)))
    assert len(built) == 1
    assert torch.equal(found[0].class_emission, found[1].class_emission)


def test_a_copy_of_a_proposal_makes_its_own_tables(built: list[int]) -> None:
    cache, batch = TableCache(1 << 30, eventual=True), AutomatonBatch([few_words()])
    cache.table(HMM_, batch, [4])
    copied = copy.deepcopy(cache)
    assert (copied.max_bytes, copied.eventual, copied.num_bytes) == (1 << 30, True, 0)
    copied.table(HMM_, batch, [4])
    assert len(built) == 2


@pytest.mark.parametrize("eventual", [False, True])
def test_what_would_be_refused_is_known_without_a_table(built: list[int], eventual: bool) -> None:
    """The check and the table agree on every bound."""
    automata, budgets = [few_words(), a_star_b(), few_words()], [4, 7, 5]
    size = 1
    while size < 1 << 20:
        cache = TableCache(size, eventual=eventual)
        refusals = []
        for attempt in (
            lambda cache=cache: cache.check(HMM_, automata, budgets),
            lambda cache=cache: cache.table(HMM_, AutomatonBatch(automata), budgets),
        ):
            try:
                attempt()
                refusals.append(None)
            except ConstraintError as error:
                refusals.append(str(error))
        assert refusals[0] == refusals[1]
        size = int(size * 1.3) + 1
    assert refusals[0] is None


def test_a_table_goes_with_its_automata() -> None:
    cache = TableCache(1 << 30)
    batch = AutomatonBatch([few_words()])
    cache.table(HMM_, batch, [4])
    assert cache.num_bytes > 0
    del batch
    gc.collect()
    assert cache.num_bytes == 0


def test_another_call_computes_no_table(built: list[int]) -> None:
    automata, lm = [few_words(), a_star_b()], ToyLM(VOCABULARY, seed=4)
    proposal = smc.PGCD(HMM_)
    for particles in (2, 8):
        for options in ({}, {"resampling": "multinomial", "ess_threshold": 1}):
            sample_with(
                lm,
                [(0,), (1,)],
                automata,
                max_tokens=[4, 5],
                particles=particles,
                proposal=proposal,
                **{"algorithm": "smc", **options},  # type: ignore[arg-type]
            )
    assert built == [2]


def test_a_table_is_that_of_its_hmm(built: list[int]) -> None:
    automaton, cache = few_words(), TableCache(1 << 30)
    batch = AutomatonBatch([automaton])
    other = HMM.random(
        4, VOCABULARY.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    for hmm in (HMM_, other, HMM_):
        assert cache.table(hmm, batch, [4]).hmm is hmm
    assert built == [1, 1]
