"""Registry of the algorithms that experiments compare, and arms: a method with an algorithm.

An entry of `ALGORITHMS` is an algorithm of `smc.sample` with some options fixed. The other options
come from the configuration: those of "smc" from the group `smc.*`, those of "discrete" from
`discrete.*`. Checks, tasks, figures and tables read everything about an algorithm from its entry.
Every method (`experiments.harness.methods`) can run with every algorithm.

Tables have a row and figures have a line for each arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from omegaconf import DictConfig

from experiments.harness.methods import Method, method_of
from smc._inference import algorithms
from smc._inference.algorithms import SMC, Discrete, Options


@dataclass(frozen=True)
class Variant:
    """An algorithm with its name and line style in tables and figures.

    Attributes:
        title: name in tables and legends.
        line: matplotlib line style.
        algorithm: name in `smc.sample`, and the configuration group with its options.
        fixed: options that override the configuration.
    """

    title: str
    line: Any
    algorithm: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> list[str]:
        """Configuration keys that the options are read from."""
        return [key for key in keys_of(self.algorithm) if _option(key) not in self.fixed]

    def options(self, config: DictConfig) -> Options:
        """Return the options for `smc.sample`."""
        read = {_option(key): config[self.algorithm][_option(key)] for key in self.reads}
        return cast(Options, {**read, **self.fixed})

    def arguments(self, config: DictConfig) -> dict[str, Any]:
        """Return the arguments with which `smc.sample` runs this algorithm with its options."""
        given = config.smc
        chosen = {"execution": given.execution, "read_ahead": given.read_ahead}
        return {"algorithm": self.algorithm, **chosen, **self.options(config)}

    def make(self, config: DictConfig) -> SMC | Discrete:
        """Make the algorithm object, for samplers other than `smc.sample`.

        Raises:
            ValueError: an option of the configuration is invalid.
        """
        return algorithms.algorithm(self.algorithm, self.options(config))


ALGORITHMS: dict[str, Variant] = {
    "smc": Variant("SMC", "--", "smc"),
    "smc_paper": Variant(
        "SMC, every step",
        ":",
        "smc",
        {"resampling": "multinomial", "ess_threshold": 1.0, "strata": "none"},
    ),
    # Never resamples, so the resampling scheme and the strata have no effect.
    "smc_none": Variant(
        "SMC, no resampling",
        "-.",
        "smc",
        {"resampling": "systematic", "ess_threshold": 0.0, "strata": "none"},
    ),
    "discrete": Variant("discrete", "-", "discrete"),
}


def keys_of(algorithm: str) -> list[str]:
    """Return the configuration keys with the options of an algorithm of `smc.sample`."""
    return [f"{algorithm}.{each.name}" for each in fields(algorithms.ALGORITHMS[algorithm])]


def algorithms_of(config: DictConfig) -> list[str]:
    """Return the algorithms that a run compares; "smc" if the task doesn't compare any."""
    return list(config.task.get("algorithms") or ("smc",))


def is_discrete(name: str) -> bool:
    """Return whether an algorithm is the discrete filter, which keeps distinct prefixes."""
    return ALGORITHMS[name].algorithm == "discrete"


def unread(config: DictConfig) -> list[str]:
    """Return the keys of options that no algorithm of the run uses."""
    read = {key for name in algorithms_of(config) for key in ALGORITHMS[name].reads}
    return [key for kind in algorithms.ALGORITHMS for key in keys_of(kind) if key not in read]


def _option(key: str) -> str:
    return key.partition(".")[2]


class Arm(NamedTuple):
    """A method with an algorithm.

    Attributes:
        method: key of `METHODS`, optionally with the name of an HMM (`pgcd:H64`).
        algorithm: key of `ALGORITHMS`.
    """

    method: str
    algorithm: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Arm:
        """Return the arm of a row or of a summary record."""
        return cls(record["method"], record["algorithm"])

    @property
    def label(self) -> str:
        """Name in files, such as `gcd/discrete`."""
        return f"{self.method}/{self.algorithm}"

    @property
    def titles(self) -> dict[str, str]:
        """Table cells that name the arm."""
        return {"method": self._method.title, "algorithm": self._variant.title}

    @property
    def style(self) -> dict[str, Any]:
        """Line properties in figures: the method's color and marker, the algorithm's line style."""
        method = self._method
        return {"color": method.color, "marker": method.marker, "linestyle": self._variant.line}

    @property
    def _method(self) -> Method:
        return method_of(self.method)

    @property
    def _variant(self) -> Variant:
        return ALGORITHMS[self.algorithm]


def arms_in(records: Iterable[Mapping[str, Any]]) -> list[Arm]:
    """Return the distinct pairs of method and algorithm in rows, in order of first appearance."""
    return list(dict.fromkeys(map(Arm.of, records)))
