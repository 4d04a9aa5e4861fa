"""Reading of whole files with checks for damage, and atomic writing.

Files get damaged when a copy is truncated or a disk fills up. Libraries report this differently:
safetensors with its own error, an unpickler with any exception. The functions of this module raise
a `ValueError` with the file, the cause, and the remedy. Files are written under a temporary name in
the same folder and then renamed, so that an interruption preserves the previous version.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

COPY_AGAIN = "copy it again, or recreate it"


def read_tensors(
    path: Path, device: torch.device | str = "cpu", *, remedy: str = COPY_AGAIN
) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors` file; a file with another suffix is read as a pickle.

    Args:
        path: the file. Pickles are read without running any code in them.
        device: device of the tensors.
        remedy: what the user can do if the file cannot be read.

    Raises:
        ValueError: the file doesn't exist, or is damaged.
    """
    check_tensors(path, remedy=remedy)
    if path.suffix == ".safetensors":
        return load_file(path, device=str(device))
    tensors = _read_pickle(path, remedy)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def check_tensors(path: Path, *, remedy: str = COPY_AGAIN) -> None:
    """Refuse a missing or truncated file of tensors, without reading the tensors.

    The header of a `.safetensors` file gives the file's length. Other files only have to exist.

    Raises:
        ValueError: the file doesn't exist, or is damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {remedy}")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error, remedy) from error


def _read_pickle(path: Path, remedy: str) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles may raise any exception
        raise _unreadable(path, error, remedy) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"expected tensors by name in {path}, got a {type(content).__name__}; {remedy}"
        )
    return {name: part for name, part in content.items() if isinstance(part, Tensor)}


def read_json(path: Path, kind: type = dict, *, remedy: str = COPY_AGAIN) -> Any:
    """Read a JSON file, whose content must be of type `kind`.

    Raises:
        ValueError: the file doesn't exist, is damaged, or has content of another type.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {remedy}")
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise _unreadable(path, error, remedy) from error
    if not isinstance(values, kind):
        raise ValueError(
            f"expected a {kind.__name__} in {path}, got a {type(values).__name__}; {remedy}"
        )
    return values


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a `.safetensors` file."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    temporary = path.with_name(path.name + ".part")
    save_file(whole, temporary)
    # safetensors makes files private; give this one the read permissions of its folder.
    temporary.chmod(0o600 | path.parent.stat().st_mode & 0o044)
    os.replace(temporary, path)


def write_json(values: Any, path: Path, *, indent: int = 2, sort_keys: bool = False) -> None:
    """Write a JSON file for people to read."""
    text = json.dumps(values, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _unreadable(path: Path, error: Exception, remedy: str) -> ValueError:
    first = (str(error).splitlines() or [""])[0][:200]
    cause = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return ValueError(f"{path} cannot be read ({cause}); {remedy}")
