"""Removed names and arguments are refused in one sentence that says what to do instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

import smc
from smc._removed import REMOVED
from smc.testing import ToyLM
from tests.smc.toys import CONSTRAINTS, VOCABULARY


@pytest.mark.parametrize("name", REMOVED)
def test_what_was_removed_names_what_to_use(name: str) -> None:
    removed: dict[str, Any] = {name.removesuffix("="): None}
    advice = re.escape(REMOVED[name])
    if name.endswith("="):
        with pytest.raises(ValueError, match=f"was removed; {advice}$"):
            smc.sample(
                ToyLM(VOCABULARY, seed=1), [[1]], CONSTRAINTS["few_words"](), max_tokens=3,
                particles=2, proposal=smc.GCD(), **removed,
            )  # fmt: skip
    else:
        with pytest.raises(AttributeError, match=rf"smc\.{name} was removed; {advice}$"):
            getattr(smc, name)
