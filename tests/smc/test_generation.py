"""`generate` of `transformers`, with particles and with the logits processor.

Particles give the results of `smc.sample` in its format and by its rules. The processor is compared
with enumeration and with the proposals of the sampler, in all decoding methods.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

import smc
from gcd import AutomatonBatch, Segment, TokenAutomaton, Vocabulary, lift, regex, segments
from smc._models.suitability import num_logits
from smc._transformers.generation import restrict
from smc._vocabulary.factors import defend
from smc.testing import ToyLM, target
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, stories, tiny_model
from tests.smc.walks import random_hmm

transformers = pytest.importorskip("transformers")

PAD = 4
CONSTRAINT = CONSTRAINTS["a_star_b"]()
SEVERAL = {"do_sample": True, "top_k": 0}  # required by generate for several sequences
PROMPTS = [[1], [0, 1, 2, 2], [2, 1]]


def padded(sequences: list[list[int]]) -> dict[str, torch.Tensor]:
    """Inputs of `generate`, padded on the left."""
    width = max(map(len, sequences))
    ids = [[PAD] * (width - len(each)) + each for each in sequences]
    mask = [[0] * (width - len(each)) + [1] * len(each) for each in sequences]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


INPUTS = padded(PROMPTS)


@cache
def model() -> Any:
    return tiny_model()


def automata() -> list[Any]:
    return [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "a_star_b")]


def test_the_posteriors_are_those_of_the_sampler() -> None:
    """Use left padding, a constraint per prompt, temperature, top_p and an observer."""
    steps: list[smc.Observation] = []
    decode = smc.generate(
        automata(), particles=8, seed=5, algorithm=smc.SMC(resampling="multinomial"),
        hooks=smc.Hooks(observe=lambda _: steps.append),
    )  # fmt: skip
    found = model().generate(
        **INPUTS, custom_generate=decode, max_new_tokens=6, temperature=0.7, top_p=0.95,
        return_dict_in_generate=True,
    )  # fmt: skip
    expected = sample_with(
        smc.TransformersLM(model(), None, VOCABULARY), PROMPTS, automata(), max_tokens=6,
        particles=8, proposal=restrict(smc.GCD(), 0.95), seed=5, temperature=0.7,
        resampling="multinomial",
    )  # fmt: skip
    assert steps
    for one, other in zip(found.posteriors, expected, strict=True):
        assert one.particles == other.particles
        assert one.answers == other.answers
        assert (one.log_evidence, one.bounds) == (None, None)
        assert (one.exact, one.enumerated) == (False, False)
        assert one.reliability.label in ("collapsed", "unknown")
    assert found["sequences"] is found.sequences


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_sequences_are_draws_from_the_posterior(algorithm: str) -> None:
    """Padding follows their end."""
    many, decode = 3000, smc.generate(automata(), particles=4, seed=1, algorithm=algorithm)
    found = model().generate(
        **INPUTS, custom_generate=decode, max_new_tokens=5, num_return_sequences=many,
        **SEVERAL, return_dict_in_generate=True,
    )  # fmt: skip
    assert found.sequences.shape[0] == 3 * many
    assert torch.equal(found.sequences[:, :4], INPUTS["input_ids"].repeat_interleave(many, dim=0))
    lengths = set()
    for i, posterior in enumerate(found.posteriors):
        rows = found.sequences[i * many : (i + 1) * many]
        counts = Counter(answer_of(row, 4, {PAD}) for row in rows)
        lengths |= set(map(len, counts))
        weights: Counter[Answer] = Counter()
        for particle in posterior.particles:
            weights[particle.ids] += math.exp(particle.log_weight)
        assert set(counts) <= set(weights)
        for ids, weight in weights.items():
            share = weight / weights.total()
            error = 4.5 * math.sqrt(share * (1 - share) / many) + 1e-9
            assert counts[ids] / many == pytest.approx(share, abs=error)
    assert len(lengths) > 1
    assert max(lengths) + 4 == found.sequences.shape[1]


def test_the_generator_of_torch_decides_where_no_seed_is_given() -> None:
    decode, seeded = smc.generate(automata()), smc.generate(automata(), seed=3)

    def draw(custom: Any) -> list[list[int]]:
        options = {"max_new_tokens": 8, "num_return_sequences": 5, **SEVERAL}
        return model().generate(**INPUTS, custom_generate=custom, **options).tolist()

    model()  # created once, from the same generator
    torch.manual_seed(0)
    first, second = draw(decode), draw(decode)
    torch.manual_seed(0)
    assert draw(decode) == first != second
    assert draw(seeded) == draw(seeded)


def test_a_prompt_without_a_mask_and_max_length_and_a_deadline() -> None:
    found = model().generate(
        torch.tensor([[0, 1]]), custom_generate=smc.generate(CONSTRAINT, deadline=0),
        max_length=7, return_dict_in_generate=True,
    )  # fmt: skip
    assert found.posteriors[0].valid
    assert found.sequences.shape[1] <= 7
    assert found.posteriors[0].stopped == "deadline"


def test_the_dead_get_padding() -> None:
    bare = smc.generate(CONSTRAINTS["forced"](), particles=1, proposal=smc.LM(), seed=0)
    found = model().generate(
        torch.tensor([[0, 1]]), custom_generate=bare, max_new_tokens=3,
        return_dict_in_generate=True, num_return_sequences=2, **SEVERAL,
    )  # fmt: skip
    assert found.posteriors[0].dead
    assert found.sequences.tolist() == [[0, 1]] * 2


class Recorder(transformers.generation.BaseStreamer):
    """A streamer that accepts several rows."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        assert self.ends == 0
        self.given.append(value)

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_streamer_gets_prompts_then_answers_as_in_sampling(wrapped: bool) -> None:
    decode = smc.generate(automata(), seed=2)
    custom = (lambda *args, **options: decode(*args, **options)) if wrapped else decode
    mine, other = Recorder(), Recorder()
    found = model().generate(**INPUTS, custom_generate=custom, max_new_tokens=9, streamer=mine)
    columns = [INPUTS["input_ids"], *found[:, 4:].unbind(dim=1)]
    assert len(columns) > 2
    assert [each.tolist() for each in mine.given] == [each.tolist() for each in columns]
    assert mine.ends == 1
    model().generate(**INPUTS, max_new_tokens=9, streamer=other)
    assert [each.shape for each in other.given[:2]] == [each.shape for each in mine.given[:2]]


@pytest.mark.parametrize("options", [{"num_beams": 1, "min_p": 0.5}, {"max_new_tokens": 1}, {}])
def test_a_streamer_is_ended_where_there_is_no_answer(idle: Any, options: dict[str, Any]) -> None:
    """Rejected by name, rejected by the sampler, or a failing model."""
    decode, streamer = smc.generate(CONSTRAINTS["a_star_b"]()), Recorder()
    options = {"max_new_tokens": 6, "custom_generate": decode, **options}
    with pytest.raises((ValueError, AssertionError), match=r"min_p|needs at least 2|was asked"):
        idle.generate(**INPUTS, streamer=streamer, **options)
    assert streamer.ends == 1
    assert len(streamer.given) == 1


@pytest.fixture
def idle() -> Any:
    """A model that must not be called."""
    idle = tiny_model()
    num_logits(idle)  # calls it once

    def asked(*_: Any) -> None:
        raise AssertionError("the model was asked")

    idle.register_forward_pre_hook(asked)
    return idle


class Fixed(transformers.LogitsProcessor):
    """A processor that gives a token this score."""

    def __init__(self, token: int, score: float) -> None:
        self.token, self.score = token, score

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self.token] = self.score
        return scores


def read_before() -> Any:
    """A cache with two tokens."""
    cache = transformers.DynamicCache()
    tiny_model()(torch.tensor([[1, 2]]), past_key_values=cache)
    return cache


WIDE = lift(choice("ab"), Vocabulary.from_bytes([b"a", b"b", b"", b"", b"", b"", b""], [3, 5]))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 50}, "top_k=50;"),
    ({"do_sample": True}, r"top_k=50 \(50 is the default .*: pass top_k=0\)"),
    ({"repetition_penalty": 1.2}, "got repetition_penalty=1.2; omit it"),
    ({"logits_processor": [Fixed(0, 0.0)]}, "got Fixed; .* use smc.BudgetLogitsProcessor"),
    ({"temperature": 0.0}, "expected temperature to be positive and finite, got 0.0"),
    ({"eos_token_id": [3, 1]}, r"EOS ids \[3, 5\], got the additional EOS ids \[1\]"),
    ({"position_ids": torch.arange(4).expand(3, 4)}, "expected position_ids that start at 0"),
    ({"inputs_embeds": torch.zeros(3, 4, 8)}, "inputs_embeds"),
    ({"past_key_values": read_before()}, "empty (past_key_values|cache), got one with 2 tokens"),
    ({"attention_mask": INPUTS["attention_mask"].flip(1)}, "expected attention_mask"),
    ({"assistant_model": tiny_model()}, "assistant_model=LlamaForCausalLM"),
    ({"max_new_tokens": 1}, "example 0: needs at least 2 tokens"),
    ({"max_new_tokens": 80}, "context of 64 tokens"),
    (
        {"custom_generate": smc.generate([CONSTRAINT] * 2)},
        r"expected as many constraints as prompts \(3\), got 2",
    ),
    ({"custom_generate": smc.generate(WIDE)}, "over 6 tokens, as in the model, got one over 7"),
    (
        {"custom_generate": smc.generate(CONSTRAINT, certify=0.9), "top_p": 0.9},
        r"expected top_p=1 with certify, .* got top_p=0.9",
    ),
]


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize(
    ("options", "message"), REFUSED, ids=[", ".join(options) for options, _ in REFUSED]
)
def test_what_cannot_be_honored_is_refused_by_name(
    idle: Any, options: dict[str, Any], message: str
) -> None:
    decode = smc.generate(CONSTRAINT)
    with pytest.raises(ValueError, match=message):
        idle.generate(**{**INPUTS, "max_new_tokens": 6, "custom_generate": decode, **options})


OF_MODEL: dict[str, dict[str, Any]] = {
    "most": {
        "top_k": 20, "repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "typical_p": 0.9,
        "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "guidance_scale": 2.0, "num_beams": 3,
        "min_new_tokens": 3, "remove_invalid_values": True, "output_scores": True, "min_p": 0.1,
        "output_hidden_states": True, "suppress_tokens": [2], "begin_suppress_tokens": [2],
        "bad_words_ids": [[1]], "sequence_bias": [[[1], 2.0]], "forced_bos_token_id": 1,
        "forced_eos_token_id": 3, "exponential_decay_length_penalty": (3, 1.5), "max_time": 9.0,
    },
    "drafts": {"prompt_lookup_num_tokens": 3},
    "length": {"min_length": 3},
    "default": {"top_k": 50, "do_sample": True},
    "default without sampling": {"top_k": 50},
    "temperature": {"temperature": 0.0},
    "nucleus": {"top_p": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MODEL)
def test_settings_of_the_model_are_refused_as_its_own(name: str) -> None:
    """Following the error message gives answers."""
    tiny, decode = tiny_model(), smc.generate(CONSTRAINT)
    for setting, value in OF_MODEL[name].items():
        setattr(tiny.generation_config, setting, value)
    options = {**INPUTS, "custom_generate": decode, "max_new_tokens": 6}
    with pytest.raises(ValueError, match="the model's generation_config sets") as found:
        tiny.generate(**options)
    message = str(found.value)
    for setting, value in OF_MODEL[name].items():
        assert setting == "do_sample" or f"{setting}={value!r}" in message
    for setting in re.findall(r"set model\.generation_config\.(\w+) = None", message):
        setattr(tiny.generation_config, setting, None)
    passed = re.search(r"pass (.*?) to generate", message)
    if passed:
        options |= eval(f"dict({passed[1]})")
    assert len(tiny.generate(**options)) == 3


def test_settings_that_are_passed_are_not_said_to_be_the_model_s() -> None:
    tiny = tiny_model()
    tiny.generation_config.top_k = 7
    options = {**INPUTS, "custom_generate": smc.generate(CONSTRAINT)}
    with pytest.raises(ValueError, match="got top_k=7; omit it"):
        tiny.generate(**options, max_new_tokens=6, top_k=7)
    config = transformers.GenerationConfig(max_new_tokens=6, top_k=8)
    with pytest.raises(ValueError, match="got top_k=8; omit it"):
        tiny.generate(**options, generation_config=config)


# -- the logits processor --------------------------------------------------------------------------


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


def log_p_after(ids: list[int]) -> torch.Tensor:
    """Return log p(next | ids) without batch and cache."""
    with torch.no_grad():
        return model()(torch.tensor([ids])).logits[0, -1].double().log_softmax(dim=0)


def log_p_of(prompt: list[int], answer: Answer) -> float:
    each = [log_p_after([*prompt, *answer[:t]])[v] for t, v in enumerate(answer)]
    return float(sum(each))


def answer_of(
    row: torch.Tensor, start: int, after: Set[int] = frozenset({PAD, *VOCABULARY.eos_ids})
) -> Answer:
    """A generated row up to EOS; these tokens may follow."""
    ids = row[start:].tolist()
    ends = [t for t, token in enumerate(ids) if token in VOCABULARY.eos_ids]
    assert ends, ids
    assert set(ids[ends[0] + 1 :]) <= after
    return tuple(ids[: ends[0] + 1])


def segmented() -> TokenAutomaton:
    """Any number of b, then a, in at most two tokens; then a word, which `ab` may straddle."""
    plan = segments([
        Segment(regex("b*"), until="a", tokens=2), Segment(regex("b|ba|abb"), tokens=3),
    ])  # fmt: skip
    return lift(plan, VOCABULARY)


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
    groups = [[each for each in table if len(each) == t] for t in range(max(map(len, table)) + 1)]
    for group in [*groups, *groups[::-1], *groups[::2]]:
        some = [group[i] for i in torch.randint(len(group), (5,), generator=generator)]
        ids = torch.tensor([[4, i % 3, *prefix] for i, prefix in enumerate(some)])
        scores = torch.randn(5, VOCABULARY.size, generator=generator)
        found = processor(ids, scores)
        for row, prefix in enumerate(some):
            allowed = [token in table[prefix] for token in range(VOCABULARY.size)]
            expected = scores[row].masked_fill(~torch.tensor(allowed), -torch.inf)
            assert torch.equal(found[row], expected), prefix


def log_q_after(proposal: smc.PGCD, prefix: Answer, log_p: torch.Tensor) -> torch.Tensor:
    """Return the sampler's log q of the next token, for log p, within six tokens."""
    state = proposal.start(smc.Batch(AutomatonBatch([CONSTRAINT]), torch.tensor([6])))
    for token in prefix:
        state = proposal.advance(state, torch.tensor([[token]]))
    log_p = log_p.log_softmax(dim=-1).view(1, -1)
    return defend(proposal.guide(state, log_p), log_p).apply(log_p).log_softmax(dim=1)


TWISTED: list[dict[str, Any]] = [
    {},
    {"exact_top_k": None, "defense": 0.0},
    {"exact_top_k": 1, "lookahead": "in_time"},
    {"lookahead": "joint"},
]


@pytest.mark.parametrize("options", TWISTED, ids=str)
def test_twisted_scores_are_the_samplers_own(options: dict[str, Any]) -> None:
    proposal = smc.PGCD(random_hmm(), **options)
    given = proposal if options else smc.HMMLookahead(random_hmm())  # twisted by default
    processor = smc.BudgetLogitsProcessor(CONSTRAINT, 6, given, prompt_length=1)
    generator = torch.Generator().manual_seed(0)
    for prefix in prefixes(answers(CONSTRAINT, 6)):
        scores = torch.randn(1, VOCABULARY.size, generator=generator)
        ids = torch.tensor([[0, *prefix]])
        found = processor(ids, scores)
        expected = log_q_after(proposal, prefix, scores)
        torch.testing.assert_close(found.double().log_softmax(dim=1), expected, atol=1e-5, rtol=0)
        fresh = smc.BudgetLogitsProcessor(CONSTRAINT, 6, proposal, prompt_length=1)
        assert torch.equal(fresh(ids, scores), found)  # the state depends on the tokens only


def test_what_is_over_ends_again() -> None:
    """Finished, padded, invalid and late rows, as in beam search, beside running ones."""
    automaton = CONSTRAINTS["few_words"]()
    processor = smc.BudgetLogitsProcessor(automaton, 4, prompt_length=1)
    rows = [[0, 0, 3, 4], [0, 1, 0, 3], [0, 0, 0, 0], [0, 1, 1, 1]]
    found = processor(torch.tensor(rows), torch.zeros(4, VOCABULARY.size))
    ends = [0.0 if token in VOCABULARY.eos_ids else -torch.inf for token in range(6)]
    assert found.tolist() == [ends] * 4


def decode_with(
    prompts: list[list[int]], budget: int, processor: smc.BudgetLogitsProcessor, **options: Any
) -> Any:
    return model().generate(
        **padded(prompts), logits_processor=[processor], max_new_tokens=budget, **options
    )


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
        found = decode_with([PROMPTS[i] for i in order], 7, processor)
        for place, row in enumerate(found):
            expected = greedy(PROMPTS[order[place]], automata[place], budgets[place])
            assert answer_of(row, 4) == expected


def test_sampled_scores_are_the_twisted_ones_at_any_temperature() -> None:
    proposal, temperature = smc.PGCD(random_hmm()), 0.5
    processor = smc.BudgetLogitsProcessor(CONSTRAINT, 6, proposal)
    torch.manual_seed(0)
    found = decode_with(
        [PROMPTS[1]], 6, processor, do_sample=True, top_k=0, temperature=temperature,
        num_return_sequences=8, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    for row, sequence in enumerate(found.sequences):
        answer = answer_of(sequence, 4)
        for t in range(len(answer)):
            log_p = log_p_after([*PROMPTS[1], *answer[:t]]) / temperature
            expected = log_q_after(proposal, answer[:t], log_p)[0]
            scores = found.scores[t][row].double().log_softmax(dim=0)
            torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)


EXACT = {"exact_top_k": None, "defense": 0.0}


@pytest.mark.parametrize("lookahead", [None, EXACT], ids=["gcd", "pgcd"])
def test_beams_find_the_most_probable_answers(lookahead: dict[str, Any] | None) -> None:
    """With enough beams, the scores of complete answers are the model's, in its order."""
    automata = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()]
    proposal = None if lookahead is None else smc.PGCD(random_hmm(), **lookahead)
    processor = smc.BudgetLogitsProcessor(automata, 4, proposal)
    found = decode_with(
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


def test_threads_share_a_processor() -> None:
    automata = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"]()]
    shared = smc.BudgetLogitsProcessor(automata, 4)

    def decode(turn: int, processor: smc.BudgetLogitsProcessor = shared) -> torch.Tensor:
        prompts = [PROMPTS[turn % 3], PROMPTS[turn % 2]]
        return decode_with(prompts, 4, processor, num_beams=1 + turn % 4)

    alone = [decode(turn, smc.BudgetLogitsProcessor(automata, 4)) for turn in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert all(map(torch.equal, threads.map(decode, range(8)), alone))


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


def test_a_processor_that_forbids_all_that_is_allowed() -> None:
    processor = smc.BudgetLogitsProcessor(CONSTRAINTS["forced"](), 3, smc.PGCD(random_hmm()))
    with pytest.raises(ValueError, match=r"allowed after 0 tokens \(token 1 \(b'b'\)\)"):
        decode_with([[1]], 3, processor, suppress_tokens=[1])
    with pytest.raises(ValueError, match=r"allowed after 2 tokens \(token 3 .* and 1 more\)"):
        decode_with([[1]], 3, processor, suppress_tokens=[3, 5])


def test_a_processor_that_allows_forbidden_tokens_again() -> None:
    processor = smc.BudgetLogitsProcessor(CONSTRAINTS["forced"](), 3)
    with pytest.raises(ValueError, match=r"row 0, got token 0 \(b'a'\), .* last"):
        model().generate(
            torch.tensor([[1]]), logits_processor=[processor, Fixed(0, 99.0)], max_new_tokens=3
        )


MISFITS: list[tuple[Any, list[list[int]], dict[str, Any], str]] = [
    (CONSTRAINT, [[1]], {"max_new_tokens": 5}, "the budget 6, got 5;"),
    (CONSTRAINT, [[1]], {"max_new_tokens": 7}, "the budget 6, got 7;"),
    (CONSTRAINT, [[1]], {"eos_token_id": 3}, r"EOS ids \[3, 5\], got \[3\];"),
    ([CONSTRAINT] * 2, PROMPTS, {}, r"expected as many prompts as constraints \(2\), got 3"),
    ([CONSTRAINT], PROMPTS[:2], {"num_beams": 2}, r"prompts as constraints \(1\), got 2"),
    (WIDE, [[1]], {}, "of 7 tokens, as in the constraint, got scores of 6"),
]


@pytest.mark.parametrize(("constraint", "prompts", "options", "message"), MISFITS)
def test_calls_that_do_not_fit(
    constraint: Any, prompts: list[list[int]], options: dict[str, Any], message: str
) -> None:
    given = {"logits_processor": [smc.BudgetLogitsProcessor(constraint, 6)], "max_new_tokens": 6}
    with pytest.raises(ValueError, match=message):
        model().generate(**padded(prompts), **{**given, **options})


@pytest.mark.parametrize(
    ("count", "length", "message"),
    [
        (1, None, "pass prompt_length="),
        (1, 3, r"prompt_length to be at most .* \(2\), got 3"),
        (2, 2, r"expected as many rows as constraints \(2\), got 3"),
    ],
)
def test_outside_of_generate_the_prompt_must_be_known(
    count: int, length: int | None, message: str
) -> None:
    processor = smc.BudgetLogitsProcessor([CONSTRAINT] * count, 6, prompt_length=length)
    with pytest.raises(ValueError, match=message):
        processor(torch.ones(3, 2, dtype=torch.int64), torch.zeros(3, VOCABULARY.size))


def test_a_version_of_transformers_that_names_things_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate_call, "_NEEDED", {"input_ids_length", "something_else"})
    with pytest.raises(ValueError, match="pass prompt_length="):
        decode_with([[1]], 6, smc.BudgetLogitsProcessor(CONSTRAINTS["a_star_b"](), 6))
