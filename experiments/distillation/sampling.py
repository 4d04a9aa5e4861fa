"""Free answers of a language model with their likelihoods, sampled in resumable chunks.

The HMM should predict how the model continues *without* a constraint. Answers are therefore drawn
at temperature one from the whole vocabulary, up to EOS or `max_length` tokens.

Prompts are sorted by length and divided into chunks of answers that are sampled together, with
prompts padded on the left and finished answers dropped. A chunk is a function of the settings and
its number, which seed its generator, and is written to its own file. An interrupted sampling
resumes with the same sequences, and several processes can share the chunks.

Common prefixes are computed once (docs/distillation.md): a step costs one forward pass over the
*distinct* unfinished prefixes, and the model's next distributions are kept (`data`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from experiments.distillation.data import Sequences, TopTokens, save
from experiments.tasks import bar, derive_seed
from smc import LanguageModel

_LOG = logging.getLogger(__name__)


def sample_to(
    directory: Path,
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    num: int,
    *,
    max_length: int,
    batch: int,
    seed: int,
    top: int = 0,
    rank: int = 0,
    world: int = 1,
) -> None:
    """Sample the missing chunks of this process, of `num` answers in total, into files.

    Prompts are repeated until there are enough answers. Prompts too long for the model's context
    are skipped. The `top` most probable next tokens are kept.

    Raises:
        ValueError: no prompt leaves room for an answer.
    """
    room = None if lm.context is None else lm.context - max_length
    fitting = [i for i, prompt in enumerate(prompts) if room is None or len(prompt) <= room]
    if not fitting:
        raise ValueError(
            f"expected prompts that leave max_length={max_length} tokens in the model's context of "
            f"{lm.context} tokens, but all are longer; lower max_length"
        )
    if len(fitting) < len(prompts) and rank == 0:
        _LOG.warning(
            "%d of %d prompts are too long and left out", len(prompts) - len(fitting), len(prompts)
        )
    turns = (fitting[i % len(fitting)] for i in range(num))
    chosen = sorted(turns, key=lambda i: (len(prompts[i]), i))
    chunks = [chosen[start : start + batch] for start in range(0, num, batch)]
    directory.mkdir(parents=True, exist_ok=True)
    mine = [k for k in range(len(chunks)) if k % world == rank]
    missing = [k for k in mine if not _chunk(directory, k).exists()]
    done = sum(len(chunks[k]) for k in mine) - sum(len(chunks[k]) for k in missing)
    with bar(sum(len(chunks[k]) for k in mine), "sampling", "sequence", rank, done) as shown:
        for k in missing:
            rows = chunks[k]
            generator = torch.Generator(lm.device).manual_seed(derive_seed("sampling", seed, k))
            given = [prompts[i] for i in rows]
            sampled = sample_batch(lm, given, max_length, generator, top)
            save(replace(sampled, groups=torch.tensor(rows)), _chunk(directory, k))
            shown.update(len(rows))


def _chunk(directory: Path, number: int) -> Path:
    return directory / f"{number:06d}.safetensors"


@torch.inference_mode()
def sample_batch(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_length: int,
    generator: torch.Generator,
    top: int = 0,
) -> Sequences:
    """Sample one answer to each prompt, including EOS if reached, and log P_lm of each.

    Args:
        lm: the language model.
        prompts: token ids; repeated prompts are computed once.
        max_length: maximum number of tokens of an answer.
        generator: random generator on the model's device.
        top: number of most probable next tokens to keep per prefix; 0 for none.
    """
    size, eos = lm.vocabulary.size, torch.tensor(sorted(lm.vocabulary.eos_ids), device=lm.device)
    answers: list[list[int]] = [[] for _ in prompts]
    asked: list[list[int]] = [[] for _ in prompts]
    total = [0.0] * len(prompts)
    found: list[TopTokens] = []
    numbers = {tuple(prompt): i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    rows, log_p = lm.prefill(list(numbers))
    # Unfinished answers, and the row of each answer's prefix.
    going = list(range(len(prompts)))
    row = torch.tensor([numbers[tuple(prompt)] for prompt in prompts], device=lm.device)
    read = 0
    for length in range(1, max_length + 1):
        if bool(log_p.isnan().any()):
            raise ValueError("the language model returned NaN; load it with model.dtype=float32")
        if top:
            found.append(TopTokens.of(log_p, top, lm.vocabulary.eos_ids))
        drawn = torch.multinomial(log_p.exp()[row], 1, generator=generator)[:, 0]
        steps = zip(going, row.tolist(), drawn.tolist(), log_p[row, drawn].tolist(), strict=True)
        for answer, position, token, value in steps:
            answers[answer].append(token)
            asked[answer].append(read + position if top else -1)
            total[answer] += value
        read += len(log_p)
        kept = (~torch.isin(drawn, eos)).nonzero()[:, 0]
        if not len(kept) or length == max_length:
            break
        going = [going[i] for i in kept.tolist()]
        prefix, row = torch.unique(row[kept] * size + drawn[kept], return_inverse=True)
        rows.reorder(prefix // size)
        log_p = rows.extend((prefix % size).unsqueeze(1), torch.ones_like(prefix))[:, 0]
    top_tokens = TopTokens.join(found) if found else None
    return Sequences.from_lists(answers, prompts, total, asked=asked, top_tokens=top_tokens)
