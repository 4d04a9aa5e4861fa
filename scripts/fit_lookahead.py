r"""Fit the twist exponent of an HMM for one kind of prompt, and write it to its config.json.

    python -m scripts.fit_lookahead +task=commongen task.told=none data.path=OTHER.jsonl \
        data.offset=100 task.num_examples=24 'task.algorithms=[smc]' 'task.particles=[4]'

The settings are those of `experiments.run`. The records must differ from those of the measurement,
so `data.path` or `data.hub` is required. P-GCD runs with each value of `hmm.lookahead` in `VALUES`,
and the value with the highest mean log evidence is kept (`experiments.arms`). Results
are written to `runs/`, so that the same command resumes where it stopped.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from statistics import fmean

import hydra
from omegaconf import DictConfig

from experiments.arms import hmm_directory, keep_lookahead, kind_of_prompt
from experiments.evaluate import at_most_skipped
from experiments.models import ROOT
from experiments.run import run
from experiments.tables import as_markdown, by_example, difference, with_interval
from experiments.tasks import Row, errors_in_one_line, read_rows

VALUES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


def _log_evidence(row: Row) -> float | None:
    return row["log_evidence"]


def fit(config: DictConfig) -> float:
    """Run every value, keep the best one, and print them all.

    Raises:
        ValueError: the task has no `task.methods` or no HMM, no records are given, or no request
            was answered.
    """
    if "methods" not in config.task:
        raise ValueError(
            f"expected a task with methods to compare, got +task={config.task.name}; use another"
        )
    path = config.data.path
    tested = path is not None and (ROOT / "data") in Path(path).expanduser().resolve().parents
    if tested or (path is None and config.data.hub is None):
        raise ValueError(
            "expected other records than the repository's, which are for testing; pass "
            "data.path=FILE or data.hub=NAME"
        )
    rows: dict[float, list[Row]] = {}
    for value in VALUES:
        one = deepcopy(config)
        one.task.methods, one.hmm.lookahead = ["pgcd"], value
        if config.run_dir is not None:
            one.run_dir = f"{config.run_dir}/{value:g}"
        rows[value] = read_rows(run(one) / "results.jsonl")
    means = {
        value: (len(found), fmean(found))
        for value, own in rows.items()
        if (found := by_example(own, _log_evidence).values())
    }
    if not means:
        raise ValueError(
            "expected at least one answered request to fit on, got none; raise the budget"
        )
    best = max(means, key=means.__getitem__)
    keep_lookahead(hmm_directory(config), kind_of_prompt(config), best)
    table = []
    for value, own in rows.items():
        compared = difference(own, rows[best], _log_evidence, config.seed)
        below = {} if compared is None else compared.interval.as_record("below")
        table.append(
            {
                "hmm.lookahead": f"{value:g}",
                "mean log evidence": f"{means[value][1]:.2f}" if value in means else "no answer",
                "below the best": with_interval(below, "below", 2, 1),
            }
        )
    print(f"\n{kind_of_prompt(config)}: hmm.lookahead={best:g} is kept\n")
    print(as_markdown(table))
    return best


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.tasks` for error messages."""
    with errors_in_one_line(), at_most_skipped("data.max_skipped", config.data.max_skipped):
        fit(config)


if __name__ == "__main__":
    main()
