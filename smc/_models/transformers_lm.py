"""Adapter from causal language models of `transformers` to the `LanguageModel` protocol.

A matrix product may be rounded differently in a larger batch, so log-probabilities agree across
batch sizes except for the last few bits. In float64 the difference is irrelevant in practice. But
in float64 the attention of some older architectures returns NaN for padded rows, which the sampler
rejects.

If the model allows it, rows share the keys and values of their prompt, and answers are computed
without padding (`smc._models.sharing_rows`). Cost of a step: one forward pass over the tokens, and
a copy of the rows' generated columns if rows are reordered.

A prompt can be computed once for several calls (`TransformersLM.open`), for example when a
comparison of methods uses each prompt many times. An opened prompt is computed alone, so its values
don't depend on the batch.

Several threads may sample from one model through one or several `TransformersLM`, and generate text
at the same time. Rows belong to the call that created them, and the model is not modified.
"""

from __future__ import annotations

import inspect
import os
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gcd import Vocabulary, eos_ids_of
from gcd._support.optional import missing
from smc._models.protocol import (
    Messages,
    OpenedPrompt,
    Prompt,
    Rows,
    check_ids,
    check_length,
    encode_prompt,
    token_ids,
)
from smc._models.rows import TransformersRows, together
from smc._models.self_check import Mode, check_static, shares_prompts
from smc._models.sharing_rows import SharedPrompts, SharingRows
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

    The adapter can be pickled and copied with its model and tokenizer.

    Some models use other rotary frequencies for long texts (`rope_type` "longrope" or "dynamic").
    All rows of a batch then use the frequencies of the longest row. So sample prompts beyond the
    model's original length in a separate call.

    Args:
        model: a `PreTrainedModel` for causal language modeling.
        tokenizer: the model's tokenizer. It encodes text prompts with its special tokens, unless
            the text already begins with them, as the output of a chat template does.
        vocabulary: the bytes of each token; by default they are read from the tokenizer.
        compile: whether to fuse the kernels of a step of `smc.captured.sample` with
            `torch.compile`; or arguments of `torch.compile`, such as `{"mode":
            "max-autotune-no-cudagraphs"}`. Each new number of particles is compiled once, usually
            in less than a minute. `smc.sample` doesn't compile.

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
        """True if passes read ahead by default: on a CPU, unless the model is small."""
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

    def open(self, prompt: Prompt | Messages) -> OpenedPrompt:
        """Run the model on a prompt, and return token ids that later calls needn't compute again.

        Pass the result as a prompt to `smc.sample`, `smc.distribution` and similar functions. It
        holds the keys and values of the prompt, so it becomes invalid when the weights or adapters
        of the model change. `smc.captured.sample` computes the prompt again.

        Args:
            prompt: text, token ids, or messages for the chat template.

        Raises:
            PromptTooLongError: the prompt exceeds the model's context.
            ValueError: the model is in training mode or unsuitable; or the prompt is empty, has
                unknown token ids, or is refused by the chat template.
        """
        check_state(self.model)
        opened = OpenedPrompt(encode_prompt(self, prompt))
        check_length(opened, 0, self.context)
        check_ids(opened, num_embeddings(self.model) or self.vocabulary.size)
        self._shares_prompts()  # raises an error for an unsuitable model before a long pass
        rows, log_p = self._read([opened])
        keys_and_values = rows.prompts().layers
        opened.model, opened.log_p = self.model, log_p[0].clone()  # not a view of all logits
        opened.layers = tuple((keys[0], values[0]) for keys, values in keys_and_values)
        return opened

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Float[Tensor, "B V"]]:
        """Run the model on the prompts, padded on the left; opened prompts need no forward pass.

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
        if not any(isinstance(prompt, OpenedPrompt) for prompt in prompts):
            rows, log_p = self._read(prompts)
            return self._rows(rows.prompts(), rows), log_p
        opened = [each if isinstance(each, OpenedPrompt) else self.open(each) for each in prompts]
        for each in opened:
            encode_prompt(self, each)  # raises an error for a prompt of another model
        return self._rows(together(opened)), torch.stack([each.log_p for each in opened])

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
