"""P-GCD: unbiased weights for every option and every HMM, equal weights for the right HMM."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NoReturn
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smc
from gcd import (
    Automaton,
    AutomatonBatch,
    BudgetMask,
    ConstraintError,
    EmptyLanguageError,
    TokenAutomaton,
    Vocabulary,
    lift,
)
from hmm import HMM, lookahead_table
from hmm import _recursion as recursion
from smc import PGCD
from smc._proposals.twisted import TWISTS, belief_of
from smc._vocabulary.factors import LEAST_DEFENSE, defend
from smc._vocabulary.passes import TENSORS
from smc.testing import ToyLM
from tests.gcd.oracles import byte_automata, checked_inside_strategies, vocabularies
from tests.hmm.oracles import log_completed
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice, few_words
from tests.smc.walks import HMMAsLM, assert_exact, never, random_hmm

PROMPT = (0, 1)
OPTIONS = [
    {"lookahead": lookahead, "exact_top_k": k, "defense": defense}
    for lookahead, k, defense in itertools.product((*TWISTS, 0.3), (0, 2, None), (0.0, 0.1))
]


def parts(
    proposal: smc.Proposal, state: object, log_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log g' of every token, with the defensive mixture, and log Z."""
    factors = defend(proposal.guide(state, log_p), log_p)
    return factors.log_g, TENSORS.prepare_draws(factors, log_p).log_z


def reached(
    proposal: PGCD, automata: list[TokenAutomaton], budget: int, steps: int, seed: int = 0
) -> tuple[object, torch.Tensor]:
    """The state after steps of the proposal itself, and log-probabilities for the next one."""
    batch = smc.Batch(AutomatonBatch(automata), torch.full((len(automata),), budget))
    state = proposal.take(proposal.start(batch), torch.arange(len(automata)).repeat_interleave(5))
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps + 1):
        V = automata[0].vocabulary.size
        logits = torch.randn(
            len(state.model.predicted), V, generator=generator, dtype=torch.float64
        )
        log_p = (2 * logits).log_softmax(dim=1)
        if step < steps:
            q = (log_p + parts(proposal, state, log_p)[0]).softmax(dim=1).nan_to_num(0.0)
            running = state.position.running
            token = torch.multinomial(q + 1e-300, 1, generator=generator)
            state = proposal.advance(state, torch.where(running.unsqueeze(1), token, -1))
    return state, log_p


# -- unbiased --------------------------------------------------------------------------------


# A potential is computed after the guide, where two exact tokens behave like none or all: these
# two need particles that compete.
@pytest.mark.parametrize(
    ("options", "potential"),
    [(options, True) for options in OPTIONS]
    + [(options, False) for options in OPTIONS if options["exact_top_k"] == 2],
    ids=str,
)
def test_weights_sum_to_the_target(options: dict, potential: bool) -> None:
    proposal = PGCD(random_hmm(seed=7), **options)
    proposal.potential = potential
    particles = 2 if options["exact_top_k"] == 2 else 1
    assert_exact(few_words(), 3, proposal=proposal, particles=particles, resampling="systematic")


def test_the_other_scheme() -> None:
    proposal = PGCD(random_hmm(seed=7), exact_top_k=1)
    assert_exact(few_words(), 3, proposal=proposal, resampling="multinomial")


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("potential", [True, False])
def test_adaptive_resampling_and_temperature(name: str, potential: bool) -> None:
    proposal = PGCD(random_hmm(seed=9), exact_top_k=1, lookahead=0.3)
    proposal.potential = potential
    assert_exact(
        CONSTRAINTS[name](), 4, 0.5, proposal=proposal, particles=1, resampling="systematic"
    )
    assert_exact(CONSTRAINTS[name](), 3, 2.0, proposal=proposal, ess_threshold=0.7)


@pytest.mark.parametrize("options", OPTIONS[::2], ids=str)
@pytest.mark.parametrize("impossible", [[1], [3, 5], [0, 1, 2, 3, 5]])
def test_an_hmm_that_is_wrong(impossible: list[int], options: dict) -> None:
    """The HMM gives a token, the end, or everything probability zero; the weights are right."""
    for potential in (True, False) if options["exact_top_k"] == 2 else (True,):
        proposal = PGCD(never(impossible), **options)
        proposal.potential = potential
        assert_exact(few_words(), 3, proposal=proposal, particles=1)
        assert proposal.counts.fallbacks + proposal.counts.holes > 0


def test_a_language_that_ends_by_itself() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    for texts in (("",), ("ab", "b"), ("a", "bab")):
        automaton = lift(choice(*texts), vocabulary, eos="accept")
        proposal = PGCD(random_hmm(3), exact_top_k=1)
        assert_exact(automaton, 3, lm=ToyLM(vocabulary, seed=2), proposal=proposal)


# -- zero variance ---------------------------------------------------------------------------


def assert_equal_weights(
    automaton: TokenAutomaton, hmm: HMM, budget: int, particles: int = 16
) -> None:
    lm = HMMAsLM(automaton.vocabulary, hmm)
    proposal = PGCD(hmm, exact_top_k=None, defense=0)
    exactly = partial(lookahead_table, tolerance=0)  # no early stop at changes below 1e-6
    with mock.patch("smc._proposals.pgcd.lookahead_table", exactly):
        [found] = smc.sample(
            lm,
            [PROMPT],
            automaton,
            max_tokens=budget,
            particles=particles,
            proposal=proposal,
            algorithm="smc",
        )
    table = exactly(hmm, automaton, budget)
    expected = log_completed(
        table, hmm.initial.unsqueeze(0), torch.tensor([automaton.initial]), torch.tensor([budget])
    )
    assert found.ess == pytest.approx(particles, rel=1e-10)
    assert min(found.diagnostics.ess) == pytest.approx(particles, rel=1e-10)
    assert not any(found.diagnostics.resampled)
    assert found.complete
    for sample in found.particles:
        assert sample.log_weight == pytest.approx(float(expected), abs=1e-10)
    assert found.log_evidence == pytest.approx(float(expected), abs=1e-10)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_right_hmm_gives_equal_weights(name: str) -> None:
    for budget in (3, 4, 12):
        assert_equal_weights(CONSTRAINTS[name](), random_hmm(seed=budget), budget)


@checked_inside_strategies
@settings(max_examples=15)
@given(byte_automata(max_states=4), vocabularies(max_tokens=4), st.integers(0, 99))
def test_equal_weights_for_random_automata(
    language: Automaton, vocabulary: Vocabulary, seed: int
) -> None:
    try:
        automaton = lift(language, vocabulary)
    except EmptyLanguageError:
        return
    budget = automaton.fewest_tokens + seed % 4
    assert_equal_weights(automaton, random_hmm(vocabulary.size, seed=seed), budget, particles=4)


@pytest.mark.parametrize(
    "options",
    [{"lookahead": "joint"}, {"lookahead": "in_time"}, {"lookahead": 0.5}, {"defense": 0.3}],
)
def test_negative_control_of_equal_weights(options: dict) -> None:
    """Every other option has variance, even with the right HMM."""
    hmm = random_hmm(seed=1)
    proposal = PGCD(hmm, **{"exact_top_k": None, "defense": 0.0, **options})
    automaton = lift(choice("ab", "ba", "bbb", "aab", "bab"), VOCABULARY)
    [found] = sample_with(
        HMMAsLM(VOCABULARY, hmm),
        [PROMPT],
        automaton,
        max_tokens=4,
        particles=32,
        proposal=proposal,
        ess_threshold=0,
        algorithm="smc",
    )
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


def test_in_time_is_gcd_where_there_is_time() -> None:
    """All of a finite language fits, so g is one on the mask, regardless of the HMM."""
    proposal = PGCD(random_hmm(seed=6), lookahead="in_time", exact_top_k=2, defense=0)
    automaton = lift(choice("ab", "bbb", "abab"), VOCABULARY)
    for steps in range(3):
        state, log_p = reached(proposal, [automaton], 12, steps)
        log_g, _ = parts(proposal, state, log_p)
        mask = BudgetMask(state.position.automata, 12).mask(
            state.position.states, state.position.remaining
        )
        torch.testing.assert_close(log_g[mask], torch.zeros(int(mask.sum())).double())
        assert bool(log_g[~mask].isneginf().all())


def test_a_model_that_reads_its_prompt_is_better_served_in_time() -> None:
    """There are two continuations of equal length; one is rare under the HMM only.

    Particles that all take the same continuation have equal weights, so the evidence is compared.
    """
    emission = torch.full((VOCABULARY.size, 1), 1e-3, dtype=torch.float64)
    emission[VOCABULARY.token_bytes.index(b"b")] = 1
    plain = random_hmm(num_states=1)
    hmm = HMM(plain.initial, plain.transition, emission / emission.sum())
    automaton = lift(choice("aaaa", "bbbb"), VOCABULARY)
    evidence = {}
    for lookahead in TWISTS:
        proposal = PGCD(hmm, lookahead=lookahead, exact_top_k=None, defense=0)
        posteriors = sample_with(
            ToyLM(VOCABULARY),
            [PROMPT] * 50,
            automaton,
            max_tokens=5,
            particles=32,
            proposal=proposal,
            ess_threshold=0,
            algorithm="smc",
        )
        evidence[lookahead] = sum(found.log_evidence for found in posteriors) / 50
    assert evidence["in_time"] > evidence["conditional"] + 0.1


@pytest.mark.parametrize(
    ("impossible", "options"),
    [
        (tokens, options)
        for i, tokens in enumerate([[], [1], [3, 5], [0, 1, 2, 3, 5]])
        for options in OPTIONS[i % 2 :: 2]
    ],
    ids=str,
)
def test_support_and_normalizer(options: dict, impossible: list[int]) -> None:
    """The support is GCD's, and Z is the sum of p g, with and without the defensive mixture."""
    proposal = PGCD(never(impossible) if impossible else random_hmm(), **options)
    for steps in range(3):
        state, log_p = reached(proposal, [a_star_b(), few_words()], 4, steps, seed=steps)
        log_p[0, 1] = log_p[7, 0] = -torch.inf
        log_g, log_z = parts(proposal, state, log_p)
        mask = BudgetMask(state.position.automata, 4).mask(
            state.position.states, state.position.remaining
        )
        assert torch.equal(log_g > -torch.inf, mask)
        assert not log_g.isnan().any()
        torch.testing.assert_close(log_z, torch.logsumexp(log_p + log_g, dim=1))
        if options["lookahead"] == "conditional":
            assert (log_g <= 1e-12).all()


def test_the_defense_mixes_proposals_whatever_their_scale() -> None:
    """Q' = (1 - eps) q + eps q_gcd and Z' = Z, however small g is."""
    vocabulary = Vocabulary.from_bytes([bytes([b]) for b in range(1, 60)] + [b"$"], [59])
    automaton = lift(choice("\x01\x02\x03" * 20, "\x04\x05\x06" * 20), vocabulary)
    hmm = random_hmm(60)
    plain, defended = (PGCD(hmm, defense=eps, exact_top_k=None) for eps in (0.0, 0.2))
    state, log_p = reached(plain, [automaton], 61, 0)
    log_g, log_z = parts(plain, state, log_p)
    assert float(log_g.max()) < -100
    mixed, mixed_z = parts(defended, state, log_p)
    gcd = smc.GCD().guide(state.position, log_p)
    q, q_gcd = ((log_p + g).softmax(dim=1) for g in (log_g, gcd.log_g))
    torch.testing.assert_close((log_p + mixed).softmax(dim=1), 0.8 * q + 0.2 * q_gcd)
    torch.testing.assert_close(mixed_z, log_z)
    everything, _ = parts(PGCD(hmm, defense=1), state, log_p)
    torch.testing.assert_close((log_p + everything).softmax(dim=1), q_gcd)


def test_tokens_of_one_class_share_g_and_favorites_do_not() -> None:
    tokens = [b"a", b"b", b"c", b"d", b"e", b"$"]
    vocabulary = Vocabulary.from_bytes(tokens, [5])
    automaton = lift(choice(*(x + y for x in "abcde" for y in "abcde")), vocabulary)
    hmm = random_hmm(6, seed=2)
    state, log_p = reached(PGCD(hmm), [automaton], 3, 0)
    exact, _ = parts(PGCD(hmm, exact_top_k=None, defense=0), state, log_p)
    tied, _ = parts(PGCD(hmm, exact_top_k=0, defense=0), state, log_p)
    some, _ = parts(PGCD(hmm, exact_top_k=2, defense=0), state, log_p)
    assert (tied[:, :5] == tied[:, :1]).all()
    assert ((tied[:, 0] > exact[:, :5].amin(dim=1)) & (tied[:, 0] < exact[:, :5].amax(dim=1))).all()
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
        parts(silent, state, log_p),
        parts(smc.GCD(), state.position, log_p),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    assert silent.counts == (5, 5, 0)


@pytest.mark.parametrize("execution", ["eager", "static"])
def test_the_users_own_object_counts(execution: str) -> None:
    proposal = PGCD(never([3, 5]), defense=0)
    sample_with(
        ToyLM(VOCABULARY, seed=4),
        [(0,)],
        few_words(),
        max_tokens=4,
        particles=3,
        proposal=proposal,
        execution=execution,
        algorithm="smc",
    )
    assert proposal.counts.rows >= proposal.counts.fallbacks > 0


def test_answers_tell_how_often_the_hmm_had_nothing_to_say() -> None:
    lm, proposal = ToyLM(VOCABULARY, seed=4), PGCD(never([3, 5]), defense=0)
    automata = [few_words(), a_star_b()]
    found = smc.sample(
        lm, [(0,), (1,)], automata, max_tokens=4, particles=8, proposal=proposal, algorithm="smc"
    )
    assert sum(answer.diagnostics.fallbacks for answer in found) == proposal.counts.fallbacks > 0
    [gcd] = smc.sample(
        lm, [(0,)], automata[0], max_tokens=4, particles=8, proposal=smc.GCD(), algorithm="smc"
    )
    [good] = smc.sample(
        lm,
        [(0,)],
        automata[0],
        max_tokens=4,
        particles=8,
        proposal=PGCD(random_hmm()),
        algorithm="smc",
    )
    assert gcd.diagnostics.fallbacks == good.diagnostics.fallbacks == 0


def test_several_tokens_at_once() -> None:
    proposal = PGCD(random_hmm())
    state, _ = reached(proposal, [a_star_b()], 6, 0)
    runs = torch.tensor([[0, 0, 1], [0, 1, -1], [2, -1, -1], [-1, -1, -1], [0, -1, -1]])
    together = proposal.advance(state, runs)
    for row, run in enumerate(runs.tolist()):
        alone = proposal.take(state, torch.tensor([row]))
        for token in run:
            if token >= 0:
                alone = proposal.advance(alone, torch.tensor([[token]]))
        torch.testing.assert_close(together.model.predicted[row], alone.model.predicted[0])
        assert together.position.states[row] == alone.position.states[0]
    assert torch.equal(proposal.advance(state, runs[:, :0]).model.predicted, state.model.predicted)


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
    assert found.log_evidence is not None
    assert math.isfinite(found.log_evidence)
    assert proposal.counts.fallbacks == 0


@pytest.mark.parametrize("lookahead", TWISTS)
def test_any_number_of_threads_gives_the_same(
    lookahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are computed inside a sampler, in inference mode, with several threads."""
    monkeypatch.setattr(recursion, "_TOGETHER", 1)
    automata, before = [few_words(), a_star_b(), few_words()], torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                smc.sample(
                    ToyLM(VOCABULARY, seed=1),
                    [PROMPT] * 3,
                    automata,
                    max_tokens=[4, 6, 5],
                    particles=8,
                    proposal=PGCD(random_hmm(), lookahead=lookahead, exact_top_k=2),
                    algorithm="smc",
                )
            )
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert one.log_evidence == same.log_evidence
            assert one.particles == same.particles


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked_annotations")
def test_bad_hmms() -> None:
    hmm = random_hmm()
    with pytest.raises(ValueError, match="emission"):
        PGCD(HMM(hmm.initial, hmm.transition, hmm.emission * 2))
    with pytest.raises(ValueError, match="initial"):
        PGCD(HMM(hmm.initial * torch.nan, hmm.transition, hmm.emission))
    with pytest.raises(ValueError, match=r"got str.*hmm\.load"):
        PGCD("models/some-hmm")  # type: ignore[arg-type]


class Untouched(ToyLM):
    """A language model that must not be called."""

    def prefill(self, prompts: object) -> NoReturn:
        raise AssertionError("the language model was asked")


@pytest.mark.parametrize("max_rows", [2, 256])
def test_what_the_hmm_refuses_is_refused_before_any_work(max_rows: int) -> None:
    """Also if only a later batch of examples would fail."""
    automata = [few_words(), few_words(), lift(choice("ab" * 40), VOCABULARY)]
    small = max(lookahead_table(random_hmm(), each, 3).num_bytes for each in automata[:2])
    for proposal, message in (
        (PGCD(random_hmm(9)), "over 6 tokens.*got one over 9"),
        (PGCD(random_hmm(), max_bytes=2 * small), r"MiB for .* states"),
    ):
        with pytest.raises(ConstraintError, match=message):
            smc.sample(
                Untouched(VOCABULARY),
                [(0,), (0,), (0, 1)],
                automata,
                max_tokens=[4, 4, 90],
                particles=2,
                proposal=proposal,
                max_rows=max_rows,
                algorithm="smc",
            )
