"""Language models, their adapters, and prompts for their tokenizers.

A model is a checkpoint directory, a hub name, or the repository's own model. An adapter is a
low-rank update of its weights (LoRA, Hu et al., arXiv 2106.09685), stored in the format of `peft`.
`base.json` beside it names the weights that it was trained on: an adapter of other weights would
load without an error and give meaningless output.

A prompt is either `compact` text or a dialogue in the tokenizer's chat template.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from experiments import smollm2
from experiments.config import PROMPTS, ModelConfig
from experiments.files import read_json, write_json
from gcd import ConstraintError
from smc import TransformersLM

SHAPE = "llama3_1_8b_shape"
"""The path of a model with random weights (`experiments.latency`)."""
ROOT = Path(__file__).resolve().parents[1]
_HASHED_BYTES = 256 * 1024**2  # larger files are identified by size and modification time
_HASHED = (
    *(".safetensors", ".bin"),  # weights
    *(".json", ".jinja", ".model", ".txt"),  # settings and tokenizers
)


def settle(model: ModelConfig, task: str) -> None:
    """Resolve the `auto` values of `model.*` for a task of this name, in place.

    `model.adapter` becomes `models/smollm2-TASK` if it exists and the model is SmolLM2, otherwise
    `none`. `model.prompt` becomes `compact` if there is an adapter.

    Raises:
        ValueError: the adapter doesn't exist.
    """
    if model.adapter == "auto":
        own = ROOT / "models" / f"{smollm2.NAME}-{task}"
        fits = model.path == smollm2.NAME and own.is_dir()
        model.adapter = str(own) if fits else "none"
    elif model.adapter != "none":
        existing_adapter(model.adapter)
    if model.prompt == "auto" and model.adapter != "none":
        model.prompt = "compact"


def title_of(model: ModelConfig) -> str:
    """Return the name of the model for tables."""
    name = smollm2.TITLE if model.path == smollm2.NAME else model.path
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
            "(experiments/vllm_model.py)"
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
            f"directory, a hub name that can be reached from here, or `{smollm2.NAME}`"
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
    if path == smollm2.NAME:
        return str(smollm2.checkpoint())
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
            f"a Hugging Face checkpoint directory, a hub name, or `{smollm2.NAME}`"
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
    if path == smollm2.NAME:
        return smollm2.identity()
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
