"""How many tokens of structured answers are forced, with all spellings and with canonical ones.

A token is forced where the constraint allows no other, EOS included and without any budget: the
language model need not be asked for it. Random answers draw each byte uniformly among those that
may come next, and after 40 bytes take a shortest way to the end. Only SmolLM2's tokenizer is used,
no weights are read. `benchmarks/README.md` says what the columns are.

    python -m benchmarks.forced --schemas ../shared/data/public_schemas
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

import gcd
from benchmarks.common import XLAM, head, public_schemas, tool_calls
from experiments.harness import smollm2
from experiments.tool_calling.answers import write_answer
from experiments.tool_calling.records import read_xlam
from gcd.tokens.canonical import LITERALS
from gcd.tokens.distances import steps_to_accept
from gcd.tokens.trimming import add_end

LONG = 40

Case = tuple[gcd.Automaton, list[str]]
"""A language, and answers in it."""


def calls(path: Path, count: int, style: str) -> Iterator[Case]:
    """Languages of the first records' tools, each with the gold calls that it holds."""
    first = {record.id for record in read_xlam(path).records[:count]}
    for record, language in tool_calls(style, path):
        text = write_answer(record.calls, record.tools, style)
        if record.id in first and language.accepts(text):
            yield language, [text]


def schemas(languages: Iterator[gcd.Automaton], rng: random.Random) -> Iterator[Case]:
    """Languages with three random answers each."""
    for language in languages:
        yield language, [random_text(language, rng) for _ in range(3)]


def random_text(language: gcd.Automaton, rng: random.Random) -> str:
    """A text of the language; printable bytes only, where there is the choice."""
    table = language.delta[:, language.class_of_byte]
    ended = np.full((table.shape[0] + 1, language.delta.shape[1] + 1), -1, np.int32)
    ended[:-1, :-1] = language.delta
    add_end(ended, language.accepting)
    steps = steps_to_accept(ended, table.shape[0])
    state, written = 0, bytearray()
    while True:
        following = np.flatnonzero(table[state] >= 0)
        shorter = following[steps[table[state, following]] < steps[state]]
        if len(written) >= LONG:
            if language.accepting[state]:
                return written.decode()
            following = shorter
        elif language.accepting[state] and (not following.size or rng.random() < 0.1):
            return written.decode()
        printable = following[(following >= 32) & (following < 127) & (following != 92)]
        if not printable.size:
            printable = following[following < 128] if (following < 128).any() else shorter
        byte = int(rng.choice(printable.tolist()))
        written.append(byte)
        state = int(table[state, byte])


def measure(cases: Iterator[Case], vocabulary: gcd.Vocabulary, show: int) -> dict[str, float]:
    """Count forced tokens, and what canonical spellings cost."""
    assert vocabulary.segmentation is not None
    count: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    free: Counter[str] = Counter()
    worst = 0.0
    for language, texts in cases:
        automata = {}
        for literals in LITERALS:
            start = time.process_time()
            automata[literals] = gcd.lift(language, vocabulary, literals=literals)
            seconds[literals] += (took := time.process_time() - start)
            count[f"{literals} states"] += automata[literals].num_states
            count[f"{literals} classes"] += automata[literals].num_classes
        worst = max(worst, took)
        count["constraints"] += 1
        for text in texts:
            ids = [*vocabulary.segmentation.encode(text), vocabulary.eos_ids[0]]
            count["answers"] += 1
            count["tokens"] += len(ids)
            for literals, automaton in automata.items():
                for token, others in walk(automaton, ids, text):
                    count[f"{literals} forced"] += others == 1
                    if others > 1 and literals == "canonical":
                        wide = "many" if others > 200 else "few"
                        free[f"{vocabulary.token_bytes[token]!r} ({wide})"] += 1
    if show:
        print("\nfree tokens:", ", ".join(f"{t} {n}" for t, n in free.most_common(show)), "\n")
    return {**count, "added": seconds["canonical"] - seconds["all"], "lift": seconds["all"],
            "worst": worst}  # fmt: skip


def walk(automaton: gcd.TokenAutomaton, ids: Sequence[int], text: str) -> Iterator[tuple[int, int]]:
    """Each token with the number of tokens that were allowed in its place."""
    counts = automaton.tokens_per_class
    ends = len(automaton.vocabulary.eos_ids) - 1  # several of them are one way to end
    state = automaton.initial
    for token in ids:
        after = automaton.delta[state]
        allowed = int(counts[after >= 0].sum()) - (ends if automaton.accepting[state] else 0)
        state = automaton.step(state, token)
        assert state >= 0, f"the tokenizer's own spelling of {text!r} is refused"
        yield token, allowed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--xlam", type=Path, default=XLAM, help="records, JSON lines")
    parser.add_argument("--schemas", type=Path, help="folder of schemas")
    parser.add_argument("--records", type=int, default=100, help="at most so many of xLAM's")
    parser.add_argument("--sample", type=int, default=200, help="at most so many schemas")
    parser.add_argument("--most-bytes", type=int, default=1 << 20, help="of a schema's file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--free", type=int, default=0, help="list so many of the free tokens")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    tokenizer = AutoTokenizer.from_pretrained(smollm2.checkpoint())
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    records = (arguments.xlam, arguments.records)
    sources: dict[str, Callable[[], Iterator[Case]]] = {
        "xLAM, JSON": lambda: calls(*records, "json"),
        "xLAM, Python": lambda: calls(*records, "python"),
    }
    if arguments.schemas is not None:
        rng = random.Random(arguments.seed)
        chosen = public_schemas(arguments.schemas, arguments.sample, arguments.most_bytes, rng)
        sources["public schemas"] = lambda: schemas(chosen, rng)
    columns = [
        "answers",
        "constraints",
        "answers",
        "tokens",
        "forced, all %",
        "forced, canonical %",
    ]
    print(head(*columns, "states", "classes", "lift, s", "added, s", "slowest, s"))
    for name, cases in sources.items():
        m = measure(cases(), vocabulary, arguments.free)
        print(
            f"| {name} | {m['constraints']} | {m['answers']} | {m['tokens']} "
            f"| {100 * m['all forced'] / m['tokens']:.1f} "
            f"| {100 * m['canonical forced'] / m['tokens']:.1f} "
            f"| {m['all states']} → {m['canonical states']} "
            f"| {m['all classes']} → {m['canonical classes']} "
            f"| {m['lift']:.1f} | {m['added']:.1f} | {m['worst']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
