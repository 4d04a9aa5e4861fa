"""Use an installed package: print a mask, and the answer that a budget leaves.

    python scripts/try_installation.py

Run a copy of this file outside of the checkout: it uses the installed package and needs no extra.
"""

from __future__ import annotations

from pathlib import Path

import gcd
import hmm
import smc


def main() -> None:
    """Fill one answer token by token, always with the last token that the mask allows."""
    tokens = [bytes([each]) for each in range(256)]
    vocabulary = gcd.Vocabulary.from_bytes([*tokens, b'{"n": ', b"12", b""], eos_ids=258)
    language = gcd.json_schema(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    matcher = gcd.Matcher(gcd.lift(language, vocabulary), budget=8)
    answer = []
    while True:
        words = matcher.mask()
        allowed = [v for v in range(vocabulary.size) if words[v // 32] >> (v % 32) & 1]
        token = allowed[-1]
        assert matcher.advance(token)
        if token in vocabulary.eos_ids:
            break
        answer.append(vocabulary.token_bytes[token])
    text = b"".join(answer).decode()
    assert len(answer) < 8
    assert language.accepts(text.encode())
    assert hmm.HMM.random(2, 3).num_states == 2
    assert isinstance(smc.GCD(), smc.MaskProposal)
    print(f"{gcd.__version__} at {Path(gcd.__file__).parent}: {text}")


if __name__ == "__main__":
    main()
