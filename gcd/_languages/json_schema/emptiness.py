"""Reasons why no value satisfies a schema, for error messages."""

from __future__ import annotations

from collections.abc import Iterator

from gcd._errors import at
from gcd._languages.json_schema.document import Conjunction, Document, Place
from gcd._languages.json_schema.facets import own_member_places
from gcd._languages.json_schema.languages import SchemaLanguages
from gcd._languages.json_schema.outlines import outline


def why_empty(values: SchemaLanguages) -> str:
    """Return the reason why a document has no values, as the continuation of a message.

    The reason names the innermost required part that has no values, or a required member that
    another keyword excludes. For a recursive document, only parts that have no values at any depth
    count. If there are none, the depth limit is the reason.
    """
    document = values.document
    found = _contradiction(values, document.root(), set())
    return found if found is not None else document.depth_hint


def _contradiction(values: SchemaLanguages, places: Conjunction, seen: set[str]) -> str | None:
    """Return the innermost part without values, as the continuation of a message.

    Return "" if the schemas `places` have no values by themselves, and None if no reason is found.
    """
    document = values.document
    flat = document.flatten(places) or ()
    closed_out = _closed_out(values, flat)
    if closed_out is not None:
        return closed_out
    for place in _needed(document, flat):
        if place.pointer in seen or not values.language((place,)).is_empty:
            continue
        seen.add(place.pointer)
        inner = _contradiction(values, (place,), seen)
        if inner:
            return inner
        if inner is not None:
            return f": the schema at {document.named(place.pointer)!r} has no values; correct it"
    recursive = any(document.is_recursive(place.pointer) for place in (*places, *flat))
    return None if recursive and not outline(document, places).has_no_value() else ""


def _needed(document: Document, flat: Conjunction) -> Iterator[Place]:
    """Yield the schemas of required members, and of elements of arrays that must not be empty."""
    for same in flat:
        for name in same.schema.get("required", ()):
            for holder in flat:
                yield from own_member_places(document, holder, name)
        if same.schema.get("minItems", 0) > 0:
            if same.schema.get("prefixItems"):
                yield document.child(same, "prefixItems", 0)
            elif "items" in same.schema:
                yield document.child(same, "items")


def _closed_out(values: SchemaLanguages, flat: Conjunction) -> str | None:
    """Return a message about a required member that another keyword excludes, or None."""
    document = values.document
    for name in dict.fromkeys(n for place in flat for n in place.schema.get("required", ())):
        for place in flat:
            own = own_member_places(document, place, name)
            keyword, remedy = None, "change that keyword"
            if not own and place.schema.get("additionalProperties") is False:
                keyword, remedy = "additionalProperties", "declare the member in `properties`"
            elif any(inner.schema is False for inner in own):
                declared = place.schema.get("properties", {}).get(name) is False
                keyword = "properties" if declared else "patternProperties"
            elif "propertyNames" in place.schema:
                names = values.language((document.child(place, "propertyNames"),), wide=True)
                if (values.notation.spell_all(name) & names).is_empty:
                    keyword = "propertyNames"
            if keyword is not None:
                pointer = document.named(place.pointer)
                return (
                    f": the member {name!r} is required, but {keyword!r} {at(pointer)} excludes "
                    f"it; {remedy}, or make the member optional"
                )
    return None
