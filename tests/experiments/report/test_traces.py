"""Traces say what the language model and the sampler did: checked by replaying every token."""

from __future__ import annotations

import json
import math

import pytest

from experiments.report import traces as module
from experiments.report.traces import FINISHED, choose_for_tracing, read_traces
from experiments.tasks import drop_partial_line, key_of
from tests.experiments.report.toy_run import (
    BUDGET,
    LM,
    VOCABULARY,
    examples,
    write_run,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("toy") / "run")


def histories(trace: dict) -> list[list[list[int]]]:
    """The tokens of every sequence, by generation; those that ended stand last."""
    found = [[trace["start"] for _ in trace["steps"][0]["at"]]]
    for step in trace["steps"]:
        parts = [step["after"], *([step["ended"]] if "ended" in step else [])]
        found.append(
            [
                found[-1][a] + tokens
                for part in parts
                for a, tokens in zip(part["from"], part["tokens"], strict=True)
            ]
        )
    return found


def close(found: float | None, expected: float) -> bool:
    if found is None:
        return expected == -math.inf
    return found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_every_trial_of_a_traced_example_has_one_trace(run):
    """It starts with tokens forced before the first choice: the bytes of the only letter."""
    directory, rows = run
    traces = read_traces(directory)
    assert {key_of(trace) for trace in traces} == {
        key_of(row) for row in rows if row["example"][0] in "012"
    }
    for trace in traces:
        start = b"".join(VOCABULARY.token_bytes[token] for token in trace["start"])
        assert start == ("é".encode() if trace["example"] == "2:w2" else b"")
        assert set(map(str, trace["start"])) <= set(trace["tokens"])


def test_prefixes_are_those_of_the_model_and_of_the_budget(run):
    by_name = {f"{e.number}:{e.record.id}": e for e in examples()}
    for trace in read_traces(run[0]):
        example = by_name[trace["example"]]
        automaton, steps_to_accept = example.constraint, example.constraint.steps_to_accept
        assert (trace["budget"], trace["prompt"]) == (BUDGET, "ab")
        for step, sequences in zip(trace["steps"], histories(trace), strict=False):
            for place, tokens in zip(step["at"], sequences, strict=False):
                if place < 0:
                    continue
                prefix = step["prefixes"][place]
                state = automaton.initial
                for token in tokens:
                    state = automaton.step(state, token)
                assert prefix["left"] == BUDGET - len(tokens)
                assert prefix["needed"] == steps_to_accept[state]
                log_p = LM.log_p((*example.prompt, *tokens)).tolist()
                after = [automaton.step(state, v) for v in range(VOCABULARY.size)]
                room = prefix["left"] - 1 if trace["method"] == "gcd" else math.inf
                allowed = {v for v, s in enumerate(after) if s >= 0 and steps_to_accept[s] <= room}
                mass = (
                    math.log(total)
                    if (total := sum(math.exp(log_p[v]) for v in allowed))
                    else -math.inf
                )
                assert close(prefix["log_allowed"], mass)
                assert close(prefix["log_z"], mass)  # g is zero or one
                shown = {token: (p, q) for token, p, q in prefix["next"]}
                for token, (p, q) in shown.items():
                    assert close(p, log_p[token])
                    assert close(q, log_p[token] - mass if token in allowed else -math.inf)
                for law in (range(VOCABULARY.size), allowed):  # before and after the constraint
                    best = sorted(law, key=lambda v: -log_p[v])[: module.TOP]
                    assert set(best) <= set(shown)


def test_drawn_tokens_are_among_those_shown_and_have_their_bytes(run):
    for trace in read_traces(run[0]):
        for step in trace["steps"]:
            for part in ("after", "ended"):
                for a, tokens in zip(
                    *(step.get(part, {}).get(k, ()) for k in ("from", "tokens")), strict=True
                ):
                    for token in tokens[:1]:
                        shown = [each[0] for each in step["prefixes"][step["at"][a]]["next"]]
                        assert token in shown
                    for token in tokens:
                        text = trace["tokens"][str(token)]
                        assert text.encode("latin-1") == VOCABULARY.token_bytes[token]


def test_the_end_of_a_trace_is_the_row(run):
    """Weights and texts at the end make the answers and the evidence of the results."""
    directory, rows = run
    by_key = {key_of(row): row for row in rows}
    for trace in read_traces(directory):
        row = by_key[key_of(trace)]
        weights: dict[str, float] = {}
        discrete = trace["algorithm"] == "discrete"
        for g, step in enumerate(trace["steps"]):
            sequences = histories(trace)[g + 1]
            offset = len(step["after"]["from"])
            last = g == len(trace["steps"]) - 1
            parts = [(step.get("ended"), offset)] if discrete else [(step["after"], 0)] * last
            for part, start in parts:
                for i, log_weight in enumerate(part["log_weight"] if part else ()):
                    if log_weight is None:
                        continue
                    assert part["fate"][i] == FINISHED
                    text = VOCABULARY.decode(sequences[start + i]).decode(errors="replace")
                    weights[text] = weights.get(text, 0.0) + math.exp(log_weight)
        total = sum(weights.values())
        assert row["dead"] == (not weights)
        if weights:
            n = 1 if discrete else row["particles"]
            assert math.log(total / n) == pytest.approx(row["log_evidence"], abs=1e-4)
            for answer in row["answers"]:
                share = weights[answer["text"]] / total
                assert share == pytest.approx(answer["probability"], abs=1e-4)


def test_results_are_the_same_without_traces(run, tmp_path):
    """Trials of more particles are not traced."""
    directory, rows = run
    traces = {key_of(trace): trace for trace in read_traces(directory)}
    few, others = write_run(tmp_path / "few", "trace.particles=1")
    timeless = [[{**row, "seconds": 0} for row in each] for each in (rows, others)]
    assert timeless[0] == timeless[1]
    alone = {key: trace for key, trace in traces.items() if trace["particles"] == 1}
    assert {key_of(trace): trace for trace in read_traces(few)} == alone
    # Traces are whole where examples enter and leave: rows of one group are written while others
    # are under way, whose traces must wait.
    small, _ = write_run(tmp_path / "small", "smc.max_rows=6")
    assert {key_of(trace): trace for trace in read_traces(small)} == traces


@pytest.mark.parametrize(("count", "most"), [(1, 0), (1, 8), (7, 1), (8, 3), (9, 8), (100, 3)])
def test_traced_examples_are_spread(count, most):
    chosen = choose_for_tracing(range(10, 10 + count), most)
    assert len(chosen) <= most
    if most:
        assert 10 in chosen
        assert len(chosen) >= min(count, most) / 2
        gaps = {b - a for a, b in zip(sorted(chosen), sorted(chosen)[1:], strict=False)}
        assert len(gaps) <= 1


def test_a_trace_cut_short_is_dropped_when_the_run_goes_on(run, tmp_path):
    [path] = run[0].glob("traces*.jsonl")
    lines = path.read_text().splitlines(keepends=True)[:2]
    traces = [json.loads(line) for line in lines]
    cut = tmp_path / "traces.jsonl"
    for kept, text in ((traces[:1], lines[0] + lines[1][:40]), ([], lines[0][:40])):
        cut.write_text(text)
        drop_partial_line(cut)
        assert read_traces(tmp_path) == kept
        module.append_traces(cut, [(key_of(traces[1]), {}, traces[1])])
        assert read_traces(tmp_path) == [*kept, traces[1]]
