"""The identity of a run is what determines its results; a fingerprint names it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.harness.algorithms import unread
from experiments.harness.methods import hmms_of, methods_of, needs_hmm

Identity = dict[str, Any]
_PLACES = {
    "model": ("path",),
    "hmm": ("path", "paths"),
    "data": ("path",),
    "records": ("path",),
    "task": ("problems", "hmm"),
}


def fingerprint(identity: Any) -> str:
    """Compute a digest of plain values, such as the identity of a run: ten hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def without_places(identity: Identity) -> Identity:
    """Leave out where models, HMMs and records lie, however that is spelled.

    What lies there is in the identity, too: digests of the files, and hub names as they are.
    """
    kept = dict(identity)
    for group, places in _PLACES.items():
        if isinstance(kept.get(group), dict):
            settings = kept[group].items()
            kept[group] = {k: v for k, v in settings if k.partition(".")[0] not in places}
    return kept


def flat(values: Any, key: str = "") -> dict[str, Any]:
    """Give nested values by their dotted keys."""
    if not isinstance(values, dict):
        return {key: values}
    return {
        name: value
        for inner, each in values.items()
        for name, value in flat(each, f"{key}.{inner}".strip(".")).items()
    }


def plain(config: DictConfig) -> Identity:
    """Turn the configuration into plain values."""
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def results_config(config: DictConfig) -> Identity:
    """Give the part of the configuration that determines the results, as plain values.

    Logging, traces, batching, the device and memory do not; nor do the HMM's settings where no
    method looks ahead, nor options that no algorithm of the run reads.
    """
    values = plain(config)
    for key in ("trace", "wandb", "run_dir", "resume"):
        values.pop(key, None)
    for key in ("device", "device_map", "tensor_parallel", "prompt_mib"):
        values["model"].pop(key, None)
    values["data"].pop("max_skipped", None)
    values["model"].pop("adapter", None)  # its files count, not where they lie
    values["task"].pop("reference", None)
    values["smc"].pop("max_rows", None)
    values["hmm"].pop("max_table_mib", None)
    if not any(map(needs_hmm, methods_of(config))):
        values.pop("hmm")
    else:
        named, paths = hmms_of(config), values["hmm"].pop("paths")
        values["hmm"] |= {f"paths.{name}": paths[name] for name in named if name}
    for key in unread(config):
        group, _, option = key.partition(".")
        values[group].pop(option)
    if not values["discrete"]:
        values.pop("discrete")
    return values
