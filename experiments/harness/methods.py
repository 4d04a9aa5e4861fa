"""Proposals by name, and the HMM that `pgcd` looks ahead with.

An HMM is over a model's vocabulary and only as good as its likeness to that model, so `hmm.path`
has no default but for the embedded model, which has its own (models/toolcall-hmm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.harness.models import ROOT, digest_of
from hmm.checkpoint import load_any
from smc.language_model import LanguageModel

EMBEDDED_HMM = ROOT / "models" / "toolcall-hmm"


def hmm_directory(config: DictConfig) -> Path:
    """Where the HMM lies.

    Raises:
        ValueError: `hmm.path` is left to itself for a model that has none, or nothing is there.
    """
    if config.hmm.path == "auto":
        if config.model.path != "embedded":
            raise ValueError(
                f"task.methods has pgcd, which needs an HMM distilled from "
                f"model.path={config.model.path}: make one with `python -m scripts.distill_hmm "
                f"model.path={config.model.path}` and give hmm.path=DIR, or leave pgcd out of "
                "task.methods"
            )
        return EMBEDDED_HMM
    directory = Path(config.hmm.path).expanduser()
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"hmm.path={config.hmm.path}: no HMM there ({directory} has no config.json); give a "
            "directory that scripts.distill_hmm has written (runs/distill-*/hmm), or one in "
            "Ctrl-G's layout"
        )
    return directory


def hmm_identity(config: DictConfig) -> dict[str, str]:
    """A digest of the HMM's files, if the run needs one."""
    if "pgcd" not in config.task.methods:
        return {}
    return {"hmm_files": digest_of(hmm_directory(config))}


def load_pgcd(config: DictConfig, lm: LanguageModel) -> smc.PGCD:
    """P-GCD as the settings want it, the HMM on the model's device.

    Raises:
        ValueError: an HMM over another vocabulary (both are named), or a damaged one.
    """
    checkpoint = load_any(hmm_directory(config), vocabulary=lm.vocabulary, device=lm.device)
    settings = config.hmm
    return smc.PGCD(
        checkpoint.hmm,
        lookahead=settings.lookahead,
        exact_top_k=settings.exact_top_k,
        temper=settings.temper,
        defence=settings.defence,
        potential=settings.potential,
        max_bytes=settings.max_table_mib << 20,
    )


def proposals(config: DictConfig, lm: LanguageModel) -> dict[str, Any]:
    """The proposal of each method of the run, made once: an HMM is read from disk."""
    plain: dict[str, Callable[[], smc.MaskProposal]]
    plain = {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD}
    return {
        name: load_pgcd(config, lm) if name == "pgcd" else plain[name]()
        for name in config.task.methods
    }


def table_bytes(
    methods: Mapping[str, smc.Proposal], constraint: gcd.TokenAutomaton, budget: int
) -> int:
    """Memory of what P-GCD, if it is among the methods, tabulates of a constraint."""
    proposal = methods.get("pgcd")
    return proposal.memory(constraint, budget) if proposal else 0


def refuse_little_memory(methods: Mapping[str, smc.Proposal], needs: Mapping[str, int]) -> None:
    """Every record's table must fit into what is allowed, each on its own.

    An end to the run, not a record left out of it: results do not depend on memory.

    Args:
        methods: of the run.
        needs: memory of the table of each record, in bytes.

    Raises:
        ValueError: with the limit that is enough for all.
    """
    proposal = methods.get("pgcd")
    limit = proposal.max_bytes if proposal else None
    if limit is None:
        return
    large = [record for record, size in needs.items() if size > limit]
    if large:
        most = max(large, key=needs.__getitem__)
        raise ValueError(
            f"the lookahead tables of {len(large)} of {len(needs)} records are larger than "
            f"hmm.max_table_mib={limit >> 20}, that of record {most} takes "
            f"{needs[most] / 2**20:.1f} MiB: give hmm.max_table_mib="
            f"{math.ceil(needs[most] / 2**20)}, lower task.budget, or leave pgcd out of "
            "task.methods"
        )
