"""The tool-calling task: every request with its tools, under each method and number of particles.

For each record: the tools become an automaton, the automaton is lifted to the model's tokens, the
budget follows from the shortest answer, and the prompt is checked against the context. What cannot
be honoured is refused here, by name, before the model runs; the rest is sampled in batches, and
each batch's rows are on disk before the next begins.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.harness.methods import refuse_little_memory, table_bytes
from experiments.harness.results import Key, ResultStore, Row
from experiments.tool_calling.answers import parse_answer, same_calls, write_answer
from experiments.tool_calling.budgets import budget_of
from experiments.tool_calling.prompts import build_prompt
from experiments.tool_calling.records import ToolRecord

_LOG = logging.getLogger(__name__)

_SHOWN_ANSWERS = 16  # the most probable ones are written out; their number is in the row


@dataclass(frozen=True)
class Example:
    """A request ready to be sampled.

    Attributes:
        number: names its random numbers.
        table_bytes: memory of what P-GCD tabulates of its constraint.
    """

    number: int
    record: ToolRecord
    language: gcd.Automaton
    constraint: gcd.TokenAutomaton
    prompt: tuple[int, ...]
    budget: int
    table_bytes: int = 0


@dataclass(frozen=True)
class Preparation:
    """What became of the records.

    Attributes:
        examples: those that will be sampled.
        refused: id and reason of those that will not.
        unknown_types: parameter types that were read as "any JSON value", with their counts.
        seconds: compilation of all constraints.
    """

    examples: tuple[Example, ...]
    refused: tuple[tuple[str, str], ...]
    unknown_types: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def prepare(
    records: Sequence[ToolRecord],
    lm: smc.TransformersLM,
    tokenizer: Any,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    progress: Callable[[int], object] = lambda _: None,
) -> Preparation:
    """Compile and check every record.

    Raises:
        ValueError: none is left, or lookahead is allowed too little memory for one that is.
    """
    task = config.task
    examples, refused, unknown = [], [], Counter[str]()
    started = time.perf_counter()
    for number, record in enumerate(records):
        try:
            unknown.update(gcd.parse_tools(record.tools).unknown_types)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # counted above, reported once for all records
                language = gcd.tool_calls(record.tools, style=task.style, max_calls=task.max_calls)
            constraint = gcd.lift(language, lm.vocabulary)
            budget = budget_of(task.budget, constraint)
            gcd.check_budget(constraint, budget)
            prompt = encode_prompt(record, task.style, tokenizer, config.model.prompt)
            smc.check_prompts(lm, [prompt], [budget])
            table = table_bytes(proposals, constraint, budget)
        except (gcd.ConstraintError, smc.PromptTooLongError) as error:
            refused.append((record.id, str(error)))
        else:
            examples.append(Example(number, record, language, constraint, prompt, budget, table))
        progress(1)
    if not examples:
        raise ValueError(
            f"none of the {len(records)} records can be run; the first: {refused[0][1]}"
        )
    refuse_little_memory(proposals, {f"{e.number}:{e.record.id}": e.table_bytes for e in examples})
    return Preparation(tuple(examples), tuple(refused), unknown, time.perf_counter() - started)


def encode_prompt(record: ToolRecord, style: str, tokenizer: Any, kind: str) -> tuple[int, ...]:
    """Token ids of the prompt; a chat template has written its special tokens itself."""
    text = build_prompt(record, style, tokenizer=tokenizer, kind=kind)
    templated = kind != "compact" and getattr(tokenizer, "chat_template", None) is not None
    encoded = tokenizer(text, add_special_tokens=not templated, verbose=False)
    return tuple(encoded["input_ids"])


def run(
    examples: Sequence[Example],
    lm: smc.TransformersLM,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    store: ResultStore,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Sample what the store does not hold yet, and add it."""
    task = config.task
    for method in task.methods:
        for particles in task.particles:
            due = [e for e in examples if key_of_example(e, method, particles) not in store]
            # Alike prompts together: less padding. Results do not depend on the grouping.
            due.sort(key=lambda e: (len(e.prompt), e.number))
            size = max(1, config.smc.max_rows // particles)
            for group in _groups(due, size, proposals[method]):
                posteriors = smc.sample(
                    lm,
                    [e.prompt for e in group],
                    [e.constraint for e in group],
                    budget=[e.budget for e in group],
                    particles=particles,
                    proposal=proposals[method],
                    resampling=config.smc.resampling,
                    ess_threshold=config.smc.ess_threshold,
                    temperature=config.smc.temperature,
                    top_p=config.smc.top_p,
                    seed=config.seed,
                    example_ids=[e.number for e in group],
                    max_rows=config.smc.max_rows,
                )
                store.append(
                    row_of(example, method, particles, task.style, posterior)
                    for example, posterior in zip(group, posteriors, strict=True)
                )
                progress(len(group))


def _groups(
    examples: Sequence[Example], size: int, proposal: smc.Proposal
) -> Iterator[list[Example]]:
    """Examples that are sampled together: so many at most, and as memory for lookahead allows."""
    room = math.inf if proposal.max_bytes is None else proposal.max_bytes
    group: list[Example] = []
    taken = 0
    for example in examples:
        if group and (len(group) == size or taken + example.table_bytes > room):
            yield group
            group, taken = [], 0
        group.append(example)
        taken += example.table_bytes
    if group:
        yield group


def key_of_example(example: Example, method: str, particles: int) -> Key:
    """The row's identity: a record id is unique in its file, the number makes it so in a run."""
    return f"{example.number}:{example.record.id}", method, particles


def row_of(
    example: Example, method: str, particles: int, style: str, posterior: smc.Posterior
) -> Row:
    """One line of `results.jsonl`."""
    correct = [is_correct(answer, example.record, style) for answer in posterior.answers]
    chosen = posterior.answers[0] if posterior.answers else b""
    return {
        "example": key_of_example(example, method, particles)[0],
        "method": method,
        "particles": particles,
        "style": style,
        "budget": example.budget,
        "needed": int(example.constraint.steps_to_accept[example.constraint.initial]),
        # Checked again on the bytes, by the automaton that never saw a token.
        "valid": not posterior.dead and example.language.accepts(chosen),
        "complete": not posterior.dead and posterior.complete,
        "share_finished": posterior.diagnostics.share_finished,
        "dead": posterior.dead,
        "weighted_accuracy": sum(
            p for p, right in zip(posterior.probabilities, correct, strict=True) if right
        ),
        "majority_correct": bool(correct and correct[0]),
        "log_evidence": None if posterior.dead else posterior.log_evidence,
        "ess": posterior.ess,
        "lm_calls": posterior.diagnostics.lm_calls,
        "tokens": posterior.diagnostics.tokens,
        "seconds": round(posterior.diagnostics.seconds, 4),
        "num_answers": len(posterior.answers),
        "answers": [
            {"text": text, "probability": p, "correct": right}
            for text, p, right in zip(
                posterior.texts[:_SHOWN_ANSWERS], posterior.probabilities, correct, strict=False
            )
        ],
        "unfinished": _fragment(posterior),
        "gold": write_answer(example.record.calls, example.record.tools, style),
    }


def is_correct(answer: bytes, record: ToolRecord, style: str) -> bool:
    """Whether the answer is the same multiset of calls as the gold answer's."""
    try:
        calls = parse_answer(answer.decode(), style)
    except ValueError:  # a UnicodeDecodeError is one
        return False
    return same_calls(calls, record.calls)


def _fragment(posterior: smc.Posterior) -> str | None:
    """What a dead row's first particle had written when its budget ran out."""
    if not posterior.dead:
        return None
    return posterior.particles[0].answer.decode(errors="replace")
