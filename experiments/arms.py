"""Arms of a comparison: methods, algorithms, and the HMMs that methods look ahead with.

Checks, tasks, figures and tables read everything about a method from its entry in `METHODS`, and
about an algorithm from its entry in `ALGORITHMS`. Every method runs with every algorithm; a pair
is an `Arm`, which has a row in tables and a line in figures. To add a method, write its proposal
and its entry:

    METHODS["mine"] = Method("Mine", "#CC79A7", "*", make=lambda settings, hmm: smc.Mine())

Methods that look ahead share the HMM of the run and the settings `hmm.*`. An HMM approximates one
language model over its vocabulary, so `hmm.path` only has a default for SmolLM2 on the tasks with
an HMM in models/smollm2-*-hmm. To compare several HMMs, name them: with `+hmm.paths.H64=DIR`,
`pgcd:H64` is P-GCD with that HMM, and a separate method in results.

Fitted lookahead: an HMM doesn't see the prompt. If the prompt states what the constraint demands,
the language model follows it anyway, and an HMM that finds it improbable is misleading. Otherwise
only the HMM knows which continuations can satisfy the constraint. `smc.PGCD`'s `lookahead` is a
number between these cases, from 0 ("in_time") to 1 ("conditional"). It is fitted per kind of prompt
to the highest mean log evidence on held-out records, and stored in the HMM's `config.json`. In
expectation each log evidence is a lower bound, so the highest one belongs to the proposal closest
to the posterior (Maddison et al., "Filtering Variational Objectives", NeurIPS 2017).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from omegaconf import DictConfig, OmegaConf

import smc
from experiments.config import Config, HMMConfig, at_least, distinct, one_of, refuse_unused
from experiments.models import ROOT, SMOLLM2, digest_of
from gcd import TokenAutomaton, Vocabulary
from hmm import HMM, load
from hmm._checkpoint import check_files
from hmm._files import read_json, write_json
from smc import SMC, Discrete, LanguageModel
from smc._proposals.twisted import belief_of

AUTO = "auto"
UNFITTED = "in_time"
"""Meaning of `auto` for an HMM without a fitted lookahead."""
FITTED = "lookahead"
"""Key of an HMM's `config.json` with the fitted lookahead by kind of prompt."""


# -- methods


@dataclass(frozen=True)
class Method:
    """A method for drawing texts from a language model under a constraint.

    Attributes:
        title: name in tables and legends.
        color: matplotlib color.
        marker: matplotlib marker.
        make: makes the proposal from the settings `hmm.*` and the HMM (None unless `needs_hmm`).
        needs_hmm: whether the method looks ahead with an HMM.
        fixed: settings of `hmm.*` that override the configuration.
        sample: called in place of `smc.sample`, with the same arguments; None for `smc.sample`.
        in_convergence: whether the convergence task, which ignores `sample`, can run the method.
    """

    title: str
    color: str
    marker: str
    make: Callable[[HMMConfig, HMM | None], smc.Proposal]
    needs_hmm: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    sample: Callable[..., list[smc.Posterior]] | None = None
    in_convergence: bool = True

    def proposal(self, settings: HMMConfig, hmm: HMM | None = None) -> smc.Proposal:
        """Make the proposal; settings that the method fixes override `settings`.

        Raises:
            ValueError: the method needs an HMM and none was given, or the proposal rejects it.
        """
        if self.needs_hmm and hmm is None:
            raise ValueError(f"expected an HMM for the method {self.title}, got none")
        fixed = replace(settings, **self.fixed) if self.fixed else settings
        return self.make(fixed, hmm if self.needs_hmm else None)


class HMMAlone(smc.PGCD):
    """P-GCD whose language model is its own HMM.

    The target is p_hmm( x | x in C, |x| <= budget ). Sampling is exact token by token, so all
    particles have the same weight. The score shows how well the HMM predicts answers without the
    request; the difference from P-GCD is due to the language model.

    Args:
        hmm: an HMM over the vocabulary of the language model that it replaces.
        max_bytes: see `smc.PGCD`.
    """

    FIXED: ClassVar[Mapping[str, Any]] = {
        "lookahead": "conditional",
        "exact_top_k": None,
        "defense": 0.0,
    }
    """Settings `hmm.*` with which sampling is exact."""

    def __init__(self, hmm: HMM, *, max_bytes: int) -> None:
        super().__init__(hmm, **self.FIXED, max_bytes=max_bytes)
        self._model: smc.HMMLanguageModel | None = None

    def model(self, vocabulary: Vocabulary) -> smc.HMMLanguageModel:
        """Return the HMM as a language model, which is made once."""
        if self._model is None:
            self._model = smc.HMMLanguageModel(self.hmm, vocabulary)
        return self._model

    @staticmethod
    def sample(
        lm: LanguageModel,
        prompts: Sequence[Any],
        automata: TokenAutomaton | Sequence[TokenAutomaton],
        *,
        proposal: HMMAlone,
        hooks: smc.Hooks | None = None,
        **options: Any,
    ) -> list[smc.Posterior]:
        """Sample from the HMM, which ignores prompts; arguments as for `smc.sample`.

        Returns:
            Posteriors marked as inexact and without evidence, as both would refer to the HMM. The
            language model wasn't called, so `lm_calls` and `tokens` are zero.
        """
        hooks = smc.Hooks() if hooks is None else hooks
        finished = hooks.finished

        def unread(found: Mapping[int, smc.Posterior]) -> None:
            cast(Any, finished)({index: _unread(each) for index, each in found.items()})

        if finished is not None:
            hooks = replace(hooks, finished=unread)
        found = smc.sample(
            proposal.model(lm.vocabulary), [(0,)] * len(prompts), automata, proposal=proposal,
            hooks=hooks, **options,
        )  # fmt: skip
        return list(map(_unread, found))


def _unread(posterior: smc.Posterior) -> smc.Posterior:
    """Remove the values of a posterior that refer to the HMM."""
    costs = replace(posterior.diagnostics, lm_calls=0, tokens=0)
    return replace(
        posterior, log_evidence=None, exact=False, diagnostics=costs, bounds=None, budget=None
    )


def _pgcd(settings: HMMConfig, hmm: HMM | None) -> smc.Proposal:
    return smc.PGCD(
        cast(HMM, hmm),
        lookahead=settings.lookahead,
        exact_top_k=settings.exact_top_k,
        defense=settings.defense,
        max_bytes=settings.max_table_mib << 20,
    )


def _looking_ahead(title: str, color: str, marker: str, **fixed: Any) -> Method:
    return Method(title, color, marker, _pgcd, needs_hmm=True, fixed=fixed)


def _alone(settings: HMMConfig, hmm: HMM | None) -> smc.Proposal:
    return HMMAlone(cast(HMM, hmm), max_bytes=settings.max_table_mib << 20)


# Colors are distinguishable with color blindness (Okabe and Ito 2008).
METHODS: dict[str, Method] = {
    "lm": Method("LM (rejection)", "#999999", "x", lambda *_: smc.LM()),
    "lcd": Method("LCD", "#D55E00", "s", lambda *_: smc.LCD()),
    "greedy_close": Method(
        "LCD, greedy close", "#F0E442", "d", lambda *_: smc.GreedyClose(), in_convergence=False
    ),
    "gcd": Method("GCD", "#0072B2", "o", lambda *_: smc.GCD()),
    "pgcd": _looking_ahead("P-GCD", "#009E73", "^"),
    "pgcd_tied": _looking_ahead("P-GCD, class-tied", "#E69F00", "v", exact_top_k=0),
    "pgcd_exact": _looking_ahead("P-GCD, exact", "#000000", "+", exact_top_k=None),
    "pgcd_in_time": _looking_ahead("P-GCD, in time", "#56B4E9", "P", lookahead="in_time"),
    "pgcd_conditional": _looking_ahead(
        "P-GCD, conditional", "#117733", "p", lookahead="conditional"
    ),
    "pgcd_joint": _looking_ahead("P-GCD, joint", "#CC79A7", "D", lookahead="joint"),
    "hmm": Method(
        "HMM alone",
        "#8C564B",
        "h",
        _alone,
        needs_hmm=True,
        fixed=HMMAlone.FIXED,
        sample=HMMAlone.sample,
        in_convergence=False,
    ),
}


def method_of(name: str) -> Method:
    """Return the method of this name; `pgcd:H64` is `pgcd` with the HMM H64 of `hmm.paths`."""
    base, _, hmm = name.partition(":")
    method = METHODS[base]
    return replace(method, title=f"{method.title} {hmm}", marker=f"${hmm}$") if hmm else method


def needs_hmm(name: str) -> bool:
    """Return whether the method of this name looks ahead with an HMM."""
    return method_of(name).needs_hmm


def methods_of(config: DictConfig) -> list[str]:
    """Return the methods that a run compares; empty if the task doesn't compare any."""
    return list(config.task.get("methods") or ())


# -- algorithms


_KINDS: dict[str, Any] = {"smc": SMC, "discrete": Discrete}


@dataclass(frozen=True)
class Variant:
    """An algorithm of `smc.sample` with some options fixed.

    The other options come from the configuration: those of "smc" from the group `smc.*`, those of
    "discrete" from `discrete.*`.

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
        every = fields(_KINDS[self.algorithm])
        return [f"{self.algorithm}.{each.name}" for each in every if each.name not in self.fixed]

    def make(self, config: DictConfig) -> SMC | Discrete:
        """Make the algorithm with its options.

        Raises:
            ValueError: an option of the configuration is invalid.
        """
        read = {key.partition(".")[2]: OmegaConf.select(config, key) for key in self.reads}
        return _KINDS[self.algorithm](**{**read, **self.fixed})


_PAPER = {"resampling": "multinomial", "ess_threshold": 1.0, "strata": "none"}
# Without resampling, its scheme and the strata have no effect.
_NONE = {"resampling": "systematic", "ess_threshold": 0.0, "strata": "none"}
ALGORITHMS: dict[str, Variant] = {
    "smc": Variant("SMC", "--", "smc"),
    "smc_paper": Variant("SMC, every step", ":", "smc", _PAPER),
    "smc_none": Variant("SMC, no resampling", "-.", "smc", _NONE),
    "discrete": Variant("discrete", "-", "discrete"),
}


def algorithms_of(config: DictConfig) -> list[str]:
    """Return the algorithms that a run compares; "smc" if the task doesn't compare any."""
    return list(config.task.get("algorithms") or ("smc",))


def is_discrete(name: str) -> bool:
    """Return whether an algorithm is the discrete filter, which keeps distinct prefixes."""
    return ALGORITHMS[name].algorithm == "discrete"


def unread(config: DictConfig) -> list[str]:
    """Return the keys of options that no algorithm of the run uses."""
    read = {key for name in algorithms_of(config) for key in ALGORITHMS[name].reads}
    every = [f"{name}.{each.name}" for name, kind in _KINDS.items() for each in fields(kind)]
    return [key for key in every if key not in read]


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
        variant = ALGORITHMS[self.algorithm]
        return {"method": method_of(self.method).title, "algorithm": variant.title}

    @property
    def style(self) -> dict[str, Any]:
        """Line properties in figures: the method's color and marker, the algorithm's line style."""
        method, line = method_of(self.method), ALGORITHMS[self.algorithm].line
        return {"color": method.color, "marker": method.marker, "linestyle": line}


def arms_in(records: Iterable[Mapping[str, Any]]) -> list[Arm]:
    """Return the distinct pairs of method and algorithm in rows, in order of first appearance."""
    return list(dict.fromkeys(map(Arm.of, records)))


# -- the HMMs of a run


class RunHMM(NamedTuple):
    """An HMM of a run, which isn't loaded yet.

    Attributes:
        directory: directory of its files.
        said: content of its `config.json`.
        fitted: the value of `hmm.lookahead=auto`; None if no method of this HMM uses it.
    """

    directory: Path
    said: Mapping[str, Any]
    fitted: float | str | None


def hmms_of(config: DictConfig) -> dict[str, RunHMM]:
    """Find the HMMs that the run needs, by name; "" is the HMM of `hmm.path`.

    Raises:
        ValueError: a directory doesn't exist or is damaged; or an HMM wasn't fitted for the prompts
            of this run while `hmm.lookahead` is `auto`.
    """
    found: dict[str, RunHMM] = {}
    for name in names_of_hmms(config):
        directory = hmm_directory(config, name)
        said = read_json(directory / "config.json", remedy="copy the HMM again")
        own = [method_of(m) for m in methods_of(config) if needs_hmm(m) and _hmm_in(m) == name]
        reads = config.hmm.lookahead == AUTO and any("lookahead" not in m.fixed for m in own)
        found[name] = RunHMM(
            directory, said, fit_lookahead(config, said, directory) if reads else None
        )
    return found


def names_of_hmms(config: DictConfig) -> list[str]:
    """Return the names of the HMMs that the run needs; "" is the HMM of `hmm.path`."""
    return list(dict.fromkeys(_hmm_in(name) for name in methods_of(config) if needs_hmm(name)))


def _hmm_in(method: str) -> str:
    return method.partition(":")[2]


def hmm_directory(config: DictConfig, hmm: str = "") -> Path:
    """Find the directory of the run's HMM, or of the HMM of this name.

    Raises:
        ValueError: `hmm.path` is `auto` and there is no HMM for the model, or the directory is
            invalid.
    """
    if hmm:
        return existing_hmm(f"hmm.paths.{hmm}", config.hmm.paths[hmm])
    if config.hmm.path == "auto":
        own = ROOT / "models" / f"{SMOLLM2}-{config.task.name}-hmm"
        if config.model.path != SMOLLM2 or not own.is_dir():
            names = ", ".join(n for n in methods_of(config) if needs_hmm(n) and ":" not in n)
            raise ValueError(
                f"expected an HMM for {names} in task.methods, but none is distilled from "
                f"model.path={config.model.path} for the task {config.task.name}; make one with "
                f"`python -m scripts.distill_hmm source={config.task.name} records.path=FILE "
                f"model.path={config.model.path}` and give hmm.path=DIR, or leave {names} out of "
                "task.methods"
            )
        return existing_hmm("hmm.path", str(own))
    return existing_hmm("hmm.path", config.hmm.path)


def existing_hmm(key: str, path: str) -> Path:
    """Find the directory of an HMM and check its files, without loading them.

    Raises:
        ValueError: the directory doesn't exist, or its files are missing or truncated.
    """
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"expected an HMM in {key}={path}, but {directory} has no config.json; give a "
            "directory that scripts.distill_hmm has written (runs/distill-*/hmm), or one in "
            "Ctrl-G's layout"
        )
    try:
        check_files(directory)
    except ValueError as error:
        raise ValueError(f"{key}={path}: {error}") from error
    return directory


def kind_of_prompt(config: DictConfig) -> str:
    """Return the kind of prompt of a run: the task, and how much its prompts tell."""
    return "/".join(filter(None, [config.task.name, config.task.get("told")]))


def fit_lookahead(config: DictConfig, said: Mapping[str, Any], directory: Path) -> float | str:
    """Return the fitted lookahead of an HMM for the prompts of a run.

    Args:
        config: the configuration of the run.
        said: content of the HMM's `config.json`.
        directory: directory of the HMM, for the message.

    Raises:
        ValueError: the lookahead was fitted only for other kinds of prompts; or it wasn't fitted,
            and the prompts don't state all demands, so that "in_time" would be a poor choice.
    """
    known, kind = said.get(FITTED, {}), kind_of_prompt(config)
    if not known and config.task.get("told", "all") == "all":
        return UNFITTED
    if kind not in known:
        raise ValueError(
            f"expected an HMM whose lookahead was fitted for prompts of the kind {kind}, because "
            f"hmm.lookahead=auto; the one in {directory} was fitted for "
            f"{', '.join(known) or 'no prompts'}. Fit it with `python -m scripts.fit_lookahead "
            f"+task={config.task.name} ...` on other records than these, or give "
            "hmm.lookahead=in_time, conditional, or a number between 0 and 1"
        )
    return float(known[kind])


def keep_lookahead(directory: Path, kind: str, value: float) -> None:
    """Store the fitted lookahead for a kind of prompt in the HMM's `config.json`."""
    said = read_json(directory / "config.json")
    said[FITTED] = dict(sorted({**said.get(FITTED, {}), kind: value}.items()))
    write_json(said, directory / "config.json")


def hmm_settings(config: DictConfig, fitted: float | str | None = None) -> HMMConfig:
    """Return the settings `hmm.*` as a dataclass, with the fitted lookahead in place of `auto`."""
    settings = cast(HMMConfig, OmegaConf.to_object(config.hmm))
    if settings.lookahead != AUTO:
        return settings
    return replace(settings, lookahead=UNFITTED if fitted is None else fitted)


def hmm_identity(config: DictConfig) -> dict[str, float | str]:
    """Return the file digest and the lookahead of each HMM that the run needs.

    Lookahead fitted for other kinds of prompts is ignored.
    """
    found: dict[str, float | str] = {}
    for name, each in hmms_of(config).items():
        found[f"hmm_files.{name}".rstrip(".")] = digest_of(each.directory, left_out=FITTED)
        if each.fitted is not None:
            found[f"hmm_lookahead.{name}".rstrip(".")] = each.fitted
    return found


def proposals(config: DictConfig, lm: LanguageModel) -> dict[str, smc.Proposal]:
    """Make the proposal of each method of the run; each HMM is loaded once, on the model's device.

    Raises:
        ValueError: an HMM has another vocabulary (both are named), is damaged, or wasn't fitted for
            the prompts of this run while `hmm.lookahead` is `auto`.
    """
    loaded: dict[str, tuple[HMMConfig, HMM | None]] = {"": (hmm_settings(config), None)}
    for name, each in hmms_of(config).items():
        hmm, _ = load(each.directory, vocabulary=lm.vocabulary, device=lm.device)
        loaded[name] = hmm_settings(config, each.fitted), hmm
    return {name: method_of(name).proposal(*loaded[_hmm_in(name)]) for name in methods_of(config)}


def describe_fitted(config: DictConfig) -> str:
    """Describe the value of `hmm.lookahead=auto` for each HMM; empty if it isn't used."""
    said = [
        f"hmm.lookahead{f' of {name}' if name else ''} is {each.fitted}, "
        + (
            f"fitted for {kind_of_prompt(config)}"
            if isinstance(each.fitted, float)
            else "none is fitted"
        )
        for name, each in hmms_of(config).items()
        if each.fitted is not None
    ]
    return f"{'; '.join(said)}." if said else ""


def refuse_little_memory(
    methods: Mapping[str, smc.Proposal], records: Sequence[str], needs: Mapping[str, Sequence[int]]
) -> None:
    """Refuse a run whose memory limit is too small for a lookahead table.

    Skipping the record instead would make results depend on memory.

    Args:
        methods: proposals by name.
        records: names of the records.
        needs: for each method, the size of each record's table in bytes.

    Raises:
        ValueError: a table is larger than the limit; the message has a sufficient limit.
    """
    for name, proposal in methods.items():
        limit, sizes = proposal.max_bytes, needs[name]
        large = [] if limit is None else [i for i, size in enumerate(sizes) if size > limit]
        if limit is not None and large:
            most = max(large, key=sizes.__getitem__)
            raise ValueError(
                f"expected lookahead tables of at most hmm.max_table_mib={limit >> 20} MiB, but "
                f"those of {len(large)} of {len(sizes)} records are larger. The largest, of record "
                f"{records[most]}, takes {sizes[most] / 2**20:.1f} MiB; give hmm.max_table_mib="
                f"{math.ceil(sizes[most] / 2**20)}, lower the budget, or leave {name} out of "
                "task.methods"
            )


# -- checks


def check_arms(config: DictConfig) -> None:
    """Check `task.methods`, `task.algorithms` and `task.particles`, and the settings they read.

    Raises:
        ValueError: a value is invalid, or a setting that no arm of the run reads isn't its default.
    """
    task = config.task
    if "methods" in task:
        distinct("task.methods", task.methods)
        distinct("task.particles", task.particles)
        for method in task.methods:
            one_of("task.methods", method.partition(":")[0], tuple(METHODS))
        for count in task.particles:
            at_least("task.particles", count, 1)
    if "algorithms" in task:
        distinct("task.algorithms", task.algorithms)
        for name in task.algorithms:
            one_of("task.algorithms", name, tuple(ALGORITHMS))
    _check_hmms(config)
    names = algorithms_of(config)
    reason = f"no algorithm of this run ({', '.join(names)}) reads it; leave it out"
    if "algorithms" in task:
        reason += ", or add one that does to task.algorithms"
    refuse_unused(config, Config, unread(config), reason)
    for name in names:
        try:
            ALGORITHMS[name].make(config)
        except ValueError as error:
            raise ValueError(f"{ALGORITHMS[name].algorithm}.*, for {name}: {error}") from error


def _check_hmms(config: DictConfig) -> None:
    """Check `hmm.*`, and that `hmm.paths` has exactly the HMMs that methods name."""
    hmm, paths = config.hmm, list(config.hmm.paths)
    if hmm.lookahead != AUTO:
        belief_of("hmm.lookahead", hmm.lookahead)
    at_least("hmm.exact_top_k", hmm.exact_top_k, 0)
    if not 0 <= hmm.defense <= 1:
        raise ValueError(f"expected hmm.defense to be from 0 to 1, got {hmm.defense}")
    at_least("hmm.max_table_mib", hmm.max_table_mib, 1)
    for method in methods_of(config):
        base, colon, name = method.partition(":")
        if colon and not needs_hmm(base):
            raise ValueError(
                f"expected {base} in task.methods, got {method}; {base} doesn't use an HMM, so "
                "leave out the HMM's name"
            )
        if colon and name not in paths:
            raise ValueError(
                f"expected the HMM {name!r} of {method} (task.methods) in hmm.paths, got "
                f"{', '.join(paths) or 'none'}; give +hmm.paths.{name}=DIR"
            )
    for name in paths:
        if not re.fullmatch(r"[A-Za-z0-9]{1,12}", name):
            raise ValueError(
                f"expected names of 1 to 12 letters and digits in hmm.paths, got {name!r}"
            )
    refuse_unused(config, Config, *_unread_hmm_settings(config))


def _unread_hmm_settings(config: DictConfig) -> tuple[list[str], str]:
    """Return the keys `hmm.*` that no method of the run reads, and the reason."""
    every = [each.name for each in fields(HMMConfig)]
    looking = [method_of(name) for name in methods_of(config) if needs_hmm(name)]
    if not looking:
        names = ", ".join(filter(needs_hmm, METHODS))
        keys = [f"hmm.{name}" for name in every]
        return keys, f"of the methods {names} alone look ahead, and none is run; leave hmm.* out"
    ignored = [name for name in every if all(name in method.fixed for method in looking)]
    named = names_of_hmms(config)
    ignored += ["path"] * ("" not in named) + ["paths"] * (named == [""])
    reason = "no method of task.methods reads it (pgcd:NAME reads hmm.paths); leave it out"
    return [f"hmm.{name}" for name in ignored], reason
