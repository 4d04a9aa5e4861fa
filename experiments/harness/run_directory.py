"""The directory of a run: named after what determines its results, and never shared by two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.harness.config import fingerprint
from gcd.support.files import read_json, write_json

IDENTITY = "identity.json"


def run_dir_of(config: DictConfig, identity: dict[str, Any]) -> Path:
    """`run_dir`, or by default one for this identity."""
    name = f"{config.task.name}-{fingerprint(identity)}"
    return Path(config.run_dir) if config.run_dir else Path("runs") / name


def refuse_another_run(run_dir: Path, identity: dict[str, Any]) -> None:
    """A directory with rows of other settings, records or weights must not be added to."""
    saved = run_dir / IDENTITY
    if saved.exists():
        remedy = "give another run_dir, or resume=false to start this one over"
        changed = _differences(read_json(saved, remedy=remedy), identity)
        if changed:
            raise ValueError(
                f"{run_dir} holds another run: {'; '.join(changed)}. Give another run_dir, or "
                "resume=false to start it over"
            )


def open_run_dir(run_dir: Path, config: DictConfig, identity: dict[str, Any]) -> None:
    """Make the directory and note whose it is; without `resume`, earlier rows go."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        for path in run_dir.glob("results*.jsonl"):
            path.unlink()
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)
    write_json(identity, run_dir / IDENTITY, sort_keys=True)


def same_command(config: DictConfig) -> str:
    """What to type to go on, in words; `resume=false` would start over instead."""
    return "the same command" if config.resume else "the same command without resume=false"


def _differences(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [
            line
            for name in names
            for line in _differences(before.get(name), now.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == now else [f"{key} was {before!r}, is {now!r}"]
