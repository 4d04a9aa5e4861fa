"""Costs of P-GCD: the table of completion probabilities, and the guide at every step.

**Table.** beta of a tool schema (`benchmarks/schemas`) for one budget, compared with the plain
recursion: every state, every remaining budget, edges summed by tensor operations for all states at
once, one matrix product per level. Both are in float32; the largest difference of their logarithms,
where both are positive, is shown.

**Guide.** The time from the log-probabilities of 16 prefixes to g and log Z. g is computed by
class; by class, but exactly for the 64 most probable tokens; and exactly for all tokens. GCD's mask
is timed for comparison. Log-probabilities are in
float32, as from a model. The softmax before and the draw after are excluded. The proposal itself
makes 16 prefixes in 12 steps; the eight prefixes with the most allowed next tokens, each twice, are
measured.

The HMM is random (Dirichlet, seeded). Its values don't affect the time of a product, but they
affect how soon rows of the table converge. `--concentration` makes distributions uneven.

    python -m benchmarks.lookahead ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

import smc
from benchmarks.common import compile_and_lift, head, read_ranks, with_ranks
from gcd import AutomatonBatch, TokenAutomaton
from hmm import HMM, Dense, LookaheadTable, lookahead_table
from hmm._edges import Edges, class_emission
from hmm._recursion import Level, _sum_in_layers

SMALL, MEDIUM, LARGE = "set_alarm", "weather", "create_event"
PREFIXES = 16


def seconds(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the least wall time and the least processor time of several runs."""
    wall, processor = [], []
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return min(wall), min(processor)


def recursion(
    hmm: HMM, automaton: TokenAutomaton, max_remaining: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute beta of all states at all remaining budgets, as b and the log of its scale."""
    edges = Edges.of([automaton], [class_emission(hmm, automaton)])
    assert isinstance(hmm.transition, Dense)
    S, H = automaton.num_states, hmm.num_states
    b = torch.zeros(max_remaining + 1, S, H)
    log_scale = torch.full((max_remaining + 1, S), -torch.inf, dtype=torch.float64)
    b[:, automaton.final], log_scale[:, automaton.final] = 1, 0
    everything = np.arange(S)
    for r in range(1, max_remaining + 1):
        level = Level(everything, b[r - 1], log_scale[r - 1])
        u, log_u = _sum_in_layers(edges, level, everything)
        beta = u @ hmm.transition.matrix.T
        top = beta.amax(dim=1)
        before_final = slice(0, automaton.final)
        b[r, before_final] = (beta / torch.where(top > 0, top, 1).unsqueeze(1))[before_final]
        log_scale[r, before_final] = (log_u + top.double().log())[before_final]
    return b, log_scale


def difference(
    table: LookaheadTable, b: torch.Tensor, log_scale: torch.Tensor, budget: int
) -> float:
    """Return the largest |log beta - log beta'| over the table's entries with r < budget."""
    entry, far = table.completion.entry, 0.0
    for r in range(0, budget, 9):
        states = (entry[r] >= 2).nonzero().squeeze(1)
        rows = entry[r][states].long()
        mine = table.completion.b[rows].double().log()
        mine = mine + table.completion.log_scale[rows].unsqueeze(1)
        theirs = b[r][states].double().log() + log_scale[r][states].unsqueeze(1)
        gap = (mine - theirs).abs()[torch.isfinite(mine) & torch.isfinite(theirs)]
        far = max([far, *gap.amax(dim=0, keepdim=True).tolist()]) if gap.numel() else far
    return far


def table_row(hmm: HMM, name: str, automaton: TokenAutomaton, budget: int, repeats: int) -> str:
    """Return one line of the first table.

    With thousands of states and more than 512 hidden states, the plain recursion would take 4 GB
    and minutes, so it is left out, and so are the repetitions.
    """
    large = hmm.num_states > 512 and automaton.num_states > 5000

    def build(tolerance: float = 1e-6) -> LookaheadTable:
        return lookahead_table(
            hmm,
            automaton,
            budget - 1,
            budgets=[[budget]],
            tolerance=tolerance,
            max_bytes=16 << 30,
        )

    whole = (automaton.num_states - 1) * (budget - 1)
    head = f"| {name} | {automaton.num_states} | {hmm.num_states} | {whole} |"
    if large:
        ours, table = seconds(build, 1), build()
        size = f"{table.num_bytes / 2**20:.0f}"
        return f"{head} | {table.num_rows} | {ours[0]:.2f} ({ours[1]:.2f}) | | | | {size} | | |"
    build()
    ours = seconds(build, repeats)
    table = build()
    exact = seconds(lambda: build(0.0), 1)
    rows = build(0.0).num_rows
    b, log_scale = recursion(hmm, automaton, budget - 1)
    plain = seconds(lambda: recursion(hmm, automaton, budget - 1), 1)
    far = difference(table, b, log_scale, budget)
    return (
        f"{head} {rows} "
        f"| {table.num_rows} | {ours[0]:.2f} ({ours[1]:.2f}) | {exact[0]:.2f} ({exact[1]:.2f}) "
        f"| {plain[0]:.2f} ({plain[1]:.2f}) | {plain[0] / ours[0]:.1f} ({plain[1] / ours[1]:.1f}) "
        f"| {table.num_bytes / 2**20:.0f} | {b.numel() * 4 / 2**20:.0f} | {far:.1e} |"
    )


def prefixes(
    proposal: smc.PGCD, automaton: TokenAutomaton, budget: int, steps: int
) -> tuple[object, torch.Tensor]:
    """Return 16 prefixes after some steps, and log-probabilities of their next tokens."""
    generator = torch.Generator().manual_seed(0)
    batch = smc.Batch(AutomatonBatch([automaton]), torch.tensor([budget]))
    state = proposal.take(proposal.start(batch), torch.zeros(PREFIXES, dtype=torch.int64))

    def log_probabilities() -> torch.Tensor:
        shape = (PREFIXES, automaton.vocabulary.size)
        return (3 * torch.randn(shape, generator=generator)).log_softmax(1)

    for _ in range(steps):
        log_p = log_probabilities()
        running = state.position.running.unsqueeze(1)
        # Draws for finished prefixes aren't used.
        log_q = torch.where(running, proposal.guide(state, log_p).apply(log_p), log_p)
        token = torch.multinomial(log_q.softmax(dim=1), 1, generator=generator)
        state = proposal.advance(state, torch.where(running, token, -1))
    # The guide is slowest where most tokens are allowed.
    position = state.position
    after = position.mask.mask(position.states, position.remaining).sum(dim=1)
    widest = after.argsort(descending=True, stable=True)[: PREFIXES // 2].repeat(2)
    return proposal.take(state, widest[:PREFIXES]), log_probabilities()


def guides(hmm: HMM, name: str, automaton: TokenAutomaton, budget: int, repeats: int) -> list[str]:
    """Return the lines of the second table."""
    options = {
        "by class": smc.PGCD(hmm, exact_top_k=0, max_bytes=16 << 30),
        "by class + top 64": smc.PGCD(hmm, max_bytes=16 << 30),
        "exact": smc.PGCD(hmm, exact_top_k=None, max_bytes=16 << 30),
    }
    state, log_p = prefixes(options["by class + top 64"], automaton, budget, 12)
    position, gcd = state.position, smc.GCD()
    allowed = position.mask.mask(position.states, position.remaining).sum(dim=1).double().mean()
    times = {}
    for _ in range(repeats):  # interleaved
        for what, proposal in options.items():
            spent = seconds(lambda proposal=proposal: proposal.guide(state, log_p), 3)
            times[what] = tuple(np.minimum(times.get(what, spent), spent))
        spent = seconds(lambda: gcd.guide(position, log_p), 3)
        times["GCD's mask"] = tuple(np.minimum(times.get("GCD's mask", spent), spent))
    reference = times["by class + top 64"]
    lines = []
    for what, (wall, processor) in times.items():
        lines.append(
            f"| {name} | {allowed:.0f} | {what} | {1e3 * wall:.1f} ({1e3 * processor:.1f}) "
            f"| {wall / reference[0]:.2f} ({processor / reference[1]:.2f}) |"
        )
    return lines


def main() -> None:
    """Print both tables."""
    parser = with_ranks(__doc__)
    parser.add_argument("--schemas", nargs="+", default=[SMALL, MEDIUM, LARGE])
    parser.add_argument("--no-table", action="store_true", help="skip the first table")
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--concentration", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    vocabulary = read_ranks(arguments.ranks)
    automata = {name: compile_and_lift(name, vocabulary) for name in arguments.schemas}
    print(f"{vocabulary.size} tokens, {torch.get_num_threads()} threads, budget {arguments.budget}")
    models = {
        H: HMM.random(
            H,
            vocabulary.size,
            generator=torch.Generator().manual_seed(0),
            concentration=arguments.concentration,
        )
        for H in arguments.hidden
    }
    heads = ["schema", "states", "H", "pairs (state, r)", "rows, tolerance 0", "rows"]
    heads += ["table, s (CPU s)", "tolerance 0, s", "plain recursion, s", "ratio"]
    heads += ["table, MiB", "plain, MiB", "difference of logs"]
    print(f"\n{head(*heads)}")
    for hmm in models.values():
        for name, automaton in automata.items():
            if arguments.no_table:
                continue
            row = table_row(hmm, name, automaton, arguments.budget, arguments.repeats)
            print(row, flush=True)

    heads = ["schema", "tokens allowed, mean", "g", "ms (CPU ms)", "ratio"]
    print(f"\n{PREFIXES} prefixes, H = {max(models)}\n\n{head(*heads)}")
    hmm = models[max(models)]
    for name, automaton in automata.items():
        if automaton.num_states > 5000:
            continue
        for line in guides(hmm, name, automaton, min(64, arguments.budget), arguments.repeats):
            print(line, flush=True)


if __name__ == "__main__":
    main()
