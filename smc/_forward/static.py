"""The reader of static shapes: one row per particle, from the first step to the last.

Shapes never depend on data, and there is no host synchronization. Therefore a step and the model's
forward pass can be captured as one graph (`smc._inference.loop`). Ended particles keep a row, which
is masked. A prefix is computed once for each particle that has it. A forced token takes a step like
any other token.

**Few rows are copied.** If several particles continue from the same row, the first particle keeps
it. Each of the others gets a row of its example that no running particle continues from. So a row
that a particle continues from is never overwritten. Therefore rows can be copied in place, and
unchanged rows aren't copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smc._forward.reader import Extension, Prefixes, Reader, TokenCounts, has_nan
from smc._models.static_cache import Forward, NotStaticError
from smc._proposals import Batch, Proposal, State
from smc._vocabulary.passes import VocabularyPass


@dataclass(frozen=True, eq=False)
class StaticPrefixes(Prefixes[State]):
    """The prefixes of P particles, with one row each; see `Prefixes`.

    Attributes:
        held: the model's row of each prefix; all are different.
        appended: number of tokens appended to every row of the model.
    """

    held: Int64[Tensor, "P"]
    appended: Int64[Tensor, ""]


class StaticReader(Reader[State]):
    """A reader with a row for each of P = B·N particles; see `Reader`.

    Args:
        forward: the language model in static shapes.
        proposal, batch, vocabulary_pass, temperature: as for `Reader`.
        num_particles: N, per example.
        spare: number of cache columns in addition to the budget, for the warm-up steps before graph
            capture.

    Raises:
        NotStaticError: the proposal synchronizes with the host.
    """

    is_static = True

    def __init__(
        self,
        forward: Forward,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        num_particles: int,
        temperature: float,
        spare: int = 1,
    ) -> None:
        proposal = proposal.without_host_sync()
        super().__init__(proposal, batch, vocabulary_pass, temperature=temperature)
        refuse_waits(proposal, batch)
        self.forward = forward
        self.num_particles = num_particles
        self.spare = spare

    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "M"]:
        """Return all indices, because the host doesn't know where the mask is True."""
        return torch.arange(len(mask), device=mask.device)

    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Return the flag `found`, which is checked after the run."""
        return found

    def rewind(self) -> None:
        """Remove all generated tokens from the language model's cache."""
        self.forward.rewind()

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Run the model on each prompt once, and create a row for each particle; see `Reader`."""
        state = self.proposal.start(self.batch)
        budget = int(self.batch.budgets.max())
        log_p = self.forward.start(prompts, num_particles, budget + self.spare)
        rows = len(prompts) * num_particles
        self.check(log_p, rows)
        each = torch.arange(len(log_p), device=log_p.device)
        state = self.proposal.take(state, each // num_particles)
        runs = torch.ones_like(each, dtype=torch.bool)
        found = self._extension(state, runs, each.new_zeros(len(each), 0), is_start=True)
        zero = torch.zeros((), dtype=torch.int64, device=each.device)
        return self._read(log_p, found, state, each, zero)

    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend the row of each running particle p by `token[p]`; see `Reader`."""
        assert isinstance(prefixes, StaticPrefixes)
        token = torch.where(running, token, -1).unsqueeze(1)
        state = self.proposal.advance(self.proposal.take(prefixes.state, row), token)
        moved = move(prefixes.held[row], running, self.num_particles)
        read = torch.empty_like(row).scatter(0, moved.row, token.squeeze(1).clamp(min=0))
        log_p = self.forward.step(read, moved.source, prefixes.appended)
        found = self._extension(state, running, token, is_start=False)
        return self._read(log_p, found, state, moved.row, prefixes.appended + 1)

    def _extension(
        self, state: State, ran: Bool[Tensor, "P"], tokens: Int64[Tensor, "P K"], *, is_start: bool
    ) -> Extension:
        """Return the result of extending each particle; particle p has row p."""
        running = ran & state.position.running
        none = torch.zeros_like(running, dtype=torch.int64)
        count = running.view(-1, self.num_particles).sum(dim=1)
        zero = torch.zeros_like(count)
        return Extension(
            finished=ran & state.position.finished,
            running=running,
            row=torch.arange(len(running), device=running.device),
            tokens=tokens,
            forced=none,
            forced_log_p=none.double(),
            forced_log_g=none.double(),
            landed=none.bool(),
            counts=TokenCounts(zero if is_start else count, *[zero] * 4),
            failed=torch.zeros((), dtype=torch.bool, device=running.device),
            log_removed=torch.full_like(none, -torch.inf, dtype=torch.float64),
        )

    def _read(
        self,
        log_p: Float[Tensor, "P V"],
        found: Extension,
        state: State,
        held: Int64[Tensor, "P"],
        appended: Int64[Tensor, ""],
    ) -> tuple[Extension, StaticPrefixes[State]]:
        """Return the new prefixes, with zeros as the log-probabilities of ended prefixes."""
        self.check(log_p, len(held))
        log_p = self.temper(log_p)[held]  # a copy
        wrong = has_nan(log_p)
        failed = (wrong & found.running).any()
        # The model may return NaN after an ended prefix. A failed run continues with finite
        # numbers until the flag is checked.
        log_p.masked_fill_((wrong | ~found.running).unsqueeze(1), 0.0)
        example = found.row // self.num_particles
        prefixes = StaticPrefixes(example, log_p, state, held, appended)
        return found._replace(failed=failed), prefixes


class Moved(NamedTuple):
    """Assignment of the particles to rows of the language model, and the copies that it requires.

    Attributes:
        row: the new row of each particle; no row belongs to two particles.
        source: for each row, the row that is copied into it; the row itself if it doesn't change.
    """

    row: Int64[Tensor, "P"]
    source: Int64[Tensor, "P"]


def move(row: Int64[Tensor, "P"], running: Bool[Tensor, "P"], N: int) -> Moved:
    """Assign a row of the language model to each particle, with O(P N) bits of memory."""
    P = len(row)
    groups, runs = row.view(-1, N), running.view(-1, N)
    number = torch.arange(N, device=row.device)
    earlier = (groups.unsqueeze(2) == groups.unsqueeze(1)) & (number < number.unsqueeze(1))
    again = (earlier & runs.unsqueeze(1)).any(dim=2)
    stays = runs & ~again
    # The k-th particle of an example that needs a row takes the k-th free row.
    index = (~stays).cumsum(dim=1) - 1
    used = torch.zeros(P, dtype=torch.int64, device=row.device).index_add(0, row, running.long())
    free = torch.where(used.view(-1, N) > 0, N, number).sort(dim=1).values.clamp(max=N - 1)
    first = N * torch.arange(P // N, device=row.device).unsqueeze(1)
    new = torch.where(stays, groups, first + free.gather(1, index.clamp(min=0))).flatten()
    return Moved(new, torch.empty_like(row).scatter(0, new, torch.where(running, row, new)))


WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "lift_fresh",  # copies host numbers into a tensor
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)


class Waits(TorchDispatchMode):
    """A dispatch mode that records operations with a host synchronization.

    The host needs the result of such an operation, or the shape of its result. On a CUDA device the
    operation waits for all pending work, and can't be captured in a graph.

    Attributes:
        found: names of these operations.
        count: number of all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; record it if its name or a boolean index implies a synchronization."""
        name = func._schema.name.removeprefix("aten::")
        self.count += 1
        by_mask = name.startswith(("index", "_index_put")) and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for part in args
            if isinstance(part, list | tuple)
            for index in part
        )
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def refuse_waits(proposal: Proposal[Any], batch: Batch) -> None:
    """Raise an error if a method of a proposal synchronizes with the host.

    The methods are called for the empty prefixes of a batch.
    """
    state = proposal.start(batch)
    B, V = len(batch.budgets), batch.automata.vocabulary.size
    log_p = torch.zeros(B, V, dtype=torch.float32, device=batch.budgets.device).log_softmax(dim=1)
    each = torch.arange(B, device=log_p.device)
    token = torch.zeros_like(each).unsqueeze(1)
    calls = {
        "guide": lambda: proposal.guide(state, log_p),
        "take": lambda: proposal.take(state, each),
        "advance": lambda: proposal.advance(state, token),
    }
    for name, call in calls.items():
        call()  # tables that are made at the first call don't count
        with Waits() as waits:
            call()
        if waits.found:
            raise NotStaticError(
                f"expected a proposal without host synchronizations, as static shapes require, but "
                f"`{name}` of {proposal!r} calls {', '.join(sorted(set(waits.found)))}; compute "
                "with masks instead, or set execution='eager'"
            )
