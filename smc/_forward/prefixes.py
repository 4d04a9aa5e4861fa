"""Prefixes, and the `Reader` that extends them with the language model and the proposal.

Data that depends only on tokens is stored per prefix (`Prefixes`): the language model's
log-probabilities, its cache, and the proposal's state. Each particle stores the index of its
prefix. A `Reader` extends each prefix by one token. Its two implementations are the two execution
modes:

    EagerReader     has a row per distinct running prefix (`smc._forward.eager`). Equal prefixes are
                    computed once, and ended prefixes are removed. Forced tokens and drafts are
                    computed in the same pass. The sizes of tensors depend on data, so every step
                    synchronizes with the host
    StaticReader    has one row per particle from the first step to the last
                    (`smc._forward.static`). It never synchronizes with the host, and a step can be
                    captured as a graph

Both give the same tokens for the same random numbers if no tokens are forced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._proposals import Batch, Proposal, State
from smc._vocabulary.factors import Factors
from smc._vocabulary.passes import VocabularyPass


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """R prefixes of the examples of a batch.

    An eager reader has the distinct prefixes that take another token. A static reader has a row for
    each particle, including ended particles and duplicates. The reader knows which row of the
    language model belongs to each prefix.

    Attributes:
        example: index of each prefix's example in the batch, in ascending order.
        log_p: log-probabilities of the next token, at the sampling temperature.
        state: the proposal's state.
    """

    example: Int64[Tensor, "R"]
    log_p: Float[Tensor, "R V"]
    state: State

    @property
    def num_rows(self) -> int:
        """The number of prefixes, R."""
        return self.example.shape[0]


class TokenCounts(NamedTuple):
    """Numbers of tokens in one step, for each of B examples.

    Attributes:
        read: number of tokens that the language model computed.
        forced: number of forced tokens; equal prefixes count once.
        drafted: number of draft tokens in `read` (`smc._forward.read_ahead`).
        used: number of appended tokens that an earlier pass had computed as draft tokens.
        landed: number of tokens in `used` that the sampler chose; the others were forced.
    """

    read: Int64[Tensor, "B"]
    forced: Int64[Tensor, "B"]
    drafted: Int64[Tensor, "B"]
    used: Int64[Tensor, "B"]
    landed: Int64[Tensor, "B"]


class Extension(NamedTuple):
    """Result of extending P prefixes by a token and the forced tokens after it.

    Attributes:
        finished: whether the answer is complete.
        running: whether the prefix takes another token.
        row: index of the extended prefix among the new prefixes; undefined if it isn't running.
        tokens: the appended tokens; -1 beyond the last one, and in the first column if no token was
            chosen.
        forced: number of forced tokens.
        forced_log_p: log-probability of the forced tokens, at the sampling temperature.
        forced_log_g: log g of the last forced token; 0 if there is none.
        landed: whether the model had already computed all of these tokens as a draft.
        counts: numbers of tokens of each example that were computed, forced, drafted and used.
        failed: whether the model returned NaN or +inf, in static shapes.
        log_removed: log-probability of the next tokens that only the budget forbids, along the
            forced tokens (`smc._proposals.budget_effect`).
    """

    finished: Bool[Tensor, "P"]
    running: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    tokens: Int64[Tensor, "P K"]
    forced: Int64[Tensor, "P"]
    forced_log_p: Float64[Tensor, "P"]
    forced_log_g: Float64[Tensor, "P"]
    landed: Bool[Tensor, "P"]
    counts: TokenCounts
    failed: Bool[Tensor, ""]
    log_removed: Float64[Tensor, "P"]

    def spread(self, slots: Int64[Tensor, "M"], of: Int64[Tensor, "M"], count: int) -> Extension:
        """Copy results to `count` particle slots: prefix `of[i]` to slot `slots[i]`.

        Slots without a prefix are neither running nor finished.
        """

        def at(field: Tensor, nothing: int | float | bool) -> Tensor:
            shape = (count, *field.shape[1:])
            return torch.full(shape, nothing, dtype=field.dtype, device=field.device).index_copy(
                0, slots, field[of]
            )

        return Extension(
            at(self.finished, False), at(self.running, False), at(self.row, 0),
            at(self.tokens, -1), at(self.forced, 0), at(self.forced_log_p, 0.0),
            at(self.forced_log_g, 0.0), at(self.landed, False), self.counts, self.failed,
            at(self.log_removed, -torch.inf),
        )  # fmt: skip


class Reader(ABC, Generic[State]):
    """Base class of objects that extend the prefixes of a batch of B examples.

    A reader runs the language model on the prefixes, and updates the proposal's state.

    Args:
        proposal: the proposal.
        batch: automata and budgets.
        vocabulary_pass: implementation of the passes over the vocabulary.
        temperature: temperature of p_lm.
    """

    is_static: bool

    def __init__(
        self,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        temperature: float,
    ) -> None:
        self.proposal = proposal
        self.batch = batch
        self.vocabulary_pass = vocabulary_pass
        self.temperature = temperature

    @abstractmethod
    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Run the model on each prompt (token ids) once.

        Returns:
            The tokens that are forced before the first choice, for each of N particles of each
            example; and the prefixes after these tokens.
        """
        ...

    @abstractmethod
    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend prefix number `row[p]` by the token `token[p]`, for each running particle p."""
        ...

    @abstractmethod
    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is True; in static shapes, all indices."""
        ...

    @abstractmethod
    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Report whether NaN was found: raise an error, or keep the flag for a later check.

        An eager reader raises the error. A static reader returns the flag, because it doesn't
        synchronize with the host.
        """
        ...

    def rewind(self) -> None:
        """Remove all generated tokens from the language model's cache, after warm-up steps."""
        raise NotImplementedError(
            f"expected a StaticReader, because only static shapes have warm-up steps, got "
            f"{type(self).__name__}"
        )

    def guide(self, prefixes: Prefixes[State]) -> Factors:
        """Return the proposal's log g."""
        found = self.proposal.guide(prefixes.state, prefixes.log_p)
        if not isinstance(found, Factors):
            raise ValueError(
                f"expected a smc.Factors from `guide` of {self.proposal!r}, got "
                f"{type(found).__name__}; for a tensor with log g of every token return "
                "smc.Factors.dense(log_g)"
            )
        found.check(prefixes.log_p)
        return found

    def check(self, log_p: Float[Tensor, "*R V"], *rows: int) -> None:
        """Raise an error unless each row has one log-probability per token of the vocabulary."""
        check_log_p(log_p, self.batch.automata.vocabulary.size, *rows)

    def temper(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Return log-probabilities at the sampling temperature."""
        self.check(log_p)
        return at_temperature(log_p, self.temperature)


def check_log_p(log_p: Float[Tensor, "*R V"], size: int, *rows: int) -> None:
    """Raise an error unless a language model's result has the shape (*rows, `size`).

    Compiled code relies on the shape. The check doesn't synchronize with the host.
    """
    if not (isinstance(log_p, Tensor) and log_p.is_floating_point()):
        kind = log_p.dtype if isinstance(log_p, Tensor) else type(log_p).__name__
        raise ValueError(
            f"expected log-probabilities from the language model as a tensor of floats, got {kind}"
        )
    shape = tuple(log_p.shape)
    if shape[-1:] != (size,):
        raise ValueError(
            f"expected log-probabilities of {size} tokens, as in the vocabulary, from the language "
            f"model, got {shape[-1] if shape else 0}; if its embeddings were resized, create a new "
            "smc.TransformersLM and lift the constraint to its vocabulary"
        )
    if rows and shape[:-1] != rows:
        raise ValueError(
            f"expected log-probabilities of shape {(*rows, size)} from the language model, got "
            f"{shape}"
        )


def at_temperature(log_p: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, "R V"]:
    """Return log-probabilities of the distribution proportional to p^(1/T), in at least float32.

    If T is one, the given log-probabilities must already be normalized.
    """
    log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
    return log_p if temperature == 1 else (log_p / temperature).log_softmax(dim=1)


def count_of(
    example: Int64[Tensor, "M"], count: int, many: Int64[Tensor, "M"] | None = None
) -> Int64[Tensor, "B"]:
    """Count the items of each of `count` examples, or sum the numbers `many` of these items.

    Args:
        many: a number for each item; None to count every item once.
    """
    many = torch.ones_like(example) if many is None else many
    return example.new_zeros(count).index_add(0, example, many)


def check_nan(log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return the argument; raise FloatingPointError if it contains NaN or +inf.

    The check sums each row. A sum is NaN if one of its terms is, so a single pass without a copy is
    enough.
    """
    refuse_nan(has_nan(log_p).any())
    return log_p


def has_nan(log_p: Float[Tensor, "R V"]) -> Bool[Tensor, "R"]:
    """Return True for rows that contain NaN or +inf."""
    # A sum over the vocabulary overflows in half precision, so it is computed in float32.
    wide = torch.promote_types(log_p.dtype, torch.float32)
    return ~(log_p.sum(dim=1, dtype=wide) < torch.inf)


def refuse_nan(found: Bool[Tensor, ""], whose: str = "the language model") -> None:
    """Raise FloatingPointError if `found` is True, with a host synchronization."""
    if bool(found):
        raise FloatingPointError(
            f"expected log-probabilities from {whose}, got NaN or +inf; check the weights and the "
            "dtype of a language model (try float32 or bfloat16), or the arithmetic of a proposal"
        )
