"""Compositions of the configuration as the command makes them, each group of files once."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_GROUPS = {"wandb", *(path.name for path in CONFIGS.iterdir() if path.is_dir())}


def composed(*overrides: object, name: str = "config") -> DictConfig:
    """Compose, as `python -m experiments.run` does.

    Composing takes a tenth of a second. So the files that are chosen are composed once, and values
    are set in a copy, by the grammar and in the order of the command. Every command of the pages is
    composed anew by `tests/test_pages.py`.
    """
    texts = [str(each) for each in overrides]
    keys = [text.partition("=")[0] for text in texts]
    plain = [key.replace("_", "").replace(".", "").isalnum() for key in keys]
    values = [p and key not in _GROUPS for p, key in zip(plain, keys, strict=True)]
    chosen = tuple(text for text, value in zip(texts, values, strict=True) if not value)
    config = copy.deepcopy(_chosen(name, chosen))
    rest = [text for text, value in zip(texts, values, strict=True) if value]
    try:
        for each in OverridesParser.create().parse_overrides(rest):
            OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
    except OmegaConfBaseException:  # the command's error is another one
        return anew(*texts, name=name)
    return config


@cache
def _chosen(name: str, overrides: tuple[str, ...]) -> DictConfig:
    return anew(*overrides, name=name)


def anew(*overrides: str, name: str = "config") -> DictConfig:
    """Compose without what was composed before."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(name, list(overrides))
