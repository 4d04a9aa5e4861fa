"""Product of an HMM with a constraint: the probability of completion within a budget.

Let s be the state of a deterministic token automaton, r the number of tokens left, and h the hidden
state that emitted the last token. Let beta_r(h, s) be the probability that the next tokens complete
a text within r tokens. It satisfies (docs/design.md, section 7; the lookahead of arXiv 2606.01926
and of Ctrl-G, arXiv 2406.13892)

    u_r(h, s)    = sum over classes c allowed in s of  B_class[c, h] · beta_{r-1}(h, delta(s, c))
    beta_r(h, s) = sum over h' of  A(h, h') u_r(h', s)                          for s != final
    beta_r(h, final) = 1 for r >= 0,     beta_0(h, s) = 0 for the others

where B_class[c, h] = P(token is in class c | h). EOS is the class that leads to `final`. Tables of
beta are indexed by the *remaining* budget, so one table can be used for all budgets up to its
length. The automaton must be deterministic, so that each accepted text counts once.

**Scale.** beta may be as small as the probability of the remaining text (1e-150 for fixed text of
40 tokens). Each row over h is therefore stored as exp(log_scale) · b with max b = 1. Rows are
converted to a common scale before they are added, so float32 is sufficient for any length.

**Cost.** Classes that lead from s to the same state are one edge, and edges with equal sets of
classes share one row of emission mass. The masses of all classes take O(V H), once per automaton.
Each pair (r, s) that needs a separate row takes O(H) per edge of s, O(H²) for the transition, and H
numbers of memory. Pairs don't need a row if the end is out of reach, if the given budgets never
lead to them, or if the row of (r - 1, s) is still correct (`hmm._recursion`). Rows stop changing
beyond the longest text of a finite language, or when longer texts add a negligible amount. Once no
row changes, the table can be used for every budget.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gcd import AutomatonBatch, ConstraintError, TokenAutomaton, Vocabulary
from hmm._edges import Edges, class_emission
from hmm._eventual import eventually
from hmm._kernels.lookahead import Tables
from hmm._kernels.recursion import COMPUTED
from hmm._model import HMM
from hmm._recursion import Completion, Start, completion, find_needed

MAX_BYTES = 2 << 30
"""Default limit on the memory of a table, in bytes."""
_DERIVED = ("compiled", "without_budget")


@dataclass(frozen=True, eq=False)
class LookaheadTable:
    """Table of completion probabilities beta_r(h, s) for some automata, on the HMM's device.

    beta_r(h, s) is the probability that a text is completed within r tokens, from HMM state h and
    automaton state s. An automaton that occurs several times in the batch is stored once.

    Attributes:
        hmm: the model.
        batch: the automata, whose states are numbered consecutively.
        number: for each state of the batch, its number in the table.
        class_emission: P(token is in the class | h). The classes of the distinct automata are
            numbered consecutively.
        first_class: number of the first class of each automaton of the batch.
        completion: beta for each remaining budget and state of the table.
        beta_unbounded: beta without a budget; None unless it was requested.
    """

    hmm: HMM
    batch: AutomatonBatch
    number: Int64[Tensor, "states"]
    class_emission: Float[Tensor, "classes H"]
    first_class: Int64[Tensor, "automata"]
    completion: Completion
    beta_unbounded: Completion | None = None

    @property
    def max_remaining(self) -> int:
        """Largest remaining budget r for which beta_r is stored."""
        return self.completion.entry.shape[0] - 1

    @property
    def settled(self) -> bool:
        """True if beta_r doesn't change for larger r, so that the table is valid for any budget."""
        return self.completion.settled

    @property
    def num_rows(self) -> int:
        """Number of stored rows; a row has beta_r(h, s) of all h, for one r and s."""
        return self.completion.b.shape[0] - COMPUTED

    @property
    def num_bytes(self) -> int:
        """Memory of the table in bytes."""
        parts = (*self.completion[:3], *(self.beta_unbounded or ())[:3], self.class_emission)
        return sum(part.numel() * part.element_size() for part in parts)

    @cached_property
    def compiled(self) -> Tables:
        """The arrays of the table that compiled loops on the CPU use."""
        batch, completion = self.batch, self.completion
        return Tables(
            batch.automaton_of.numpy(),
            batch.first_state.numpy(),
            batch.row_start.numpy(),
            batch.num_classes.numpy(),
            batch.delta_flat.numpy(),
            batch.steps_after_flat.numpy(),
            self.number.numpy(),
            completion.entry.numpy(),
            completion.b.numpy(),
            completion.log_scale.numpy(),
            completion.settled,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without derived attributes, which can't be pickled."""
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @cached_property
    def without_budget(self) -> LookaheadTable:
        """A table that has beta without a budget in place of beta_r, for every remaining budget r.

        The functions of `hmm._lookahead` accept it as any other table. They then give the
        probability of completion at any length, for the tokens that fit into the budget.

        Raises:
            ValueError: the table was made without `eventual`.
        """
        if self.beta_unbounded is None:
            raise ValueError(
                "expected a lookahead table with beta_unbounded, got one without; pass "
                "eventual=True to lookahead_table"
            )
        return replace(self, completion=self.beta_unbounded, beta_unbounded=None)

    def row(
        self, remaining: Int64[Tensor, "*N"], states: Int64[Tensor, "*N"]
    ) -> Int64[Tensor, "*N"]:
        """Return the index of the row with beta_r for each pair of r and a state of the table.

        The index is -1 for pairs without a row. A negative r counts as 0, where only texts in the
        state `final` are complete.
        """
        level = remaining.clamp(min=0, max=self.max_remaining)
        found = self.completion.entry[level, states].long()
        return found if self.settled else torch.where(remaining > self.max_remaining, -1, found)


def lookahead_table(
    hmm: HMM,
    automata: Any,
    max_remaining: int,
    *,
    budgets: Sequence[Collection[int]] | None = None,
    eventual: bool = False,
    tolerance: float | int = 1e-6,
    max_bytes: int = MAX_BYTES,
) -> LookaheadTable:
    """Compute the table of beta_r for r = 0 .. max_remaining.

    Args:
        hmm: the model. The table has the model's device and type.
        automata: a `TokenAutomaton`, or an `AutomatonBatch` on the model's device.
        max_remaining: maximum number of tokens, including EOS, that may be left after a token.
        budgets: for each automaton, the budgets of the texts to sample. Pairs (r, s) that no text
            with such a budget reaches from the initial state are excluded from the table. None
            excludes no pairs.
        eventual: whether to compute also the probability of completion without a budget
            (`hmm._eventual`).
        tolerance: relative change below which beta_r of a state reuses the stored row of r - 1. The
            row is reused if none of its H values changes by more than this fraction. The relative
            error of beta_r is then at most (1 + tolerance)^r - 1. With 0, only equal rows are
            reused.
        max_bytes: limit on the memory of the table.

    Raises:
        ConstraintError: an automaton is not a token automaton, or is on another device; its
            vocabulary isn't the HMM's; the HMM is in half precision; the table would exceed
            `max_bytes`; or a number is out of range.
    """
    if max_remaining < 1:
        raise ConstraintError(f"expected max_remaining to be at least 1, got {max_remaining}")
    if not 0 <= tolerance < 1:
        raise ConstraintError(f"expected tolerance to be in [0, 1), got {tolerance}")
    batch = deterministic(automata, hmm.device)
    _check_model(hmm, batch.vocabulary)
    if budgets is not None and not (len(budgets) == len(batch) and all(budgets)):
        raise ConstraintError(
            f"expected at least one budget for each of {len(batch)} automata, got "
            f"{[len(each) for each in budgets]} budgets"
        )
    if hmm.device != batch.device:
        raise ConstraintError(
            f"expected an HMM on {batch.device}, the device of the automata, got one on "
            f"{hmm.device}; move it with hmm.to({str(batch.device)!r})"
        )
    distinct = list(dict.fromkeys(batch.automata))
    index = {automaton: number for number, automaton in enumerate(distinct)}
    distinct_of = [index[automaton] for automaton in batch.automata]
    first_state = np.cumsum([0, *(automaton.num_states for automaton in distinct)])
    first_class = np.cumsum([0, *(automaton.num_classes for automaton in distinct)])
    numbers = [first_state[u] + np.arange(distinct[u].num_states) for u in distinct_of]

    starts = None if budgets is None else _starts(batch.automata, budgets)
    masses = [class_emission(hmm, automaton) for automaton in distinct]
    edges = Edges.of(distinct, masses)
    needed = find_needed(edges, max_remaining, starts)
    _check_memory(hmm, distinct, needed, eventual, max_bytes)
    return LookaheadTable(
        hmm=hmm,
        batch=batch,
        number=torch.tensor(np.concatenate(numbers), dtype=torch.int64, device=hmm.device),
        class_emission=torch.cat(masses),
        first_class=torch.tensor(first_class[distinct_of], dtype=torch.int64, device=hmm.device),
        completion=completion(hmm, edges, needed, float(tolerance)),
        beta_unbounded=eventually(hmm, edges, float(tolerance)) if eventual else None,
    )


def check_table(
    hmm: HMM,
    automata: Sequence[TokenAutomaton],
    budgets: Sequence[int],
    *,
    eventual: bool = False,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Raise the errors that `lookahead_table` would raise, without computing the table."""
    distinct = list(dict.fromkeys(automata))
    _check_model(hmm, distinct[0].vocabulary)
    _check_memory(hmm, distinct, _find_needed(hmm, automata, budgets), eventual, max_bytes)


def _find_needed(
    hmm: HMM, automata: Sequence[TokenAutomaton], budgets: Sequence[int]
) -> Bool[np.ndarray, "levels S"]:
    """Find the pairs (remaining budget, state) that texts within these budgets can reach.

    The result is true for the pairs that need a row of beta.
    """
    distinct = list(dict.fromkeys(automata))
    # Only the edges are needed, which don't depend on emissions.
    edges = Edges.of(distinct, [hmm.initial.new_zeros(each.num_classes, 1) for each in distinct])
    starts = _starts(automata, [(budget,) for budget in budgets])
    return find_needed(edges, max(1, max(budgets) - 1), starts)


def _check_model(hmm: HMM, vocabulary: Vocabulary) -> None:
    if hmm.dtype not in (torch.float32, torch.float64):
        raise ConstraintError(
            f"expected an HMM in float32 or float64, got {str(hmm.dtype).removeprefix('torch.')}; "
            "pass hmm.to(dtype=torch.float32, emission_dtype=hmm.emission.dtype)"
        )
    if hmm.num_tokens != vocabulary.size:
        raise ConstraintError(
            f"expected an HMM over {vocabulary.size} tokens, as in the constraint's vocabulary, "
            f"got one over {hmm.num_tokens} tokens; distill the HMM from a model with this "
            "vocabulary, or lift the constraint to the HMM's vocabulary"
        )


def _starts(automata: Sequence[TokenAutomaton], budgets: Sequence[Collection[int]]) -> list[Start]:
    """List each pair of an automaton's initial state and one of its budgets.

    States are numbered consecutively over the distinct automata.
    """
    first, total = {}, 0
    for automaton in dict.fromkeys(automata):
        first[automaton] = total
        total += automaton.num_states
    return [
        Start(int(first[automaton] + automaton.initial), budget)
        for automaton, each in zip(automata, budgets, strict=True)
        for budget in each
    ]


def deterministic(automata: Any, device: torch.device) -> AutomatonBatch:
    """Convert one or several token automata, which are deterministic, to a batch on a device."""
    if isinstance(automata, AutomatonBatch):
        return automata
    if isinstance(automata, TokenAutomaton):
        return AutomatonBatch([automata], device)
    raise ConstraintError(
        f"expected a TokenAutomaton or an AutomatonBatch for the product with an HMM, got "
        f"{type(automata).__name__}; convert an Automaton with gcd.lift"
    )


def table_bytes(
    hmm: HMM,
    automata: Sequence[TokenAutomaton],
    needed: Bool[np.ndarray, "levels S"],
    eventual: bool = False,
) -> int:
    """Return the bytes of a lookahead table."""
    classes = sum(automaton.num_classes for automaton in automata)
    row = hmm.num_states * hmm.initial.element_size()
    rows = COMPUTED + int(needed.sum()) + (needed.shape[1] if eventual else 0)
    return rows * (row + 8) + 4 * needed.size + classes * row


def bytes_of_table(
    hmm: HMM, automaton: TokenAutomaton, budget: int, *, eventual: bool = False
) -> int:
    """Return the bytes of the lookahead table for one automaton and one budget, without making it.

    A table for several automata takes at most the sum of their bytes.
    """
    return table_bytes(hmm, [automaton], _find_needed(hmm, [automaton], [budget]), eventual)


def _check_memory(
    hmm: HMM,
    automata: Sequence[TokenAutomaton],
    needed: Bool[np.ndarray, "levels S"],
    eventual: bool,
    max_bytes: int,
) -> None:
    size = table_bytes(hmm, automata, needed, eventual)
    if size > max_bytes:
        raise ConstraintError(
            f"expected a lookahead table of at most {max_bytes / 2**20:.0f} MiB, got "
            f"{size / 2**20:.0f} MiB for {needed.shape[1]} automaton states, "
            f"{needed.shape[0] - 1} tokens and {hmm.num_states} hidden states; lower the budget or "
            "max_rows, use fewer states, or raise max_bytes"
        )
