"""Resolution of `$ref`, `$dynamicRef` and `$recursiveRef` in a document.

A document contains one or more schema resources: the root, and every schema with its own `$id`. An
`$id` is a URI reference, which is resolved against the URI of the enclosing schema (RFC 3986,
section 5). A `$ref` is also a URI reference, which is resolved against the URI of its resource. Its
fragment is a JSON pointer from the resource's root, or the name of an `$anchor` in the resource.
Other documents are never downloaded: references to them raise an error.

**`$dynamicRef`** refers to the outermost resource with that `$dynamicAnchor` on the path from the
root. If only one schema in the document has the anchor, or the root resource has it, the target is
that schema. Otherwise the reference is refused. `$recursiveRef` works in the same way, with a
single anchor without a name, `$recursiveAnchor`.

This module also determines the draft of each resource, which decides what an identifier is and
where schemas are (`gcd._languages.json_schema.drafts`). `References.read` returns each schema in
the vocabulary of draft 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from gcd._errors import ConstraintError, UnsupportedSchemaError, at
from gcd._languages.json_schema.drafts import DRAFTS, LENIENT, Draft, Schema, draft_of, translate
from gcd._languages.json_schema.keywords import ANCHORS

_MAX_NESTING = 64  # maximum number of levels of schemas inside schemas
_MAX_SCHEMAS = 50_000
_ROOT_URI = "schema:/root"  # URI of a document without an $id
_RECURSIVE = "$recursiveAnchor"  # no other anchor begins with a dollar sign


class Resource(NamedTuple):
    """Schema resource: a schema with its own URI, and all inside it except other resources.

    Attributes:
        uri: URI without a fragment.
        pointer: JSON pointer of the resource's root schema.
        draft: draft of the resource.
    """

    uri: str
    pointer: str
    draft: Draft


class References:
    """Resources and anchors of a document.

    Args:
        root: the document.
        base: JSON pointer that messages put before the document's pointers.
        draft: draft of the document, overriding `$schema`; None to follow `$schema`.
        assert_formats: whether `format` constrains values.
    """

    def __init__(self, root: Any, base: str, draft: Draft | None, *, assert_formats: bool) -> None:
        self._root = root
        self._base = base
        self._draft = draft
        self._assert_formats = assert_formats
        self._schemas: dict[str, Schema] = {}  # by pointer
        self._resource_of: dict[str, Resource] = {}  # by pointer of a schema in the resource
        self._resources: dict[str, list[str]] = {}  # URI -> pointers of roots; ambiguous if several
        self._anchors: dict[tuple[str, str], list[str]] = {}  # (URI, anchor) -> pointers
        self._dynamic: dict[str, list[str]] = {}  # dynamic anchor -> pointers
        outside = Resource(_ROOT_URI, "", draft or LENIENT)
        self._resources[_ROOT_URI] = [""]
        stack: list[tuple[str, Any, Resource, int]] = [("", root, outside, 0)]
        while stack:
            pointer, raw, resource, depth = stack.pop()
            if not isinstance(raw, Mapping):
                continue
            if depth > _MAX_NESTING:
                raise ConstraintError(
                    f"expected at most {_MAX_NESTING} levels of nested schemas, got more at "
                    f"{base + pointer!r}; write repeated parts once, under $defs"
                )
            if len(self._schemas) >= _MAX_SCHEMAS:
                raise ConstraintError(
                    f"expected at most {_MAX_SCHEMAS} schemas in the document, got more; write "
                    "repeated parts once, under $defs"
                )
            schema, resource = self._enter(pointer, raw, resource)
            stack.extend(
                (pointer + path, sub, resource, depth + 1)
                for path, sub in schema.schemas_inside(definitions=True)
            )

    def read(self, pointer: str, raw: Any) -> Any:
        """Return the schema at a pointer in the vocabulary of draft 2020-12.

        Values that are not objects are returned unchanged.
        """
        if not isinstance(raw, Mapping):
            return raw
        if pointer not in self._schemas:  # a schema below an unknown keyword such as "x-types"
            self._schemas[pointer] = self._translate(raw, self._around(pointer).draft)
        return self._schemas[pointer]

    def _translate(self, raw: Mapping[str, Any], draft: Draft) -> Schema:
        return translate(
            raw, draft, assert_formats=self._assert_formats, chosen=self._draft is not None
        )

    def target(self, keyword: str, reference: str, pointer: str) -> str:
        """Return the pointer of the target of a reference in the schema at `pointer`.

        Raises:
            UnsupportedSchemaError: the target is outside of the document, or depends on the path
                taken.
            ConstraintError: the target doesn't exist.
        """
        here = self._around(pointer)
        uri, fragment = urldefrag(_join(here.uri, reference))
        fragment = unquote(fragment)
        shown = self._base + pointer
        tops = [here.pointer] if uri == here.uri else self._resources.get(uri, [])
        if not tops:
            raise UnsupportedSchemaError(
                keyword,
                shown,
                f"the target {reference!r} is not in the document, and other documents are never "
                "downloaded; put the target under $defs",
            )
        is_anchor = fragment != "" and not fragment.startswith("/")
        named = self._anchors.get((uri, fragment), []) if is_anchor else tops
        if len(named) > 1:
            raise UnsupportedSchemaError(
                keyword,
                shown,
                f"several schemas have the name {reference!r}; rename all but one",
            )
        if is_anchor:
            if not named:
                raise ConstraintError(
                    f"the reference {reference!r} ({keyword} {at(shown)}) has no target in the "
                    "document; add an $anchor with this name, or correct the reference"
                )
            return self._outermost(keyword, named[0], fragment, shown)
        found = tops[0] + fragment
        try:
            self.lookup(found)
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConstraintError(
                f"the reference {reference!r} ({keyword} {at(shown)}) has no target in the "
                "document; correct the reference"
            ) from None
        return found if fragment else self._outermost(keyword, found, _RECURSIVE, shown)

    def _outermost(self, keyword: str, found: str, anchor: str, shown: str) -> str:
        """Return the target of a reference; it is `found` unless the reference is dynamic."""
        everywhere = self._dynamic.get(anchor, [])
        dynamic = "$recursiveRef" if anchor == _RECURSIVE else "$dynamicRef"
        if keyword != dynamic or found not in everywhere or len(everywhere) == 1:
            return found
        for other in everywhere:
            if self._around(other).pointer == "":
                return other
        raise UnsupportedSchemaError(
            keyword,
            shown,
            "several schemas have this anchor, so the target depends on the path from the root; "
            "use $ref",
        )

    def lookup(self, pointer: str) -> Any:
        """Return the value at a pointer from the document's root.

        Raises:
            KeyError, IndexError, TypeError, ValueError: there is no such value.
        """
        found = self._root
        for step in pointer.split("/")[1:]:
            if isinstance(found, Mapping):
                found = found[step.replace("~1", "/").replace("~0", "~")]
            elif isinstance(found, list):
                if not step.isdecimal() or (step[0] == "0" and step != "0"):
                    raise KeyError(step)
                found = found[int(step)]
            else:
                raise KeyError(step)
        return found

    def _enter(
        self, pointer: str, raw: Mapping[str, Any], around: Resource
    ) -> tuple[Schema, Resource]:
        """Record the identifiers of a schema; return the schema and its resource."""
        draft = self._draft_at(pointer, raw, around)
        around = around._replace(draft=draft)
        schema = self._translate(raw, draft)
        self._schemas[pointer] = schema
        if isinstance(schema.get("$id"), str):
            uri, fragment = urldefrag(schema["$id"])
            if fragment and not draft.anchors_in_ids:
                raise UnsupportedSchemaError(
                    "$id",
                    self._base + pointer,
                    f"the identifier {schema['$id']!r} has a fragment; use $anchor instead",
                )
            around = self._identify(pointer, around, uri, fragment)
        self._resource_of[pointer] = around
        for keyword in ANCHORS:
            if isinstance(schema.get(keyword), str):
                self._anchors.setdefault((around.uri, schema[keyword]), []).append(pointer)
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(pointer)
        if schema.get("$recursiveAnchor") is True and pointer == around.pointer:
            self._dynamic.setdefault(_RECURSIVE, []).append(pointer)
        return schema, around

    def _draft_at(self, pointer: str, raw: Mapping[str, Any], around: Resource) -> Draft:
        """Return the draft of a schema.

        It is the option's draft, the draft of the schema's own `$schema`, or the draft of the
        enclosing resource.
        """
        if self._draft is not None or "$schema" not in raw:
            return around.draft
        if pointer and not around.draft.lenient and not ("$id" in raw or "id" in raw):
            return around.draft  # here, `$schema` must not change the draft
        found = draft_of(raw["$schema"])
        if found is None:
            raise UnsupportedSchemaError(
                "$schema",
                self._base + pointer,
                f"the dialect {raw['$schema']!r} is unknown; pass the closest draft with the "
                "option draft: " + " or ".join(f'"{name}"' for name in DRAFTS),
            )
        return found

    def _identify(self, pointer: str, around: Resource, uri: str, fragment: str) -> Resource:
        """Return the resource of a schema with an identifier.

        An identifier that is only a fragment names the schema, and doesn't begin a new resource.
        """
        uri = urldefrag(_join(around.uri, uri)).url if uri else around.uri
        if fragment:
            self._anchors.setdefault((uri, fragment), []).append(pointer)
        if uri == around.uri and (fragment or not pointer):
            return around
        self._resources.setdefault(uri, []).append(pointer)
        return Resource(uri, pointer, around.draft)

    def _around(self, pointer: str) -> Resource:
        """Return the schema resource that contains the value at a pointer."""
        while pointer not in self._resource_of:
            pointer = pointer.rpartition("/")[0]
        return self._resource_of[pointer]


def _join(base: str, reference: str) -> str:
    if base.startswith(("urn:", "tag:", "schema:")):  # urljoin doesn't know these hierarchies
        return base + reference if reference.startswith("#") else reference or base
    return urljoin(base, reference)
