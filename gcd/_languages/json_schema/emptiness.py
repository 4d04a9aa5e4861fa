"""Reasons why no value satisfies a schema, for error messages."""

from __future__ import annotations

from collections.abc import Iterator

from gcd._errors import at
from gcd._languages.json_schema.approximations import approximate
from gcd._languages.json_schema.document import Conjunction, Document, Node
from gcd._languages.json_schema.facets import own_member_nodes
from gcd._languages.json_schema.keywords import OF_SCALARS
from gcd._languages.json_schema.languages import SchemaLanguages
from gcd._languages.text.dialects import is_written


def why_empty(values: SchemaLanguages) -> str:
    """Return the reason why a document has no values, as the continuation of a message."""
    document = values.document
    found = _contradiction(values, document.root(), set())
    if found == "":
        clash = _list_clashing(values, document.root())
        return f": {clash}; correct the schema" if clash else ""
    return found if found is not None else document.depth_hint


def _contradiction(values: SchemaLanguages, nodes: Conjunction, seen: set[str]) -> str | None:
    """Return the innermost part without values, as the continuation of a message.

    Return "" if the schemas `nodes` have no values by themselves, and None if no reason is found.
    """
    document = values.document
    flat = document.flatten(nodes) or ()
    closed_out = _explain_excluded(values, flat)
    if closed_out is not None:
        return closed_out
    for node in _list_required(document, flat):
        if node.pointer in seen or not values.language((node,)).is_empty:
            continue
        seen.add(node.pointer)
        inner = _contradiction(values, (node,), seen)
        if inner:
            return inner
        if inner is not None:
            clash = _list_clashing(values, (node,))
            because = f", because {clash}" if clash else ""
            pointer = document.rebase(node.pointer)
            return f": the part at {pointer!r} has no values{because}; correct it"
    recursive = any(document.is_recursive(node.pointer) for node in (*nodes, *flat))
    return None if recursive and not approximate(document, nodes).has_no_value() else ""


def _list_clashing(values: SchemaLanguages, nodes: Conjunction) -> str:
    """Return a clause that names the keywords of scalars if they exclude every value."""
    document = values.document
    flat = document.flatten(nodes) or ()
    alone = [{k: node.schema[k] for k in node.schema if k in OF_SCALARS} for node in flat]
    made = tuple(document.make(node, "scalars", s) for node, s in zip(flat, alone, strict=True))
    if not values.language(made).is_empty:
        return ""
    # A keyword may occur in several schemas. A type's own pattern says what its `type` says.
    given = {
        (node.schema.name_of(k), node.pointer): f"the type {value}"
        if k == "pattern" and not is_written(value)
        else f"{node.schema.name_of(k)} {at(document.rebase(node.pointer))}"
        for node, schema in zip(flat, alone, strict=True)
        for k, value in schema.items()
    }
    names = [name for name, _ in given]
    shown = dict.fromkeys(
        text if names.count(name) > 1 or text.startswith("the type ") else name
        for (name, _), text in given.items()
    )
    *most, last = shown
    return (
        f"{', '.join(most)} and {last} exclude each other"
        if most
        else f"{last} excludes every value"
    )


def _list_required(document: Document, flat: Conjunction) -> Iterator[Node]:
    """Yield the schemas of required members, and of elements of arrays that must not be empty."""
    for same in flat:
        for name in same.schema.get("required", ()):
            for holder in flat:
                yield from own_member_nodes(document, holder, name)
        if same.schema.get("minItems", 0) > 0:
            if same.schema.get("prefixItems"):
                yield document.child(same, "prefixItems", 0)
            elif "items" in same.schema:
                yield document.child(same, "items")


def _explain_excluded(values: SchemaLanguages, flat: Conjunction) -> str | None:
    """Return a message about a required member that another keyword excludes, or None."""
    document = values.document
    for name in dict.fromkeys(n for node in flat for n in node.schema.get("required", ())):
        for node in flat:
            own = own_member_nodes(document, node, name)
            keyword, remedy = None, "change that keyword"
            if not own and node.schema.get("additionalProperties") is False:
                keyword, remedy = "additionalProperties", "declare the member in `properties`"
            elif any(inner.schema is False for inner in own):
                declared = node.schema.get("properties", {}).get(name) is False
                keyword = "properties" if declared else "patternProperties"
            elif "propertyNames" in node.schema:
                names = values.language((document.child(node, "propertyNames"),), wide=True)
                if (values.notation.spell_all(name) & names).is_empty:
                    keyword = "propertyNames"
            if keyword is not None:
                pointer = document.rebase(node.pointer)
                return (
                    f": the member {name!r} is required, but {keyword!r} {at(pointer)} excludes "
                    f"it; {remedy}, or make the member optional"
                )
    return None
