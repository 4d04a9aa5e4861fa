"""Upper bounds on token distances compared with exact distances, and the time of both.

    OMP_NUM_THREADS=1 python -m benchmarks.bounds FILE.tiktoken --schemas FOLDER --every 6

The compared states are those of random answers: each step draws a next state uniformly among those
that the lifted constraint allows. Times are processor time of one thread. `--picture FILE` plots
the share of these states by exact distance and bound.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import gcd
from benchmarks.common import head, line, read_ranks, with_ranks
from gcd._tokens.completions import token_bounds

WALKS, STEPS = 30, 60
LARGEST = 50_000  # byte states; larger constraints take gigabytes when lifted


def count_states(
    lifted: gcd.TokenAutomaton, bounds: np.ndarray, rng: np.random.Generator
) -> Counter[tuple[int, int]]:
    """Count (exact distance, bound) at the states of random answers."""
    found: Counter[tuple[int, int]] = Counter()
    for _ in range(WALKS):
        state = lifted.initial
        for _ in range(STEPS):
            if state == lifted.final:
                break
            found[int(lifted.steps_to_accept[state]), int(bounds[state])] += 1
            row = lifted.delta[state]
            state = int(rng.choice(np.unique(row[row >= 0])))
    return found


def draw(counts: Counter[tuple[int, int]], path: Path) -> None:
    """Plot bounds against distances."""
    from matplotlib import pyplot as plt
    from matplotlib.colors import LogNorm

    largest = 60
    cells = np.zeros((largest + 1, largest + 1))
    for (distance, bound), count in counts.items():
        if bound <= largest:
            cells[bound, distance] += count
    figure, axes = plt.subplots(figsize=(5.2, 4.4), dpi=110, layout="constrained")
    shown = np.where(cells > 0, cells, np.nan) / sum(counts.values())
    picture = axes.imshow(shown, origin="lower", norm=LogNorm(), cmap="viridis")
    axes.plot([0, largest], [0, largest], color="black", linewidth=0.6)
    axes.set_xlabel("exact distance D, tokens")
    axes.set_ylabel("bound U, tokens")
    figure.colorbar(picture, label="share of the states of random answers")
    figure.savefig(path)


def main() -> None:
    """Print the table."""
    parser = with_ranks(__doc__)
    parser.add_argument("--schemas", type=Path, required=True, help="folder of schemas")
    parser.add_argument("--every", type=int, default=6, help="use every n-th schema")
    parser.add_argument("--picture", type=Path, default=None, help="write a figure to this file")
    arguments = parser.parse_args()
    vocabulary, rng = read_ranks(arguments.ranks), np.random.default_rng(0)
    warnings.simplefilter("ignore")
    bounding = lifting = 0.0
    counts: Counter[tuple[int, int]] = Counter()
    starts: list[tuple[int, int]] = []
    for path in sorted(arguments.schemas.glob("*.json"))[:: arguments.every]:
        try:
            language = gcd.json_schema(json.loads(path.read_text("utf-8-sig"))["schema"])
        except (gcd.ConstraintError, RecursionError):
            continue
        if language.num_states > LARGEST or language.is_empty:
            continue
        start = time.process_time()
        bounds = token_bounds(
            language.delta, language.accepting, language.class_of_byte, vocabulary.trie
        )
        middle = time.process_time()
        lifted = gcd.lift(language, vocabulary)
        if starts:  # the first one makes shared tables
            bounding, lifting = bounding + middle - start, lifting + time.process_time() - middle
        assert bounds is not None
        assert lifted.num_states == language.num_states + 1, "byte states keep their numbers"
        starts.append((lifted.fewest_tokens, int(bounds[0])))
        counts += count_states(lifted, np.append(bounds, 0), rng)
    total = sum(counts.values())
    same = sum(count for (distance, bound), count in counts.items() if distance == bound)
    assert all(distance <= bound for distance, bound in [*counts, *starts])
    print(head("", "bounds", "lifts"))
    print(line(f"{len(starts) - 1} schemas, s", f"{bounding:.2f}", f"{lifting:.2f}"))
    print(f"\n{total} states of random answers: U = D in {same / total:.1%}")
    print(
        f"initial states: U = D in {sum(d == u for d, u in starts)} of {len(starts)}, "
        f"at most {max(u / d for d, u in starts):.2f} times D"
    )
    if arguments.picture is not None:
        draw(counts, arguments.picture)


if __name__ == "__main__":
    main()
