"""This module shares work out over as many threads as torch uses.

Compiled loops and matrix products release the interpreter's lock. What is shared out are parts that
are independent of each other: the result does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

import torch


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmm")


def shared_out(loop: Callable[..., object], count: int, *arguments: object) -> None:
    """Call `loop(first, last, *arguments)` in threads, on parts of the rows 0 .. count - 1."""
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


def in_turn(work: Callable[[int], object], count: int) -> None:
    """Call `work(i)` for i = 0 .. count - 1 in threads, each taking the next number that is left.

    Gradients are not taken, and torch uses one thread inside, so that a matrix product is summed in
    the same order however many threads there are, and no two teams of threads wait for the same
    cores.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    numbers = iter(range(count))  # next() of it is atomic

    def take() -> None:
        torch.set_num_threads(1)
        # Each thread has a mode of its own, and may write to such tensors only in the right one.
        with torch.inference_mode(inference), torch.no_grad():
            for number in numbers:
                work(number)

    others = [_pool(threads - 1).submit(take) for _ in range(min(threads, count) - 1)]
    try:
        take()
    finally:
        wait(others)
        torch.set_num_threads(threads)
    for other in others:
        other.result()
