"""Languages of the schemas of a document in one notation; each language is built once.

**Narrow and wide.** A language may be narrower than the standard
(`gcd._languages.json_schema.schema` lists the differences). This is safe, because every text in it
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

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import and_, sub

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat
from gcd._automata.limits import max_states
from gcd._errors import StateLimitError
from gcd._languages.json_schema.choices import Case, cases_of, overlapping
from gcd._languages.json_schema.constants import few_values
from gcd._languages.json_schema.distinct import UNENFORCEABLE, choices_of
from gcd._languages.json_schema.document import Conjunction, Document, Node
from gcd._languages.json_schema.facets import (
    Contains,
    Facets,
    horizons,
    merge,
    within_reach,
    without_bounds,
)
from gcd._languages.json_schema.language_cache import (
    CAUSES,
    CHOICES,
    LOWER_BOUNDS,
    UPPER_BOUNDS,
    LanguageCache,
)
from gcd._languages.json_schema.members import build_undeclared, with_enough_names
from gcd._languages.json_schema.scalars import constants, fitting_constants, numerals, strings
from gcd._languages.json_schema.upper_bounds import (
    NO_BOUNDS,
    may_drop,
    not_counted,
    too_many_elements,
)
from gcd._languages.values.anything import any_value
from gcd._languages.values.arrays import CountedSplit, array, containing, distinct
from gcd._languages.values.json_values import json_notation
from gcd._languages.values.notation import Brackets, Notation
from gcd._languages.values.objects import BRACES, Frame, Member, mapping


class SchemaLanguages:
    """Languages of the schemas of a document in one notation; each language is built once.

    Args:
        document: the document of the schemas.
        notation: the notation of values.
        max_depth: greatest nesting depth of values that the schema doesn't describe.
        closed: whether undeclared members are excluded by default.
        any_order: objects with at most this many declared names accept their members in any order.
        max_bytes: longest text that matters (`gcd._automata.horizon`); None if there is no limit.
        counted: a length in bytes; upper bounds that only longer texts exceed are not enforced.
            With `NO_BOUNDS`, lower bounds aren't enforced either.
        unsupported: treatment of keywords that no automaton can enforce. "refuse": raise an error.
            "warn" or "ignore": skip them, and record caveats.
    """

    def __init__(
        self,
        document: Document,
        notation: Notation,
        *,
        max_depth: int,
        closed: bool,
        any_order: int = 0,
        max_bytes: int | None = None,
        counted: float = math.inf,
        unsupported: str = "warn",
    ) -> None:
        self.document = document
        self.notation = notation
        self._max_depth = max_depth
        self._closed = closed
        self._any_order = any_order
        self._max_bytes = max_bytes
        self._counted = counted
        self._unsupported = unsupported
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
        """Return the texts of the values that satisfy all of the given schemas.

        Args:
            nodes: the schemas.
            compared_with: schemas with which this language is compared.
            wide: whether to return the wide language, as the module docstring defines it.
            frame: delimiters around the members, if the value is an object.
        """
        scalar = nodes[0].scalar if len(nodes) == 1 and frame is BRACES else None
        if scalar is not None and (scalar, wide) in self._scalars:
            return self._scalars[scalar, wide]
        if self._closed and self._is_opened(nodes, compared_with, frame):
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
        return self._in(self.notation, closed=False)

    def _by_convention(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> Automaton:
        key = (nodes, compared_with, wide, frame)
        if key not in self._known:
            with self.cache.compiling(nodes, CHOICES):
                found = self._language(nodes, compared_with, wide, frame)
                self._known[key] = self.cache.keep(found)
        return self._known[key]

    def _language(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> Automaton:
        separate = cases_of(self.document, nodes, wide=wide, closed=self._closed)
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
        excluded = overlapping(self.document, nodes, excluded, closed=self._closed)
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
        """Languages of the same schemas, in which keys and constants have every spelling.

        They are subtracted from wide languages. The more valid texts they contain, the more exact
        the difference is.
        """
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

    def _in(self, notation: Notation, *, closed: bool | None = None) -> SchemaLanguages:
        values = SchemaLanguages(
            self.document,
            notation,
            max_depth=self._max_depth,
            closed=self._closed if closed is None else closed,
            any_order=self._any_order,
            max_bytes=self._max_bytes,
            unsupported=self._unsupported,
            counted=self._counted,
        )
        values.cache = self.cache
        return values

    def _plain(
        self, nodes: Conjunction, compared_with: Conjunction, wide: bool, frame: Frame
    ) -> list[Automaton]:
        """Return languages whose union is that of plain schemas, one for each kind of value."""
        if not nodes and not compared_with and frame is BRACES:
            return [any_value(self.notation, self._max_depth)]
        facets = merge(self.document, nodes, compared_with, closed=self._closed)
        if self._max_bytes is not None and facets.constants is None:
            facets = within_reach(facets, self._max_bytes)
        if frame is not BRACES:  # the arguments of a call are an object
            is_object = "object" in facets.kinds and facets.constants is None
            return [self._object(facets, wide, frame)] if is_object else []
        if facets.constants is not None:
            values = fitting_constants(self.document, facets)
            return [constants(self.notation, values, wide=wide)]
        kinds = facets.kinds - {"integer"} if "number" in facets.kinds else facets.kinds
        found = []
        for kind in sorted(kinds):
            with self.cache.compiling(nodes, CAUSES[kind]):
                reaches = horizons(facets, kind)
                is_droppable = may_drop(nodes, reaches, self._unsupported)
                lower = self._counted == NO_BOUNDS and kind in LOWER_BOUNDS
                lower = lower and all(node.asserted for node in nodes)
                if not lower and not (is_droppable and max(reaches) >= self._counted):
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
        """Return the values of one kind without upper bounds; record a caveat for each bound.

        If `lower`, the lower bounds are not enforced either.
        """
        least = self._least_element(facets) if kind == "array" else 1
        caveats = not_counted(
            self.document, nodes, kind, least, lower=lower, unsupported=self._unsupported
        )
        causes = tuple(k for k in CAUSES[kind] if k not in UPPER_BOUNDS[kind])
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
            try:
                part = self.cache.once(
                    array,
                    self.notation,
                    rest,
                    head=tuple(elements),
                    minimum=fewest,
                    maximum=most,
                    brackets=(brackets,),
                )
            except StateLimitError as error:
                least = self._least_element(facets)
                raise too_many_elements(self.document, facets, least) from error
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
        known = choices_of([partial(self._as_json.language, p) for p in nodes_of], longest)
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
        if self._unsupported == "refuse" or not node.asserted:
            raise self.document.refuse(keyword, node, UNENFORCEABLE[keyword])
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
            if not value.is_empty:
                unpacked = frame.is_bare is not None and not frame.is_bare(name)
                members.append(Member(key, value, required, unpacked))
            elif required:
                return Automaton.empty()
        others = partial(self.language, compared_with=facets.compared_others, wide=wide)
        extras = build_undeclared(
            self.document, self.notation, facets, keys, others, frame, wide=wide
        )
        any_order = 0 < len(facets.properties) <= self._any_order
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
            held = with_enough_names(found, self.notation, facets, members, extras, few)
        return self._enforce_or_caveat(found, "minProperties", facets.fewest_members, held)

    def _key(self, name: str, wide: bool, frame: Frame) -> Automaton:
        if frame.is_bare is not None and frame.is_bare(name):
            return Automaton.literal(name)
        return self.notation.spell_all(name) if wide else self.notation.spell(name)


def _union(*parts: Automaton) -> Automaton:
    return Automaton.union(parts)
