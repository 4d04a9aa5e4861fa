"""Rows of results: those of a run, and made ones."""

from __future__ import annotations

import json
from pathlib import Path

TOOL = {"name": "f", "description": "", "parameters": {"a": {"type": "int", "description": ""}}}
RECORD = {"query": "f of 1", "tools": [TOOL], "answers": [{"name": "f", "arguments": {"a": 1}}]}


def rows_of(run_dir: Path) -> list[dict]:
    """The rows that a run has written."""
    lines = (run_dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_seconds(rows: list[dict]) -> list[dict]:
    """Values that two runs of the same configuration share."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def row(
    method: str, particles: int, accuracy: float, *, dead: bool = False, algorithm: str = "smc",
    example: str = "0", log_evidence: float = -2.0,
) -> dict:  # fmt: skip
    return {
        "example": example,
        "method": method,
        "algorithm": algorithm,
        "particles": particles,
        "valid": not dead,
        "complete": not dead,
        "share_finished": 0.0 if dead else 1.0,
        "dead": dead,
        "enumerated": False,
        "weighted_accuracy": accuracy,
        "majority_correct": accuracy > 0.5,
        "log_evidence": None if dead else log_evidence,
        "ess": 0.0 if dead else particles / 2,
        "lm_calls": 10,
        "tokens": 100,
        "read": 40,
        "forced": 10,
        "seconds": 0.5,
    }
