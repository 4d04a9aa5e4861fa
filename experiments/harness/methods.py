"""Registry of the methods that experiments compare, and the HMMs that they look ahead with.

Checks, tasks, figures and tables read everything about a method from its entry in `METHODS`. To add
a method, write its proposal and its entry:

    METHODS["mine"] = Method("Mine", "#CC79A7", "*", make=lambda settings, hmm: smc.Mine())

Methods that look ahead share the HMM of the run and the settings `hmm.*`. An HMM approximates one
language model over its vocabulary, so `hmm.path` only has a default for SmolLM2 on the tasks with
an HMM in models/smollm2-*-hmm. To compare several HMMs, name them: with `+hmm.paths.H64=DIR`,
`pgcd:H64` is P-GCD with that HMM, and a separate method in results.

Most methods are proposals that `smc.sample` draws from. Other methods define `Method.sample`.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from omegaconf import DictConfig, OmegaConf

import smc
from experiments.harness import smollm2
from experiments.harness.config import HMMConfig
from experiments.harness.models import ROOT, digest_of
from experiments.harness.samplers import HMMAlone
from hmm import HMM, load
from hmm._checkpoint import CONFIG, check_files
from hmm._files import read_json, write_json
from smc import LanguageModel

AUTO = "auto"
UNFITTED = "in_time"
"""Meaning of `auto` for an HMM without a fitted lookahead."""
FITTED = "lookahead"
"""Key of an HMM's `config.json` with the fitted lookahead by kind of prompt."""


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
    said = read_json(directory / CONFIG)
    said[FITTED] = dict(sorted({**said.get(FITTED, {}), kind: value}.items()))
    write_json(said, directory / CONFIG)


def _sample(*arguments: Any, **options: Any) -> list[smc.Posterior]:
    return smc.sample(*arguments, **options)


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
        indicator: the tokens with g = 1, if g is an indicator: all tokens ("lm"), tokens after
            which the text can be completed at some length ("lcd") or within the budget ("gcd").
            None for any other g, which must be zero wherever the g of "gcd" is.
        sample: called in place of `smc.sample`, with the same arguments.
        in_convergence: whether the convergence task can run the method. The task tabulates g
            according to `indicator` and ignores `sample`.
    """

    title: str
    color: str
    marker: str
    make: Callable[[HMMConfig, HMM | None], smc.Proposal]
    needs_hmm: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    indicator: Literal["lm", "lcd", "gcd"] | None = None
    sample: Callable[..., list[smc.Posterior]] = _sample
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
    "lm": Method("LM (rejection)", "#999999", "x", lambda *_: smc.LM(), indicator="lm"),
    "lcd": Method("LCD", "#D55E00", "s", lambda *_: smc.LCD(), indicator="lcd"),
    "greedy_close": Method(
        "LCD, greedy close", "#F0E442", "d", lambda *_: smc.GreedyClose(), in_convergence=False
    ),
    "gcd": Method("GCD", "#0072B2", "o", lambda *_: smc.GCD(), indicator="gcd"),
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


def hmm_settings(config: DictConfig) -> HMMConfig:
    """Return the settings `hmm.*` as a dataclass."""
    return cast(HMMConfig, OmegaConf.to_object(config.hmm))


def hmm_directory(config: DictConfig, hmm: str = "") -> Path:
    """Find the directory of the run's HMM, or of the HMM of this name.

    Raises:
        ValueError: `hmm.path` is `auto` and there is no HMM for the model, or the directory is
            invalid.
    """
    if hmm:
        return existing_hmm(f"hmm.paths.{hmm}", config.hmm.paths[hmm])
    if config.hmm.path == "auto":
        own = ROOT / "models" / f"{smollm2.NAME}-{config.task.name}-hmm"
        if config.model.path != smollm2.NAME or not own.is_dir():
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


def hmms_of(config: DictConfig) -> list[str]:
    """Return the names of the HMMs that the run needs; "" is the HMM of `hmm.path`."""
    needing = filter(needs_hmm, methods_of(config))
    return list(dict.fromkeys(name.partition(":")[2] for name in needing))


def hmm_identity(config: DictConfig) -> dict[str, float | str]:
    """Return the file digest and the lookahead of each HMM that the run needs.

    Lookahead fitted for other kinds of prompts is ignored.
    """
    found: dict[str, float | str] = {
        f"hmm_files.{name}".rstrip("."): digest_of(hmm_directory(config, name), left_out=FITTED)
        for name in hmms_of(config)
    }
    fitted = list_fitted_lookaheads(config)
    return found | {f"hmm_lookahead.{name}".rstrip("."): fitted[name] for name in fitted}


def list_fitted_lookaheads(config: DictConfig) -> dict[str, float | str]:
    """Return the value of `hmm.lookahead=auto` for each HMM whose methods use it.

    Raises:
        ValueError: an HMM wasn't fitted for the prompts of this run.
    """
    if config.hmm.lookahead != AUTO:
        return {}
    looking = [name for name in methods_of(config) if needs_hmm(name)]
    reading = [name for name in looking if "lookahead" not in method_of(name).fixed]
    names = {name.partition(":")[2] for name in reading}
    return {
        name: fit_lookahead(config, said, hmm_directory(config, name))
        for name, said in said_of_hmms(config).items()
        if name in names
    }


def said_of_hmms(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Read the `config.json` of each HMM of the run, by the HMM's name."""
    return {
        name: read_json(hmm_directory(config, name) / CONFIG, remedy="copy the HMM again")
        for name in hmms_of(config)
    }


def hidden_states(config: DictConfig) -> dict[str, int]:
    """Return the number of HMM states, for each method of the run that needs an HMM."""
    said = said_of_hmms(config)
    return {
        name: said[name.partition(":")[2]]["hidden_states"]
        for name in methods_of(config)
        if needs_hmm(name)
    }


def proposals(config: DictConfig, lm: LanguageModel) -> dict[str, smc.Proposal]:
    """Make the proposal of each method of the run; each HMM is loaded once, on the model's device.

    Raises:
        ValueError: an HMM has another vocabulary (both are named), is damaged, or wasn't fitted for
            the prompts of this run while `hmm.lookahead` is `auto`.
    """
    usual, fitted = hmm_settings(config), list_fitted_lookaheads(config)
    loaded: dict[str, tuple[HMMConfig, HMM | None]] = {"": (usual, None)}
    for name in hmms_of(config):
        hmm, _ = load(hmm_directory(config, name), vocabulary=lm.vocabulary, device=lm.device)
        lookahead = fitted.get(name, UNFITTED) if usual.lookahead == AUTO else usual.lookahead
        loaded[name] = (replace(usual, lookahead=lookahead), hmm)
    return {
        name: method_of(name).proposal(*loaded[name.partition(":")[2]])
        for name in methods_of(config)
    }


def describe_fitted(config: DictConfig) -> str:
    """Describe the value of `hmm.lookahead=auto` for each HMM; empty if it isn't used."""
    values = list_fitted_lookaheads(config)
    if not values:
        return ""
    return (
        "; ".join(
            f"hmm.lookahead{f' of {name}' if name else ''} is {value}, "
            + (
                f"fitted for {kind_of_prompt(config)}"
                if isinstance(value, float)
                else "none is fitted"
            )
            for name, value in values.items()
        )
        + "."
    )


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
        if limit is None:
            continue
        large = [number for number, size in enumerate(sizes) if size > limit]
        if large:
            most = max(large, key=sizes.__getitem__)
            raise ValueError(
                f"expected lookahead tables of at most hmm.max_table_mib={limit >> 20} MiB, but "
                f"those of {len(large)} of {len(sizes)} records are larger. The largest, of record "
                f"{records[most]}, takes {sizes[most] / 2**20:.1f} MiB; give hmm.max_table_mib="
                f"{math.ceil(sizes[most] / 2**20)}, lower the budget, or leave {name} out of "
                "task.methods"
            )
