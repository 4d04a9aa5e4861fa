"""Languages of the schemas of a document in one notation; each language is built once.

**Narrow and wide.** A language may be narrower than the standard
(docs/json_schema.md lists the differences). This is safe, because every text in it
is valid. But "this and not that" is a difference of languages, and the language that is subtracted
must not be too small. So each conjunction of schemas has two languages:

    narrow    every text is the text of a value that satisfies the schemas
    wide      every text of such a value that any narrow language of these schemas may contain

and

    narrow(P and not S) = narrow(P) - wide(P and S)
    wide(P and not S)   = wide(P) - narrow(P and S).

The two differ in how scalars are spelled: a wide language has every spelling of keys and constants,
whole numbers with a fraction of zeros, zero with a sign, and all numbers with an exponent. The
values of numbers with an exponent are not checked, because comparing them is not regular. In both
languages, the members of objects have one order, which depends on all compared schemas
(`compared_with`), and the asserted schemas determine whether undeclared members are allowed.

**Objects that need undeclared members.** If undeclared members are excluded (`closed`), there may
be no objects left where the standard has some. An example is a `oneOf` of two object schemas in
which each branch allows the members of the other: only an undeclared member distinguishes them.
Such a value, and everything inside it, may then have undeclared members, as in the standard. The
asserted schemas alone determine which values these are, so languages that are compared agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from math import comb
from operator import and_, sub
from typing import Any, NamedTuple, ParamSpec

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import cache_with_price, max_states, spend, work_left
from gcd._errors import (
    ConstraintError,
    LimitError,
    StateLimitError,
    UnsupportedSchemaError,
    WorkLimitError,
    at,
)
from gcd._languages.json_schema.choices import Case, cases_of, overlapping
from gcd._languages.json_schema.constants import few_values
from gcd._languages.json_schema.document import Conjunction, Document, Node
from gcd._languages.json_schema.facets import (
    Contains,
    Facets,
    horizons,
    merge,
    within_reach,
    without_bounds,
)
from gcd._languages.json_schema.scalars import constants, fitting_constants, numerals, strings
from gcd._languages.json_schema.upper_bounds import (
    LOWER_BOUNDS,
    NO_BOUNDS,
    UPPER_BOUNDS,
    may_drop,
    not_counted,
)
from gcd._languages.values.arrays import CountedSplit, array, containing, distinct
from gcd._languages.values.json_values import json_notation
from gcd._languages.values.notation import Brackets, Notation
from gcd._languages.values.numbers import numbers
from gcd._languages.values.objects import (
    BRACES,
    Frame,
    Member,
    can_tell,
    checksums,
    enough_names,
    mapping,
)

# Units of work per table entry that stays in memory: 125 million entries (500 MB) exhaust the
# default limit.
_PER_KEPT_ENTRY = 16
_MAX_NESTING = 80  # most nested blocks of `compiling`; each level of values takes two
# For each kind of value, the keywords that make its automaton large, most frequent causes first.
_CAUSES = {
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
_CHOICES = ("oneOf", "not", "if", "anyOf", "dependentSchemas", "dependentRequired", "enum", "const")
# For each keyword that requires distinct elements or names, why it may not be enforceable, for the
# error message.
_UNENFORCEABLE = {
    "uniqueItems": (
        "it can only be enforced for elements with few possible values, such as an enum of a dozen "
        "values, or with a small `maxItems`; remove it (for a pydantic set, use a list) and "
        "validate the finished text; outside of `not`, `oneOf` and `if`, "
        'unsupported="warn" skips it with a warning'
    ),
    "minProperties": (
        "it requires more undeclared names than an automaton can count; declare the names, or "
        'lower the minimum; outside of `not`, `oneOf` and `if`, unsupported="warn" skips it with a '
        "warning"
    ),
}
_MAX_VALUES = 1_000  # maximum number of values of an element
P = ParamSpec("P")


class LanguageCache:
    """The languages of a document's schemas in every notation; each is built once.

    A schema repeats itself: the cases of an `anyOf` agree on most members, recursion repeats a
    definition at every depth, and a `oneOf` compares each branch with all others.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._kept: dict[Automaton, Automaton] = {}
        self._made: dict[tuple[Hashable, ...], Automaton] = {}
        self._costs: dict[tuple[str | None, str], int] = {}  # by keyword and pointer
        self._present: tuple[str | None, str] = None, ""  # to which work is attributed now
        self._inside = 0  # units of work in blocks inside the current block
        self._nesting = 0
        self.caveats: dict[Caveat, None] = {}  # keywords that aren't enforced in every text
        self.excluding: list[Caveat] = []  # of subtracted schemas, so long valid texts may be lost

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
        """Attribute the work inside the block to the first keyword that the schemas have."""
        around, outside, before = self._present, self._inside, work_left()
        found = (
            (keyword, self._document.rebase(node.pointer))
            for keyword in keywords
            for node in nodes
            if not isinstance(node.schema, bool) and keyword in node.schema
        )
        cause = self._present = next(found, around)
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
            self._blame(error, cause)
            raise
        finally:
            spent = before - work_left()
            self._costs[cause] = self._costs.get(cause, 0) + spent - self._inside
            self._present, self._inside = around, outside + spent
            self._nesting -= 1

    def blame_most_costly(self, error: WorkLimitError) -> None:
        """Add to an error the keyword to which most of the work was attributed."""
        self._blame(
            error, max(self._costs, key=lambda cause: self._costs[cause], default=(None, ""))
        )

    def _blame(self, error: LimitError, cause: tuple[str | None, str]) -> None:
        """Add a keyword and its pointer to an error that doesn't have them yet."""
        if error.pointer is None:
            error.blame(*cause)
            if self._document.depth_hint:
                error.add("; the schema contains itself, so a lower max_depth helps too")

    def has_caveat(self, node: Node) -> bool:
        """Return whether some keyword of this schema is not enforced, and has a caveat."""
        pointer = self._document.rebase(node.pointer)
        return any(caveat.pointer == pointer for caveat in self.caveats)


class Options(NamedTuple):
    """Options of the languages of schemas."""

    max_depth: int  # greatest nesting depth of values that the schema doesn't describe
    # Longest text that matters (`gcd._automata.horizon`); None if there is no limit
    max_bytes: int | None
    # Treatment of keywords that no automaton can enforce. "refuse": raise an error. "warn" or
    # "ignore": skip them, and record caveats.
    unsupported: str
    closed: bool = True  # whether undeclared members are excluded by default
    # Objects with at most this many declared names accept their members in any order
    any_order: int = 0
    # A length in bytes; upper bounds that only longer texts exceed are not enforced. With
    # `NO_BOUNDS`, lower bounds aren't enforced either.
    counted: float = math.inf


class SchemaLanguages:
    """Languages of the schemas of a document in one notation; each language is built once."""

    def __init__(self, document: Document, notation: Notation, options: Options) -> None:
        self.document = document
        self.notation = notation
        self._options = options
        self._opened: dict[frozenset[Node], bool] = {}
        self._known: dict[tuple[Conjunction, Conjunction, bool, Frame], Automaton] = {}
        self._scalars: dict[tuple[str, bool], Automaton] = {}  # by `Node.scalar`, `wide`
        self.cache = LanguageCache(document)
        self._built: dict[tuple[Hashable, ...], Automaton] = {}

    def language(
        self,
        nodes: Conjunction,
        compared_with: Conjunction = (),
        *,
        wide: bool = False,
        frame: Frame = BRACES,
    ) -> Automaton:
        """Return the narrow or `wide` texts of the values that satisfy all of the given schemas."""
        scalar = nodes[0].scalar if len(nodes) == 1 and frame is BRACES else None
        if scalar is not None and (scalar, wide) in self._scalars:
            return self._scalars[scalar, wide]
        if self._options.closed and self._is_opened(nodes, compared_with, frame):
            return self._standard.language(nodes, compared_with, wide=wide, frame=frame)
        found = self._by_convention(nodes, compared_with, wide, frame)
        if scalar is not None and not self.cache.has_caveat(nodes[0]):
            self._scalars[scalar, wide] = found
        return found

    def _is_opened(self, nodes: Conjunction, compared_with: Conjunction, frame: Frame) -> bool:
        """Return whether only objects with undeclared members satisfy the schemas."""
        own = tuple(node for node in nodes if node.asserted)
        key = frozenset(own)
        if key not in self._opened:
            here = self._by_convention(own, compared_with, False, frame)
            more = False
            if here.run(frame.opened) < 0 and self.document.declares_members(own, here.is_empty):
                standard = self._standard.language(own, frame=frame)
                more = standard.run(frame.opened) >= 0 or here.is_empty > standard.is_empty
            self._opened[key] = more
        return self._opened[key]

    @cached_property
    def _standard(self) -> SchemaLanguages:
        """Languages of the same schemas, with undeclared members allowed."""
        return self._in(self.notation, self._options._replace(closed=False))

    def _by_convention(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> Automaton:
        key = (nodes, compared_with, wide, frame)
        if key not in self._known:
            with self.cache.compiling(nodes, _CHOICES):
                found = self._language(nodes, compared_with, wide, frame)
                self._known[key] = self.cache.keep(found)
        return self._known[key]

    def _language(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> Automaton:
        separate = cases_of(self.document, nodes, wide=wide, closed=self._options.closed)
        if len(separate) == 1:
            return self._any_of(separate[0], compared_with, wide, frame)
        others = [
            node
            for cases in separate
            for case in cases
            for schemas in (case.nodes, *case.excluded)
            for node in self.document.closure(schemas)
        ]
        compared_with = tuple(dict.fromkeys([*compared_with, *others]))
        found = self._any_of(separate[0], compared_with, wide, frame)
        for cases in separate[1:]:
            found = self.cache.once(and_, found, self._any_of(cases, compared_with, wide, frame))
        return found

    def _any_of(
        self, cases: list[Case], compared_with: Conjunction, wide: bool, frame: Frame
    ) -> Automaton:
        parts = [p for case in cases for p in self._case(*case, compared_with, wide, frame)]
        if len(parts) == 1:
            return parts[0]
        # Cases often have the same language for most kinds of values; use each language once.
        return self.cache.once(_union, *dict.fromkeys(parts))

    def _case(
        self,
        nodes: Conjunction,
        excluded: Sequence[Conjunction],
        compared_with: Conjunction,
        wide: bool,
        frame: Frame,
    ) -> list[Automaton]:
        """Return languages whose union is the language of one case (`choices.Case`)."""
        excluded = overlapping(self.document, nodes, excluded, closed=self._options.closed)
        if not excluded:
            return self._plain(nodes, compared_with, wide, frame)
        more = {node: None for schemas in excluded for node in self.document.closure(schemas)}
        compared_with = tuple(dict.fromkeys([*compared_with, *more]))
        language = self.cache.once(_union, *self._plain(nodes, compared_with, wide, frame))
        for schemas in excluded:
            if language.is_empty:
                break
            values = self._in_every_spelling if wide else self
            other = values.language(nodes + schemas, compared_with, wide=not wide, frame=frame)
            language = language if other.is_empty else self.cache.once(sub, language, other)
        return [language]

    @cached_property
    def _hashable(self) -> SchemaLanguages:
        """Languages of the same schemas, for values that may be elements of a Python set."""
        assert self.notation.hashable is not None
        return self._in(self.notation.hashable)

    @cached_property
    def _in_every_spelling(self) -> SchemaLanguages:
        """Languages with every spelling of keys and constants, to subtract from wide ones."""
        notation = self.notation
        values = self._in(
            replace(notation, choice=notation.every_spelling, quoted=notation.quoted_all)
        )
        values._opened = self._opened
        return values

    @cached_property
    def _as_json(self) -> SchemaLanguages:
        """Languages of the same schemas in one spelling, to enumerate their values."""
        return self._in(json_notation("compact"))

    def _in(self, notation: Notation, options: Options | None = None) -> SchemaLanguages:
        values = SchemaLanguages(self.document, notation, options or self._options)
        values.cache = self.cache
        return values

    def _plain(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> list[Automaton]:
        """Return languages whose union is that of plain schemas, one for each kind of value."""
        if not nodes and not compared_with and frame is BRACES:
            return [any_value(self.notation, self._options.max_depth)]
        facets = merge(self.document, nodes, compared_with, closed=self._options.closed)
        if self._options.max_bytes is not None and facets.constants is None:
            facets = within_reach(facets, self._options.max_bytes)
        if frame is not BRACES:  # the arguments of a call are an object
            is_object = "object" in facets.kinds and facets.constants is None
            return [self._object(facets, wide, frame)] if is_object else []
        if facets.constants is not None:
            values = fitting_constants(self.document, facets)
            return [constants(self.notation, values, wide=wide)]
        kinds = facets.kinds - {"integer"} if "number" in facets.kinds else facets.kinds
        found = []
        for kind in sorted(kinds):
            with self.cache.compiling(nodes, _CAUSES[kind]):
                reaches = horizons(facets, kind)
                is_droppable = may_drop(nodes, reaches, self._options.unsupported)
                lower = self._options.counted == NO_BOUNDS and kind in LOWER_BOUNDS
                lower = lower and all(node.asserted for node in nodes)
                if not lower and not (is_droppable and max(reaches) >= self._options.counted):
                    try:
                        found.append(self._of_kind(kind, facets, wide))
                        continue
                    except StateLimitError as error:  # with a pointer, of an inner part
                        if not is_droppable or error.pointer is not None:
                            raise
                found.append(self._without_bounds(kind, nodes, facets, wide, lower=lower))
        return found

    def _without_bounds(
        self, kind: str, nodes: Conjunction, facets: Facets, wide: bool, *, lower: bool
    ) -> Automaton:
        """Return the values of one kind without upper (and `lower`) bounds, with caveats."""
        least = self._least_element(facets) if kind == "array" else 1
        caveats = not_counted(
            self.document, nodes, kind, least, lower=lower, unsupported=self._options.unsupported
        )
        causes = tuple(k for k in _CAUSES[kind] if k not in UPPER_BOUNDS[kind])
        with self.cache.compiling(nodes, causes):
            found = self._of_kind(kind, without_bounds(facets, kind, lower=lower), wide)
        self.cache.caveats |= dict.fromkeys(caveats)
        if not all(node.asserted for node in nodes):
            self.cache.excluding += [each for each in caveats if each.max_bytes is not None]
        return found

    def _least_element(self, facets: Facets) -> int:
        """Return the fewest bytes of an element of an array."""
        elements = [self.language(p, facets.compared_items) for p in (*facets.head, facets.items)]
        return min((len(e.shortest()) for e in elements if not e.is_empty), default=1)

    def _of_kind(self, kind: str, facets: Facets, wide: bool) -> Automaton:
        """Return the values of one kind, cached by the parts of `facets` that they depend on."""
        f = facets
        match kind:
            case "null":
                return self.notation.null
            case "boolean":
                return self.notation.true | self.notation.false
            case "integer" | "number":
                key: tuple[Hashable, ...] = (kind, f.lower, f.upper, f.divisors, wide)
                build = partial(numerals, kind, facets, wide=wide)
            case "string":
                key = (kind, f.length, f.patterns, f.formats, wide)
                build = partial(strings, self.document, self.notation, facets, wide=wide)
            case "array":
                elements = (f.size, f.head, f.items, f.contains, f.unique, f.container)
                key = (kind, *elements, f.compared_items, wide)
                build = partial(self._array, facets, wide)
            case _:
                members = (f.properties, f.others, f.patterns_of_names, f.names, f.count)
                key = (kind, *members, f.compared_others, wide)
                build = partial(self._object, facets, wide, BRACES)
        if key not in self._built:
            self._built[key] = self.cache.keep(build())
        return self._built[key]

    # -- arrays -----------------------------------------------------------------------------

    def _array(self, facets: Facets, wide: bool) -> Automaton:
        fewest, most = facets.size
        head = facets.head if most is None else facets.head[:most]
        parts = []
        for brackets in self.notation.containers[facets.container]:
            values = self._hashable if brackets.of_hashable else self
            compared_with = facets.compared_items
            elements = [values.language(nodes, compared_with, wide=wide) for nodes in head]
            rest = values.language(facets.items, compared_with, wide=wide)
            part = self.cache.once(
                array,
                self.notation,
                rest,
                head=tuple(elements),
                minimum=fewest,
                maximum=most,
                brackets=(brackets,),
            )
            for contains in facets.contains:
                if not part.is_empty:
                    part = part & values._containing(facets, contains, wide, brackets)
            if facets.unique is not None and not part.is_empty:
                part = values._distinct(part, facets, wide, brackets)
            parts.append(part)
        return Automaton.union(parts)

    def _containing(
        self, facets: Facets, contains: Contains, wide: bool, brackets: Brackets
    ) -> Automaton:
        """Return the arrays in which an allowed number of elements satisfies `contains`."""
        most = facets.size[1]
        head = facets.head if most is None else facets.head[:most]
        compared_with = facets.compared_items
        counted = replace(contains.node, asserted=False)

        def both(nodes: Conjunction, *, wide: bool) -> Automaton:
            return self.language((*nodes, counted), compared_with, wide=wide)

        found = Automaton.any_bytes()
        if contains.fewest:
            sorts = [
                CountedSplit(both(nodes, wide=wide), self.language(nodes, compared_with, wide=wide))
                for nodes in (*head, facets.items)
            ]
            found = containing(
                self.notation, sorts[:-1], sorts[-1], contains.fewest, None, brackets
            )
        if contains.most is not None:
            sorts = []
            for nodes in (*head, facets.items):
                every = self.language(nodes, compared_with, wide=wide)
                sorts.append(CountedSplit(every, every - both(nodes, wide=not wide)))
            found = found & containing(
                self.notation, sorts[:-1], sorts[-1], 0, contains.most, brackets
            )
        return found

    def _distinct(
        self, language: Automaton, facets: Facets, wide: bool, brackets: Brackets
    ) -> Automaton:
        """Restrict a language of arrays to those with distinct elements."""
        most = facets.size[1]
        head = list(facets.head if most is None else facets.head[:most])
        rest = self.language(facets.items, facets.compared_items, wide=True)
        longest = len(head) if rest.is_empty else most
        if longest is not None and longest <= 1:
            return language
        wides = [self.language(nodes, facets.compared_items, wide=True) for nodes in head]
        if longest is not None and longest <= len(head) + 1:
            wides = [*wides, rest][:longest]
            if all((a & b).is_empty for i, a in enumerate(wides) for b in wides[:i]):
                return language
        assert facets.unique is not None
        nodes_of = [*head, facets.items]
        known = _choices_of([partial(self._as_json.language, p) for p in nodes_of], longest)
        if known is None:
            return self._enforce_or_caveat(language, "uniqueItems", facets.unique)
        base = replace(facets.unique, asserted=False)
        tables: list[dict[int, Automaton]] = [{} for _ in nodes_of]
        for table, values, nodes in zip(tables, known.elements, nodes_of, strict=True):
            for text, value in values.items():
                constant = self.document.make(base, f"is {text}", {"const": value})
                table[known.number[text]] = self.language(
                    (*nodes, constant), facets.compared_items, wide=wide
                )
        size = max((a.num_states for t in tables for a in t.values()), default=0)
        if known.steps * size > max_states():
            return self._enforce_or_caveat(language, "uniqueItems", facets.unique)
        return language & distinct(self.notation, tables[:-1], tables[-1], known.length, brackets)

    def _enforce_or_caveat(
        self, language: Automaton, keyword: str, node: Node | None, held: Automaton | None = None
    ) -> Automaton:
        """Return `held`, which enforces `keyword`; or record a caveat, and return `language`."""
        if held is not None:
            return held
        assert node is not None
        if self._options.unsupported == "refuse" or not node.asserted:
            raise self.document.refuse(keyword, node, _UNENFORCEABLE[keyword])
        pointer, value = self.document.rebase(node.pointer), node.schema[keyword]
        self.cache.caveats[Caveat(node.schema.name_of(keyword), pointer, value, None)] = None
        return language

    # -- objects ----------------------------------------------------------------------------

    def _object(self, facets: Facets, wide: bool, frame: Frame) -> Automaton:
        if not self.notation.objects:
            return Automaton.empty()
        keys = None
        if facets.names:
            a_string = self.document.make(facets.names[0], "a string", {"type": "string"})
            keys = self.language((*facets.names, a_string), wide=wide)
        members = []
        for name, nodes, required, forbidden, compared_with in facets.properties:
            key = self._key(name, wide, frame)
            if keys is not None:
                forbidden = forbidden or (self.notation.spell_all(name) & keys).is_empty
            value = Automaton.empty()
            if not forbidden:
                value = self.language(nodes, compared_with, wide=wide)
            if frame.write is not None and not value.is_empty:
                raw = Automaton.empty()
                if value.run('"') >= 0:
                    raw = self._raw(frame, nodes, compared_with, wide)
                value = frame.write(raw, value)
            if not value.is_empty:
                unpacked = frame.is_bare is not None and not frame.is_bare(name)
                members.append(Member(key, value, required, unpacked))
            elif required:
                return Automaton.empty()
        others = partial(self.language, compared_with=facets.compared_others, wide=wide)
        extras = _build_undeclared(
            self.document, self.notation, facets, keys, others, frame, wide=wide
        )
        any_order = 0 < len(facets.properties) <= self._options.any_order
        found = self.cache.once(
            mapping,
            self.notation,
            tuple(members),
            tuple(extras),
            count=facets.count,
            any_order=any_order,
            frame=frame,
        )
        if wide or facets.count[0] < 2 or found.is_empty:
            return found
        few = few_values(self._as_json.language((*facets.names, a_string)), 16) if keys else None
        held = None
        if not any_order:
            held = _with_enough_names(found, self.notation, facets, members, extras, few)
        return self._enforce_or_caveat(found, "minProperties", facets.fewest_members, held)

    def _raw(
        self, frame: Frame, nodes: Conjunction, compared_with: Conjunction, wide: bool
    ) -> Automaton:
        """Return the strings that satisfy the schemas, without quotes."""
        assert frame.raw is not None
        if not nodes:
            return frame.raw.string(0, None)
        a_string = self.document.make(nodes[0], "a string", {"type": "string"})
        return self._in(frame.raw).language((*nodes, a_string), compared_with, wide=wide)

    def _key(self, name: str, wide: bool, frame: Frame) -> Automaton:
        if (frame.is_bare or self.notation.is_bare)(name):
            return Automaton.literal(name)
        return self.notation.spell_all(name) if wide else self.notation.spell(name)


def _union(*parts: Automaton) -> Automaton:
    return Automaton.union(parts)


@cache_with_price(maxsize=64)
def any_value(notation: Notation, depth: int) -> Automaton:
    """Return all values whose arrays and objects are nested at most `depth` levels deep."""
    scalars = [notation.null, notation.true, notation.false, numbers(), notation.string(0, None)]
    if depth == 0:
        return Automaton.union(scalars)
    if 10 * 2**depth * scalars[-1].num_states > max_states():  # approximate size of the result
        raise StateLimitError(max_states(), what=f"any value nested to a depth of {depth}")
    inner = any_value(notation, depth - 1)
    objects = mapping(notation, (), [Member(scalars[-1], inner, False)])
    return Automaton.union([*scalars, array(notation, inner), objects])


# -- elements that must be distinct, and undeclared members ------------------------------------


class _Distinct(NamedTuple):
    """Possible values of array elements that must be distinct."""

    # A mapping from JSON texts to values for each of the first elements; the last mapping is for
    # all further elements
    elements: list[dict[str, Any]]
    number: dict[str, int]  # a number for each JSON text
    length: int  # maximum number of elements of an array
    steps: int  # number of transitions of the automaton whose states are the sets of used values


def _choices_of(
    languages: Sequence[Callable[[], Automaton]], longest: int | None
) -> _Distinct | None:
    """Return the values of at most `longest` elements; None if there are too many to track."""
    found = []
    number: dict[str, int] = {}
    length, steps = 0, 0
    for language in languages:
        values = few_values(language(), _MAX_VALUES)
        if values is None:
            return None
        found.append({json.dumps(value, sort_keys=True): value for value in values})
        for text in found[-1]:
            number.setdefault(text, len(number))
        length = len(number) if longest is None else min(longest, len(number))
        steps = 0
        for taken in range(length):  # after the last element, no value needs to be tracked
            ways = comb(len(number), taken)
            steps += ways if taken == length - 1 else ways * (len(number) - taken)
            if steps > max_states():
                return None
    return _Distinct(found, number, length, steps)


def _build_undeclared(
    document: Document,
    notation: Notation,
    facets: Facets,
    names: Automaton | None,
    values: Callable[[Conjunction], Automaton],
    frame: Frame,
    *,
    wide: bool,
) -> list[Member]:
    """Return the undeclared members of an object, with disjoint names within `names`."""
    found = []
    for matched, nodes in facets.others:
        value = values(nodes)
        if value.is_empty:
            continue
        key = notation.string(0, None)
        if facets.properties:
            key -= notation.every_spelling([p.name for p in facets.properties])
        for pattern, node in facets.patterns_of_names:
            is_in = pattern in matched
            every = wide or not is_in
            quoted = _quote_pattern(document, notation, pattern, node, every=every)
            key = key & quoted if is_in else key - quoted
        if names is not None:
            key = key & names
        if key.is_empty:
            continue
        if frame.is_bare is not None:
            raise UnsupportedSchemaError(
                "additionalProperties",
                document.rebase(""),
                "in this style, all arguments must be declared; declare them in "
                '"properties", or use style="json"',
            )
        found.append(Member(key, value, False))
    return found


def _with_enough_names(
    found: Automaton,
    notation: Notation,
    facets: Facets,
    members: Sequence[Member],
    extras: Sequence[Member],
    names: Sequence[Any] | None,
) -> Automaton | None:
    """Restrict a language to objects with enough names; None if it takes too many states."""
    fewest = facets.count[0]
    if fewest < 2 or fewest <= sum(member.required for member in members) or not extras:
        return found
    if names is not None and can_tell(fewest, len(names)):
        classes = [notation.spell_all(name) for name in names]
    # Higher counts take tens of thousands of states.
    elif notation.quoted_all is not None and fewest == 2:
        classes = [notation.quoted_all(each) for each in checksums()]
    else:
        return None
    with suppress(StateLimitError):
        return found & enough_names(notation, members, extras, fewest, classes)
    return None


def _quote_pattern(
    document: Document, notation: Notation, pattern: str, node: Node, *, every: bool
) -> Automaton:
    quote = notation.quoted_all if every else notation.quoted
    if quote is None:
        raise document.refuse(
            "patternProperties",
            node,
            'style="python" has no patterns of names; declare the names, or use style="json"',
        )
    return quote(document.pattern(pattern, node, "patternProperties"))
