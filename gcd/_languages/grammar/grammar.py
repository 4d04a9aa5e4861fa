"""Compiler from context-free grammars to automata, which is exact for regular grammars.

Automata cannot count nested brackets, so such recursion is unrolled up to a depth. Regular grammars
are compiled exactly (`gcd._languages.grammar.productions`). The result states which texts of the
grammar it contains.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace

from gcd._automata.automaton import Automaton
from gcd._automata.limits import count_work, share_work
from gcd._errors import ConstraintError, EmptyLanguageError, LimitError, check_count, check_kind
from gcd._languages.grammar.expressions import Grammar
from gcd._languages.grammar.gbnf_dialect import read_gbnf
from gcd._languages.grammar.lark_dialect import read_lark
from gcd._languages.grammar.productions import Rules, Unrolling
from gcd._languages.literal import without_mark

_STARTS = {"lark": "start", "gbnf": "root", "ebnf": "root"}
_SHARE = 0.5  # of the work, to compile a grammar before some of its texts are left out


@dataclass(frozen=True, eq=False, repr=False)
class GrammarLanguage(Automaton):
    """Language of a grammar, possibly limited to a nesting depth.

    Operations such as `&` return a plain `gcd.Automaton`.

    Attributes:
        counted: names of the rules whose nested uses are limited.
        max_depth: the greatest nesting depth that the language contains.
        narrow: whether texts in which longer ignored text hides a terminal are left out, because
            the language would otherwise be too large.
        whole_bytes: every text of the grammar with at most this many bytes is in the language.
            None: every text, or with `max_bytes`, every text up to that length.
    """

    counted: tuple[str, ...] = ()
    max_depth: int = 0
    narrow: bool = False
    whole_bytes: int | None = None

    @property
    def is_whole(self) -> bool:
        """True if the language contains every text of the grammar, up to any limit `max_bytes`."""
        return self.whole_bytes is None

    @property
    def extent(self) -> str:
        """Sentence that states which texts of the grammar are in the language."""
        if self.is_whole:
            return "whole" if self.max_bytes is None else f"whole up to {self.max_bytes} bytes"
        assert self.whole_bytes is not None
        names = self.counted
        listed = " or ".join(names) if len(names) < 5 else f"{', '.join(names[:4])}, ..."
        conditions = [f"with at most {self.max_depth} nested uses of {listed}"] * bool(names)
        if self.narrow:
            conditions.append("in which no terminal begins where longer ignored text does")
        return (
            f"a part: all texts of less than {self.whole_bytes + 1} bytes, and those "
            f"{' and '.join(conditions)}"
        )


def grammar(
    text: str,
    dialect: str = "lark",
    *,
    start: str | None = None,
    max_depth: int = 3,
    max_bytes: int | None = None,
) -> GrammarLanguage:
    """Return the language of a context-free grammar, up to a nesting depth.

    Rules that don't contain themselves, or only at their right or left end, are exact. Other rules
    may be nested at most `max_depth` deep; `GrammarLanguage.extent` states what that excludes.

    Args:
        text: the grammar.
        dialect: "lark", "gbnf" (llama.cpp) or "ebnf" (xgrammar); `docs/languages.md` lists the
            supported syntax of each.
        start: the rule that derives whole texts; None for `start` in lark, `root` in the other
            dialects.
        max_depth: maximum number of nested uses of rules that contain themselves; 0 for no use of
            such rules.
        max_bytes: compile only the texts of at most this many bytes, exactly. If no such text
            exceeds `max_depth`, the depth limit excludes nothing. Budgets whose tokens could have
            more bytes are refused (`gcd.OverlongBudgetError`).

    Raises:
        ConstraintError: the text is not a grammar of the dialect, or uses unsupported syntax. The
            message gives the problem and its position.
        EmptyLanguageError: no text is derived, or no text with that depth and length.
        StateLimitError, WorkLimitError: an automaton has more states than `gcd.state_limit` allows,
            or all of them take more work than `gcd.work_limit`. The message names the rule or
            terminal.
    """
    check_kind(text, str, "a grammar as str", "decode bytes, and read files")
    text = without_mark(text)
    if dialect not in _STARTS:
        raise ConstraintError(f'expected dialect to be "lark", "gbnf" or "ebnf", got {dialect!r}')
    start = _STARTS[dialect] if start is None else start
    check_kind(start, str, "start as the name of a rule", "omit it, or pass a str")
    check_count("max_depth", max_depth, 0)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, 1)
    with count_work():
        try:
            parsed = _read(text, start, dialect)
            return _compile(parsed, max_depth, max_bytes)
        except RecursionError as error:
            raise ConstraintError(
                "the grammar is nested too deeply; move some of its parts into named rules"
            ) from error


def _read(text: str, start: str, dialect: str) -> Grammar:
    try:
        return read_lark(text, start) if dialect == "lark" else read_gbnf(text, start, dialect)
    except ConstraintError as error:
        other = _find_other_kind(text.strip(), dialect) if type(error) is ConstraintError else ""
        if not other:
            raise
        raise ConstraintError(
            f"expected a grammar in the dialect {dialect!r}, got {other}"
        ) from error


def _find_other_kind(text: str, dialect: str) -> str:
    """Return what a text is if it isn't a grammar of the dialect, and what to do; "" if unknown."""
    if not text:
        return "an empty text; write a rule"
    if re.fullmatch(r"\S*\.\w{1,8}", text):
        return f"{text[:80]!r}, which looks like the name of a file; pass the text in the file"
    if text[0] in "{[" and _is_json(text):
        return "JSON; use gcd.json_schema for a schema, and gcd.tool_calls for a list of tools"
    sign = re.search(r"^[ \t]*[?!]?[\w.-]+[ \t]*(::=|:(?!=))", text, re.MULTILINE)
    if dialect == "lark" and sign and sign[1] == "::=":
        return 'rules with `::=`; pass dialect="gbnf" (llama.cpp) or dialect="ebnf" (xgrammar)'
    if dialect != "lark" and sign and sign[1] == ":":
        return 'rules with `:`; pass dialect="lark"'
    return "" if ":" in text else f"{text[:80]!r}, which has no rule; pass the text of a grammar"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _compile(parsed: Grammar, max_depth: int, max_bytes: int | None) -> GrammarLanguage:
    if parsed.narrow is None:
        return _compile_whole(parsed, max_depth, max_bytes)
    try:
        with share_work(_SHARE):
            return _compile_whole(parsed, max_depth, max_bytes)
    except LimitError:
        language = _compile_whole(parsed.narrow(), max_depth, max_bytes)
    known = math.inf if language.whole_bytes is None else language.whole_bytes
    return replace(language, narrow=True, whole_bytes=int(min(parsed.overlap - 1, known)))


def _compile_whole(parsed: Grammar, max_depth: int, max_bytes: int | None) -> GrammarLanguage:
    rules = Rules(parsed)
    deeper = math.inf
    if rules.is_regular:
        language = parsed.finish(rules.language(rules.start))
    else:
        try:
            unrolled = Unrolling(rules, rules.start, max_depth=max_depth, max_bytes=max_bytes)
            language, deeper = parsed.finish(unrolled.automaton()), unrolled.deeper
        except LimitError as error:
            error.add(f", or lower max_depth={max_depth}, because each level multiplies the states")
            raise
    shortest = math.inf if language.is_empty else len(language.shortest())
    if shortest > (math.inf if max_bytes is None else max_bytes) or language.is_empty:
        least = rules.fewest_bytes[rules.start]
        if least == math.inf:
            raise EmptyLanguageError(
                f"the grammar has no finite text, because each use of {rules.start!r} leads to "
                "another one; add an alternative that ends"
            )
        if language.is_empty and deeper == math.inf:
            raise EmptyLanguageError(
                "no text of the grammar fulfills the conditions of its terminals on the text "
                "around them; correct their look-around, or what is ignored"
            )
        raise EmptyLanguageError(
            f"no text of the grammar is within max_depth={max_depth}, max_bytes={max_bytes}; the "
            f"shortest has {least:.0f} bytes, so raise "
            f"{'max_depth' if least <= (max_bytes or math.inf) else 'max_bytes'}"
        )
    return GrammarLanguage(
        language.delta,
        language.accepting,
        language.class_of_byte,
        max_bytes,
        counted=tuple(sorted({rules.owner[name] for name in rules.counted})),
        max_depth=max_depth,
        whole_bytes=None if deeper == math.inf else max(int(deeper), language.accepts(b"")) - 1,
    )
