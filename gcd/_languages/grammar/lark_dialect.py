"""Parser of grammars in the syntax of the library lark, using lark's own loader.

The texts of a grammar are those of lark's Earley parser with `lexer="dynamic_complete"`: a text is
in the language if the rules match some division of it into terminals. Any number of ignored
terminals may come before each terminal and at the end, and each of them takes its longest match.
Nothing is ignored inside a terminal. The grammar is rewritten so that ignored terminals come at the
beginning and after each terminal. This doesn't change its texts, and the next byte then determines
what comes next.

A terminal is the regular expression that lark makes of it. Its texts are those that Python's `re`
matches as a whole (`gcd._languages.text.matches`), with the first alternative that succeeds, and
lazy quantifiers. Look-around and anchors see the whole text. Lark cuts the text for its shorter
matches, so that `/a+(?!ab)/` also matches `aa` in `aaab` there, and not here.

Back-references, terminals that are declared but not defined, and imports of files are refused with
an error that names them. Priorities have no effect, because they only rank the parses of one text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._automata.limits import spend
from gcd._errors import ConstraintError
from gcd._languages.cycles import components
from gcd._languages.grammar.expressions import PER_STEP, Grammar, blame
from gcd._languages.grammar.terminals import (
    Conditions,
    compile_ignored,
    compile_narrow,
    compile_terminal,
    first_bytes,
    measure_overlap,
)
from gcd._languages.literal import literal
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence, rebuild

_IMPORT = re.compile(r"%import\s+((\.*)(\w*)[\w.]*)")
_LIBRARIES = ("common", "lark", "python", "unicode")  # lark's own; all others are files

# Spans in which names don't count: strings, regular expressions, and comments.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?!/)(?:\\.|[^/\\\n])+/?|(?://|#)[^\n]*')
# Beginnings of definitions and of statements such as `%import`.
_HEAD = re.compile(r"^[ \t]*(?:%\w+[ \t]+)?[?!]*(\w+)(?!\w)[^\n:]*:|^[ \t]*%\w+", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][_A-Z0-9]*\b")
_PER_COPY = 20_000  # units for each visit of the loader to a terminal


def read_lark(text: str, start: str) -> Grammar:
    """Parse a grammar in the dialect "lark"."""
    from lark.load_grammar import load_grammar

    for found in _IMPORT.finditer(text):
        if found[2] or found[3] not in _LIBRARIES:
            raise ConstraintError(
                f"expected imports from {', '.join(_LIBRARIES)}, got the import of a file "
                f"({found[1][:80]}); copy its rules into the grammar"
            )
    _pay_for_terminals(text)
    loaded, _ = _ask_lark(lambda: load_grammar(text, "<grammar>", [], False))
    return _Reader(loaded).grammar(start)


def _ask_lark(call: Callable[[], Any]) -> Any:
    """Call a function of lark, which raises all kinds of errors for invalid grammars."""
    try:
        return call()
    except RecursionError:
        raise
    except Exception as error:
        why = str(error).strip() or type(error).__name__
        raise ConstraintError(f"lark cannot parse the grammar: {why}") from error


def _pay_for_terminals(text: str) -> None:
    """Count the loader's visits to terminals, one for each use in another terminal, as work."""
    plain = _OPAQUE.sub(" ", text)
    heads = [*_HEAD.finditer(plain)]
    ends = [*(head.start() for head in heads[1:]), len(plain)]
    size: dict[str, int] = {}
    inside = {
        head[1]: _TERMINAL.findall(plain, head.end(), end)
        for head, end in zip(heads, ends, strict=False)
        if head[1] and _TERMINAL.fullmatch(head[1])
    }
    for group in components({a: [b for b in below if b in inside] for a, below in inside.items()}):
        for name in group:
            size[name] = 1 + sum(size.get(other, 1) for other in inside[name])
            spend(_PER_COPY * size[name], f"the terminal {name!r}")


class _Reader:
    """Reader of lark's syntax trees, which collects the rules of one grammar by name."""

    def __init__(self, loaded: Any) -> None:
        self._trees = {str(name): (params, tree) for name, params, tree, _ in loaded.rule_defs}
        self._terminals = {str(name): tree for name, (tree, _) in loaded.term_defs}
        self._ignored = loaded.ignore
        self._rules: dict[str, Node] = {}
        self._pending: list[tuple[str, str, tuple[Node, ...]]] = []
        self._conditions = Conditions()
        self._patterns: dict[str, Any] = {}  # by terminal
        self._languages: dict[Any, Automaton] = {}  # by pattern

    def grammar(self, start: str) -> Grammar:
        if start not in self._trees or self._trees[start][0]:
            known = [name for name, (params, _) in self._trees.items() if not params]
            raise ConstraintError(
                f"the grammar has no rule {start!r}; "
                + (f"use one of {', '.join(known[:20])}" if known else "write one")
            )
        rules = self._rules
        self._refer(start)
        while self._pending:
            written, name, arguments = self._pending.pop()
            params, tree = self._trees[name]
            with blame(lambda name=name: f"the rule {name!r}"):  # type: ignore[misc]
                rules[written] = self._rule(tree, dict(zip(params, arguments, strict=True)))
        rules = {name: rules[name] for name in self._trees if name in rules} | rules
        if not self._ignored:
            return Grammar(rules, start, self._conditions.impose)
        with blame(lambda: "the ignored text"):
            ignored = [self._pattern(name).to_regexp() for name in self._ignored]
            overlaps = [measure_overlap(each.to_regexp(), ignored) for each in self._languages]
            for number, each in enumerate(ignored):
                others = ignored[:number] + ignored[number + 1 :]
                overlaps.append(measure_overlap(each, others))
            whole = self._add_ignored(rules, start, ignored, self._conditions, self._languages)
        if min(overlaps) == math.inf:
            return whole
        narrow = partial(self._narrow, rules, start, ignored)
        return replace(whole, narrow=narrow, overlap=min(overlaps))

    def _add_ignored(
        self,
        rules: dict[str, Node],
        start: str,
        ignored: list[str],
        conditions: Conditions,
        languages: dict[Any, Automaton],
        *,
        narrow: bool = False,
    ) -> Grammar:
        """Return the grammar with ignored text between the terminals, given their languages."""
        first = {byte for each in languages.values() for byte in first_bytes(each)}
        between, at_end = compile_ignored(ignored, conditions, first, narrow=narrow)
        tokens = {
            id(self._languages[pattern]): Automaton.concatenate([language, between])
            for pattern, language in languages.items()
        }
        rules = {name: _replace(rule, tokens) for name, rule in rules.items()}
        rules["%"] = Sequence((between, Reference(start)))  # no other rule has this name

        def finish(language: Automaton) -> Automaton:
            return conditions.impose(Automaton.concatenate([language, at_end]))

        return Grammar(rules, "%", finish)

    def _narrow(self, rules: dict[str, Node], start: str, ignored: list[str]) -> Grammar:
        """Return the grammar without texts in which longer ignored text hides a terminal."""
        conditions = Conditions()
        languages = {
            pattern: compile_narrow(pattern.to_regexp(), ignored, conditions)
            for pattern in self._languages
        }
        return self._add_ignored(rules, start, ignored, conditions, languages, narrow=True)

    def _rule(self, tree: Any, given: dict[str, Node]) -> Node:
        """Return the right-hand side of a rule, given the arguments of a template."""
        kind = getattr(tree, "data", None)
        if kind is None:
            name = str(tree.name)
            if name in given:
                return given[name]
            return self._terminal(self._pattern(name), name) if tree.is_term else self._refer(name)
        if kind in ("literal", "range"):
            return self._terminal(_pattern_of(tree), "")
        if kind == "template_usage":
            name, *values = tree.children
            return self._instance(str(name.name), [self._rule(value, given) for value in values])
        parts = tree.children
        match kind:
            case "expansions":
                options = tuple(self._rule(part, given) for part in parts)
                return Choice(options) if len(options) > 1 else options[0]
            case "expansion":
                return Sequence(tuple(self._rule(part, given) for part in parts))
            case "value" | "alias":
                return self._rule(parts[0], given)
            case "maybe":
                return Repeat(self._rule(parts[0], given), 0, 1)
            case "expr":
                return Repeat(self._rule(parts[0], given), *_counts(*parts[1:]))
        raise ConstraintError(f"{kind} of lark's syntax is not supported; rewrite the rule")

    def _refer(self, name: str) -> Node:
        return self._instance(name, [])

    def _instance(self, name: str, arguments: list[Node]) -> Node:
        """Return a reference to a rule, or to the one that a template defines for its arguments."""
        shown = [
            each.name if isinstance(each, Reference) else each.fingerprint.hex()
            for each in arguments
            if isinstance(each, (Reference, Automaton))
        ]
        parameters, _ = self._trees[name]
        if len(arguments) != len(parameters):
            raise ConstraintError(
                f"expected {len(parameters)} arguments of the template {name!r}, got "
                f"{len(arguments)}; write them in braces"
            )
        written = f"{name}{{{', '.join(shown)}}}" if arguments else name
        spend(PER_STEP * len(written))
        if written not in self._rules:
            self._rules[written] = Reference(written)  # keeps the order of first use
            self._pending.append((written, name, tuple(arguments)))
        return Reference(written)

    def _pattern(self, name: str) -> Any:
        """Return lark's pattern of a named terminal."""
        if name not in self._patterns:
            if self._terminals[name] is None:
                raise ConstraintError(
                    f"the terminal {name} is declared but not defined; define it in the grammar"
                )
            self._patterns[name] = _pattern_of(self._terminals[name])
        return self._patterns[name]

    def _terminal(self, pattern: Any, name: str) -> Automaton:
        """Return the texts of a terminal, with marks for conditions."""
        if pattern not in self._languages:
            written = pattern.to_regexp()
            shown = f"the terminal {name!r}" if name else f"the terminal {pattern.raw}"
            with blame(lambda: shown):
                try:
                    if pattern.type == "str" and not pattern.flags:
                        language = literal(pattern.value)
                    else:
                        language = compile_terminal(written, self._conditions)
                except ConstraintError as error:
                    if type(error) is not ConstraintError:
                        raise
                    raise ConstraintError(
                        f"cannot compile the terminal {name} ({written[:80]}): {error}"
                    ) from error
            self._languages[pattern] = language
        return self._languages[pattern]


def _pattern_of(tree: Any) -> Any:
    """Return the regular expression that lark makes of a terminal's syntax tree."""
    from lark.load_grammar import PrepareLiterals, TerminalTreeToPattern, nr_deepcopy_tree

    made = PrepareLiterals() * TerminalTreeToPattern()
    return _ask_lark(lambda: made.transform(nr_deepcopy_tree(tree)))


def _counts(sign: str, *counts: str) -> tuple[int, int | None]:
    """Return the least and the greatest number of a repetition."""
    if sign != "~":
        return int(sign == "+"), 1 if sign == "?" else None
    low, high = int(counts[0]), int(counts[-1])
    if low < 0 or high < low:
        raise ConstraintError(
            "expected a repetition from a smaller to a larger number, got ~ "
            f"{low}..{high}; exchange the numbers"
        )
    return low, high


def _replace(node: Node, languages: dict[int, Automaton]) -> Node:
    """Return a right-hand side with other automata, by the `id` of the previous ones."""
    if isinstance(node, Automaton):
        return languages[id(node)]
    return rebuild(node, lambda part: _replace(part, languages))
