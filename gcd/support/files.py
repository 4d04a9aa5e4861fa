"""This module reads files whole or refuses them, and writes them whole or not at all.

Copies are cut short and disks fill up, so damaged files are met in practice, and each library tells
of them in its own way: safetensors with an error of its own, an unpickler with any there is. Here
all of them become a `ValueError` with the file, the cause, and what to do about it. Files are
written beside their final place and then moved there, so that an interruption leaves the previous
one as it was.
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

COPY_AGAIN = "copy it again, or make it anew"


def read_tensors(
    path: Path, device: torch.device | str = "cpu", *, remedy: str = COPY_AGAIN
) -> dict[str, Tensor]:
    """Read the arrays of a `.safetensors` file, or (any other name) a pickle of tensors.

    Args:
        path: the file. Pickles are read without running anything that is in them.
        device: where to put the arrays.
        remedy: what the user can do if it cannot be read.

    Raises:
        ValueError: there is no such file, or it is damaged.
    """
    check_tensors(path, remedy=remedy)
    if path.suffix == ".safetensors":
        return load_file(path, device=str(device))
    tensors = _read_pickle(path, remedy)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def check_tensors(path: Path, *, remedy: str = COPY_AGAIN) -> None:
    """Refuse a file that `read_tensors` would, as far as can be told without reading the arrays.

    The header of a `.safetensors` file says how long the file is; other kinds need only exist.

    Raises:
        ValueError: there is no such file, or it is damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error, remedy) from error


def _read_pickle(path: Path, remedy: str) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles fail in every way there is
        raise _unreadable(path, error, remedy) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not tensors by name; {remedy}")
    return {name: part for name, part in content.items() if isinstance(part, Tensor)}


def read_json(path: Path, kind: type = dict, *, remedy: str = COPY_AGAIN) -> Any:
    """Read the content of a JSON file, which must be of this kind.

    Raises:
        ValueError: there is no such file, it is damaged, or it holds something else.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise _unreadable(path, error, remedy) from error
    if not isinstance(values, kind):
        raise ValueError(
            f"{path} holds a {type(values).__name__}, where a {kind.__name__} belongs; {remedy}"
        )
    return values


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a `.safetensors` file."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    temporary = path.with_name(path.name + ".part")
    save_file(whole, temporary)
    # safetensors lets nobody else read its files; who may enter the folder may read this one.
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
