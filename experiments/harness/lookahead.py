"""How far an HMM is believed depends on what the prompt tells, and is fitted for each kind of it.

An HMM has read no prompt. Where the prompt names what the constraint demands, the language model
writes it by itself, and an HMM that finds it improbable is mostly wrong; where it does not, the HMM
is all there is to go by. The number between the two (`smc.PGCD`'s `lookahead`, 0 is "in_time", 1 is
"conditional") that gives the highest mean log evidence on other records than those of the test is
written into the HMM's `config.json`, under the name of the kind of prompt. In expectation every log
evidence is a lower bound of the truth, so the highest one is that of the proposal nearest to the
posterior (Maddison et al., "Filtering Variational Objectives", NeurIPS 2017, fit proposals so).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gcd.support.files import read_json, write_json
from hmm.checkpoint import CONFIG

AUTO = "auto"
UNFITTED = "in_time"
"""What `auto` means for an HMM that has been fitted for no kind of prompt."""
FITTED = "lookahead"
"""The key of an HMM's `config.json` that has what was fitted, by kind of prompt."""


_TELLING = {"told": "all", "demand": "nothing", "thinking": "none"}
"""Settings of tasks about prompts, and their values where a prompt tells all that is demanded."""


def kind_of_prompt(config: DictConfig) -> str:
    """Name the prompts of a run: the task, and the settings that say what its prompts tell."""
    told = [config.task.told] if config.task.get("told") == _TELLING["told"] else []
    return "/".join([config.task.name, *told, *_untold(config)])


def _untold(config: DictConfig) -> list[str]:
    """List the settings of a task by which its prompts tell less than is demanded."""
    return [
        str(config.task[key])
        for key, telling in _TELLING.items()
        if config.task.get(key, telling) != telling
    ]


def fitted_lookahead(config: DictConfig, said: Mapping[str, Any], directory: Path) -> float | str:
    """Give the fitted lookahead of an HMM for the prompts of a run.

    Args:
        said: what the HMM's `config.json` says.
        directory: of the HMM, for the message.

    Raises:
        ValueError: it has been fitted for other kinds of prompts alone, or for none and the prompts
            tell less than is demanded, where "in_time" would be far from the best.
    """
    known, kind = said.get(FITTED, {}), kind_of_prompt(config)
    if not known and not _untold(config):
        return UNFITTED
    if kind not in known:
        raise ValueError(
            f"hmm.lookahead=auto: the HMM in {directory} has been fitted for "
            f"{', '.join(known) or 'no prompts'}, not for {kind}: fit it with "
            f"`python -m scripts.fit_lookahead +task={config.task.name} ...` on other records than "
            "these, or give hmm.lookahead=in_time, conditional, or a number between 0 and 1"
        )
    return float(known[kind])


def keep_lookahead(directory: Path, kind: str, value: float) -> None:
    """Write the fitted lookahead for a kind of prompt into the HMM's `config.json`."""
    said = read_json(directory / CONFIG)
    said[FITTED] = dict(sorted({**said.get(FITTED, {}), kind: value}.items()))
    write_json(said, directory / CONFIG)
