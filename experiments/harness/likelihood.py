"""What the language model itself thinks of an answer, whatever the method that found it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import smc
from smc.models.protocol import LanguageModel


@torch.inference_mode()
def log_probability(lm: LanguageModel, prompt: Sequence[int], ids: Sequence[int]) -> float:
    """Compute log p_lm(ids | prompt) at temperature one, in nats, without any constraint.

    Args:
        lm: the language model.
        prompt: token ids.
        ids: tokens of the answer, at least one; EOS counts where it is among them.
    """
    rows, log_p = lm.prefill([list(prompt)])
    total = float(log_p[0, ids[0]])
    if len(ids) > 1:
        run = torch.tensor([list(ids[:-1])], device=log_p.device)
        after = rows.extend(run, torch.tensor([len(ids) - 1], device=log_p.device))[0]
        wanted = torch.tensor(list(ids[1:]), device=after.device)
        total += float(after.double().gather(1, wanted.unsqueeze(1)).sum())
    return total


def tokens_of(posterior: smc.Posterior, answer: bytes) -> tuple[int, ...]:
    """Give the tokens that spell an answer; of several spellings the one of greatest weight."""
    spelled = [sample for sample in posterior.particles if sample.answer == answer]
    return max(spelled, key=lambda sample: sample.log_weight).ids
