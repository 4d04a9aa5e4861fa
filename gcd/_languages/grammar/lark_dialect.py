"""Parser of grammars in the syntax of the library lark, using lark's own loader.

The texts of a grammar are those of lark's Earley parser with `lexer="dynamic_complete"`: a text is
in the language if the rules match some division of it into terminals. Any number of ignored
terminals may come before each terminal and at the end. An ignored terminal may have any length that
it matches here, whereas both dynamic lexers of lark take its longest match. Nothing is ignored
inside a terminal. The grammar is rewritten so that ignored terminals come at the beginning and
after each terminal. This doesn't change its texts, and the next byte then determines what comes
next.

Syntax that depends on a lexer or on other files is refused with an error that names it: priorities
of terminals, lazy quantifiers, look-around, terminals that are declared but not defined, and
imports of files. Priorities of rules have no effect, because they only rank the parses of one text.
Two terminals of lark's library use look-behind and laziness; they are supported, with exactly the
texts that they match.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._automata.limits import spend
from gcd._errors import ConstraintError
from gcd._languages.cycles import components
from gcd._languages.grammar.expressions import PER_STEP, Grammar, blame
from gcd._languages.literal import literal
from gcd._languages.text.code_points import one_of, ranges
from gcd._languages.text.look_around import has_looks
from gcd._languages.text.python_syntax import parse
from gcd._languages.text.regex import regex
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence
from gcd._languages.text.thompson import automaton_of_rule

# Terminals of lark's library that use look-behind or laziness, with equivalent expressions.
_LIBRARY = {
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
}
_IMPORT = re.compile(r"%import\s+((\.*)(\w*)[\w.]*)")
_LIBRARIES = ("common", "lark", "python", "unicode")  # lark's own; all others are files
_UNITS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+?}]\?", re.DOTALL)


# Spans in which names don't count: strings, regular expressions, and comments.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*')
# Beginnings of definitions and of statements such as `%import`.
_HEAD = re.compile(r"^[ \t]*(?:%\w+[ \t]+)?[?!]*(\w+)[^\n:]*:|^[ \t]*%\w+", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][_A-Z0-9]*\b")
_PER_COPY = 20_000  # units for each visit of the loader to a terminal


def read_lark(text: str, start: str) -> Grammar:
    """Parse a grammar in the dialect "lark".

    Raises:
        ConstraintError: the syntax is invalid or unsupported; the message names it.
    """
    from lark.exceptions import LarkError

    for found in _IMPORT.finditer(text):
        if found[2] or found[3] not in _LIBRARIES:
            raise ConstraintError(
                f"expected imports from {', '.join(_LIBRARIES)}, got the import of a file "
                f"({found[1][:80]}); copy its rules into the grammar"
            )
    _pay_for_terminals(text)
    try:
        return _Reader(_load(text)).grammar(start)
    except (LarkError, OSError) as error:
        raise ConstraintError(f"lark cannot parse the grammar: {str(error).strip()}") from error


def _pay_for_terminals(text: str) -> None:
    """Count the work of loading nested terminals toward the work limit.

    Lark's loader visits a terminal again for each use in another terminal.
    """
    plain = _OPAQUE.sub(" ", text)
    heads = [*_HEAD.finditer(plain)]
    ends = [*(head.start() for head in heads[1:]), len(plain)]
    size: dict[str, int] = {}
    inside = {
        head[1]: _TERMINAL.findall(plain, head.end(), end)
        for head, end in zip(heads, ends, strict=True)
        if head[1] and _TERMINAL.fullmatch(head[1])
    }
    for group in components({a: [b for b in below if b in inside] for a, below in inside.items()}):
        for name in group:
            size[name] = 1 + sum(size.get(other, 1) for other in inside[name])
            spend(_PER_COPY * size[name], f"the terminal {name!r}")


def _load(text: str) -> Any:
    from lark.load_grammar import load_grammar

    return load_grammar(text, "<grammar>", [], False)[0]


@lru_cache(1)
def _library() -> list[tuple[Any, str]]:
    """Return lark's syntax trees of the terminals in `_LIBRARY`, with their regular expressions."""
    imports = "".join(f"%import common.{name}\n" for name in _LIBRARY)
    loaded = _load(f"start: {' '.join(_LIBRARY)}\n{imports}")
    return [(tree, _LIBRARY[name]) for name, (tree, _) in loaded.term_defs]


class _Reader:
    """Reader of lark's syntax trees, which collects the rules of one grammar by name."""

    def __init__(self, loaded: Any) -> None:
        self._trees = {str(name): (params, tree) for name, params, tree, _ in loaded.rule_defs}
        self._rules: dict[str, Node] = {}
        self._pending: list[tuple[str, str, tuple[Node, ...]]] = []
        # By `id` of syntax trees, which terminals and imports share.
        self._known: dict[int, Automaton] = {}
        self._terminals: dict[str, Automaton] = {}
        for name, (tree, priority) in loaded.term_defs:
            if tree is None:
                raise ConstraintError(
                    f"the terminal {name} is declared but not defined; define it in the grammar"
                )
            if priority:
                raise ConstraintError(
                    f"the priority {priority} of the terminal {name} is not supported, because "
                    "there is no lexer; remove it, and exclude texts in the terminal itself"
                )
            with blame(lambda name=name: f"the terminal {name!r}"):  # type: ignore[misc]
                self._terminals[name] = self._terminal(tree, name)
        ignored = Automaton.union([self._terminals[name] for name in loaded.ignore])
        self._ignored = ignored.star()
        self._tokens: dict[int, Automaton] = {}

    def grammar(self, start: str) -> Grammar:
        rules = self._rules
        for name, (params, _) in self._trees.items():
            if not params:
                self._pending.append((name, name, ()))
        while self._pending:
            written, name, arguments = self._pending.pop()
            params, tree = self._trees[name]
            rules[written] = Reference(written)  # keeps the order of first use
            with blame(lambda name=name: f"the rule {name!r}"):  # type: ignore[misc]
                rules[written] = self._rule(tree, dict(zip(params, arguments, strict=True)))
        ordered = {name: rules[name] for name in self._trees if name in rules}
        if start not in ordered:
            raise ConstraintError(
                f"the grammar has no rule {start!r}; use one of {', '.join(list(ordered)[:20])}"
            )
        if self._ignored != Automaton.epsilon():
            rules["%"] = Sequence((self._ignored, Reference(start)))  # no other rule has this name
            start = "%"
        return Grammar(ordered | rules, start)

    def _rule(self, tree: Any, given: dict[str, Node]) -> Node:
        """Return the right-hand side of a rule.

        `given` maps the parameters of a template to its arguments.
        """
        spend(PER_STEP)
        kind = getattr(tree, "data", None)
        if kind is None:
            return self._resolve(tree, given)
        if kind in ("literal", "range"):
            return self._token(self._terminal(tree, "a literal"))
        if kind == "template_usage":
            name, *values = tree.children
            return self._instance(str(name.name), [self._rule(value, given) for value in values])
        return _convert(tree, lambda part: self._rule(part, given))

    def _resolve(self, symbol: Any, given: dict[str, Node]) -> Node:
        name = str(symbol.name)
        if name in given:
            return given[name]
        return self._token(self._terminals[name]) if symbol.is_term else Reference(name)

    def _instance(self, name: str, arguments: list[Node]) -> Node:
        """Return a reference to the rule that a template defines for these arguments."""
        shown = [
            each.name if isinstance(each, Reference) else each.fingerprint.hex()
            for each in arguments
            if isinstance(each, (Reference, Automaton))
        ]
        written = f"{name}{{{', '.join(shown)}}}"
        spend(PER_STEP * len(written))
        if written not in self._rules:
            self._rules[written] = Reference(written)
            self._pending.append((written, name, tuple(arguments)))
        return Reference(written)

    def _token(self, terminal: Automaton) -> Automaton:
        """Return a terminal followed by any number of ignored terminals."""
        if id(terminal) not in self._tokens:
            self._tokens[id(terminal)] = Automaton.concatenate([terminal, self._ignored])
        return self._tokens[id(terminal)]

    # -- terminals ------------------------------------------------------------------------------

    def _terminal(self, tree: Any, name: str) -> Automaton:
        if id(tree) in self._known:
            return self._known[id(tree)]
        spend(PER_STEP)
        for known, pattern in _library():
            if tree == known:
                language = regex(pattern)
                break
        else:
            if tree.data == "literal":
                language = _literal(tree.children[0], name)
            elif tree.data == "range":
                first, last = (_pattern(end).value for end in tree.children)
                if len(first) != 1 or len(last) != 1 or first > last:
                    raise ConstraintError(
                        f"expected a range in {name} from a smaller to a larger character, "
                        f"got {first!r}..{last!r}; exchange them"
                    )
                language = one_of(ranges([(ord(first), ord(last))]))
            else:
                expression = _convert(tree, lambda part: self._terminal(part, name))
                language = automaton_of_rule(expression, self._terminals.__getitem__)
        self._known[id(tree)] = language
        return language


def _convert(tree: Any, read: Any) -> Node:
    """Convert lark's syntax tree of a rule or terminal to a node; `read` converts its parts."""
    parts = tree.children
    match tree.data:
        case "expansions":
            return Choice(tuple(map(read, parts))) if len(parts) > 1 else read(parts[0])
        case "expansion":
            return Sequence(tuple(map(read, parts)))
        case "value" | "alias":
            return read(parts[0])
        case "maybe":
            return Repeat(read(parts[0]), 0, 1)
        case "expr":
            body, sign, *counts = parts
            if sign == "~":
                low, high = int(counts[0]), int(counts[-1])
                if low < 0 or high < low:
                    raise ConstraintError(
                        "expected a repetition from a smaller to a larger number, got ~ "
                        f"{low}..{high}; exchange the numbers"
                    )
                return Repeat(read(body), low, high)
            return Repeat(read(body), int(sign == "+"), 1 if sign == "?" else None)
    raise ConstraintError(f"{tree.data} of lark's syntax is not supported; rewrite the rule")


def _literal(token: Any, name: str) -> Automaton:
    """Return the language of a quoted text or a regular expression, with its flags."""
    pattern = _pattern(token)
    flags = "".join(sorted(pattern.flags))
    try:
        if pattern.type == "str":
            if not flags:
                return literal(pattern.value)
            escaped = "".join(rf"\x{{{ord(character):x}}}" for character in pattern.value)
            return regex(f"(?{flags}){escaped}")
        if any(unit[-1] == "?" and len(unit) == 2 and unit[0] != "\\" for unit in _UNITS.findall(
            pattern.value
        )):  # fmt: skip
            raise ConstraintError(
                "lazy quantifiers, with which a lexer chooses the shortest match, are not "
                "supported; exclude the characters that may not occur"
            )
        written = f"(?{flags})(?:{pattern.value})" if flags else pattern.value
        if has_looks(parse(written)):
            raise ConstraintError(
                "look-around, a word boundary or a line anchor is not supported in a terminal, "
                "because it depends on the text around it; list its texts instead"
            )
        return regex(written)
    except ConstraintError as error:
        if type(error) is not ConstraintError:
            raise
        raise ConstraintError(
            f"cannot compile the terminal {name} ({token.value[:80]}): {error}"
        ) from error


def _pattern(token: Any) -> Any:
    from lark.load_grammar import _literal_to_pattern

    return _literal_to_pattern(token)
