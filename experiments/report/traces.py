"""Traces of the sampler: every sequence at every step, for a few examples of a run.

A `Recorder` observes batches (`smc.Hooks`) and converts the steps of the chosen
examples to plain values. `Tracing` writes them to `traces.jsonl`, one line per example and trial. A
line has the key of the row, `budget`, `prompt`, and

    tokens      the bytes of every token that occurs, as Latin-1 text; empty for EOS
    start       forced tokens that every answer begins with
    steps       for each step:
      prefixes    the distinct prefixes: `left` (remaining budget), `needed` (fewest tokens to an
                  end), `log_allowed` (log of the model's probability of tokens with g > 0),
                  `log_z` (log of the sum of p g), and `next`, a list of [token, log p, log q]: the
                  most probable under the model and under the proposal, and all drawn ones
      at, log_weight   of each sequence: the index of its prefix (-1: ended), and its weight
      after       the sequences after the step: `from` (the ancestor), `tokens`, `log_weight`,
                  `fate` (0 running, 1 finished, 2 dead)
      ended       with the discrete filter, answers that ended in this step

Cost: for batches with a traced example, one pass over R x V numbers and two top-k searches in that
example's rows. It isn't included in the seconds of rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.config import TraceConfig
from experiments.tasks import (
    KEYED,
    Key,
    ResultStore,
    drop_partial_line,
    key_of,
    naming_full_disk,
    read_rows,
)
from gcd import Vocabulary
from smc import Observation, Population

TOP = 6  # recorded next tokens per prefix under the language model, and under the proposal
MOST_ENDED = 16  # recorded answers per step, the heaviest; the filter can have thousands

Trace = dict[str, Any]
RUNNING, FINISHED, DEAD = range(3)


class Recorder:
    """Observer that records the steps of the examples at some positions of a batch."""

    def __init__(self, positions: Sequence[int], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._steps: dict[int, list[dict[str, Any]]] = {position: [] for position in positions}
        self._start: dict[int, list[int]] = {}  # tokens forced before the first step

    def __call__(self, seen: Observation) -> None:
        """Record a step."""
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
            at = [number.get(row, -1) for row in seen.row[members].tolist()]
            parts = {"after": _plain(seen.after, seen.length, members)}
            if seen.ended is not None:
                parts["ended"] = _plain(seen.ended, seen.length, members, MOST_ENDED)
            drawn: list[set[int]] = [set() for _ in rows]
            for part in parts.values():
                for ancestor, tokens in zip(part["from"], part["tokens"], strict=True):
                    if tokens:
                        drawn[at[ancestor]].add(tokens[0])
            steps.append({
                "prefixes": _prefixes(seen, log_p[rows], tilted[rows], rows, drawn),
                "at": at,
                "log_weight": _round(seen.log_weight[members]),
                **{name: part for name, part in parts.items() if name == "after" or part["from"]},
            })  # fmt: skip

    def traces(self) -> dict[int, Trace]:
        """Return the steps of each example, and the bytes of their tokens as Latin-1 text."""
        token_bytes, eos = self._vocabulary.token_bytes, set(self._vocabulary.eos_ids)
        found = {}
        for position, steps in self._steps.items():
            start = self._start.get(position, [])
            listed = [each[0] for step in steps for prefix in step["prefixes"]
                      for each in prefix["next"]]  # fmt: skip
            parts = [step[name] for step in steps for name in ("after", "ended") if name in step]
            added = [token for part in parts for tokens in part["tokens"] for token in tokens]
            named = sorted(t for t in {*start, *listed, *added} if token_bytes[t] or t in eos)
            texts = {token: token_bytes[token].decode("latin-1") for token in named}
            found[position] = {"tokens": texts, "start": start, "steps": steps}
        return found


def append_traces(path: Path, traces: Iterable[tuple[Key, Mapping[str, Any], Trace]]) -> None:
    """Append traces to a file, each with further values."""
    for key, about, trace in traces:
        line = json.dumps({**key._asdict(), **about, **trace}, separators=(",", ":")) + "\n"
        with naming_full_disk(path), path.open("a", encoding="ascii") as file:
            file.write(line)


class Tracing:
    """Traces of some examples of a run, written with its rows.

    `trace.*` chooses from the examples. Trials with more than `trace.particles`, and repetitions,
    aren't traced.
    """

    def __init__(
        self,
        store: ResultStore,
        examples: Sequence[Any],
        vocabulary: Vocabulary,
        trace: TraceConfig,
    ) -> None:
        self._vocabulary, self._particles = vocabulary, trace.particles
        chosen = choose_for_tracing([example.number for example in examples], trace.examples)
        self._named = {
            each.number: (each.name, {"budget": each.budget, "prompt": self._text(each.prompt)})
            for each in examples
            if each.number in chosen
        }
        self._path = store.path.with_name(store.path.name.replace("results", "traces"))
        if self._path.exists():
            drop_partial_line(self._path)
        self._waiting: list[tuple[set[int], Recorder, dict[int, Key]]] = []

    def _text(self, prompt: Sequence[int]) -> str:
        return self._vocabulary.decode(prompt).decode(errors="replace")

    def of(
        self, method: str, algorithm: str, particles: int, repeat: int = 0
    ) -> Callable[[Sequence[int]], Recorder | None] | None:
        """Return the observer factory of a trial for `smc.sample`, or None."""
        if not self._named or particles > self._particles or repeat:
            return None

        def observe(numbers: Sequence[int]) -> Recorder | None:
            keys = {
                position: Key(self._named[number][0], method, algorithm, particles)
                for position, number in enumerate(numbers)
                if number in self._named
            }
            recorder = Recorder(list(keys), self._vocabulary) if keys else None
            if recorder is not None:
                self._waiting.append((set(numbers), recorder, keys))
            return recorder

        return observe

    def write(self, ended: set[int]) -> None:
        """Write the traces of the examples in `ended`."""
        about = dict(self._named.values())
        waiting, self._waiting = self._waiting, []
        for numbers, recorder, keys in waiting:
            if not numbers <= ended:
                self._waiting.append((numbers, recorder, keys))
                continue
            found = recorder.traces().items()
            append_traces(
                self._path, ((keys[p], about[keys[p].example], trace) for p, trace in found)
            )


def read_traces(directory: Path) -> list[Trace]:
    """Read the traces of a run directory; a later trace of a trial replaces an earlier one."""
    found: dict[Key, Trace] = {}
    again = "or make the run anew with resume=false"
    for path in sorted(directory.glob("traces*.jsonl")):
        remedy = f"remove that line to go without it, {again}"
        for trace in read_rows(path, needs=(*KEYED, "tokens", "start", "steps"), remedy=remedy):
            found[key_of(trace)] = trace
    return list(found.values())


def choose_for_tracing(numbers: Sequence[int], most: int) -> frozenset[int]:
    """Choose at most `most` of the given examples, evenly spread."""
    return frozenset(numbers[:: math.ceil(len(numbers) / most)] if most > 0 else ())


def _plain(
    population: Population, before: Tensor, members: Sequence[int], most: int | None = None
) -> dict[str, list[Any]]:
    """Return the sequences whose ancestors are members, as plain values.

    With `most`, only that many sequences with the largest weights are returned.
    """
    local = {member: i for i, member in enumerate(members)}
    wanted = torch.tensor(members, device=population.ancestor.device)
    mine = torch.isin(population.ancestor, wanted).nonzero().flatten()
    if most is not None:
        heaviest = population.log_weight[mine].argsort(descending=True, stable=True)[:most]
        mine = mine[heaviest.sort().values]
    ancestor = population.ancestor[mine]
    fates = torch.where(population.finished, FINISHED, torch.where(population.running, 0, DEAD))
    ends = zip(before[ancestor].tolist(), population.length[mine].tolist(), strict=True)
    return {
        "from": [local[a] for a in ancestor.tolist()],
        "tokens": [
            ids[start:end]
            for ids, (start, end) in zip(population.tokens[mine].tolist(), ends, strict=True)
        ],
        "log_weight": _round(population.log_weight[mine]),
        "fate": fates[mine].tolist(),
    }


def _prefixes(
    seen: Observation, log_p: Tensor, tilted: Tensor, rows: Sequence[int], drawn: Sequence[set[int]]
) -> list[dict[str, Any]]:
    """Describe prefixes as plain values: their automaton state and candidate next tokens."""
    log_p, tilted = log_p.double().cpu(), tilted.cpu()
    log_z = torch.logsumexp(tilted, dim=1)
    allowed = log_p.masked_fill(tilted.isneginf(), -torch.inf).logsumexp(dim=1)
    k = min(TOP, log_p.shape[1])
    likely, chosen = log_p.topk(k, dim=1).indices, tilted.topk(k, dim=1)
    position = seen.prefixes.state.position
    needed: list[int | None] = [None] * len(rows)
    left = needed
    if hasattr(position, "remaining"):
        states = position.states[rows].clamp(min=0)
        needed = position.automata.steps_to_accept[states].tolist()
        left = position.remaining[rows].tolist()
    found = []
    for r, others in enumerate(drawn):
        best = chosen.indices[r][chosen.values[r] > -math.inf].tolist()
        tokens = sorted({*likely[r].tolist(), *best, *others},
                        key=lambda v, r=r: (-tilted[r, v], -log_p[r, v]))  # type: ignore[misc]  # fmt: skip
        log_q = tilted[r, tokens] - (log_z[r] if log_z[r] > -math.inf else 0.0)
        shown = zip(tokens, _round(log_p[r, tokens]), _round(log_q), strict=True)
        mass, total = _round(torch.stack([allowed[r], log_z[r]]))
        found.append({
            "left": left[r], "needed": needed[r], "log_allowed": mass, "log_z": total,
            "next": [list(each) for each in shown],
        })  # fmt: skip
    return found


def _round(values: Tensor) -> list[float | None]:
    """Round to six digits; None for minus infinity, which JSON doesn't have."""
    return [None if v == -math.inf else float(f"{v:.6g}") for v in values.tolist()]
