"""`+task=shakespeare` writes lines of a play under three forms of guided decoding.

A character-level model is trained on a text; then lines `UPPER+: LOWER+` are sampled under

    positions   one set of allowed characters for each position (static masks, one fixed length)
    wired       states and edges written by hand
    pattern     the pattern, compiled

The last two are the same language, so with equal seeds they give equal lines; positions can only
write lines of the length it was made for. The model has no token that ends a text: a line ends by
itself, with its line end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import wandb
from omegaconf import DictConfig

import gcd
import smc
from experiments.harness import records, smollm2
from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.checks import at_least
from experiments.harness.figures import plot_losses
from experiments.harness.identity import Identity, results_config
from experiments.harness.models import resolve_device
from experiments.harness.results import Key, ResultStore, Row
from experiments.harness.run import Run, Task
from experiments.harness.tables import as_markdown
from experiments.harness.tracking import log_shown
from experiments.report.traces import Tracing, chosen_for_tracing
from experiments.shakespeare.char_lm import CHECKPOINT, CharacterLM, Training, train_characters
from experiments.shakespeare.play import write_play

_PLAY_LINES = 4000
CONSTRAINTS = ("positions", "wired", "pattern")
ELEMENTS = (("UPPER", "+"), (":", 1), (" ", 1), ("LOWER", "+"), ("\n", 1))


@dataclass
class ShakespeareConfig:
    """Lines `UPPER+: LOWER+` of a play, by a character-level model trained on the spot."""

    name: str = "shakespeare"
    steps: int = 600  # of training
    context: int = 128  # characters the model is trained to look back over
    num_lines: int = 48  # under each constraint
    particles: int = 16  # for each line
    budget: int = 40  # most characters of a line
    upper: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    lower: str = "abcdefghijklmnopqrstuvwxyz"
    name_length: int = 5  # of the fixed form
    word_length: int = 6


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    if config.model.path != smollm2.NAME:  # the default
        raise ValueError("+task=shakespeare trains its own model: leave model.path out")
    if config.data.hub or config.data.offset:
        raise ValueError("+task=shakespeare reads one text file: data.path=FILE and no more of it")
    for key in ("steps", "context", "num_lines", "particles", "name_length", "word_length"):
        at_least(f"task.{key}", getattr(task, key), 1)
    longest = task.name_length + task.word_length + 3
    if task.budget < longest:
        raise ValueError(
            f"task.budget={task.budget} is shorter than the fixed form's lines, which have "
            f"{longest} characters (task.name_length, task.word_length and three more)"
        )
    both = set(task.upper) & set(task.lower)
    if both or not task.upper or not task.lower or ":" in task.upper or "\n" in task.lower:
        raise ValueError(
            "task.upper and task.lower must be two sets of characters without a common one, the "
            f"first without ':', the second without a line end; got {task.upper!r}, {task.lower!r}"
        )


class Text(NamedTuple):
    """What the model learns from, and where it is from, in words."""

    text: str
    source: str


def _identity(config: DictConfig, read: Text) -> Identity:
    digest = hashlib.sha256(read.text.encode()).hexdigest()[:16]
    return {**results_config(config), "text_sha256": digest}


def _run(run: Run, read: Text) -> None:
    """Train the model, sample lines under each constraint, and compare them."""
    config, task = run.config, run.config.task
    classes = {"UPPER": task.upper, "LOWER": task.lower}
    _check_characters(read.text, classes)
    lines = range(task.num_lines)
    keys = [_key(name, line, task.particles) for name in CONSTRAINTS for line in lines]
    run.open(keys)
    training = Training(steps=task.steps, context=task.context, seed=config.seed)
    device = resolve_device(config.model.device)
    trained = train_characters(read.text, training, run.directory, device)
    constraints = build_constraints(trained, classes, task.name_length, task.word_length)
    language = gcd.pattern(ELEMENTS, classes)
    with run.sampling(keys, "line") as progress:
        for name, constraint in constraints.items():
            _sample(name, constraint, trained, language, config, run.store, progress)
    rows = run.merged()
    assert rows is not None, "one process"
    _report(run, read.source, trained, constraints, rows)


def read_text(config: DictConfig) -> Text:
    """Read the text to learn from a file, or else make up a play.

    Raises:
        DataError: the file cannot be read as UTF-8.
    """
    path = config.data.path
    if path is None:
        return Text(write_play(_PLAY_LINES, config.seed), "a small play made up by the project")
    return Text(records.read_text(path), str(path))


def _check_characters(text: str, classes: dict[str, str]) -> None:
    """Refuse a text without any character of a class, as no line could then be written."""
    have = set(text)
    for name, members in {**classes, "':'": ":", "space": " ", "line end": "\n"}.items():
        if not have & set(members):
            raise ValueError(
                f"the text has no character of {name} ({members!r}), so no line could be written; "
                "give another text, or other task.upper and task.lower"
            )


def build_constraints(
    trained: CharacterLM, classes: dict[str, str], name_length: int, word_length: int
) -> dict[str, gcd.TokenAutomaton]:
    """Build the three constraints by name, over the characters of the model.

    Args:
        trained: the model, with the id of each of its characters.
        classes: the characters of UPPER and LOWER.
        name_length, word_length: of the lines of the fixed form.
    """
    ids, vocabulary = trained.ids, trained.lm.vocabulary
    upper = [ids[c] for c in classes["UPPER"] if c in ids]
    lower = [ids[c] for c in classes["LOWER"] if c in ids]
    colon, space, end = ids[":"], ids[" "], ids["\n"]
    edges: list[tuple[Any, Any, Any]] = [
        ("start", upper, "name"),
        ("name", upper, "name"),
        ("name", colon, "colon"),
        ("colon", space, "space"),
        ("space", lower, "words"),
        ("words", lower, "words"),
        ("words", end, "end"),
    ]
    positions: list[Any] = [*[upper] * name_length, colon, space, *[lower] * word_length, end]
    make = gcd.TokenAutomaton
    return {
        "positions": make.from_position_sets(vocabulary, positions, eos="accept"),
        "wired": make.from_transitions(
            vocabulary, edges, accepting=["end"], initial="start", eos="accept"
        ),
        "pattern": gcd.lift(gcd.pattern(ELEMENTS, classes), vocabulary, eos="accept"),
    }


def _key(name: str, line: int, particles: int) -> Key:
    return Key(str(line), name, "smc", particles)


def _sample(
    name: str,
    constraint: gcd.TokenAutomaton,
    trained: CharacterLM,
    language: gcd.Automaton,
    config: DictConfig,
    store: ResultStore,
    progress: Callable[[int], object],
) -> None:
    """Sample lines under one constraint, each drawn from a posterior of its own."""
    task = config.task
    due = [i for i in range(task.num_lines) if _key(name, i, task.particles) not in store]
    size = max(1, config.smc.max_rows // task.particles)
    traced = chosen_for_tracing(range(task.num_lines), config.trace.examples)
    named = {line: (str(line), {"budget": task.budget, "prompt": "\n"}) for line in traced}
    tracing = Tracing(store, named, trained.lm.vocabulary, config.trace.particles)
    for start in range(0, len(due), size):
        group = due[start : start + size]
        posteriors = smc.sample(
            trained.lm,
            [[trained.ids["\n"]]] * len(group),
            constraint,
            budget=task.budget,
            particles=task.particles,
            proposal=smc.GCD(),
            **ALGORITHMS["smc"].arguments(config),
            temperature=config.smc.temperature,
            top_p=config.smc.top_p,
            seed=config.seed,
            example_ids=group,
            max_rows=config.smc.max_rows,
            observe=tracing.of(name, "smc", task.particles),
        )
        tracing.write()
        rows: list[Row] = []
        for line, posterior in zip(group, posteriors, strict=True):
            seed = config.seed * task.num_lines + line
            text = None if posterior.dead else posterior.sample(1, seed)[0]
            rows.append(
                {
                    **_key(name, line, task.particles)._asdict(),
                    "line": text,
                    "valid": text is not None and language.accepts(text),
                    "log_evidence": None if posterior.dead else posterior.log_evidence,
                    "ess": posterior.ess,
                    "seconds": round(posterior.diagnostics.seconds, 4),
                }
            )
        store.append(rows)
        progress(len(group))


def _report(
    run: Run,
    source: str,
    trained: CharacterLM,
    constraints: dict[str, gcd.TokenAutomaton],
    rows: Sequence[Row],
) -> None:
    """Make table and summary of all lines, the curve of the training, and a drawing."""
    config, task = run.config, run.config.task
    frame = pd.DataFrame(rows)
    lines = {name: list(frame[frame.method == name].line) for name in CONSTRAINTS}
    records = []
    for name in CONSTRAINTS:
        mine = frame[frame.method == name]
        records.append(
            {
                "constraint": name,
                "states": constraints[name].num_states,
                "classes": constraints[name].num_classes,
                "lines": len(mine),
                "valid %": round(100 * float(mine.valid.mean()), 1),
                "distinct": int(mine.line.nunique()),
                "equal to pattern's": sum(
                    a == b for a, b in zip(lines[name], lines["pattern"], strict=True)
                ),
                "mean log evidence": _mean(mine.log_evidence),
                "an example": repr(lines[name][0]),
            }
        )
    table = pd.DataFrame(records)
    held_out = trained.losses[-1][2]
    text = (
        f"## Lines of {source}\n\n{as_markdown(table)}\n\n"
        f"Model: {len(trained.characters)} characters, {held_out:.3f} nats a character on the "
        f"held-out end. Budget {task.budget} characters, {task.particles} particles "
        f"a line. `wired` and `pattern` are one language, so their lines are equal.\n"
    )
    summary = {"source": source, "seed": config.seed, "losses": trained.losses, "rows": records}
    drawing = run.directory / "line.dot"
    drawing.write_text(gcd.to_dot(constraints["wired"]), encoding="utf-8")
    figure = run.directory / "loss.png"
    plot_losses(trained.losses, figure)

    def log(tracked: wandb.Run) -> None:
        for step, training, held_out in trained.losses:
            tracked.log({"step": step, "loss/training": training, "loss/held_out": held_out})
        log_shown(tracked, {"table": table, "rows": frame}, {"loss": figure})

    run.report(text, summary, log, files=("results.jsonl", "loss.png", "line.dot"))


def _mean(values: pd.Series) -> str:
    """The mean of the numbers there are, as text; an inexact sampler reports none."""
    numbers = values.dropna()
    return f"{numbers.astype(float).mean():.3f}" if len(numbers) else "–"


TASK = Task("shakespeare", ShakespeareConfig, check, read_text, _identity, _run, kept=(CHECKPOINT,))
