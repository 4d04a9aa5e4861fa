"""Sentences with five keywords, compiled and lifted to a large vocabulary: by factors or whole.

An automaton of `gcd.keywords` knows the factors that it is a product of, and `gcd.lift` walks the
vocabulary for these alone; without them it walks for every state of the product. Both give the
same token automaton, which is checked. Compiled code is warm, the prefix tree of the vocabulary
built beforehand. Each figure is the least processor time of several runs, in milliseconds.

    python -m benchmarks.keywords ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

import gcd
from benchmarks.common import head, least, ranked, with_ranks

GROUPS = [
    ["dog", "dogs"],
    ["catch", "catches", "caught", "catching"],
    ["frisbee", "frisbees"],
    ["throw", "throws", "threw", "thrown", "throwing"],
    ["park", "parks", "parked", "parking"],
]
LIMITS = (None, 10, 20, 30)


def main() -> None:
    parser = with_ranks(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--whole", type=int, default=10, help="lift whole up to so many words")
    arguments = parser.parse_args()
    vocabulary = ranked(arguments.ranks)
    gcd.lift(gcd.keywords([["a"]], max_words=2), vocabulary)  # compiles

    print(f"{vocabulary.size} tokens; {len(GROUPS)} groups, {sum(map(len, GROUPS))} words\n")
    heads = ["most words", "states", "states of factors", "classes", "keywords, ms", "lift, ms"]
    heads += ["together, ms", "lift whole, ms", "whole / by factors"]
    print(head(*heads))
    for limit in LIMITS:
        language = gcd.keywords(GROUPS, max_words=limit)
        lifted = gcd.lift(language, vocabulary)
        compiling = partial(gcd.keywords, GROUPS, max_words=limit)
        build = 1e3 * least(compiling, arguments.repeats, "cpu")
        lift = 1e3 * least(partial(gcd.lift, language, vocabulary), arguments.repeats, "cpu")
        slow = "– | –"
        if (limit or 0) <= arguments.whole:
            whole = replace(language, factors=())
            other = gcd.lift(whole, vocabulary)
            assert np.array_equal(lifted.delta, other.delta)
            assert np.array_equal(lifted.class_of, other.class_of)
            taken = 1e3 * least(partial(gcd.lift, whole, vocabulary), 1, "cpu")
            slow = f"{taken:.0f} | {taken / lift:.0f}"
        print(
            f"| {limit or 'no limit'} | {language.num_states} "
            f"| {sum(factor.num_states for factor in language.factors)} | {lifted.num_classes} "
            f"| {build:.0f} | {lift:.0f} | {build + lift:.0f} | {slow} |"
        )


if __name__ == "__main__":
    main()
