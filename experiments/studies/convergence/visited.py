"""This module samples free continuations of a prompt, and asks the model at each prefix on the way.

What several continuations begin with is one prefix and is read once. So a sample is a tree, and
with each of its prefixes comes the model's whole distribution of the next token, which says more
of what is improbable than any sample of it.

**Weights.** Sequences need not be counted, as P_lm(prefix) is known exactly. At least one of n
continuations comes by a prefix with probability pi = 1 - (1 - P)^n; weighed by P / pi (Horvitz and
Thompson 1952), sums over visited prefixes are unbiased for sums over all. What is visited for sure
counts with its probability, what was met by chance with about 1 / n.

Cost: one token read for each distinct prefix, and its V log-probabilities kept in half precision.
Prefixes are read level by level, all at once, until they are too many for memory; then they go on
in groups, one after the other, each of which reads its own beginnings again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from experiments.distillation.clones import random_projection
from experiments.distillation.data import Sequences
from experiments.studies.convergence.evaluate import refuse_nan
from smc.draw import categorical
from smc.models.protocol import LanguageModel

MOST_BYTES = 6 << 30
"""Of distributions that are kept for one HMM."""
_ROWS = 8192  # distributions that are widened at once
_TOKENS = 1 << 18  # in all rows that are read at once, prompts included: what caches hold
_NUMBERS = 1 << 24  # in their distributions


class Visited(NamedTuple):
    """Prefixes of one or several prompts' continuations; parents come before their children.

    Attributes:
        parent: of each prefix; -1 for the empty one, the root.
        token: its last; -1 for a root.
        log_prefix: log P_lm(prefix | its prompt).
        weight: of each prefix; those of all roots sum to one.
        read: the prefixes after which the model was asked: all but those that have ended or are
            as long as allowed.
        log_p: what it said there.
        last: the prefix at which each continuation ends.
    """

    parent: Int64[Tensor, "n"]
    token: Int64[Tensor, "n"]
    log_prefix: Float64[Tensor, "n"]
    weight: Float64[Tensor, "n"]
    read: Int64[Tensor, "m"]
    log_p: Float[Tensor, "m V"]
    last: Int64[Tensor, "C"]

    @classmethod
    def joined(cls, parts: Sequence[Visited]) -> Visited:
        """Join the trees of several prompts, each as probable as the others."""
        sizes = torch.tensor([len(part.token) for part in parts])
        before = (sizes.cumsum(0) - sizes).tolist()
        shifted = [
            part._replace(
                parent=torch.where(part.parent < 0, -1, part.parent + first),
                weight=part.weight / len(parts),
                read=part.read + first,
                last=part.last + first,
            )
            for part, first in zip(parts, before, strict=True)
        ]
        return cls(*(torch.cat(columns) for columns in zip(*shifted, strict=True)))

    @property
    def num_tokens(self) -> int:
        return self.log_p.shape[1]

    @property
    def num_sequences(self) -> int:
        return len(self.last)

    def expected(self, group: Int64[Tensor, "n"], num_groups: int) -> Float64[Tensor, "G V"]:
        """Sums weight · p over the prefixes of each group that were read."""
        sums = torch.zeros(num_groups, self.num_tokens, dtype=torch.float64)
        for at, log_p in self._distributions():
            sums.index_add_(0, group[at], self.weight[at, None] * log_p.double().exp())
        return sums

    def features(
        self, dimensions: int, generator: torch.Generator
    ) -> Float32[Tensor, "m dimensions"]:
        """Projects the square roots of p after each prefix that was read."""
        projection = random_projection(self.num_tokens, dimensions, generator)
        parts = [(0.5 * log_p.float()).exp() @ projection for _, log_p in self._distributions()]
        return torch.cat(parts)

    def _distributions(self) -> Iterator[tuple[Int64[Tensor, "R"], Float[Tensor, "R V"]]]:
        """Prefixes that were read, and log p after them, some at a time."""
        yield from zip(self.read.split(_ROWS), self.log_p.split(_ROWS), strict=True)

    def sequences(self) -> Sequences:
        """Give the continuations themselves, without their prompts."""
        here, columns = self.last, []
        while bool((self.parent[here] >= 0).any()):
            columns.append(self.token[here])
            here = torch.where(self.parent[here] < 0, here, self.parent[here])
        tokens = torch.stack(columns[::-1], dim=1)  # on the right, roots' -1 before them
        inside = tokens >= 0
        lengths = inside.sum(dim=1)
        return Sequences(
            tokens[inside],
            lengths,
            self.log_prefix[self.last],
            torch.zeros(0, dtype=torch.int64),
            torch.zeros_like(lengths),
            torch.arange(len(lengths)),
            torch.full((int(lengths.sum()),), -1),
        )


class _Group(NamedTuple):
    """Prefixes of one length that are to be read: their numbers, their tokens, their log P; and
    the continuations that come by, with the row of each among the prefixes."""

    prefix: Int64[Tensor, "R"]
    path: Int64[Tensor, "R t"]
    log_prefix: Float64[Tensor, "R"]
    who: Int64[Tensor, "c"]
    row: Int64[Tensor, "c"]

    def split(self, size: int) -> Iterator[_Group]:
        """Groups of at most so many prefixes."""
        for first in range(0, len(self.prefix), size):
            part = slice(first, first + size)
            some = (self.row >= first) & (self.row < first + size)
            columns = (self.prefix[part], self.path[part], self.log_prefix[part])
            yield _Group(*columns, self.who[some], self.row[some] - first)


@torch.inference_mode()
def visit(
    lm: LanguageModel,
    prompt: Sequence[int],
    u: Float64[Tensor, "C T"],
    *,
    temperature: float = 1.0,
    most_bytes: int = MOST_BYTES,
    progress: Callable[[int], object] | None = None,
) -> Visited:
    """Sample C free continuations of a prompt, and keep the prefixes that they come by.

    Args:
        prompt: token ids.
        u: uniform numbers, one for each token; a continuation has at most T of them, or as many as
            the model's context leaves room for.
        temperature: of the language model.
        most_bytes: of all distributions together.
        progress: called with how many of the uniform numbers are done with.

    Raises:
        FloatingPointError: the model's log-probabilities are not numbers.
        ValueError: the distributions take more memory.
    """
    count, length = u.shape
    if lm.context is not None:
        length = min(length, lm.context - len(prompt))
    size = lm.vocabulary.size
    eos = torch.tensor(lm.vocabulary.eos_ids, dtype=torch.int64)
    nothing = torch.tensor([-1])
    parents, tokens, logs = [nothing], [nothing], [torch.zeros(1, dtype=torch.float64)]
    reads: list[Tensor] = []
    said: list[Tensor] = []
    total, kept = 1, 0
    last = torch.zeros(count, dtype=torch.int64)
    most_rows = max(16, min(_TOKENS // (len(prompt) + length), _NUMBERS // size))
    start = torch.zeros(count, dtype=torch.int64)
    due = [_Group(start[:1], start[:1, None][:, :0], logs[0], torch.arange(count), start)]
    while due:
        group = due.pop()
        memory, values = lm.prefill([prompt])
        memory.reorder(torch.zeros_like(group.prefix, device=lm.device))
        if group.path.shape[1]:
            path = group.path.to(lm.device)
            values = memory.extend(path, torch.full_like(path[:, 0], path.shape[1]))[:, -1]
        for t in range(group.path.shape[1], length):
            log_p = (values.double().cpu() / temperature).log_softmax(dim=1)
            refuse_nan(log_p)
            reads.append(group.prefix)
            said.append(log_p.half())
            kept += said[-1].nbytes
            if kept > most_bytes:
                raise ValueError(
                    f"the distributions of {sum(map(len, reads))} prefixes of {count} free "
                    f"continuations of one prompt take more than {most_bytes >> 20} MiB; lower "
                    "task.hmm_sequences or task.hmm_length"
                )
            drawn = categorical(log_p).at(group.row, u[group.who, t])
            child, row = torch.unique(group.row * size + drawn, return_inverse=True)
            above, token = child // size, child % size
            number = torch.arange(total, total + len(child))
            log_prefix = group.log_prefix[above] + log_p[above, token]
            total += len(child)
            parents.append(group.prefix[above])
            tokens.append(token)
            logs.append(log_prefix)
            last[group.who] = number[row]

            on = ~torch.isin(token, eos) & (t + 1 < length)
            place = torch.where(on, on.cumsum(0) - 1, -1)[row]
            going = place >= 0
            if progress is not None:  # what comes after an end is done with it
                progress(len(going) + int((~going).sum()) * (u.shape[1] - t - 1))
            path = torch.cat([group.path[above], token.unsqueeze(1)], dim=1)
            group = _Group(number[on], path[on], log_prefix[on], group.who[going], place[going])
            if not len(group.prefix):
                break
            if len(group.prefix) > most_rows:
                due.extend(reversed(list(group.split(most_rows))))
                break
            memory.reorder(above[on].to(lm.device))
            read = token[on].unsqueeze(1).to(lm.device)
            values = memory.extend(read, torch.ones_like(read[:, 0]))[:, 0]
    log_prefix = torch.cat(logs)
    return Visited(
        torch.cat(parents),
        torch.cat(tokens),
        log_prefix,
        weights(log_prefix, count),
        torch.cat(reads),
        torch.cat(said),
        last,
    )


def weights(log_prefix: Float64[Tensor, "n"], count: int) -> Float64[Tensor, "n"]:
    """Compute P / (1 - (1 - P)^count) of each prefix, whose limit for P = 0 is 1 / count."""
    p = log_prefix.exp().clamp(max=1)
    chance = -torch.expm1(count * torch.log1p(-p))
    return torch.where(chance > 0, p / chance, 1 / count)
