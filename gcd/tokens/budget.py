"""Token budgets: which tokens leave a text that can still be finished in time.

A budget of n counts generated tokens, EOS included. With r tokens left, a state is alive if
`final` can be reached from it in at most r tokens. Two forms of the same answer:

**The passes of arXiv 2606.01926**, for any automaton, one boolean vector for each r:

    alive_0 = accepting;    alive_r = 1{ T_out ( (T_in alive_{r-1}) o (B_f 1) ) }

Entry s of `alive_r` says that *exactly* r tokens lead from s to an accepting state. That serves
exact-length languages; where every accepting state has a loop, as `final` has under EOS, exactly
and at most are the same. O(n E).

**One integer for each state**, where they are: `steps_to_accept[s]`, found by one breadth-first
pass, and alive_r = 1{steps_to_accept <= r}. The mask over next tokens needs no table over time:

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

Once r exceeds the longest distance this is the mask of locally constrained decoding. `BudgetMask`
computes it on the device, per row: a gather over classes, a comparison, a gather over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd.errors import ConstraintError, InfeasibleBudgetError
from gcd.paper import TensorAutomaton
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.bitmask import pack
from gcd.tokens.token_automaton import UNREACHABLE, TokenAutomaton


def forward_pass(
    automaton: TensorAutomaton, length: int, classes: Bool[Tensor, "length C"] | None = None
) -> Bool[Tensor, "steps S"]:
    """Row t: the states that t tokens lead to from the initial ones; length + 1 rows.

    Args:
        automaton: any automaton.
        length: number of tokens.
        classes: classes that the token at each step may have; None for any at every step.
    """
    reached = [automaton.initial]
    for t in range(length):
        reached.append(automaton.forward(reached[-1], None if classes is None else classes[t]))
    return torch.stack(reached)


def backward_pass(automaton: TensorAutomaton, length: int) -> Bool[Tensor, "steps S"]:
    """Row r: the states from which exactly r tokens lead to an accepting one; length + 1 rows."""
    alive = [automaton.accepting]
    for _ in range(length):
        alive.append(automaton.backward(alive[-1]))
    return torch.stack(alive)


def allowed_classes(
    automaton: TensorAutomaton,
    states: Bool[Tensor, "*N S"],
    alive_after: Bool[Tensor, "*N S"],
) -> Bool[Tensor, "*N C"]:
    """Classes of the next token after which some state of the set is alive.

    Args:
        automaton: any automaton.
        states: the states that the prefix leads to, as sets.
        alive_after: with r tokens left, row r - 1 of the backward pass.
    """
    return automaton.classes_between(states, alive_after)


def steps_to_accept(automaton: TensorAutomaton) -> Int32[Tensor, "S"]:
    """Fewest tokens from each state to an accepting one; `UNREACHABLE` if there is no way.

    Where accepting states loop, `backward_pass(...)[r] == (steps_to_accept <= r)`.
    """
    steps = torch.full(
        (automaton.num_states,), UNREACHABLE, dtype=torch.int32, device=automaton.device
    )
    newly = automaton.accepting
    distance = 0
    while bool(newly.any()):
        steps = torch.where(newly, distance, steps)
        newly = automaton.backward(newly) & (steps == UNREACHABLE)
        distance += 1
    return steps


def check_budget(automaton: TokenAutomaton, budget: int, where: str = "") -> None:
    """Refuse a budget that no text of the language fits into, before anything is generated.

    Raises:
        InfeasibleBudgetError: both numbers in the message, after `where`.
    """
    needed = int(automaton.steps_to_accept[automaton.initial])
    if budget < needed:
        raise InfeasibleBudgetError(needed, budget, where)


class BudgetMask:
    """Next tokens that leave a text which can be finished within the remaining budget.

    Args:
        automata: one automaton, or a batch of them.
        budget: tokens of a whole text, EOS included; one number, or one for each automaton.

    Raises:
        InfeasibleBudgetError: if some budget is below `steps_to_accept` of its initial state.
        ConstraintError: if there are not as many budgets as automata.

    Attributes:
        batch: the automata; states below are numbered through as in it.
        budget: the budget of each automaton.
    """

    batch: AutomatonBatch
    budget: Int64[Tensor, "B"]

    def __init__(
        self,
        automata: AutomatonBatch | TokenAutomaton,
        budget: int | Sequence[int] | Int[Tensor, "*B"],
    ) -> None:
        single = isinstance(automata, TokenAutomaton)
        self.batch = (
            AutomatonBatch([automata]) if isinstance(automata, TokenAutomaton) else automata
        )
        budgets = torch.as_tensor(budget, dtype=torch.int64)
        if budgets.ndim == 0:
            budgets = budgets.expand(len(self.batch))
        if budgets.shape != (len(self.batch),):
            raise ConstraintError(
                f"expected one budget for each of {len(self.batch)} automata, "
                f"got shape {tuple(budgets.shape)}"
            )
        for index, (automaton, tokens) in enumerate(
            zip(self.batch.automata, budgets.tolist(), strict=True)
        ):
            check_budget(automaton, tokens, "" if single else f"example {index}")
        self.budget = budgets.to(self.batch.device)
        self._classes = torch.arange(
            int(self.batch.num_classes.max()), device=self.batch.device, dtype=torch.int64
        )

    def class_mask(
        self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]
    ) -> Bool[Tensor, "N C"]:
        """The mask over classes of each row's own automaton; False past its number of classes.

        Args:
            states: present states; rows with state -1 get no class at all.
            remaining: tokens left, the next one and EOS included.
        """
        # No budget reaches what cannot be reached.
        left = remaining.long().clamp(max=UNREACHABLE)
        return self.steps_after(states) < left.unsqueeze(-1)

    def steps_after(self, states: Int[Tensor, "N"]) -> Int32[Tensor, "N C"]:
        """Fewest tokens to the end after one of each class; `UNREACHABLE` where there is no way.

        Past a row's number of classes, and for rows with state -1, there is none.
        """
        batch = self.batch
        here = states.clamp(min=0)
        exists = self._classes < batch.num_classes[batch.automaton_of[here]].unsqueeze(-1)
        exists &= (states >= 0).unsqueeze(-1)
        entry = batch.row_start[here].unsqueeze(-1) + self._classes
        return torch.where(
            exists, batch.steps_after_flat[torch.where(exists, entry, 0)], UNREACHABLE
        )

    def mask(self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]) -> Bool[Tensor, "N V"]:
        """Tokens v with steps_to_accept[delta(s, v)] <= r - 1, for each row's state s and r.

        Args:
            states: present states; rows with state -1 allow nothing.
            remaining: tokens left, the next one and EOS included.
        """
        return self._over_tokens(states, self.class_mask(states, remaining))

    def lcd_mask(self, states: Int[Tensor, "N"]) -> Bool[Tensor, "N V"]:
        """Tokens after which the text can be completed at some length, whatever the budget."""
        return self._over_tokens(states, self.lcd_class_mask(states))

    def lcd_class_mask(self, states: Int[Tensor, "N"]) -> Bool[Tensor, "N C"]:
        """`lcd_mask` over classes of each row's own automaton."""
        return self.class_mask(states, torch.full_like(states, UNREACHABLE))

    def packed(self, states: Int[Tensor, "N"], remaining: Int[Tensor, "N"]) -> Int32[Tensor, "N W"]:
        """`mask` as packed words (see `gcd.tokens.bitmask`)."""
        return pack(self.mask(states, remaining))

    def _over_tokens(
        self, states: Int[Tensor, "N"], classes: Bool[Tensor, "N C"]
    ) -> Bool[Tensor, "N V"]:
        class_of = self.batch.class_of
        if len(self.batch) == 1:
            return classes.index_select(1, class_of[0])
        rows = class_of.index_select(0, self.batch.automaton_of[states.clamp(min=0)])
        return classes.gather(1, rows.long())
