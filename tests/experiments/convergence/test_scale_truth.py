"""Dynamic programming against enumeration, where the language model is an HMM."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gcd
import smc
from experiments.convergence.scale.mismatch import LOOKAHEADS, blurred, merged
from experiments.convergence.scale.truth import (
    Event,
    PartitionError,
    log_evidence,
    marginal,
    truth,
)
from hmm import HMM, filter_all, log_likelihood, lookahead_table, predict_first
from hmm.lookahead import expect_classes
from smc.models.hmm_lm import PROMPT, HMMLanguageModel, in_double
from smc.testing import walk

VOCABULARY = gcd.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"ba", b"."], eos_ids=[0])
SIZE = VOCABULARY.size
WORDS = gcd.regex("(a|b){1,5}")
STARTS = [Event("a first", gcd.regex("a(a|b)*")), Event("b first", gcd.regex("b(a|b)*"))]


def toy(num_states: int = 4, seed: int = 0, **options) -> HMM:
    generator = torch.Generator().manual_seed(seed)
    return HMM.random(num_states, SIZE, generator=generator, **options)


def likelihood(model: HMM, tokens: tuple[int, ...]) -> float:
    one = torch.tensor([tokens])
    return float(log_likelihood(in_double(model), one, torch.tensor([len(tokens)])).exp())


def enumerated(
    model: HMM, constraint: gcd.TokenAutomaton, budget: int
) -> dict[tuple[int, ...], float]:
    """P(x) of every accepted token sequence, each by the HMM's own likelihood."""
    found, pending = {}, [((), constraint.initial)]
    while pending:
        tokens, state = pending.pop()
        if state == constraint.final:
            found[tokens] = likelihood(model, tokens)
        elif len(tokens) < budget:
            steps = [(token, constraint.step(state, token)) for token in range(SIZE)]
            pending += [((*tokens, token), after) for token, after in steps if after >= 0]
    return found


def text(tokens: tuple[int, ...]) -> bytes:
    return VOCABULARY.decode([token for token in tokens if token])


def uniform_rows(tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(tokens), torch.tensor([len(row) for row in tokens])


# The language model.


def test_the_next_token_is_as_the_filter_has_it():
    model = toy(monarch=2)
    lm = HMMLanguageModel(model, VOCABULARY)
    rows, first = lm.prefill([PROMPT, [3, 1]])
    tokens = [[1, 3, 2, 5], [4, 4, 1, 1]]
    runs, lengths = uniform_rows(tokens)
    found = torch.cat([first.unsqueeze(1), rows.extend(runs, lengths)], dim=1)
    assert found.dtype == torch.float64
    predicted = filter_all(in_double(model), runs, lengths).predicted
    expected = (predicted @ in_double(model).emission.T).log()
    torch.testing.assert_close(found[:, :4], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.exp().sum(dim=2), torch.ones(2, 5).double())
    chosen = found[:, :4].gather(2, runs.unsqueeze(2)).sum(dim=(1, 2)).exp().tolist()
    assert chosen == pytest.approx([likelihood(model, tuple(row)) for row in tokens], rel=1e-12)


def test_prompts_are_ignored():
    lm = HMMLanguageModel(toy(), VOCABULARY)
    assert lm.encode("anything") == list(PROMPT)
    assert lm.encode([2, 4]) == [2, 4]
    assert isinstance(lm, smc.LanguageModel)
    _, first = lm.prefill([[1], [2, 2, 3]])
    assert torch.equal(first[0], first[1])


def test_rows_are_extended_copied_and_cut_back():
    lm = HMMLanguageModel(toy(), VOCABULARY)
    rows, _ = lm.prefill([PROMPT])
    rows.reorder(torch.tensor([0, 0, 0]))
    ragged = rows.extend(torch.tensor([[1, 2, 3], [4, 9, 9], [5, 1, 9]]), torch.tensor([3, 1, 2]))
    assert bool(ragged[1, 1:].isnan().all())
    assert bool(ragged[2, 2:].isnan().all())
    rows.reorder(torch.tensor([2, 0, 2, 1]))
    rows.truncate(torch.tensor([2, 1, 0, 1]))
    after = rows.extend(torch.tensor([[2], [2], [2], [2]]), torch.ones(4, dtype=torch.int64))
    for row, prefix in enumerate([[5, 1, 2], [1, 2], [2], [4, 2]]):
        fresh, _ = lm.prefill([PROMPT])
        runs, lengths = uniform_rows([prefix])
        torch.testing.assert_close(after[row, 0], fresh.extend(runs, lengths)[0, -1])


def test_nothing_follows_an_impossible_row_and_another_vocabulary_is_refused():
    model = toy()
    emission = model.emission.clone()
    emission[2] = 0
    lm = HMMLanguageModel(HMM(model.initial, model.transition, emission), VOCABULARY)
    rows, first = lm.prefill([PROMPT])
    assert float(first[0, 2]) == -math.inf
    rows.reorder(torch.tensor([0, 0]))
    after = rows.extend(torch.tensor([[2, 1], [1, 1]]), torch.tensor([2, 2]))
    assert bool(after[0].isneginf().all())
    assert bool(after[1].logsumexp(dim=1).exp().allclose(torch.ones((), dtype=torch.float64)))
    with pytest.raises(ValueError, match="over 7 tokens, the vocabulary has 6"):
        HMMLanguageModel(HMM.random(2, 7), VOCABULARY)


def test_half_precision_is_normalised():
    coarse = toy(16).to(emission_dtype=torch.bfloat16)
    fine = in_double(coarse)
    assert fine.emission.dtype == torch.float64
    for part, dim in ((fine.initial, 0), (fine.transition.dense(), 1), (fine.emission, 0)):
        assert float((part.sum(dim=dim) - 1).abs().max()) < 1e-14


# The truth.


@pytest.mark.parametrize("budget", range(1, 7))
@pytest.mark.parametrize("ending", ["token", "accept"])
def test_evidence_and_events_are_those_of_all_sequences(budget, ending):
    model, dot = toy(monarch=2), gcd.literal("." if ending == "accept" else "")
    language = WORDS + dot
    events = [Event(event.name, event.language + dot) for event in STARTS]
    constraint = gcd.lift(language, VOCABULARY, eos=ending)
    if budget < constraint.steps_to_accept[constraint.initial]:
        assert log_evidence(in_double(model), constraint, budget) == -math.inf
        return
    sequences = enumerated(model, constraint, budget)
    assert len(sequences) > 2
    exact = truth(in_double(model), language, events, VOCABULARY, budget, ending=ending)
    total = math.fsum(sequences.values())
    assert exact.log_evidence == pytest.approx(math.log(total), abs=1e-10)
    for event, share in zip(events, exact.marginal, strict=True):
        inside = math.fsum(p for x, p in sequences.items() if event.language.accepts(text(x)))
        assert share == pytest.approx(inside / total, abs=1e-10)


@pytest.mark.parametrize("budget", [3, 12, 60])
def test_evidence_is_that_of_the_lookahead(budget):
    """Forwards from the start, and backwards from every state: the same sum."""
    model, constraint = in_double(toy(8, seed=1)), gcd.lift(gcd.regex("(ab?a){2,}b*"), VOCABULARY)
    table = lookahead_table(model, constraint, max(1, budget - 1), tolerance=0)
    start, left = torch.tensor([constraint.initial]), torch.tensor([budget])
    joint = expect_classes(table, predict_first(model, 1), start, left).log_joint
    expected = float(joint.logsumexp(dim=1))
    assert log_evidence(model, constraint, budget) == pytest.approx(expected, abs=1e-11)


def test_a_long_text_does_not_underflow():
    model = in_double(toy())
    word = "ab" * 400
    constraint = gcd.lift(gcd.literal(word), gcd.Vocabulary.from_bytes(
        [b"", b"a", b"b", b"-", b"_", b"."], eos_ids=[0]))  # fmt: skip
    tokens = (*(1 if letter == "a" else 2 for letter in word), 0)
    one = torch.tensor([tokens])
    expected = float(log_likelihood(model, one, torch.tensor([801])))
    assert expected < -800
    assert log_evidence(model, constraint, 801) == pytest.approx(expected, rel=1e-12)


def test_what_ends_by_itself_at_once_is_certain():
    empty = gcd.lift(gcd.literal(""), VOCABULARY, eos="accept")
    assert log_evidence(in_double(toy()), empty, 3) == 0


def test_samples_agree_with_the_truth():
    """All walks of a sampler: the mean of evidence times marginal is the exact one."""
    lm = HMMLanguageModel(toy(), VOCABULARY)
    language = gcd.choice(["a", "ab", "ba", "bbb"])
    constraint = gcd.lift(language, VOCABULARY)
    exact = truth(lm.hmm, language, STARTS, VOCABULARY, 4)

    def run(draw, ids):
        prompts = [PROMPT] * len(ids)
        return smc.sample(
            lm, prompts, constraint, budget=4, particles=2, proposal=smc.GCD(),
            example_ids=ids, draw=draw,
        )  # fmt: skip

    evidence, joint = 0.0, np.zeros(2)
    for probability, posterior in walk(run):
        weight = probability * math.exp(posterior.log_evidence)
        evidence += weight
        joint += weight * marginal(posterior, STARTS)
    assert evidence == pytest.approx(math.exp(exact.log_evidence), rel=1e-10)
    np.testing.assert_allclose(joint / evidence, exact.marginal, atol=1e-10)


def test_looking_ahead_with_the_language_model_itself_leaves_no_variance():
    lm = HMMLanguageModel(toy(8), VOCABULARY)
    constraint = gcd.lift(WORDS, VOCABULARY)
    proposal = smc.PGCD(lm.hmm, exact_top_k=None, defence=0.0)
    found = smc.sample(
        lm, ["ignored"] * 5, constraint, budget=5, particles=3, proposal=proposal,
        ess_threshold=0,
    )  # fmt: skip
    exact = log_evidence(lm.hmm, constraint, 5)
    assert [p.log_evidence for p in found] == pytest.approx([exact] * 5, abs=1e-6)


OVERLAPPING = [*STARTS, Event("long", gcd.regex("(a|b){5}"))]


@pytest.mark.parametrize(
    ("events", "share"), [(OVERLAPPING, "1.1"), (STARTS[:1], "0."), ([], "0 of")]
)
def test_events_that_do_not_share_out_the_constraint_are_refused(events, share):
    message = rf"do not share out the constraint between them: they have {share}"
    with pytest.raises(PartitionError, match=message):
        truth(in_double(toy()), WORDS, events, VOCABULARY, 6)


def test_a_constraint_of_no_probability_is_refused():
    with pytest.raises(ValueError, match="no probability within 1 tokens"):
        truth(in_double(toy()), WORDS, STARTS, VOCABULARY, 1)


def test_an_answer_must_be_in_one_event():
    [posterior] = smc.sample(
        HMMLanguageModel(toy(), VOCABULARY), [PROMPT], gcd.lift(gcd.literal("abbab"), VOCABULARY),
        budget=6, particles=1, proposal=smc.GCD(),
    )  # fmt: skip
    assert marginal(posterior, STARTS).tolist() == [1, 0]
    with pytest.raises(PartitionError, match="b'abbab' must be in one event, and is in: none"):
        marginal(posterior, STARTS[1:])
    with pytest.raises(PartitionError, match="and is in: a first, long"):
        marginal(posterior, OVERLAPPING)


# Worse models.


def test_worse_models_are_models_and_worse():
    model = toy(64, concentration=0.1)
    sizes, losses = {}, {}
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(SIZE, (200, 6), generator=generator)
    lengths = torch.full((200,), 6)
    truth_of = log_likelihood(in_double(model), tokens, lengths)
    weight = truth_of.exp()
    for name, make in LOOKAHEADS.items():
        worse = make(model)
        for part, dim in ((worse.initial, 0), (worse.transition.dense(), 1), (worse.emission, 0)):
            assert part.dtype == torch.float64
            assert float((part.sum(dim=dim) - 1).abs().max()) < 1e-14
            assert float(part.min()) >= 0
        sizes[name] = worse.num_states
        found = log_likelihood(worse, tokens, lengths)
        losses[name] = float((weight * (truth_of - found)).sum() / weight.sum())
        assert torch.equal(make(model).emission, worse.emission)  # the same every time
    assert sizes["own"] == 64
    assert 8 < sizes["mild"] <= 16
    assert 4 < sizes["strong"] <= 8
    assert losses["own"] == pytest.approx(0, abs=1e-12)
    assert 0 < losses["mild"] < losses["strong"]


def test_merging_nothing_or_copies_changes_nothing():
    model, (tokens, lengths) = in_double(toy(3, seed=5)), uniform_rows([[1, 3, 2, 5, 0]])
    expected = log_likelihood(model, tokens, lengths)
    twice = HMM(
        model.initial.repeat(2) / 2,
        type(model.transition)(model.transition.dense().repeat(2, 2) / 2),
        model.emission.repeat(1, 2),
    )
    for same in (merged(model, 3), merged(twice, 6)):
        torch.testing.assert_close(log_likelihood(same, tokens, lengths), expected)


def test_merging_all_states_is_the_mean_of_what_they_emit():
    model = in_double(toy(3, seed=5))
    visits, here = torch.zeros(3).double(), model.initial
    for _ in range(64):
        visits, here = visits + here, here @ model.transition.dense()
    expected = model.emission @ (visits / 64)
    torch.testing.assert_close(merged(model, 1).emission[:, 0], expected)


def test_sizes_and_shares_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="4 states can be merged into 1 to 4, not 5"):
        merged(toy(), 5)
    with pytest.raises(ValueError, match=r"in \[0, 1\], not 1.5"):
        blurred(toy(), 1.5)
