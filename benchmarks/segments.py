"""What a limit of tokens on free text costs, before a schema: states, memory, and time to lift.

For each schema of a sample: lifted alone, and after free text of at most so many tokens that ends
with a text or with a special token; both with all spellings and, in the first form, with canonical
ones. Beside them the schema with a limit of its own, and no free text. The vocabulary is SmolLM2's;
no weights are read. `table` is the token automaton's; `served` what a `gcd.Matcher` keeps of it,
its cache included. Seconds are processor time of lifting alone: schemas are compiled beforehand.

    python -m benchmarks.segments ../shared/data/public_schemas --sample 100
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

import gcd
from benchmarks.common import head, line, public_schemas
from experiments.harness import smollm2

SPECIAL = 5  # `<file_sep>`, which stands for the special token that ends a model's thoughts


def forms(language: gcd.Automaton, tokens: int, own: int) -> dict[str, tuple[object, str]]:
    """What is lifted, and with which spellings."""

    def after(until: str | int) -> gcd.Segments:
        thinking = gcd.Segment(gcd.anything(), until=until, tokens=tokens)
        return gcd.segments([thinking, gcd.Segment(language)])

    return {
        "the schema alone": (language, "all"),
        f"free text, {tokens} tokens, until `</think>`": (after("</think>"), "all"),
        "the same, canonical spellings": (after("</think>"), "canonical"),
        f"free text, {tokens} tokens, until a special token": (after(SPECIAL), "all"),
        f"the schema alone, at most {own} tokens": (
            gcd.segments([gcd.Segment(language, tokens=own)]),
            "all",
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("schemas", type=Path, help="folder of schemas")
    parser.add_argument("--sample", type=int, default=100, help="at most so many of them")
    parser.add_argument("--most-bytes", type=int, default=6000, help="of a schema's file")
    parser.add_argument("--tokens", type=int, default=200, help="limit of the free text")
    parser.add_argument("--own", type=int, default=100, help="limit of a schema")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    tokenizer = AutoTokenizer.from_pretrained(smollm2.checkpoint())
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    found: dict[str, list[tuple[float, ...]]] = {}
    refused: dict[str, int] = {}
    rng = random.Random(arguments.seed)
    sampled = public_schemas(arguments.schemas, arguments.sample, arguments.most_bytes, rng)
    for number, language in enumerate(sampled):
        for name, (what, literals) in forms(language, arguments.tokens, arguments.own).items():
            start = time.process_time()
            try:
                automaton = gcd.lift(what, vocabulary, literals=literals)
            except gcd.ConstraintError:
                refused[name] = refused.get(name, 0) + 1
                continue
            seconds = time.process_time() - start
            if number == 0:  # which finds the vocabulary's own tables missing
                start = time.process_time()
                gcd.lift(what, vocabulary, literals=literals)
                seconds = time.process_time() - start
            served = gcd.ServedAutomaton(automaton).nbytes
            found.setdefault(name, []).append(
                (automaton.num_states, automaton.delta.nbytes / 1e6, served / 1e6, seconds)
            )
    columns = "states", "table, MB", "served, MB", "lift, s"
    print(head("lifted", "schemas", "refused", *columns))
    for name, rows in found.items():
        cells = [
            f"{np.median(column):.{digits}f} / {max(column):.{digits}f}"
            for column, digits in zip(zip(*rows, strict=True), (0, 1, 1, 2), strict=True)
        ]
        print(line(name, len(rows), refused.get(name, 0), *cells))


if __name__ == "__main__":
    main()
