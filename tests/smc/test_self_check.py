"""A model is rejected exactly if its log-probabilities depend on the batch.

The tests use tiny random models of real types, and one model with injected faults.
`scripts/check_causal_models.py` checks all types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import smc
from scripts.check_causal_models import SIZE, check, vocabulary_of
from scripts.check_causal_models import tiny_model as tiny_type
from smc._models import self_check
from smc._models.sharing_rows import SharingRows
from tests.smc.toys import VOCABULARY, tiny_model

WITHOUT_POSITIONS = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp",
    "pegasus", "plbart", "trocr",
)  # fmt: skip
WITHOUT_DECODER = (
    "bert", "bert-generation", "big_bird", "camembert", "electra", "ernie", "megatron-bert",
    "rembert", "roberta", "roformer", "xlm-roberta",
)  # fmt: skip


def prefill(model: Any) -> None:
    smc.TransformersLM(model, None, vocabulary_of(SIZE)).prefill([[65, 66, 67], [65]])


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_decoders_that_ignore_positions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="ignores position_ids"):
        prefill(tiny_type(name, torch.float32, decoder=False))


@pytest.mark.parametrize("name", WITHOUT_DECODER)
def test_models_that_attend_to_later_tokens_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"attends to later tokens.*is_decoder=True"):
        prefill(tiny_type(name, torch.float32, decoder=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["camembert", "roberta", "roberta-prelayernorm", "xlm-roberta"])
def test_models_that_count_from_their_padding_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="doesn't count positions from 0"):
        prefill(tiny_type(name, dtype, decoder=True))


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("bert", True), ("electra", True), ("gpt2", False), ("gemma3_text", False),
     ("deepseek_v3", False), ("mistral", False)],
)  # fmt: skip
def test_posteriors_of_causal_models_are_those_of_single_passes(name: str, decoder: bool) -> None:
    outcome = check(name, torch.float32, decoder)
    assert outcome.outcome == "right", outcome


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "qwen2"])
def test_rounding_is_not_a_fault(name: str, dtype: torch.dtype) -> None:
    prefill(tiny_type(name, dtype, decoder=True))


class Faulty(torch.nn.Module):
    """A model with changed arguments or logits of its forward pass."""

    def __init__(self, model: Any, fault: Callable[..., None]) -> None:
        super().__init__()
        self.passes = 0
        self._fault, self._forward = fault, model.forward
        model.forward = self.forward

    def forward(self, **given: Any) -> Any:
        self.passes += 1
        return self._fault(self._forward, given)


def without(name: str) -> Callable[..., Any]:
    def fault(forward: Any, given: dict[str, Any]) -> Any:
        return forward(**{key: value for key, value in given.items() if key != name})

    return fault


def shifting(when: Callable[[dict[str, Any]], bool]) -> Callable[..., Any]:
    """Shift the logits by about a nat, in passes of some kind."""

    def fault(forward: Any, given: dict[str, Any]) -> Any:
        output = forward(**given)
        if when(given):
            output.logits = output.logits + torch.arange(output.logits.shape[-1]) % 3
        return output

    return fault


def is_batch(given: dict[str, Any]) -> bool:
    return len(given["input_ids"]) > 1


def is_padded(given: dict[str, Any]) -> bool:
    mask = given.get("attention_mask")
    return mask is not None and mask.dim() == 2 and not mask.all()


def has_cache(given: dict[str, Any]) -> bool:
    kv_cache = given.get("cache", given.get("past_key_values"))
    return kv_cache is not None and kv_cache.get_seq_length() > given["input_ids"].shape[1]


@pytest.mark.parametrize(
    "fault",
    [without("position_ids"), without("attention_mask"), shifting(is_batch), shifting(is_padded),
     shifting(has_cache)],
    ids=["positions", "mask", "batch", "padding", "cache"],
)  # fmt: skip
def test_faults_of_any_kind_are_found(fault: Callable[..., Any]) -> None:
    model = tiny_type("llama", torch.float32, decoder=False)
    Faulty(model, fault)
    with pytest.raises(ValueError, match="a difference of"):
        prefill(model)


def test_shared_prompts_that_differ_fall_back_to_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    token, one = torch.tensor([[1], [2]]), torch.tensor([1, 1])
    shared, of_prompts = smc.TransformersLM(tiny_model(), None, VOCABULARY).prefill([[1, 2], [0]])
    assert isinstance(shared, SharingRows)
    after, extend = shared.extend(token, one), SharingRows.extend

    def shifted(*given: Any) -> torch.Tensor:
        return extend(*given) + torch.arange(VOCABULARY.size) % 3

    monkeypatch.setattr(SharingRows, "extend", shifted)
    rows, log_p = smc.TransformersLM(tiny_model(), None, VOCABULARY).prefill([[1, 2], [0]])
    assert not isinstance(rows, SharingRows)
    torch.testing.assert_close(log_p, of_prompts)
    torch.testing.assert_close(rows.extend(token, one), after)


def test_one_check_for_each_configuration_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[torch.dtype] = []
    shares = self_check.shares_prompts

    def counted(model: Any) -> bool:
        checked.append(model.dtype)
        return shares(model)

    monkeypatch.setattr("smc._models.transformers_lm.shares_prompts", counted)
    model = tiny_model()
    lm = smc.TransformersLM(model, None, VOCABULARY)
    for _ in range(2):
        lm.prefill([[1]])
    assert len(checked) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lm.prefill([[1]])
    assert len(checked) == 2
    model.double()
    lm.prefill([[1]])
    assert checked[2:] == [torch.float64]
    model.config.sliding_window = 4
    lm.prefill([[1]])
    assert len(checked) == 4


def test_a_vocabulary_of_special_tokens_alone_is_checked() -> None:
    config = transformers.LlamaConfig(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    assert self_check.shares_prompts(model) in (True, False)
