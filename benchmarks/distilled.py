"""Problems for P-GCD with the HMMs in `models/`: SmolLM2 on tools, sentences and SQL queries.

Each task has a finite language, so that the posterior can be enumerated or certified:

    tool        the problems of `benchmarks.reliability` with SmolLM2 (tool names, numbers, dates,
                JSON objects), and the HMM for tool calls
    sentence    sentences with three concepts of `data/commongen` in any order, with few words
                between them; SmolLM2 with the adapter for sentences, and its HMM
    query       queries of one table of a database of `data/sql`; SmolLM2 with the adapter for
                queries, and its HMM

The prompts of odd problems name the content (told), those of even ones don't (untold). P-GCD uses
`lookahead=1` for untold prompts and 1/8 for told ones, the values that were fitted for sentences.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import gcd
import hmm
import smc
from benchmarks.reliability import Problem, real_problems

LOOKAHEAD = (1.0, 0.125)
BETWEEN = "( the| in a)? "
BUDGET = 40


def is_told(number: int) -> bool:
    """Tell whether the prompt of the problem with this number names the content."""
    return number % 2 == 1


def distill_problems(
    count: int, tasks: Sequence[str], done: set[str]
) -> Iterator[tuple[Problem, smc.PGCD]]:
    """Yield problems of some tasks under GCD, with the proposal of P-GCD."""
    for task in tasks:
        if {f"{task} {k}" for k in range(count)} <= done:
            continue
        make, model = TASKS[task]
        proposals: list[smc.PGCD] = []
        for problem in make(count):
            if not proposals:
                found = hmm.load(f"models/{model}-hmm", vocabulary=problem.lm.vocabulary)
                proposals = [smc.PGCD(found.hmm, lookahead=weight) for weight in LOOKAHEAD]
            if problem.name not in done:
                yield problem, proposals[is_told(int(problem.name.split()[1]))]


def tools(count: int) -> Iterator[Problem]:
    """Yield the problems of `benchmarks.reliability` with SmolLM2."""
    for problem in real_problems(count, set()):
        yield problem._replace(name=problem.name.replace("real", "tool"))


def sentences(count: int) -> Iterator[Problem]:
    """Yield concept sets, with sentences of a determiner, the concepts, and words between them."""
    from experiments.commongen.records import build_prompt, read_file

    lm = load_adapted("smollm2-commongen")
    records = [r for r in read_file("data/commongen/dev_100.jsonl").records if len(r.concepts) == 3]
    for k in range(count):
        record = records[k % len(records)]
        forms = ["(" + "|".join(sorted(set(words))[:2]) + ")" for words in record.inflections]
        orders = "|".join(BETWEEN.join(order) for order in permutations(forms))
        prompt = build_prompt(record, told="all" if is_told(k) else "none", kind="compact")
        yield problem_of(f"sentence {k}", lm, prompt, rf"(A|The) ({orders})\.")


def queries(count: int) -> Iterator[Problem]:
    """Yield questions, with queries for one column or the number of rows of a table."""
    from experiments.sql.databases import read_sources
    from experiments.sql.prompts import build_prompt
    from experiments.sql.questions import read_questions

    lm = load_adapted("smollm2-sql")
    sources = read_sources(Path("data/sql"))
    questions = list(read_questions(Path("data/sql/questions.jsonl"), sources).records)
    random.Random(0).shuffle(questions)
    for k in range(count):
        schema, question = sources[questions[k].database].schema, questions[k].text
        tables = []
        for table in schema.tables:
            column = "(" + "|".join(rf"{table.name}\.{each.name}" for each in table.columns) + ")"
            order = rf"( ORDER BY {column}( DESC)?( LIMIT 1)?)?"
            tables.append(rf"SELECT (COUNT\(\*\)|{column}) FROM {table.name}{order}")
        told = build_prompt(schema, question, tokenizer=lm.tokenizer, kind="compact")
        prompt = told if is_told(k) else f"Question: {question}\nSQL:\n"
        yield problem_of(f"query {k}", lm, prompt, "|".join(tables))


def problem_of(name: str, lm: smc.TransformersLM, prompt: str, pattern: str) -> Problem:
    """Return a problem with a regular expression, in canonical tokenization."""
    constraint = gcd.lift(gcd.regex(pattern), lm.vocabulary, literals="canonical")
    return Problem(name, lm, prompt, constraint, BUDGET)


@cache
def load_adapted(adapter: str) -> Any:
    """Load SmolLM2 with an adapter."""
    from experiments.config import ModelConfig
    from experiments.models import load_model

    return load_model(ModelConfig(adapter=f"models/{adapter}", device="cpu"))[0]


TASKS: dict[str, tuple[Callable[[int], Iterator[Problem]], str]] = {
    "tool": (tools, "smollm2-xlam"),
    "sentence": (sentences, "smollm2-commongen"),
    "query": (queries, "smollm2-sql"),
}
"""Problems of each task, and the name of its models."""
