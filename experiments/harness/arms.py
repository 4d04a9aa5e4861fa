"""An arm of a comparison is a method with an algorithm; tables and figures have a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments.harness.algorithms import ALGORITHMS, Variant
from experiments.harness.methods import Method, method_of


class Arm(NamedTuple):
    """One way to sample.

    Attributes:
        method: a name of `METHODS`, perhaps with an HMM's (`pgcd:H64`).
        algorithm: a name of `ALGORITHMS`.
    """

    method: str
    algorithm: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Arm:
        """Give the arm of a row, or of a record of a summary."""
        return cls(record["method"], record["algorithm"])

    @property
    def label(self) -> str:
        """What files call it, such as `gcd/discrete`."""
        return f"{self.method}/{self.algorithm}"

    @property
    def titles(self) -> dict[str, str]:
        """The cells of a table that name it."""
        return {"method": self._method.title, "algorithm": self._variant.title}

    @property
    def style(self) -> dict[str, Any]:
        """How its line is drawn: the method says colour and marker, the algorithm the line."""
        method = self._method
        return {"color": method.colour, "marker": method.marker, "linestyle": self._variant.line}

    @property
    def _method(self) -> Method:
        return method_of(self.method)

    @property
    def _variant(self) -> Variant:
        return ALGORITHMS[self.algorithm]


def arms_in(records: Iterable[Mapping[str, Any]]) -> list[Arm]:
    """Give the arms of rows or records, in order of first appearance."""
    return list(dict.fromkeys(map(Arm.of, records)))
