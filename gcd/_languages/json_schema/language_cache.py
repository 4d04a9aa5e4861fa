"""Cache of the languages of a schema's parts, and accounting of the cost of each keyword.

A schema repeats itself. The cases of an `anyOf` agree on most members, recursion repeats a
definition at every depth, and a `oneOf` compares each branch with all others. `LanguageCache`
receives every language of a document.

* **It stores each language once.** Equal automata become one object. Repeated constructions from
  equal parts are then recognized, and their results reused (`LanguageCache.once`).
* **It accounts for costs.** Work that is spent while a keyword is compiled (`gcd._automata.limits`)
  is attributed to that keyword and its location, minus the work for the schemas below it. If the
  work limit is exceeded, the error names the keyword with the highest total, not the one that was
  compiled last. If an automaton has too many states, the error names the innermost keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import spend, work_left
from gcd._errors import ConstraintError, LimitError, StateLimitError, at
from gcd._languages.json_schema.document import Conjunction, Document, Node

P = ParamSpec("P")

# Units of work per table entry that stays in memory: 125 million entries (500 MB) exhaust the
# default limit.
_PER_KEPT_ENTRY = 16
_MAX_NESTING = 80  # most nested blocks of `compiling`; each level of values takes two

# For each kind of value, the keywords that make its automaton large, most frequent causes first.
CAUSES = {
    "array": (
        *("uniqueItems", "maxContains", "minContains", "maxItems", "minItems", "contains"),
        *("prefixItems", "items", "unevaluatedItems"),
    ),
    "boolean": (),
    "integer": ("multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"),
    "null": (),
    "number": ("multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"),
    "object": (
        *("minProperties", "maxProperties", "patternProperties", "propertyNames", "properties"),
        *("additionalProperties", "unevaluatedProperties", "required"),
    ),
    "string": ("maxLength", "minLength", "pattern", "format"),
}
# For each kind of value with counts, the bounds that may be dropped.
UPPER_BOUNDS = {
    "array": ("maxItems", "maxContains"),
    "object": ("maxProperties",),
    "string": ("maxLength",),
}
LOWER_BOUNDS = {
    "array": ("minItems", "minContains"),
    "object": ("minProperties",),
    "string": ("minLength",),
}
CHOICES = ("oneOf", "not", "if", "anyOf", "dependentSchemas", "dependentRequired", "enum", "const")


class LanguageCache:
    """Languages of one document's schemas in all notations, and their costs.

    Attributes:
        caveats: keywords that the languages don't enforce in every text.
        excluding: caveats of subtracted schemas. Long valid texts may be excluded, because these
            schemas are too large without the keywords in the caveats.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._kept: dict[Automaton, Automaton] = {}
        self._made: dict[tuple[Hashable, ...], Automaton] = {}
        self._costs: dict[tuple[str | None, str], int] = {}
        self._inside = 0  # units spent in blocks inside the current block
        self._nesting = 0
        # Keyword and pointer to which work is attributed.
        self._present: tuple[str | None, str] = None, ""
        self.caveats: dict[Caveat, None] = {}
        self.excluding: list[Caveat] = []

    def keep(self, language: Automaton) -> Automaton:
        """Return the stored automaton that equals this one; if there is none, store this one."""
        if language not in self._kept:
            spend(_PER_KEPT_ENTRY * language.delta.size, "all parts of the schema together")
            self._kept[language] = language
        return self._kept[language]

    def once(self, build: Callable[P, Automaton], *args: P.args, **kwargs: P.kwargs) -> Automaton:
        """Return `build(*args, **kwargs)`, computed only once for equal arguments."""
        key = (build, args, tuple(kwargs.items()))
        if key not in self._made:
            self._made[key] = self.keep(build(*args, **kwargs))
        return self._made[key]

    @contextmanager
    def compiling(self, nodes: Conjunction, keywords: Sequence[str]) -> Iterator[None]:
        """Attribute the work inside the block to the first of the keywords that the schemas have.

        If they have none of the keywords, the work is attributed to the keyword of the enclosing
        block.

        Raises:
            StateLimitError, WorkLimitError: raised by the block; a state limit error gets the
                keyword and its pointer.
            ConstraintError: blocks are nested too deeply.
        """
        around = self._present
        cause = self._present = self._cause(nodes, keywords)
        before, outside = work_left(), self._inside
        self._inside = 0
        self._nesting += 1
        try:
            if self._nesting > _MAX_NESTING:
                raise ConstraintError(
                    f"the schema {at(cause[1])} is nested too deeply, including references; reduce "
                    "the nesting, or lower max_depth"
                )
            yield
        except StateLimitError as error:
            if error.pointer is None:
                error.blame(*cause, self._hint)
            raise
        finally:
            spent = before - work_left()
            self._costs[cause] = self._costs.get(cause, 0) + spent - self._inside
            self._inside = outside + spent
            self._present = around
            self._nesting -= 1

    def has_caveat(self, node: Node) -> bool:
        """Return whether some keyword of this schema is not enforced, and has a caveat."""
        pointer = self._document.rebase(node.pointer)
        return any(caveat.pointer == pointer for caveat in self.caveats)

    def blame_most_costly(self, error: LimitError) -> None:
        """Add to an error the keyword to which most of the work was attributed."""
        if error.pointer is None and self._costs:
            error.blame(*max(self._costs, key=lambda cause: self._costs[cause]), self._hint)

    @property
    def _hint(self) -> str:
        recursive = bool(self._document.depth_hint)
        return "; the schema contains itself, so a lower max_depth helps too" if recursive else ""

    def _cause(self, nodes: Conjunction, keywords: Sequence[str]) -> tuple[str | None, str]:
        for keyword in keywords:
            for node in nodes:
                if not isinstance(node.schema, bool) and keyword in node.schema:
                    return keyword, self._document.rebase(node.pointer)
        return self._present
