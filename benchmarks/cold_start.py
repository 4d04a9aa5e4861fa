"""Seconds from the start of a process to its first mask, and of imports.

    OMP_NUM_THREADS=1 python -m benchmarks.cold_start [--wheel] [--repeats 5]

Each figure is the median over fresh processes, taken in turns: `import gcd`, compiling a JSON
schema, lifting it to a small vocabulary, and the first packed mask; and complete commands. With
`--wheel` the package is built and installed without dependencies into a separate folder, which the
processes use instead of the checkout.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FIRST_MASK = """
import time
times = [time.perf_counter()]
import gcd
times.append(time.perf_counter())
schema = {"type": "object", "required": ["name"], "properties": {
    "name": {"type": "string", "maxLength": 20},
    "n": {"type": "integer", "minimum": 0, "maximum": 100},
    "tags": {"type": "array", "items": {"type": "string"}}}}
automaton = gcd.json_schema(schema)
times.append(time.perf_counter())
tokens = [bytes([i]) for i in range(256)] + [b'{"', b'":', b'",', b"name", b""]
lifted = gcd.lift(automaton, gcd.Vocabulary.from_bytes(tokens, eos_ids=[len(tokens) - 1]))
times.append(time.perf_counter())
assert gcd.Matcher(lifted, budget=60).mask().any()
times.append(time.perf_counter())
print(*(after - before for before, after in zip(times, times[1:])))
"""
PARTS = ("import gcd", "schema", "lift", "mask")
COMMANDS = {
    "whole process to the first mask": ["-c", FIRST_MASK],
    "import smc": ["-c", "import smc"],
    "gcd --help": ["-m", "gcd_cli._main", "--help"],
    "experiments.run --help": ["-m", "experiments.run", "--help"],
}


def run(command: list[str], path: Path) -> tuple[float, str]:
    """Return the seconds of a process, and its output."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return time.perf_counter() - start, done.stdout


def install(folder: str) -> Path:
    """Build a wheel of the checkout and unpack it into a folder."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, ROOT],
        check=True,
    )
    return Path(folder)


def main() -> None:
    """Parse the command line, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--wheel", action="store_true", help="run the installed wheel instead of the checkout"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in (*PARTS, *COMMANDS)}
    with tempfile.TemporaryDirectory() as folder:
        path = install(folder) if options.wheel else ROOT
        for repeat in range(options.repeats + 1):  # the first run fills disk caches
            for name, command in COMMANDS.items():
                total, printed = run(command, path)
                parts = (
                    dict(zip(PARTS, map(float, printed.split()), strict=True))
                    if (command[1] is FIRST_MASK)
                    else {}
                )
                for part, value in {name: total, **parts}.items():
                    if repeat:
                        seconds[part].append(value)
    print("| | seconds |\n|---|---|")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} |")


if __name__ == "__main__":
    main()
