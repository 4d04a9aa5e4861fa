"""Progress bars for calls that last more than a few seconds.

A bar appears after `DELAY` seconds on the standard error stream, if this is a terminal and tqdm can
be imported, and disappears at the end of the call. Nothing is written to pipes, files and logs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DELAY = 3.0
"""Seconds until a bar appears."""


@contextmanager
def progress(total: int, unit: str) -> Iterator[Any]:
    """Show a bar of `tqdm` while the block runs; yield the bar, or None if none is shown."""
    bar = None
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from tqdm import tqdm

            bar = tqdm(total=total, desc="smc", unit=unit, delay=DELAY, leave=False)
        except ImportError:
            pass
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()
