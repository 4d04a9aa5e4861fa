"""mlx-lm with stories260K: every answer is valid and finished within its tokens. See `make mlx`."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.sample_utils import make_sampler

import gcd

MODEL = str(Path(__file__).resolve().parent.parent / "tests" / "models" / "stories260K")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = mlx_lm.load(MODEL)
    width = model(mx.array([[1]])).shape[-1]
    hub = tokenizer._tokenizer
    vocabulary = gcd.Vocabulary.from_tokenizer(hub, size=width)
    return model, tokenizer, vocabulary


@pytest.mark.parametrize("literals", ["all", "canonical"])
@pytest.mark.parametrize("more", [0, 1, 5, 40])
def test_answers_are_valid_and_finished(loaded, literals, more):
    model, tokenizer, vocabulary = loaded
    constraint = gcd.lift(gcd.json_schema(SCHEMA), vocabulary, literals=literals)
    budget = constraint.fewest_tokens + more
    for seed in range(4):
        mx.random.seed(seed)
        process = gcd.ScoresProcessor(constraint, budget, array=mx.array)
        parts = list(
            mlx_lm.stream_generate(
                model, tokenizer, "Once upon a time", max_tokens=budget,
                sampler=make_sampler(temp=1.0), logits_processors=[process],
            )
        )  # fmt: skip
        assert parts[-1].finish_reason == "stop"
        assert parts[-1].generation_tokens <= budget
        found = json.loads("".join(part.text for part in parts))
        assert found.keys() == SCHEMA["properties"].keys()
        assert isinstance(found["name"], str)
        assert type(found["age"]) is int
