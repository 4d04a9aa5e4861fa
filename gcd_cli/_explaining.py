"""Reports of constraints, and of where a text stands in a language, in bytes and in tokens.

Each report is a dictionary of plain values for JSON, beside lines to print, pairs of a name and a
description.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import gcd
from gcd._readable import readable_bytes, readable_ranges

_SHOWN = 8  # tokens listed in the output

_Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Standing:
    """Longest viable prefix of a text, that is, the longest that begins a string of the language.

    Attributes:
        text: the text.
        viable: length of the viable prefix in bytes.
        may_end: whether the viable prefix is a string of the language.
        state: automaton state after the viable prefix.
        expected: bytes that may follow the viable prefix, as ranges; empty if there are none.
        completion: a shortest completion of the viable prefix.
        caveats: the parts of the constraint that the language doesn't enforce.
        tokens: the result of `in_tokens` for the viable prefix; None without a tokenizer.
    """

    text: bytes
    viable: int
    may_end: bool
    state: int
    expected: str
    completion: bytes
    caveats: tuple[str, ...]
    tokens: dict[str, Any] | None

    @property
    def is_refused(self) -> bool:
        """True if no string of the language begins with the text."""
        return self.viable < len(self.text)

    @property
    def in_language(self) -> bool:
        """True if the text is a string of the language."""
        return self.may_end and not self.is_refused

    @property
    def is_viable(self) -> bool:
        """True if some string of the language begins with the text and fits into the budget."""
        return not self.is_refused and (self.tokens is None or self.tokens["fits"])

    def reason(self) -> str | None:
        """Return a sentence that states why the text doesn't satisfy the constraint, or None."""
        if self.in_language:
            return None if self.tokens is None else self.tokens["reason"]
        after = readable_bytes(self.text[: self.viable])
        ways = self.expected and f"expected {self.expected}"
        if not self.is_refused:
            return f"the text is not complete after {after}; {ways}"
        before = self.text[: self.viable]
        line, column = before.count(b"\n") + 1, self.viable - before.rfind(b"\n")
        byte = readable_bytes(self.text[self.viable : self.viable + 1])
        ways = " or ".join(filter(None, [ways, "the end" if self.may_end and ways else ""]))
        return (
            f"byte {self.viable + 1} (line {line}, column {column}) is {byte} after {after}; "
            f"{ways or 'expected the end'}"
        )

    def report(self) -> dict[str, Any]:
        """Return the report as plain values for JSON; bytes that aren't UTF-8 are escaped."""
        return {
            "in_language": self.in_language,
            "refused": self.is_refused,
            "viable_bytes": self.viable,
            "may_end": self.may_end,
            "expected": self.expected,
            "fewest_bytes": len(self.completion),
            "completion": self.completion.decode(errors="backslashreplace"),
            "reason": self.reason(),
            **({"caveats": list(self.caveats)} if self.caveats else {}),
            **({} if self.tokens is None else {"in_tokens": self.tokens}),
        }

    def text_lines(self) -> _Lines:
        """Return lines that judge the whole text."""
        said = self.reason()
        if said is not None:
            return [("no", said), *_not_held(self.caveats)]
        said = f"{len(self.text)} bytes"
        if self.tokens is not None:
            said += f", at least {self.tokens['tokens'] + 1} tokens, EOS included"
        return [("yes", said), *_not_held(self.caveats)]

    def prefix_lines(self) -> _Lines:
        """Return lines that describe what may follow the text."""
        begun, tokens = readable_bytes(self.text[: self.viable]), self.tokens
        if self.is_refused:
            lines = [("refused", self.reason() or "")]
        elif tokens is not None and tokens["reason"] is not None:
            lines = [("refused", f"{begun}: {tokens['reason']}")]
        else:
            ends = "the text may end here" if self.may_end else "the text may not end here"
            follows = self.expected or "nothing, the text has to end here"
            lines = [("viable", f"{begun}: {ends}"), ("next", follows)]
        completion = readable_bytes(self.completion, None)
        lines.append(("to the end", f"at least {len(self.completion)} bytes, {completion}"))
        lines += _not_held(self.caveats)
        if tokens is None or tokens["tokens"] is None:
            return lines
        remaining, few = tokens["remaining"], " ".join(tokens["examples"])
        left = "" if remaining is None else f", {remaining} of {remaining + tokens['tokens']} left"
        more = tokens["allowed_without_budget"]
        binds = f"; without the budget {more}" if more != tokens["allowed"] else ""
        of_all = f"{tokens['allowed']} of {tokens['vocabulary']} may come next"
        return [
            *lines,
            ("tokens", f"at least {tokens['tokens']} so far{left}"),
            ("", f"{of_all}{f': {few}' if few else ''}{binds}"),
            ("", f"at least {tokens['fewest_tokens']} to the end, EOS included"),
        ]


def standing(
    language: gcd.Automaton,
    text: bytes,
    automaton: gcd.TokenAutomaton | None = None,
    budget: int | None = None,
) -> Standing:
    """Find the longest prefix of a text that begins a string of the language."""
    if language.max_bytes is not None and len(text) > language.max_bytes:
        held = "; ".join(str(each) for each in language.caveats if not each.is_unchecked)
        remedy = f'set unsupported="ignore" ({held})' if held else "raise max_bytes"
        raise gcd.ConstraintError(
            f"expected a text of at most {language.max_bytes} bytes, the limit (max_bytes) of the "
            f"constraint, got {len(text)} bytes; {remedy}"
        )
    state, viable = language.initial, 0
    for byte in text:
        after = language.run(bytes([byte]), state)
        if after < 0:
            break
        state, viable = after, viable + 1
    return Standing(
        text=text,
        viable=viable,
        may_end=bool(language.accepting[state]),
        state=state,
        expected=readable_ranges(np.flatnonzero(language.transitions[state] >= 0).tolist()),
        completion=language.shortest(state),
        caveats=tuple(map(str, language.caveats)),
        tokens=None if automaton is None else in_tokens(automaton, text[:viable], budget),
    )


def in_tokens(automaton: gcd.TokenAutomaton, text: bytes, budget: int | None) -> dict[str, Any]:
    """Report the tokens that may follow a viable text, after the fewest tokens that spell it.

    `tokens` is None if no tokens spell the text, and `fewest_tokens` counts from there to the end,
    EOS included. `reason` is None if the text `fits`, that is, can end within the budget.
    """
    automaton = replace(automaton, max_bytes=None)  # callers have checked the budget
    tokens = spell(automaton, text)
    if tokens is None:
        reason = "the vocabulary's tokens cannot spell the text"
        return {"tokens": None, "fits": False, "reason": reason}
    remaining = None if budget is None else budget - len(tokens)
    report = gcd.inspect_prefix(automaton, tokens, remaining=remaining)
    ends, names = automaton.vocabulary.eos_ids, automaton.vocabulary.token_bytes
    shown = dict.fromkeys(
        "EOS" if token in ends else readable_bytes(names[token])
        for token in report.allowed[: 8 * _SHOWN].tolist()
    )  # several ids may have the same bytes
    assert report.needed is not None
    fits = remaining is None or report.needed <= remaining
    needed = len(tokens) + report.needed
    too_long = f"the text needs {needed} tokens, EOS included, but the budget is {budget}"
    return {
        "tokens": len(tokens),
        "fewest_tokens": report.needed,
        "remaining": remaining,
        "fits": fits,
        "reason": None if fits else too_long,
        "allowed": int(report.allowed.size),
        "allowed_without_budget": int(automaton.allowed(report.state).size),
        "examples": list(shown)[:_SHOWN],
        "vocabulary": automaton.vocabulary.size,
    }


def spell(automaton: gcd.TokenAutomaton, text: bytes) -> list[int] | None:
    """Return the fewest tokens that spell the beginning of an answer; None if none spell it."""
    words = automaton.vocabulary.token_bytes
    known = {word: token for token, word in enumerate(words) if word}
    longest = max(map(len, known), default=0)
    # The state after a text doesn't depend on the tokens that spell it.
    ways: list[tuple[int, list[int]] | None] = [(automaton.initial, []), *[None] * len(text)]
    for begin, way in enumerate(ways):
        for end in range(begin + 1, min(begin + longest, len(text)) + 1) if way else ():
            token, best = known.get(text[begin:end]), ways[end]
            if way and token is not None and (best is None or len(best[1]) > len(way[1]) + 1):
                state = automaton.step(way[0], token)
                ways[end] = (state, [*way[1], token]) if state >= 0 else best
    found = ways[-1]
    return None if found is None else found[1]


def describe(
    language: gcd.Automaton, automaton: gcd.TokenAutomaton | None, compiling: float, lifting: float
) -> tuple[dict[str, Any], _Lines]:
    """Return the report of a compiled constraint, and its lines; times are in seconds."""
    shortest, classes = language.shortest(), language.delta.shape[1]
    report: dict[str, Any] = {
        "states": language.num_states,
        "byte_classes": classes,
        "fewest_bytes": len(shortest),
        "shortest": shortest.decode(errors="backslashreplace"),
        "seconds": compiling,
    }
    caveats = [str(caveat) for caveat in language.caveats]
    lines = [
        ("bytes", f"{language.num_states:,} states, {classes} byte classes"),
        ("shortest", f"{len(shortest)} bytes, {report['shortest']}"),
        *_not_held(caveats),
    ]
    if caveats:
        report["caveats"] = caveats
    if isinstance(language, gcd.GrammarLanguage):
        report["extent"] = language.extent
        lines.append(("extent", language.extent))
    if automaton is None:
        return report, [*lines, ("time", f"{compiling:.2f} s")]
    tokens = report["tokens"] = {
        "vocabulary": automaton.vocabulary.size,
        "states": automaton.num_states,
        "classes": automaton.num_classes,
        "fewest_tokens": automaton.fewest_tokens,
        "memory_bytes": automaton.nbytes,
        "seconds": lifting,
    }
    states, of_all = f"{tokens['states']:,} states", f"{tokens['vocabulary']:,} tokens"
    return report, [
        *lines,
        ("tokens", f"{states}, {tokens['classes']} classes of {of_all}"),
        ("fewest", f"{tokens['fewest_tokens']} tokens, EOS included"),
        ("memory", f"{automaton.nbytes / 1e3:,.0f} kB"),
        ("time", f"{compiling:.2f} s to compile, {lifting:.2f} s to lift"),
    ]


def _not_held(caveats: Iterable[str]) -> _Lines:
    """Return lines with the parts of a constraint that a language doesn't enforce."""
    return [("not held", caveat) for caveat in caveats]
