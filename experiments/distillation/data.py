"""Ragged sequences for distillation: storage on disk and the split into training and held-out data.

A sequence is an answer of a language model in token ids, including EOS if it was reached. It comes
with its prompt, log P_lm(answer | prompt), and optionally the model's next distributions. A
sampling writes these arrays to a directory of `.safetensors` files.

**Next distributions are truncated** to the K most probable tokens after each prefix. Complete ones
take V numbers per prefix: 8 GB for 80,000 prefixes with 49,152 tokens in half precision, compared
with 31 MB for 64 tokens. EOS tokens are always included, however improbable, because lookahead
depends on when a text ends.

Each prefix also has a *sketch* of its distribution: all V logits minus their mean, randomly
projected to `SKETCH` numbers. Logits are linear in the last hidden state, so positions with similar
sketches have similar hidden states. Hidden states contain more than the next token: after a prompt
the model is certain of most next tokens, and positions with the same next token can still differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Float16, Float32, Float64, Int32, Int64
from torch import Tensor

from experiments.distillation.lumping import Lumping
from hmm._files import COPY_AGAIN, read_tensors, write_tensors

ARRAYS = ("tokens", "lengths", "log_likelihood", "prompts", "prompt_lengths", "groups", "asked")
_TOP_TOKENS = ("said_tokens", "said_log_p", "said_sketch")
_EXPECTED = 0.5  # occurrences

SKETCH = 128
_ROWS = 1 << 14  # prefixes per part
_LEAST = -100.0  # log-probability of impossible tokens in the sketch
_SEED = 0x5E7C4


@dataclass(frozen=True)
class TopTokens:
    """The most probable next tokens after M prefixes.

    Attributes:
        tokens: tokens of each prefix. EOS tokens come first, then the others by falling
            probability.
        log_p: their log-probabilities.
        sketch: sketch of all logits.
    """

    tokens: Int32[Tensor, "M K"]
    log_p: Float16[Tensor, "M K"]
    sketch: Float16[Tensor, "M D"]

    @classmethod
    def of(cls, log_p: Float[Tensor, "M V"], top: int, eos_ids: Sequence[int]) -> TopTokens:
        """Keep the `top` most probable tokens of complete distributions, EOS tokens first."""
        ranked = log_p.clone()
        ranked[:, list(eos_ids)] = torch.inf
        tokens = ranked.topk(min(max(top, len(eos_ids)), log_p.shape[1]), dim=1).indices
        logits = log_p.float().clamp(min=_LEAST)
        sketch = (logits - logits.mean(dim=1, keepdim=True)) @ _projection(
            logits.shape[1], logits.device
        )
        kept = (tokens.int(), log_p.gather(1, tokens).half(), sketch.half())
        return cls(*(array.cpu() for array in kept))

    @classmethod
    def join(cls, parts: Sequence[TopTokens]) -> TopTokens:
        """Concatenate the lists of several files or steps."""
        columns = ((part.tokens, part.log_p, part.sketch) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Int64[Tensor, "m"]) -> TopTokens:
        """Return the lists of the prefixes with the given indices."""
        return TopTokens(self.tokens[rows], self.log_p[rows], self.sketch[rows])

    def lump(self, lumping: Lumping) -> TopTokens:
        """Replace tokens by their classes; a class can then be listed more than once."""
        return replace(self, tokens=lumping.class_of[self.tokens.long()].int())

    def sum(self, num_tokens: int) -> Float64[Tensor, "V"]:
        """Return the sum of listed probabilities of each token over all prefixes."""
        sums = torch.zeros(num_tokens, dtype=torch.float64)
        for _, tokens, p in self.pieces():
            sums.index_add_(0, tokens.flatten(), p.flatten())
        return sums

    def pieces(self) -> Iterator[tuple[slice, Int64[Tensor, "R K"], Float64[Tensor, "R K"]]]:
        """Yield some rows at a time, as a slice with the rows' tokens and probabilities."""
        for start in range(0, len(self), _ROWS):
            rows = slice(start, start + _ROWS)
            yield rows, self.tokens[rows].long(), self.log_p[rows].double().exp()


@lru_cache(maxsize=1)
def _projection(num_tokens: int, device: torch.device) -> Float32[Tensor, "V D"]:
    """Return the projection of the sketch, which depends only on V and is equal for all files.

    It nearly preserves distances (Johnson and Lindenstrauss 1984).
    """
    generator = torch.Generator().manual_seed(_SEED)
    return (torch.randn(num_tokens, SKETCH, generator=generator) / SKETCH**0.5).to(device)


@dataclass(frozen=True)
class Sequences:
    """B sequences of tokens, concatenated in flat arrays.

    Attributes:
        tokens: tokens of all sequences, `lengths.sum()` in total.
        lengths: number of tokens of each sequence, at least one.
        log_likelihood: log P_lm(sequence | its prompt), float64; NaN if unknown.
        prompts: token ids of all prompts, `prompt_lengths` of them for each.
        groups: sequences of one group have the same prompt and aren't separated by a split.
        asked: for each token, the index in `top_tokens` of the distribution it was drawn from; -1
            for none.
        top_tokens: the most probable tokens after each prefix, or None.
    """

    tokens: Tensor
    lengths: Tensor
    log_likelihood: Tensor
    prompts: Tensor
    prompt_lengths: Tensor
    groups: Tensor
    asked: Tensor
    top_tokens: TopTokens | None = None

    @classmethod
    def from_lists(
        cls,
        tokens: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]] | None = None,
        log_likelihood: Sequence[float] | None = None,
        asked: Sequence[Sequence[int]] | None = None,
        top_tokens: TopTokens | None = None,
    ) -> Sequences:
        """Make sequences from lists of ids."""
        count, total = len(tokens), sum(map(len, tokens))
        prompts = [[]] * count if prompts is None else prompts
        unknown = [float("nan")] * count
        return cls(
            torch.tensor([token for row in tokens for token in row], dtype=torch.int64),
            torch.tensor([len(row) for row in tokens], dtype=torch.int64),
            torch.tensor(
                unknown if log_likelihood is None else log_likelihood, dtype=torch.float64
            ),
            torch.tensor([token for row in prompts for token in row], dtype=torch.int64),
            torch.tensor([len(row) for row in prompts], dtype=torch.int64),
            torch.arange(count),
            torch.full((total,), -1)
            if asked is None
            else torch.tensor([number for row in asked for number in row], dtype=torch.int64),
            top_tokens,
        )

    @classmethod
    def join(cls, parts: Sequence[Sequences]) -> Sequences:
        """Concatenate the sequences of several parts."""
        known = [part.top_tokens for part in parts if part.top_tokens is not None]
        before = 0
        asked = []
        for part in parts:
            asked.append(torch.where(part.asked < 0, -1, part.asked + before))
            before += 0 if part.top_tokens is None else len(part.top_tokens)
        arrays = {name: torch.cat([getattr(part, name) for part in parts]) for name in ARRAYS}
        joined = TopTokens.join(known) if known else None
        return cls(**{**arrays, "asked": torch.cat(asked)}, top_tokens=joined)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def answered(self) -> bool:
        """True if the distribution before each token is known."""
        return self.top_tokens is not None and bool((self.asked >= 0).all())

    @cached_property
    def _starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def _prompt_starts(self) -> Tensor:
        return self.prompt_lengths.cumsum(0) - self.prompt_lengths

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (B x T), padded with zeros, and lengths (B) of the sequences in `rows`."""
        return _pad(self.tokens, self._starts[rows], self.lengths[rows])

    def prompt(self, row: int) -> list[int]:
        """Return the prompt of one sequence."""
        start, length = int(self._prompt_starts[row]), int(self.prompt_lengths[row])
        return self.prompts[start : start + length].tolist()

    def sequence(self, row: int) -> list[int]:
        """Return the tokens of one sequence."""
        start, length = int(self._starts[row]), int(self.lengths[row])
        return self.tokens[start : start + length].tolist()

    def take(self, rows: Tensor) -> Sequences:
        """Return the sequences with the given indices."""
        return Sequences(
            _gather(self.tokens, self._starts[rows], self.lengths[rows]),
            self.lengths[rows],
            self.log_likelihood[rows],
            _gather(self.prompts, self._prompt_starts[rows], self.prompt_lengths[rows]),
            self.prompt_lengths[rows],
            self.groups[rows],
            _gather(self.asked, self._starts[rows], self.lengths[rows]),
            self.top_tokens,
        )

    def lump(self, lumping: Lumping) -> Sequences:
        """Replace tokens by their classes."""
        return replace(
            self,
            tokens=lumping.class_of[self.tokens],
            top_tokens=None if self.top_tokens is None else self.top_tokens.lump(lumping),
        )

    def pieces(self, size: int) -> Iterator[Tensor]:
        """Yield row numbers, `size` at a time, sorted by length to reduce padding."""
        yield from self.lengths.argsort(stable=True).split(size)


def _pad(flat: Tensor, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    columns = torch.arange(int(lengths.max()) if len(lengths) else 0)
    inside = columns < lengths.unsqueeze(1)
    indices = torch.where(inside, starts.unsqueeze(1) + columns, 0)
    return torch.where(inside, flat[indices], 0), lengths


def _gather(flat: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate the slices of a flat array that begin at `starts`."""
    before = lengths.cumsum(0) - lengths
    inside = torch.arange(int(lengths.sum())) - before.repeat_interleave(lengths)
    return flat[starts.repeat_interleave(lengths) + inside]


def split(sequences: Sequences, held_out: float, seed: int) -> tuple[Sequences, Sequences]:
    """Split sequences for training and evaluation; answers to one prompt stay together.

    Raises:
        ValueError: one of the parts would be empty.
    """
    groups = sequences.groups.unique()
    count = max(1, round(len(groups) * held_out))
    if count >= len(groups):
        raise ValueError(
            f"expected enough prompts for a part of held_out={held_out} and another part, got "
            f"{len(groups)}; give more records or sequences"
        )
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    chosen = torch.isin(sequences.groups, groups[order[:count]])
    return sequences.take((~chosen).nonzero()[:, 0]), sequences.take(chosen.nonzero()[:, 0])


def lumping_of(sequences: Sequences, num_tokens: int, eos_ids: tuple[int, ...]) -> Lumping:
    """Merge all tokens that aren't needed into one class.

    A token is needed if it occurs or ends a text. If the model's distributions are known, it is
    also needed if its total expected count is at least `_EXPECTED`. The time, memory and
    checkpoints of a training then depend only on the number of needed tokens.
    """
    own = torch.bincount(sequences.tokens, minlength=num_tokens) > 0
    own[list(eos_ids)] = True
    if sequences.top_tokens is not None:
        own |= sequences.top_tokens.sum(num_tokens) >= _EXPECTED
    return Lumping.all_but(own)


def save(sequences: Sequences, path: Path) -> None:
    """Write a `.safetensors` file atomically."""
    # 32 bits suffice for token ids and halve the size.
    arrays = {
        name: array if array.is_floating_point() else array.int()
        for name, array in ((name, getattr(sequences, name)) for name in ARRAYS)
    }
    if sequences.top_tokens is not None:
        top = sequences.top_tokens
        arrays |= dict(zip(_TOP_TOKENS, (top.tokens, top.log_p, top.sketch), strict=True))
    write_tensors(arrays, path)


def read(directory: str | Path, *, remedy: str = COPY_AGAIN) -> Sequences:
    """Read the sequences of a sampling.

    Args:
        directory: directory of the sampling.
        remedy: advice on a damaged file, for the message.

    Raises:
        ValueError: there is no file, or a file is damaged or has no sequences.
    """
    files = sorted(Path(directory).expanduser().glob("*.safetensors"))
    if not files:
        raise ValueError(f"expected .safetensors files of sequences in {directory}, got none")
    return Sequences.join([_read_file(file, remedy) for file in files])


def _read_file(path: Path, remedy: str) -> Sequences:
    arrays = read_tensors(path, remedy=remedy)
    missing = {*ARRAYS} - arrays.keys()
    if missing:
        raise ValueError(f"{path} isn't a file of sampled sequences: it lacks {sorted(missing)}")
    known = arrays.keys() >= {*_TOP_TOKENS}
    found = {name: arrays[name] for name in ARRAYS}
    return Sequences(
        **{name: each.double() if each.is_floating_point() else each.long()
           for name, each in found.items()},
        top_tokens=TopTokens(*(arrays[name] for name in _TOP_TOKENS)) if known else None,
    )  # fmt: skip


def digest(paths: Iterable[Path]) -> str:
    """Compute a digest of the contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]
