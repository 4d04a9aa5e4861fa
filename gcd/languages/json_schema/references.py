"""References inside a JSON schema document: what `$ref` and `$dynamicRef` point to.

A document holds one or more schema resources: the root, and every schema with an `$id` of its own,
which is a URI reference resolved against that of the schema around it (RFC 3986, section 5). A
reference is resolved likewise, against the URI of the resource it stands in; its fragment is a JSON
pointer from the resource's top, or an `$anchor` in it. Nothing is ever fetched: what is not in the
document is refused by name.

**`$dynamicRef`** means the outermost resource on the way here that has that `$dynamicAnchor`.
Where only one schema in the document has the anchor, that is the one, whatever the way; where
several have it, the reference is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from gcd.errors import ConstraintError, UnsupportedSchemaError
from gcd.languages.json_schema.keywords import DEFINITIONS, LISTS, NAMED, SINGLE

_MAX_NESTING = 64  # of schemas in schemas
_MAX_SCHEMAS = 50_000
_ROOT_URI = "schema:/root"  # of a document without an $id


class References:
    """The resources and anchors of a document.

    Args:
        root: the schema.
        base: JSON pointer to put before those of the document in messages.
    """

    def __init__(self, root: Any, base: str) -> None:
        self._root = root
        self._base = base
        self._uri_of: dict[str, str] = {}  # pointer of a schema -> URI of its resource
        self._resources: dict[str, str] = {}  # URI -> pointer of the resource's top
        self._anchors: dict[tuple[str, str], str] = {}  # (URI, anchor) -> pointer
        self._dynamic: dict[str, list[str]] = {}  # dynamic anchor -> pointers
        stack: list[tuple[str, Any, str, int]] = [("", root, _ROOT_URI, 0)]
        self._resources[_ROOT_URI] = ""
        while stack:
            pointer, schema, uri, depth = stack.pop()
            if not isinstance(schema, Mapping):
                continue
            if depth > _MAX_NESTING:
                raise ConstraintError(
                    f"the schema nests more than {_MAX_NESTING} levels deep at "
                    f"{base + pointer!r}; write repeated parts once, under $defs"
                )
            if len(self._uri_of) >= _MAX_SCHEMAS:
                raise ConstraintError(
                    f"the document holds more than {_MAX_SCHEMAS} schemas; write repeated parts "
                    "once, under $defs"
                )
            uri = self._enter(pointer, schema, uri)
            stack.extend(
                (pointer + path, sub, uri, depth + 1)
                for path, sub in schemas_inside(schema, definitions=True)
            )

    def target(self, keyword: str, reference: str, pointer: str) -> str:
        """The pointer of the schema that a reference at `pointer` means.

        Raises:
            UnsupportedSchemaError: if it is outside the document, or depends on the way there.
            ConstraintError: if it points to nothing.
        """
        uri, fragment = urldefrag(_joined(self._uri(pointer), reference))
        fragment = unquote(fragment)
        shown = self._base + pointer
        if uri not in self._resources:
            raise UnsupportedSchemaError(
                keyword,
                shown,
                f"refers to {reference!r}, which is not in the document; only references inside "
                "it are resolved, so put that schema under $defs",
            )
        if fragment and not fragment.startswith("/"):
            if (uri, fragment) not in self._anchors:
                raise ConstraintError(
                    f"the {keyword} {reference!r} at {shown or '/'!r} points to nothing in the "
                    "document: there is no such $anchor"
                )
            found = self._anchors[uri, fragment]
            everywhere = self._dynamic.get(fragment, [])
            if keyword == "$dynamicRef" and found in everywhere and len(everywhere) > 1:
                raise UnsupportedSchemaError(
                    keyword,
                    shown,
                    f"refers to {reference!r}, an anchor of several schemas; what it means would "
                    "depend on the way there",
                )
            return found
        found = self._resources[uri] + fragment
        try:
            self.lookup(found)
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConstraintError(
                f"the {keyword} {reference!r} at {shown or '/'!r} points to nothing in the document"
            ) from None
        return found

    def lookup(self, pointer: str) -> Any:
        """What a pointer from the root points to; `KeyError` and the like if there is nothing."""
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

    def _enter(self, pointer: str, schema: Mapping[str, Any], uri: str) -> str:
        """Note the identifiers of a schema; the URI of the resource it belongs to."""
        if isinstance(schema.get("$id"), str):
            if urldefrag(schema["$id"]).fragment:
                raise UnsupportedSchemaError(
                    "$id",
                    self._base + pointer,
                    f"is {schema['$id']!r}, with a fragment; draft 2020-12 has $anchor for that",
                )
            uri = urldefrag(_joined(uri, schema["$id"])).url
            self._resources[uri] = pointer
        self._uri_of[pointer] = uri
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors[uri, schema[keyword]] = pointer
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(pointer)
        return uri

    def _uri(self, pointer: str) -> str:
        """The URI of the resource around a pointer, which may be no known place of schemas."""
        while pointer not in self._uri_of:
            pointer = pointer.rpartition("/")[0]
        return self._uri_of[pointer]


def _joined(base: str, reference: str) -> str:
    if base.startswith(("urn:", "tag:", "schema:")):  # no hierarchy that urljoin knows
        return base + reference if reference.startswith("#") else reference or base
    return urljoin(base, reference)


def schemas_inside(
    schema: Mapping[str, Any], *, definitions: bool = False
) -> Iterator[tuple[str, Any]]:
    """(pointer from here, schema) of the schemas directly inside one."""
    for keyword in SINGLE:
        if keyword in schema:
            yield f"/{keyword}", schema[keyword]
    for keyword in LISTS:
        found = schema.get(keyword)
        for i, sub in enumerate(found if isinstance(found, list) else ()):
            yield f"/{keyword}/{i}", sub
    for keyword in (*NAMED, *DEFINITIONS) if definitions else NAMED:
        found = schema.get(keyword)
        for name, sub in (found if isinstance(found, Mapping) else {}).items():
            yield f"/{keyword}/{escape(str(name))}", sub


def escape(step: str) -> str:
    """A step of a JSON pointer, escaped."""
    return step.replace("~", "~0").replace("/", "~1")
