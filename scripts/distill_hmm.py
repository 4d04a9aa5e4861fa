"""Distill a hidden Markov model from a language model in one command.

    python -m scripts.distill_hmm records.path=FILE.jsonl num_states=512 style=both
    python -m scripts.distill_hmm records.hub=NAME model=hub model.path=NAME
    torchrun --nproc-per-node=2 -m scripts.distill_hmm ...

Sampled sequences, checkpoints and results are written to `runs/`; the same command resumes from
them. See `experiments.distillation.task` for the method and for every key.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from experiments import config as configuration
from experiments.distillation.task import TASK, register
from experiments.evaluate import at_most_skipped
from experiments.models import ROOT
from experiments.tasks import errors_in_one_line, run_task

configuration.register()
register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="distill_hmm")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.tasks` for error messages."""
    with errors_in_one_line(), at_most_skipped("records.max_skipped", config.records.max_skipped):
        run_task(TASK, config)


if __name__ == "__main__":
    main()
