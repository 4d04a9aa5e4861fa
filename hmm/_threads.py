"""Distribution of work over as many threads as torch uses.

Threads run in parallel because compiled loops and matrix products release the interpreter's lock.
The parts are independent of each other, so the result doesn't depend on the number of threads.
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


def share_out(loop: Callable[..., object], count: int, *arguments: object) -> None:
    """Divide the rows 0 .. count - 1 among threads, which call `loop(first, last, *arguments)`."""
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
    """Call `work(i)` for i = 0 .. count - 1 in threads; each thread takes the next remaining i.

    Gradients are disabled. Inside `work`, torch uses one thread, so that the order of summation in
    a matrix product doesn't depend on the number of threads, and thread pools don't compete.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    numbers = iter(range(count))  # its next() is atomic

    def take() -> None:
        torch.set_num_threads(1)
        # Inference mode is per thread, and tensors made in it can only be modified in it.
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
