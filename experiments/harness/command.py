"""Every command reports errors in one line, and leaves its processes in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the process with one line for errors of the user; `HYDRA_FULL_ERROR=1` shows all."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
