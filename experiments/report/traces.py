"""Traces of the sampler: every sequence at every step, for a few examples of a run.

A `Recorder` observes batches (`smc._inference.observation`) and converts the steps of the chosen
examples to plain values. `TraceStore` writes them to `traces.jsonl`, one line per example and
trial. A line has the key of the row, `budget`, `prompt`, and

    tokens      the bytes of every token that occurs, as Latin-1 text; empty for EOS
    start       forced tokens that every answer begins with
    steps       for each step:
      prefixes    the distinct prefixes: `left` (remaining budget), `needed` (fewest tokens to an
                  end), `log_allowed` (log of the model's probability of tokens with g > 0),
                  `log_z` (log of the sum of p g), and `next`, a list of [token, log p, log q]: the
                  most probable under the model and under the proposal, and all drawn ones
      at, log_weight   of each sequence: the index of its prefix (-1: ended), and its weight
      after       the sequences after the step: `from` (the ancestor), `tokens`, `log_weight`,
                  `fate` (0 running, 1 finished, 2 dead), `landed` (those without a forward pass)
      ended       with the discrete filter, answers that ended in this step

Cost: for batches with a traced example, one pass over R x V numbers and two top-k searches in that
example's rows. It isn't included in the seconds of rows.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.rows import (
    KEYED,
    Key,
    ResultStore,
    drop_partial_line,
    key_of,
    naming_full_disk,
    read_rows,
    refuse_cut_short,
)
from gcd import Vocabulary
from smc._inference.observation import Observation, Observe, Population

_LOG = logging.getLogger(__name__)

TOP = 6
"""Recorded next tokens per prefix under the language model, and as many under the proposal."""
MOST_ENDED = 16
"""Recorded answers per step, the heaviest first, as the discrete filter can have thousands."""
MOST_BYTES = 64 << 20
"""Bytes of all traces that one process of a run writes."""

_AGAIN = "make the run anew with resume=false"

Trace = dict[str, Any]
RUNNING, FINISHED, DEAD = range(3)


class Recorder:
    """Observer that records the steps of some examples of a batch.

    Args:
        positions: indices of the examples in the batch.
        vocabulary: vocabulary of the language model.
    """

    def __init__(self, positions: Sequence[int], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._steps: dict[int, list[dict[str, Any]]] = {position: [] for position in positions}
        self._start: dict[int, list[int]] = {}  # tokens forced before the first step

    def __call__(self, seen: Observation) -> None:
        """Record a step."""
        populations = [p for p in (seen.after, seen.ended) if p is not None]
        appended = [_find_appended(population, seen.length) for population in populations]
        log_p, tilted = seen.prefixes.log_p, seen.tilted()
        example = seen.prefixes.example.tolist()
        for position, steps in self._steps.items():
            rows = [row for row, of in enumerate(example) if of == position]
            if not rows:
                continue  # this example has finished before others of the batch
            members = (seen.example == position).nonzero().flatten().tolist()
            first = members[0]
            self._start.setdefault(position, seen.tokens[first, : seen.length[first]].tolist())
            number = {row: i for i, row in enumerate(rows)}
            local = {member: i for i, member in enumerate(members)}
            at = [number.get(row, -1) for row in seen.row[members].tolist()]
            after, *ended = (
                _plain(population, tokens, position, local, most)
                for population, tokens, most in zip(
                    populations, appended, (None, MOST_ENDED), strict=False
                )
            )
            drawn: list[set[int]] = [set() for _ in rows]
            for part in (after, *ended):
                for ancestor, tokens in zip(part["from"], part["tokens"], strict=True):
                    if tokens:
                        drawn[at[ancestor]].add(tokens[0])
            step = {
                "prefixes": self._prefixes(seen, log_p[rows], tilted[rows], rows, drawn),
                "at": at,
                "log_weight": _round_all(seen.log_weight[members]),
                "after": after,
            }
            if ended and ended[0]["from"]:
                step["ended"] = ended[0]
            steps.append(step)

    def traces(self) -> dict[int, Trace]:
        """Return the steps of each example, and the bytes of their tokens as Latin-1 text."""
        return {
            position: {
                "tokens": self._bytes_of(steps, self._start.get(position, [])),
                "start": self._start.get(position, []),
                "steps": steps,
            }
            for position, steps in self._steps.items()
        }

    def _prefixes(
        self,
        seen: Observation,
        log_p: Tensor,
        tilted: Tensor,
        rows: Sequence[int],
        drawn: Sequence[set[int]],
    ) -> list[dict[str, Any]]:
        """Describe prefixes as plain values: their automaton state and candidate next tokens."""
        log_p, tilted = log_p.double().cpu(), tilted.cpu()
        log_z = torch.logsumexp(tilted, dim=1)
        allowed = log_p.masked_fill(tilted.isneginf(), -torch.inf).logsumexp(dim=1)
        k = min(TOP, log_p.shape[1])
        likely, chosen = log_p.topk(k, dim=1).indices.tolist(), tilted.topk(k, dim=1)
        position = seen.prefixes.state.position
        needed, left = _describe_position(position, rows)
        found = []
        for r, others in enumerate(drawn):
            best = [
                token
                for token, value in zip(
                    chosen.indices[r].tolist(), chosen.values[r].tolist(), strict=True
                )
                if value > -math.inf
            ]
            tokens = sorted(
                {*likely[r], *best, *others}, key=lambda v: (-tilted[r, v], -log_p[r, v])
            )
            log_q = tilted[r, tokens] - log_z[r] if log_z[r] > -math.inf else tilted[r, tokens]
            shown = zip(tokens, _round_all(log_p[r, tokens]), _round_all(log_q), strict=True)
            found.append(
                {
                    "left": left[r],
                    "needed": needed[r],
                    "log_allowed": _round(allowed[r].item()),
                    "log_z": _round(log_z[r].item()),
                    "next": [list(each) for each in shown],
                }
            )
        return found

    def _bytes_of(self, steps: Iterable[dict[str, Any]], start: Sequence[int]) -> dict[int, str]:
        named = {*start} | {
            token
            for step in steps
            for token in (
                *(each[0] for prefix in step["prefixes"] for each in prefix["next"]),
                *(t for part in ("after", "ended") if part in step for ts in step[part]["tokens"]
                  for t in ts),
            )
        }  # fmt: skip
        token_bytes, eos = self._vocabulary.token_bytes, set(self._vocabulary.eos_ids)
        return {
            token: token_bytes[token].decode("latin-1")
            for token in sorted(named)
            if token_bytes[token] or token in eos
        }


class TraceStore:
    """Traces of a run directory, or of one process of the run.

    Args:
        path: the file; new lines are appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._full = False
        if path.exists():
            drop_partial_line(path)

    def append(self, traces: Iterable[tuple[Key, Mapping[str, Any], Trace]]) -> None:
        """Append traces, each with further values, until the file reaches its size limit."""
        for key, about, trace in traces:
            line = json.dumps({**key._asdict(), **about, **trace}, separators=(",", ":")) + "\n"
            written = self.path.stat().st_size if self.path.exists() else 0
            if written + len(line) > MOST_BYTES:
                if not self._full:
                    _LOG.warning("%s is full (%d MiB): no more traces", self.path, MOST_BYTES >> 20)
                self._full = True
                return
            with naming_full_disk(self.path), self.path.open("a", encoding="ascii") as file:
                file.write(line)


class Tracing:
    """Traces of some examples of a run, written with its rows.

    Args:
        store: the rows.
        named: name and further values of each traced example, by its number.
        vocabulary: vocabulary of the language model.
        particles: trials with more particles, and repetitions, aren't traced.
    """

    def __init__(
        self,
        store: ResultStore,
        named: Mapping[int, tuple[str, Mapping[str, Any]]],
        vocabulary: Vocabulary,
        particles: int,
    ) -> None:
        self._named = named
        self._vocabulary = vocabulary
        self._particles = particles
        path = store.path.with_name(store.path.name.replace("results", "traces", 1))
        self._store = TraceStore(path)
        self._waiting: list[tuple[set[int], Recorder, dict[int, Key]]] = []

    def of(self, method: str, algorithm: str, particles: int, repeat: int = 0) -> Observe | None:
        """Return the observer factory of a trial for `smc.sample`, or None."""
        if not self._named or particles > self._particles or repeat:
            return None

        def observe(numbers: Sequence[int]) -> Recorder | None:
            keys = {
                position: Key(self._named[number][0], method, algorithm, particles)
                for position, number in enumerate(numbers)
                if number in self._named
            }
            if not keys:
                return None
            recorder = Recorder(list(keys), self._vocabulary)
            self._waiting.append((set(numbers), recorder, keys))
            return recorder

        return observe

    def write(self, ended: Collection[int] | None = None) -> None:
        """Write the traces of the examples in `ended`; None means all examples."""
        about = dict(self._named.values())
        waiting, self._waiting = self._waiting, []
        for numbers, recorder, keys in waiting:
            if ended is not None and not numbers <= set(ended):
                self._waiting.append((numbers, recorder, keys))
                continue
            self._store.append(
                (keys[position], about[keys[position].example], trace)
                for position, trace in recorder.traces().items()
            )


def read_traces(directory: Path) -> list[Trace]:
    """Read the traces of a run directory; a later trace of a trial replaces an earlier one.

    Raises:
        ValueError: a file is empty or truncated, or a line isn't a trace.
    """
    found: dict[Key, Trace] = {}
    for path in sorted(directory.glob("traces*.jsonl")):
        refuse_cut_short(path, f"remove it to go without its traces, or {_AGAIN}")
        remedy = f"remove that line to go without it, or {_AGAIN}"
        for trace in read_rows(path, needs=(*KEYED, "tokens", "start", "steps"), remedy=remedy):
            found[key_of(trace)] = trace
    return list(found.values())


def choose_for_tracing(numbers: Sequence[int], most: int) -> frozenset[int]:
    """Choose at most `most` of the given examples, evenly spread."""
    if most <= 0:
        return frozenset()
    return frozenset(numbers[:: math.ceil(len(numbers) / most)])


def _find_appended(population: Population, before: Tensor) -> list[list[int]]:
    """Return the tokens that each sequence has in addition to its ancestor."""
    start = before[population.ancestor].tolist()
    whole, end = population.tokens.tolist(), population.length.tolist()
    return [ids[a:b] for ids, a, b in zip(whole, start, end, strict=True)]


def _plain(
    population: Population,
    tokens: Sequence[list[int]],
    position: int,
    local: Mapping[int, int],
    most: int | None = None,
) -> dict[str, list[Any]]:
    """Return the sequences of one example as plain values.

    `local` maps ancestors to numbers within the example. With `most`, only that many sequences with
    the largest weights are returned.
    """
    mine = (population.example == position).nonzero().flatten()
    if most is not None:
        heaviest = population.log_weight[mine].argsort(descending=True, stable=True)[:most]
        mine = mine[heaviest.sort().values]
    fates = torch.where(population.finished, FINISHED, torch.where(population.running, 0, DEAD))
    landed = population.landed[mine].nonzero().flatten().tolist()
    return {
        "from": [local[a] for a in population.ancestor[mine].tolist()],
        "tokens": [tokens[q] for q in mine.tolist()],
        "log_weight": _round_all(population.log_weight[mine]),
        "fate": fates[mine].tolist(),
        **({"landed": landed} if landed else {}),
    }


def _describe_position(
    position: Any, rows: Sequence[int]
) -> tuple[list[int | None], list[int | None]]:
    """Return the fewest tokens to the end and the remaining budget, if the proposal has them."""
    unknown: list[int | None] = [None] * len(rows)
    if not hasattr(position, "remaining"):
        return unknown, unknown
    states = position.states[rows].clamp(min=0)
    return position.automata.steps_to_accept[states].tolist(), position.remaining[rows].tolist()


def _round_all(values: Tensor) -> list[float | None]:
    return [_round(value) for value in values.tolist()]


def _round(value: float) -> float | None:
    """Round to six digits; None for minus infinity, which JSON doesn't have."""
    return None if value == -math.inf else float(f"{value:.6g}")
