"""Compile all kernels before they are needed, in two processes, as `make run` and `make test` do.

    python -m scripts.warm_up [--processes N]

numba compiles a kernel when it is first called, one at a time, and keeps it on disk
(`gcd.support.compiled`). Here each part of the library is called once on small data, the parts side
by side in processes of their own; who comes later finds the files. Where all is compiled already
this takes a few seconds. Nothing depends on it: a kernel that is missed is compiled when called.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import gcd

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "n": {"type": "integer", "minimum": 0, "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


def vocabulary() -> gcd.Vocabulary:
    """The single bytes, a few longer tokens, and EOS."""
    longer = [b'{"', b'":', b'",', b"name", b"aa", b'a"']
    tokens = [*(bytes([i]) for i in range(256)), *longer, b""]
    return gcd.Vocabulary.from_bytes(tokens, eos_ids=[len(tokens) - 1])


def strings(longest: int) -> gcd.Automaton:
    """JSON strings of at most so many characters `a` to `z`, made without a kernel for automata."""
    class_of_byte = np.zeros(256, np.uint8)
    class_of_byte[ord('"')] = 1
    class_of_byte[ord("a") : ord("z") + 1] = 2
    delta = np.full((longest + 3, 3), -1, np.int32)
    delta[0, 1] = 1
    for state in range(1, longest + 2):
        delta[state, 1] = longest + 2
        if state <= longest:
            delta[state, 2] = state + 1
    accepting = np.arange(longest + 3) == longest + 2
    return gcd.Automaton(delta, accepting, class_of_byte)


def languages() -> None:
    """Schemas, regular expressions and the algebra of languages."""
    schema = gcd.json_schema(SCHEMA)
    words = gcd.regex(r"[a-z]+( [a-z]+){0,3}") | gcd.choice(["one", "two"])
    both = (words & ~gcd.literal("two")) + gcd.literal(".").repeat(1, 2)
    assert not schema.is_empty
    assert both.shortest() is not None


def tokens() -> None:
    """Lifting, matchers, and trees read from the disk."""
    automaton = gcd.lift(strings(20), vocabulary())
    batch = gcd.MatcherBatch([gcd.Matcher(automaton, budget=10) for _ in range(2)])
    batch.advance([ord('"')] * 2)
    batch.fill_masks(np.empty((2, batch[0].automaton.num_words), np.int32))
    matcher = gcd.Matcher(automaton)
    matcher.mask()
    matcher.forced()
    matcher.advance(ord('"'))
    trie = vocabulary().trie
    assert type(trie).from_arrays(trie.arrays(), vocabulary().token_bytes) is not None


def sampling() -> None:
    """The hidden Markov model's recursion and the sampler's guide."""
    import torch

    import smc
    from hmm.model import HMM
    from smc.testing import ToyLM

    lm = ToyLM(vocabulary())
    constraint = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(4, lm.vocabulary.size, generator=generator, dtype=torch.float32)
    for proposal in (smc.PGCD(hmm, lookahead="in_time"), smc.PGCD(hmm, lookahead="conditional")):
        smc.sample(lm, [(0,)], constraint, budget=40, particles=2, proposal=proposal)


PARTS: dict[str, Callable[[], None]] = {
    "languages": languages,
    "tokens": tokens,
    "sampling": sampling,
}


def warm_up(part: str) -> None:
    """Call the kernels of one part."""
    PARTS[part]()


def main() -> None:
    """Parse the command line; parts run side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=2, help="parts at a time")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        list(pool.map(warm_up, PARTS))


if __name__ == "__main__":
    main()
