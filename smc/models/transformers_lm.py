"""This module samples from any causal language model of the `transformers` library.

A matrix product may round differently in a larger batch, so log-probabilities repeat across batch
sizes to the last few bits only.  A model loaded in float64 makes that irrelevant in practice, where
its attention can take it: some older architectures give NaN on padded rows then, which the sampler
refuses.

Where the model allows it, rows of one prompt share its keys and values, and answers are read
without padding (`smc.models.sharing_rows`). Cost of a step: one forward pass over the tokens, and a
copy of what the rows generated when they move.

Prompts can be kept: their keys and values, and what the model says after them, stay for the next
call with the same prompt (`prompt_bytes`), as a comparison of methods reads each many times. A
prompt that is kept is read alone, so that what is remembered of it does not depend on the batch.
Other weights or adapters give it keys and values of its own (`smc.models.model_state`).

Several threads may sample from one model, by one `TransformersLM` or by several, and generate
beside that: rows belong to the call that made them, and nothing in the model is changed.
"""

from __future__ import annotations

import inspect
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gcd.tokens.vocabulary import Vocabulary, eos_ids_of
from smc.models.encoding import encode_text
from smc.models.model_state import Fingerprint, fingerprint
from smc.models.protocol import Prompt, Rows, check_ids, token_ids
from smc.models.rows import PromptMemory, TransformersRows, together
from smc.models.self_check import Mode, check_static, shares_prompts
from smc.models.shared_prompts import SharedPrompts
from smc.models.sharing_rows import SharingRows
from smc.models.static_cache import StaticTransformer
from smc.models.suitability import (
    check_state,
    check_suitable,
    context_of,
    num_embeddings,
    num_logits,
)

SMALL = 30_000_000
"""Parameters of a model whose passes are as fast as guesses of what they could read ahead."""


class TransformersLM:
    """A `LanguageModel` from a `transformers` causal LM and its tokenizer.

    The model is used as it is, on its own device and in its own dtype; it is put in evaluation
    mode, and refused while a module of it is back in training mode.  Log-probabilities come out in
    its precision, float32 at least.

    It can be pickled and copied, with its model and tokenizer; kept prompts stay behind.

    Where a model has other rotary frequencies for long texts (`rope_type` "longrope" or "dynamic"),
    every row of a batch gets those of its longest row. Sample prompts beyond the model's original
    length in a call of their own: beside them a short prompt is not read as it is alone.

    Args:
        model: a `PreTrainedModel` for causal language modelling.
        tokenizer: its tokenizer; prompts given as text are encoded with its own special tokens,
            unless they begin with these, as texts of a chat template do.
        vocabulary: the token bytes, if they are to be other than the tokenizer's.
        prompt_bytes: memory for prompts that are kept from call to call, those used longest ago
            going first; 0 keeps none. Each call then compares the model's weights and adapters
            with those that the prompts were read with, at about 1 % of the time of reading 300
            tokens.

    Raises:
        ValueError: the model or the tokenizer is something else, such as a path, an
            encoder-decoder or a model without a language-modeling head.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary | None = None,
        *,
        prompt_bytes: int = 0,
    ) -> None:
        check_suitable(model)
        if not (tokenizer is None or callable(tokenizer)):
            raise ValueError(
                f"tokenizer is {type(tokenizer).__name__}; load the model's own with "
                "AutoTokenizer.from_pretrained(path)"
            )
        self._kept = _KeptPrompts(prompt_bytes)
        self._sharing: dict[Mode, bool] = {}
        self._static: set[Mode] = set()
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
        width = num_logits(self.model)
        if 2 * len(self.tokenizer) < width:  # some models have more logits than tokens, but few
            warnings.warn(
                f"the tokenizer has {len(self.tokenizer)} tokens and the model {width} logits: is "
                "it the model's own tokenizer? Otherwise ids mean other texts",
                stacklevel=2,
            )
        eos_ids = eos_ids_of(self.model, self.tokenizer)
        return Vocabulary.from_tokenizer(self.tokenizer, size=width, eos_ids=eos_ids)

    @property
    def context(self) -> int | None:
        """Positions that the model was built for; None where it does not say."""
        return context_of(self.model)

    @cached_property
    def reads_ahead(self) -> bool:
        """Whether `read_ahead="auto"` reads ahead: on a CPU, if the model is not small."""
        return self.device.type == "cpu" and self.model.num_parameters() > SMALL

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokenize text (see `smc.models.encoding`); return ids as they are."""
        return encode_text(self.tokenizer, prompt) if isinstance(prompt, str) else token_ids(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Float[Tensor, "B V"]]:
        """Read all prompts that are not kept, padded on the left.

        Raises:
            ValueError: the model is in training mode, or a prompt has an id that its embedding
                lacks, as some models have more logits than that.
        """
        check_state(self.model)
        size = num_embeddings(self.model)
        if size is not None:
            for prompt in prompts:
                check_ids(prompt, size)
        self._shares_prompts()  # refuses a model before a long prompt is read
        if not self._kept.most_bytes:
            rows, log_p = self._read(prompts)
            return self._rows(rows.prompts(), rows), log_p
        self._kept.use(fingerprint(self.model))
        memories: dict[tuple[int, ...], PromptMemory] = {}
        wanted = [tuple(prompt) for prompt in prompts]
        for prompt in dict.fromkeys(wanted):
            memory = self._kept.get(prompt)
            if memory is None:
                rows, log_p = self._read([prompt])
                memory = rows.memory(0, log_p[0])
                self._kept.put(prompt, memory)
            memories[prompt] = memory
        known = [memories[prompt] for prompt in wanted]
        return self._rows(together(known)), torch.stack([each.log_p for each in known])

    def static_forward(self) -> StaticTransformer:
        """Return the model as one that reads in static shapes; see `smc.models.static_cache`.

        Raises:
            NotStaticError: it cannot, as it has another memory or another attention.
            ValueError: the model fails its self-check (`smc.models.self_check`), or is in training
                mode.
        """
        check_state(self.model)
        forward, mode = StaticTransformer(self.model, self.context), Mode.of(self.model)
        if mode not in self._static:
            self._shares_prompts()  # refuses with the better reason
            check_static(self.model, forward)
            self._static.add(mode)
        return forward

    def keep(self, prompt: Sequence[int]) -> bool:
        """Read a prompt to keep it for good, unless there is no room; return whether it is kept.

        From then on kept prompts are never evicted, and new ones are stored only if there is room:
        a prompt costs the same whoever asks first.
        """
        self._kept.lasting = True
        if self._kept.most_bytes:
            self.prefill([prompt])
        return self._kept.get(tuple(prompt)) is not None

    def forget_prompts(self) -> None:
        """Forget all kept prompts, after a change of the model that `fingerprint` doesn't see."""
        self._kept.use(None)

    def _rows(self, prompts: SharedPrompts, plain: TransformersRows | None = None) -> Rows:
        """Make rows of prompts that are read; `plain` has them already, if it is given."""
        if self._shares_prompts():
            return SharingRows(self.model, prompts)
        return plain or TransformersRows.after(self.model, prompts)

    def _shares_prompts(self) -> bool:
        """Return whether rows share their prompts; check the model if it is new in this mode."""
        mode = Mode.of(self.model)
        if mode not in self._sharing:
            self._sharing[mode] = shares_prompts(self.model)
        return self._sharing[mode]

    def _read(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[TransformersRows, Float[Tensor, "B V"]]:
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        rows = TransformersRows(self.model, lengths)
        return rows, rows.read(tokens, rows.lengths, **self._last_only)[:, -1]


class _KeptPrompts:
    """Memories of prompts within a bound in bytes; those used longest ago go first.

    Attributes:
        lasting: whether none goes, so that others are kept only while there is room.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.lasting = False
        self._lock = Lock()
        self._made_by: Fingerprint | None = None
        self._memories: OrderedDict[tuple[int, ...], PromptMemory] = OrderedDict()
        self._nbytes = 0

    def use(self, state: Fingerprint | None) -> None:
        """Forget the memories of a model in another state than this."""
        with self._lock:
            if state != self._made_by:
                self._made_by = state
                self._memories.clear()
                self._nbytes = 0

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return _KeptPrompts, (self.most_bytes,)

    def get(self, prompt: tuple[int, ...]) -> PromptMemory | None:
        with self._lock:
            memory = self._memories.get(prompt)
            if memory is not None:
                self._memories.move_to_end(prompt)
            return memory

    def put(self, prompt: tuple[int, ...], memory: PromptMemory) -> None:
        with self._lock:
            if memory.nbytes > self.most_bytes - (self._nbytes if self.lasting else 0):
                return
            # Two calls may have read the same prompt at the same time.
            if prompt not in self._memories:
                self._memories[prompt] = memory
                self._nbytes += memory.nbytes
            while self._nbytes > self.most_bytes:
                _, oldest = self._memories.popitem(last=False)
                self._nbytes -= oldest.nbytes
