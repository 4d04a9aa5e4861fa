"""Lessons: what prompts share is read once, and a branch learns as if it stood alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from experiments.finetuning.batches import batch_of, loss_of, pieces
from experiments.finetuning.lessons import SOURCES, Answered, Branch, Lesson, lesson_of, lessons
from experiments.harness.models import ROOT
from experiments.harness.records import DataError
from experiments.tool_calling.answers import STYLES
from experiments.tool_calling.prompts import compact_prompt
from tests.experiments.toy_model import write_checkpoint

REQUESTS = ROOT / "experiments" / "studies" / "convergence" / "toolcalls.jsonl"
STORIES = ROOT / "tests" / "models" / "stories260K"
V = 20

tokens = st.integers(0, V - 1)
branch = st.builds(
    lambda rest, answer: Branch((*rest, *answer), len(answer)),
    st.lists(tokens, min_size=1, max_size=3),  # the last token of a prompt is always there
    st.lists(tokens, min_size=1, max_size=4),
)
lesson = st.builds(
    lambda stem, branches: Lesson(tuple(stem), tuple(branches)),
    st.lists(tokens, max_size=6),
    st.lists(branch, min_size=1, max_size=3),
)


def llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4,
        attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


LLAMAS = {name: llama(name) for name in ("sdpa", "eager")}


def alone(model: LlamaForCausalLM, stem: tuple[int, ...], branch: Branch) -> float:
    """Minus the log-probability of an answer, in a plain pass over prompt and answer."""
    text = torch.tensor([[*stem, *branch.tokens]])
    log_p = model(text).logits[0].log_softmax(dim=-1)
    first = text.shape[1] - branch.learned
    return -sum(float(log_p[at - 1, text[0, at]]) for at in range(first, text.shape[1]))


@settings(max_examples=40)
@given(st.lists(lesson, min_size=1, max_size=4), st.sampled_from(sorted(LLAMAS)))
@torch.no_grad()
def test_a_branch_learns_as_if_it_stood_alone(some, attention):
    """Whatever stands beside it in its row and its batch, and whichever attention there is."""
    model = LLAMAS[attention]
    expected = sum(alone(model, each.stem, b) for each in some for b in each.branches)
    batch = batch_of(some)
    assert len(batch.targets) == sum(each.learned for each in some)
    assert float(loss_of(model, batch)) == pytest.approx(expected, rel=1e-5)


@given(st.lists(lesson, min_size=1, max_size=8), st.integers(1, 60))
def test_pieces_are_all_lessons_once_and_fit(some, most):
    found = list(pieces(some, most))
    assert sorted(each for piece in found for each in piece) == sorted(some)
    for piece in found:
        assert len(piece) == 1 or len(piece) * max(each.size for each in piece) <= most


def test_gradients_do_not_depend_on_the_pieces():
    some = [
        Lesson((1, 2), (Branch((3, 4, 5), 2), Branch((6, 7), 1))),
        Lesson((8,), (Branch((9, 1), 1),)),
    ]
    found = []
    for most in (1, 100):
        model = llama("sdpa")
        for piece in pieces(some, most):
            loss_of(model, batch_of(piece)).backward()
        found.append(
            torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
        )
    torch.testing.assert_close(*found)


# Of records.


@pytest.fixture(scope="module", params=["bytes", "stories"])
def tokenizer(request, tmp_path_factory):
    """A tokenizer that adds no tokens, and one that begins every text with a token."""
    if request.param == "stories":
        return AutoTokenizer.from_pretrained(STORIES)
    return AutoTokenizer.from_pretrained(write_checkpoint(tmp_path_factory.mktemp("toy") / "lm"))


def test_a_lesson_is_prompts_and_answers_and_its_stem_is_the_longest(tokenizer):
    items = SOURCES["xlam"].read([REQUESTS], None)
    for number, made in enumerate(lessons(items, "xlam", tokenizer, seed=3, epoch=1)):
        answered = SOURCES["xlam"].answered(items[number], random.Random(f"3-1-{number}"))
        assert len(made.branches) == len(answered) == 2
        prompts = [tokenizer(each.prompt).input_ids for each in answered]
        for each, prompt, branch in zip(answered, prompts, made.branches, strict=True):
            answer = tokenizer(each.answer, add_special_tokens=False).input_ids
            end = [tokenizer.eos_token_id]
            assert [*made.stem, *branch.tokens] == [*prompt, *answer, *end]
            assert branch.learned == len(answer) + 1
        at = len(made.stem)
        assert prompts[0][:at] == prompts[1][:at]
        assert prompts[0][at] != prompts[1][at]


def test_prompts_of_experiments_are_what_is_learned(tokenizer):
    """With the tools in another order in every epoch, the calls the same."""
    [record] = SOURCES["xlam"].read([REQUESTS], 1)
    found = [SOURCES["xlam"].answered(record, random.Random(seed)) for seed in range(8)]
    usual = [compact_prompt(record, style) for style in STYLES]
    for answered in found:
        for each, prompt in zip(answered, usual, strict=True):
            assert sorted(each.prompt.split("\n")) == sorted(prompt.split("\n"))
    assert len({answered[0].prompt for answered in found}) > 1
    assert len({tuple(each.answer for each in answered) for answered in found}) == 1


def test_equal_prompts_share_all_but_their_last_token(tokenizer):
    """Which is what the first token of each answer is predicted from."""
    prompt = "Concepts: dog, park\nSentence:\n"
    made = lesson_of([Answered(prompt, text) for text in ("A dog.", "A park.", "A.")], tokenizer)
    whole = tokenizer(prompt).input_ids
    assert list(made.stem) == whole[:-1]
    assert {branch.tokens[0] for branch in made.branches} == {whole[-1]}


def test_sentences_are_of_their_set(tmp_path):
    lines = ["dog park run\tThe dog runs in the park .", "dog park run\ta dog ran to a park",
             "cat sit mat\tA cat sits on a mat."]  # fmt: skip
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(lines) + "\n")
    items = SOURCES["commongen"].read([path], None)
    assert len(items) == 2
    answered = SOURCES["commongen"].answered(items[0], random.Random(0))
    assert {each.answer for each in answered} == {
        "The dog runs in the park.", "A dog ran to a park."
    }  # fmt: skip
    [prompt] = {each.prompt for each in answered}
    words = prompt.split("\n")[0].removeprefix("Concepts: ").split(", ")
    assert sorted(words) == ["dog", "park", "run"]
    assert len(SOURCES["commongen"].read([path], 1)) == 1


def test_epochs_differ_and_repeat(tmp_path, tokenizer):
    items = SOURCES["xlam"].read([REQUESTS], None)
    first, same, other = (
        list(lessons(items, "xlam", tokenizer, seed=0, epoch=epoch)) for epoch in (0, 0, 1)
    )
    assert first == same != other


def test_records_without_calls_or_with_only_one_style_are_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    good = REQUESTS.read_text(encoding="utf-8").splitlines()[0]
    tool = '{"name": "f", "parameters": {}}'
    path.write_text(f'{good}\n{{"query": "x", "tools": [{tool}], "answers": []}}\n')
    assert len(SOURCES["xlam"].read([path], None)) == 1
    assert len(SOURCES["xlam"].read([Path(REQUESTS)], 2)) == 2


def test_questions_to_one_database_are_learned_together(tokenizer):
    folder = ROOT / "data" / "sql"
    items = SOURCES["sql"].read([folder / "questions.jsonl"], None)
    gold = {row["question"]: row for row in map(json.loads, (folder / "questions.jsonl").open())}
    asked = []
    for made, item in zip(lessons(items, "sql", tokenizer, seed=0, epoch=0), items, strict=True):
        assert len(made.branches) == len(item) <= 6
        named = []
        for each in item:
            question = each.prompt.rsplit("Question: ", 1)[1].removesuffix("\nSQL:\n")
            named.append(gold[question]["db_id"])
            # The gold queries of these databases are written as the language writes them.
            assert each.answer == gold[question]["query"]
            asked.append(question)
        assert len(set(named)) == 1
        shared = tokenizer.decode(made.stem, skip_special_tokens=True)
        assert all(f"CREATE TABLE {table}" in shared for table in ("film", "screening"))
    assert sorted(asked) == sorted(gold)
    with pytest.raises(DataError, match="expected databases in"):
        SOURCES["sql"].read([REQUESTS], None)
