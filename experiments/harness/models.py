"""This module loads a language model by directory or hub name, with errors that say what to do."""

from __future__ import annotations

import hashlib
import json
import os
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
from experiments.harness.adapters import check_base, existing_adapter, merged
from experiments.harness.config import ModelConfig
from experiments.harness.processes import group_of
from gcd.errors import ConstraintError
from gcd.support.files import read_json
from smc.models.transformers_lm import TransformersLM

SHAPE = "llama3_1_8b_shape"
"""The path of a model with random weights (`experiments.latency.models`)."""
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
