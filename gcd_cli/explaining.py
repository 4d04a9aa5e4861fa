"""This module finds out where a text stands in a language: in bytes, and in tokens."""

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
from gcd.readable import readable_bytes, readable_ranges
from gcd.serving.spelling import fewest_tokens
from gcd_cli.ordering import reordered

_SHOWN = 8  # tokens written out
_LONGEST = 400  # characters of a text that is written out


@dataclass(frozen=True)
class Standing:
    """Where a text stands in a language of byte strings.

    Attributes:
        text: the text.
        viable: how many of its bytes begin some string of the language.
        in_language: whether the whole text is a string of the language.
        may_end: whether the viable part is one.
        state: the automaton's state after the viable part.
        expected: the bytes that may come after the viable part, as ranges; empty if none may.
        completion: the shortest end of the viable part.
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
        """Whether no string of the language begins with the text."""
        return self.viable < len(self.text)

    @property
    def place(self) -> tuple[int, int]:
        """The line and the column, in bytes, after the viable part; both count from 1."""
        before = self.text[: self.viable]
        return before.count(b"\n") + 1, self.viable - (before.rfind(b"\n") + 1) + 1

    def reason(self) -> str | None:
        """Say in a sentence why the text is not in the language; None if it is."""
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
        """Return all of it for JSON; bytes that are no UTF-8 are escaped."""
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
    """Read a text as far as it begins some string of the language.

    Raises:
        ConstraintError: it is longer than the language is known for.
    """
    if language.max_bytes is not None and len(text) > language.max_bytes:
        held = "; ".join(str(each) for each in language.caveats if not each.is_unchecked)
        remedy = f'give unsupported="ignore" ({held})' if held else "raise max_bytes"
        raise gcd.ConstraintError(
            f"expected a text of at most max_bytes={language.max_bytes} bytes, for which the "
            f"constraint was compiled; got {len(text)} bytes, so {remedy}"
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


def judged(
    language: gcd.Automaton, automaton: gcd.TokenAutomaton | None, text: bytes, budget: int | None
) -> tuple[dict[str, Any], str]:
    """Say whether a text satisfies a constraint: the report, whose `reason` is None if it does.

    Also a line for people: the reason, or how long the text is.
    """
    found = standing(language, text)
    report = found.report()
    if report["reason"] is not None:
        return report, report["reason"]
    said = f"{len(text)} bytes"
    if automaton is not None:
        tokens = report["in_tokens"] = in_tokens(automaton, text, budget)
        if tokens["tokens"] is None:
            report["reason"] = "no tokens of the vocabulary spell the text"
        else:
            said += f", {tokens['tokens'] + 1} tokens at the fewest, EOS included"
            if not tokens["fits"]:
                report["reason"] = (
                    f"the text takes {tokens['tokens'] + 1} tokens, the budget is {budget}"
                )
    return report, report["reason"] or said


def stripped(text: bytes) -> bytes:
    """Return a text without what a file may have around it: whitespace, a byte order mark."""
    return text.removeprefix(BOM_UTF8).strip()


def spacing_hint(
    text: bytes, accepts: Callable[[str | None, bytes], bool], styles: Sequence[str]
) -> str | None:
    """Name the option for whitespace with which a text would be accepted; None if none is.

    Args:
        text: a text that is not accepted.
        accepts: (whitespace style or None for the present one, text) -> whether it would be.
        styles: other styles there are, the widest one first.
    """
    if accepts(None, stripped(text)):
        mark = "a byte order mark and " if text.startswith(BOM_UTF8) else ""
        return f"with --strip, which leaves out {mark}whitespace around the text, it is accepted"
    with redirect_stderr(StringIO()):  # warnings about the constraint have been printed
        try:
            if not styles or not accepts(styles[0], text):
                return None
            style = next((each for each in styles[1:] if accepts(each, text)), styles[0])
        except (ValueError, ClickException):  # too large so, or from standard input, read already
            return None
    return f"with --whitespace {style} it is accepted"


def order_hint(text: bytes, language: gcd.Automaton) -> str | None:
    """Write a JSON text in the order of members that a language has; None if that is not it."""
    found = reordered(language, text.strip())
    if found is None:
        return None
    shown = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}…"
    return f"with its members in the schema's order it is accepted: {shown}"


def caveat_lines(report: dict[str, Any], language: gcd.Automaton) -> list[tuple[str, str]]:
    """Return what a language does not hold of its constraint, and add it to a report."""
    if language.caveats:
        report["caveats"] = [str(caveat) for caveat in language.caveats]
    return [("not held", str(caveat)) for caveat in language.caveats]


def why_not(tokens: dict[str, Any], budget: int | None) -> str | None:
    """Say why a text that begins some string has no end in tokens; None if it has one.

    Args:
        tokens: as `in_tokens` returns it.
        budget: tokens of the whole text, EOS included; None for no budget.
    """
    if tokens["fits"]:
        return None
    if tokens["tokens"] is None:
        return "no tokens of the vocabulary spell it"
    needed = tokens["tokens"] + tokens["fewest_tokens"]
    return (
        f"no text that begins so ends within {budget} tokens: {tokens['tokens']} so far and "
        f"{tokens['fewest_tokens']} to the end, EOS included, are {needed}"
    )


def in_tokens(
    automaton: gcd.TokenAutomaton, text: bytes, budget: int | None = None
) -> dict[str, Any]:
    """Return what may follow a text in tokens, after the fewest that spell it.

    Args:
        text: the beginning of a string of the language.
        budget: tokens of the whole text, EOS included; None for no budget.

    Returns:
        `tokens` so far, None if no tokens spell it; `fewest_tokens` from there to the end, EOS
        included; `remaining` of the budget; `fits`, whether there is an end within it; `allowed`,
        how many ids may come next, and some of them; `allowed_without_budget`, how many the
        language allows.
    """
    automaton = replace(automaton, max_bytes=None)  # whoever has a budget has checked it
    tokens = fewest_tokens(gcd.Matcher(automaton), text)
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
