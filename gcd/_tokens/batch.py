"""Batches of token automata as one set of tensors, with their steps and budget masks.

The states of all automata are numbered consecutively, beginning with the first automaton's states.
So a single integer per particle identifies both its automaton and its state. The array `delta_flat`
concatenates the rows of all transition tables, and the row of state s begins at `row_start[s]`. Its
entries are states numbered as in their own automaton, so that

    next(s, v) = first_state[s]
                 + delta_flat[ row_start[s] + class_of[automaton_of[s], v] ]

takes a few gathers without host synchronization, for automata of any sizes. Examples with the same
automaton share its table, which may take hundreds of megabytes. Appending automata to a batch
doesn't change the numbers of the existing states.

**Masks.** A budget is the maximum number of generated tokens, EOS included. With r tokens left, a
text in state s can be completed if `steps_to_accept[s] <= r`, so the mask doesn't need a table over
r:

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

If r exceeds the longest distance, this is the mask of locally constrained decoding (LCD). For every
entry of `delta_flat`, `steps_after_flat` has `steps_to_accept` of the next state (`UNREACHABLE` if
there is none). So `BudgetMask` takes a gather over classes, a comparison, and a gather over tokens.
Tests compare it with the backward pass of arXiv 2606.01926, which has one boolean vector for each
r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd._arguments import check_indices, check_tensors
from gcd._errors import ConstraintError
from gcd._tokens.distances import UNREACHABLE, fits
from gcd._tokens.token_automaton import TokenAutomaton, check_budget
from gcd._tokens.vocabulary import BITS, Vocabulary, num_words

DEAD = -1
"""State after a token that is not allowed. Every token leads from it to itself."""


class TokenClasses(NamedTuple):
    """Mappings between tokens and their classes."""

    of: Int32[Tensor, "B V"]  # class of each token, under each of the B automata
    tokens: Int32[Tensor, "B V"]  # all token ids, ordered by class
    # The tokens of class c are `tokens[b, start[b, c] : start[b, c + 1]]`. If an automaton has
    # fewer classes than another automaton, its row is padded with V.
    start: Int64[Tensor, "B C1"]

    @classmethod
    def singletons(cls, size: int, device: torch.device | str | None = None) -> TokenClasses:
        """Return token classes, for one automaton, in which every token is its own class."""
        every = torch.arange(size + 1, device=device or "cpu").unsqueeze(0)
        tokens = every[:, :size].int()
        return cls(tokens, tokens, every)

    @property
    def are_tokens(self) -> bool:
        """True if `singletons` made these classes, one per token; needs no synchronization."""
        return self.of is self.tokens


@dataclass(frozen=True, eq=False)
class AutomatonBatch:
    """Tensors of B token automata over one vocabulary, with S states in total.

    Attributes:
        automata: the automata, one per example; the same automaton may occur more than once.
        device: device of the tensors; the CPU by default.
        class_of: class of each token in each automaton.
        delta_flat: next states, numbered from 0 in each automaton, -1 for none; the row of state s
            is `delta_flat[row_start[s] : row_start[s] + num_classes[automaton_of[s]]]`.
        steps_after_flat: `steps_to_accept` of the state in each entry of `delta_flat`.
        row_start: where each state's row starts in `delta_flat`.
        automaton_of: index of the automaton that each state belongs to.
        first_state: for each state, the number of its automaton's first state.
        num_classes: number of token classes of each automaton.
        initial: initial state of each automaton.
        final: for each automaton, the state after the end of the text.
        is_final: whether a state is a final state.
        accepting: whether the tokens that lead to a state spell a string of the language.
        steps_to_accept: fewest tokens, EOS included, from each state to the end.
        offset: number of the first state of each automaton, followed by S.

    Raises:
        ConstraintError: if there are no automata, or their vocabularies differ.
    """

    automata: Sequence[TokenAutomaton]
    device: torch.device | str | None = None
    class_of: Int32[Tensor, "B V"] = field(init=False)
    delta_flat: Int32[Tensor, "entries"] = field(init=False)
    steps_after_flat: Int32[Tensor, "entries"] = field(init=False)
    row_start: Int64[Tensor, "S"] = field(init=False)
    automaton_of: Int64[Tensor, "S"] = field(init=False)
    first_state: Int64[Tensor, "S"] = field(init=False)
    num_classes: Int64[Tensor, "B"] = field(init=False)
    initial: Int64[Tensor, "B"] = field(init=False)
    final: Int64[Tensor, "B"] = field(init=False)
    is_final: Bool[Tensor, "S"] = field(init=False)
    accepting: Bool[Tensor, "S"] = field(init=False)
    steps_to_accept: Int32[Tensor, "S"] = field(init=False)
    offset: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        automata = tuple(self.automata)
        _check_vocabularies(automata)
        sizes = np.array([a.num_states for a in automata])
        widths = np.array([a.num_classes for a in automata])
        offset = np.concatenate([[0], np.cumsum(sizes)])
        owner = np.repeat(np.arange(len(automata)), sizes)
        is_final = np.zeros(offset[-1], np.bool_)
        is_final[offset[1:] - 1] = True
        distinct = {id(a): a for a in automata}
        starts = np.cumsum([0, *(a.num_states * a.num_classes for a in distinct.values())])
        start_of = dict(zip(distinct, starts[:-1].tolist(), strict=True))
        steps_after = [a.steps_after().ravel() for a in distinct.values()]
        row_start = [start_of[id(a)] + a.num_classes * np.arange(a.num_states) for a in automata]
        arrays = {
            "class_of": (np.stack([a.class_of for a in automata]), torch.int32),
            "delta_flat": (
                np.concatenate([a.delta.ravel() for a in distinct.values()]),
                torch.int32,
            ),
            "steps_after_flat": (np.concatenate(steps_after), torch.int32),
            "row_start": (np.concatenate(row_start), torch.int64),
            "automaton_of": (owner, torch.int64),
            "first_state": (offset[owner], torch.int64),
            "num_classes": (widths, torch.int64),
            "initial": (offset[:-1] + np.array([a.initial for a in automata]), torch.int64),
            "final": (offset[1:] - 1, torch.int64),
            "is_final": (is_final, torch.bool),
            "accepting": (np.concatenate([a.accepting for a in automata]), torch.bool),
            "steps_to_accept": (np.concatenate([a.steps_to_accept for a in automata]), torch.int32),
        }
        set_field = partial(object.__setattr__, self)
        set_field("automata", automata)
        set_field("offset", tuple(offset.tolist()))
        for name, (array, dtype) in arrays.items():
            set_field(name, torch.tensor(array, dtype=dtype, device=self.device or "cpu"))
        set_field("device", self.delta_flat.device)

    @cached_property
    def classes(self) -> TokenClasses:
        """Tokens of each class; computed once."""
        start = np.full((len(self), self.widest + 1), self.vocabulary.size)
        for row, automaton in zip(start, self.automata, strict=True):
            row[: automaton.num_classes + 1] = np.cumsum([0, *automaton.tokens_per_class])
        tokens = np.stack([automaton.tokens_by_class for automaton in self.automata])
        return TokenClasses(
            self.class_of,
            torch.tensor(tokens, device=self.device),
            torch.tensor(start, device=self.device),
        )

    @cached_property
    def reach(self) -> Int64[Tensor, "S"]:
        """Largest `steps_to_accept` after any allowed token of each state; computed once."""
        arrays = np.concatenate([automaton.reach for automaton in self.automata])
        return torch.tensor(arrays, dtype=torch.int64, device=self.device)

    @cached_property
    def widest(self) -> int:
        """Largest number of classes that an automaton has."""
        return max(automaton.num_classes for automaton in self.automata)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.automata[0].vocabulary

    @property
    def num_states(self) -> int:
        return self.offset[-1]

    def __len__(self) -> int:
        """Return the number of automata."""
        return len(self.automata)

    def next(self, states: Int[Tensor, "*N"], tokens: Int[Tensor, "*N"]) -> Int64[Tensor, "*N"]:
        """Return the state after each token; -1 if the token is not allowed or the state is -1.

        Args:
            states: states of this batch, or -1.
            tokens: one token id of the vocabulary for each state.

        Raises:
            ValueError: if a state or a token is out of range; values on a GPU are not checked.
        """
        indices = (states, self.num_states, "state", -1), (tokens, self.vocabulary.size, "token", 0)
        check_tensors((), *indices)
        here = states.clamp(min=0)
        classes = self.class_of[self.automaton_of[here], tokens]
        after = self.delta_flat[self.row_start[here] + classes]
        return torch.where((states >= 0) & (after >= 0), after + self.first_state[here], DEAD)

    def check_states(self, states: Int[Tensor, "*N"]) -> None:
        """Raise `ValueError` unless these are states of this batch, or -1."""
        check_indices(states, self.num_states, "state", -1)

    def entries(self, states: Int[Tensor, "N"]) -> Int64[Tensor, "N C"]:
        """Return the indices in `delta_flat` of each state's row, class by class.

        If a state's automaton has fewer than C classes, its remaining entries are -1, and so are
        all entries for state -1.
        """
        here = states.clamp(min=0)
        classes = torch.arange(self.widest, device=self.device)
        exists = classes < self.num_classes[self.automaton_of[here]].unsqueeze(-1)
        exists &= (states >= 0).unsqueeze(-1)
        return torch.where(exists, self.row_start[here].unsqueeze(-1) + classes, -1)

    def next_by_class(self, states: Int[Tensor, "N"]) -> Int64[Tensor, "N C"]:
        """Return the state after one token of each class; -1 if the class is not allowed."""
        entries = self.entries(states)
        after = self.delta_flat[entries.clamp(min=0)]
        first = self.first_state[states.clamp(min=0)].unsqueeze(-1)
        return torch.where((entries >= 0) & (after >= 0), after + first, DEAD)


def pack(mask: Bool[Tensor, "*N V"]) -> Int32[Tensor, "*N W"]:
    """Pack boolean masks (true: allowed) over the last axis: V tokens become W words.

    Serving engines (vLLM, SGLang) and grammar engines (XGrammar, llguidance) exchange masks in one
    layout: row-major int32 words, in which bit `v % 32` of word `v // 32` is 1 if token v is
    allowed. Bits past the last token are 0. A mask of 152,000 tokens takes 19 kB.
    """
    num_tokens = mask.shape[-1]
    padding = num_words(num_tokens) * BITS - num_tokens
    bits = torch.nn.functional.pad(mask, (0, padding)) if padding else mask
    shifts = torch.arange(BITS, dtype=torch.int32, device=mask.device)
    # Each word is a sum of distinct powers of two; bit 31 is the sign, so no carry occurs.
    return (bits.unflatten(-1, (-1, BITS)).to(torch.int32) << shifts).sum(-1, dtype=torch.int32)


class BudgetMask:
    """Mask that allows a token only if the text can then be completed within the budget.

    Args:
        automata: one automaton, or a batch of them.
        budget: maximum number of tokens of a whole text, EOS included; one number, or one for each
            automaton.

    Raises:
        InfeasibleBudgetError: if a budget is below `steps_to_accept` of its automaton's initial
            state.
        OverlongBudgetError: if a text of this many tokens may be longer than `max_bytes`.
        ConstraintError: if there are not as many budgets as automata.

    Attributes:
        batch: the automata. All methods number states as this batch does.
        budget: the budget of each automaton.
    """

    batch: AutomatonBatch
    budget: Int64[Tensor, "B"]

    def __init__(
        self,
        automata: AutomatonBatch | TokenAutomaton,
        budget: int | Sequence[int] | Int[Tensor, "*B"],
    ) -> None:
        self.batch = (
            AutomatonBatch([automata]) if isinstance(automata, TokenAutomaton) else automata
        )
        budgets = torch.as_tensor(budget, dtype=torch.int64, device="cpu")
        if budgets.ndim == 0:
            budgets = budgets.expand(len(self.batch))
        if budgets.shape != (len(self.batch),):
            raise ConstraintError(
                f"expected one budget for each of {len(self.batch)} automata, got shape "
                f"{tuple(budgets.shape)}"
            )
        for index, (automaton, tokens) in enumerate(
            zip(self.batch.automata, budgets.tolist(), strict=True)
        ):
            check_budget(automaton, tokens, f"example {index}" if len(self.batch) > 1 else "")
        self.budget = budgets.to(self.batch.device)

    def class_mask(
        self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]
    ) -> Bool[Tensor, "N C"]:
        """Return the mask over classes of each batch row's automaton, padded with False.

        Args:
            states: current states; batch rows with state -1 allow no classes.
            remaining: tokens left, including the next token and EOS.

        Raises:
            ValueError: if a state is out of range, or `remaining` and `states` differ in length.
                States on a GPU are not checked.
        """
        shapes = (
            (states, tuple(states.shape[:1]), "states, one for each batch row"),
            (remaining, tuple(states.shape), "remaining tokens, one number for each state"),
        )
        numbers = (remaining, 1 << 63, "number of tokens", -(1 << 63))
        check_tensors(shapes, (states, self.batch.num_states, "state", -1), numbers)
        # No budget is large enough for unreachable states.
        left = remaining.long().clamp(max=UNREACHABLE)
        return fits(self.steps_after(states), left.unsqueeze(-1))

    def steps_after(self, states: Int[Tensor, "N"]) -> Int32[Tensor, "N C"]:
        """Return the fewest further tokens to the end after a token of each class.

        Entries are `UNREACHABLE` for classes that are not allowed or don't exist in a batch row's
        automaton, and for batch rows with state -1.
        """
        entries = self.batch.entries(states)
        steps = self.batch.steps_after_flat[entries.clamp(min=0)]
        return torch.where(entries >= 0, steps, UNREACHABLE)

    def mask(self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]) -> Bool[Tensor, "N V"]:
        """Return, for each batch row, the tokens v with steps_to_accept[delta(s, v)] <= r - 1.

        Args:
            states: current states; batch rows with state -1 allow no tokens.
            remaining: tokens left, including the next token and EOS.

        Raises:
            ValueError: as in `class_mask`.
        """
        return self._over_tokens(states, self.class_mask(states, remaining))

    def lcd_mask(self, states: Int[Tensor, "N"]) -> Bool[Tensor, "N V"]:
        """Return the mask without a budget: the tokens that the automaton allows (LCD)."""
        return self._over_tokens(states, self.lcd_class_mask(states))

    def lcd_class_mask(self, states: Int[Tensor, "N"]) -> Bool[Tensor, "N C"]:
        """Return the mask without a budget over the token classes of each row's automaton."""
        return self.class_mask(states, torch.full_like(states, UNREACHABLE))

    def packed(self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]) -> Int32[Tensor, "N W"]:
        """Return `mask` as packed words (`pack`)."""
        return pack(self.mask(states, remaining))

    def _over_tokens(
        self, states: Int[Tensor, "N"], classes: Bool[Tensor, "N C"]
    ) -> Bool[Tensor, "N V"]:
        class_of = self.batch.class_of
        if len(self.batch) == 1:
            return classes.index_select(1, class_of[0])
        rows = class_of.index_select(0, self.batch.automaton_of[states.clamp(min=0)])
        return classes.gather(1, rows.long())


def _check_vocabularies(automata: Sequence[TokenAutomaton]) -> None:
    if not automata:
        raise ConstraintError("expected at least one automaton in a batch, got none")
    first = automata[0].vocabulary
    for index, automaton in enumerate(automata):
        if automaton.vocabulary != first:
            raise ConstraintError(
                f"expected automata over one vocabulary ({first}), got {automaton.vocabulary} for "
                f"automaton {index}; lift all examples with the same vocabulary"
            )
