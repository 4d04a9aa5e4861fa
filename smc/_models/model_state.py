"""Fingerprints of everything that affects the output of a `transformers` model.

Cached keys and values of a prompt are valid as long as the model's fingerprint is unchanged. The
fingerprint consists of

* the parameters and buffers: their memory addresses, and PyTorch's counter of in-place changes
  (`Tensor._version`), which optimizers, `load_state_dict` and `copy_` increment;
* a checksum of each parameter, because changes through `.data` are not counted. It sums the bits of
  every (columns - 1)-th element, which includes an element of every row and of every column;
* the adapters of each module (from peft or `transformers`): which adapters are active, disabled or
  merged, and how they are scaled;
* replaced forward functions, hooks, autocast, and the attention function.

Changes of single elements through `.data` may not be detected. Call `TransformersLM.forget_prompts`
after such a change.

Cost: a visit to every module and parameter, and reading one element per row of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from smc._models.suitability import every_module
from smc._models.transformers_internals import attention_name

Fingerprint = tuple[object, ...]

_ADAPTERS = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: Any) -> Fingerprint:
    """Return a value that changes whenever the model's output may change."""
    modules = every_module(model)
    tensors = [
        tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    ]
    device = model.device.type
    return (
        tuple(map(_version, tensors)),
        checksums([tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]),
        tuple(part for module in modules for part in _adapters(module)),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        attention_name(model.config.get_text_config()),
    )


@torch.no_grad()
def checksums(parameters: list[torch.nn.Parameter]) -> tuple[int, ...]:
    """Sum the bits of some elements of each parameter, with one host synchronization per device."""
    sums: dict[torch.device, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.is_meta or parameter.layout != torch.strided or not parameter.numel():
            continue
        if hasattr(parameter, "to_local"):  # a DTensor; this process has a part of it
            own = parameter.to_local().detach()
        else:
            own = parameter.detach()
        if type(own) is not Tensor or own.element_size() not in _BITS or not own.numel():
            continue  # a tensor class for quantized weights
        flat = own.contiguous().flatten()
        some = flat[:: max(1, own.shape[-1] - 1)] if own.dim() > 1 else flat
        bits = some.contiguous().view(_BITS[flat.element_size()])
        sums.setdefault(flat.device, []).append(bits.sum(dtype=torch.int64))
    return tuple(value for each in sums.values() for value in torch.stack(each).tolist())


def _version(tensor: Tensor) -> tuple[int, int, int]:
    """Return values that identify a tensor, its memory, and its number of in-place changes."""
    changes = 0 if tensor.is_inference() else tensor._version  # inference tensors have no counter
    return id(tensor), 0 if tensor.is_meta else _address(tensor), changes


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a tensor subclass without a single memory block
        return 0


def _adapters(module: Any) -> Iterator[object]:
    """Yield values that identify the parts of a module's computation other than its weights."""
    names = vars(module)
    for name in _ADAPTERS:
        if name in names:
            value = names[name]
            yield repr(value)
    if "forward" in names:
        yield id(names["forward"])
    hooks = module._forward_hooks, module._forward_pre_hooks
    if hooks[0] or hooks[1]:
        yield tuple(map(id, (*hooks[0].values(), *hooks[1].values())))
