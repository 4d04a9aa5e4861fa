"""How long the first mask takes where nothing is compiled yet, and what is compiled meanwhile.

    OMP_NUM_THREADS=1 python -m benchmarks.cold_start [--kernels]

Each run is a process of its own: `import gcd`, a JSON schema, its lifting to a small vocabulary,
the first packed mask; with an empty cache of compiled code, with the cache that this left, and with
an empty one but without the second process that compiles kernels of tokens meanwhile; then
`python -m scripts.warm_up`, which compiles everything, with an empty one. The parts are seconds of
wall-clock; beside the total stands the processor time of the first process. `--kernels` lists what
one process compiles, for which types, in how long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def first_mask() -> dict[str, Any]:
    """Seconds for each part, in this process, and the kernels that were compiled."""
    times = [time.perf_counter()]

    import gcd

    times.append(time.perf_counter())
    compiled = record_compilations()
    from gcd.warm_up import SCHEMA, vocabulary

    automaton = gcd.json_schema(SCHEMA)
    times.append(time.perf_counter())
    lifted = gcd.lift(automaton, vocabulary())
    times.append(time.perf_counter())
    assert gcd.Matcher(lifted, budget=60).mask().any()
    times.append(time.perf_counter())
    names = ("import gcd", "schema", "lift", "mask")
    parts = dict(zip(names, (after - before for before, after in pairwise(times)), strict=True))
    return parts | {
        "total": times[-1] - times[0],
        "processor": time.process_time(),
        "kernels": compiled,
    }


def record_compilations() -> list[tuple[float, str, str]]:
    """A list that grows by (own seconds, function, types) with each function that is compiled."""
    from numba.core import event

    compiled: list[tuple[float, str, str]] = []
    running: list[list[float]] = []

    class Recorder(event.Listener):
        def on_start(self, event: Any) -> None:
            running.append([time.process_time(), 0.0])

        def on_end(self, event: Any) -> None:
            start, inside = running.pop()
            seconds = time.process_time() - start
            if running:
                running[-1][1] += seconds
            function = event.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__name__}"
            compiled.append((seconds - inside, name, str(event.data["args"])))

    event.register("numba:compile", Recorder())
    return compiled


def run(*command: str, cache: str, **variables: str) -> str:
    """What a process of its own says, with compiled code in this folder."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def main() -> None:
    """Parse the command line, run, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", action="store_true", help="list what was compiled")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(first_mask()))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        rows["empty"] = json.loads(run(__file__, "--here", cache=cache))
        rows["full"] = json.loads(run(__file__, "--here", cache=cache))
        rows["empty, one process"] = json.loads(
            run(__file__, "--here", cache=other, GCD_WARM_UP="1")
        )
    kernels = rows["empty, one process"]["kernels"]
    assert not rows["full"]["kernels"], "all was compiled already"
    for row in rows.values():
        del row["kernels"]
    columns = list(rows["empty"])
    print(f"| cache | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for state, row in rows.items():
        print(f"| {state} | {' | '.join(f'{row[name]:.1f}' for name in columns)} |")
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        run("-m", "scripts.warm_up", cache=cache)
        seconds = time.perf_counter() - start
    print(f"\n`python -m scripts.warm_up`, empty cache: {seconds:.1f} s")
    own = [kernel for kernel in kernels if not kernel[1].startswith("numba.")]
    print(
        f"\n{len(kernels)} functions compiled, {len(own)} of them ours, in "
        f"{sum(kernel[0] for kernel in kernels):.1f} s of processor time"
    )
    if options.kernels:
        print("\n| seconds | function | types |\n|---|---|---|")
        for seconds, name, types in sorted(kernels, reverse=True):
            print(f"| {seconds:.2f} | {name} | {types} |")


if __name__ == "__main__":
    main()
