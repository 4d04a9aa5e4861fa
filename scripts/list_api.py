"""List the public interface as text, so that a review shows how a change affects it.

    python -m scripts.list_api            # print the listing
    python -m scripts.list_api --write    # update docs/reference/interface.txt

The listing has each name that a package of the library, `smc.captured` or `smc.testing` exports,
with the signatures of functions and of public methods, and the fields of classes. It is read from
the sources by griffe, so it doesn't depend on the versions of Python or of the dependencies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import griffe

from scripts.packages import EXPORTING

ROOT = Path(__file__).resolve().parent.parent
LISTING = ROOT / "docs" / "reference" / "interface.txt"
MODULES = sorted([*EXPORTING, "smc.captured", "smc.testing"])


def list_interface() -> str:
    """Return the listing, a line for each function, method and field."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    for package in sorted({module.split(".")[0] for module in MODULES}):
        loader.load(package)
    loader.resolve_aliases(implicit=False, external=False)
    return "\n".join(line for name in MODULES for line in _lines_of_module(loader, name)) + "\n"


def _lines_of_module(loader: griffe.GriffeLoader, name: str) -> Iterator[str]:
    module = loader.modules_collection[name]
    names = module.exports or [n for n, m in module.members.items() if _is_defined_here(n, m)]
    for each in sorted(map(str, names)):
        yield from _lines_of(f"{name}.{each}", module.members[each])


def _is_defined_here(name: str, member: griffe.Object | griffe.Alias) -> bool:
    return not name.startswith("_") and not member.is_alias and not member.is_module


def _lines_of(path: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    member = found.final_target if isinstance(found, griffe.Alias) else found
    if isinstance(member, griffe.Function):
        yield f"{path}{_signature(member)}"
    elif isinstance(member, griffe.Class):
        bases = ", ".join(map(str, member.bases))
        yield f"class {path}" + (f"({bases})" if bases else "")
        for name, inner in sorted(member.members.items()):
            if name == "__init__" or not name.startswith("_"):
                yield from ("    " + line for line in _lines_of(name, inner))
    elif isinstance(member, griffe.Attribute):
        yield path + (f": {member.annotation}" if member.annotation else "")


def _signature(function: griffe.Function) -> str:
    """Return the signature as text, with annotations and defaults as written in the code."""
    shown, is_keyword_only = [], False
    for each in function.parameters:
        kind = each.kind
        if kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            shown.append("*")
        is_keyword_only |= kind in (
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        )
        star = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        text = star + each.name + (f": {each.annotation}" if each.annotation else "")
        shown.append(text + (f" = {each.default}" if each.default is not None and not star else ""))
    returned = f" -> {function.returns}" if function.returns else ""
    return f"({', '.join(shown)}){returned}"


def main() -> None:
    """Print or write the listing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {LISTING.relative_to(ROOT)}")
    if parser.parse_args().write:
        LISTING.write_text(list_interface(), encoding="utf-8")
    else:
        print(list_interface(), end="")


if __name__ == "__main__":
    main()
