"""Distil a hidden Markov model from a language model, in one command.

    python -m scripts.distill_hmm num_sequences=20000 num_states=512 init=latent style=json
    python -m scripts.distill_hmm model=hub model.path=NAME transition=monarch num_states=16384
    python -m scripts.distill_hmm data.path=FILE.jsonl data.vocab_size=128 data.eos_ids=[0]
    torchrun --nproc-per-node=2 -m scripts.distill_hmm ...

Sampled sequences, checkpoints and results lie in `runs/`; the same command goes on from there. See
`experiments.distillation` for the method and `experiments.distill_config` for every key.
"""

from __future__ import annotations

import os
import sys

import hydra
import torch.distributed as dist
from omegaconf import DictConfig

from experiments import config as configuration
from experiments import distill_config, distillation
from experiments.models import ROOT

configuration.register()
distill_config.register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="distill_hmm")
def main(config: DictConfig) -> None:
    """Command line: errors a user can mend are one line; `HYDRA_FULL_ERROR=1` shows the rest."""
    try:
        distillation.run(config)
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
