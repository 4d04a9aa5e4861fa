"""This module loads a language model by directory or hub name, with errors that say what to do.

An adapter is a small change of a model's weights (LoRA, Hu et al., arXiv 2106.09685).

It lies in a directory in the form of `peft`, with a file beside it that says for which weights it
was trained: on others it would load as well, and answer nonsense.

A prompt is `compact`, or goes through the chat template of the tokenizer; `auto` is either.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from torch.distributed.tensor import distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig

from experiments.harness import smollm2
from experiments.harness.config import PROMPTS, ModelConfig
from experiments.harness.processes import group_of
from gcd.errors import ConstraintError
from gcd.support.files import read_json, write_json
from smc.models.transformers_lm import TransformersLM

SHAPE = "llama3_1_8b_shape"
"""The path of a model with random weights (`experiments.studies.latency.models`)."""
ROOT = Path(__file__).resolve().parents[2]
_HASHED_BYTES = 256 * 1024**2  # larger files are told apart by size and time
_HASHED = (
    *(".safetensors", ".bin"),  # weights
    *(".json", ".jinja", ".model", ".txt"),  # settings; tokenizers are in files of all these kinds
)


def settle(model: ModelConfig, task: str) -> None:
    """Replace what is left open in `model.*` by what it means for a task of this name.

    The adapter becomes that of `models/smollm2-TASK`, where there is one and the model is its own;
    the prompt becomes the compact one where there is an adapter.

    Raises:
        ValueError: no such adapter.
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
    """Say in words which model it is, for tables."""
    name = smollm2.TITLE if model.path == smollm2.NAME else model.path
    return name if model.adapter == "none" else f"{name}, with {Path(model.adapter).name}"


def load_model(settings: ModelConfig) -> tuple[TransformersLM, Any]:
    """Load a model, in evaluation mode on its device, and its tokenizer.

    Raises:
        ValueError: no such directory or hub name, a damaged checkpoint, an adapter of another
            model, or no such device.
        ConstraintError: a tokenizer without any end-of-sequence token.
    """
    device = resolve_device(settings.device)
    shared, spread = settings.tensor_parallel > 1, settings.device_map != "none"
    if (shared or spread) and settings.adapter != "none":
        name = "tensor_parallel" if shared else "device_map"
        raise ValueError(
            f"model.{name}={getattr(settings, name)} with an adapter: an adapter cannot "
            "be merged into parts of a model; save the merged model, or give model.adapter=none"
        )
    path = _found(settings.path)
    dtype = "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)
    adapter = None if settings.adapter == "none" else existing_adapter(settings.adapter)
    if adapter is not None:
        check_base(adapter, identity_of(settings.path), settings.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        parts = in_parts(path, settings) if shared else {}
        if spread:
            parts = {"device_map": settings.device_map}
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **parts)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model.path={settings.path}: cannot load it: {cause}; give a whole checkpoint "
            f"directory, a hub name that can be reached from here, or `{smollm2.NAME}`"
        ) from error
    if adapter is not None:
        model = merged(model, adapter)
    if shared:  # each part is on its process's device
        group = group_of(settings.tensor_parallel)
        model.register_forward_hook(partial(of_the_first_process, group))
    elif not spread:
        model.to(device=device)
    lm = TransformersLM(model, tokenizer, prompt_bytes=settings.prompt_mib << 20)
    if not lm.vocabulary.eos_ids:
        raise ConstraintError(
            f"model.path={settings.path}: neither the tokenizer nor the generation config names an "
            "end-of-sequence token, so no answer could be seen to end; set eos_token_id in "
            "generation_config.json"
        )
    return lm, tokenizer


def in_parts(path: str, settings: ModelConfig) -> dict[str, Any]:
    """Give the arguments that load a process's part of a model.

    Raises:
        ValueError: the attention heads of the model cannot be shared out evenly, or the versions of
            torch and transformers cannot do it.
    """
    wanted = settings.tensor_parallel
    config = AutoConfig.from_pretrained(path).get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is not None and heads % wanted:
            raise ValueError(
                f"model.tensor_parallel={wanted} does not divide the model's {name}={heads}; give "
                "a divisor"
            )
    if not IN_PARTS:
        raise ValueError(
            f"model.tensor_parallel={wanted}: expected torch 2.7 and transformers 5.23 or newer, "
            f"got {torch.__version__} and {transformers.__version__}; install newer ones, or give 1"
        )
    groups = dist.get_world_size() // wanted
    return {"distributed_config": Groups(tp_size=wanted, tp_plan="auto", dp_replicate_size=groups)}


# Whether transformers has groups of processes, and torch what transformers calls.
IN_PARTS = (
    hasattr(DistributedConfig, "dp_replicate_size")
    and "src_data_rank" in signature(distribute_tensor).parameters
)


class Groups(DistributedConfig):
    """Groups of processes that each hold a model, and exchange nothing with other groups.

    `transformers` makes such groups (`dp_replicate_size`), but would also wrap the model of each,
    for gradients that all share. It does so where `dp_size` is more than 1.
    """

    @property
    def dp_size(self) -> int:
        """The copies of the model that are trained together: none but a group's own."""
        return 1


def of_the_first_process(group: dist.ProcessGroup, model: Any, given: Any, output: Any) -> None:
    """Replace the logits of a pass by those of the first process of the group.

    All that is drawn, and how many prefixes the next pass reads, follows from these and the seed.
    Processes that rounded differently would draw differently, and wait for each other forever.
    """
    logits = output.logits.contiguous()
    dist.broadcast(logits.view(torch.uint8), group=group, group_src=0)
    output.logits = logits


def _found(path: str) -> str:
    """The checkpoint's directory, or what must be a hub name.

    Raises:
        ValueError: a directory without a checkpoint.
    """
    if path == smollm2.NAME:
        return str(smollm2.checkpoint())
    if path == SHAPE:
        raise ValueError(
            f"model.path={path} has the shape of a model and no weights: it is for +task=latency; "
            "give a checkpoint directory, a hub name, or `smollm2`"
        )
    if not (path.startswith((".", "/", "~")) or Path(path).exists()):
        return path
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"model.path={path}: no checkpoint there ({directory} has no config.json); give a "
            f"Hugging Face checkpoint directory, a hub name, or `{smollm2.NAME}`"
        )
    return str(directory)


def resolve_device(name: str) -> torch.device:
    """Find a device by name; `auto` is CUDA where there is one, each process's own.

    Raises:
        ValueError: a device that is not there.
    """
    if name == "auto":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"model.device={name}: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.device={name}: no CUDA device here; use model.device=cpu")
    return device


def identity_of(path: str) -> str:
    """Tell one model from another under the same path; a hub name stands for itself.

    Raises:
        ValueError: a directory without a checkpoint.
    """
    if path == smollm2.NAME:
        return smollm2.identity()
    found = _found(path)
    return digest_of(Path(found)) if Path(found).is_dir() else path


def weights_of(settings: ModelConfig) -> dict[str, str]:
    """Give what tells the weights from others, the adapter's too, once it is settled.

    Raises:
        ValueError: a directory without a checkpoint or adapter.
    """
    files = {"model_files": identity_of(settings.path)}
    if settings.adapter != "none":
        files["adapter_files"] = digest_of(existing_adapter(settings.adapter))
    return files


def digest_of(directory: Path, left_out: str | None = None) -> str:
    """Compute a digest of all files that a checkpoint is loaded from; its card is none of them.

    Very large ones count by name, size and time of change.

    Args:
        left_out: a key of its JSON files, objects, that does not count.
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
"""The file that says what the adapter belongs to."""


def write_base(directory: Path, base: str, title: str) -> None:
    """Note beside an adapter which weights it belongs to.

    Args:
        directory: of the adapter.
        base: identity of the weights (`experiments.harness.models.identity_of`).
        title: what to call them in messages.
    """
    write_json({"base": base, "title": title}, directory / BASE)


def existing_adapter(path: str) -> Path:
    """Find the directory of an adapter.

    Raises:
        ValueError: there is none.
    """
    directory = Path(path).expanduser()
    weights = ("adapter_model.safetensors", "adapter_model.bin")
    has_weights = any((directory / name).is_file() for name in weights)
    if not has_weights or not (directory / "adapter_config.json").is_file():
        missing = "adapter_config.json" if has_weights else weights[0]
        raise ValueError(
            f"model.adapter={path}: no adapter there ({directory} has no {missing}); give a "
            "directory that scripts.finetune_lm has written, or `none`"
        )
    return directory


def check_base(directory: Path, base: str, path: str) -> None:
    """Refuse an adapter of other weights.

    Args:
        directory: of the adapter; one that does not say what it belongs to is not checked.
        base: identity of the model's weights.
        path: what `model.path` calls them.

    Raises:
        ValueError: it belongs to others, or the file that says so is damaged.
    """
    if not (directory / BASE).is_file():
        return
    known = read_json(directory / BASE, remedy="copy the adapter again")
    if not isinstance(known, dict) or not {"base", "title"} <= known.keys():
        raise ValueError(f"{directory / BASE} does not name a base; copy the adapter again")
    if known["base"] != base:
        raise ValueError(
            f"model.adapter={directory} was trained for {known['title']}, and model.path={path} "
            "has other weights; give model.adapter=none, or train one with scripts.finetune_lm"
        )


@contextmanager
def without_renaming() -> Iterator[None]:
    """Leave out one warning: `peft` reads a property that `transformers` has given another name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        yield


def merged(model: Any, directory: Path) -> Any:
    """Give the model with the adapter added to its weights.

    Raises:
        ValueError: the adapter is damaged, or of a model of another shape.
    """
    from peft import PeftModel  # seconds, which runs without an adapter need not wait for

    try:
        with without_renaming():
            return PeftModel.from_pretrained(model, directory).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model.adapter={directory}: cannot load it: {cause}; copy it again, or give "
            "model.adapter=none"
        ) from error


class PromptError(ValueError):
    """A chat template refuses the messages of a record."""


def is_chat(kind: str, tokenizer: Any) -> bool:
    """Tell whether a kind of prompt (`model.prompt`) means chat for this tokenizer.

    Raises:
        ValueError: unknown kind, or `chat` without a chat template.
    """
    if kind not in PROMPTS:
        allowed = ", ".join(PROMPTS)
        raise ValueError(f"unknown value {kind!r} for the kind of prompt: use one of {allowed}")
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if kind == "chat" and not has_template:
        raise ValueError("this tokenizer has no chat template: use the prompt kind 'compact'")
    return kind != "compact" and has_template


def chat(tokenizer: Any, instruction: str, request: str, joined: str | None = None) -> str:
    """Write a dialogue in which the answer comes next, as the tokenizer's template has it.

    Args:
        tokenizer: with a chat template.
        instruction: for the system.
        request: of the user.
        joined: of the user alone, for templates that know no system; both in a row by default.
    """
    apart = [{"role": "system", "content": instruction}, {"role": "user", "content": request}]
    return dialogue(tokenizer, apart, joined)


def dialogue(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], joined: str | None = None
) -> str:
    """Write messages as the tokenizer's template has them, an answer to come next.

    Args:
        tokenizer: with a chat template.
        messages: each with `role` and `content`.
        joined: one message of the user instead of the first two, for templates that know no system;
            both in a row by default.

    Raises:
        PromptError: the template refuses them, without a system too.
    """
    from jinja2 import TemplateError  # which compact prompts need not wait for

    def write(these: Sequence[Mapping[str, str]]) -> str:
        return str(tokenizer.apply_chat_template(these, tokenize=False, add_generation_prompt=True))

    try:
        try:
            return write(messages)
        except TemplateError:  # some templates know no system role
            if [message["role"] for message in messages[:2]] != ["system", "user"]:
                raise
            both = joined or f"{messages[0]['content']}\n\n{messages[1]['content']}"
            return write([{"role": "user", "content": both}, *messages[2:]])
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise PromptError(f"the chat template refuses messages of {roles}: {error}") from error


def encode(text: str, kind: str, tokenizer: Any) -> tuple[int, ...]:
    """Encode a prompt of a kind; a chat template writes its special tokens itself."""
    encoded = tokenizer(text, add_special_tokens=not is_chat(kind, tokenizer), verbose=False)
    return tuple(encoded["input_ids"])
