"""A device that pretends: its tensors are held by the CPU, and must not meet the CPU's own.

PyTorch lets a backend be written in Python. Here each tensor of the device "mock" wraps a CPU
tensor, and every operation is done with what the wrappers hold. As on a CUDA device, mixing it with
tensors of the CPU is an error, `.numpy()` is refused, and what the host has to wait for is counted.
The backend belongs to the process: whoever imports this module has it to the end.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import safetensors.torch
import torch
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import hmm._files
from smc._inference.captured import WAITING


class _Backend(_DummyBackendModule):
    """The host draws all random numbers, so this device has no state of any."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


_setup_privateuseone_for_python_backend("mock", backend_module=_Backend())
MOCK = torch.device("mock:0")

_WAITS: Counter[str] = Counter()
_COMPOSITE = "CompositeImplicitAutograd"
_COPIES = {"_to_copy", "copy_", "set_"}


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Counts, by operation, what the host waits for."""
    before = _WAITS.copy()
    seen: Counter[str] = Counter()
    yield seen
    seen.update(_WAITS - before)


class MockTensor(torch.Tensor):
    """A tensor of the device; `held` is the CPU's tensor with its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> MockTensor:
        # In inference mode, a view of a tensor from outside of it counts as from outside, too.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return cls._wrapper(held)
        return cls._wrapper(held)

    @classmethod
    def _wrapper(cls, held: torch.Tensor) -> MockTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=MOCK,
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Where nothing can have gradients, these come here before they are taken apart.
        if _is_composite(func):
            parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        return _call(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        _WAITS["tolist"] += 1
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert mock:0 device type tensor to numpy; copy it to the host")

    __array__ = numpy

    def __getitem__(self, index: Any) -> torch.Tensor:
        """PyTorch makes a tensor of a list of numbers, and copies it to the device."""
        if isinstance(index, list):
            _WAITS["index by a list"] += 1
            index = torch.tensor(index, dtype=torch.int64, device=MOCK)
        return super().__getitem__(index)

    def __repr__(self, **_: Any) -> str:
        return f"mock {self.held!r}"


@functools.cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)


@functools.cache
def _name_of(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


def _call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Does an operation with what the tensors hold."""
    name = _name_of(func)
    wrappers: dict[int, MockTensor] = {}
    strangers: list[torch.Tensor] = []

    def unwrap(value: Any) -> Any:
        if isinstance(value, MockTensor):
            wrappers[id(value.held)] = value
            return value.held
        if isinstance(value, torch.Tensor) and value.dim():
            strangers.append(value)
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "mock" else value
        return value

    args, known = _mapped(unwrap, args), {key: _mapped(unwrap, kwargs[key]) for key in kwargs}
    here = bool(wrappers)
    if kwargs.get("device") is not None:
        here = torch.device(kwargs["device"]).type == "mock"
    if strangers and name not in _COPIES:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} was given tensors of "
            f"{MOCK} and {strangers[0].device}"
        )
    masks = name.startswith(("index", "_index_put")) and any(
        isinstance(one, torch.Tensor) and one.dtype == torch.bool
        for part in args
        if isinstance(part, list | tuple)
        for one in part
    )
    leaves = name == "_to_copy" and wrappers and not here
    if name in WAITING or masks or leaves or (name == "copy_" and id(args[0]) not in wrappers):
        _WAITS[name] += 1
    shapes = {key: (one.held.shape, one.held.stride()) for key, one in wrappers.items()}

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, MockTensor):
            return value
        if id(value) not in wrappers:
            return MockTensor(value) if here else value
        if (value.shape, value.stride()) != shapes[id(value)]:
            raise NotImplementedError(f"{name} changes the shape of its tensor in place")
        return wrappers[id(value)]

    return _mapped(wrap, func(*args, **known))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Calls a function for what is in tuples and lists, which is all that operators take."""
    if isinstance(value, (tuple, list)):
        return type(value)([_mapped(function, each) for each in value])
    return function(value)


_FALLBACK = torch.library.Library("_", "IMPL")
_FALLBACK.fallback(_call, "PrivateUse1")

# These would make an empty tensor, and give it a size later.
_SIZED = torch.library.Library("aten", "IMPL")
for _overload in ("default", "start", "start_step"):
    _arange = getattr(torch.ops.aten.arange, _overload)
    _SIZED.impl(_arange, functools.partial(_call, _arange), "PrivateUse1")


def _made_by_the_host(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch copies these to a device without asking the dispatcher."""

    @functools.wraps(make)
    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "mock":
            return make(*args, **kwargs).to(device)
        return make(*args, device=device, **kwargs)

    return made


def _load_file(path: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
    """The library of this file format knows the devices by name."""
    return {name: part.to(device) for name, part in safetensors.torch.load_file(path).items()}


hmm._files.load_file = _load_file
_device_constructors()  # listed once by PyTorch; what stands in for one would be unknown there
for _name in ("tensor", "as_tensor"):
    setattr(torch, _name, _made_by_the_host(getattr(torch, _name)))
