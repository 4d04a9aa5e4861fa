"""Language models in static shapes: each step appends one token to each of P rows.

All rows advance together: after t tokens every row has t generated columns, which are meaningless
in rows that have ended. The positions of all rows therefore differ only by the lengths of their
prompts, and columns are never moved. The shapes are the same in all steps, as a captured graph
requires.

`StaticTransformer` implements this for causal models of `transformers` with a `StaticCache`. Each
prompt is computed once and copied into the cache for every particle. All particles of an example
have the same prompt, so only generated columns are copied between rows.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from smc._models.sharing_rows import with_attention
from smc._models.transformers_internals import (
    attention_name,
    cache_argument,
    is_stateful,
    list_layers,
    private,
    static_cache,
)

ALIGNMENT = 16
"""The number of columns is a multiple of this, because efficient kernels require it of masks."""
FAULT = 0.25
"""Smallest difference that is a fault, as a share of the mean change of log p in a step."""


class NotStaticError(ValueError):
    """Error for a feature that static shapes don't support; the message names an alternative."""


@runtime_checkable
class StaticLanguageModel(Protocol):
    """A language model that supports static shapes; see `smc.LanguageModel`."""

    def static_forward(self) -> Forward:
        """Return the model's forward pass in static shapes.

        Raises:
            NotStaticError: the model doesn't support static shapes.
        """
        ...


@runtime_checkable
class Forward(Protocol):
    """Forward passes of a language model in static shapes, with a cache that changes in place."""

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Run the model on each prompt (token ids), and make N rows for it.

        Args:
            prompts: B prompts.
            num_particles: N. The number of rows is P = B N.
            budget: maximum number of tokens that are appended to a row.

        Returns:
            Log-probabilities of the first token.
        """
        ...

    def step(
        self, tokens: Int64[Tensor, "P"], source: Int64[Tensor, "P"], step: Int64[Tensor, ""]
    ) -> Float[Tensor, "P V"]:
        """Replace row r by a copy of row `source[r]`, and append `tokens[r]` to it.

        Args:
            tokens: the tokens; any id for an ended row.
            source: for each row, the row that is copied into it; the row itself if it doesn't
                change. Precondition: a row that is copied into another row doesn't change itself.
            step: number of tokens appended so far.

        Returns:
            Log-probabilities of the next token.
        """
        ...

    def rewind(self) -> None:
        """Remove all generated tokens from the cache."""
        ...


class StaticTransformer:
    """A `Forward` of a causal `transformers` model.

    Args:
        model: a model that attends to all previous tokens. Its attention function must support a
            mask with a value for each column ("sdpa" or "eager").
        context: the model's number of positions; None for no limit.
        compiled: `read_token` compiled for this model; None to call it uncompiled.

    Raises:
        NotStaticError: the model doesn't support static shapes.
    """

    def __init__(
        self, model: Any, context: int | None = None, compiled: CompiledStep | None = None
    ) -> None:
        if is_stateful(model) or not list_layers(model) <= {"full"}:
            raise NotStaticError(
                "expected a model that attends to all columns in every layer, as static shapes "
                f"require, but {type(model).__name__} has a sliding window or a recurrent state; "
                "call smc.sample"
            )
        attention = attention_name(model.config) or "eager"
        if attention not in ("sdpa", "eager"):
            raise NotStaticError(
                "expected the attention function 'sdpa' or 'eager', as static shapes require, got "
                f"{attention!r}; load the model with attn_implementation='sdpa'"
            )
        if torch.is_autocast_enabled(model.device.type):
            raise NotStaticError(
                "expected no torch.autocast, because static shapes don't support keys and values "
                "of several types; call smc.sample, or load the model in the lower precision"
            )
        if len({parameter.device for parameter in model.parameters()}) > 1:
            raise NotStaticError(
                "expected the model on one device, as static shapes require, got several devices; "
                "call smc.sample"
            )
        self.model = model
        self._grouped = with_grouped_queries(model)
        self._compiled = compiled
        # For a model without a limit, the last position can be any large integer.
        self._last_position = (context or 1 << 62) - 1
        self._last_only = (
            {"logits_to_keep": 1}
            if "logits_to_keep" in inspect.signature(model.forward).parameters
            else {}
        )

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.device

    @torch.inference_mode()
    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Run the model on all prompts in one forward pass, padded on the left; see `Forward`."""
        from transformers import DynamicCache

        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        column = torch.arange(width, device=self.device)
        full = column >= (width - lengths).unsqueeze(1)
        read = DynamicCache()
        logits = self.model(
            input_ids=tokens,
            attention_mask=full.long(),
            position_ids=(full.long().cumsum(dim=1) - 1).clamp(min=0),
            use_cache=True,
            **cache_argument(self.model, read),
            **self._last_only,
        ).logits[:, -1]

        each = torch.arange(len(prompts), device=self.device).repeat_interleave(num_particles)
        self.width = width
        columns = -(-(width + budget) // ALIGNMENT) * ALIGNMENT
        self._columns = torch.arange(columns, device=self.device)
        self._first = (width - lengths)[each].unsqueeze(1)
        self._column = torch.full((1,), width, device=self.device)
        # Keys (and values) of all layers are one tensor, so that rows are copied in one operation.
        pieces = []
        for side in ("keys", "values"):
            parts = [getattr(layer, side) for layer in read.layers]
            heads, size = parts[0].shape[1], parts[0].shape[3]
            piece = parts[0].new_zeros(len(parts), len(each), heads, columns, size)
            for number, part in enumerate(parts):
                piece[number, :, :, :width] = part[each]
            pieces.append(piece)
        self._keys, self._values = pieces
        self._cache = static_cache(self.model, self._keys, self._values, self._column)
        log_p = _log_p(logits)[each]
        if self._compiled is not None:
            self._compile(self._compiled, log_p)
        return log_p

    @torch.inference_mode()
    def step(
        self, tokens: Int64[Tensor, "P"], source: Int64[Tensor, "P"], step: Int64[Tensor, ""]
    ) -> Float[Tensor, "P V"]:
        """Copy rows, and append a token to each row; see `Forward`."""
        for piece in (self._keys, self._values):
            move_rows(piece, source, self.width)
        torch.add(step, self.width, out=self._column[0])
        return _log_p((self._compiled or read_token)(*self._arguments(tokens)))

    def rewind(self) -> None:
        """Do nothing, because the number of a step determines which columns are valid."""

    def _arguments(self, tokens: Int64[Tensor, "P"]) -> tuple[Any, ...]:
        """Return the arguments of `read_token`, which appends a token to each row."""
        kv_cache = cache_argument(self._grouped, self._cache)
        own = (self._columns, self._column, self._first, self._last_position)
        return (self._grouped, kv_cache, tokens, *own)

    def _compile(self, compiled: CompiledStep, log_p: Float[Tensor, "P V"]) -> None:
        """Compile a step for these shapes, and compare its result with the uncompiled step."""
        from torch._dynamo.exc import TorchDynamoException

        form = (len(log_p), len(self._columns), self._keys.dtype, self.device)
        if form in compiled.checked:
            return
        arguments = self._arguments(log_p.argmax(dim=1))
        expected = _log_p(read_token(*arguments))
        try:
            found = _log_p(compiled(*arguments))
        except TorchDynamoException as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NotStaticError(
                f"expected torch.compile to compile a step of {type(self.model).__name__}, but it "
                f"fails: {cause}; leave out `compile`, or call smc.sample"
            ) from error
        apart = float((found - expected).abs().nanmean())
        spread = float((expected - log_p).abs().nanmean())
        if apart > FAULT * spread:
            raise NotStaticError(
                "expected correct log-probabilities from the compiled step, but those of "
                f"{type(self.model).__name__} are wrong by {apart:.2g} nats on average; leave out "
                "compile"
            )
        compiled.checked.add(form)


def read_token(
    model: Any,
    kv_cache: dict[str, Any],
    tokens: Int64[Tensor, "P"],
    columns: Int64[Tensor, "columns"],
    column: Int64[Tensor, "1"],
    first: Int64[Tensor, "P 1"],
    last_position: int,
) -> Float[Tensor, "P V"]:
    """Append a token to each row, without copying rows; this part of a step can be compiled."""
    seen = (columns >= first) & (columns <= column)
    lowest = torch.finfo(model.dtype).min
    mask = torch.zeros_like(seen, dtype=model.dtype).masked_fill(~seen, lowest)
    out = model(
        input_ids=tokens.unsqueeze(1),
        attention_mask=mask[:, None, None, :],
        position_ids=(column - first).clamp(max=last_position),
        use_cache=True,
        **kv_cache,
    )
    logits: Tensor = out.logits[:, 0]
    return logits


def _log_p(logits: Float[Tensor, "P V"]) -> Float[Tensor, "P V"]:
    """Convert logits to log-probabilities, in at least float32."""
    return logits.log_softmax(dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))


def move_rows(
    piece: Float[Tensor, "layers P heads columns d"], source: Int64[Tensor, "P"], first: int
) -> None:
    """Copy row `source[r]` to row r in every layer, from column `first` on, in place."""
    if piece.is_cuda and importlib.util.find_spec("triton") is not None:
        from smc._models.kernels.triton_rows import move_rows as in_place

        in_place(piece, source, first)
        return
    generated = piece[:, :, :, first:]
    generated.copy_(generated.index_select(1, source))


Step = Callable[..., Tensor]

_CAPTURING = ("reduce-overhead", "max-autotune")


def compile_step(step: Step, compile: bool | Mapping[str, Any]) -> CompiledStep | None:
    """Create a compiled step from the `compile` argument of `TransformersLM`; None for False."""
    options = {} if isinstance(compile, bool) else dict(compile)
    captures = options.get("mode") in _CAPTURING or (options.get("options") or {}).get(
        "triton.cudagraphs"
    )
    if captures or not options.get("fullgraph", True):
        raise ValueError(
            f"expected compile to be a bool, or arguments of torch.compile without CUDA graphs or "
            f"graph breaks, got {options}; pass compile=True or "
            "compile={'mode': 'max-autotune-no-cudagraphs'}"
        )
    return None if compile is False else CompiledStep(step, options)


class CompiledStep:
    """A function of tensors that is compiled when it gets tensors of new shapes or types.

    A step of a small model launches about a thousand small kernels, which take most of the time of
    a captured graph. `torch.compile` fuses them. Compilation takes tens of seconds for each model
    and number of rows. It is repeated once, for the second number of cache columns.

    Args:
        step: the function.
        options: arguments of `torch.compile`; `fullgraph` is always True.

    Attributes:
        checked: shapes, types and devices of arguments for which the compiled function was compared
            with the function itself.
    """

    def __init__(self, step: Step, options: Mapping[str, Any]) -> None:
        self._step, self._options = step, dict(options)
        plain: Any = inspect.unwrap(step)
        # PyTorch stores at most eight compiled variants of a code object, so each model has a copy.
        own = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
        self._compiled: Step = torch.compile(own, **{**options, "fullgraph": True})
        self.checked: set[object] = set()

    def __call__(self, *arguments: Any) -> Tensor:
        """Call the compiled function; compile it first if shapes or types are new."""
        return self._compiled(*arguments)

    def __reduce__(self) -> tuple[type, tuple[Step, dict[str, Any]]]:
        return CompiledStep, (self._step, self._options)


_NAME = "grouped_queries"
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")


def with_grouped_queries(model: Any) -> Any:
    """Return a model whose attention doesn't copy keys and values for grouped queries.

    PyTorch's memory-efficient kernel needs as many key heads as query heads, so `transformers`
    copies the whole cache in each layer of each step. If every row has one token, the mask is the
    same for all heads, and the query heads of a group can be stacked as if they were tokens.

    A model with another attention function is returned unchanged.
    """
    if attention_name(model.config.get_text_config()) != "sdpa":
        return model
    return with_attention(model, _NAME, _attention())


@cache
def _attention() -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function with the signature that `transformers` requires."""
    sdpa = private("integrations.sdpa_attention", "sdpa_attention_forward")

    def attend(
        module: Any,
        query: Float[Tensor, "P H n d"],
        key: Float[Tensor, "P heads columns d"],
        value: Float[Tensor, "P heads columns d2"],
        attention_mask: Float[Tensor, "P 1 n columns"] | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        P, H, n, d = query.shape
        heads = key.shape[1]
        if n > 1 or heads == H or any(options.get(name) is not None for name in _UNKNOWN):
            options.update(dropout=dropout, scaling=scaling)
            return sdpa(module, query, key, value, attention_mask, **options)
        stacked = query.reshape(P, heads, H // heads, d)
        out = scaled_dot_product_attention(
            stacked, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
        return out.reshape(P, 1, H, out.shape[3]), None

    return attend
