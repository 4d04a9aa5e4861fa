"""Lookahead with any tractable model, tested with a bigram model over tokens."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import pytest
import torch

import smc
from gcd import (
    AutomatonBatch,
    ConstraintError,
    TokenAutomaton,
    Vocabulary,
    lift,
)
from hmm import HMM
from smc import AutomatonPosition
from smc._proposals.twisted import TWISTS
from smc._vocabulary.factors import LEAST_DEFENSE, defend
from smc.testing import ToyLM, check_lookahead, target
from tests.smc.calls import sample_with
from tests.smc.cases import LANGUAGES, automaton_of, budget_of
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice, few_words
from tests.smc.walks import PROMPT, assert_exact


class Last(NamedTuple):
    """P(completed within r | state, last token), [r, state, token], and the last tokens."""

    beta: torch.Tensor
    token: torch.Tensor


class Bigram(smc.Lookahead[Last]):
    """Log p(next token | last token), one row per token and a last row for the beginning.

    Eventual completion is computed as completion within `long` tokens, so languages must be
    shorter.
    """

    eventual = True

    def __init__(self, log_p: torch.Tensor, long: int = 20) -> None:
        self.log_p, self.long = log_p, long

    def start(self, batch: smc.Batch) -> Last:
        automata, V = batch.automata, self.log_p.shape[1]
        states = torch.arange(automata.num_states).unsqueeze(1).expand(-1, V)
        after = automata.next(states, torch.arange(V).expand_as(states))
        beta = [automata.is_final.double().unsqueeze(1).expand(-1, V + 1)]
        for _ in range(max(self.long, int(batch.budgets.max()))):
            joint = torch.where(after >= 0, beta[-1][after.clamp(min=0), torch.arange(V)], 0.0)
            level = joint @ self.log_p.exp().T
            beta.append(torch.where(automata.is_final.unsqueeze(1), 1.0, level))
        return Last(torch.stack(beta), torch.full((len(automata),), V))

    def take(self, state: Last, ancestors: torch.Tensor) -> Last:
        return state._replace(token=state.token[ancestors])

    def advance(self, state: Last, tokens: torch.Tensor) -> Last:
        for token in tokens.unbind(dim=1):
            state = state._replace(token=torch.where(token >= 0, token, state.token))
        return state

    def tokens(
        self, state: Last, position: AutomatonPosition, tokens: torch.Tensor
    ) -> smc.Expectation:
        after = position.automata.next(position.states.unsqueeze(1).expand_as(tokens), tokens)
        left = (position.remaining - 1).clamp(min=0).unsqueeze(1)
        log_mass = self.log_p[state.token].gather(1, tokens)
        in_time, ever = (
            torch.where(after >= 0, state.beta[r, after.clamp(min=0), tokens], 0.0).log() + log_mass
            for r in (left, torch.full_like(left, self.long))
        )
        return smc.Expectation(in_time, log_mass, ever)

    def classes(self, state: Last, position: AutomatonPosition) -> smc.Expectation:
        class_of = position.automata.classes.of[position.automaton_of_row].long()
        each, C = self.all_tokens(state, position), int(position.automata.num_classes.max())
        zero = torch.zeros(len(class_of), C, dtype=torch.float64)
        return smc.Expectation(*(zero.scatter_add(1, class_of, x.exp()).log() for x in each))


def table(vocabulary: Vocabulary, seed: int = 0, never: tuple[int, ...] = ()) -> torch.Tensor:
    """A random bigram model; the tokens in `never` are impossible."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocabulary.size + 1, vocabulary.size)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[:, list(never)] = -torch.inf
    return logits.log_softmax(dim=1)


class BigramLM(ToyLM):
    """The same model as a language model that ignores its prompt."""

    def __init__(self, vocabulary: Vocabulary, bigram: torch.Tensor) -> None:
        super().__init__(vocabulary)
        self.bigram = bigram

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        return self.bigram[tokens[-1] if len(tokens) > len(PROMPT) else -1]


# -- zero variance ---------------------------------------------------------------------------


def assert_equal_weights(automaton: TokenAutomaton, budget: int, seed: int) -> None:
    bigram = table(automaton.vocabulary, seed)
    lm = BigramLM(automaton.vocabulary, bigram)
    proposal = smc.Twisted(Bigram(bigram), exact_top_k=None, defense=0)
    [found] = smc.sample(
        lm, [PROMPT], automaton, max_tokens=budget, particles=8, proposal=proposal, algorithm="smc"
    )
    evidence = sum(target(lm, PROMPT, automaton, budget).values())
    expected = float(torch.tensor(evidence, dtype=torch.float64).log())
    assert found.complete
    for particle in found.particles:
        assert particle.log_weight == pytest.approx(expected, abs=1e-10)
    assert found.log_evidence == pytest.approx(expected, abs=1e-10)
    assert min(found.diagnostics.ess) == pytest.approx(8, rel=1e-10)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("budget", [3, 4, 6])
def test_the_right_model_gives_equal_weights(name: str, budget: int) -> None:
    assert_equal_weights(CONSTRAINTS[name](), budget, seed=budget)


@pytest.mark.parametrize("forced_runs", [True, False])
@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_in_no_step_do_weights_differ_forced_runs_included(
    language: str, strata: str, forced_runs: bool
) -> None:
    """Also between steps: after a forced run psi is g of its last token."""
    automaton = automaton_of(language)
    budget = budget_of(automaton) + 1
    bigram = table(automaton.vocabulary, seed=4)
    lm = BigramLM(automaton.vocabulary, bigram)
    weights: list[torch.Tensor] = []
    [found] = sample_with(
        lm, [PROMPT], automaton, max_tokens=budget, particles=8, strata=strata, ess_threshold=1.0,
        proposal=smc.Twisted(Bigram(bigram), exact_top_k=None, defense=0),
        forced_runs=forced_runs,
        observe=lambda _: lambda seen: weights.extend([seen.log_weight, seen.after.log_weight]),
        algorithm="smc",
    )  # fmt: skip
    evidence = sum(target(lm, PROMPT, automaton, budget).values())
    for each in weights:
        assert each.exp().tolist() == pytest.approx([evidence] * 8, rel=1e-10)
    assert list(found.diagnostics.ess) == pytest.approx([8] * len(found.diagnostics.ess), rel=1e-10)
    assert (found.diagnostics.forced > 0) == forced_runs


@pytest.mark.parametrize("options", [{"twist": "joint"}, {"twist": 0.5}, {"seed": 1}])
def test_negative_control_of_equal_weights(options: dict) -> None:
    """Another twist, or another model, has variance."""
    lm = BigramLM(VOCABULARY, table(VOCABULARY))
    model = Bigram(table(VOCABULARY, options.pop("seed", 0)))
    proposal = smc.Twisted(model, exact_top_k=None, defense=0, **options)
    [found] = sample_with(
        lm,
        [PROMPT],
        few_words(),
        max_tokens=4,
        particles=32,
        proposal=proposal,
        ess_threshold=0,
        algorithm="smc",
    )
    assert found.ess < 32 - 1e-6


# -- unbiased weights, exact support ---------------------------------------------------------


@pytest.mark.parametrize("twist", TWISTS)
@pytest.mark.parametrize(
    ("exact_top_k", "never"), [(0, ()), (1, ()), (None, ()), (0, (1,)), (1, (3, 5)), (None, (3, 5))]
)
def test_weights_sum_to_the_target(
    twist: str, exact_top_k: int | None, never: tuple[int, ...]
) -> None:
    """Use another kind of language model, and wrong lookaheads."""
    # Without a potential the code is the same for every number of exact tokens.
    for potential in (True, False) if exact_top_k == 1 else (True,):
        proposal = smc.Twisted(
            Bigram(table(VOCABULARY, 3, never)), twist=twist, exact_top_k=exact_top_k
        )
        proposal.potential = potential
        assert_exact(few_words(), 3, proposal=proposal, resampling="systematic")
        assert (proposal.counts.fallbacks + proposal.counts.holes > 0) == bool(never)


def test_classes_share_what_their_tokens_have() -> None:
    """A class's g is the weighted mean over its tokens; each top token has its own."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"c", b"$"], [3])
    automaton = lift(choice(*(x + y for x in "abc" for y in "abc")), vocabulary)
    bigram = table(vocabulary, 2)
    batch = smc.Batch(AutomatonBatch([automaton]), torch.tensor([3]))
    log_p = torch.tensor([[0.1, 0.5, 0.3, 0.1]], dtype=torch.float64).log()
    g = {
        k: proposal.guide(proposal.start(batch), log_p).log_g[0].exp()
        for k in (0, 1, None)
        for proposal in [smc.Twisted(Bigram(bigram), exact_top_k=k, defense=0)]
    }
    p = bigram[-1, :3].exp()
    torch.testing.assert_close(g[0][:3], ((p * g[None][:3]).sum() / p.sum()).expand(3))
    torch.testing.assert_close(g[1][1], g[None][1])
    assert g[0][0] == g[1][0] != g[None][0]


@pytest.mark.parametrize("exact_top_k", [0, None])
def test_joint_twists_sum_to_the_chance_of_completion(exact_top_k: int | None) -> None:
    """The joint value of a class is divided among its tokens, which the weights don't test."""
    for name, budget in (("a_star_b", 4), ("few_words", 5)):
        lookahead = Bigram(table(VOCABULARY, seed=2))
        proposal = smc.Twisted(lookahead, twist="joint", exact_top_k=exact_top_k, defense=0)
        batch = smc.Batch(AutomatonBatch([CONSTRAINTS[name]()]), torch.tensor([budget]))
        state = proposal.start(batch)
        log_p = torch.full((1, VOCABULARY.size), -1.0, dtype=torch.float64)
        every = torch.arange(VOCABULARY.size).unsqueeze(0)
        expected = lookahead.all_tokens(state.model, state.position).log_joint
        late = state.position.steps_after_tokens(every) >= budget
        total = expected.masked_fill(late, -torch.inf).logsumexp(dim=1)
        assert proposal.guide(state, log_p).log_g.logsumexp(dim=1) == pytest.approx(total)


def test_in_time_goes_to_gcd_as_the_budget_grows() -> None:
    model, automaton = Bigram(table(VOCABULARY)), few_words()
    lm, found = ToyLM(VOCABULARY), {}
    for budget in (2, 3, 12):
        proposal = smc.Twisted(model, twist="in_time", exact_top_k=None, defense=0)
        state = proposal.start(smc.Batch(AutomatonBatch([automaton]), torch.tensor([budget])))
        found[budget] = proposal.guide(state, lm.log_p(PROMPT).unsqueeze(0)).log_g[0, :3]
    assert bool((found[2] <= found[3]).all())
    assert bool((found[3] <= found[12]).all())
    assert float(found[3].min()) < -0.01
    torch.testing.assert_close(found[12], torch.zeros(3, dtype=torch.float64))


def test_an_end_is_certain_and_the_least_defense_holds_what_is_impossible() -> None:
    """G of a token that completes the text is one, even if its probability is zero."""
    proposal = smc.Twisted(Bigram(table(VOCABULARY, never=(0, 3))), exact_top_k=2, defense=0)
    state = proposal.start(smc.Batch(AutomatonBatch([few_words()]), torch.tensor([4])))
    log_p = torch.full((1, VOCABULARY.size), -VOCABULARY.size, dtype=torch.float64).log_softmax(1)
    mixed = defend(proposal.guide(state, log_p), log_p)
    gcd = smc.GCD().guide(state.position, log_p)
    log_g, even = mixed.log_g[0], mixed.log_z - gcd.apply(log_p).logsumexp(dim=1)
    torch.testing.assert_close(log_g[0:1], even + torch.tensor(LEAST_DEFENSE).double().log())
    after = proposal.advance(state, torch.tensor([[0]]))
    unguarded = smc.Twisted(Bigram(table(VOCABULARY, never=(3,))), exact_top_k=None, defense=0)
    ends = defend(unguarded.guide(after, log_p), log_p)
    assert float(ends.log_g[0, 5]) == pytest.approx(0, abs=2 * LEAST_DEFENSE)
    assert float(ends.log_g[0, 3]) == pytest.approx(0, abs=2 * LEAST_DEFENSE)


# -- the laws of a lookahead -----------------------------------------------------------------


class LateBigram(Bigram):
    """Wrong: assume one token more than the budget."""

    def tokens(
        self, state: Last, position: AutomatonPosition, tokens: torch.Tensor
    ) -> smc.Expectation:
        return super().tokens(state, position._replace(remaining=position.remaining + 1), tokens)


class DoubleBigram(Bigram):
    """Wrong: forget the previous tokens."""

    def advance(self, state: Last, tokens: torch.Tensor) -> Last:
        return state


class UnevenBigram(Bigram):
    """Wrong: use the most probable token of a class."""

    def classes(self, state: Last, position: AutomatonPosition) -> smc.Expectation:
        class_of = position.automata.classes.of[position.automaton_of_row].long()
        each, C = self.all_tokens(state, position), int(position.automata.num_classes.max())
        zero = torch.zeros(len(class_of), C, dtype=torch.float64)
        return smc.Expectation(
            *(zero.scatter_reduce(1, class_of, x.exp(), "amax").log() for x in each)
        )


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("never", [(), (1,), (3, 5)])
def test_a_lookahead_obeys_the_laws(name: str, never: tuple[int, ...]) -> None:
    model = Bigram(table(VOCABULARY, 1, never))
    # a*b has arbitrarily long texts; those of 200 tokens have negligible probability.
    model.long = 200
    assert check_lookahead(model, CONSTRAINTS[name](), 5) > 2


@pytest.mark.parametrize("eventual", [False, True])
def test_so_does_an_hmm(eventual: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(4, VOCABULARY.size, generator=generator, dtype=torch.float64)
    model = smc.HMMLookahead(hmm, eventual=eventual)
    for make in CONSTRAINTS.values():
        check_lookahead(model, make(), 5, tolerance=1e-4)  # tolerance of its table


@pytest.mark.parametrize("wrong", [LateBigram, DoubleBigram, UnevenBigram])
def test_negative_control_of_the_laws(wrong: type[Bigram]) -> None:
    with pytest.raises(AssertionError, match="joint"):
        check_lookahead(wrong(table(VOCABULARY, 1)), a_star_b(), 5)


def test_numbers_that_are_none_are_refused() -> None:
    model = Bigram(table(VOCABULARY) * torch.nan)
    with pytest.raises(FloatingPointError, match=r"Bigram.*got NaN"):
        smc.sample(
            ToyLM(VOCABULARY),
            [PROMPT],
            few_words(),
            max_tokens=4,
            particles=2,
            proposal=smc.Twisted(model),
            algorithm="smc",
        )


# -- the rest of the protocol ----------------------------------------------------------------


class Picky(Bigram):
    """A lookahead that rejects constraints and keeps its tables."""

    max_bytes = 100
    freed = False

    def check(self, automata: object, budgets: object) -> NoReturn:
        raise ConstraintError("the table takes 7 GiB")

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        return 7 * budget

    def free(self) -> None:
        self.freed = True


def test_what_a_lookahead_refuses_is_refused_before_any_work() -> None:
    proposal = smc.Twisted(Picky(table(VOCABULARY)))
    with pytest.raises(ConstraintError, match="7 GiB"):
        smc.sample(
            ToyLMThatIsNotAsked(VOCABULARY),
            [PROMPT],
            few_words(),
            max_tokens=4,
            particles=2,
            proposal=proposal,
            algorithm="smc",
        )
    assert proposal.max_bytes == 100
    assert proposal.memory(few_words(), 4) == 28
    proposal.free()
    assert proposal.lookahead.freed


class ToyLMThatIsNotAsked(ToyLM):
    context = None
    vocabulary = VOCABULARY

    def prefill(self, prompts: object) -> NoReturn:
        raise AssertionError("the language model was asked")


def test_members_that_need_not_be_given() -> None:
    """Without them a lookahead or a proposal rejects nothing and keeps no tables."""
    for proposal in (smc.LM(), smc.LCD(), smc.GCD(), smc.Twisted(Bigram(table(VOCABULARY)))):
        proposal.check([few_words()], [1])
        proposal.free()
        assert proposal.memory(few_words(), 4) == 0
        assert proposal.max_bytes is None


def test_in_time_needs_a_model_that_knows_of_no_budget() -> None:
    model = Bigram(table(VOCABULARY))
    model.eventual = False
    with pytest.raises(ValueError, match=r"log_eventual for twist=.*, but Bigram doesn't"):
        smc.Twisted(model, twist="in_time")
    smc.Twisted(model)
