"""An adapter is a small change of a model's weights (LoRA, Hu et al., arXiv 2106.09685).

It lies in a directory in the form of `peft`, with a file beside it that says for which weights it
was trained: on others it would load as well, and answer nonsense.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gcd.support.files import read_json, write_json

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
