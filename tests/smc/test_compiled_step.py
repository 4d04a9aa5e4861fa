"""Compiled steps in static shapes: the same answers, one compilation, and refusals by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import gcd
import smc
from smc._models.static_cache import NotStaticError

transformers = pytest.importorskip("transformers")
dynamo = pytest.importorskip("torch._dynamo")

VOCABULARY = gcd.Vocabulary.from_bytes([bytes([97 + i]) for i in range(26)] + [b""], [26])
AOT = {"backend": "aot_eager"}  # everything but generated code, which takes a compiler minutes


def tiny(key_heads: int = 2) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=27, hidden_size=24, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=key_heads, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double().eval()


def sampled(
    model: Any, compile: bool | Mapping[str, Any], prompts: list[list[int]], particles: int = 3
) -> list[smc.Answer]:
    return answers_of(
        smc.TransformersLM(model, None, VOCABULARY, compile=compile), prompts, particles
    )


def answers_of(lm: Any, prompts: list[list[int]], particles: int = 3) -> list[smc.Answer]:
    rule = gcd.lift(gcd.regex("[a-m]{2,6}(xyz)?"), VOCABULARY)
    return smc.sample(
        lm, prompts, rule, budget=8, particles=particles, seed=1, proposal=smc.GCD(),
        algorithm="smc", ess_threshold=0.9, execution="static",
    )  # fmt: skip


def assert_same(found: list[smc.Answer], expected: list[smc.Answer]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [p.ids for p in one.particles] == [p.ids for p in other.particles]
        weights = [p.log_weight for p in other.particles]
        assert [p.log_weight for p in one.particles] == pytest.approx(weights, abs=1e-9)


supported = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8),
    reason="older versions of torch can't trace transformers",
)


@supported
def test_a_compiled_step_gives_the_same_answers_and_is_compiled_once_per_shape() -> None:
    model, compiled = tiny(), []

    def counting(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    before = dynamo.config.get_config_copy()
    lm = smc.TransformersLM(model, None, VOCABULARY, compile={"backend": counting})
    for prompts in ([[1, 2, 3], [4]], [[2, 2], [5, 1, 1]]):
        assert_same(answers_of(lm, prompts), sampled(model, False, prompts))
    assert len(compiled) == 1
    longer = [list(range(20)), [4]]
    for prompts in (longer, [list(range(26)) * 2, [7]]):  # the number of columns is now a variable
        assert_same(answers_of(lm, prompts), sampled(model, False, prompts))
    assert len(compiled) == 2
    assert dynamo.config.get_config_copy() == before


@supported
@pytest.mark.parametrize("key_heads", [1, 4])
def test_the_cache_is_changed_in_place_through_aot_autograd(key_heads: int) -> None:
    model, prompts = tiny(key_heads), [[1, 2, 3], [4]]
    assert_same(sampled(model, AOT, prompts), sampled(model, False, prompts))


@supported
def test_an_adapter_with_a_compiled_step_can_be_copied() -> None:
    model, prompts = tiny(), [[1, 2, 3]]
    lm = smc.TransformersLM(model, None, VOCABULARY, compile={"backend": "eager"})
    other = pickle.loads(pickle.dumps(copy.deepcopy(lm)))
    assert_same(answers_of(other, prompts), sampled(model, False, prompts))


@supported
def test_a_step_that_is_compiled_wrongly_is_refused() -> None:
    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *given: tuple(-each for each in graph.forward(*given))

    with pytest.raises(NotStaticError, match="compiled log-probabilities"):
        sampled(tiny(), {"backend": wrong}, [[1, 2, 3]])


def test_a_model_that_cannot_be_compiled_is_refused() -> None:
    model = tiny()
    model.lm_head.register_forward_hook(lambda module, args, output: dynamo.graph_break())
    with pytest.raises(NotStaticError, match=r"torch\.compile fails on a step of LlamaForCausalLM"):
        sampled(model, AOT, [[1, 2, 3]])


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"options": {"triton.cudagraphs": True}},
        {"fullgraph": False},
    ],
)
def test_graphs_within_a_captured_step_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a step is captured as a whole"):
        smc.TransformersLM(tiny(), None, VOCABULARY, compile=options)
