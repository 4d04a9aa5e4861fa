"""Compiled loops shared out over as many threads as torch uses.

The loops release the interpreter's lock, and each thread has its own part of the rows, which are
independent of each other: the result does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import torch


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmm")


def shared_out(loop: Callable[..., object], count: int, *arguments: object) -> None:
    """`loop(first, last, *arguments)` over parts that make up the rows 0 .. count - 1."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        loop(0, count, *arguments)
        return
    cuts = [count * i // threads for i in range(threads + 1)]
    pool = _pool(threads - 1)
    others = [pool.submit(loop, first, last, *arguments) for first, last in pairwise(cuts[1:])]
    loop(cuts[0], cuts[1], *arguments)
    for other in others:
        other.result()
