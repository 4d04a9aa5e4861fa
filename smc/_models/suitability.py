"""Sizes of a `transformers` model, and refusals of faults that its self-check can't see.

`smc._models.self_check` compares batches with single sequences at first use, which decides whether
a model is suitable. Only the following is refused without the comparison, at construction:

| refused | why the comparison doesn't decide |
|---|---|
| encoder-decoders | `input_ids` are the encoder's |
| classifiers, models without a language-modeling head | their logits don't depend on the batch |
| masked language models | later tokens may change log p by less than the tolerance |
| dynamically quantized modules | the error depends on the batch, but resembles rounding |
| weights on the device "meta" | the model can't run |

`check_state` refuses states that can change later. It runs before every batch of prompts:

| refused | why the comparison doesn't decide |
|---|---|
| training mode | dropout makes single sequences random, too |
| soft prompts of peft | peft's `generate` adds them outside of the model |
| activated LoRA of peft | depends on tokens that the comparison doesn't contain |
| adapters of peft that differ by row | all compared rows have one adapter |

Cost: `check_state` visits every module. `num_logits` runs the model on one token, and again only
after its head has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

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


def unsuitable(model: Any, fault: str) -> ValueError:
    """Create the error for a model with a fault, which completes "got ..., which"."""
    return ValueError(
        "expected a causal language model with the same log-probabilities in a batch as for single "
        f"sequences, got {_name(model)}, which {fault}; load another model with "
        "AutoModelForCausalLM.from_pretrained(path), or use model.generate with "
        "smc.BudgetLogitsProcessor"
    )


def check_kind(model: Any) -> None:
    """Raise an error for kinds of models whose faults the self-check can't see."""
    name = _name(model)
    headless = getattr(model, "get_output_embeddings", lambda: None)() is None
    headless &= not getattr(model, "can_generate", lambda: False)()
    quantized = [m for m in every_module(model) if type(m).__module__.startswith(_QUANTIZED)]
    faults = {
        "is an encoder-decoder": getattr(model.config, "is_encoder_decoder", False),
        "is a masked language model": name.endswith("ForMaskedLM"),
        "is a classifier": headless and "Classification" in name,
        "has no language-modeling head": headless,
        "is dynamically quantized": quantized,
        "has weights that are offloaded or not in memory": model.device.type == "meta",
    }
    fault = next((fault for fault, holds in faults.items() if holds), None)
    if fault is not None:
        raise unsuitable(model, fault)


def check_state(model: Any) -> None:
    """Raise an error for states whose faults the self-check can't see."""
    # Inside peft's `generate`, `model` is the wrapped model, whose inputs the wrapper prepares.
    wrapper = getattr(getattr(model, "prepare_inputs_for_generation", None), "__self__", None)
    for each in (model, wrapper):
        if not getattr(each, "_adapters_disabled", False):
            config: Any = getattr(each, "active_peft_config", None)
            if getattr(config, "is_prompt_learning", False):
                raise unsuitable(model, f"has a soft prompt ({config.peft_type.value} of peft)")
            if getattr(config, "alora_invocation_tokens", None) is not None:
                raise unsuitable(model, "has an activated LoRA (peft's alora_invocation_tokens)")
    for module in every_module(model):
        for hook in module._forward_pre_hooks.values():
            code = getattr(hook, "__code__", None)
            bound = {*getattr(hook, "keywords", ()), *(code.co_freevars if code else ())}
            if _PER_ROW & bound and not getattr(module, "disable_adapters", False):
                names = ", ".join(sorted(_PER_ROW & bound))
                raise unsuitable(model, f"has an adapter for each row ({names})")
        if module.training and _depends_on_mode(module):
            path = next(path for path, each in model.named_modules() if each is module)
            where = f"module {path!r} of the model" if path else "the model"
            raise ValueError(
                f"expected a model in evaluation mode, but {where} is in training "
                "mode, where dropout makes log-probabilities random and gradient checkpointing "
                "disables the cache; call model.eval() first"
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

    The shape of the head's weight isn't reliable, because quantized heads are packed and some heads
    pad their output. The model runs again only after its head or a hook was replaced.
    """
    identity = tuple(_head_of(model))
    known = _WIDTHS.get(model)
    if known is not None and known[0] == identity:
        return known[1]
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    try:
        logits = getattr(model(input_ids=ids, use_cache=False), "logits", None)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # models raise any type
        fault = f"raises {type(error).__name__} for one token ({error})"
        raise unsuitable(model, fault) from error
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise unsuitable(
            model, f"returns logits {found} instead of (1, 1, vocabulary) for one token"
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


def _depends_on_mode(module: Any) -> bool:
    """Return whether a module's output may depend on training mode.

    PyTorch's own layers that ignore the mode are exempt. Otherwise a model in evaluation mode would
    be rejected after an adapter was added, because the adapter's layers are in training mode.
    """
    if isinstance(module, _RANDOM):
        return bool(getattr(module, "p", 1.0))
    return isinstance(module, _BY_MODE) or not type(module).__module__.startswith("torch.nn.")


def _name(model: Any) -> str:
    """Return the class name of a model, or of the model inside a wrapper such as peft's."""
    inner = getattr(model, "get_base_model", None)
    return type(inner() if callable(inner) else model).__name__
