"""Cache of the languages of a schema's parts, and accounting of each keyword's cost.

A schema repeats itself: the cases of an `anyOf` agree on most members, recursion repeats a
definition at every depth, and a `oneOf` compares each branch with all others. `Parts` receives
every language of one document and

* **stores each language once.** Equal automata become one object, so that repeated constructions
  from equal parts are recognized (`Parts.once`);
* **accounts for costs.** Work spent while a keyword is compiled (`gcd._automata.limits`) is
  attributed to that keyword's location, minus what the schemas below it took. If the work limit is
  exceeded, the error names the keyword and JSON pointer with the highest total, not the one that
  happened to come last. If an automaton has too many states, the error names the innermost keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import spend, work_left
from gcd._errors import ConstraintError, LimitError, StateLimitError, at
from gcd._languages.json_schema.document import Conjunction, Document, Place

P = ParamSpec("P")

# Units per table entry kept until the end; 125 million entries, 500 MB, exhaust the default.
_PER_KEPT_ENTRY = 16
_MAX_NESTING = 80  # blocks of `compiling`, two for each level of values

# #: Keywords that make the values of a kind large, most frequent causes first.
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
# #: Upper bounds of counts, which may be dropped, and the next causes of large languages.
UPPER_BOUNDS = {
    "array": ("maxItems", "maxContains"),
    "object": ("maxProperties",),
    "string": ("maxLength",),
}
CHOICES = ("oneOf", "not", "if", "anyOf", "dependentSchemas", "dependentRequired", "enum", "const")


class Parts:
    """Languages of one document's schemas, in all notations, and their costs.

    Attributes:
        caveats: what the languages don't enforce in every text.
        excluding: caveats of subtracted schemas, which may exclude valid texts.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._kept: dict[Automaton, Automaton] = {}
        self._made: dict[tuple[Hashable, ...], Automaton] = {}
        self._costs: dict[tuple[str | None, str], int] = {}
        self._inside = 0  # units spent by parts inside the current one
        self._nesting = 0
        # Keyword and pointer that work is attributed to.
        self._present: tuple[str | None, str] = None, ""
        self.caveats: dict[Caveat, None] = {}
        self.excluding: list[Caveat] = []

    def keep(self, language: Automaton) -> Automaton:
        """Return the automaton that represents all equal to this one."""
        if language not in self._kept:
            spend(_PER_KEPT_ENTRY * language.delta.size, "the schema's parts together")
            self._kept[language] = language
        return self._kept[language]

    def once(self, build: Callable[P, Automaton], *args: P.args, **kwargs: P.kwargs) -> Automaton:
        """Call `build` once for equal arguments, if they are hashable; return its automaton."""
        key = (build, args, tuple(kwargs.items()))
        if key not in self._made:
            self._made[key] = self.keep(build(*args, **kwargs))
        return self._made[key]

    @contextmanager
    def compiling(self, places: Conjunction, keywords: Sequence[str]) -> Iterator[None]:
        """Attribute the work inside the block to the first of the keywords that the schemas have.

        If they have none of them, the work is attributed to the keyword of the enclosing block.

        Raises:
            StateLimitError, WorkLimitError: raised by the block, with the keyword and pointer
                added.
            ConstraintError: if blocks are nested too deeply.
        """
        around = self._present
        cause = self._present = self._cause(places, keywords)
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

    def has_caveat(self, place: Place) -> bool:
        """Return whether a keyword of this schema is not enforced; caveats name each schema."""
        pointer = self._document.named(place.pointer)
        return any(caveat.pointer == pointer for caveat in self.caveats)

    def blame_most_costly(self, error: LimitError) -> None:
        """Add to an error the keyword that most of the work was attributed to."""
        if error.pointer is None and self._costs:
            error.blame(*max(self._costs, key=lambda cause: self._costs[cause]), self._hint)

    @property
    def _hint(self) -> str:
        recursive = bool(self._document.depth_hint)
        return "; the schema contains itself, so a lower max_depth helps too" if recursive else ""

    def _cause(self, places: Conjunction, keywords: Sequence[str]) -> tuple[str | None, str]:
        for keyword in keywords:
            for place in places:
                if not isinstance(place.schema, bool) and keyword in place.schema:
                    return keyword, self._document.named(place.pointer)
        return self._present
