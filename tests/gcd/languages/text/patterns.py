"""Random regular expressions."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


def patterns(
    atoms: Sequence[str], signs: Sequence[str], groups: Sequence[str] = (), max_leaves: int = 7
) -> st.SearchStrategy[str]:
    """Patterns of these atoms, with alternatives in any order, quantifiers, and further groups."""

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = st.lists(inner, max_size=3)
        return st.one_of(
            parts.map("".join),
            parts.map("|".join),
            parts.map(lambda ways: f"({'|'.join(ways)})"),
            st.tuples(inner, st.sampled_from(signs)).map(lambda p: f"(?:{p[0]}){p[1]}"),
            *(inner.map(group.format) for group in groups),
        )

    return st.recursive(st.sampled_from(atoms), grown, max_leaves=max_leaves)
