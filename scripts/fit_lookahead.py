r"""Fit how far an HMM is believed for one kind of prompt, and write it into its config.json.

    python -m scripts.fit_lookahead +task=commongen task.told=none data.path=OTHER.jsonl \
        data.offset=100 task.num_examples=24 'task.algorithms=[smc]' 'task.particles=[4]'

The settings are those of `experiments.run`: the same task with other records than those that it
will be measured on, so `data.path` or `data.hub` has to be given. P-GCD is run with each value of
`hmm.lookahead` in `VALUES`, and the one with the highest mean log evidence is kept
(`experiments.harness.methods`). Runs are kept in `runs/`, so that the same command goes on where
it stopped.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from statistics import fmean

import hydra
from omegaconf import DictConfig

from experiments.harness.methods import hmm_directory, keep_lookahead, kind_of_prompt
from experiments.harness.models import ROOT
from experiments.harness.paired import difference
from experiments.harness.processes import errors_in_one_line
from experiments.harness.records import at_most_skipped
from experiments.harness.results import Row, read_rows
from experiments.harness.summary import as_markdown, by_example, with_interval
from experiments.run import run

VALUES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


def _log_evidence(row: Row) -> float | None:
    return row["log_evidence"]


def fit(config: DictConfig) -> float:
    """Run every value, keep the best one, and print them all.

    Raises:
        ValueError: the task has no `task.methods`, or has no HMM; no records are given, or no run
            answered one.
    """
    if "methods" not in config.task:
        raise ValueError(f"+task={config.task.name} compares no methods; P-GCD cannot be fitted")
    path = config.data.path
    tested = path is not None and (ROOT / "data") in Path(path).expanduser().resolve().parents
    if tested or (path is None and config.data.hub is None):
        raise ValueError(
            "the records in the repository are those of the test: give others to fit on, "
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
        raise ValueError("no request was answered, so nothing can be fitted: give a larger budget")
    best = max(means, key=means.__getitem__)
    keep_lookahead(hmm_directory(config), kind_of_prompt(config), best)
    table = []
    for value, own in rows.items():
        compared = difference(own, rows[best], _log_evidence, config.seed)
        below = {} if compared is None else compared.interval.named("below")
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
    """Run the command line; see `experiments.harness.processes` for how errors are reported."""
    with errors_in_one_line(), at_most_skipped("data.max_skipped", config.data.max_skipped):
        fit(config)


if __name__ == "__main__":
    main()
