"""This module keeps the languages of a schema's parts, and accounts for what each keyword cost.

A schema says the same thing many times: the cases of an `anyOf` agree on most members, recursion
repeats a definition at every depth, a `oneOf` compares each branch with all others. `Parts` sees
every language of one document and

* **keeps each language once.** Equal automata become one object, so that building from equal parts
  is recognised as such (`Parts.once`) and what is held in memory is paid for once;
* **keeps the accounts.** Work that is spent while a keyword is compiled (`gcd.automata.limits`) is
  booked to that keyword's place, less what the schemas below it took. When the work runs out, the
  error names the keyword and the JSON pointer with the highest sum, which need not be the one that
  was unlucky enough to come last. When an automaton has too many states, it names the innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec

from gcd.automata.automaton import Automaton
from gcd.automata.horizon import Caveat
from gcd.automata.limits import spend, work_left
from gcd.errors import ConstraintError, LimitError, StateLimitError, at
from gcd.languages.json_schema.document import Conjunction, Document

P = ParamSpec("P")

# Units for an entry of a table that is kept until the end: 125 million, 500 MB, use up the default.
_PER_KEPT_ENTRY = 16
_MAX_NESTING = 80  # blocks of `compiling`, two for each level of values

#: Keywords that make the values of a kind large, those that most often do first.
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
#: Upper bounds of counts, which may be dropped, and what then makes a language large.
UPPER_BOUNDS = {
    "array": ("maxItems", "maxContains"),
    "object": ("maxProperties",),
    "string": ("maxLength",),
}
CHOICES = ("oneOf", "not", "if", "anyOf", "dependentSchemas", "dependentRequired", "enum", "const")


class Parts:
    """The languages of one document's schemas, in all notations, and what they cost.

    Attributes:
        caveats: what they do not hold in every text.
        excluding: those of schemas that values are compared with, so that too much may be excluded.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._kept: dict[Automaton, Automaton] = {}
        self._made: dict[tuple[Hashable, ...], Automaton] = {}
        self._costs: dict[tuple[str | None, str], int] = {}
        self._inside = 0  # units that parts inside of the present one have spent
        self._nesting = 0
        self._present: tuple[str | None, str] = None, ""  # what work is booked to
        self.caveats: dict[Caveat, None] = {}
        self.excluding: list[Caveat] = []

    def keep(self, language: Automaton) -> Automaton:
        """Return the automaton that stands for all that are equal to this one."""
        if language not in self._kept:
            spend(_PER_KEPT_ENTRY * language.delta.size, "the schema's parts together")
            self._kept[language] = language
        return self._kept[language]

    def once(self, build: Callable[P, Automaton], *args: P.args, **kwargs: P.kwargs) -> Automaton:
        """Call `build` once for equal arguments, if they can be hashed; return its automaton."""
        key = (build, args, tuple(kwargs.items()))
        if key not in self._made:
            self._made[key] = self.keep(build(*args, **kwargs))
        return self._made[key]

    @contextmanager
    def compiling(self, places: Conjunction, keywords: Sequence[str]) -> Iterator[None]:
        """Book the work inside the block to the first of the keywords that the schemas have.

        If they have none of them, it goes on being booked to the keyword around the block.

        Raises:
            StateLimitError, WorkLimitError: those of the block, which then name the keyword and
                the pointer.
            ConstraintError: if the block is inside of too many others.
        """
        around = self._present
        cause = self._present = self._cause(places, keywords)
        before, outside = work_left(), self._inside
        self._inside = 0
        self._nesting += 1
        try:
            if self._nesting > _MAX_NESTING:
                raise ConstraintError(
                    f"the schema {at(cause[1])} is nested too deeply, references "
                    "followed; nest less, or lower max_depth"
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

    def blame_most_costly(self, error: LimitError) -> None:
        """Let an error name the keyword that most of the work was booked to."""
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
