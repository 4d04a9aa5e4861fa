"""These checks of settings all say the same things: the key, its value, what to give instead.

All raise `ValueError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is none of these."""
    if value not in allowed:
        raise ValueError(f"unknown value {value!r} for {key}: use one of {', '.join(allowed)}")


def at_least(key: str, value: int | None, least: int) -> None:
    """Refuse a smaller number; None is no limit."""
    if value is not None and value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")


def inside(key: str, value: float, interval: str, holds: bool) -> None:
    """Refuse a number that is not in this interval."""
    if not holds:
        raise ValueError(f"{key} must lie in {interval}, got {value}")


def distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse an empty list, and one with an entry twice."""
    if not values:
        raise ValueError(f"{key} needs at least one entry")
    if len(set(values)) != len(values):
        raise ValueError(f"{key} has an entry twice: {list(values)}")


def writable(what: str, key: str, directory: Path) -> None:
    """Refuse a directory that could not be written to, or not be made."""
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"{what} cannot be written to {directory}: {parent} is no directory that can be "
            f"written to; give another with {key}=DIR"
        )


def left_alone(config: DictConfig, schema: Any, keys: Iterable[str], reason: str) -> None:
    """Refuse settings that nothing would read: those of the keys that are not as in the schema."""
    usual = OmegaConf.structured(schema)
    values = {key: OmegaConf.select(config, key) for key in keys}
    changed = [f"{k}={v}" for k, v in values.items() if v != OmegaConf.select(usual, k)]
    if changed:
        raise ValueError(f"{', '.join(changed)} would be ignored: {reason}")
