"""Access to non-public parts of `transformers`, all in one module.

The rest of this package only uses documented classes and arguments. This module accesses what has
no public interface:

* the name of the cache argument, the cache layers that a model plans, and the layers of a cache;
* the name of the attention function;
* the variables of a running `generate` call.

If a version of `transformers` lacks one of them, the error names the supported versions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import FrameType
from typing import Any

import torch
from torch import Tensor

TESTED = ("5.17", "5.24")
"""The oldest and the newest minor version of `transformers` with which the tests pass."""


def private(module: str, name: str) -> Any:
    """Return an object from a module of `transformers` that may change between versions."""
    try:
        return getattr(import_module(f"transformers.{module}"), name)
    except (ImportError, AttributeError) as error:
        version = import_module("transformers").__version__
        raise ImportError(
            f"expected transformers.{module}.{name}, which transformers {version} doesn't have; "
            f"install a version from {TESTED[0]} to {TESTED[1]}: pip install "
            f"'transformers>={TESTED[0]},<={TESTED[1]}.*'"
        ) from error


def cache_argument(model: Any, kv_cache: object) -> dict[str, Any]:
    """Return the keyword arguments that pass a cache to a forward pass.

    The keyword is `cache` from transformers 5.24 on. It is `past_key_values` in earlier versions,
    and in models whose code is not part of transformers.
    """
    # The forward function of a peft wrapper accepts any argument, so the inner model is inspected.
    base = getattr(model, "get_base_model", None)
    return {_cache_keyword((model if base is None else base()).__class__): kv_cache}


@cache
def _cache_keyword(kind: Any) -> str:
    from transformers import GenerationMixin

    prepare = GenerationMixin.prepare_inputs_for_generation
    renamed = "cache" in inspect.signature(prepare).parameters
    named = inspect.signature(kind.forward).parameters
    return "cache" if renamed and "cache" in named else "past_key_values"


CACHE_ARGUMENTS = ("cache", "past_key_values")
"""Argument names under which `generate` may pass a cache to a `custom_generate` function."""


def list_layers(model: Any) -> set[str]:
    """Return the kinds of cache layers that a model requests: "full", "window", or "other"."""
    from transformers import DynamicCache

    planned = DynamicCache(config=model.config).layers
    kinds = {
        private("cache_utils", "DynamicLayer"): "full",
        private("cache_utils", "DynamicSlidingWindowLayer"): "window",
    }
    return {kinds.get(type(layer), "other") for layer in planned}


def is_stateful(model: Any) -> bool:
    """Return whether a model declares a state in addition to keys and values."""
    return bool(getattr(model, "_is_stateful", False))


def attention_name(config: Any) -> str | None:
    """Return the name of the attention function; None if the model supports only one."""
    return getattr(config, "_attn_implementation", None)


def set_attention_name(config: Any, name: str) -> None:
    """Set another attention function in a configuration; the caller must own the configuration."""
    config._attn_implementation = name


@cache
def pass_through_cache() -> type:
    """Return a cache class that stores nothing; the attention stores keys and values instead."""
    from transformers import DynamicCache

    class PassThroughCache(DynamicCache):
        """A cache that stores nothing, and returns only the new keys and values."""

        def update(
            self, key_states: Tensor, value_states: Tensor, *others: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    return PassThroughCache


@cache
def _column_layer() -> type:
    """Return a cache layer class that writes new keys and values to a given column."""
    static: Any = private("cache_utils", "StaticLayer")

    class ColumnLayer(static):
        """A layer of a `StaticCache` that uses the tensors that the caller provides.

        The original layer computes the column and counts tokens in each layer, with three kernels.
        This class reads the column from a tensor that all layers share, and that the caller
        changes.
        """

        def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
            super().__init__(max_cache_len=keys.shape[2])
            self.keys, self.values = keys, values
            self.column, self.cumulative_length = column, column.squeeze(0)
            self.is_initialized = True

        def update(
            self, key_states: Tensor, value_states: Tensor, *others: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            self.keys.index_copy_(2, self.column, key_states)
            self.values.index_copy_(2, self.column, value_states)
            return self.keys, self.values

    return ColumnLayer


def static_cache(model: Any, keys: Tensor, values: Tensor, column: Tensor) -> Any:
    """Create a `StaticCache` whose layers are views of the given tensors."""
    from transformers import StaticCache

    kind = _column_layer()
    with torch.device("cpu"):  # overrides the caller's default device
        made: Any = StaticCache(config=model.config, max_cache_len=keys.shape[3])
        layers = zip(made.layers, keys, values, strict=True)
        made.layers = [kind(own_keys, own_values, column) for _, own_keys, own_values in layers]
    return made


def generate_calls() -> Iterator[dict[str, Any]]:
    """Yield the local variables of each running `generate` call, from the innermost outward."""
    from transformers import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            yield dict(frame.f_locals)  # since Python 3.13 a view, whose keys aren't a set
        frame = frame.f_back
