"""The product of an HMM with a constraint: how probably a prefix is completed, by remaining budget.

With r tokens left, in state s of a deterministic token automaton, let the HMM's last token have
come from hidden state h. The probability that what follows completes a text within those r tokens
obeys (DESIGN.md, section 6; the lookahead of arXiv 2606.01926 and of Ctrl-G, arXiv 2406.13892)

    u_r(h, s)    = sum over classes c allowed in s of  B_class[c, h] · beta_{r-1}(h, delta(s, c))
    beta_r(h, s) = sum over h' of  A(h, h') u_r(h', s)                          for s != final
    beta_r(h, final) = 1 for r >= 0,     beta_0(h, s) = 0 for the others

where B_class[c, h] = P(the token is one of class c | h); EOS is the class that leads to `final`. It
is indexed by *remaining* budget, so one table serves all budgets up to its length. Each accepted
text is counted once because the automaton is deterministic; one in which a text has several paths
is refused.

**Scale.** beta falls like the probability of all the text that is still to come (1e-150 for a
literal of 40 tokens), so a row over h is stored as exp(log_scale) · b with max b = 1. Scales of the
successors are levelled before they are summed, so float32 serves for any length.

**Cost.** Classes that lead from s to the same state are one edge, and edges with equal sets of
classes share one row of emission mass. A row of the table takes O(E H) for the sums over edges and
O(S H²) for the transition (O(S H (K + M)) for Monarch factors); the class masses O(V H), once per
automaton. Memory: (R + 1) S (H numbers + one double). The recursion ends early when nothing moves
any more: at the latest beyond the longest text of a finite language, sooner where what longer texts
add is negligible. Such a table serves every budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.batch import AutomatonBatch
from gcd.errors import ConstraintError
from gcd.tensors import TensorAutomaton
from gcd.token_automaton import TokenAutomaton
from hmm.edges import Edges, class_emission
from hmm.model import HMM

MAX_BYTES = 2 << 30
"""What a table may take in memory unless told otherwise."""


@dataclass(frozen=True, eq=False)
class LookaheadTable:
    """beta_r(h, s) of some automata, `exp(log_scale[r, s]) · b[r, s, h]`, on the HMM's device.

    Automata that occur several times in the batch have one part of the table.

    Attributes:
        hmm: the model.
        batch: the automata; states are numbered through as in it.
        place: number of each state of the batch in the table.
        class_emission: P(token of the class | h), classes of the distinct automata numbered
            through.
        first_class: number of the first class of each automaton of the batch.
        class_size: tokens of each class.
        b: beta up to scale, at most 1; its maximum over h is 1 unless beta is zero everywhere.
        log_scale: log of the scale, -inf where beta is zero everywhere.
        settled: whether further rows would equal the last one, so that any budget is served.
    """

    hmm: HMM
    batch: AutomatonBatch
    place: Int64[Tensor, "states"]
    class_emission: Float[Tensor, "classes H"]
    first_class: Int64[Tensor, "automata"]
    class_size: Int64[Tensor, "classes"]
    b: Float[Tensor, "rows S H"]
    log_scale: Float64[Tensor, "rows S"]
    settled: bool

    @property
    def max_remaining(self) -> int:
        """The largest r that has a row of its own."""
        return self.b.shape[0] - 1

    @property
    def num_bytes(self) -> int:
        """Memory that the table takes."""
        parts = (self.b, self.log_scale, self.class_emission)
        return sum(part.numel() * part.element_size() for part in parts)

    def beta(self, remaining: int) -> Float64[Tensor, "states H"]:
        """beta_r(h, s), unscaled; for tests and small problems, as it may underflow."""
        row = self.row(torch.tensor(remaining, device=self.b.device))
        scale = self.log_scale[row][self.place].unsqueeze(-1).exp()
        return self.b[row][self.place].double() * scale

    def row(self, remaining: Int64[Tensor, "*N"]) -> Int64[Tensor, "*N"]:
        """The row that holds beta_r; negative budgets count as none, where only `final` is done."""
        return remaining.clamp(min=0, max=self.max_remaining)


def lookahead_table(
    hmm: HMM,
    automata: Any,
    max_remaining: int,
    *,
    tolerance: float | int = 1e-6,
    max_bytes: int = MAX_BYTES,
) -> LookaheadTable:
    """The table of beta_r for r = 0 .. max_remaining.

    Args:
        hmm: the model; the table has its device and its type.
        automata: a `TokenAutomaton`, or an `AutomatonBatch` on the HMM's device.
        max_remaining: most tokens that will ever be left, EOS included.
        tolerance: the recursion stops once r has reached the largest `steps_to_accept` and no entry
            moves by more than this share of itself; 0 stops where nothing moves at all.
        max_bytes: most memory that the table may take.

    Raises:
        ConstraintError: the automaton is not deterministic or not over tokens; it is over another
            vocabulary than the HMM, or on another device; the HMM is in half precision; the table
            would take too much memory.
    """
    if max_remaining < 1:
        raise ConstraintError(f"a budget is at least one token, got {max_remaining}")
    if not 0 <= tolerance < 1:
        raise ConstraintError(f"tolerance is a share of a value, in [0, 1), got {tolerance}")
    if hmm.dtype not in (torch.float32, torch.float64):
        raise ConstraintError(
            f"the HMM is in {str(hmm.dtype).removeprefix('torch.')}, too coarse for the recursion; "
            "give hmm.to(dtype=torch.float32, emission_dtype=hmm.emission.dtype)"
        )
    batch = deterministic(automata, hmm.device)
    if hmm.num_tokens != batch.vocabulary.size:
        raise ConstraintError(
            f"the HMM is over {hmm.num_tokens} tokens, the constraint over a vocabulary of "
            f"{batch.vocabulary.size}; distil the HMM from a model with this vocabulary, or lift "
            "the constraint to the HMM's"
        )
    if hmm.device != batch.device:
        raise ConstraintError(
            f"the HMM is on {hmm.device}, the automata on {batch.device}; move the model: "
            f"hmm.to({str(batch.device)!r})"
        )
    distinct = list(dict.fromkeys(batch.automata))
    _check_memory(hmm, distinct, max_remaining, max_bytes)
    index = {automaton: number for number, automaton in enumerate(distinct)}
    which = [index[automaton] for automaton in batch.automata]
    first_state = np.cumsum([0, *(automaton.num_states for automaton in distinct)])
    first_class = np.cumsum([0, *(automaton.num_classes for automaton in distinct)])
    place = [first_state[u] + np.arange(distinct[u].num_states) for u in which]

    masses = [class_emission(hmm, automaton) for automaton in distinct]
    edges = Edges.of(distinct, masses)
    b, log_scale, settled = _recursion(hmm, edges, max_remaining, float(tolerance))
    sizes = np.concatenate([automaton.tokens_per_class for automaton in distinct])
    return LookaheadTable(
        hmm=hmm,
        batch=batch,
        place=torch.tensor(np.concatenate(place), dtype=torch.int64, device=hmm.device),
        class_emission=torch.cat(masses),
        first_class=torch.tensor(first_class[which], dtype=torch.int64, device=hmm.device),
        class_size=torch.tensor(sizes, dtype=torch.int64, device=hmm.device),
        b=b,
        log_scale=log_scale,
        settled=settled,
    )


def deterministic(automata: Any, device: torch.device) -> AutomatonBatch:
    """These automata as a batch, or a refusal: probabilities need one path for each text."""
    if isinstance(automata, AutomatonBatch):
        return automata
    if isinstance(automata, TokenAutomaton):
        return AutomatonBatch([automata], device)
    if isinstance(automata, TensorAutomaton) and not automata.deterministic:
        raise ConstraintError(
            "a TensorAutomaton that is not deterministic cannot be multiplied with an HMM: a text "
            "would be counted once for each of its paths; determinise it, and build a "
            "TokenAutomaton with TokenAutomaton.from_transitions"
        )
    if isinstance(automata, TensorAutomaton):
        raise ConstraintError(
            "a TensorAutomaton does not say which tokens its classes hold, so an HMM cannot weigh "
            "them; give the TokenAutomaton that it was made from"
        )
    raise ConstraintError(
        f"the product with an HMM takes a TokenAutomaton or an AutomatonBatch, got "
        f"{type(automata).__name__}; gcd.lift makes a TokenAutomaton of an Automaton"
    )


def table_bytes(hmm: HMM, automata: Sequence[TokenAutomaton], max_remaining: int) -> int:
    """Memory of the table of these (distinct) automata, should it not settle early."""
    states = sum(automaton.num_states for automaton in automata)
    classes = sum(automaton.num_classes for automaton in automata)
    row = hmm.num_states * hmm.initial.element_size()
    return (max_remaining + 1) * states * (row + 8) + classes * row


def _check_memory(
    hmm: HMM, automata: Sequence[TokenAutomaton], max_remaining: int, max_bytes: int
) -> None:
    needed = table_bytes(hmm, automata, max_remaining)
    if needed > max_bytes:
        states = sum(automaton.num_states for automaton in automata)
        raise ConstraintError(
            f"the lookahead table takes {needed / 2**20:.0f} MiB: {states} states of the "
            f"constraint x {hmm.num_states} hidden states x budgets up to {max_remaining} in "
            f"{str(hmm.dtype).removeprefix('torch.')}; {max_bytes / 2**20:.0f} MiB are allowed. "
            "Lower the budget, sample fewer examples at a time (max_rows), take an HMM with fewer "
            "hidden states, or allow more"
        )


@torch.no_grad()
def _recursion(
    hmm: HMM, edges: Edges, max_remaining: int, tolerance: float
) -> tuple[Float[Tensor, "rows S H"], Float64[Tensor, "rows S"], bool]:
    """beta_0 .. beta_R up to scale, their scales, and whether the last row repeats itself."""
    S, H = len(edges.ranked) + len(edges.final), hmm.num_states
    b = hmm.initial.new_zeros(max_remaining + 1, S, H)
    log_scale = torch.full(
        (max_remaining + 1, S), -torch.inf, dtype=torch.float64, device=hmm.device
    )
    b[:, edges.final] = 1
    log_scale[:, edges.final] = 0
    for r in range(1, max_remaining + 1):
        u, log_u = _sum_over_edges(edges, b[r - 1], log_scale[r - 1])
        beta = hmm.transition.backward(u)
        top = beta.amax(dim=1)
        beta /= torch.where(top > 0, top, 1).unsqueeze(1)
        b[r, edges.ranked] = beta
        log_scale[r, edges.ranked] = log_u + top.double().log()
        if r >= edges.longest and not _moved(b, log_scale, r, tolerance):
            # A copy, so that the rows which were not needed go back.
            return b[: r + 1].clone(), log_scale[: r + 1].clone(), True
    return b, log_scale, False


def _sum_over_edges(
    edges: Edges, b: Float[Tensor, "S H"], log_scale: Float64[Tensor, "S"]
) -> tuple[Float[Tensor, "ranks H"], Float64[Tensor, "ranks"]]:
    """u_r of the ranked states up to scale, and the log of the scale."""
    ranks, H = len(edges.ranked), b.shape[1]
    log_edge = log_scale[edges.target] + edges.log_mass[edges.set_of]
    log_u = log_edge.new_full((ranks,), -torch.inf)
    log_u = log_u.scatter_reduce(0, edges.source, log_edge, "amax")
    level = torch.where(log_u.isneginf(), 0.0, log_u)
    share = (log_edge - level[edges.source]).exp().to(b.dtype).unsqueeze(1)
    u = b.new_zeros(ranks, H)
    # Blocks of states, so that what is summed stays in the cache.
    block = max(1, (1 << (18 if b.device.type == "cpu" else 24)) // H)
    for first in range(0, ranks, block):
        for start, end in zip(edges.layers, edges.layers[1:], strict=False):
            n = min(block, end - start - first)
            if n <= 0:
                break
            some = slice(start + first, start + first + n)
            after = b.index_select(0, edges.target[some]).mul_(share[some])
            u[first : first + n].addcmul_(after, edges.mass.index_select(0, edges.set_of[some]))
    return u, log_u


def _moved(
    b: Float[Tensor, "rows S H"], log_scale: Float64[Tensor, "rows S"], r: int, tolerance: float
) -> bool:
    """Whether some entry of row r differs from the row before by more than a share of itself."""
    known = ~log_scale[r].isneginf()
    if not bool((known == ~log_scale[r - 1].isneginf()).all()):
        return True
    rise = torch.where(known, log_scale[r] - log_scale[r - 1], 0.0)
    if bool((rise.abs() > 1).any()):  # some entry has moved by a factor of at least two
        return True
    now = b[r] * rise.exp().to(b.dtype).unsqueeze(1)
    moved: Bool[Tensor, "S H"] = (now - b[r - 1]).abs() > tolerance * now
    return bool(moved.any())
