"""Cost of a budget mask by the paper's tensors and by one integer per state, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.tensors FILE.tiktoken --rows 256

Both sides compute the mask over token classes of random states of `benchmarks/schemas`, with a
random number of tokens left. The tensors' backward pass is computed beforehand, as the distances
are. Times are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import gcd
from benchmarks.common import SCHEMAS, compile_and_lift, head, line, read_ranks, with_ranks

BUDGET = 200
REPEATS = 15


def measure(work: Callable[[], object]) -> float:
    """Return the median time of a call in ms."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = with_ranks(__doc__)
    parser.add_argument("--rows", type=int, default=256, help="number of rows of a mask")
    arguments = parser.parse_args()
    vocabulary = read_ranks(arguments.ranks)
    torch.manual_seed(0)
    print(head("schema", "states", "edges", "backward pass, ms", "tensors, ms", "table, ms"))
    ratios = []
    for path in sorted(SCHEMAS.glob("*.json")):
        lifted = compile_and_lift(path.stem, vocabulary)
        tensors, table = gcd.TensorAutomaton.of(lifted), gcd.BudgetMask(lifted, BUDGET)
        begin = time.perf_counter()
        alive = tensors.backward_pass(BUDGET)
        taken = (time.perf_counter() - begin) * 1e3
        states = torch.randint(lifted.num_states, (arguments.rows,))
        left = torch.randint(1, BUDGET, (arguments.rows,))
        sets = torch.nn.functional.one_hot(states, lifted.num_states).bool()
        assert torch.equal(tensors.class_mask(sets, left, alive), table.class_mask(states, left))
        ours = measure(lambda: table.class_mask(states, left))  # noqa: B023
        theirs = measure(lambda: tensors.class_mask(sets, left, alive))  # noqa: B023
        ratios.append(theirs / ours)
        cells = (tensors.num_states, tensors.num_edges, f"{taken:.0f}")
        print(line(path.stem, *cells, f"{theirs:.1f}", f"{ours:.2f}"), flush=True)
    print(f"\ntensors over table: median {statistics.median(ratios):.0f}, {min(ratios):.0f} to "
          f"{max(ratios):.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
