"""This module samples from any causal language model of the `transformers` library.

Rows of different lengths share one rectangular cache.  The invariant that keeps this simple: the
valid columns of row r are always its *last* `lengths[r]` ones, padding being on the left.  Then the
attention mask and the positions follow from the lengths alone, and a sliding attention window,
which models count in columns, counts tokens.  Prefilling pads on the left by itself.  Runs of
unequal lengths, and cutting rows back, leave padding on the right, so the columns of each row are
shifted to restore the invariant (`_align`, one gather per layer).

Padding does not change what is computed for a row beyond the order of floating-point sums: masked
columns have weight exactly zero, and positions count real tokens.  A matrix product may however
round differently in a larger batch, so log-probabilities repeat across batch sizes to the last few
bits only.  A model loaded in float64 makes that irrelevant in practice, where its attention can
take it: some older architectures give NaN on padded rows then, which the sampler refuses.

Cost of a step: one forward pass over the rows, and a copy of the cache when rows move.

Prompts can be kept: their keys and values, and what the model says after them, stay for the next
call with the same prompt (`prompt_bytes`), as a comparison of methods reads each many times.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gcd.tokens.vocabulary import Vocabulary, eos_ids_of
from smc.language_model import Prompt


class TransformersLM:
    """A `LanguageModel` from a `transformers` causal LM and its tokenizer.

    The model is used as it is, on its own device and in its own dtype; it is put in evaluation
    mode.  Log-probabilities come out in its precision, float32 at least.

    Args:
        model: a `PreTrainedModel` for causal language modelling.
        tokenizer: its tokenizer; prompts given as text are encoded with its own special tokens.
        vocabulary: the token bytes, if they are to be other than the tokenizer's.
        prompt_bytes: memory for prompts that are kept from call to call, those used longest ago
            going first; 0 keeps none. The model's weights must not change then.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary | None = None,
        *,
        prompt_bytes: int = 0,
    ) -> None:
        self._kept = _KeptPrompts(prompt_bytes)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._given_vocabulary = vocabulary
        # Only the last column's logits matter after a prompt; most models can skip the others.
        forward = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.device

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Token bytes as wide as the logits; every id that anyone says ends a text is an EOS."""
        if self._given_vocabulary is not None:
            return self._given_vocabulary
        width = int(self.model.get_output_embeddings().weight.shape[0])
        eos_ids = eos_ids_of(self.model, self.tokenizer)
        return Vocabulary.from_tokenizer(self.tokenizer, size=width, eos_ids=eos_ids)

    @property
    def context(self) -> int | None:
        """Positions that the model was built for; None where it does not say."""
        config = self.model.config.get_text_config()
        names = ("max_position_embeddings", "max_seq_len")
        return next((getattr(config, name) for name in names if hasattr(config, name)), None)

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokenises text, with the tokenizer's special tokens; returns ids as they are."""
        if isinstance(prompt, str):
            # `verbose` would warn about length, which `check_prompts` does better.
            return list(self.tokenizer(prompt, verbose=False)["input_ids"])
        return [int(token) for token in prompt]

    def prefill(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[TransformersRows, Float[Tensor, "B V"]]:
        """Reads all prompts that are not kept in one forward pass, padded on the left."""
        if not self._kept.most_bytes:
            return self._read(prompts)
        wanted = [tuple(prompt) for prompt in prompts]
        memories = {p: memory for p in wanted if (memory := self._kept.get(p)) is not None}
        missing = [prompt for prompt in dict.fromkeys(wanted) if prompt not in memories]
        if missing:
            rows, log_p = self._read(missing)
            for number, prompt in enumerate(missing):
                memories[prompt] = rows.memory(number, log_p[number])
                self._kept.put(prompt, memories[prompt])
        known = [memories[prompt] for prompt in wanted]
        return TransformersRows.after(self, known), torch.stack([each.log_p for each in known])

    def _read(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[TransformersRows, Float[Tensor, "B V"]]:
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        rows = TransformersRows(self, lengths)
        return rows, rows.read(tokens, rows.lengths, **self._last_only)[:, -1]


class _Memory(NamedTuple):
    """What the model remembers of one prompt.

    Attributes:
        length: its tokens.
        layers: keys and values of each layer.
        log_p: log-probabilities of the token after it.
    """

    length: int
    layers: tuple[tuple[Float[Tensor, "heads L d"], Float[Tensor, "heads L d2"]], ...]
    log_p: Float[Tensor, "V"]

    @property
    def nbytes(self) -> int:
        return self.log_p.nbytes + sum(k.nbytes + v.nbytes for k, v in self.layers)


class _KeptPrompts:
    """Memories of prompts within a bound in bytes; those used longest ago go first."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._memories: OrderedDict[tuple[int, ...], _Memory] = OrderedDict()
        self._nbytes = 0

    def get(self, prompt: tuple[int, ...]) -> _Memory | None:
        memory = self._memories.get(prompt)
        if memory is not None:
            self._memories.move_to_end(prompt)
        return memory

    def put(self, prompt: tuple[int, ...], memory: _Memory) -> None:
        if memory.nbytes > self.most_bytes:
            return
        self._memories[prompt] = memory
        self._nbytes += memory.nbytes
        while self._nbytes > self.most_bytes:
            _, oldest = self._memories.popitem(last=False)
            self._nbytes -= oldest.nbytes


class TransformersRows:
    """The KV cache of R prefixes; see `smc.language_model.Rows`.

    Attributes:
        lengths: valid columns of each row, its last ones.
        prompt_lengths: how many of them are the prompt's.
    """

    def __init__(self, lm: TransformersLM, prompt_lengths: Int64[Tensor, "R"]) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        # Asked beforehand, as hybrids fail in the middle of a pass when given a plain cache.
        planned = DynamicCache(config=lm.model.config).layers
        plain = {type(layer) for layer in planned} <= {DynamicLayer, DynamicSlidingWindowLayer}
        if getattr(lm.model, "_is_stateful", False) or not plain:
            raise ValueError(_no_kv_cache(lm.model))
        self._model = lm.model
        # Without a config every layer keeps all columns: sliding windows are left to the mask.
        self._cache: Any = DynamicCache()
        self.prompt_lengths = prompt_lengths
        self.lengths = prompt_lengths

    @classmethod
    def after(cls, lm: TransformersLM, memories: Sequence[_Memory]) -> TransformersRows:
        """Makes rows of prompts that were read before, padded on the left again."""
        lengths = torch.tensor([memory.length for memory in memories], device=lm.device)
        rows = cls(lm, lengths)
        for number in range(len(memories[0].layers)):
            keys, values = (
                _padded([memory.layers[number][side] for memory in memories]) for side in (0, 1)
            )
            rows._cache.update(keys, values, number)
        return rows

    def memory(self, row: int, log_p: Float[Tensor, "V"]) -> _Memory:
        """Copies what is remembered of one row."""
        length = int(self.lengths[row])
        layers = tuple(
            (layer.keys[row, :, -length:].clone(), layer.values[row, :, -length:].clone())
            for layer in self._cache.layers
        )
        return _Memory(length, layers, log_p.clone())

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Reads all runs in one forward pass."""
        run_length = runs.shape[1]
        before = self.lengths
        self.lengths = before + lengths
        # The run's padding is on its right: as columns it is cut off again below.
        full = torch.arange(run_length, device=runs.device) < lengths.unsqueeze(1)
        log_p = self.read(torch.where(full, runs, 0), before + run_length)
        if not bool(full.all()):
            self._align(before + run_length, self.lengths)
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Moves cache rows; nothing moves where each row is its own ancestor."""
        same = torch.arange(self.lengths.shape[0], device=ancestors.device)
        if torch.equal(ancestors.long(), same):
            return
        self.lengths = self.lengths[ancestors]
        self.prompt_lengths = self.prompt_lengths[ancestors]
        for layer in self._cache.layers:
            layer.keys = layer.keys.index_select(0, ancestors)
            layer.values = layer.values.index_select(0, ancestors)

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Cuts columns off, then restores the padding to the left."""
        kept = torch.minimum(self.prompt_lengths + lengths, self.lengths)
        self._align(self.lengths, kept)
        self.lengths = kept

    @torch.inference_mode()
    def read(
        self, tokens: Int[Tensor, "R T"], valid: Int64[Tensor, "R"], **options: int
    ) -> Float[Tensor, "R T2 V"]:
        """Reads `tokens` in a forward pass, after which the last `valid` columns of a row count.

        Returns:
            Log-probabilities of the next token after each of the tokens (or after the last one,
            where `options` say so).
        """
        width = self._width + tokens.shape[1]
        mask = _last_columns(valid, width)
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = self._model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            **options,
        )
        self._check_memory(width)
        logits = output.logits
        precision = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=precision)

    def _align(self, valid: Int64[Tensor, "R"], kept: Int64[Tensor, "R"]) -> None:
        """Keeps the first `kept` of each row's last `valid` columns, and moves them to the end."""
        width = self._width
        new_width = int(kept.max())
        columns = torch.arange(new_width, device=kept.device) - new_width
        source = (width - valid + kept).unsqueeze(1) + columns
        # What falls before the row's first token becomes padding; any column will do for it.
        source = source.clamp(min=0)[:, None, :, None]
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                index = source.expand(-1, old.shape[1], -1, old.shape[3])
                setattr(layer, name, old.gather(2, index))

    @property
    def _width(self) -> int:
        """Columns of the cache, padding included."""
        return self._cache.get_seq_length()

    def _check_memory(self, width: int) -> None:
        """Every layer must now hold `width` columns of keys and values, and nothing else.

        Models with another memory (recurrent states, or a cache that they alone know of) leave the
        one they were given empty, and would silently forget all but the last tokens.
        """
        for layer in self._cache.layers or [None]:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            for columns in (keys, values):
                if not isinstance(columns, Tensor) or columns.shape[2] != width:
                    raise ValueError(_no_kv_cache(self._model))


def _padded(parts: Sequence[Float[Tensor, "heads _ d"]]) -> Float[Tensor, "B heads L d"]:
    """Stacks keys or values of unequal lengths, zeros before them."""
    width = max(part.shape[1] for part in parts)
    return torch.stack(
        [torch.nn.functional.pad(part, (0, 0, width - part.shape[1], 0)) for part in parts]
    )


def _no_kv_cache(model: Any) -> str:
    """What is wrong with a model whose rows cannot be moved."""
    return (
        f"{type(model).__name__} does not keep its memory as one column of keys and values per "
        "token in each layer, so its rows cannot be moved; use a model with an ordinary KV cache"
    )


def _last_columns(lengths: Int64[Tensor, "R"], width: int) -> Bool[Tensor, "R L"]:
    """True in the last `lengths[r]` of `width` columns."""
    columns = torch.arange(width, device=lengths.device)
    return columns >= width - lengths.unsqueeze(1)
