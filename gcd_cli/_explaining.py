"""Explanations of why a language accepts or refuses a text, in bytes and in tokens."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
from click import ClickException

import gcd
from gcd._readable import readable_bytes, readable_ranges
from gcd_cli._ordering import reorder

_SHOWN = 8  # tokens listed in the output
_LONGEST = 400  # characters of a text shown in full


@dataclass(frozen=True)
class Standing:
    """Longest viable prefix of a text, that is, the longest that begins a string of the language.

    Attributes:
        text: the text.
        viable: length of the viable prefix in bytes.
        in_language: whether the whole text is a string of the language.
        may_end: whether the viable prefix is a string of the language.
        state: automaton state after the viable prefix.
        expected: bytes that may follow the viable prefix, as ranges; empty if there are none.
        completion: a shortest completion of the viable prefix.
    """

    text: bytes
    viable: int
    in_language: bool
    may_end: bool
    state: int
    expected: str
    completion: bytes

    @property
    def is_refused(self) -> bool:
        """True if no string of the language begins with the text."""
        return self.viable < len(self.text)

    @property
    def place(self) -> tuple[int, int]:
        """Line and column after the viable prefix, counted from 1; the column counts bytes."""
        before = self.text[: self.viable]
        return before.count(b"\n") + 1, self.viable - (before.rfind(b"\n") + 1) + 1

    def reason(self) -> str | None:
        """Return a sentence that states why the text isn't in the language; None if it is."""
        if self.in_language:
            return None
        after = readable_bytes(self.text[: self.viable])
        ways = self.expected and f"expected {self.expected}"
        if not self.is_refused:
            return f"the text is not complete after {after}; {ways}"
        line, column = self.place
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
        }


def standing(language: gcd.Automaton, text: bytes) -> Standing:
    """Find the longest prefix of a text that begins a string of the language.

    Raises:
        ConstraintError: the text is longer than the constraint was compiled for.
    """
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
    may_end = bool(language.accepting[state])
    return Standing(
        text=text,
        viable=viable,
        in_language=may_end and viable == len(text),
        may_end=may_end,
        state=state,
        expected=readable_ranges(np.flatnonzero(language.transitions[state] >= 0).tolist()),
        completion=language.shortest(state),
    )


def judge(
    language: gcd.Automaton, automaton: gcd.TokenAutomaton | None, text: bytes, budget: int | None
) -> tuple[dict[str, Any], str]:
    """Check a text against a constraint; return a report and a line to print.

    The report's `reason` is None if the text satisfies the constraint. The line gives the reason,
    or the length of the text.
    """
    found = standing(language, text)
    report = found.report()
    if report["reason"] is not None:
        return report, report["reason"]
    said = f"{len(text)} bytes"
    if automaton is not None:
        tokens = report["in_tokens"] = in_tokens(automaton, text, budget)
        if tokens["tokens"] is None:
            report["reason"] = "the vocabulary's tokens cannot spell the text"
        else:
            said += f", at least {tokens['tokens'] + 1} tokens, EOS included"
            if not tokens["fits"]:
                report["reason"] = (
                    f"the text needs {tokens['tokens'] + 1} tokens, but the budget is {budget}"
                )
    return report, report["reason"] or said


def strip(text: bytes) -> bytes:
    """Strip surrounding whitespace and a byte order mark from a text."""
    return text.removeprefix(BOM_UTF8).strip()


def spacing_hint(
    text: bytes, accepts: Callable[[str | None, bytes], bool], styles: Sequence[str]
) -> str | None:
    """Return a hint at the option with which a refused text would be accepted, or None.

    Args:
        text: a text that is not accepted.
        accepts: function of a whitespace style (None for the current style) and a text. It returns
            whether the text would be accepted.
        styles: other available whitespace styles, beginning with the most permissive.
    """
    if accepts(None, strip(text)):
        mark = "a byte order mark and " if text.startswith(BOM_UTF8) else ""
        return f"with --strip, which removes {mark}whitespace around the text, it is accepted"
    with redirect_stderr(StringIO()):  # warnings about the constraint have already been printed
        try:
            if not styles or not accepts(styles[0], text):
                return None
            style = next((each for each in styles[1:] if accepts(each, text)), styles[0])
        # The constraint is too large in this style, or standard input was already consumed.
        except (ValueError, ClickException):
            return None
    return f"with --whitespace {style} it is accepted"


def order_hint(text: bytes, language: gcd.Automaton) -> str | None:
    """Return a hint with an accepted order of a JSON text's members.

    The result is None if the text isn't accepted in any order.
    """
    found = reorder(language, text.strip())
    if found is None:
        return None
    shown = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}…"
    return f"with its members in the schema's order it is accepted: {shown}"


def caveat_lines(report: dict[str, Any], language: gcd.Automaton) -> list[tuple[str, str]]:
    """Return lines that describe the unenforced parts of a constraint, and add them to a report."""
    if language.caveats:
        report["caveats"] = [str(caveat) for caveat in language.caveats]
    return [("not held", str(caveat)) for caveat in language.caveats]


def why_not(tokens: dict[str, Any], budget: int | None) -> str | None:
    """Return why a viable prefix can't be completed in tokens; None if it can.

    Args:
        tokens: the result of `in_tokens`.
        budget: maximum number of tokens of the whole text, EOS included; None for no budget.
    """
    if tokens["fits"]:
        return None
    if tokens["tokens"] is None:
        return "the vocabulary's tokens cannot spell it"
    needed = tokens["tokens"] + tokens["fewest_tokens"]
    return (
        f"no text that begins with it ends within {budget} tokens: {tokens['tokens']} so far and "
        f"{tokens['fewest_tokens']} to the end, EOS included, are {needed}"
    )


def in_tokens(
    automaton: gcd.TokenAutomaton, text: bytes, budget: int | None = None
) -> dict[str, Any]:
    """Return the tokens that may follow a text, after the fewest tokens that spell it.

    Args:
        automaton: the token automaton of the constraint.
        text: the beginning of a string of the language.
        budget: maximum number of tokens of the whole text, EOS included; None for no budget.

    Returns:
        `tokens`: number of tokens so far; None if the text can't be spelled in tokens.
        `fewest_tokens`: fewest further tokens to the end, EOS included. `remaining`: tokens left of
        the budget. `fits`: whether a completion fits into the budget. `allowed`: number of ids that
        may come next. `allowed_without_budget`: the same without a budget. `examples`: some of the
        allowed tokens. `vocabulary`: number of all ids.
    """
    automaton = replace(automaton, max_bytes=None)  # callers have checked the budget
    tokens = spell(automaton, text)
    if tokens is None:
        return {"tokens": None, "fits": False}
    remaining = None if budget is None else budget - len(tokens)
    report = gcd.inspect_prefix(automaton, tokens, remaining=remaining)
    ends, names = automaton.vocabulary.eos_ids, automaton.vocabulary.token_bytes
    shown = dict.fromkeys(
        "EOS" if token in ends else readable_bytes(names[token])
        for token in report.allowed[: 8 * _SHOWN].tolist()
    )  # several ids may have the same bytes
    assert report.needed is not None
    return {
        "tokens": len(tokens),
        "fewest_tokens": report.needed,
        "remaining": remaining,
        "fits": remaining is None or report.needed <= remaining,
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
