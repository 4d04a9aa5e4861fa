"""The logits processor against enumeration, against the sampler's own proposals, and in all
decoding methods of `generate`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

import smc
from gcd import (
    AutomatonBatch,
    ConstraintError,
    InfeasibleBudgetError,
    Segment,
    TokenAutomaton,
    Vocabulary,
    lift,
    regex,
    segments,
)
from smc._vocabulary.factors import defend
from smc.testing import ToyLM, target
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, stories, tiny_model
from tests.smc.walks import random_hmm

transformers = pytest.importorskip("transformers")
generate_call = pytest.importorskip("smc._transformers.generate_call")

Answer = tuple[int, ...]


def answers(automaton: TokenAutomaton, budget: int) -> set[Answer]:
    """All token sequences within constraint and budget, found by trying every token."""
    return set(target(ToyLM(VOCABULARY), (0,), automaton, budget))


def prefixes(complete: set[Answer]) -> dict[Answer, set[int]]:
    """The possible next tokens of each incomplete prefix of an answer."""
    found: dict[Answer, set[int]] = {}
    for answer in complete:
        for length in range(len(answer)):
            found.setdefault(answer[:length], set()).add(answer[length])
    return found


def padded(sequences: list[list[int]], pad: int = 4) -> dict[str, torch.Tensor]:
    """Inputs of `generate`, padded on the left."""
    width = max(map(len, sequences))
    ids = [[pad] * (width - len(each)) + each for each in sequences]
    mask = [[0] * (width - len(each)) + [1] * len(each) for each in sequences]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@cache
def model() -> Any:
    return tiny_model()


def log_p_after(ids: list[int]) -> torch.Tensor:
    """Return log p(next | ids) without batch and cache."""
    with torch.no_grad():
        return model()(torch.tensor([ids])).logits[0, -1].double().log_softmax(dim=0)


def log_p_of(prompt: list[int], answer: Answer) -> float:
    each = [log_p_after([*prompt, *answer[:t]])[v] for t, v in enumerate(answer)]
    return float(sum(each))


def answer_of(row: torch.Tensor, start: int) -> Answer:
    """A generated row up to EOS."""
    ids = row[start:].tolist()
    ends = [t for t, token in enumerate(ids) if token in VOCABULARY.eos_ids]
    assert ends, ids
    assert set(ids[ends[0] + 1 :]) <= {4, *VOCABULARY.eos_ids}
    return tuple(ids[: ends[0] + 1])


# Masks and twisted scores


def segmented() -> TokenAutomaton:
    """Any number of b, then a, in at most two tokens; then a word, which `ab` may straddle."""
    plan = segments([
        Segment(regex("b*"), until="a", tokens=2), Segment(regex("b|ba|abb"), tokens=3),
    ])  # fmt: skip
    return lift(plan, VOCABULARY)


def by_length(table: dict[Answer, Any]) -> Iterator[list[Answer]]:
    for length in range(max(map(len, table)) + 1):
        yield [prefix for prefix in table if len(prefix) == length]


@pytest.mark.parametrize("constraint", [*CONSTRAINTS.values(), segmented])
@pytest.mark.parametrize("slack", [0, 2])
def test_the_mask_of_every_prefix_in_any_order(
    constraint: Callable[[], TokenAutomaton], slack: int
) -> None:
    automaton = constraint()
    budget = automaton.fewest_tokens + slack
    table = prefixes(answers(automaton, budget))
    processor = smc.BudgetLogitsProcessor(automaton, budget, prompt_length=2)
    generator = torch.Generator().manual_seed(0)
    groups = list(by_length(table))
    for group in [*groups, *groups[::-1], *groups[::2]]:
        some = [group[i] for i in torch.randint(len(group), (5,), generator=generator)]
        ids = torch.tensor([[4, i % 3, *prefix] for i, prefix in enumerate(some)])
        scores = torch.randn(5, VOCABULARY.size, generator=generator)
        found = processor(ids, scores)
        for row, prefix in enumerate(some):
            allowed = [token in table[prefix] for token in range(VOCABULARY.size)]
            expected = scores[row].masked_fill(~torch.tensor(allowed), -torch.inf)
            assert torch.equal(found[row], expected), prefix


OPTIONS: list[dict[str, Any]] = [
    {},
    {"exact_top_k": None, "defense": 0.0},
    {"exact_top_k": 1, "lookahead": "in_time"},
    {"lookahead": "joint"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_twisted_scores_are_the_samplers_own(options: dict[str, Any]) -> None:
    automaton, budget = CONSTRAINTS["a_star_b"](), 6
    proposal = smc.PGCD(random_hmm(), **options)
    start = proposal.start(smc.Batch(AutomatonBatch([automaton]), torch.tensor([budget])))
    processor = smc.BudgetLogitsProcessor(automaton, budget, proposal, prompt_length=1)
    generator = torch.Generator().manual_seed(0)
    for prefix in prefixes(answers(automaton, budget)):
        scores = torch.randn(1, VOCABULARY.size, generator=generator)
        ids = torch.tensor([[0, *prefix]])
        found = processor(ids, scores)
        state = start
        for token in prefix:
            state = proposal.advance(state, torch.tensor([[token]]))
        log_p = scores.log_softmax(dim=1)
        expected = defend(proposal.guide(state, log_p), log_p).apply(log_p).log_softmax(dim=1)
        torch.testing.assert_close(found.double().log_softmax(dim=1), expected, atol=1e-5, rtol=0)
        fresh = smc.BudgetLogitsProcessor(automaton, budget, proposal, prompt_length=1)
        assert torch.equal(fresh(ids, scores), found)  # the state depends on the tokens only


def test_a_bare_lookahead_is_twisted() -> None:
    automaton, hmm = CONSTRAINTS["a_star_b"](), random_hmm()
    scores, ids = torch.randn(1, VOCABULARY.size), torch.tensor([[0, 0]])
    bare, proposal = (
        smc.BudgetLogitsProcessor(automaton, 6, lookahead, prompt_length=1)(ids, scores)
        for lookahead in (smc.HMMLookahead(hmm), smc.Twisted(smc.HMMLookahead(hmm)))
    )
    assert torch.equal(bare, proposal)


def test_what_is_over_ends_again() -> None:
    """Finished, padded, invalid and late rows, as in beam search, beside running ones."""
    automaton = CONSTRAINTS["few_words"]()
    processor = smc.BudgetLogitsProcessor(automaton, 4, prompt_length=1)
    rows = [[0, 0, 3, 4], [0, 1, 0, 3], [0, 0, 0, 0], [0, 1, 1, 1]]
    found = processor(torch.tensor(rows), torch.zeros(4, VOCABULARY.size))
    ends = [0.0 if token in VOCABULARY.eos_ids else -torch.inf for token in range(6)]
    assert found.tolist() == [ends] * 4


# Decoding


def generate(
    prompts: list[list[int]], budget: int, processor: smc.BudgetLogitsProcessor, **options: Any
) -> Any:
    return model().generate(
        **padded(prompts), logits_processor=[processor], max_new_tokens=budget, **options
    )


PROMPTS = [[1], [0, 1, 2, 2], [2, 1]]


def greedy(prompt: list[int], automaton: TokenAutomaton, budget: int) -> Answer:
    """Choose greedily among enumerated answers, computing each prefix alone."""
    complete = answers(automaton, budget)
    table, answer = prefixes(complete), ()
    while answer not in complete:
        log_p = log_p_after([*prompt, *answer])
        answer = (*answer, max(table[answer], key=lambda token: float(log_p[token])))
    return answer


def test_greedy_search_of_padded_prompts_each_under_its_own_constraint_and_budget() -> None:
    automata, budgets = [CONSTRAINTS[n]() for n in ("a_star_b", "few_words", "forced")], [7, 4, 3]
    processor = smc.BudgetLogitsProcessor(automata, budgets)
    for order in ([0, 1, 2], [2, 1, 0], [0, 1, 2]):  # reused, with prompts in other positions
        found = generate([PROMPTS[i] for i in order], 7, processor)
        for place, row in enumerate(found):
            expected = greedy(PROMPTS[order[place]], automata[place], budgets[place])
            assert answer_of(row, 4) == expected


def law(prompt: list[int], automaton: TokenAutomaton, budget: int) -> dict[Answer, float]:
    """GCD's distribution: the model's, renormalized over allowed tokens in each step."""
    complete = answers(automaton, budget)
    table, found = prefixes(complete), {}
    for answer in complete:
        log_q = 0.0
        for t, token in enumerate(answer):
            log_p = log_p_after([*prompt, *answer[:t]])
            log_q += float(log_p[token] - log_p[list(table[answer[:t]])].logsumexp(dim=0))
        found[answer] = math.exp(log_q)
    assert math.isclose(sum(found.values()), 1)
    return found


def test_samples_have_the_law_of_gcd() -> None:
    automata, many = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()], 3000
    processor = smc.BudgetLogitsProcessor(automata, 5)
    torch.manual_seed(0)
    found = generate(PROMPTS[:2], 5, processor, do_sample=True, top_k=0, num_return_sequences=many)
    for i, automaton in enumerate(automata):
        counts = Counter(answer_of(row, 4) for row in found[i * many : (i + 1) * many])
        expected = law(PROMPTS[i], automaton, 5)
        assert set(counts) <= set(expected)
        for answer, probability in expected.items():
            error = 4.5 * math.sqrt(probability * (1 - probability) / many) + 1e-3
            assert counts[answer] / many == pytest.approx(probability, abs=error), answer


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_scores_are_the_twisted_ones_at_any_temperature(temperature: float) -> None:
    automaton, budget = CONSTRAINTS["a_star_b"](), 6
    proposal = smc.PGCD(random_hmm())
    processor = smc.BudgetLogitsProcessor(automaton, budget, proposal)
    torch.manual_seed(0)
    found = generate(
        [PROMPTS[1]], budget, processor, do_sample=True, top_k=0, temperature=temperature,
        num_return_sequences=8, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    start = proposal.start(smc.Batch(AutomatonBatch([automaton]), torch.tensor([budget])))
    for row, sequence in enumerate(found.sequences):
        state = start
        for t, token in enumerate(answer_of(sequence, 4)):
            log_p = log_p_after([*PROMPTS[1], *sequence[4 : 4 + t].tolist()]) / temperature
            log_p = log_p.log_softmax(dim=0).unsqueeze(0)
            expected = (
                defend(proposal.guide(state, log_p), log_p).apply(log_p).log_softmax(dim=1)[0]
            )
            scores = found.scores[t][row].double().log_softmax(dim=0)
            torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)
            state = proposal.advance(state, torch.tensor([[token]]))


EXACT = {"exact_top_k": None, "defense": 0.0}


@pytest.mark.parametrize("lookahead", [None, EXACT], ids=["gcd", "pgcd"])
def test_beams_find_the_most_probable_answers(lookahead: dict[str, Any] | None) -> None:
    """With enough beams, the scores of complete answers are the model's, in its order."""
    automata = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()]
    proposal = None if lookahead is None else smc.PGCD(random_hmm(), **lookahead)
    processor = smc.BudgetLogitsProcessor(automata, 4, proposal)
    found = generate(
        PROMPTS[:2], 4, processor, num_beams=12, num_return_sequences=4, length_penalty=0.0,
        early_stopping="never", return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    for i, automaton in enumerate(automata):
        ranked = sorted(
            ((log_p_of(PROMPTS[i], answer), answer) for answer in answers(automaton, 4)),
            reverse=True,
        )[:4]
        rows = slice(4 * i, 4 * i + 4)
        assert [answer_of(row, 4) for row in found.sequences[rows]] == [a for _, a in ranked]
        scores = found.sequences_scores[rows].tolist()
        assert scores == pytest.approx([log_p for log_p, _ in ranked], abs=1e-4)


def test_more_beams_than_answers() -> None:
    """Extra beams contain impossible sequences, which must not affect the others."""
    processor = smc.BudgetLogitsProcessor(CONSTRAINTS["forced"](), 3)
    found = generate([PROMPTS[1]], 3, processor, num_beams=5)
    assert VOCABULARY.decode(answer_of(found[0], 4)) == b"ba"


def test_one_processor_serves_many_calls() -> None:
    """Some prompts are an earlier prompt with a part of its answer, or all of it."""
    automaton = CONSTRAINTS["a_star_b"]()
    processor = smc.BudgetLogitsProcessor(automaton, 6)
    prompt = [0, 1]
    first = list(greedy(prompt, automaton, 6))
    prompts = [prompt, prompt, *(prompt + first[:t] for t in range(1, len(first) + 1)), [1]]
    for each in prompts:
        found = generate([each], 6, processor)
        assert answer_of(found[0], len(each)) == greedy(each, automaton, 6)
        beams = generate([each], 6, processor, num_beams=3)
        fresh = generate([each], 6, smc.BudgetLogitsProcessor(automaton, 6), num_beams=3)
        assert torch.equal(beams, fresh)


def test_threads_share_a_processor() -> None:
    automata = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()]
    processor = smc.BudgetLogitsProcessor(automata, 4)

    def decode(turn: int) -> torch.Tensor:
        return generate(
            [PROMPTS[turn % 3], PROMPTS[turn % 2]], 4, processor, num_beams=1 + turn % 4
        )

    alone = [decode(turn) for turn in range(12)]
    with ThreadPoolExecutor(4) as threads:
        assert all(map(torch.equal, threads.map(decode, range(12)), alone))


def test_an_encoder_and_a_decoder() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCABULARY.size, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        eos_token_id=[3, 5], pad_token_id=4, decoder_start_token_id=4,
    )  # fmt: skip
    both = transformers.T5ForConditionalGeneration(config).eval()
    automata = [CONSTRAINTS["few_words"](), CONSTRAINTS["forced"]()]
    processor = smc.BudgetLogitsProcessor(automata, 4)
    found = both.generate(
        **padded(PROMPTS[1:]), logits_processor=[processor], max_new_tokens=4, num_beams=3
    )
    for row, automaton in zip(found, automata, strict=True):
        assert answer_of(row, 1) in answers(automaton, 4)


def test_a_part_of_the_answer_is_given() -> None:
    automaton = CONSTRAINTS["a_star_b"]()
    first = greedy([0, 1], automaton, 6)
    processor = smc.BudgetLogitsProcessor(automaton, 6, prompt_length=2)
    found = generate([[0, 1, first[0]]], 5, processor)
    assert answer_of(found[0], 2) == first


# A real checkpoint, and an assistant


@pytest.mark.parametrize("draft", ["assistant", "lookup"])
def test_assisted_decoding_agrees_with_greedy_search(draft: str) -> None:
    wrapped = stories(dtype=torch.float32)
    lm, tokenizer = wrapped.model, wrapped.tokenizer
    sentence = lift(regex(r" The [a-z]{2,8} (was|is) [a-z ]{3,30}\."), wrapped.vocabulary)
    budget = sentence.fewest_tokens + 4
    processor = smc.BudgetLogitsProcessor(sentence, budget)
    helper = {"assistant_model": lm} if draft == "assistant" else {"prompt_lookup_num_tokens": 4}
    for text in ("Tom had a ball. The ball was red.", "Once upon a time there was a dog."):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        options = {"logits_processor": [processor], "max_new_tokens": budget}
        found = lm.generate(**inputs, **options, **helper)
        assert found.tolist() == lm.generate(**inputs, **options).tolist()
    if draft == "assistant":
        drawn = lm.generate(**inputs, **options, **helper, do_sample=True)
        row = drawn[0, inputs["input_ids"].shape[1] :].tolist()
        assert sentence.accepts(row[:-1])
        assert row[-1] in sentence.vocabulary.eos_ids


# Bad input


class Forbids(transformers.LogitsProcessor):
    """A processor that forbids a token, or allows it again."""

    def __init__(self, token: int, score: float = -torch.inf) -> None:
        self.token, self.score = token, score

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self.token] = self.score
        return scores


@pytest.mark.parametrize("lookahead", [None, {}], ids=["gcd", "pgcd"])
def test_a_processor_that_forbids_all_that_is_allowed(lookahead: dict[str, Any] | None) -> None:
    proposal = None if lookahead is None else smc.PGCD(random_hmm(), **lookahead)
    processor = smc.BudgetLogitsProcessor(CONSTRAINTS["forced"](), 3, proposal)
    with pytest.raises(ValueError, match=r"allowed after 0 tokens \(token 1 \(b'b'\)\)"):
        generate([[1]], 3, processor, suppress_tokens=[1])
    with pytest.raises(ValueError, match=r"allowed after 2 tokens \(token 3 .* and 1 more\)"):
        generate([[1]], 3, processor, suppress_tokens=[3, 5])


def test_a_processor_that_allows_forbidden_tokens_again() -> None:
    processor = smc.BudgetLogitsProcessor(CONSTRAINTS["forced"](), 3)
    with pytest.raises(ValueError, match=r"row 0, got token 0 \(b'a'\), .* last"):
        model().generate(
            torch.tensor([[1]]), logits_processor=[processor, Forbids(0, 99.0)], max_new_tokens=3
        )


def test_calls_that_do_not_fit() -> None:
    automaton, other = CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()
    processor = smc.BudgetLogitsProcessor(automaton, 6)
    for tokens in (5, 7):
        with pytest.raises(ValueError, match=f"the budget 6, got {tokens};"):
            generate([[1]], tokens, processor)
    with pytest.raises(ConstraintError, match=r"EOS ids \[3, 5\], got \[3\];"):
        generate([[1]], 6, processor, eos_token_id=3)
    with pytest.raises(ValueError, match=r"expected as many prompts as constraints \(2\), got 3"):
        generate(PROMPTS, 6, smc.BudgetLogitsProcessor([automaton, other], 6))
    with pytest.raises(ValueError, match=r"expected as many prompts as constraints \(1\), got 2"):
        generate(PROMPTS[:2], 6, smc.BudgetLogitsProcessor([automaton], 6), num_beams=2)
    wide = lift(choice("ab"), Vocabulary.from_bytes([b"a", b"b", b"", b"", b"", b"", b""], [3, 5]))
    with pytest.raises(ConstraintError, match="of 7 tokens, as in the constraint, got scores of 6"):
        generate([[1]], 6, smc.BudgetLogitsProcessor(wide, 6))


def test_outside_of_generate_the_prompt_must_be_known() -> None:
    automaton, scores = CONSTRAINTS["a_star_b"](), torch.zeros(3, VOCABULARY.size)
    with pytest.raises(ValueError, match="pass prompt_length="):
        smc.BudgetLogitsProcessor(automaton, 6)(torch.ones(3, 2, dtype=torch.int64), scores)
    short = smc.BudgetLogitsProcessor(automaton, 6, prompt_length=3)
    with pytest.raises(ValueError, match=r"prompt_length to be at most .* \(2\), got 3"):
        short(torch.ones(3, 2, dtype=torch.int64), scores)
    both = smc.BudgetLogitsProcessor([automaton] * 2, 6, prompt_length=2)
    with pytest.raises(ValueError, match=r"expected as many rows as constraints \(2\), got 3"):
        both(torch.ones(3, 2, dtype=torch.int64), scores)


def test_a_version_of_transformers_that_names_things_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate_call, "_NEEDED", {"input_ids_length", "something_else"})
    with pytest.raises(ValueError, match="pass prompt_length="):
        generate([[1]], 6, smc.BudgetLogitsProcessor(CONSTRAINTS["a_star_b"](), 6))


@pytest.mark.usefixtures("unchecked_annotations")
def test_arguments_that_make_no_sense() -> None:
    automaton = CONSTRAINTS["a_star_b"]()
    with pytest.raises(InfeasibleBudgetError, match="constraint 1: needs at least 2 tokens"):
        smc.BudgetLogitsProcessor([CONSTRAINTS["few_words"](), automaton], [6, 1])
    with pytest.raises(ValueError, match=r"one per constraint \(2\), got 1"):
        smc.BudgetLogitsProcessor([automaton] * 2, [6])
    with pytest.raises(ConstraintError, match=r"a TokenAutomaton, got Automaton; use gcd.lift"):
        smc.BudgetLogitsProcessor(choice("a"), 6)  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match="at least one"):
        smc.BudgetLogitsProcessor([], 6)
    with pytest.raises(ValueError, match=r"expected lookahead to be a proposal .* got LCD"):
        smc.BudgetLogitsProcessor(automaton, 6, smc.LCD())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected lookahead to be a proposal .* got <class"):
        smc.BudgetLogitsProcessor(automaton, 6, smc.HMMLookahead)  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match=r"whole number of tokens, got 6\.0"):
        smc.BudgetLogitsProcessor(automaton, 6.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected prompt_length to be a whole number, got 4\.0"):
        smc.BudgetLogitsProcessor(automaton, 6, prompt_length=4.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt_length to be at least 0, got -1"):
        smc.BudgetLogitsProcessor(automaton, 6, prompt_length=-1)
    endless = lift(choice("a"), Vocabulary.from_bytes([b"a"], []), eos="accept")
    with pytest.raises(ConstraintError, match="expected a constraint with an EOS token"):
        smc.BudgetLogitsProcessor(endless, 6)
