"""A whole training in miniature: it learns, it resumes, and its checkpoint is a plain one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.small_lm import architecture as small_lm
from experiments.tool_calling.answers import STYLES, write_answer
from experiments.tool_calling.generator import generate, training_group
from experiments.tool_calling.prompts import compact_prompt
from scripts import evaluate_lm, train_lm

_TINY = [
    "--vocab",
    "400",
    "--hidden",
    "32",
    "--layers",
    "1",
    "--heads",
    "2",
    "--mlp",
    "64",
    "--batch-tokens",
    "1024",
    "--dtype",
    "float32",
    "--evaluate-minutes",
    "60",
    "--save-minutes",
    "60",
]


def _train(out: Path, *extra: str) -> dict[str, torch.Tensor]:
    train_lm.train(train_lm.parse_arguments(["--out", str(out), *_TINY, *extra]))
    saved = out / "model.safetensors"
    return load_file(saved) if saved.exists() else {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three real-looking records; the third is beyond the limit that the tests set."""
    path = tmp_path_factory.mktemp("data") / "records.jsonl"
    rows = [
        {
            "query": record.query,
            "tools": list(record.tools),
            "answers": [{"name": c.name, "arguments": c.arguments} for c in record.calls],
        }
        for record in generate(3, 9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, data: Path
) -> None:
    schedule = ["--steps", "8", "--data", str(data), "--data-limit", "2"]
    whole = _train(tmp_path / "whole", *schedule)
    assert _train(tmp_path / "parts", *schedule, "--stop-after", "3") == {}
    assert _train(tmp_path / "parts", *schedule, "--stop-after", "5") == {}
    parts = _train(tmp_path / "parts", *schedule)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    other = _train(tmp_path / "other", *schedule, "--seed", "1")
    assert any(not torch.equal(whole[name], other[name]) for name in whole)

    # What came out is a checkpoint like any other, and can be measured.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    figures = evaluate_lm.main(
        f"--model {tmp_path}/whole --num 3 --data {data} --skip 1 --max-new-tokens 5 "
        f"--json {tmp_path}/f.json --markdown {tmp_path}/f.md".split()
    )
    assert [figure.count for figure in figures] == [3, 3, 3, 3, 2, 2]
    assert len(json.loads((tmp_path / "f.json").read_text())) == 6
    assert (tmp_path / "f.md").read_text().count("\n") == 8


def test_requests_over_one_list_of_tools_are_scored_as_if_each_stood_alone() -> None:
    arguments = train_lm.parse_arguments(["--out", "m", "--steps", "1", *_TINY])
    tokenizer = small_lm.train_tokenizer(train_lm.corpus([], 0), arguments.vocab)
    model = train_lm.new_model(arguments, tokenizer).eval()
    group = [(r, style) for r in training_group(random.Random(4), 3, "x", 3) for style in STYLES]
    row = train_lm.row_of(tokenizer, group)
    assert row is not None
    together = train_lm.loss_of(model, [row, row], arguments)[1]
    losses: list[float] = []
    for record, style in group:
        prompt = tokenizer(compact_prompt(record, style))["input_ids"]
        answer = tokenizer(write_answer(record.calls, record.tools, style))["input_ids"]
        ids = torch.tensor([[*prompt, *answer, tokenizer.eos_token_id]])
        with torch.no_grad():
            log_p = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        losses += (-log_p.gather(1, ids[0, len(prompt) :, None])).flatten().tolist()
    assert together == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert sum(weight == 1.0 for weight in row.weights) == len(losses)


@pytest.mark.slow
def test_the_loss_falls(tmp_path: Path) -> None:
    arguments = train_lm.parse_arguments(["--out", str(tmp_path / "m"), "--steps", "120", *_TINY])
    tokenizer = small_lm.train_tokenizer(train_lm.corpus([], 0), arguments.vocab)
    batch = train_lm.pool_batches(arguments, tokenizer, [], train_lm.State(pool=999))[0]
    before = train_lm.loss_of(train_lm.new_model(arguments, tokenizer), batch, arguments)[1]
    train_lm.train(arguments)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert train_lm.loss_of(after, batch, arguments)[1] < 0.8 * before


def test_values_have_the_same_tokens_wherever_they_stand() -> None:
    tokenizer = small_lm.train_tokenizer(train_lm.corpus([], 0), 600)
    for value in ["Oslo", "New York", "2024-05-06", "a_b.txt", "Zürich", "3.25", "日本"]:
        inner = tokenizer(value)["input_ids"]
        for text in (f"in {value}?", f'"city": "{value}"}}', f"(city='{value}', n=1)"):
            ids = tokenizer(text)["input_ids"]
            assert any(ids[i : i + len(inner)] == inner for i in range(len(ids)))


def test_tools_are_exchanged_for_ones_without_the_called_tool() -> None:
    records = generate(40, 3, split="held_out")
    exchanged = evaluate_lm.with_exchanged_tools(records)
    assert len(exchanged) == len(records)
    for record in exchanged:
        assert {c.name for c in record.calls}.isdisjoint(t["name"] for t in record.tools)


def test_the_curriculum_ends_at_the_full_mixture() -> None:
    levels = [train_lm.level_of(share / 100) for share in range(100)]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, 3)


def test_a_model_has_one_schedule() -> None:
    with pytest.raises(SystemExit):
        train_lm.parse_arguments(["--out", "x"])
    with pytest.raises(SystemExit):
        train_lm.parse_arguments(["--out", "x", "--steps", "1", "--minutes", "1"])
