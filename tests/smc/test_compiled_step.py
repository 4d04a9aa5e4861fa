"""Compiled steps in static shapes: the same answers, one compilation, and refusals by name."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import gcd
import smc
from smc._models.static_cache import CompiledStep, NotStaticError
from tests.smc.calls import assert_same, sample_with

transformers = pytest.importorskip("transformers")
dynamo = pytest.importorskip("torch._dynamo")

VOCABULARY = gcd.Vocabulary.from_bytes([bytes([97 + i]) for i in range(26)] + [b""], [26])
PROMPTS = ([[1, 2, 3], [4]], [[2, 2], [5, 1, 1]])

supported = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8),
    reason="older versions of torch can't trace transformers",
)


class Backend:
    """Everything but generated code, which takes a compiler minutes.

    Attributes:
        compiled: number of compilations.
        sign: factor of the results; 1 is right.
    """

    def __init__(self) -> None:
        self.compiled, self.sign = 0, 1

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compiled += 1
        compiled = dynamo.lookup_backend("aot_eager")(graph, inputs)
        return lambda *given: tuple(self.sign * each for each in compiled(*given))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.fixture(scope="module")
def compiled(model: Any) -> tuple[smc.TransformersLM, Backend]:
    """Return an adapter whose step is traced once for all tests, which takes seconds."""
    backend = Backend()
    return smc.TransformersLM(model, None, VOCABULARY, compile={"backend": backend}), backend


def tiny() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=27, hidden_size=24, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double().eval()


def negative(tokens: torch.Tensor) -> torch.Tensor:
    return -tokens


def answers_of(lm: Any, prompts: list[list[int]]) -> list[smc.Answer]:
    rule = gcd.lift(gcd.regex("[a-m]{2,6}(xyz)?"), VOCABULARY)
    return sample_with(
        lm, prompts, rule, max_tokens=8, particles=3, seed=1, proposal=smc.GCD(),
        algorithm="smc", ess_threshold=0.9, execution="static",
    )  # fmt: skip


def compare(lm: Any, model: Any, prompts: list[list[int]]) -> None:
    plain = smc.TransformersLM(model, None, VOCABULARY)
    assert_same(answers_of(lm, prompts), answers_of(plain, prompts))


@supported
@pytest.mark.slow("torch.compile traces a model of transformers twice")
def test_a_compiled_step_gives_the_same_answers_and_is_compiled_once_per_shape(
    model: Any, compiled: tuple[smc.TransformersLM, Backend]
) -> None:
    lm, backend = compiled
    before = dynamo.config.get_config_copy()
    for prompts in PROMPTS:
        compare(lm, model, prompts)
    assert backend.compiled == 1
    longer = [list(range(20)), [4]]
    for prompts in (longer, [list(range(26)) * 2, [7]]):  # the number of columns is now a variable
        compare(lm, model, prompts)
    assert backend.compiled == 2
    assert dynamo.config.get_config_copy() == before


@supported
def test_a_step_that_is_compiled_wrongly_is_refused(
    compiled: tuple[smc.TransformersLM, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, backend = compiled
    answers_of(lm, PROMPTS[0])
    assert lm._compiled is not None
    monkeypatch.setattr(lm._compiled, "checked", set())
    monkeypatch.setattr(backend, "sign", -1)
    with pytest.raises(NotStaticError, match="log-probabilities from the compiled step"):
        answers_of(lm, PROMPTS[0])


def test_an_adapter_with_a_compiled_step_can_be_copied(model: Any) -> None:
    lm = smc.TransformersLM(model, None, VOCABULARY, compile={"backend": "eager"})
    other = pickle.loads(pickle.dumps(copy.deepcopy(lm)))
    assert isinstance(other._compiled, CompiledStep)
    step = pickle.loads(pickle.dumps(CompiledStep(negative, {"backend": "eager"})))
    assert step(torch.ones(2)).tolist() == [-1, -1]


def test_a_model_that_cannot_be_compiled_is_refused() -> None:
    model = tiny()
    embeddings = model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, args, output: dynamo.graph_break())
    lm = smc.TransformersLM(model, None, VOCABULARY, compile={"backend": "eager"})
    with pytest.raises(NotStaticError, match=r"a step of LlamaForCausalLM, but it fails"):
        answers_of(lm, [[1, 2, 3]])


@pytest.mark.parametrize(
    "options",
    [{"mode": "max-autotune"}, {"options": {"triton.cudagraphs": True}}, {"fullgraph": False}],
    ids=str,
)
def test_graphs_within_a_captured_step_are_refused(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without CUDA graphs or graph breaks"):
        smc.TransformersLM(model, None, VOCABULARY, compile=options)
