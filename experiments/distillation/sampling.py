"""A language model answers freely, and its answers, states and likelihoods are kept.

The HMM is to tell how the model will probably go on *without* any constraint, so these answers are
drawn at temperature one from the whole vocabulary, up to EOS or `max_length` tokens.

Prompts are sorted by length and cut into chunks of answers that are sampled together: prompts
padded on the left, one step of the model a token, finished answers dropped. A chunk is a function
of the settings and its number (its generator is seeded with both), and a file of its own. So an
interrupted sampling goes on to the same sequences, and several processes share the chunks.

What answers have in common is read once (docs/distillation.md): a step costs one forward pass of
the *distinct* prefixes that are still going, and what the model says there is kept (`top_tokens`).
What was not kept while sampling, or what the model says in a text that it has not written, is read
in a second pass over the text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from experiments.distillation.data import Sequences, save
from experiments.distillation.top_tokens import TopTokens
from experiments.harness.processes import bar
from experiments.harness.seeds import derived_seed
from smc.models.protocol import LanguageModel
from smc.models.transformers_lm import TransformersLM

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
    """Sample this process's chunks of `num` answers into files, those that are not there yet.

    Prompts are used in turn until there are enough answers; ones too long for the model's context
    are passed over. Of what the model says, the `top` most probable tokens are kept.

    Raises:
        ValueError: if no prompt leaves room for an answer.
    """
    room = None if lm.context is None else lm.context - max_length
    fitting = [i for i, prompt in enumerate(prompts) if room is None or len(prompt) <= room]
    if not fitting:
        raise ValueError(
            f"no prompt leaves room for max_length={max_length} tokens in the model's context of "
            f"{lm.context}; lower max_length"
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
            generator = torch.Generator(lm.device).manual_seed(derived_seed("sampling", seed, k))
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
    """Sample one answer to each prompt, EOS included where it came, and log P_lm of each.

    Args:
        prompts: token ids; the same prompt may come several times, and is read once.
        max_length: of an answer.
        generator: on the model's device.
        top: keep so many of the most probable tokens after each prefix; 0 keeps none.
    """
    size, eos = lm.vocabulary.size, torch.tensor(sorted(lm.vocabulary.eos_ids), device=lm.device)
    answers: list[list[int]] = [[] for _ in prompts]
    asked: list[list[int]] = [[] for _ in prompts]
    total = [0.0] * len(prompts)
    found: list[TopTokens] = []
    numbers = {tuple(prompt): i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    rows, log_p = lm.prefill(list(numbers))
    # Answers that are going on, and the row of the prefix that each of them has come to.
    going = list(range(len(prompts)))
    row = torch.tensor([numbers[tuple(prompt)] for prompt in prompts], device=lm.device)
    read = 0
    for length in range(1, max_length + 1):
        if bool(log_p.isnan().any()):
            raise ValueError("the language model gives NaN; load it with model.dtype=float32")
        if top:
            found.append(TopTokens.of(log_p, top, lm.vocabulary.eos_ids))
        drawn = torch.multinomial(log_p.exp()[row], 1, generator=generator)[:, 0]
        steps = zip(going, row.tolist(), drawn.tolist(), log_p[row, drawn].tolist(), strict=True)
        for answer, place, token, value in steps:
            answers[answer].append(token)
            asked[answer].append(read + place if top else -1)
            total[answer] += value
        read += len(log_p)
        kept = (~torch.isin(drawn, eos)).nonzero()[:, 0]
        if not len(kept) or length == max_length:
            break
        going = [going[i] for i in kept.tolist()]
        prefix, row = torch.unique(row[kept] * size + drawn[kept], return_inverse=True)
        rows.reorder(prefix // size)
        log_p = rows.extend((prefix % size).unsqueeze(1), torch.ones_like(prefix))[:, 0]
    top_tokens = TopTokens.joined(found) if found else None
    return Sequences.from_lists(answers, prompts, total, asked=asked, top_tokens=top_tokens)


@torch.inference_mode()
def hidden_states(lm: TransformersLM, sequences: Sequences, batch: int) -> Tensor:
    """Read the LM's last hidden state after each token, (n, D), in the order of the tokens."""

    def read(inputs: dict[str, Tensor]) -> Tensor:
        return lm.model.base_model(**inputs, use_cache=False).last_hidden_state

    width = lm.model.config.hidden_size
    # Half the memory of float32, for what is only to be put into groups.
    vectors = torch.empty(sequences.num_tokens, width, dtype=torch.bfloat16)
    starts = sequences.lengths.cumsum(0) - sequences.lengths
    for row, begin, found in _read_again(lm, sequences, read, batch, "hidden states"):
        start, length = int(starts[row]), int(sequences.lengths[row])
        vectors[start : start + length] = found[begin : begin + length].to("cpu", torch.bfloat16)
    return vectors


@torch.inference_mode()
def log_likelihood(lm: TransformersLM, sequences: Sequences, batch: int) -> Tensor:
    """Compute log P_lm(sequence | prompt) of sequences that have prompts, in float64."""
    total = torch.zeros(len(sequences), dtype=torch.float64)
    what = "the LM's likelihood"
    for row, begin, logits in _read_again(lm, sequences, _logits_of(lm), batch, what):
        tokens = torch.tensor(sequences.sequence(row), device=logits.device).unsqueeze(1)
        before = logits[begin - 1 : begin - 1 + len(tokens)]
        total[row] = before.double().log_softmax(dim=-1).gather(1, tokens).sum()
    return total


@torch.inference_mode()
def asked_again(lm: TransformersLM, sequences: Sequences, top: int, batch: int) -> Sequences:
    """Ask what the LM says before each token of sequences that have prompts.

    Every position has a list of its own, also where sequences begin in the same way.
    """
    found: list[TopTokens] = []
    order: list[Tensor] = []
    starts = sequences.lengths.cumsum(0) - sequences.lengths
    what = "what the LM says"
    for row, begin, logits in _read_again(lm, sequences, _logits_of(lm), batch, what):
        length = int(sequences.lengths[row])
        log_p = logits[begin - 1 : begin - 1 + length].float().log_softmax(dim=-1)
        found.append(TopTokens.of(log_p, top, lm.vocabulary.eos_ids))
        order.append(starts[row] + torch.arange(length))
    asked = torch.empty(sequences.num_tokens, dtype=torch.int64)
    asked[torch.cat(order)] = torch.arange(sequences.num_tokens)
    return replace(sequences, asked=asked, top_tokens=TopTokens.joined(found))


def _logits_of(lm: TransformersLM) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda inputs: lm.model(**inputs, use_cache=False).logits


def _read_again(
    lm: TransformersLM,
    sequences: Sequences,
    read: Callable[[dict[str, Tensor]], Tensor],
    batch: int,
    what: str,
) -> Iterator[tuple[int, int, Tensor]]:
    """Each sequence: its number, where it begins behind its prompt, and what is read at each place.

    Prompts with their answers are padded on the right, and read some at a time.
    """
    with bar(len(sequences), what, "sequence", 0) as shown:
        for rows in sequences.pieces_with_prompts(batch):
            numbers = rows.tolist()
            prompts = [sequences.prompt(row) for row in numbers]
            texts = [p + sequences.sequence(row) for p, row in zip(prompts, numbers, strict=True)]
            width = max(map(len, texts))
            ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
            positions = torch.arange(width).expand_as(ids)
            mask = (positions < torch.tensor([[len(text)] for text in texts])).long()
            inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
            found = read({name: each.to(lm.device) for name, each in inputs.items()})
            yield from zip(numbers, map(len, prompts), found, strict=True)
            shown.update(len(rows))


def with_log_likelihood(lm: TransformersLM | None, sequences: Sequences, batch: int) -> Sequences:
    """Fill in the log-likelihoods that are unknown, where the LM can be asked for them."""
    unknown = sequences.log_likelihood.isnan()
    if lm is None or not bool(unknown.any()) or int(sequences.prompt_lengths.min()) < 1:
        return sequences
    return replace(sequences, log_likelihood=log_likelihood(lm, sequences, batch))
