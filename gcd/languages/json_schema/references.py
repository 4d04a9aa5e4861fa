"""This module finds what `$ref`, `$dynamicRef` and `$recursiveRef` point to in a document.

A document holds one or more schema resources: the root, and every schema with an `$id` of its own,
which is a URI reference resolved against that of the schema around it (RFC 3986, section 5). A
reference is resolved likewise, against the URI of the resource it stands in; its fragment is a JSON
pointer from the resource's top, or an `$anchor` in it. Nothing is ever fetched: what is not in the
document is refused by name.

**`$dynamicRef`** means the outermost resource on the way here that has that `$dynamicAnchor`.
Where only one schema in the document has the anchor, or the root has it, from which every way
begins, that is the one; elsewhere the reference is refused. `$recursiveRef` is the same with one
anchor that has no name, `$recursiveAnchor`.

Which draft a resource is written in is found here as well, since it decides what an identifier is
and where schemas are (`gcd.languages.json_schema.drafts`); `References.read` gives each schema in
the vocabulary of draft 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from gcd.errors import ConstraintError, UnsupportedSchemaError, at
from gcd.languages.json_schema.drafts import DRAFTS, LENIENT, Draft, Schema, draft_of, translate
from gcd.languages.json_schema.keywords import ANCHORS

_MAX_NESTING = 64  # of schemas in schemas
_MAX_SCHEMAS = 50_000
_ROOT_URI = "schema:/root"  # of a document without an $id
_RECURSIVE = "$recursiveAnchor"  # as a dynamic anchor; no anchor is spelled with a dollar


class Resource(NamedTuple):
    """A resource is a schema with a URI of its own, and all in it up to the next such schema.

    Attributes:
        uri: without a fragment.
        pointer: JSON pointer of its top.
        draft: how it is to be read.
    """

    uri: str
    pointer: str
    draft: Draft


class References:
    """This class knows the resources and anchors of a document.

    Args:
        base: JSON pointer to put before those of the document in messages.
        draft: how the document is to be read, whatever `$schema` says; None: as that says.
        assert_formats: whether `format` constrains.
    """

    def __init__(self, root: Any, base: str, draft: Draft | None, *, assert_formats: bool) -> None:
        self._root = root
        self._base = base
        self._draft = draft
        self._assert_formats = assert_formats
        self._schemas: dict[str, Schema] = {}  # by pointer
        self._resource_of: dict[str, Resource] = {}  # by pointer of a schema in it
        self._resources: dict[str, list[str]] = {}  # URI -> pointers of tops; one, or it is unclear
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
                    f"the schema nests more than {_MAX_NESTING} levels deep at "
                    f"{base + pointer!r}; write repeated parts once, under $defs"
                )
            if len(self._schemas) >= _MAX_SCHEMAS:
                raise ConstraintError(
                    f"the document holds more than {_MAX_SCHEMAS} schemas; write repeated parts "
                    "once, under $defs"
                )
            schema, resource = self._enter(pointer, raw, resource)
            stack.extend(
                (pointer + path, sub, resource, depth + 1)
                for path, sub in schema.schemas_inside(definitions=True)
            )

    def read(self, pointer: str, raw: Any) -> Any:
        """Return the schema at a pointer in words of draft 2020-12; what is no schema, as it is."""
        if not isinstance(raw, Mapping):
            return raw
        if pointer not in self._schemas:  # where schemas are not expected, as below "x-types"
            self._schemas[pointer] = self._translated(raw, self._around(pointer).draft)
        return self._schemas[pointer]

    def _translated(self, raw: Mapping[str, Any], draft: Draft) -> Schema:
        return translate(
            raw, draft, assert_formats=self._assert_formats, chosen=self._draft is not None
        )

    def target(self, keyword: str, reference: str, pointer: str) -> str:
        """Return the pointer of the schema that a reference at `pointer` means.

        Raises:
            UnsupportedSchemaError: if it is outside the document, or depends on the way there.
            ConstraintError: if it points to nothing.
        """
        here = self._around(pointer)
        uri, fragment = urldefrag(_joined(here.uri, reference))
        fragment = unquote(fragment)
        shown = self._base + pointer
        tops = [here.pointer] if uri == here.uri else self._resources.get(uri, [])
        if not tops:
            raise UnsupportedSchemaError(
                keyword,
                shown,
                f"refers to {reference!r}, which is not in the document; only references inside "
                "it are resolved, so put that schema under $defs",
            )
        is_anchor = fragment != "" and not fragment.startswith("/")
        named = self._anchors.get((uri, fragment), []) if is_anchor else tops
        if len(named) > 1:
            raise UnsupportedSchemaError(
                keyword, shown, f"refers to {reference!r}, which several schemas are called"
            )
        if is_anchor:
            if not named:
                raise ConstraintError(
                    f"the {keyword} {reference!r} {at(shown)} points to nothing in the "
                    "document: there is no such $anchor"
                )
            return self._outermost(keyword, named[0], fragment, shown)
        found = tops[0] + fragment
        try:
            self.lookup(found)
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConstraintError(
                f"the {keyword} {reference!r} {at(shown)} points to nothing in the document"
            ) from None
        return found if fragment else self._outermost(keyword, found, _RECURSIVE, shown)

    def _outermost(self, keyword: str, found: str, anchor: str, shown: str) -> str:
        """What a dynamic reference means that leads to `found` by itself."""
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
            "refers to an anchor of several schemas; what it means would depend on the way there",
        )

    def lookup(self, pointer: str) -> Any:
        """Return what a pointer from the root points to; `KeyError` and the like for nothing."""
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
        """Note the identifiers of a schema; the schema, and the resource it belongs to."""
        draft = self._draft_at(pointer, raw, around)
        around = around._replace(draft=draft)
        schema = self._translated(raw, draft)
        self._schemas[pointer] = schema
        if isinstance(schema.get("$id"), str):
            uri, fragment = urldefrag(schema["$id"])
            if fragment and not draft.anchors_in_ids:
                reason = f"is {schema['$id']!r}, with a fragment; use $anchor for that"
                raise UnsupportedSchemaError("$id", self._base + pointer, reason)
            around = self._identified(pointer, around, uri, fragment)
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
        """The draft of a schema: the option's, that of its own `$schema`, or the one around it."""
        if self._draft is not None or "$schema" not in raw:
            return around.draft
        if pointer and not around.draft.lenient and not ("$id" in raw or "id" in raw):
            return around.draft  # which `$schema` may only repeat
        found = draft_of(raw["$schema"])
        if found is None:
            raise UnsupportedSchemaError(
                "$schema",
                self._base + pointer,
                f"names the dialect {raw['$schema']!r}, which is not supported; say which draft it "
                "comes closest to: draft=" + ", ".join(f'"{name}"' for name in DRAFTS),
            )
        return found

    def _identified(self, pointer: str, around: Resource, uri: str, fragment: str) -> Resource:
        """The resource of a schema with an identifier; a fragment alone only names the schema."""
        uri = urldefrag(_joined(around.uri, uri)).url if uri else around.uri
        if fragment:
            self._anchors.setdefault((uri, fragment), []).append(pointer)
        if uri == around.uri and (fragment or not pointer):
            return around
        self._resources.setdefault(uri, []).append(pointer)
        return Resource(uri, pointer, around.draft)

    def _around(self, pointer: str) -> Resource:
        """The resource around a pointer, which may be no known place of schemas."""
        while pointer not in self._resource_of:
            pointer = pointer.rpartition("/")[0]
        return self._resource_of[pointer]


def _joined(base: str, reference: str) -> str:
    if base.startswith(("urn:", "tag:", "schema:")):  # no hierarchy that urljoin knows
        return base + reference if reference.startswith("#") else reference or base
    return urljoin(base, reference)
