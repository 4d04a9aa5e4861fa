"""Memory of many constraints in a server's cache.

    OMP_NUM_THREADS=1 python -m benchmarks.served_memory FILE.tiktoken --schemas FOLDER
    OMP_NUM_THREADS=1 python -m benchmarks.served_memory FILE.tiktoken --schemas FOLDER --limit 256

The cache is that of the plugin for vLLM. Constraints are the schemas of a folder, first with the
default white space, then with other ones, until `--count` of them are accepted. One random answer
of at most 60 tokens is followed under each, so masks are counted, too. *Resident* is the growth of
the process from before the first constraint; it also has what compiling leaves behind. Servers
limit the cache to 256 MB.
"""

from __future__ import annotations

import gc
import os
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import head, line, public_schemas, read_ranks, with_ranks
from benchmarks.engines import Ours, Row
from benchmarks.first_mask import STEPS
from gcd import ConstraintError, Matcher, TokenAutomaton, Vocabulary
from gcd_vllm._constraint_cache import ConstraintCache
from gcd_vllm._requests import ConstraintRequest

STYLES = ("compact", "spaced")


def fill(
    vocabulary: Vocabulary, schemas: list[Any], count: int, max_bytes: int
) -> tuple[int, int, int, int]:
    """Fill a cache; return how many it accepts and keeps, and the bytes of cache and process."""
    cache = ConstraintCache(vocabulary, max_bytes=max_bytes)
    before, accepted = resident(), 0
    for style, schema in product(STYLES, schemas):
        options = {"unsupported": "ignore", "whitespace": style}
        try:
            follow(cache.get(ConstraintRequest("json_schema", schema, options=options)), accepted)
        except ConstraintError:
            continue
        accepted += 1
        if accepted == count:
            break
    gc.collect()
    return accepted, len(cache._known), cache._bytes, resident() - before


def follow(automaton: TokenAutomaton, seed: int) -> None:
    """Make the masks of a random answer."""
    rng, row = np.random.default_rng(seed), Row(automaton.vocabulary.size)
    matcher = Matcher(automaton)
    for _ in range(STEPS):
        matcher.fill_mask(row.first)
        ids = np.flatnonzero(np.unpackbits(row.first.view(np.uint8), bitorder="little"))
        if not matcher.advance(int(rng.choice(ids))) or matcher.is_finished:
            break


def resident() -> int:
    """Return the bytes of memory that the process has in use."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Parse the command line and run."""
    parser = with_ranks(__doc__)
    parser.add_argument("--schemas", type=Path, required=True, help="folder of schemas")
    parser.add_argument("--count", type=int, default=1000, help="number of constraints")
    parser.add_argument("--limit", type=int, default=1 << 20, help="MB of the cache")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    vocabulary = read_ranks(arguments.ranks)
    Ours(vocabulary, 1)  # makes what all constraints share
    schemas = [schema for _, schema in public_schemas(arguments.schemas)]
    limit = arguments.limit << 20
    accepted, kept, size, grown = fill(vocabulary, schemas, arguments.count, limit)
    print(head("accepted", "kept", "MB of the cache", "MB resident"))
    print(line(accepted, kept, size >> 20, grown >> 20))


if __name__ == "__main__":
    main()
