"""The algorithms that experiments compare are entries of `ALGORITHMS`.

An entry is one of the algorithms of `smc.sample`, with some of its options fixed and the others
taken from the configuration: those of "smc" from the group `smc.*`, those of "discrete" from
`discrete.*`. It says everything that checks, tasks, figures and tables want to know. Any method
(`experiments.harness.methods`) may be run with any of them; to add one, write its entry here.

An arm of a comparison is a method with an algorithm; tables and figures have a line for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from omegaconf import DictConfig

from experiments.harness.methods import Method, method_of
from smc import algorithms
from smc.algorithms import SMC, Discrete, Options


@dataclass(frozen=True)
class Variant:
    """A way to go from a method to weighted answers.

    Attributes:
        title: its name in tables and legends.
        line: style of its lines in figures, as matplotlib has it.
        algorithm: its name in `smc.sample`, and the group of the configuration with its options.
        fixed: options that are part of the entry, whatever the configuration says.
    """

    title: str
    line: Any
    algorithm: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> list[str]:
        """Keys of the configuration that its options are taken from."""
        return [key for key in keys_of(self.algorithm) if _option(key) not in self.fixed]

    def options(self, config: DictConfig) -> Options:
        """Give its options, as `smc.sample` takes them."""
        read = {_option(key): config[self.algorithm][_option(key)] for key in self.reads}
        return cast(Options, {**read, **self.fixed})

    def arguments(self, config: DictConfig) -> dict[str, Any]:
        """Give the arguments that choose it in `smc.sample`: `algorithm`, execution, options."""
        given = config.smc
        chosen = {"execution": given.execution, "read_ahead": given.read_ahead}
        return {"algorithm": self.algorithm, **chosen, **self.options(config)}

    def make(self, config: DictConfig) -> SMC | Discrete:
        """Make the algorithm itself, for a sampler that is not `smc.sample`.

        Raises:
            ValueError: an option of the configuration makes no sense.
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
    # Nothing is resampled, so by what scheme and among whom is never asked.
    "smc_none": Variant(
        "SMC, no resampling",
        "-.",
        "smc",
        {"resampling": "systematic", "ess_threshold": 0.0, "strata": "none"},
    ),
    # The default before strata: all particles of an example compete.
    "smc_all": Variant(
        "SMC, all compete",
        (0, (6, 1, 1, 1, 1, 1)),
        "smc",
        {"resampling": "systematic", "ess_threshold": 0.5, "strata": "none"},
    ),
    "discrete": Variant("discrete", "-", "discrete"),
}


def keys_of(algorithm: str) -> list[str]:
    """Give the keys of the configuration that hold options of an algorithm of `smc.sample`."""
    return [f"{algorithm}.{each.name}" for each in fields(algorithms.ALGORITHMS[algorithm])]


def algorithms_of(config: DictConfig) -> list[str]:
    """Give the names of the algorithms that a run compares; "smc" where the task compares none."""
    return list(config.task.get("algorithms") or ("smc",))


def is_discrete(name: str) -> bool:
    """Tell whether the entry of this name keeps a pool of distinct answers, not N particles."""
    return ALGORITHMS[name].algorithm == "discrete"


def unread(config: DictConfig) -> list[str]:
    """Give the keys of options that no algorithm of the run reads."""
    read = {key for name in algorithms_of(config) for key in ALGORITHMS[name].reads}
    return [key for kind in algorithms.ALGORITHMS for key in keys_of(kind) if key not in read]


def _option(key: str) -> str:
    return key.partition(".")[2]


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
