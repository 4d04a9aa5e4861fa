"""Sequences to distil from are ragged, kept on disk, and split for the comparison.

A sequence is what a language model answered, in token ids, EOS included if it came. Beside it lie,
where they are known, the prompt and log P_lm(answer | prompt). Files are

- `.safetensors` or `.npz` with the arrays of `Sequences` (`tokens` and `lengths` at least; what the
  model said on the way is in `said_tokens`, `said_log_p` and `said_sketch`, see `top_tokens`), or a
  directory of such files, as an earlier sampling has left it;
- `.jsonl`, a sequence a line: a list of token ids, or an object with `tokens` and, if one likes,
  `prompt` (token ids) and `log_likelihood`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.distillation.top_tokens import TopTokens
from experiments.harness.records import read_text
from gcd.support.files import COPY_AGAIN, read_tensors, write_tensors
from hmm.lumping import Lumping

ARRAYS = ("tokens", "lengths", "log_likelihood", "prompts", "prompt_lengths", "groups", "asked")
_TOP_TOKENS = ("said_tokens", "said_log_p", "said_sketch")
_LARGEST_ID = 2**31 - 1  # files hold 32 bits
_EXPECTED = 0.5  # occurrences


@dataclass(frozen=True)
class Sequences:
    """B sequences of tokens, one behind the other in flat arrays.

    Attributes:
        tokens: of all sequences; `lengths.sum()` of them.
        lengths: tokens of each, at least one.
        log_likelihood: log P_lm(sequence | its prompt), float64; NaN where unknown.
        prompts: token ids of all prompts; `prompt_lengths` of them each, 0 where there is none.
        groups: sequences of one group have one prompt, and stay together when data are split.
        asked: for each token, which entry of `top_tokens` is what the model said before it; -1 for
            none.
        top_tokens: the most probable tokens after each prefix at which it was asked; None if
            unknown.
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
        """Make sequences of lists of ids."""
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
    def joined(cls, parts: Sequence[Sequences]) -> Sequences:
        """Join all sequences of several parts, in their order."""
        known = [part.top_tokens for part in parts if part.top_tokens is not None]
        before = 0
        asked = []
        for part in parts:
            asked.append(torch.where(part.asked < 0, -1, part.asked + before))
            before += 0 if part.top_tokens is None else len(part.top_tokens)
        arrays = {name: torch.cat([getattr(part, name) for part in parts]) for name in ARRAYS}
        joined = TopTokens.joined(known) if known else None
        return cls(**{**arrays, "asked": torch.cat(asked)}, top_tokens=joined)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def answered(self) -> bool:
        """Whether it is known what the model said before each token."""
        return self.top_tokens is not None and bool((self.asked >= 0).all())

    @cached_property
    def _starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def _prompt_starts(self) -> Tensor:
        return self.prompt_lengths.cumsum(0) - self.prompt_lengths

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Give the tokens (B x T), zero behind each end, and the lengths (B) of these sequences."""
        return _padded(self.tokens, self._starts[rows], self.lengths[rows])

    def prompt(self, row: int) -> list[int]:
        """Give the prompt of one sequence."""
        start, length = int(self._prompt_starts[row]), int(self.prompt_lengths[row])
        return self.prompts[start : start + length].tolist()

    def sequence(self, row: int) -> list[int]:
        """Give the tokens of one sequence."""
        start, length = int(self._starts[row]), int(self.lengths[row])
        return self.tokens[start : start + length].tolist()

    def take(self, rows: Tensor) -> Sequences:
        """Keep these sequences alone."""
        return Sequences(
            _gathered(self.tokens, self._starts[rows], self.lengths[rows]),
            self.lengths[rows],
            self.log_likelihood[rows],
            _gathered(self.prompts, self._prompt_starts[rows], self.prompt_lengths[rows]),
            self.prompt_lengths[rows],
            self.groups[rows],
            _gathered(self.asked, self._starts[rows], self.lengths[rows]),
            self.top_tokens,
        )

    def lumped(self, lumping: Lumping) -> Sequences:
        """Name classes in place of tokens."""
        return replace(
            self,
            tokens=lumping.class_of[self.tokens],
            top_tokens=None if self.top_tokens is None else self.top_tokens.lumped(lumping),
        )

    def pieces(self, size: int) -> Iterator[Tensor]:
        """Yield row numbers, `size` at a time, by length so that little is padded."""
        yield from self.lengths.argsort(stable=True).split(size)

    def pieces_with_prompts(self, size: int) -> Iterator[Tensor]:
        """Yield row numbers, `size` at a time, by length with the prompt."""
        yield from (self.prompt_lengths + self.lengths).argsort(stable=True).split(size)


def _padded(flat: Tensor, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    columns = torch.arange(int(lengths.max()) if len(lengths) else 0)
    inside = columns < lengths.unsqueeze(1)
    places = torch.where(inside, starts.unsqueeze(1) + columns, 0)
    return torch.where(inside, flat[places], 0), lengths


def _gathered(flat: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """The stretches of a flat array that begin at `starts`, one behind the other."""
    before = lengths.cumsum(0) - lengths
    inside = torch.arange(int(lengths.sum())) - before.repeat_interleave(lengths)
    return flat[starts.repeat_interleave(lengths) + inside]


def split(sequences: Sequences, held_out: float, seed: int) -> tuple[Sequences, Sequences]:
    """Split sequences for training from held-out ones; no prompt has answers in both.

    Raises:
        ValueError: if one of the two would be empty.
    """
    groups = sequences.groups.unique()
    count = max(1, round(len(groups) * held_out))
    if count >= len(groups):
        raise ValueError(
            f"{len(groups)} prompts or sequences cannot be split with held_out={held_out}: "
            "give more of them"
        )
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    chosen = torch.isin(sequences.groups, groups[order[:count]])
    return sequences.take((~chosen).nonzero()[:, 0]), sequences.take(chosen.nonzero()[:, 0])


def lumping_of(sequences: Sequences, num_tokens: int, eos_ids: tuple[int, ...]) -> Lumping:
    """Lump all tokens into one that do not occur, nor end a text, nor were expected to occur.

    So time, memory and checkpoints of a training grow with the tokens that do occur. Where it is
    known what the language model said, lumped are those of which it expected less than `_EXPECTED`
    in all of the sequences together.
    """
    own = torch.bincount(sequences.tokens, minlength=num_tokens) > 0
    own[list(eos_ids)] = True
    if sequences.top_tokens is not None:
        own |= sequences.top_tokens.expected(num_tokens) >= _EXPECTED
    return Lumping.all_but(own)


def save(sequences: Sequences, path: Path) -> None:
    """Write a `.safetensors` file; an interruption leaves none."""
    # 32 bits hold every token id, and half the disk.
    arrays = {
        name: array if array.is_floating_point() else array.int()
        for name, array in ((name, getattr(sequences, name)) for name in ARRAYS)
    }
    if sequences.top_tokens is not None:
        top = sequences.top_tokens
        arrays |= dict(zip(_TOP_TOKENS, (top.tokens, top.log_p, top.sketch), strict=True))
    write_tensors(arrays, path)


def read(path: str | Path, *, remedy: str = COPY_AGAIN) -> Sequences:
    """Read sequences from a file or a directory of files.

    Args:
        path: the file or directory.
        remedy: what to do about a damaged file.

    Raises:
        ValueError: for a file that is damaged or not of these forms, empty sequences, or none.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{path} has no .safetensors file of sequences")
        return Sequences.joined([read(file, remedy=remedy) for file in files])
    if path.suffix == ".jsonl":
        sequences = _read_lines(path)
    else:
        sequences = _from_arrays(read_tensors(path, remedy=remedy), path)
    if not len(sequences):
        raise ValueError(f"{path} holds no sequence")
    if int(sequences.lengths.min()) < 1:
        empty = int(sequences.lengths.argmin())
        raise ValueError(f"{path}: sequence {empty} is empty; leave it out")
    return sequences


def _from_arrays(arrays: dict[str, Tensor], path: Path) -> Sequences:
    missing = {"tokens", "lengths"} - arrays.keys()
    if missing:
        raise ValueError(
            f"{path} lacks {sorted(missing)}; it has {sorted(arrays)}. `tokens` are all sequences "
            "one behind the other, `lengths` their lengths"
        )
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    if tokens.is_floating_point() or lengths.is_floating_point() or lengths.dim() != 1:
        raise ValueError(f"{path}: tokens and lengths must be integers, lengths of one dimension")
    lengths = lengths.long()
    if tokens.dim() == 2:
        if len(tokens) != len(lengths) or bool((lengths > tokens.shape[1]).any()):
            raise ValueError(f"{path}: lengths do not fit tokens of shape {tuple(tokens.shape)}")
        tokens = tokens[torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)]
    count = len(lengths)
    defaults = {
        "log_likelihood": torch.full((count,), float("nan"), dtype=torch.float64),
        "prompts": torch.zeros(0, dtype=torch.int64),
        "prompt_lengths": torch.zeros(count, dtype=torch.int64),
        "groups": torch.arange(count),
        "asked": torch.full((len(tokens),), -1),
    }
    rest = {name: arrays.get(name, default) for name, default in defaults.items()}
    sizes = [len(rest[name]) for name in ("log_likelihood", "prompt_lengths", "groups")]
    fits = int(lengths.sum()) == len(tokens) and sizes == [count] * 3
    if not fits or int(rest["prompt_lengths"].sum()) != len(rest["prompts"]):
        raise ValueError(f"{path}: its arrays do not fit each other: {count} lengths that sum to "
                         f"{int(lengths.sum())}, {len(tokens)} tokens")  # fmt: skip
    known = arrays.keys() >= {*_TOP_TOKENS}
    top_tokens = TopTokens(*(arrays[name] for name in _TOP_TOKENS)) if known else None
    lists = 0 if top_tokens is None else len(top_tokens)
    if len(rest["asked"]) != len(tokens) or bool((rest["asked"] >= lists).any()):
        raise ValueError(f"{path}: `asked` does not fit its {len(tokens)} tokens and {lists} lists "
                         "of what was said")  # fmt: skip
    return Sequences(
        tokens.long(),
        lengths,
        rest["log_likelihood"].double(),
        rest["prompts"].long(),
        rest["prompt_lengths"].long(),
        rest["groups"].long(),
        rest["asked"].long(),
        top_tokens,
    )


def _read_lines(path: Path) -> Sequences:
    tokens, prompts, log_likelihood = [], [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
        entry = {"tokens": entry} if isinstance(entry, list) else entry
        if not isinstance(entry, dict) or not _are_ids(entry.get("tokens")):
            raise ValueError(
                f"{path}, line {number}: not a list of token ids (0 to {_LARGEST_ID}), nor an "
                f"object whose `tokens` is one: {line[:60]}"
            )
        prompt, known = entry.get("prompt", []), entry.get("log_likelihood", float("nan"))
        if not _are_ids(prompt) or not _is_number(known):
            raise ValueError(
                f"{path}, line {number}: `prompt` is a list of token ids, `log_likelihood` a number"
            )
        tokens.append(entry["tokens"])
        prompts.append(prompt)
        log_likelihood.append(float(known))
    return Sequences.from_lists(tokens, prompts, log_likelihood)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(token) is int and 0 <= token <= _LARGEST_ID for token in value
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= _LARGEST_ID)


def check_tokens(sequences: Sequences, num_tokens: int, source: str) -> None:
    """Refuse tokens that the vocabulary does not have."""
    wrong = (sequences.tokens < 0) | (sequences.tokens >= num_tokens)
    if bool(wrong.any()):
        token = int(sequences.tokens[wrong.nonzero()[0]])
        raise ValueError(
            f"{source} holds token {token}, but the vocabulary has {num_tokens}; give the model "
            "(or the data.vocab_size) that the sequences were made with"
        )


def digest(paths: Iterable[Path]) -> str:
    """Compute a digest of the contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]
