"""Continuous batching of `transformers`: greedy answers against `generate`, samples against
enumeration, restarts when memory runs out, and rejected requests.
"""

from __future__ import annotations

import gc
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smc
from gcd._errors import ConstraintError, InfeasibleBudgetError
from gcd._languages.text.regex import regex
from gcd._serving.pool import DEAD
from gcd._serving.token_lists import TokenReader
from gcd._tokens.lifting import lift
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary
from tests.smc.test_logits_processor import Answer, answers, prefixes
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

transformers = pytest.importorskip("transformers")

MODEL = tiny_model()
Request = tuple[tuple[int, ...], TokenAutomaton | None, int]
"""A prompt, a constraint, and a budget."""


def manager_of(options: dict[str, Any] | None = None, model: Any = None, **config: Any) -> Any:
    """A manager that isn't started, with little memory on request."""
    settings = {"use_async_batching": False, "use_cuda_graph": False, "seed": 0}
    known = inspect.signature(transformers.ContinuousBatchingConfig).parameters
    size = "page_size" if "page_size" in known else "block_size"  # name in version 5.17
    settings |= {"num_blocks": 64, size: 8, "max_batch_tokens": 32, **config}
    generation = transformers.GenerationConfig(
        eos_token_id=[3, 5], pad_token_id=4, **{"do_sample": False, **(options or {})}
    )
    batching = transformers.ContinuousBatchingConfig(**settings)
    # The manager changes the model's attention, so it has its own model.
    return (model or tiny_model()).init_continuous_batching(generation, batching)


def run(manager: Any, requests: Sequence[Request], **options: Any) -> list[list[Answer]]:
    """The answers to each of these requests, which run together."""
    processor = smc.BudgetBatchProcessor(manager)
    manager.start()
    names = []
    for prompt, automaton, budget in requests:
        if automaton is None:
            names.append(manager.add_request(list(prompt), max_new_tokens=budget))
        else:
            names.append(processor.add_request(prompt, automaton, budget, **options))
    found: dict[str, list[Answer]] = {name: [] for name in names}
    for _ in range(len(names) * manager.num_return_sequences):
        output = manager.get_result(timeout=60)
        assert output is not None
        assert output.error is None
        found[output.request_id.split("__child")[0]].append(tuple(output.generated_tokens))
    manager.stop(block=True)
    return [found[name] for name in names]


def fewest(automaton: TokenAutomaton) -> int:
    return automaton.fewest_tokens


def greedy(prompt: tuple[int, ...], automaton: TokenAutomaton | None, budget: int) -> Answer:
    """The answer of `generate`."""
    masks = [smc.BudgetLogitsProcessor(automaton, budget)] if automaton else []
    ids = torch.tensor([prompt])
    found = MODEL.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget,
        do_sample=False, logits_processor=masks,
    )  # fmt: skip
    return tuple(found[0, len(prompt) :].tolist())


def mixed(count: int) -> list[Request]:
    """Requests with and without constraints, with tight and loose budgets."""
    kinds = [*(make() for make in CONSTRAINTS.values()), None]
    found: list[Request] = []
    for number in range(count):
        automaton = kinds[number % len(kinds)]
        tokens = 5 if automaton is None else fewest(automaton)
        prompt = tuple((number + k) % 3 for k in range(1 + number % 5))
        found.append((prompt, automaton, tokens + number % 3))
    return found


def test_greedy_answers_are_those_of_generate():
    requests = mixed(24)
    found = run(manager_of(), requests)
    assert found == [[greedy(*request)] for request in requests]


def test_requests_that_start_again_for_want_of_memory():
    """Four blocks of eight tokens are too small for two complete requests."""
    words = lift(regex("(a|b){12,14}"), VOCABULARY, literals="all")
    requests: list[Request] = [((0, 1, 2) * 2, words, 15) for _ in range(4)]
    restarts = Counter[str]()
    manager = manager_of(num_blocks=4, allow_block_sharing=False)
    create = transformers.generation.continuous_batching.requests.RequestState
    before = create.create_equivalent_initial_request

    def counted(state: Any) -> Any:
        restarts[state.request_id] += 1
        return before(state)

    create.create_equivalent_initial_request = counted
    try:
        found = run(manager, requests)
    finally:
        create.create_equivalent_initial_request = before
    assert restarts
    assert found == [[greedy(*request)] for request in requests]


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_samples_are_answers_with_the_law_of_the_masks(name: str):
    automaton = CONSTRAINTS[name]()
    budget, prompt, count = fewest(automaton) + 2, (0, 1), 400
    every = answers(automaton, budget)
    options = {"do_sample": True, "num_return_sequences": count}
    [found] = run(manager_of(options, num_blocks=2 * count), [(prompt, automaton, budget)])
    assert set(found) <= every
    assert len(found) == count
    expected = law_of_masks(prompt, every)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    drawn = Counter(found)
    distance = sum(abs(drawn[a] / count - p) for a, p in expected.items()) / 2
    assert distance < 0.1 * len(every) ** 0.5


def law_of_masks(prompt: tuple[int, ...], every: set[Answer]) -> dict[Answer, float]:
    """The probability of each answer if every step is renormalized over allowed tokens."""
    follows = prefixes(every)

    def probability(answer: Answer) -> float:
        product = 1.0
        for t, token in enumerate(answer):
            with torch.no_grad():
                logits = MODEL(torch.tensor([[*prompt, *answer[:t]]])).logits[0, -1]
            p = logits.double().softmax(dim=0)
            product *= float(p[token] / p[sorted(follows[answer[:t]])].sum())
        return product

    return {answer: probability(answer) for answer in every}


def test_top_k_and_top_p_are_applied_after_the_masks():
    """Without masks, the single token of a small nucleus would often be forbidden."""
    options = {"do_sample": True, "top_k": 1, "temperature": 0.7}
    requests = [request for request in mixed(16) if request[1] is not None]
    found = run(manager_of(options, per_request_processors=True), requests, temperature=1.3)
    assert found == [[greedy(*request)] for request in requests]


def test_constraints_are_dropped_when_no_request_uses_them():
    manager = manager_of()
    processor = smc.BudgetBatchProcessor(manager)
    manager.start()
    automaton = CONSTRAINTS["few_words"]()
    for _ in range(3):
        processor.add_request((0,), automaton, 8)
    for _ in range(3):
        assert manager.get_result(timeout=60) is not None
    manager.stop(block=True)
    processor.prepare_tensor_args([])
    del manager
    gc.collect()
    with processor._lock:  # garbage collection runs anywhere, so it must not need the lock
        assert len(processor._left) == 3
    processor._enter(automaton)
    [entry] = processor._pool._entries.values()
    assert entry.users == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"budget": 1}, InfeasibleBudgetError, "at least 2 tokens"),
        ({"budget": 2.5}, ValueError, "expected budget .*got 2.5"),
        ({"constraint": regex("a")}, ConstraintError, "a TokenAutomaton, got Automaton"),
        ({"max_new_tokens": 9}, ValueError, "expected no max_new_tokens, .* got 9"),
        ({"prompt": [0, 6]}, ValueError, "from 0 to 5 in the prompt, got 6;"),
        ({"prompt": [0, -1, 1]}, ValueError, "in the prompt, got -1;"),
        ({"prompt": [2**70]}, ValueError, f"in the prompt, got {2**70};"),
        ({"prompt": "ab"}, ValueError, "to be text or token ids, got 'ab'"),
        ({"prompt": []}, ValueError, "at least one token"),
        ({"prompt": [0] * 65}, smc.PromptTooLongError, "65 tokens and a budget of 8"),
        ({"prompt": [0] * 57}, smc.PromptTooLongError, "context of 64 tokens"),
        ({"temperature": 0}, ValueError, "expected temperature .*got 0.0"),
        ({"temperature": "hot"}, ValueError, "expected temperature to be a number, got 'hot'"),
        ({"top_k": 0}, ValueError, "expected top_k to be at least 1, got 0"),
        ({"top_p": 1.5}, ValueError, "expected top_p .*got 1.5"),
        (
            {"constraint": lift(regex("a"), Vocabulary.from_bytes([b"a", b""], 1))},
            ConstraintError, "the width of the logits",
        ),
        (
            {"constraint": lift(regex("a"), Vocabulary.from_bytes([b"a"] * 6, []), eos="accept")},
            ConstraintError, "a constraint with an EOS token",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked_annotations")
def test_requests_that_are_refused(change: dict[str, Any], error: type, message: str):
    processor = smc.BudgetBatchProcessor(manager_of())
    given = {"prompt": (0,), "constraint": CONSTRAINTS["a_star_b"](), "budget": 8, **change}
    with pytest.raises(error, match=message):
        processor.add_request(**given)


BAD: dict[str, tuple[Callable[[Any, Any], str], str]] = {
    "an id beyond the vocabulary": (
        lambda manager, _: manager.add_request([1, 6, 0], max_new_tokens=3), "prompt, got 6;",
    ),
    "a negative id": (lambda manager, _: manager.add_request([-1]), "in the prompt, got -1;"),
    "an id beyond 64 bits": (lambda manager, _: manager.add_request([2**70]), f"got {2**70};"),
    "one of several": (
        lambda manager, _: manager.add_requests([[0], [7], [1]], max_new_tokens=2)[1], "got 7;",
    ),
    "a temperature of 0": (
        lambda manager, _: manager.add_request([0], temperature=0.0), "finite, got 0.0;",
    ),
    "a prompt that no cache holds": (
        lambda manager, _: manager.add_request([0] * 33, max_new_tokens=2), "up to 34 tokens",
    ),
    "a budget that no cache holds": (
        lambda _, processor: processor.add_request([0] * 17, CONSTRAINTS["few_words"](), 17),
        "up to 33 tokens",
    ),
    "a name in use": (
        lambda _, processor: processor.add_request(
            [0], CONSTRAINTS["few_words"](), 8, request_id="first"
        ),
        "no unfinished request has, got 'first'",
    ),
    "an unknown option": (
        lambda _, processor: processor.add_request([0], CONSTRAINTS["few_words"](), 8, top_z=3),
        "top_z",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_request_fails_alone(name: str):
    """Requests before and after it are answered, and the manager accepts more."""
    add, message = BAD[name]
    manager = manager_of({"do_sample": True}, num_blocks=4, per_request_processors=True)
    processor = smc.BudgetBatchProcessor(manager)
    automaton = CONSTRAINTS["few_words"]()
    processor.add_request([0, 1], automaton, 8, request_id="first")
    bad = add(manager, processor)
    processor.add_request([2], automaton, 8, request_id="last")
    manager.start()
    count = 5 if name == "one of several" else 3
    found = [manager.get_result(timeout=60) for _ in range(count)]
    [failed] = [output for output in found if output.error]
    assert failed.request_id == bad
    assert message in failed.error
    assert not failed.generated_tokens
    for output in found:
        if output is not failed and output.request_id in ("first", "last"):
            assert tuple(output.generated_tokens) in answers(automaton, 8)
    processor.add_request([1], automaton, 8, request_id="first")  # the name is free again
    assert manager.get_result(timeout=60).error is None
    assert manager.is_running()
    manager.stop(block=True)


def test_a_budget_that_just_fits_the_cache_is_answered():
    """The last token of an answer is never computed."""
    words = lift(regex("(a|b){14,16}"), VOCABULARY, literals="all")
    requests = [((0,) * 16, words, 17)] * 2
    assert run(manager_of(num_blocks=4), requests) == [[greedy(*requests[0])]] * 2


@pytest.mark.parametrize(
    ("value", "message"), [(torch.nan, "NaN"), (torch.inf, "NaN"), (-torch.inf, "probability zero")]
)
def test_scores_that_decide_nothing_end_the_request(value: float, message: str):
    """The answer is never the `argmax` of such scores; other requests continue."""
    manager = manager_of()
    processor = smc.BudgetBatchProcessor(manager)
    prompt_lengths: list[int] = []
    prepare = processor.prepare_tensor_args
    call = type(processor).__call__

    def spied(requests: list) -> Any:
        prompt_lengths[:] = [len(each.state.initial_tokens) for each in requests]
        return prepare(requests)

    class Spoiling(type(processor)):  # type: ignore[misc]
        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            for row, length in enumerate(prompt_lengths):
                if length == 2:
                    scores[row, :3] = value
            return call(self, scores, tensor_arg)

    processor.prepare_tensor_args = spied
    processor.__class__ = Spoiling
    automaton = CONSTRAINTS["few_words"]()
    names = [processor.add_request([0] * n, automaton, 8) for n in (1, 2, 3)]
    manager.start()
    found = {output.request_id: output for _ in names if (output := manager.get_result(timeout=60))}
    manager.stop(block=True)
    assert message in found[names[1]].error
    assert len(found[names[1]].generated_tokens) == 1
    for name, length in zip(names[::2], (1, 3), strict=True):
        assert found[name].error is None
        assert tuple(found[name].generated_tokens) == greedy((0,) * length, automaton, 8)


def test_a_head_wider_than_the_embedding():
    """The additional ids occur neither in prompts nor in answers."""
    model = tiny_model()
    model.lm_head.register_forward_hook(
        lambda module, given, out: torch.nn.functional.pad(out, (0, 4), value=50.0)
    )
    wide = Vocabulary.from_bytes([*VOCABULARY.token_bytes, *[b""] * 4], VOCABULARY.eos_ids)
    automaton = lift(regex("a*b"), wide)
    manager = manager_of(model=model)
    processor = smc.BudgetBatchProcessor(manager)
    with pytest.raises(ValueError, match="from 0 to 5 in the prompt, got 6;"):
        processor.add_request([6], automaton, 5)
    manager.start()
    processor.add_request([1], automaton, 5)
    output = manager.get_result(timeout=60)
    manager.stop(block=True)
    assert output.error is None
    answer = [token for token in output.generated_tokens if token not in wide.eos_ids]
    assert automaton.accepts(answer)
    with pytest.raises(ValueError, match="from 0 to 5 in the prompt, got 7;"):
        smc.sample(
            smc.TransformersLM(model, None, wide),
            [[7]],
            automaton,
            budget=5,
            particles=2,
            proposal=smc.GCD(),
        )


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        ({}, {"use_async_batching": True}, "use_async_batching=True"),
        ({}, {"use_cuda_graph": True}, "use_cuda_graph=True"),
        (
            {"suppress_tokens": [0]},
            {},
            "an allowed token, got SuppressTokensLogitsProcessor, which",
        ),
    ],
)
def test_managers_that_are_refused(options: dict, config: dict, message: str):
    manager = manager_of(options, **config)
    asked = manager.continuous_batching_config
    for name, value in config.items():  # disabled without a CUDA device
        setattr(asked, name, value)
    with pytest.raises(ValueError, match=message):
        smc.BudgetBatchProcessor(manager)


def test_a_manager_that_runs_is_refused():
    manager = manager_of()
    manager.start()
    with pytest.raises(ValueError, match="has not been started"):
        smc.BudgetBatchProcessor(manager)
    manager.stop(block=True)


TOKENS = st.lists(st.integers(-1, 6), max_size=6)


@settings(max_examples=200)
@given(st.sampled_from(sorted(CONSTRAINTS)), st.lists(st.tuples(st.integers(0, 6), TOKENS)))
def test_a_reader_agrees_with_a_walk_from_the_beginning(name: str, changes: list):
    automaton = CONSTRAINTS[name]()
    reader, tokens = TokenReader(automaton), []
    for kept, more in changes:
        tokens = [*tokens[:kept], *more]
        state = automaton.initial
        for token in tokens:
            if not 0 <= token < automaton.vocabulary.size:
                state = DEAD
                break
            if state != DEAD:
                state = int(automaton.delta[state, automaton.class_of[token]])
        assert reader.state(tokens) == state
