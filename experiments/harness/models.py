"""This module loads a language model by directory or hub name, with errors that say what to do."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.harness.config import ModelConfig
from gcd.errors import ConstraintError
from smc.transformers_lm import TransformersLM

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "models" / "toolcall-lm"
_HASHED_BYTES = 256 * 1024**2  # larger files are told apart by size and time
_HASHED = (
    *(".safetensors", ".bin"),  # weights
    *(".json", ".jinja", ".model", ".txt"),  # settings; tokenizers are in files of all these kinds
)


def load_model(settings: ModelConfig) -> tuple[TransformersLM, Any]:
    """Load a model, in evaluation mode on its device, and its tokenizer.

    Raises:
        ValueError: no such directory or hub name, a damaged checkpoint, or no such device.
        ConstraintError: a tokenizer without any end-of-sequence token.
    """
    device = resolve_device(settings.device)
    path = _found(settings.path)
    dtype = "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model.path={settings.path}: cannot load it: {cause}; give a whole checkpoint "
            "directory, a hub name that can be reached from here, or `embedded`"
        ) from error
    model.to(device=device)
    lm = TransformersLM(model, tokenizer)
    if not lm.vocabulary.eos_ids:
        raise ConstraintError(
            f"model.path={settings.path}: neither the tokenizer nor the generation config names an "
            "end-of-sequence token, so no answer could be seen to end; set eos_token_id in "
            "generation_config.json"
        )
    return lm, tokenizer


def _found(path: str) -> str:
    """The checkpoint's directory, or what must be a hub name.

    Raises:
        ValueError: a directory without a checkpoint.
    """
    given, path = path, str(EMBEDDED) if path == "embedded" else path
    if not (path.startswith((".", "/", "~")) or Path(path).exists()):
        return path
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"model.path={given}: no checkpoint there ({directory} has no config.json); give a "
            "Hugging Face checkpoint directory, a hub name, or `embedded`"
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
    found = _found(path)
    return digest_of(Path(found)) if Path(found).is_dir() else path


def digest_of(directory: Path) -> str:
    """Compute a digest of all files that a checkpoint is loaded from; its card is none of them.

    Very large ones count by name, size and time of change.
    """
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.suffix in _HASHED:
            digest.update(file.name.encode())
            if file.stat().st_size <= _HASHED_BYTES:
                digest.update(file.read_bytes())
            else:
                digest.update(f"{file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
