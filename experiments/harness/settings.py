"""Checks of the settings that all tasks share, and token budgets given by name.

Every check runs before anything is loaded and raises `ValueError` with the key, its value and what
to give instead. Tasks also check their own settings.

**Budgets.** A budget counts generated tokens, EOS included. A named budget is a linear function of
the fewest tokens that any answer needs, so it adapts to long tool names and to terse notations. It
doesn't depend on the gold answer.

                                   gold answers of xLAM records 500 to 599 that fit, in
    name      tokens               SmolLM2's tokens, in JSON and in Python style
    tight     1 x fewest + 16           20%,  29%
    default   2 x fewest + 32           72%,  82%
    loose     4 x fewest + 96          100%, 100%

The figures are of 99 records, as one record has two tools of the same name and is refused. They
were measured with `task.literals=all`. With canonical tokenization the fewest tokens in JSON are
0.4% more, and one more answer fits `tight`.

`gold:1.25` models users who know roughly how long answers are and leave some room in `max_tokens`.
It is 1.25 times the number of tokens of the gold answer, EOS included, rounded up. A record whose
gold answer isn't in its language is refused. `fewest:1.25` is 1.25 times the fewest tokens of any
answer. With a list of budgets, each record becomes one example per budget.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from experiments.harness.algorithms import ALGORITHMS, algorithms_of, unread
from experiments.harness.config import (
    DTYPES,
    ENGINES,
    PROMPTS,
    WANDB_MODES,
    Config,
    HMMConfig,
    ModelConfig,
    RecordConfig,
    TraceConfig,
)
from experiments.harness.methods import AUTO, METHODS, hmms_of, method_of, methods_of, needs_hmm
from experiments.harness.vllm_model import check_engine
from gcd import ConstraintError, TokenAutomaton
from gcd._tokens.spellings import LITERALS
from smc._inference.settings import COLDEST, EXECUTIONS
from smc._proposals.twisted import belief_of


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that isn't in the list."""
    if value not in allowed:
        raise ValueError(f"expected {key} to be one of {', '.join(allowed)}, got {value!r}")


def at_least(key: str, value: int | None, least: int) -> None:
    """Refuse a number below `least`; None is accepted."""
    if value is not None and value < least:
        raise ValueError(f"expected {key} to be at least {least}, got {value}")


def inside(key: str, value: float, interval: str, holds: bool) -> None:
    """Refuse a number outside an interval; `holds` tells whether it is inside."""
    if not holds:
        raise ValueError(f"expected {key} to be in {interval}, got {value}")


def distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse an empty list and a list with duplicates."""
    if not values:
        raise ValueError(f"expected at least one value in {key}, got an empty list")
    if len(set(values)) != len(values):
        raise ValueError(f"expected different values in {key}, got {list(values)}")


def writable(what: str, key: str, directory: Path) -> None:
    """Refuse a directory that can't be created or isn't writable."""
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"cannot write {what} to {directory}, because {parent} isn't a writable directory; "
            f"give another one with {key}=DIR"
        )


def refuse_unused(config: DictConfig, schema: Any, keys: Iterable[str], reason: str) -> None:
    """Raise an error for unused settings that differ from the schema's defaults."""
    usual = OmegaConf.structured(schema)
    values = {key: OmegaConf.select(config, key) for key in keys}
    changed = [f"{k}={v}" for k, v in values.items() if v != OmegaConf.select(usual, k)]
    if changed:
        raise ValueError(f"{', '.join(changed)} would be ignored: {reason}")


LINEAR = {"tight": (1, 16), "default": (2, 32), "loose": (4, 96)}  # factor, tokens on top
FACTORS = {"gold": "tokens of the gold answer", "fewest": "fewest tokens of any answer"}
"""Kinds of multiples, with a description of what is multiplied."""


def budget_of(
    spec: int | str,
    automaton: TokenAutomaton,
    gold: Sequence[int] | None = None,
) -> int:
    """Compute a budget in tokens.

    Args:
        spec: tokens; a name of `LINEAR`; or a multiple such as `gold:1.25`.
        automaton: the constraint, for the fewest tokens of an answer.
        gold: tokens of the gold answer without EOS, if there is one.

    Raises:
        ConstraintError: `spec` is a multiple of a gold answer that the constraint excludes.
        ValueError: `spec` is a multiple of a gold answer and there is none.
    """
    if isinstance(spec, int):
        return spec
    fewest = automaton.fewest_tokens
    if isinstance(spec, str) and ":" in spec:
        name, factor = multiple_of(spec)
        if name == "fewest":
            return math.ceil(factor * fewest)
        if gold is None:
            raise ValueError(
                f"expected a task whose records have a gold answer for task.budget={spec}, got one "
                f"without; give fewest:{factor:g}, or a number of tokens"
            )
        if not automaton.accepts(gold):
            raise ConstraintError("expected a gold answer that satisfies the record's constraint")
        return math.ceil(factor * (len(gold) + 1))
    times, extra = LINEAR[spec]
    return times * fewest + extra


def multiple_of(spec: str) -> tuple[str, float]:
    """Parse `gold:1.25` as ("gold", 1.25).

    Raises:
        ValueError: `spec` isn't of this form.
    """
    name, _, factor = spec.partition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if name not in FACTORS or not 1 <= value < math.inf:
        raise ValueError(f"expected a multiple such as gold:1.25 or fewest:1.25, got {spec!r}")
    return name, value


def budgets_in(spec: Any) -> list[Any]:
    """Return the budgets of a run as a list."""
    return list(spec) if isinstance(spec, ListConfig | list) else [spec]


def title_of_budgets(spec: Any) -> str:
    """Describe the budgets of a run."""
    budgets = budgets_in(spec)
    if len(budgets) > 1 and all(":" in str(each) for each in budgets):
        name, _ = multiple_of(budgets[0])
        *first, last = (f"{multiple_of(each)[1]:g}" for each in budgets)
        return f"{', '.join(first)} and {last} times the {FACTORS[name]}"
    return " and ".join(map(str, budgets))


def part_of(style: str, spec: Any) -> str:
    """Return a name for the rows of a run that have this style of answers and this budget."""
    return f"{style}, {spec}" if style else f"{spec}"


def multiple_in(part: str) -> tuple[str, float] | None:
    """Return the style and the factor in a name by `part_of`; None if the budget has no factor."""
    style, _, spec = part.rpartition(", ")
    try:
        return style, multiple_of(spec)[1]
    except ValueError:
        return None


def check_budget(key: str, spec: Any) -> None:
    """Refuse a setting that is neither a budget nor a list of distinct budgets."""
    if isinstance(spec, ListConfig):
        for each in spec:
            check_budget(key, each)
        multiples = [multiple_of(each) for each in spec if ":" in str(each)]
        others = [each for each in spec if ":" not in str(each)]
        different = len(set(multiples)) == len(multiples) and len(set(others)) == len(others)
        if not spec or not different:
            raise ValueError(f"expected {key} to be one or several different budgets, got {spec!r}")
        if len({name for name, _ in multiples}) > 1:
            raise ValueError(
                f"expected multiples of either gold or fewest in {key}, because they share a "
                f"figure; got {spec!r}; make two runs"
            )
        return
    if isinstance(spec, bool) or not isinstance(spec, int | str):
        raise ValueError(f"expected {key} to be a whole number or a name, got {spec!r}")
    if isinstance(spec, int):
        at_least(key, spec, 1)
    elif ":" in spec:
        multiple_of(spec)
    elif spec not in LINEAR:
        raise ValueError(
            f"expected {key} to be a number of tokens, one of {', '.join(LINEAR)}, or a multiple "
            f"such as gold:1.25, got {spec!r}"
        )


MOST_TRACED = 4096
"""Maximum number of particles of one trial to trace, over all examples; 20 MB at 60 tokens."""


def check_model(config: DictConfig) -> None:
    """Check `model.*`, `wandb.*` and `seed`, which all commands have."""
    one_of("model.prompt", config.model.prompt, PROMPTS)
    one_of("model.dtype", config.model.dtype, DTYPES)
    one_of("model.engine", config.model.engine, ENGINES)
    at_least("model.chunk", config.model.chunk, 1)
    one_of("wandb.mode", config.wandb.mode, WANDB_MODES)
    one_of("model.device_map", config.model.device_map, ("none", "auto"))
    if config.model.device_map == "auto":
        reason = "model.device_map=auto takes all devices that there are, in one process"
        refuse_unused(config, {"model": ModelConfig}, ("model.device",), reason)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(f"{reason}: run it without torchrun")
    at_least("model.prompt_mib", config.model.prompt_mib, 0)
    at_least("seed", config.seed, 0)
    # torch rejects larger seeds, partly only after hours.
    inside("seed", config.seed, "[0, 2**63)", config.seed < 1 << 63)


def check_shared(config: DictConfig) -> None:
    """Check every shared setting, including the methods and algorithms of the task."""
    check_model(config)
    check_methods(config)
    check_algorithms(config)
    at_least("data.offset", config.data.offset, 0)
    share = config.data.max_skipped
    inside("data.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    if config.data.path and config.data.hub:
        raise ValueError("expected data.path or data.hub, got both; leave one out")
    at_least("smc.max_rows", config.smc.max_rows, 1)
    temperature = config.smc.temperature
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"expected smc.temperature to be positive and finite, got {temperature}")
    inside("smc.temperature", temperature, f"[{COLDEST:g}, infinity)", temperature >= COLDEST)
    one_of("smc.execution", config.smc.execution, EXECUTIONS)
    ahead = config.smc.read_ahead
    if ahead != "auto" and (type(ahead) is not int or ahead < 0):
        raise ValueError(
            f"expected smc.read_ahead to be auto or a number of tokens (0 for none), got {ahead}"
        )
    if ahead not in (0, "auto") and config.smc.execution == "static":
        raise ValueError(
            f"expected smc.read_ahead=auto or 0 with smc.execution=static, which can't read ahead; "
            f"got {ahead}"
        )
    _check_hmm(config.hmm)
    _check_trace(config)
    check_engine(config)


def check_records(config: DictConfig) -> None:
    """Check the settings of tasks with records (`RecordConfig`)."""
    task = config.task
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)
    one_of("task.reference", task.reference.partition(":")[0], tuple(METHODS))
    if task.reference not in (RecordConfig.reference, *task.methods):
        raise ValueError(
            f"expected task.reference to be one of task.methods={list(task.methods)}, got "
            f"{task.reference}; add it to task.methods, or give another reference"
        )


def check_methods(config: DictConfig) -> None:
    """Check `task.methods` and `task.particles`, and that every setting of `hmm.*` is used."""
    if "methods" in config.task:
        distinct("task.methods", config.task.methods)
        distinct("task.particles", config.task.particles)
        for method in config.task.methods:
            one_of("task.methods", method.partition(":")[0], tuple(METHODS))
        _check_named_hmms(config)
        for count in config.task.particles:
            at_least("task.particles", count, 1)
    looking = [method_of(name) for name in methods_of(config) if needs_hmm(name)]
    settings = list(HMMConfig.__dataclass_fields__)
    if not looking:
        names = ", ".join(filter(needs_hmm, METHODS))
        reason = f"of the methods {names} alone look ahead, and none is run; leave hmm.* out"
        refuse_unused(config, Config, [f"hmm.{name}" for name in settings], reason)
        return
    if "" not in hmms_of(config):
        reason = "all methods of this run that look ahead name their HMM (hmm.paths); leave it out"
        refuse_unused(config, Config, ["hmm.path"], reason)
    fixed = [name for name in settings if all(name in method.fixed for method in looking)]
    reason = "all methods of this run that look ahead have their own; leave it out"
    refuse_unused(config, Config, [f"hmm.{name}" for name in fixed], reason)


def _check_named_hmms(config: DictConfig) -> None:
    """Check that `hmm.paths` has every HMM that a method names."""
    paths = list(config.hmm.paths)
    for method in config.task.methods:
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
    if hmms_of(config) == [""]:
        reason = "no method of task.methods names one of them (pgcd:NAME); leave it out"
        refuse_unused(config, Config, ["hmm.paths"], reason)


def check_algorithms(config: DictConfig) -> None:
    """Check `task.algorithms`, and that the options are used and valid."""
    if "algorithms" in config.task:
        distinct("task.algorithms", config.task.algorithms)
        for name in config.task.algorithms:
            one_of("task.algorithms", name, tuple(ALGORITHMS))
    names = algorithms_of(config)
    reason = f"no algorithm of this run ({', '.join(names)}) reads it; leave it out"
    if "algorithms" in config.task:
        reason += ", or add one that does to task.algorithms"
    refuse_unused(config, Config, unread(config), reason)
    for name in names:
        try:
            ALGORITHMS[name].make(config)
        except ValueError as error:
            raise ValueError(f"{ALGORITHMS[name].algorithm}.*, for {name}: {error}") from error


def _check_trace(config: DictConfig) -> None:
    if "num_examples" not in config.task:
        keys = [f"trace.{name}" for name in TraceConfig.__dataclass_fields__]
        refuse_unused(
            config, Config, keys, f"+task={config.task.name} doesn't write traces; leave it out"
        )
    trace = config.trace
    at_least("trace.examples", trace.examples, 0)
    at_least("trace.particles", trace.particles, 1)
    size = trace.examples * trace.particles
    inside(
        "trace.examples times trace.particles",
        size,
        f"[0, {MOST_TRACED}], as traces would be too large: give fewer of either",
        size <= MOST_TRACED,
    )


def _check_hmm(hmm: HMMConfig) -> None:
    if hmm.lookahead != AUTO:
        belief_of("hmm.lookahead", hmm.lookahead)
    at_least("hmm.exact_top_k", hmm.exact_top_k, 0)
    if not 0 <= hmm.defense <= 1:
        raise ValueError(f"expected hmm.defense to be from 0 to 1, got {hmm.defense}")
    at_least("hmm.max_table_mib", hmm.max_table_mib, 1)
