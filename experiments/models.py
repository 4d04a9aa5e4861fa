"""Loading a language model by directory or hub name, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.config import ModelConfig
from gcd.errors import ConstraintError
from smc.transformers_lm import TransformersLM

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "models" / "toolcall-lm"


def load_model(settings: ModelConfig) -> tuple[TransformersLM, Any]:
    """The model, in evaluation mode on its device, and its tokenizer.

    Raises:
        ValueError: no such directory or hub name, or no such device.
        ConstraintError: a tokenizer without any end-of-sequence token.
    """
    device = resolve_device(settings.device)
    path = str(EMBEDDED) if settings.path == "embedded" else settings.path
    looks_local = path.startswith((".", "/", "~")) or Path(path).exists()
    if looks_local and not (Path(path).expanduser() / "config.json").is_file():
        raise ValueError(
            f"model.path={settings.path}: no checkpoint there ({Path(path).expanduser()} has no "
            "config.json); give a Hugging Face checkpoint directory, a hub name, or `embedded`"
        )
    path = str(Path(path).expanduser()) if looks_local else path
    dtype = "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except OSError as error:
        raise ValueError(
            f"model.path={settings.path}: cannot load it: {str(error).splitlines()[0]}; give a "
            "checkpoint directory, a hub name that can be reached from here, or `embedded`"
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


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; a device that is not there is a ValueError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"model.device={name}: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.device={name}: no CUDA device here; use model.device=cpu")
    return device
