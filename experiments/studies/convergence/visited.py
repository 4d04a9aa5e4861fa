"""Free continuations of a prompt, with the language model's distribution at every visited prefix.

Common prefixes of continuations are computed once, so a sample is a tree. Each prefix comes with
the model's complete next distribution, which contains more about improbable tokens than samples do.

**Weights.** Sequences aren't counted, because P_lm(prefix) is known exactly. At least one of n
continuations visits a prefix with probability pi = 1 - (1 - P)^n. With the weight P / pi (Horvitz
and Thompson 1952), sums over visited prefixes are unbiased for sums over all prefixes. A prefix
that is certainly visited has its probability as weight, a rare one about 1 / n.

Cost: one forward pass position per distinct prefix, and V log-probabilities stored in half
precision. Prefixes are computed level by level. If a level doesn't fit into memory, it is split
into groups that continue one after the other, each recomputing its own prefixes.
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
from smc import LanguageModel
from smc._vocabulary.draw import categorical

MOST_BYTES = 6 << 30
"""Limit of the stored distributions of one HMM."""
_ROWS = 8192  # distributions that are converted at once
_TOKENS = 1 << 18  # tokens of all rows of a batch, including prompts, for the cache
_NUMBERS = 1 << 24  # numbers in the distributions of a batch


class Visited(NamedTuple):
    """Prefixes of continuations of one or several prompts; parents precede their children.

    Attributes:
        parent: index of the prefix without its last token; -1 for the empty one, the root.
        token: last token; -1 for a root.
        log_prefix: log P_lm(prefix | its prompt).
        weight: weight of each prefix; the weights of all roots sum to one.
        read: prefixes with a next distribution: all except ended ones and those of maximum length.
        log_p: the next distributions.
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
    def join(cls, parts: Sequence[Visited]) -> Visited:
        """Join the trees of several prompts with equal weights."""
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
        """Number of tokens V in the model's vocabulary."""
        return self.log_p.shape[1]

    @property
    def num_sequences(self) -> int:
        """Number of continuations."""
        return len(self.last)

    def sum_by_group(self, group: Int64[Tensor, "n"], num_groups: int) -> Float64[Tensor, "G V"]:
        """Sum weight · p over the prefixes in `read` of each group; p is the next distribution."""
        sums = torch.zeros(num_groups, self.num_tokens, dtype=torch.float64)
        for at, log_p in self._distributions():
            sums.index_add_(0, group[at], self.weight[at, None] * log_p.double().exp())
        return sums

    def features(
        self, dimensions: int, generator: torch.Generator
    ) -> Float32[Tensor, "m dimensions"]:
        """Return random projections of the square roots of the next distributions."""
        projection = random_projection(self.num_tokens, dimensions, generator)
        parts = [(0.5 * log_p.float()).exp() @ projection for _, log_p in self._distributions()]
        return torch.cat(parts)

    def _distributions(self) -> Iterator[tuple[Int64[Tensor, "R"], Float[Tensor, "R V"]]]:
        """Yield read prefixes and their next distributions, in parts."""
        yield from zip(self.read.split(_ROWS), self.log_p.split(_ROWS), strict=True)

    def sequences(self) -> Sequences:
        """Return the continuations without their prompts."""
        here, columns = self.last, []
        while bool((self.parent[here] >= 0).any()):
            columns.append(self.token[here])
            here = torch.where(self.parent[here] < 0, here, self.parent[here])
        tokens = torch.stack(
            columns[::-1], dim=1
        )  # aligned on the right, padded with the roots' -1
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
    """Prefixes of one length to compute next, with the continuations that visit them.

    Attributes:
        prefix: numbers of the prefixes.
        path: their tokens.
        log_prefix: their log P.
        who: the continuations.
        row: row of each continuation's prefix.
    """

    prefix: Int64[Tensor, "R"]
    path: Int64[Tensor, "R t"]
    log_prefix: Float64[Tensor, "R"]
    who: Int64[Tensor, "c"]
    row: Int64[Tensor, "c"]

    def split(self, size: int) -> Iterator[_Group]:
        """Yield groups of at most `size` prefixes."""
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
    """Sample C free continuations of a prompt, and keep the prefixes that they visit.

    Args:
        lm: the language model.
        prompt: token ids.
        u: uniform numbers, one per token; a continuation has at most T tokens, or fewer if the
            model's context is shorter.
        temperature: temperature of the language model.
        most_bytes: limit of all distributions together.
        progress: called with the number of processed uniform numbers.

    Raises:
        FloatingPointError: the model returned NaN.
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
            index = torch.where(on, on.cumsum(0) - 1, -1)[row]
            going = index >= 0
            if progress is not None:  # numbers after an end aren't used
                progress(len(going) + int((~going).sum()) * (u.shape[1] - t - 1))
            path = torch.cat([group.path[above], token.unsqueeze(1)], dim=1)
            group = _Group(number[on], path[on], log_prefix[on], group.who[going], index[going])
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
    """Compute P / (1 - (1 - P)^count) of each prefix; the limit for P = 0 is 1 / count."""
    p = log_prefix.exp().clamp(max=1)
    chance = -torch.expm1(count * torch.log1p(-p))
    return torch.where(chance > 0, p / chance, 1 / count)
