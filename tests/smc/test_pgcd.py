"""Twisted proposals: P-GCD and its cached tables, and the protocol of lookaheads."""

from __future__ import annotations

import copy
import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import pytest
import torch

import smc
from gcd import AutomatonBatch, ConstraintError, TokenAutomaton, Vocabulary, lift
from hmm import HMM, lookahead_table
from smc import PGCD, AutomatonPosition
from smc._proposals import pgcd
from smc._proposals.pgcd import TableCache
from smc._proposals.twisted import TWISTS, belief_of
from smc._vocabulary.factors import LEAST_DEFENSE, defend
from smc._vocabulary.passes import TENSORS
from smc.testing import ToyLM, check_lookahead, target
from tests.hmm.oracles import log_completed
from tests.smc.calls import sample_with
from tests.smc.cases import LANGUAGES, PLAIN, automaton_of
from tests.smc.matrix import covering
from tests.smc.rules import Guess
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice, few_words
from tests.smc.walks import PROMPT, HMMAsLM, never, random_hmm


def parts(
    proposal: smc.Proposal, state: object, log_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log g' of every token, with the defensive mixture, and log Z."""
    factors = defend(proposal.guide(state, log_p), log_p)
    return factors.log_g, TENSORS.prepare_draws(factors, log_p).log_z


def reached(
    proposal: PGCD, automata: list[TokenAutomaton], budget: int, steps: int
) -> tuple[object, torch.Tensor]:
    """The state after steps of the proposal itself, and log-probabilities for the next one."""
    batch = smc.Batch(AutomatonBatch(automata), torch.full((len(automata),), budget))
    state = proposal.take(proposal.start(batch), torch.arange(len(automata)).repeat_interleave(5))
    generator = torch.Generator().manual_seed(0)
    for step in range(steps + 1):
        shape = (len(state.model.predicted), automata[0].vocabulary.size)
        logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        log_p = (2 * logits).log_softmax(dim=1)
        if step < steps:
            q = (log_p + parts(proposal, state, log_p)[0]).softmax(dim=1).nan_to_num(0.0)
            running = state.position.running
            token = torch.multinomial(q + 1e-300, 1, generator=generator)
            state = proposal.advance(state, torch.where(running.unsqueeze(1), token, -1))
    return state, log_p


# -- zero variance ---------------------------------------------------------------------------


EXACT: dict[str, Any] = {"exact_top_k": None, "defense": 0}


def assert_equal_weights(
    automaton: TokenAutomaton, budget: int, seed: int, **options: Any
) -> smc.Posterior:
    """Compare weights in and between all steps with the evidence; return the result."""
    hmm = random_hmm(automaton.vocabulary.size, seed=seed)
    lm = HMMAsLM(automaton.vocabulary, hmm)
    weights: list[torch.Tensor] = []
    exactly = partial(lookahead_table, tolerance=0)  # no early stop at changes below 1e-6
    with mock.patch("smc._proposals.pgcd.lookahead_table", exactly):
        [found] = sample_with(
            lm, [PROMPT], automaton, max_tokens=budget, proposal=PGCD(hmm, **EXACT),
            observe=lambda _: lambda seen: weights.extend([seen.log_weight, seen.after.log_weight]),
            **{"particles": 8, "algorithm": "smc", **options},
        )  # fmt: skip
    evidence = sum(target(lm, PROMPT, automaton, budget).values())
    assert found.complete
    assert found.log_evidence == pytest.approx(math.log(evidence), abs=1e-9)
    if found.algorithm == "smc":
        for each in weights:
            assert each.exp().tolist() == pytest.approx([evidence] * 8, rel=1e-10)
        assert list(found.diagnostics.ess) == pytest.approx([8] * len(found.diagnostics.ess))
    return found


ALGORITHMS: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "all": {"ess_threshold": 1.0, "strata": "none"},
    "strata": {"ess_threshold": 1.0},
    # Scores sum to the evidence before and after every selection.
    "discrete": {"algorithm": "discrete", "particles": 2, **PLAIN},
}
AUTOMATA = {**CONSTRAINTS, **{name: partial(automaton_of, name) for name in LANGUAGES}}
ROWS = covering(
    constraint=[*AUTOMATA], algorithm=[*ALGORITHMS], forced_runs=[True, False], slack=[1, 2, 5]
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(map(str, row.values())))
def test_the_right_model_gives_equal_weights(row: dict[str, Any]) -> None:
    """Also between steps: after a forced run psi is g of its last token."""
    automaton = AUTOMATA[row["constraint"]]()
    budget = automaton.fewest_tokens + row["slack"]
    found = assert_equal_weights(
        automaton, budget, row["slack"], forced_runs=row["forced_runs"],
        **ALGORITHMS[row["algorithm"]],
    )  # fmt: skip
    assert row["forced_runs"] or found.diagnostics.forced == 0
    assert row["algorithm"] != "adaptive" or not any(found.diagnostics.resampled)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, {"lookahead": "joint"}), (1, {"lookahead": "in_time"}), (1, {"lookahead": 0.5}),
        (1, {"defense": 0.3}), (2, {}),
    ],
)  # fmt: skip
def test_negative_control_of_equal_weights(seed: int, options: dict[str, Any]) -> None:
    """Every other option has variance, and so has another model."""
    proposal = PGCD(random_hmm(seed=seed), **{**EXACT, **options})
    [found] = sample_with(
        HMMAsLM(VOCABULARY, random_hmm(seed=1)),
        [PROMPT], lift(choice("ab", "ba", "bbb", "aab", "bab"), VOCABULARY), max_tokens=4,
        particles=32, proposal=proposal, ess_threshold=0, algorithm="smc",
    )  # fmt: skip
    assert found.ess < 32 - 1e-6


# -- the guide -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("lookahead", [*TWISTS, 0, 0.3, 1])
def test_the_exact_form(lookahead: str | float, steps: int) -> None:
    """G equals `log_completed` one token later; with K = V the tied form is the same."""
    hmm = random_hmm(seed=6)
    exact = PGCD(hmm, lookahead=lookahead, exact_top_k=None, defense=0)
    state, log_p = reached(exact, [a_star_b(), few_words()], 5, steps)
    log_g, log_z = parts(exact, state, log_p)
    table, position = state.model.table, state.position
    belief = belief_of("lookahead", lookahead)
    assert belief is None or 0 <= belief <= 1
    near = 1e-10 if belief in (None, 1) else 1e-4  # the other denominators are limits
    for token in range(VOCABULARY.size):
        tokens = torch.full((len(log_p), 1), token)
        after = exact.advance(state, tokens)
        expected = log_completed(
            table, after.model.predicted, after.position.states, position.remaining - 1
        )
        if lookahead == "joint":
            expected = expected + (state.model.predicted @ hmm.emission[token]).log()
        if belief is not None and belief < 1:
            endless = torch.full_like(position.remaining, 10**6)
            completed = log_completed(
                table.without_budget, after.model.predicted, after.position.states, endless
            )
            expected -= (1 - belief) * torch.where(expected.isneginf(), 0.0, completed)
        # An ended prefix has no next token.
        expected = torch.where(position.running | position.finished, expected, -torch.inf)
        running = position.running
        torch.testing.assert_close(log_g[running, token], expected[running], rtol=0, atol=near)
    tied = PGCD(hmm, lookahead=lookahead, exact_top_k=VOCABULARY.size, defense=0)
    for mine, other in zip(parts(tied, state, log_p), (log_g, log_z), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


def test_tokens_of_one_class_share_g_and_favorites_do_not() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"c", b"d", b"e", b"$"], [5])
    automaton = lift(choice(*(x + y for x in "abcde" for y in "abcde")), vocabulary)
    hmm = random_hmm(6, seed=2)
    state, log_p = reached(PGCD(hmm), [automaton], 3, 0)
    exact, tied, some = (
        parts(PGCD(hmm, exact_top_k=k, defense=0), state, log_p)[0] for k in (None, 0, 2)
    )
    assert (tied[:, :5] == tied[:, :1]).all()
    mass = (state.model.predicted @ hmm.emission[:5].T).log()
    shared = (mass + exact[:, :5]).logsumexp(dim=1) - mass.logsumexp(dim=1)
    torch.testing.assert_close(tied[:, 0], shared)
    best = torch.zeros_like(tied, dtype=torch.bool).scatter(
        1, log_p[:, :5].topk(2, dim=1).indices, True
    )
    best[:, 5] = tied[:, 5] == -torch.inf
    torch.testing.assert_close(some[best], exact[best])
    torch.testing.assert_close(some[~best], tied[~best])


def test_what_the_hmm_cannot_say_is_counted() -> None:
    """A prefix that is impossible under the HMM: GCD; a token only: the least defense."""
    proposal = PGCD(never([0]), defense=0)
    state, log_p = reached(proposal, [few_words()], 4, 0)
    log_g, log_z = parts(proposal, state, log_p)
    assert proposal.counts == (5, 0, 5)
    allowed = log_p.masked_fill(log_g.isneginf(), -torch.inf)
    even = log_z - allowed.logsumexp(dim=1)
    torch.testing.assert_close(log_g[:, 0], even + math.log(LEAST_DEFENSE))
    lost = proposal.advance(state, torch.zeros(5, 1, dtype=torch.int64))
    assert not lost.model.predicted.any()
    log_g, log_z = parts(proposal, lost, log_p)
    # After "a" the end has g = 1, regardless of the HMM, which has no information about "b".
    assert (log_g[:, 3] > log_g[:, 1]).all()
    assert proposal.counts == (10, 0, 10)
    again = proposal.advance(state, torch.tensor([[1, 0]] * 5))
    before = proposal.counts
    log_g, log_z = parts(proposal, again, log_p)
    assert (log_g[:, [3, 5]] == 0).all()
    assert proposal.counts.rows == before.rows + 5
    silent = PGCD(never([3, 5]), defense=0)
    state, log_p = reached(silent, [few_words()], 4, 0)
    for mine, other in zip(
        parts(silent, state, log_p), parts(smc.GCD(), state.position, log_p), strict=True
    ):
        torch.testing.assert_close(mine, other)
    assert silent.counts == (5, 5, 0)


def test_a_long_literal_in_float32() -> None:
    """200 tokens with a probability of at most 1e-300 under the HMM cause no fallback."""
    vocabulary = Vocabulary.from_bytes([bytes([b]) for b in range(1, 250)] + [b"$"], [249])
    texts = ["".join(chr(1 + (k * i) % 120) for i in range(200)) for k in (1, 7)]
    automaton = lift(choice(*texts), vocabulary)
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(32, 250, generator=generator, concentration=0.2)
    proposal = PGCD(hmm)
    lm = ToyLM(vocabulary)
    [found] = smc.sample(
        lm, [(0,)], automaton, max_tokens=201, particles=4, proposal=proposal, algorithm="smc"
    )
    assert found.complete
    assert math.isfinite(found.log_evidence)
    assert proposal.counts.fallbacks == 0


@pytest.mark.parametrize("exact_top_k", [0, None])
def test_joint_twists_sum_to_the_chance_of_completion(exact_top_k: int | None) -> None:
    """The joint value of a class is divided among its tokens, which the weights don't test."""
    for name, budget in (("a_star_b", 4), ("few_words", 5)):
        lookahead = smc.HMMLookahead(random_hmm(seed=2))
        proposal = smc.Twisted(lookahead, twist="joint", exact_top_k=exact_top_k, defense=0)
        batch = smc.Batch(AutomatonBatch([CONSTRAINTS[name]()]), torch.tensor([budget]))
        state = proposal.start(batch)
        log_p = torch.full((1, VOCABULARY.size), -1.0, dtype=torch.float64)
        every = torch.arange(VOCABULARY.size).unsqueeze(0)
        expected = lookahead.all_tokens(state.model, state.position).log_joint
        late = state.position.steps_after_tokens(every) >= budget
        total = expected.masked_fill(late, -torch.inf).logsumexp(dim=1)
        assert proposal.guide(state, log_p).log_g.logsumexp(dim=1) == pytest.approx(total)


# -- the laws of a lookahead -----------------------------------------------------------------


class Late(smc.HMMLookahead):
    """Wrong: assume one token more than the budget."""

    def start(self, batch: smc.Batch) -> Any:
        return super().start(smc.Batch(batch.automata, batch.budgets + 1))

    def _expect(
        self, expect: Any, state: Any, position: AutomatonPosition, *tokens: torch.Tensor
    ) -> smc.Expectation:
        later = position._replace(remaining=position.remaining + 1)
        return super()._expect(expect, state, later, *tokens)


class Forgetful(smc.HMMLookahead):
    """Wrong: forget the previous tokens."""

    def advance(self, state: Any, tokens: torch.Tensor) -> Any:
        return state


class Uneven(smc.HMMLookahead):
    """Wrong: use the most probable token of a class."""

    def classes(self, state: Any, position: AutomatonPosition) -> smc.Expectation:
        class_of = position.automata.classes.of[position.automaton_of_row].long()
        each, C = self.all_tokens(state, position), int(position.automata.num_classes.max())
        zero = torch.zeros(len(class_of), C, dtype=torch.float64)
        return smc.Expectation(
            *(zero.scatter_reduce(1, class_of, x.exp(), "amax").log() for x in each[:2])
        )


@pytest.mark.parametrize("eventual", [False, True])
@pytest.mark.parametrize("impossible", [[], [1], [3, 5]])
def test_a_lookahead_obeys_the_laws(impossible: list[int], eventual: bool) -> None:
    model = smc.HMMLookahead(never(impossible), eventual=eventual)
    for make in CONSTRAINTS.values():
        assert check_lookahead(model, make(), 5, tolerance=1e-4) > 2  # tolerance of its table


@pytest.mark.parametrize("wrong", [Late, Forgetful, Uneven])
def test_negative_control_of_the_laws(wrong: type[smc.HMMLookahead]) -> None:
    with pytest.raises(AssertionError, match="joint"):
        check_lookahead(wrong(random_hmm(seed=1)), a_star_b(), 5, tolerance=1e-4)


class NoNumbers(smc.HMMLookahead):
    """A lookahead that expects NaN."""

    def all_tokens(self, state: Any, position: AutomatonPosition) -> smc.Expectation:
        found = super().all_tokens(state, position)
        return smc.Expectation(found.log_joint * torch.nan, found.log_mass * torch.nan)


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(FloatingPointError, match=r"HMMLookahead.*got NaN"):
        smc.sample(
            ToyLM(VOCABULARY), [PROMPT], few_words(), max_tokens=4, particles=2,
            proposal=smc.Twisted(NoNumbers(random_hmm()), exact_top_k=None),
        )  # fmt: skip


# -- the rest of the protocol ----------------------------------------------------------------


class Picky(Guess):
    """A lookahead that rejects constraints and keeps its tables."""

    max_bytes = 100
    freed = False

    def check(self, automata: object, budgets: object) -> NoReturn:
        raise ConstraintError("the table takes 7 GiB")

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        return 7 * budget

    def free(self) -> None:
        self.freed = True


def test_what_a_lookahead_refuses_is_refused() -> None:
    proposal = smc.Twisted(Picky())
    with pytest.raises(ConstraintError, match="7 GiB"):
        smc.sample(
            ToyLM(VOCABULARY), [PROMPT], few_words(), max_tokens=4, particles=2, proposal=proposal
        )
    assert proposal.max_bytes == 100
    assert proposal.memory(few_words(), 4) == 28
    proposal.free()
    assert proposal.lookahead.freed


def test_members_that_need_not_be_given() -> None:
    """Without them a lookahead or a proposal rejects nothing and keeps no tables."""
    for proposal in (smc.LM(), smc.LCD(), smc.GCD(), smc.Twisted(Guess())):
        proposal.check([few_words()], [1])
        proposal.free()
        assert proposal.memory(few_words(), 4) == 0
        assert proposal.max_bytes is None


# -- cached tables ---------------------------------------------------------------------------------


HMM_ = random_hmm()


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


def test_a_table_lasts_as_long_as_its_automata_and_belongs_to_its_hmm(built: list[int]) -> None:
    cache, batch = TableCache(1 << 30, eventual=True), AutomatonBatch([few_words()])
    other = random_hmm(seed=1)
    for hmm in (HMM_, other, HMM_):
        assert cache.table(hmm, batch, [4]).hmm is hmm
    assert built == [1, 1]
    copied = copy.deepcopy(cache)
    assert (copied.max_bytes, copied.eventual, copied.num_bytes) == (1 << 30, True, 0)
    copied.table(HMM_, batch, [4])
    assert len(built) == 3
    cache.clear()
    assert cache.num_bytes == 0
    cache.table(HMM_, batch, [4])
    assert len(built) == 4
    del batch
    gc.collect()
    assert cache.num_bytes == copied.num_bytes == 0


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
        size *= 2
    assert refusals[0] is None


def test_another_call_computes_no_table(built: list[int]) -> None:
    proposal, automata = smc.PGCD(HMM_), [few_words(), a_star_b()]
    for options in ({"particles": 2}, {"particles": 8, "algorithm": "smc"}):
        sample_with(
            ToyLM(VOCABULARY), [(0,), (1,)], automata, max_tokens=[4, 5], proposal=proposal,
            **options,
        )  # fmt: skip
    assert built == [2]
