"""Unsuitable models are refused by kind, or because their log-probabilities depend on the batch.

The tests use tiny random models of real types, one model with injected faults, and adapters as in
peft. `scripts/check_causal_models.py` checks all types.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import transformers

import smc
from scripts.check_causal_models import SIZE, check, vocabulary_of
from scripts.check_causal_models import tiny_model as tiny_type
from smc._models import self_check
from smc._models.sharing_rows import SharingRows
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

# One of each kind of code; the others derive from these.
WITHOUT_POSITIONS = ("bart", "bigbird_pegasus", "pegasus", "trocr")
WITHOUT_DECODER = ("bert", "big_bird", "electra", "roformer")


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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("camembert", torch.float32), ("roberta", torch.float16), ("roberta", torch.bfloat16),
     ("roberta-prelayernorm", torch.float32)],
)  # fmt: skip
def test_models_that_count_from_their_padding_are_refused(name: str, dtype: torch.dtype) -> None:
    lm = smc.TransformersLM(tiny_type(name, dtype, decoder=True), None, vocabulary_of(SIZE))
    for use in (lambda: lm.prefill([[65, 66, 67], [65]]), lm.static_forward):
        with pytest.raises(ValueError, match="doesn't count positions from 0"):
            use()


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("bert", True), ("electra", True), ("gemma3_text", False), ("deepseek_v3", False)],
)  # fmt: skip
def test_posteriors_of_causal_models_are_those_of_single_passes(name: str, decoder: bool) -> None:
    outcome = check(name, torch.float32, decoder)
    assert outcome.outcome == "right", outcome


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
    lm.prefill([[1]])
    lm.prefill([[1]])
    assert len(checked) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lm.prefill([[1]])
    model.double()
    lm.prefill([[1]])
    model.config.sliding_window = 4
    lm.prefill([[1]])
    assert checked == [torch.float32, torch.float32, torch.float64, torch.float64]


def test_a_vocabulary_of_special_tokens_alone_is_checked() -> None:
    config = transformers.LlamaConfig(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    assert self_check.shares_prompts(model) in (True, False)


# -- models and adapters by kind -------------------------------------------------------------------


SOFT = {
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "MULTITASK_PROMPT_TUNING": lambda: peft.MultitaskPromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, num_tasks=2
    ),
}
OF_WEIGHTS = {
    "lora": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    ),
    "adaption_prompt": lambda: peft.AdaptionPromptConfig(
        task_type="CAUSAL_LM", adapter_len=2, adapter_layers=1
    ),
}
PROMPT = (0, 1, 2)
INPUTS = {"input_ids": torch.tensor([PROMPT]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}


def adapted(config: Any) -> Any:
    """A model with a random adapter."""
    model = peft.get_peft_model(tiny_model(), config).eval()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.requires_grad and "lora" not in name:
            torch.nn.init.normal_(weight)
    return model


def generated(model: Any, **options: Any) -> Any:
    decode = smc.generate(CONSTRAINTS["few_words"](), particles=64, algorithm="discrete")
    return model.generate(
        **INPUTS, max_new_tokens=5, custom_generate=decode, return_dict_in_generate=True, **options
    )


def evidence(model: Any) -> float:
    """Log p of all answers under the model, from a pass over each prefix alone."""
    total = 0.0
    for answer in ([0], [0, 1], [2], [1, 0], [1, 1, 1]):
        for eos in VOCABULARY.eos_ids:
            seen, log_p = list(PROMPT), 0.0
            for token in (*answer, eos):
                ids = torch.tensor([seen])
                with torch.no_grad():
                    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
                log_p += float(logits[0, -1].double().log_softmax(0)[token])
                seen.append(token)
            total += math.exp(log_p)
    return math.log(total)


@pytest.mark.parametrize("kind", SOFT)
def test_soft_prompts_are_refused_by_name(kind: str) -> None:
    model = adapted(SOFT[kind]())
    with pytest.raises(ValueError, match=f"soft prompt .{kind} of peft"):
        smc.TransformersLM(model, None, VOCABULARY)
    with pytest.raises(ValueError, match=f"soft prompt .{kind} of peft"):
        generated(model)
    with model.disable_adapter():
        lm = smc.TransformersLM(model, None, VOCABULARY)
        _, log_p = lm.prefill([PROMPT])
        if kind != "MULTITASK_PROMPT_TUNING":  # whose `generate` requires task_ids
            [posterior] = generated(model).posteriors
            assert posterior.log_evidence == pytest.approx(evidence(tiny_model()), abs=1e-5)
    plain = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    torch.testing.assert_close(log_p, plain.prefill([PROMPT])[1])
    with pytest.raises(ValueError, match="soft prompt"):
        lm.prefill([PROMPT])


def test_the_logits_processor_works_with_a_soft_prompt() -> None:
    """The error message recommends it."""
    automaton = CONSTRAINTS["few_words"]()
    processor = smc.BudgetLogitsProcessor(automaton, 5)
    found = adapted(SOFT["PREFIX_TUNING"]()).generate(
        **INPUTS, max_new_tokens=5, do_sample=False, logits_processor=[processor]
    )
    answer = [token for token in found[0, 3:].tolist() if token not in VOCABULARY.eos_ids]
    assert automaton.accepts(answer)


@pytest.mark.parametrize("kind", OF_WEIGHTS)
def test_adapters_of_the_weights_are_sampled_from(kind: str) -> None:
    model = adapted(OF_WEIGHTS[kind]())
    expected = evidence(model)
    assert abs(expected - evidence(tiny_model())) > 1e-3
    lm = smc.TransformersLM(model, None, VOCABULARY)
    options = {"max_tokens": 5, "particles": 64, "proposal": smc.GCD(), "algorithm": "discrete"}
    [posterior] = smc.sample(lm, [PROMPT], CONSTRAINTS["few_words"](), **options)
    assert posterior.log_evidence == pytest.approx(expected, abs=1e-5)
    [posterior] = generated(model).posteriors
    assert posterior.log_evidence == pytest.approx(expected, abs=1e-5)


def test_adapters_that_differ_by_row_are_refused() -> None:
    model = adapted(OF_WEIGHTS["lora"]())
    with pytest.raises(ValueError, match=r"which has an adapter for each row \(adapter_names\)"):
        generated(model, adapter_names=["default"])
    activated = OF_WEIGHTS["lora"]()
    activated.alora_invocation_tokens = [1, 2]
    model = adapted(activated)
    with pytest.raises(ValueError, match="activated LoRA"):
        smc.TransformersLM(model, None, VOCABULARY)
    with pytest.raises(ValueError, match="alora_offsets"):
        generated(model)


CONFIG = {
    "vocab_size": 6, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1,
}  # fmt: skip
OTHERS: dict[str, tuple[Any, str]] = {
    "path": (lambda: "gpt2", "expected a language model of transformers, got str"),
    "classifier": (
        lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**CONFIG)),
        "got LlamaForSequenceClassification, which is a classifier; load another model",
    ),
    "no head": (
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**CONFIG)),
        "got LlamaModel, which has no language-modeling head; load another .*ForCausalLM",
    ),
    "masked": (
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**CONFIG)),
        "got BertForMaskedLM, which is a masked language model",
    ),
    "encoder-decoder": (
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=6, d_model=8, d_kv=8, d_ff=8, num_layers=1)
        ),
        "got T5ForConditionalGeneration, which is an encoder-decoder; .*BudgetLogitsProcessor",
    ),
    "not loaded": (
        lambda: tiny_model().to("meta"),
        "which has weights that are offloaded or not in memory",
    ),
    "quantized": (
        lambda: torch.ao.quantization.quantize_dynamic(
            tiny_model(), {torch.nn.Linear}, dtype=torch.qint8
        ),
        "got LlamaForCausalLM, which is dynamically quantized",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_refused_by_kind(kind: str) -> None:
    make, message = OTHERS[kind]
    with pytest.raises(ValueError, match=message):
        smc.TransformersLM(make(), None, VOCABULARY)


def test_one_module_in_training_mode_is_refused_by_its_name() -> None:
    model = tiny_model()
    lm = smc.TransformersLM(model, None, VOCABULARY)
    model.model.layers[0].self_attn.train()
    with pytest.raises(ValueError, match=r"'model.layers.0.self_attn' of the model is in training"):
        lm.prefill([PROMPT])


def test_an_overlong_prompt_s_error_can_be_sent_between_processes() -> None:
    error = smc.PromptTooLongError(1, 60, 5, 64)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.example, again.context) == (1, 64)
