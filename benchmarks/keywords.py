"""Sentences with five keywords, compiled and lifted to a large vocabulary: by factors or whole.

An automaton of `gcd.keywords` knows the factors that it is a product of, and `gcd.lift` walks the
vocabulary for these alone; without them it walks for every state of the product. Both give the
same token automaton, which is checked. Compiled code is warm, the prefix tree of the vocabulary
built beforehand. Each figure is the least processor time of several runs, in milliseconds.

    python -m benchmarks.keywords ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import gcd

GROUPS = [
    ["dog", "dogs"],
    ["catch", "catches", "caught", "catching"],
    ["frisbee", "frisbees"],
    ["throw", "throws", "threw", "thrown", "throwing"],
    ["park", "parks", "parked", "parking"],
]
LIMITS = (None, 10, 20, 30)


def least(run: Callable[[], object], repeats: int) -> float:
    """The least processor time of several runs, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ranks", type=Path, help="vocabulary: lines of `base64 rank`")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--whole", type=int, default=10, help="lift whole up to so many words")
    arguments = parser.parse_args()
    unsized = gcd.Vocabulary.from_ranks(arguments.ranks, eos_ids=[])
    vocabulary = gcd.Vocabulary.from_ranks(arguments.ranks, eos_ids=[unsized.size])
    gcd.lift(gcd.keywords([["a"]], max_words=2), vocabulary)  # compiles

    print(f"{vocabulary.size} tokens; {len(GROUPS)} groups, {sum(map(len, GROUPS))} words\n")
    heads = ["most words", "states", "states of factors", "classes", "keywords, ms", "lift, ms"]
    heads += ["together, ms", "lift whole, ms", "whole / by factors"]
    print("|", " | ".join(heads), "|")
    print("|---" * len(heads) + "|")
    for limit in LIMITS:
        language = gcd.keywords(GROUPS, max_words=limit)
        lifted = gcd.lift(language, vocabulary)
        build = least(lambda m=limit: gcd.keywords(GROUPS, max_words=m), arguments.repeats)
        lift = least(lambda a=language: gcd.lift(a, vocabulary), arguments.repeats)
        slow = "– | –"
        if (limit or 0) <= arguments.whole:
            whole = replace(language, factors=())
            other = gcd.lift(whole, vocabulary)
            assert np.array_equal(lifted.delta, other.delta)
            assert np.array_equal(lifted.class_of, other.class_of)
            taken = least(lambda a=whole: gcd.lift(a, vocabulary), 1)
            slow = f"{taken:.0f} | {taken / lift:.0f}"
        print(
            f"| {limit or 'no limit'} | {language.num_states} "
            f"| {sum(factor.num_states for factor in language.factors)} | {lifted.num_classes} "
            f"| {build:.0f} | {lift:.0f} | {build + lift:.0f} | {slow} |"
        )


if __name__ == "__main__":
    main()
