"""Call the kernels of this package once on small data, so that they are compiled and kept on disk.

`python -m gcd.warm_up` does so for lifting and matchers: a first process that finds nothing
compiled starts it (`gcd.support.compiled`) and compiles the kernels of automata meanwhile. That is
why `tokens` makes its automaton by hand. `scripts/warm_up.py` calls all parts.
"""

from __future__ import annotations

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
    gcd.literal("ab").repeat(0, 9)  # fingerprints do not settle which of its states are equivalent
    assert not schema.is_empty
    assert both.shortest() is not None


def tokens() -> None:
    """Lifting, matchers, and trees read from the disk."""
    gcd.lift(strings(1), vocabulary())  # no part of which repeats
    automaton = gcd.lift(strings(20), vocabulary())
    batch = gcd.MatcherBatch([gcd.Matcher(automaton, budget=10) for _ in range(2)])
    batch.advance([ord('"')] * 2)
    batch.fill_masks(np.empty((2, batch[0].automaton.num_words), np.int32))
    matcher = gcd.Matcher(automaton)
    matcher.mask()
    matcher.forced()
    matcher.validate([ord('"')])
    assert matcher.restricts
    matcher.advance(ord('"'))
    trie = vocabulary().trie
    assert type(trie).from_arrays(trie.arrays(), vocabulary().token_bytes) is not None


if __name__ == "__main__":
    tokens()
