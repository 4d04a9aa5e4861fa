"""Every command reports errors in one line, leaves its processes in order, and can be repeated."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from experiments.harness.identity import flat

_PLAIN = re.compile(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*")


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


def to_repeat(module: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Write the command that has these settings, with every one that is not the default."""
    defaults = flat(dict(usual))
    settings = flat(dict(given)).items()
    changed = [f"{key}={_word(value)}" for key, value in settings if defaults[key] != value]
    return shlex.join(["python", "-m", module, *changed])


def _word(value: object) -> str:
    """A value as Hydra reads it: text in quotes where it could be taken for something else."""
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        # A backslash is one but before a quote, or at the end.
        escaped = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + m[2].replace("'", "\\'"), value)
        return f"'{escaped}'"
    return "null" if value is None else str(value)
