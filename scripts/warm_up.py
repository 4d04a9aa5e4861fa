"""Compile all kernels before they are needed, in two processes, as `make run` and `make test` do.

    python -m scripts.warm_up [--processes N]

numba compiles a kernel when it is first called, one at a time, and keeps it on disk
(`gcd.support.compiled`). Here each part of the library is called once on small data, the parts side
by side in processes of their own; who comes later finds the files. Where all is compiled already
this takes a few seconds. Nothing depends on it: a kernel that is missed is compiled when called,
and so are those for language models and HMMs in float64, which tests have, and experiments do not.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import gcd
from gcd.warm_up import SCHEMA, languages, tokens, vocabulary


def sampling() -> None:
    """The hidden Markov model's recursion, and the passes of a step over the vocabulary."""
    import torch

    import smc
    from hmm.model import HMM
    from smc.testing import ToyLM
    from smc.vocabulary import compiled

    lm = ToyLM(vocabulary(), dtype=torch.float32)  # as language models are
    constraint = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(4, lm.vocabulary.size, generator=generator, dtype=torch.float32)
    proposals: list[smc.Proposal] = [smc.GCD(), smc.PGCD(hmm), smc.PGCD(hmm, lookahead="in_time")]
    # The vocabulary is too small for compiled loops.
    narrow, compiled.NARROW = compiled.NARROW, 0
    try:
        for proposal, algorithm in product(proposals, ("smc", "discrete")):
            smc.sample(lm, [(0,)], constraint, budget=40, particles=2, proposal=proposal,
                       algorithm=algorithm)  # fmt: skip
        smc.sample(lm, [(0,)], constraint, budget=40, particles=2, proposal=smc.GCD(), top_p=0.9)
    finally:
        compiled.NARROW = narrow


def narrowing() -> None:
    """What only some constraints ask for: spellings of the tokenizer, segments, wiring by hand."""
    tokenizer = _tokenizer()
    ids = tokenizer.get_vocab()
    own = gcd.Vocabulary.from_tokenizer(tokenizer, eos_ids=[ids["</s>"]])
    gcd.lift(gcd.json_schema(SCHEMA), own, literals="canonical")
    thought = gcd.Segment(gcd.anything(), until="}", tokens=4)
    gcd.lift(gcd.segments([thought, gcd.Segment(gcd.json_schema(SCHEMA))]), own)
    wires = [("start", [ids["a"], ids["b"]], "middle"), ("middle", [ids["a"]], "end")]
    gcd.TokenAutomaton.from_transitions(own, wires, initial="start", accepting=["end"])


def _tokenizer() -> Any:
    """A tokenizer of single bytes, one pair, and the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), '":']
    bpe = models.BPE({symbol: i for i, symbol in enumerate(symbols)}, [('"', ":")])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


PARTS: dict[str, Callable[[], None]] = {
    "languages": languages,
    "tokens": tokens,
    "sampling": sampling,
    "narrowing": narrowing,
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
