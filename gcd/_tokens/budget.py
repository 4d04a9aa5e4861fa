"""Token budgets: masks of tokens after which the text can still be completed in time.

A budget is the maximum number of generated tokens, EOS included. Let `steps_to_accept[s]` be the
fewest tokens from state s to `final`; one breadth-first search computes it for every state. With r
tokens left, a text in state s can be completed if `steps_to_accept[s] <= r`. So the mask over next
tokens doesn't need a table over r:

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

If r exceeds the longest distance, this is the mask of locally constrained decoding (LCD).
`BudgetMask` computes it on the device, for each batch row, by a gather over classes, a comparison,
and a gather over tokens. Tests compare it with the backward pass of arXiv 2606.01926, which has one
boolean vector for each r.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd._arguments import check_indices, check_shapes
from gcd._errors import ConstraintError
from gcd._tokens.batch import AutomatonBatch
from gcd._tokens.distances import UNREACHABLE, fits
from gcd._tokens.token_automaton import TokenAutomaton, check_budget
from gcd._tokens.vocabulary import BITS, num_words


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
        self.batch.check_states(states)
        check_shapes(
            (states, tuple(states.shape[:1]), "states, one for each batch row"),
            (remaining, tuple(states.shape), "remaining tokens, one number for each state"),
        )
        check_indices(remaining, 1 << 63, "number of tokens", least=-(1 << 63))
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
