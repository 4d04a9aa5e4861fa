"""P-GCD in an engine: HMMs that requests refer to by name.

A request can't contain an HMM, so it has the name of one. When the engine starts, the environment
variable `GCD_VLLM_HMMS` gives a directory whose subdirectories are checkpoints of `hmm.save`.
`gcd_vllm.PGCD("answers")` is P-GCD with the HMM in the subdirectory `answers`. Each process loads
an HMM when a request first names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from gcd import ConstraintError, Vocabulary

DIRECTORY = "GCD_VLLM_HMMS"
"""Environment variable with the directory of the engine's HMMs."""
MOST_PROPOSALS = 16
"""Maximum number of proposals that a process caches, because clients choose their options."""


@dataclass(frozen=True)
class PGCD:
    """P-GCD with an HMM of the engine, as the proposal of `gcd_vllm.sample`.

    Args:
        hmm: name of a subdirectory of the directory `GCD_VLLM_HMMS` of the engine.
        lookahead: as in `smc.PGCD`; use "in_time" if the prompt states the content of the answer.
        exact_top_k: as in `smc.PGCD`.
        defense: as in `smc.PGCD`.

    Raises:
        ValueError: an argument is invalid.
    """

    hmm: str
    lookahead: str | float = "conditional"
    exact_top_k: int | None = 64
    defense: float = 0.01

    def __post_init__(self) -> None:
        name = self.hmm
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise ValueError(
                f"expected hmm to be the name of a subdirectory of {DIRECTORY}, got {name!r}; "
                "save the model there with hmm.save, and give its name without a path"
            )

    def member(self) -> dict[str, Any]:
        """Return these options as the member `pgcd` of a particle request's JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, given: Any) -> PGCD:
        """Read the options from the member `pgcd` of a particle request's JSON object."""
        if not isinstance(given, Mapping):
            raise ConstraintError(
                f"expected pgcd to be an object with the name of an HMM as hmm, got {given!r}"
            )
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            raise ConstraintError(f"cannot use the options of pgcd: {error}") from None

    def directory(self) -> Path:
        """Return the directory of the HMM, inside of the directory in `GCD_VLLM_HMMS`."""
        root = os.environ.get(DIRECTORY)
        if not root:
            raise ConstraintError(
                f"expected an engine with {DIRECTORY} set to a directory of HMMs, for pgcd with "
                f"hmm={self.hmm!r}, got an unset variable; set it and restart the engine"
            )
        found = Path(root) / self.hmm
        if not found.is_dir():
            names = sorted(each.name for each in Path(root).glob("*") if each.is_dir())
            raise ConstraintError(
                f"expected pgcd to name one of the HMMs in the directory of {DIRECTORY} "
                f"({', '.join(names) or 'it has none'}), got {self.hmm!r}"
            )
        return found

    def proposal(self, vocabulary: Vocabulary, device: torch.device) -> Any:
        """Return the `smc.PGCD` for these options; equal options share an object and its tables.

        The latest objects are cached. Requests in progress keep their object.
        """
        directory = self.directory()
        key = self, str(directory), str(device)
        with _lock:
            if key not in _proposals:
                _proposals[key] = self._make(directory, vocabulary, device)
                if len(_proposals) > MOST_PROPOSALS:
                    del _proposals[next(iter(_proposals))]
            return _proposals[key]

    def _make(self, directory: Path, vocabulary: Vocabulary, device: torch.device) -> Any:
        import hmm
        import smc

        name = str(directory), str(device)
        try:
            if name not in _hmms:
                _hmms[name] = hmm.load(directory, vocabulary=vocabulary, device=device).hmm
            made = smc.PGCD(
                _hmms[name],
                lookahead=self.lookahead,
                exact_top_k=self.exact_top_k,
                defense=self.defense,
            )
        except ValueError as error:
            raise ConstraintError(f"cannot use pgcd with hmm={self.hmm!r}: {error}") from error
        return made if device.type == "cpu" else made.without_host_sync()


_lock = Lock()
_hmms: dict[tuple[str, str], Any] = {}
_proposals: dict[tuple[PGCD, str, str], Any] = {}
