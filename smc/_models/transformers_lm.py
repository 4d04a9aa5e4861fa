"""Adapter from causal language models of `transformers` to the `LanguageModel` protocol.

A matrix product may be rounded differently in a larger batch, so log-probabilities agree across
batch sizes except for the last few bits. In float64 the difference is irrelevant in practice. But
in float64 the attention of some older architectures returns NaN for padded rows, which the sampler
rejects.

If the model allows it, rows share the keys and values of their prompt, and answers are computed
without padding (`smc._models.sharing_rows`). Cost of a step: one forward pass over the tokens, and
a copy of the rows' generated columns if rows are reordered.

Prompts can be cached (`prompt_bytes`). Their keys and values, and the log-probabilities after them,
are kept for later calls with the same prompt, for example when a comparison of methods uses each
prompt many times. A cached prompt is computed alone, so its values don't depend on the batch.
Changed weights or adapters clear the cache (`smc._models.model_state`).

Several threads may sample from one model through one or several `TransformersLM`, and generate text
at the same time. Rows belong to the call that created them, and the model is not modified.
"""

from __future__ import annotations

import inspect
import os
import reprlib
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gcd import Vocabulary, eos_ids_of
from gcd._support.optional import missing
from smc._models.model_state import Fingerprint, fingerprint
from smc._models.protocol import Prompt, Rows, check_ids, token_ids
from smc._models.rows import PromptMemory, TransformersRows, together
from smc._models.self_check import Mode, check_static, shares_prompts
from smc._models.shared_prompts import SharedPrompts
from smc._models.sharing_rows import SharingRows
from smc._models.static_cache import StaticTransformer, compile_step, read_token
from smc._models.suitability import check_kind, check_state, context_of, num_embeddings, num_logits

SMALL = 30_000_000
"""Largest number of parameters of a model whose forward passes are as fast as guessing tokens."""

SECONDS_OF_HUB = 5
"""Seconds after which the hub counts as unreachable."""
_OF_FILES = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "token",
    "trust_remote_code",
)
"""Options of `from_pretrained` that select files, and apply to the model and to the tokenizer."""


class TransformersLM:
    """Adapter from a `transformers` causal language model and its tokenizer to `LanguageModel`.

    The model's device and dtype don't change. The model is put into evaluation mode, and calls
    raise an error if one of its modules is in training mode later. Log-probabilities are in the
    model's precision, but at least float32.

    The adapter can be pickled and copied with its model and tokenizer. Cached prompts are not
    included.

    Some models use other rotary frequencies for long texts (`rope_type` "longrope" or "dynamic").
    All rows of a batch then use the frequencies of the longest row. So sample prompts beyond the
    model's original length in a separate call.

    Args:
        model: a `PreTrainedModel` for causal language modeling.
        tokenizer: the model's tokenizer. It encodes text prompts with its special tokens, unless
            the text already begins with them, as the output of a chat template does.
        vocabulary: the bytes of each token; by default they are read from the tokenizer.
        prompt_bytes: memory limit of the prompt cache, in bytes; the least recently used prompts
            are evicted. 0 disables the cache. With a cache, each call checks whether the model's
            weights or adapters have changed, which takes about 1% of the time of computing 300
            tokens.
        compile: whether to fuse the kernels of a step in static shapes (`execution="static"`) with
            `torch.compile`; or arguments of `torch.compile`, such as `{"mode":
            "max-autotune-no-cudagraphs"}`. Each new number of particles is compiled once, usually
            in less than a minute. Eager execution isn't compiled.

    Raises:
        ValueError: the model or the tokenizer is unsuitable, such as a path, an encoder-decoder or
            a model without a language-modeling head; or `compile` has unsupported arguments.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary | None = None,
        *,
        prompt_bytes: int = 0,
        compile: bool | Mapping[str, Any] = False,
    ) -> None:
        if not (isinstance(model, torch.nn.Module) and hasattr(model, "config")):
            raise ValueError(
                f"expected a language model of transformers, got {type(model).__name__}; load one "
                "with AutoModelForCausalLM.from_pretrained(path)"
            )
        if not (tokenizer is None or callable(tokenizer)):
            raise ValueError(
                f"expected a tokenizer, got {type(tokenizer).__name__}; load the model's tokenizer "
                "with AutoTokenizer.from_pretrained(path)"
            )
        self._kept = _KeptPrompts(prompt_bytes)
        self._sharing: dict[Mode, bool] = {}
        self._static: set[Mode] = set()
        self._compiled = compile_step(read_token, compile)
        check_kind(model)
        check_state(model.eval())
        self.model: Any = model
        self.tokenizer = tokenizer
        self._given_vocabulary = vocabulary
        # Only the logits after the last prompt token are needed. Most models can omit the others.
        forward = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> TransformersLM:
        """Load a causal language model and its tokenizer with `transformers`.

        Args:
            path: directory of a model, or its name on the hub.
            options: arguments of `AutoModelForCausalLM.from_pretrained`, such as `dtype` or
                `device_map`.

        Raises:
            OSError: there is no such model, or the hub can't be reached and has not been used for
                this model before.
            ImportError: `transformers` isn't installed.
            ValueError: the model or the tokenizer is unsuitable, or an option is unknown.
        """
        _check_options(path, options)
        try:
            found = _find(str(path), options)  # first, as the import may take seconds
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ModuleNotFoundError as error:
            raise missing("transformers", "models", "TransformersLM.from_pretrained") from error
        of_both = {name: value for name, value in options.items() if name in _OF_FILES}
        try:
            model = AutoModelForCausalLM.from_pretrained(found, **options)
        except TypeError as error:
            wrong = [name for name in options if f"'{name}'" in str(error)]
            if not wrong:
                raise
            raise ValueError(
                f"expected options of AutoModelForCausalLM.from_pretrained, got {wrong[0]}="
                f"{reprlib.repr(options[wrong[0]])}; correct its name, or omit it"
            ) from error
        return cls(model, AutoTokenizer.from_pretrained(found, **of_both))

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.device

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary: one token per logit, and the EOS ids of the model and the tokenizer."""
        if self._given_vocabulary is not None:
            return self._given_vocabulary
        width = num_logits(self.model)
        if 2 * len(self.tokenizer) < width:  # few models have many more logits than tokens
            warnings.warn(
                f"expected a tokenizer with about {width} tokens, one per logit of the model, got "
                f"{len(self.tokenizer)}; make sure that it is the model's own tokenizer",
                stacklevel=2,
            )
        eos_ids = eos_ids_of(self.model, self.tokenizer)
        return Vocabulary.from_tokenizer(self.tokenizer, size=width, eos_ids=eos_ids)

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if it is unknown."""
        return context_of(self.model)

    @cached_property
    def reads_ahead(self) -> bool:
        """True if `read_ahead="auto"` reads ahead: on a CPU, unless the model is small."""
        return self.device.type == "cpu" and self.model.num_parameters() > SMALL

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokenize a text prompt with special tokens such as BOS; return token ids unchanged.

        Text from a chat template already begins with BOS. A second BOS would change all
        log-probabilities, and few models were trained with two. So a text that begins with the
        special token that the tokenizer would prepend is encoded without special tokens.
        """
        if not isinstance(prompt, str):
            return token_ids(prompt)
        ids = _tokenize(self.tokenizer, prompt)
        if ids[:1] and ids[0] in ids[1:]:  # the first token occurs again, possibly by mistake
            plain = _tokenize(self.tokenizer, prompt, add_special_tokens=False)
            if plain[:1] == _find_prepended(self.tokenizer)[:1]:
                return plain
        return ids

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Float[Tensor, "B V"]]:
        """Run the model on all prompts that are not cached, padded on the left.

        Raises:
            ValueError: the model is in training mode; or a prompt has a token id outside of the
                input embedding, which has fewer tokens than logits in some models.
        """
        check_state(self.model)
        size = num_embeddings(self.model)
        if size is not None:
            for prompt in prompts:
                check_ids(prompt, size)
        self._shares_prompts()  # raises an error for an unsuitable model before a long pass
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
        """Return the model's forward pass in static shapes; see `smc._models.static_cache`.

        Raises:
            NotStaticError: the model's cache or attention doesn't support static shapes.
            ValueError: the model fails its self-check (`smc._models.self_check`), or is in training
                mode.
        """
        check_state(self.model)
        mode = Mode.of(self.model)
        if mode not in self._static:
            plain = StaticTransformer(self.model, self.context)
            self._shares_prompts()  # its errors are more specific than those of the next check
            check_static(self.model, plain)
            self._static.add(mode)
        return StaticTransformer(self.model, self.context, self._compiled)

    def keep(self, prompt: Sequence[int]) -> bool:
        """Compute and cache a prompt permanently if there is space; return whether it is cached.

        From the first call on, cached prompts are never evicted, and new prompts are cached only if
        there is space. The cost of a prompt then doesn't depend on the order of calls.
        """
        self._kept.lasting = True
        if self._kept.most_bytes:
            self.prefill([prompt])
        return self._kept.get(tuple(prompt)) is not None

    def forget_prompts(self) -> None:
        """Clear the prompt cache, after changes of the model that aren't detected automatically.

        `smc._models.model_state` describes which changes are detected.
        """
        self._kept.use(None)

    def _rows(self, prompts: SharedPrompts, plain: TransformersRows | None = None) -> Rows:
        """Create rows from computed prompts.

        Args:
            plain: existing padded rows with this cache, which are used if rows can't share
                prompts; None to create them.
        """
        if self._shares_prompts():
            return SharingRows(self.model, prompts)
        return plain or TransformersRows.after(self.model, prompts)

    def _shares_prompts(self) -> bool:
        """Return whether rows share their prompts; check the model first if its mode is new."""
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


def _find_prepended(tokenizer: Any) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    ids = _tokenize(tokenizer, "a")
    plain = _tokenize(tokenizer, "a", add_special_tokens=False)
    for begin in range(len(ids) - len(plain) + 1):
        if ids[begin : begin + len(plain)] == plain:
            return ids[:begin]
    return []


def _tokenize(tokenizer: Any, text: str, **options: bool) -> list[int]:
    # With `verbose`, the tokenizer would warn about the length, which `check_prompts` checks.
    return list(tokenizer(text, verbose=False, **options)["input_ids"])


def _check_options(path: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a model instead of its name, and for options of something else."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(
            f"expected the name or the directory of a model, got {type(path).__name__}; wrap a "
            "loaded model with smc.TransformersLM(model, tokenizer)"
        )
    own = {*inspect.signature(TransformersLM).parameters} & {*options}
    if "device" in options or own:
        name = "device" if "device" in options else min(own)
        remedy = "omit it and call lm.model.to(device), or pass device_map, which needs accelerate"
        if name in own:
            remedy = f"pass {name} to smc.TransformersLM(model, tokenizer)"
        raise ValueError(
            "expected options of AutoModelForCausalLM.from_pretrained, got "
            f"{name}={reprlib.repr(options[name])}; {remedy}"
        )


def _find(name: str, options: Mapping[str, Any]) -> str:
    """Return a model's name if the hub has it, or else the directory of its files.

    `transformers` would repeat the request for each file for 20 seconds before it reports that the
    hub can't be reached, even for files that it doesn't need.
    """
    if os.path.isdir(name):
        return name
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    expected = f"expected the directory of a model, or its name on the hub, got {name!r}, which is"
    revision = options.get("revision")
    try:
        if not options.get("local_files_only"):
            model_info(name, revision=revision, token=options.get("token"), timeout=SECONDS_OF_HUB)
            return name
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise OSError(f"{expected} neither; correct it, or log in for a private model") from error
    except HfHubHTTPError:  # the hub can be reached, and `transformers` reports its answer
        return name
    except Exception:  # the errors of a network depend on the version of huggingface_hub
        pass
    for file in ("config.json", "adapter_config.json", options.get("gguf_file")):
        path = file and try_to_load_from_cache(name, file, options.get("cache_dir"), revision)
        if isinstance(path, str):
            return os.path.dirname(path)
    raise OSError(
        f"{expected} neither a directory nor downloaded, and the hub can't be asked; correct it, "
        "or connect to the network"
    )


class _KeptPrompts:
    """A cache of prompts with a limit in bytes, which evicts the least recently used prompts.

    Attributes:
        lasting: if True, prompts aren't evicted, and a new prompt is only cached if there is space.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.lasting = False
        self._lock = Lock()
        self._made_by: Fingerprint | None = None
        self._memories: OrderedDict[tuple[int, ...], PromptMemory] = OrderedDict()
        self._nbytes = 0

    def use(self, state: Fingerprint | None) -> None:
        """Clear the cache if the model's state has changed."""
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
            # Two calls may have computed the same prompt at the same time.
            if prompt not in self._memories:
                self._memories[prompt] = memory
                self._nbytes += memory.nbytes
            while self._nbytes > self.most_bytes:
                _, oldest = self._memories.popitem(last=False)
                self._nbytes -= oldest.nbytes
