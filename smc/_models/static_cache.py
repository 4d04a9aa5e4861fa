"""Language models in static shapes: each step appends one token to each of P rows.

All rows advance together: after t tokens every row has t generated columns, and those of ended rows
are meaningless. So the positions of all rows differ only by the lengths of their prompts, no
columns move, and shapes are the same from the first step to the last, as a captured graph requires.

`StaticTransformer` implements this for causal models of `transformers` with a `StaticCache`. Each
prompt is computed once and copied into the cache for every particle. All particles of an example
have the same prompt, so copying a row to another one copies generated columns only.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smc._models.compiled_step import CompiledStep
from smc._models.grouped_attention import with_grouped_queries
from smc._models.transformers_internals import (
    attention_name,
    cache_argument,
    is_stateful,
    planned_layers,
    static_cache,
)

ALIGNMENT = 16
"""Numbers of columns are multiples of this, as efficient kernels need for masks."""
FAULT = 0.25
"""Share of the mean change of log p between steps above which a difference is a fault."""


class NotStaticError(ValueError):
    """A request that static shapes don't support; the message names it and the alternative."""


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
    """The forward pass of a language model in static shapes; its cache changes in place."""

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Compute each prompt (token ids), and make N rows of it with space for `budget` tokens.

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
            source: source row of each row. Precondition: source[r] = r for any row r that is used
                as a source.
            step: number of tokens appended so far.

        Returns:
            Log-probabilities of the next token.
        """
        ...

    def rewind(self) -> None:
        """Drop all generated tokens."""
        ...


class StaticTransformer:
    """A `Forward` of a causal `transformers` model.

    Args:
        model: a model that attends to all previous tokens, with an attention function that supports
            a mask with a value for each column ("sdpa" or "eager").
        context: the model's number of positions; None for no limit.
        compiled: `read_token`, compiled for this model; None to call it uncompiled.

    Raises:
        NotStaticError: the model is unsuitable.
    """

    def __init__(
        self, model: Any, context: int | None = None, compiled: CompiledStep | None = None
    ) -> None:
        if is_stateful(model) or not planned_layers(model) <= {"full"}:
            raise NotStaticError(
                f"static shapes need attention to all columns in every layer, but "
                f"{type(model).__name__} has a sliding window or a recurrent state; set "
                "execution='eager'"
            )
        attention = attention_name(model.config) or "eager"
        if attention not in ("sdpa", "eager"):
            raise NotStaticError(
                "static shapes need an attention function with a mask per column, got "
                f"{attention!r}; load the model with attn_implementation='sdpa'"
            )
        if torch.is_autocast_enabled(model.device.type):
            raise NotStaticError(
                "static shapes need one data type, but under torch.autocast keys and values have "
                "different types; set execution='eager', or load the model in the lower precision"
            )
        if len({parameter.device for parameter in model.parameters()}) > 1:
            raise NotStaticError(
                "static shapes need the model on one device, got several; set execution='eager'"
            )
        self.model = model
        self._grouped = with_grouped_queries(model)
        self._compiled = compiled
        # Any number that fits into an integer works for a model without a limit.
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
        """Compute all prompts in one forward pass, padded on the left; see `Forward`."""
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
        # One tensor for all layers, so that rows are moved in one operation.
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
        """Move rows and append a token to each; see `Forward`."""
        for piece in (self._keys, self._values):
            move_rows(piece, source, self.width)
        torch.add(step, self.width, out=self._column[0])
        return _log_p((self._compiled or read_token)(*self._arguments(tokens)))

    def rewind(self) -> None:
        """Drop all generated tokens; the number of a step tells which columns are valid."""

    def _arguments(self, tokens: Int64[Tensor, "P"]) -> tuple[Any, ...]:
        """Return the arguments of `read_token`."""
        kv_cache = cache_argument(self._grouped, self._cache)
        own = (self._columns, self._column, self._first, self._last_position)
        return (self._grouped, kv_cache, tokens, *own)

    def _compile(self, compiled: CompiledStep, log_p: Float[Tensor, "P V"]) -> None:
        """Compile a step for these shapes, and compare its result with that of the step itself.

        Raises:
            NotStaticError: it can't be compiled, or the log-probabilities differ.
        """
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
                f"torch.compile fails on a step of {type(self.model).__name__}: {cause}; leave out "
                "compile, or set execution='eager'"
            ) from error
        apart = float((found - expected).abs().nanmean())
        spread = float((expected - log_p).abs().nanmean())
        if apart > FAULT * spread:
            raise NotStaticError(
                f"compiled log-probabilities of {type(self.model).__name__} are wrong by "
                f"{apart:.2g} nats on average; leave out compile"
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
    """Append a token to each row; a step without moves, which can be compiled.

    Args:
        model: the model.
        kv_cache: the argument with the cache, by name.
        tokens: the tokens.
        columns: 0, 1, ..., number of columns - 1.
        column: the column of the tokens, which the cache has too.
        first: first column of each row's prompt.
        last_position: highest position of the model. An ended row continues until the last row
            ends, possibly beyond it.

    Returns:
        Logits of the next token.
    """
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
    """Normalize in the logits' precision, at least float32."""
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
