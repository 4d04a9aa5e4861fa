"""Weights of particles against brute force, on a small random model with 512 tokens.

VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import math
import os
import statistics

import pytest

import gcd
import gcd_vllm
import smc
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._weight_table import take
from tests_vllm.oracle import Oracle, log_sum
from tests_vllm.twisted import registered, values

if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CHOICE = {"choice": ["yes", "no", "none", "yesterday"]}
BUDGET = 5
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine(peaked_llama):
    from vllm import LLM

    return LLM(
        peaked_llama, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True,
        block_size=32, disable_log_stats=False,
        worker_extension_cls="gcd_vllm.WorkerExtension",
    )  # fmt: skip


@pytest.fixture(scope="module")
def pgcd(engine, tmp_path_factory):
    from gcd_vllm._in_process import InProcessEngine

    vocabulary = InProcessEngine(engine).vocabulary
    with registered(vocabulary, tmp_path_factory.mktemp("hmms")) as found:
        yield found


@pytest.fixture(scope="module")
def oracle_of(engine, peaked_llama):
    """An oracle of the engine's model, for a constraint and a temperature."""
    from gcd_vllm._in_process import InProcessEngine

    vocabulary = InProcessEngine(engine).vocabulary

    def make(constraint, temperature=1.0):
        import gcd

        (kind,) = constraint
        language = ConstraintRequest(kind, constraint[kind]).language()
        prompt = tuple(engine.get_tokenizer().encode(PROMPT))
        return Oracle(peaked_llama, gcd.lift(language, vocabulary), prompt, temperature)

    return make


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_each_token_has_the_weight_and_probability_of_brute_force(engine, oracle_of, temperature):
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=40, temperature=temperature
    )
    oracle = oracle_of(CHOICE, temperature)
    assert len(set(found.texts)) > 1
    for particle in found.particles:
        assert particle.finished
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        log_z = oracle.log_z(particle.ids, BUDGET)
        assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)
        assert particle.log_weight == pytest.approx(sum(log_z), abs=1e-3)
    assert found.certified is None
    assert found.exact
    assert found.reliability.label in ("unknown", "collapsed")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_pgcd_draws_from_the_distribution_of_smc_pgcd(engine, oracle_of, pgcd, temperature):
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=24, temperature=temperature,
        proposal=pgcd,
    )  # fmt: skip
    oracle = oracle_of(CHOICE, temperature)
    for particle in found.particles:
        log_q = [log_q for _, log_q in values(pgcd, oracle, particle.ids, BUDGET)]
        assert particle.finished
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        assert particle.token_log_q == pytest.approx(log_q, abs=1e-3)
        log_weight = sum(particle.token_log_p) - sum(particle.token_log_q)
        assert particle.log_weight == pytest.approx(log_weight, abs=1e-6)


@pytest.mark.parametrize(
    ("proposal", "chunk"), [("gcd", None), ("gcd", 1), ("gcd", 2), ("pgcd", None), ("pgcd", 1)]
)
def test_evidence_and_probabilities_are_those_of_enumeration(
    engine, oracle_of, pgcd, proposal, chunk
):
    """The mean of eight estimates lies within four of its standard errors."""
    proposal = pgcd if proposal == "pgcd" else proposal
    oracle = oracle_of(CHOICE)
    exact = oracle.answers(BUDGET)
    log_evidence = log_sum(exact.values())
    algorithm = None if chunk is None else smc.SMC(ess_threshold=1.0, strata="none")
    found = [
        gcd_vllm.sample(
            engine,
            [PROMPT],
            CHOICE,
            max_tokens=BUDGET,
            particles=32,
            seed=seed,
            chunk=chunk,
            proposal=proposal,
            algorithm=algorithm,
        )[0]
        for seed in range(8)
    ]
    ratios = [math.exp(each.log_evidence - log_evidence) for each in found]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert abs(statistics.mean(ratios) - 1) < 4 * error + 1e-3
    by_text: dict[bytes, list[float]] = {}
    for ids, log_p in exact.items():
        by_text.setdefault(oracle.automaton.vocabulary.decode(ids[:-1]), []).append(log_p)
    for answer, log_probabilities in by_text.items():
        share = math.exp(log_sum(log_probabilities) - log_evidence)
        # Weighted by the evidence, each estimate is unbiased.
        estimates = [
            ratio * dict(zip(each.answers, each.probabilities, strict=True)).get(answer, 0.0)
            for ratio, each in zip(ratios, found, strict=True)
        ]
        error = statistics.stdev(estimates) / math.sqrt(len(estimates))
        assert abs(statistics.mean(estimates) - share) < 4 * error + 5e-3, answer
    if chunk is not None:
        parts = found[0].diagnostics.parts
        assert any(part.resampled for part in parts)
        assert all(part.admissions <= 32 for part in parts)


def test_lcd_is_weighed_by_its_own_mask(engine, oracle_of):
    """Answers that the budget cuts off weigh nothing."""
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], {"regex": "[ab]+"}, max_tokens=3, particles=48, proposal="lcd"
    )
    exact = oracle_of({"regex": "[ab]+"}).answers(3)
    died = [each for each in found.particles if not each.finished]
    assert died
    assert all(each.log_weight == -math.inf for each in died)
    for each in found.particles:
        if each.finished:
            assert sum(each.token_log_p) == pytest.approx(exact[each.ids], abs=1e-3)
    assert (
        abs(found.log_evidence - log_sum(exact.values())) < 4 * found.reliability.log_evidence_error
    )


def test_a_prompt_has_the_same_particles_in_a_call_of_its_own(engine):
    """So prompts can be divided among engines, by their example ids."""
    prompts, common = [PROMPT, "The little dog"], {"budget": BUDGET, "particles": 12, "seed": 3}
    together = gcd_vllm.sample(engine, prompts, CHOICE, **common)
    for number, prompt in enumerate(prompts):
        (alone,) = gcd_vllm.sample(engine, [prompt], CHOICE, example_ids=[number], **common)
        assert [each.ids for each in alone.particles] == [
            each.ids for each in together[number].particles
        ]
    assert together[0].particles != together[1].particles


def test_nothing_is_kept_after_a_call(engine):
    gcd_vllm.sample(engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=4)
    assert take("") == {}


def test_an_engine_that_fails_keeps_no_request_and_no_weight(engine, monkeypatch):
    step, taken = engine.llm_engine.step, 0

    def fails():
        nonlocal taken
        taken += 1
        if taken > 4:
            raise RuntimeError("out of memory")
        return step()

    monkeypatch.setattr(engine.llm_engine, "step", fails)
    with pytest.raises(gcd_vllm.EngineStoppedError, match="out of memory"):
        gcd_vllm.sample(engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=40)
    monkeypatch.undo()
    assert not engine.llm_engine.has_unfinished_requests()
    assert take("") == {}
    gcd_vllm.sample(engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=4)


def test_bad_inputs_are_refused_before_anything_is_generated(engine, monkeypatch):
    import gcd

    def never(*_):
        raise AssertionError("a request was made")

    monkeypatch.setattr(engine.llm_engine, "add_request", never)

    def ask(prompt=PROMPT, constraint=CHOICE, **more):
        given = {"max_tokens": BUDGET, "particles": 4} | more
        return gcd_vllm.sample(engine, [prompt], constraint, **given)

    with pytest.raises(gcd.InfeasibleBudgetError, match="budget"):
        ask(max_tokens=1)
    with pytest.raises(ValueError, match="context of 64"):
        ask([5] * 62)
    with pytest.raises(ValueError, match="context of 64"):
        ask(constraint={"regex": "[ab]+"}, max_tokens=80)
    with pytest.raises(gcd.ConstraintError, match="exactly one of"):
        ask(constraint={"nothing": 1})
    with pytest.raises(ValueError, match="expected proposal"):
        ask(proposal="pgcd")
    with pytest.raises(gcd.ConstraintError, match="GCD_VLLM_HMMS"):
        ask(proposal=gcd_vllm.PGCD("nowhere"))
    with pytest.raises(ValueError, match="expected chunk= together with algorithm"):
        ask(algorithm=smc.SMC(strata="none"))
    with pytest.raises(gcd.ConstraintError, match="without 'deadline_ms'"):
        ask(constraint=CHOICE | {"deadline_ms": 5})


def test_fields_that_change_the_distribution_are_refused(engine):
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    from gcd_vllm._particle_request import ParticleRequest
    from tests_vllm.cases import asked

    extra = asked(CHOICE) | {"gcd_particle": ParticleRequest("k").text()}
    for more in ({"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1.2}):
        params = SamplingParams(max_tokens=BUDGET, extra_args=extra, **more)
        with pytest.raises(VLLMValidationError, match=f"expected {next(iter(more))}="):
            engine.generate([PROMPT], params, use_tqdm=False)


def test_a_resubmitted_particle_recomputes_one_token(engine):
    """A part ends one token after a block, and the engine finds the whole block."""
    (found,) = gcd_vllm.sample(
        engine, [[5, 9] * 15 + [7]], {"regex": "[ab]{5}"}, max_tokens=8, particles=6, chunk=2
    )
    second = found.diagnostics.parts[1]
    assert second.admissions > 0
    assert second.prompt_tokens == 33 * second.admissions
    assert second.recomputed_tokens == second.admissions


def test_an_automaton_is_the_same_constraint_as_its_request(engine):
    """The engine finds it in its cache; a single process shares that."""
    from gcd_vllm._in_process import InProcessEngine

    language = ConstraintRequest("choice", CHOICE["choice"]).language()
    automaton = gcd.lift(language, InProcessEngine(engine).vocabulary)
    one, other = (
        gcd_vllm.sample(engine, [PROMPT] * 2, given, max_tokens=BUDGET, particles=8, seed=3)
        for given in (CHOICE, automaton)
    )
    for a, b in zip(one, other, strict=True):
        assert [each.ids for each in a.particles] == [each.ids for each in b.particles]
        assert a.log_evidence == pytest.approx(b.log_evidence)
