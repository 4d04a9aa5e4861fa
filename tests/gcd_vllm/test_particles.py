"""Particles in parts: the exact walk over all choices, where parts end, and seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmm
import smc
from gcd import AutomatonBatch
from gcd_vllm import PGCD
from gcd_vllm._particles import run
from gcd_vllm._parts import DrawnPart, ParticleTask, Plan, part_end, request_seed
from smc import CounterDraw
from smc._inference.algorithms import SMC
from smc._vocabulary.draw import Keys, Purpose, categorical
from smc._vocabulary.factors import defend
from smc.testing import ToyLM, target, walk
from tests.smc.toys import VOCABULARY, a_star_b, few_words

PROMPT = (0, 2)
EVERY_STEP = {"ess_threshold": 1.0, "strata": "none"}
MULTINOMIAL = {"ess_threshold": 1.0, "resampling": "multinomial"}


class ToyEngine:
    """An engine whose model is a toy, and whose tokens come from `draw`."""

    vocabulary, context, block_size = VOCABULARY, 64, None

    def __init__(self, lm, automaton, budget, draw=None, names=(0,)):
        self.lm, self.automaton, self.budget = lm, automaton, budget
        self.draw_, self.names = draw, names

    def draw(self, parts):
        return [self._draw(part) for part in parts]

    @cache  # noqa: B019, the engines of a test are few
    def _guided(self, place, ids):
        """Return log p of every token, log Z, the table of the next token, and log g of each."""
        prompt, temperature, proposal = place
        automaton, state = self.automaton, self.automaton.initial
        for token in ids:
            state = automaton.step(state, token)
        log_model = (self.lm.log_p((*prompt, *ids)) / temperature).log_softmax(0)
        left = self.budget - len(ids) - 1 if proposal == "gcd" else 2**30 - 1
        after = [automaton.step(state, v) for v in range(VOCABULARY.size)]
        allowed = torch.tensor([s >= 0 and automaton.steps_to_accept[s] <= left for s in after])
        masked = log_model.masked_fill(~allowed, -torch.inf).unsqueeze(0)
        return log_model, float(masked.logsumexp(1)), categorical(masked), torch.zeros(len(after))

    def _draw(self, part):
        ids, log_ratios, log_p, zero = list(part.prefix), [], [], torch.zeros(1, dtype=torch.int64)
        for _ in range(part.max_tokens):
            place = part.prompt, part.temperature, part.weighted.proposal
            log_model, log_z, table, log_g = self._guided(place, tuple(ids))
            name = torch.tensor([self.names[part.example]])
            keys = Keys(name, torch.tensor([part.particle]), len(ids), Purpose.TOKEN)
            token = int(table.at(zero, self.draw_(keys, lambda table=table: table.breaks(zero))))
            ids.append(token)
            log_ratios.append(log_z - float(log_g[token]))
            log_p.append(float(log_model[token]))
            if token in VOCABULARY.eos_ids:
                break
        new = tuple(ids[len(part.prefix) :])
        potential = float(log_g[ids[-1]])
        return DrawnPart(new, tuple(log_ratios), tuple(log_p), log_potential=potential)


def walked(engine, plan):
    """Weight times probability of each answer over all choices, and whether any resampled."""

    def sample(draw, names):
        engine.draw_, engine.names = draw, names
        tasks = [ParticleTask(name, PROMPT, "", engine.automaton, engine.budget) for name in names]
        return run(engine, tasks, plan, draw)

    found, resampled = defaultdict(float), False
    for probability, posterior in walk(sample):
        resampled |= any(posterior.diagnostics.resampled)
        if posterior.dead:
            continue
        evidence = probability * math.exp(posterior.log_evidence)
        total = math.fsum(math.exp(each.log_weight) for each in posterior.particles)
        for each in posterior.particles:
            if each.log_weight > -math.inf:
                assert each.finished
                found[each.ids] += evidence * math.exp(each.log_weight) / total
    return found, resampled


@pytest.mark.parametrize(
    ("constraint", "proposal", "chunk", "options"),
    [  # All pairs of settings and constraints occur.
        (a_star_b, "gcd", None, {}),
        (few_words, "lcd", None, {}),
        (few_words, "gcd", 1, EVERY_STEP),
        (a_star_b, "lcd", 1, EVERY_STEP),
        (a_star_b, "gcd", 2, MULTINOMIAL),
        (few_words, "lcd", 1, MULTINOMIAL),
    ],
)
def test_weight_times_probability_sums_to_the_target(constraint, proposal, chunk, options):
    # With independent ancestors and unweighted tokens there are most walks.
    automaton, temperature = constraint(), 0.8
    budget = 2 if proposal == "lcd" and chunk else 3
    lm = ToyLM(VOCABULARY, seed=3)
    plan = Plan(2, proposal, temperature, 0, chunk, SMC(**options))
    found, resampled = walked(ToyEngine(lm, automaton, budget), plan)
    expected = target(lm, PROMPT, automaton, budget, temperature=temperature)
    assert found == pytest.approx(expected, abs=1e-9)
    assert resampled is (chunk is not None)


class TwistedEngine(ToyEngine):
    """The same with P-GCD's distribution."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        seeded = torch.Generator().manual_seed(4)
        model = hmm.HMM.random(3, VOCABULARY.size, generator=seeded, concentration=0.3)
        self.proposal = smc.PGCD(model, exact_top_k=1, defense=0.1)
        batch = smc.Batch(AutomatonBatch([self.automaton]), torch.tensor([self.budget]))
        self.start = self.proposal.start(batch)

    @cache  # noqa: B019, the engines of a test are few
    def _guided(self, place, ids):
        prompt, temperature, _ = place
        state = self.proposal.advance(self.start, torch.tensor([ids], dtype=torch.int64))
        log_model = (self.lm.log_p((*prompt, *ids)) / temperature).log_softmax(0).unsqueeze(0)
        guide = defend(self.proposal.guide(state, log_model), log_model)
        tokens = torch.arange(VOCABULARY.size)
        log_g = guide.at(torch.zeros_like(tokens), tokens)
        return log_model[0], float(guide.log_z), categorical(guide.apply(log_model)), log_g


@pytest.mark.parametrize(("chunk", "options"), [(None, {}), (1, EVERY_STEP)])
def test_pgcd_sums_to_the_target_with_its_potentials(chunk, options):
    automaton, budget, temperature = few_words(), 3, 0.8
    lm = ToyLM(VOCABULARY, seed=3)
    plan = Plan(2, "pgcd", temperature, 0, chunk, SMC(**options), PGCD("named"))
    found, resampled = walked(TwistedEngine(lm, automaton, budget), plan)
    expected = target(lm, PROMPT, automaton, budget, temperature=temperature)
    assert found == pytest.approx(expected, abs=1e-6)
    assert resampled is (chunk is not None)


def test_one_part_gives_the_values_of_each_token():
    automaton, budget = few_words(), 4
    lm = ToyLM(VOCABULARY, seed=1)
    draw = CounterDraw(5)
    tasks = [ParticleTask(name, PROMPT, "", automaton, budget) for name in (7, 9)]
    engine = ToyEngine(lm, automaton, budget, draw, [7, 9])
    first, second = run(engine, tasks, Plan(6, "gcd", 1.0, 5, None, SMC()), draw)
    assert first.particles != second.particles
    for each in first.particles:
        log_p = [float(lm.log_p((*PROMPT, *each.ids[:t]))[v]) for t, v in enumerate(each.ids)]
        assert each.token_log_p == pytest.approx(log_p)
        assert each.log_p == pytest.approx(sum(log_p))
        assert each.log_weight == pytest.approx(sum(each.token_log_z))
        assert each.token_log_q == pytest.approx(
            [p - z for p, z in zip(log_p, each.token_log_z, strict=True)]
        )
    assert first.certified is None
    (part,) = first.diagnostics.parts
    assert part.admissions == 6
    assert part.prompt_tokens == part.recomputed_tokens == 6 * len(PROMPT)


def test_a_token_that_the_constraint_forbids_is_an_error():
    class Wrong(ToyEngine):
        def draw(self, parts):
            return [DrawnPart((4,), (0.0,), (0.0,)) for _ in parts]

    engine = Wrong(None, few_words(), 3)
    task = ParticleTask(0, PROMPT, "", few_words(), 3)
    with pytest.raises(RuntimeError, match="another logits processor"):
        run(engine, [task], Plan(1, "gcd", 1.0, 0, None, SMC()), CounterDraw(0))


@given(
    prompt=st.integers(1, 90),
    taken=st.integers(0, 40),
    more=st.integers(1, 60),
    chunk=st.integers(1, 40),
    block=st.sampled_from([None, 1, 8, 16, 32]),
)
def test_parts_end_one_token_after_a_block(prompt, taken, more, chunk, block):
    budget = taken + more
    end = part_end(prompt, taken, budget, chunk, block)
    assert taken < end <= budget
    if end < budget:
        assert end >= taken + chunk
        if block is not None and block <= chunk:
            assert (prompt + end) % block == 1 % block
            assert end < taken + chunk + block
        else:
            assert end == taken + chunk


def test_seeds_are_functions_of_four_numbers_that_vllm_takes():
    numbers = [*product((-1, 0, 1, 2, 2**62), (0, 1, 2**40), range(64), range(4))]
    seeds = [request_seed(*four) for four in numbers]
    assert seeds == [request_seed(*four) for four in numbers]
    assert len({*seeds}) == len(seeds)
    assert 0 <= min(seeds) <= max(seeds) < 2**63
