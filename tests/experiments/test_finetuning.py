"""An adapter learns the answers, resumes where it was interrupted; bad input is named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from experiments import config as configuration
from experiments import finetuning
from experiments.finetuning import SOURCES, collate, examples, split
from experiments.models import ROOT, SMOLLM2, ModelConfig, identity_of, load_model
from experiments.tasks import run_task
from experiments.tool_calling.task import STYLES, compact_prompt
from tests.experiments import composing
from tests.experiments.toy_model import write_checkpoint

REQUESTS = ROOT / "tests" / "experiments" / "tool_calls.jsonl"
STORIES = ROOT / "tests" / "models" / "stories260K"
COMMON = (
    "wandb=disabled", "model.device=cpu", "lora.rank=2", "epochs=2", "batch=6", "held_out=0.2",
    "learning_rate=0.02",
)  # fmt: skip


def composed(*overrides: object):
    configuration.register()
    finetuning.register()
    return composing.composed(*overrides, name="finetune_lm")


def run(*overrides: object) -> Path:
    return run_task(finetuning.TASK, composed(*overrides))


def adapter_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "adapter" / "adapter_model.safetensors")


def curve_of(run_dir: Path) -> list[list]:
    return json.loads((run_dir / "summary.json").read_text())["curve"]


@pytest.fixture(scope="module")
def given_(tmp_path_factory) -> tuple[str, ...]:
    """A toy model and ten short records."""
    directory = tmp_path_factory.mktemp("given")
    model = write_checkpoint(directory / "lm")
    lines = []
    for number in range(10):
        name = "fg"[number % 2]
        tool = {"name": name, "parameters": {"a": {"type": "int"}}}
        call = {"name": name, "arguments": {"a": number}}
        record = {"id": number, "query": f"{name} of {number}", "tools": [tool], "answers": [call]}
        lines.append(json.dumps(record))
    records = directory / "records.jsonl"
    records.write_text("\n".join(lines) + "\n")
    return (*COMMON, f"model.path={model}", f"paths=[{records}]")


@pytest.fixture(scope="module")
def logged() -> dict[str, Any]:
    """Collect the values that the whole run logs."""
    return {}


@pytest.fixture(scope="module")
def whole(given_, logged, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.tracking.log", lambda *_, **given: logged.update(given))
        return run(*given_, f"run_dir={tmp_path_factory.mktemp('whole')}")


def test_what_comes_out_is_an_adapter_that_has_learned(given_, whole, logged):
    # Eight records in two styles, twice, in batches of six.
    assert [step for step, _ in curve_of(whole)] == [0, 3, 6]
    (_, first), *_, (_, last) = curve_of(whole)
    assert last < 0.8 * first
    assert [[row["step"], row["held_out"]] for row in logged["history"]] == curve_of(whole)
    config = composed(*given_)
    adapter = whole / "adapter"
    assert {weight.dtype for weight in adapter_of(whole).values()} == {torch.float16}
    plain, _ = load_model(config.model)
    lm, _ = load_model(ModelConfig(path=config.model.path, adapter=str(adapter), device="cpu"))
    prompt = lm.encode("f(a: int)\nRequest: f of 3\nCalls in Python:\n")
    begun = lm.vocabulary.token_bytes.index(b"[")
    assert float(lm.prefill([prompt])[1][0, begun]) > float(plain.prefill([prompt])[1][0, begun])
    with pytest.raises(ValueError, match=f"was trained for {config.model.path}"):
        load_model(ModelConfig(path=str(STORIES), adapter=str(adapter), device="cpu"))
    base = json.loads((adapter / "base.json").read_text())
    assert base["base"] == identity_of(config.model.path)


@pytest.mark.slow("trains twice")
def test_an_interrupted_training_goes_on_from_its_checkpoint(given_, whole, tmp_path, monkeypatch):
    common = (*given_, f"run_dir={tmp_path}")
    step, steps = transformers.Trainer.training_step, []

    def interrupted(self, *arguments, **options):
        steps.append(self.state.global_step)
        if self.state.global_step == 5 and steps.count(5) == 1:
            raise KeyboardInterrupt
        return step(self, *arguments, **options)

    monkeypatch.setattr(transformers.Trainer, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(*common)
    assert not (tmp_path / "adapter").exists()
    run(*common)
    assert steps == [0, 1, 2, 3, 4, 5, 3, 4, 5]
    found, expected = adapter_of(tmp_path), adapter_of(whole)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-3, rtol=1e-2)


# -- examples


def test_only_the_answer_is_learned_and_the_padding_is_not(given_):
    config = composed(*given_)
    _, tokenizer = load_model(config.model)
    items = SOURCES["xlam"].read([REQUESTS], None)
    made = list(examples(items, config, tokenizer, epoch=1))
    answered = [
        each
        for number, item in enumerate(items)
        for each in SOURCES["xlam"].answered(item, random.Random(f"{config.seed}-1-{number}"))
    ]
    assert len(made) == len(answered) == 2 * len(items)
    for example, each in zip(made, answered, strict=True):
        prompt = tokenizer(each.prompt).input_ids
        answer = [*tokenizer(each.answer, add_special_tokens=False).input_ids]
        assert example["input_ids"] == [*prompt, *answer, tokenizer.eos_token_id]
        assert example["labels"] == [-100] * len(prompt) + [*answer, tokenizer.eos_token_id]
    batch = collate(made[:3])
    widths = [len(example["input_ids"]) for example in made[:3]]
    assert batch["attention_mask"].sum(dim=1).tolist() == widths
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_prompts_of_experiments_are_what_is_learned():
    """With the tools in another order in every epoch, the calls the same."""
    [record] = SOURCES["xlam"].read([REQUESTS], 1)
    found = [SOURCES["xlam"].answered(record, random.Random(seed)) for seed in range(8)]
    usual = [compact_prompt(record, style) for style in STYLES]
    for answered in found:
        for each, prompt in zip(answered, usual, strict=True):
            assert sorted(each.prompt.split("\n")) == sorted(prompt.split("\n"))
    assert len({answered[0].prompt for answered in found}) > 1
    assert len({tuple(each.answer for each in answered) for answered in found}) == 1


def test_sentences_are_of_their_set_and_records_without_calls_are_left_out(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text(
        "dog park run\tThe dog runs in the park .\ndog park run\ta dog ran to a park\n"
        "cat sit mat\tA cat sits on a mat.\n"
    )
    first, _ = SOURCES["commongen"].read([path], None)
    answered = SOURCES["commongen"].answered(first, random.Random(0))
    sentences = {"The dog runs in the park.", "A dog ran to a park."}
    assert {each.answer for each in answered} == sentences
    [prompt] = {each.prompt for each in answered}
    words = prompt.split("\n")[0].removeprefix("Concepts: ").split(", ")
    assert sorted(words) == ["dog", "park", "run"]
    assert len(SOURCES["commongen"].read([path], 1)) == 1
    good = REQUESTS.read_text(encoding="utf-8").splitlines()[0]
    tool = '{"name": "f", "parameters": {}}'
    path.write_text(f'{good}\n{{"query": "x", "tools": [{tool}], "answers": []}}\n')
    assert len(SOURCES["xlam"].read([path], None)) == 1
    assert len(SOURCES["xlam"].read([REQUESTS], 2)) == 2


def test_questions_have_their_gold_queries_and_schemas():
    path = ROOT / "data" / "sql" / "questions.jsonl"
    items = SOURCES["sql"].read([path], None)
    gold = [json.loads(line) for line in path.open(encoding="utf-8")]
    for each, row in zip(items, gold, strict=True):
        assert each.answer == row["query"]
        assert each.prompt.endswith(f"Question: {row['question']}\nSQL:\n")
        assert "CREATE TABLE" in each.prompt


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5), st.integers(2, 70) | st.none())
def test_a_split_shares_everything_out(count, share, seed, most):
    items = [f"item {number}" for number in range(count)]
    training, held_out = split(items, share, seed, most)
    assert (training, held_out) == split(items, share, seed, most)
    assert training
    assert held_out
    assert not set(training) & set(held_out)
    used = min(count, most or count)
    assert len(training) + len(held_out) == used
    assert abs(len(held_out) - share * used) <= 1


# -- refusals


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("source=poems", "expected source to be one of xlam, commongen.*, got 'poems'"),
        ("paths=[]", "at least one value in paths"),
        ("paths=[nowhere.jsonl]", "files of records, but nowhere.jsonl does not exist"),
        ("paths=[pyproject.toml,pyproject.toml]", "expected different values in paths"),
        ("limit=0", "limit to be at least 1, got 0"),
        ("prompts=1", "prompts to be at least 2, got 1"),
        ("lora.rank=0", "lora.rank to be at least 1, got 0"),
        ("lora.alpha=0", r"lora.alpha to be in \(0, infinity\), got 0"),
        ("learning_rate=0", r"learning_rate to be in \(0, infinity\), got 0"),
        ("clip=inf", r"clip to be in \(0, infinity\), got inf"),
        ("warm_up=1", r"warm_up to be in \[0, 1\), got 1"),
        ("held_out=0", r"held_out to be in \(0, 1\), got 0"),
        ("model.dtype=float16", "one of float32, bfloat16, got 'float16'"),
        ("model.adapter=runs/a", "expected model.adapter to be one of none, auto, got 'runs/a'"),
        ("model.prompt=chat", "model.prompt to be one of auto, compact, got 'chat'"),
        ("model.prompt=song", "expected model.prompt to be .*got 'song'"),
        ("out=configs", r"out=.*configs exists; remove it or give another"),
    ],
)
def test_bad_settings_are_named(given_, override, message, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "load_model", None)
    with pytest.raises(ValueError, match=message):
        run(*given_, override, f"run_dir={tmp_path / 'run'}")


@pytest.mark.parametrize(
    ("source", "name", "content", "message"),
    [
        ("xlam", "a.jsonl", "{not json", "expected records with .* in .*a.jsonl, got 1 malformed"),
        ("xlam", "a.jsonl", '{"query": "q", "tools": [], "answers": []}', "at least two usable"),
        ("commongen", "a.tsv", "dog park\tA dog.", "expected lines with 3 to 5 concepts.*a.tsv"),
    ],
)
def test_bad_files_are_named(given_, source, name, content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "load_model", None)
    path = tmp_path / name
    path.write_text(f"{content}\n")
    with pytest.raises(ValueError, match=message):
        run(*given_, f"source={source}", f"paths=[{path}]", f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow("one of them trains to the end")
def test_what_shows_in_training_is_named(given_, tmp_path):
    model = write_checkpoint(tmp_path / "lm")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("eos_token")
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    for override, message in (
        ("longest=20", "training records of at most longest=20 tokens, but all are"),
        (f"model.path={model}", "expected an end-of-sequence token in the tokenizer"),
        ("learning_rate=1e30", r"a finite loss, got .*; lower learning_rate="),
    ):
        with pytest.raises(ValueError, match=message):
            run(*given_, override, f"run_dir={tmp_path / 'run'}")


def test_the_default_is_the_model_as_it_comes():
    config = composed()
    assert (config.model.path, config.model.adapter) == (SMOLLM2, "none")
