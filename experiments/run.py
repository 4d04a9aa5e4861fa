"""The one command of the project: `python -m experiments.run +task=xlam [key=value ...]`.

A run has a directory, named after what determines its results unless `run_dir` says otherwise.
Rows go there as they are made; the same command finds them and goes on, to the same final result.
When all rows are there, the table, the summary and the figure are written, and logged to wandb.

Under `torchrun` the examples are dealt out over the processes; everything else is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markdown import Markdown
from tqdm import tqdm

from experiments import config as configuration
from experiments import tracking, xlam
from experiments.data import load_records
from experiments.figures import plot_accuracy
from experiments.models import ROOT, identity_of, load_model
from experiments.records import ReadResult
from experiments.results import ResultStore, Row
from experiments.summary import as_markdown, as_table, summarize
from experiments.xlam import Preparation

_LOG = logging.getLogger(__name__)


def run(config: DictConfig) -> Path:
    """Run one experiment to its end; returns its directory."""
    if OmegaConf.is_missing(config, "task"):
        raise ValueError("no task was chosen: add +task=xlam")
    configuration.check(config)
    rank, world = _processes()
    read = load_records(config.data, config.task.num_examples, config.seed)
    identity = _identity(config, read)
    run_dir = _run_dir_of(config, identity)
    if config.resume:
        _refuse_another_run(run_dir, identity)

    lm, tokenizer = load_model(config.model)
    with _bar(len(read.records), "compiling", "record", rank) as bar:
        prepared = xlam.prepare(read.records, lm, tokenizer, config, bar.update)
    if rank == 0:
        _open_run_dir(run_dir, config, identity)
        _report_refusals(run_dir, read, prepared)
    _wait_for_all(world)

    store = ResultStore(run_dir, rank)
    mine = prepared.examples[rank::world]
    keys = [
        xlam.key_of_example(example, method, particles)
        for method in config.task.methods
        for particles in config.task.particles
        for example in prepared.examples
    ]
    done = sum(xlam.key_of_example(e, m, n) in store for m in config.task.methods
               for n in config.task.particles for e in mine)  # fmt: skip
    if done and rank == 0:
        _LOG.info(
            "%d rows are in %s already and are kept (resume=false starts over)", done, run_dir
        )
    total = len(mine) * len(config.task.methods) * len(config.task.particles)
    try:
        with _bar(total, "sampling", "row", rank, done) as bar:
            xlam.run(mine, lm, config, store, bar.update)
    except KeyboardInterrupt:
        _LOG.warning(
            "interrupted: %d of %d rows are in %s; the same command goes on from there",
            len(store), len(keys), run_dir,
        )  # fmt: skip
        raise
    _wait_for_all(world)
    if rank == 0:
        store.reload()
        _report(run_dir, config, read, prepared, store.merge(keys))
    return run_dir


def _identity(config: DictConfig, read: ReadResult) -> dict[str, Any]:
    """What determines the results: settings, the records themselves, the model's files."""
    records = json.dumps([dataclasses.asdict(record) for record in read.records], sort_keys=True)
    return {
        **configuration.results_config(config),
        "records_sha256": hashlib.sha256(records.encode()).hexdigest()[:16],
        "model_files": identity_of(config.model.path),
    }


def _run_dir_of(config: DictConfig, identity: dict[str, Any]) -> Path:
    name = f"{config.task.name}-{configuration.fingerprint(identity)}"
    return Path(config.run_dir) if config.run_dir else Path("runs") / name


def _refuse_another_run(run_dir: Path, identity: dict[str, Any]) -> None:
    """A directory with rows of other settings, records or weights must not be added to."""
    saved = run_dir / "identity.json"
    if saved.exists():
        changed = _differences(json.loads(saved.read_text(encoding="utf-8")), identity)
        if changed:
            raise ValueError(
                f"{run_dir} holds another run: {'; '.join(changed)}. Give another run_dir, or "
                "resume=false to start it over"
            )


def _open_run_dir(run_dir: Path, config: DictConfig, identity: dict[str, Any]) -> None:
    """Make the directory and note whose it is; without `resume`, earlier rows go."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        for path in run_dir.glob("results*.jsonl"):
            path.unlink()
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    (run_dir / "identity.json").write_text(text, encoding="utf-8")


def _differences(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [
            line
            for name in names
            for line in _differences(before.get(name), now.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == now else [f"{key} was {before!r}, is {now!r}"]


def _report_refusals(run_dir: Path, read: ReadResult, prepared: Preparation) -> None:
    """Say what was left out, and keep the list."""
    path = run_dir / "refused.jsonl"
    lines = [{"record": s.position, "kind": "malformed", "reason": s.reason} for s in read.skipped]
    lines += [{"record": i, "kind": "refused", "reason": why} for i, why in prepared.refused]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for what, count in (("malformed", len(read.skipped)), ("refused", len(prepared.refused))):
        if count:
            first = next(line for line in lines if line["kind"] == what)
            _LOG.warning(
                "%d records are %s and left out, listed in %s; the first (%s): %s",
                count, what, path, first["record"], first["reason"],
            )  # fmt: skip
    if prepared.unknown_types:
        listed = ", ".join(f"{name} ({n})" for name, n in prepared.unknown_types.most_common())
        _LOG.warning("parameter types read as any JSON value: %s", listed)


def _report(
    run_dir: Path, config: DictConfig, read: ReadResult, prepared: Preparation, rows: list[Row]
) -> None:
    """Write, print and log the results."""
    task = config.task
    summary = summarize(rows, config.seed)
    table = as_table(summary)
    source = config.data.path or config.data.hub or "embedded generator, held-out split"
    title = (
        f"{task.name}: {len(prepared.examples)} requests ({source}), {task.style} style, "
        f"budget {task.budget}, temperature {config.smc.temperature:g}"
    )
    notes = [
        f"{len(read.records)} records read, {len(read.skipped)} malformed, "
        f"{len(prepared.refused)} refused; constraints compiled in {prepared.seconds:.1f} s.",
        "Accuracies in percent with 95 % bootstrap intervals over requests; dead rows count as "
        "wrong. Tokens are those the language model read.",
    ]
    text = f"## {title}\n\n{as_markdown(table)}\n\n{' '.join(notes)}\n"
    (run_dir / "table.md").write_text(text, encoding="utf-8")
    record = {
        "title": title,
        "model": config.model.path,
        "seed": config.seed,
        "records": len(read.records),
        "malformed": len(read.skipped),
        "refused": len(prepared.refused),
        "unknown_types": dict(prepared.unknown_types),
        "compile_seconds": round(prepared.seconds, 3),
        "methods": summary,
    }
    (run_dir / "summary.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    figure = run_dir / "accuracy.png"
    plot_accuracy(summary, figure, title)

    run_id = configuration.fingerprint(_identity(config, read))
    plain = configuration.results_config(config)
    with tracking.start(config.wandb, run_dir, plain, run_dir.name, run_id) as run:
        shown = pd.DataFrame(rows).drop(columns=["answers"])
        tracking.log_results(run, summary, table, shown, figure)
    console = Console()
    if console.is_terminal and console.width >= 160:
        console.print(Markdown(text))
    else:
        print(text)
    print(f"Results: {run_dir}/ (table.md, accuracy.png, results.jsonl, summary.json)")


def _processes() -> tuple[int, int]:
    """This process's rank and the number of processes; one process unless under `torchrun`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        # Only barriers, no tensor travels; a process may wait long for the slowest.
        dist.init_process_group("gloo", timeout=timedelta(days=7))
    return int(os.environ.get("RANK", "0")), world


def _wait_for_all(world: int) -> None:
    if world > 1:
        dist.barrier()


def _bar(total: int, what: str, unit: str, rank: int, initial: int = 0) -> tqdm:
    return tqdm(
        total=total, initial=initial, desc=what, unit=unit, disable=rank > 0, dynamic_ncols=True
    )


configuration.register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Command line: errors a user can mend are one line; `HYDRA_FULL_ERROR=1` shows the rest."""
    try:
        run(config)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
