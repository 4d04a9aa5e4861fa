"""One step of an algorithm outside of the language model: seconds for 16 prefixes at V = 151 644.

The language model here is a table of random log-probabilities, and its own time is taken off, so
what is left is all that constrained sampling adds to a forward pass: the proposal, choosing (a draw
for each particle, or selection among all continuations), weights, bookkeeping. Both algorithms go
through the same constraint with the same numbers, in turns; medians over runs, of the milliseconds
of processor time of a step. The HMM is random: its numbers do not matter for the time.

    python -m benchmarks.discrete ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

import statistics
import time

import torch

import smc
from benchmarks.common import head, lifted, ranked, with_ranks
from benchmarks.static_step import TableLM
from hmm.model import HMM


def main() -> None:
    parser = with_ranks(__doc__)
    parser.add_argument("--schema", default="weather")
    parser.add_argument("--budget", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--spread", type=float, default=3.0, help="of the logits")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    vocabulary = ranked(arguments.ranks)
    constraint = lifted(arguments.schema, vocabulary)
    lm = TableLM(vocabulary, arguments.spread)
    hmm = HMM.random(arguments.hidden, vocabulary.size, generator=torch.Generator().manual_seed(0))
    proposals = {
        "GCD": smc.GCD(),
        "P-GCD": smc.PGCD(hmm),
        "P-GCD in time": smc.PGCD(hmm, lookahead="in_time"),
    }
    runs = {
        (name, algorithm, str(options)): (proposal, algorithm, options)
        for name, proposal in proposals.items()
        for algorithm, options in (
            ("smc", {}),
            ("discrete", {}),
            ("discrete", {"share": 0.2}),
        )
    }
    times: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}
    for repeat in range(arguments.repeats + 1):
        for key, (proposal, algorithm, options) in runs.items():
            lm.seconds, lm.calls = 0.0, 0
            started = time.process_time()
            (found,) = smc.sample(
                lm,
                [[0]],
                constraint,
                budget=arguments.budget,
                particles=arguments.particles,
                proposal=proposal,
                algorithm=algorithm,
                seed=repeat,
                **options,
            )
            spent = time.process_time() - started - lm.seconds
            if repeat:  # the first run compiles, and makes tables
                times[key].append(1e3 * spent / len(found.diagnostics.ess))
    print(f"{vocabulary.size} tokens, {torch.get_num_threads()} threads, N = {arguments.particles}")
    columns = "proposal", "algorithm", "options", "ms a step, median", "least", "greatest"
    print(f"\n{head(*columns)}")
    for key, values in times.items():
        middle = statistics.median(values)
        print(f"| {' | '.join(key)} | {middle:.1f} | {min(values):.1f} | {max(values):.1f} |")


if __name__ == "__main__":
    main()
