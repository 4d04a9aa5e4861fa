"""Checks that a `transformers` model is suitable for sampling, and functions that return its sizes.

`check_suitable` rejects unsupported kinds of models: encoder-decoders, classifiers, models without
a language-modeling head, and dynamically quantized or offloaded models.

`check_state` runs before every batch of prompts, because it rejects states that can change at any
time. One is training mode, in which dropout makes log-probabilities random. Another is a peft
adapter whose effect depends on more than the tokens of a row.

`num_logits` counts the logits that the forward pass returns. The shape of the head's weight isn't
reliable, because quantized heads are packed and some heads pad their output.

Cost: `check_state` visits every module. `num_logits` runs the model on one token, and again only
after its head has changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_LOAD = "load a model with AutoModelForCausalLM.from_pretrained(path)"
_RANDOM = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
_BY_MODE = (
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer,
)
_PER_ROW = {"adapter_names", "alora_offsets", "task_ids"}
"""Arguments of peft with one value per row of the user's batch."""
_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")

_WIDTHS: WeakKeyDictionary[Any, tuple[object, int]] = WeakKeyDictionary()


def check_suitable(model: Any) -> None:
    """Raise an error unless the model is a causal language model with its weights in memory.

    Raises:
        ValueError: the model isn't suitable; the message names its kind, and what to load instead.
    """
    if not (isinstance(model, torch.nn.Module) and hasattr(model, "config")):
        raise ValueError(
            f"expected a language model of transformers, got {type(model).__name__}; {_LOAD}"
        )
    name = _name(model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"expected a decoder-only language model, got the encoder-decoder {name}; {_LOAD}, or "
            "use model.generate with smc.BudgetLogitsProcessor"
        )
    if name.endswith("ForMaskedLM"):
        raise ValueError(
            f"expected a causal language model, got the masked language model {name}; {_LOAD}"
        )
    parameters = inspect.signature(model.forward).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if "input_ids" not in parameters and not any_name:
        raise ValueError(f"expected a model of token ids (input_ids), got {name}; {_LOAD}")
    _check_adapters(model)
    if getattr(model, "get_output_embeddings", lambda: None)() is None and not _generates(model):
        kind = "the classifier" if "Classification" in name else "the model"
        raise ValueError(
            f"expected a model with a language-modeling head, got {kind} {name}, which has none; "
            f"{_LOAD}"
        )
    for module in every_module(model):
        if type(module).__module__.startswith(_QUANTIZED):
            path = next(path for path, each in model.named_modules() if each is module)
            raise ValueError(
                f"expected a model without dynamically quantized modules, got {name}, whose module "
                f"{path!r} is dynamically quantized; quantize only the weights (bitsandbytes, "
                "GPTQ, AWQ), or load the model in full precision"
            )
    if model.device.type == "meta":
        where = "offloaded by accelerate" if hasattr(model, "_hf_hook") else "not in memory"
        raise ValueError(
            f"expected the weights of {name} in memory, but they are {where} (device 'meta'); load "
            "the model onto one device with from_pretrained(path).to(device)"
        )


def check_state(model: Any) -> None:
    """Raise an error if the model is in training mode or has an unsupported adapter.

    Raises:
        ValueError: the message names the module in training mode, or the adapter's arguments.
    """
    _check_adapters(model)
    for module in every_module(model):
        for hook in module._forward_pre_hooks.values():
            of_rows = sorted(_PER_ROW & _bound_names(hook))
            if of_rows and not getattr(module, "disable_adapters", False):
                raise ValueError(
                    "expected one peft adapter for all rows, because the sampler forms its own "
                    f"batches, got an adapter for each row ({', '.join(of_rows)}); select one with "
                    "model.set_adapter(name), or use smc.BudgetLogitsProcessor"
                )
        if module.training and _depends_on_mode(module):
            path = next(path for path, each in model.named_modules() if each is module)
            whole = "the model" if module is model else f"module {path!r} of the model"
            checkpoints = any(
                getattr(each, "gradient_checkpointing", False) for each in every_module(model)
            )
            effect = "dropout makes log-probabilities random"
            if checkpoints:
                effect += ", and gradient checkpointing disables the KV cache"
            raise ValueError(
                f"expected a model in evaluation mode, but {whole} is in training mode, where "
                f"{effect}; call model.eval() first"
            )


def _check_adapters(model: Any) -> None:
    """Raise an error unless all active peft adapters only change the weights.

    Inside peft's `generate`, `model` is the wrapped model, and peft prepares its inputs. So the
    wrapper is checked, too.
    """
    outside = getattr(getattr(model, "prepare_inputs_for_generation", None), "__self__", None)
    for each in (model, outside):
        if getattr(each, "_adapters_disabled", False):
            continue
        config = getattr(each, "active_peft_config", None)
        kind = getattr(getattr(config, "peft_type", None), "value", "")
        if getattr(config, "is_prompt_learning", False):
            raise ValueError(
                "expected a model without virtual tokens before the prompt, but "
                f"{_name(model)} has a soft prompt ({kind} of peft); use model.generate with "
                "smc.BudgetLogitsProcessor, or an adapter of the weights, such as LoRA"
            )
        if getattr(config, "alora_invocation_tokens", None) is not None:
            raise ValueError(
                "expected adapters that change the weights for all tokens of a row, but "
                f"{_name(model)} has an activated LoRA (peft's alora_invocation_tokens); use "
                "model.generate with smc.BudgetLogitsProcessor, or a LoRA for all tokens"
            )


def every_module(model: Any) -> list[Any]:
    """List all modules, faster than `modules()`; a shared module is listed once per occurrence."""
    found = [model]
    for module in found:
        found.extend(child for child in module._modules.values() if child is not None)
    return found


@torch.inference_mode()
def num_logits(model: Any) -> int:
    """Return the number of logits per token that the model's forward pass returns.

    The model runs on one token. It runs again only after its head or a hook was replaced.

    Raises:
        ValueError: the forward pass doesn't return logits for each token.
    """
    identity = tuple(_head_of(model))
    known = _WIDTHS.get(model)
    if known is not None and known[0] == identity:
        return known[1]
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    logits = getattr(model(input_ids=ids, use_cache=False), "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"expected logits of shape (1, 1, vocabulary) for one token from {_name(model)}, got "
            f"{found}; {_LOAD}"
        )
    _WIDTHS[model] = identity, logits.shape[2]
    return logits.shape[2]


def num_embeddings(model: Any) -> int | None:
    """Return the number of input token ids; None if the input embedding doesn't state it."""
    table = model.get_input_embeddings()
    table = table.get_base_layer() if hasattr(table, "get_base_layer") else table  # peft wrapper
    return getattr(table, "num_embeddings", None)


def context_of(model: Any) -> int | None:
    """Return the model's number of positions; None if its configuration doesn't contain it.

    XLNet's configuration has -1, which means no limit; None is returned for it, too.
    """
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "max_seq_len")
    value = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    return value if value is None or value > 0 else None


def _head_of(model: Any) -> Iterator[object]:
    """Yield values that change with the output head, its weight, or hooks on its output."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    yield len(model._forward_hooks)
    if head is None:
        return
    weight = getattr(head, "weight", None)
    yield id(head)
    yield len(getattr(head, "_forward_hooks", ()))
    yield tuple(weight.shape) if isinstance(weight, Tensor) else type(weight)


def _bound_names(hook: Any) -> set[str]:
    """Return the names of the variables that a partial function or a closure binds."""
    code = getattr(hook, "__code__", None)
    return {*getattr(hook, "keywords", ()), *(code.co_freevars if code else ())}


def _depends_on_mode(module: Any) -> bool:
    """Return whether a module's output may depend on training mode.

    PyTorch's own layers that ignore the mode are exempt. Otherwise a model in evaluation mode would
    be rejected after an adapter was added, because the adapter's layers are in training mode.
    """
    if isinstance(module, _RANDOM):
        return bool(getattr(module, "p", 1.0))
    return isinstance(module, _BY_MODE) or not type(module).__module__.startswith("torch.nn.")


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())


def _name(model: Any) -> str:
    """Return the class name of a model, or of the model inside a wrapper such as peft's."""
    inner = getattr(model, "get_base_model", None)
    return type(inner() if callable(inner) else model).__name__
