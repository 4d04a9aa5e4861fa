"""Train a LoRA adapter of a language model on a task's answers in one command.

    python -m scripts.finetune_lm source=xlam limit=500 'paths=[FILE.jsonl,FILE.json]'
    python -m scripts.finetune_lm source=commongen 'paths=[train.tsv]' epochs=1

Checkpoints and the result are written to `runs/`; the same command resumes from them. To use the
adapter, pass `model.adapter=DIR`. See `experiments.finetuning` for every key.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from experiments import config as configuration
from experiments import finetuning
from experiments.evaluate import at_most_skipped
from experiments.finetuning import TASK
from experiments.models import ROOT
from experiments.tasks import errors_in_one_line, run_task

configuration.register()
finetuning.register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="finetune_lm")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.tasks` for error messages."""
    with errors_in_one_line(), at_most_skipped("max_skipped", config.max_skipped):
        run_task(TASK, config)


if __name__ == "__main__":
    main()
