"""Error messages follow the mechanical rules of `scripts.list_errors`."""

from __future__ import annotations

import pytest

from scripts.list_errors import Message, faults, messages
from scripts.packages import LIBRARY


@pytest.mark.parametrize("package", LIBRARY)
def test_messages_follow_the_rules(package: str) -> None:
    assert {each: wrong for each in messages(package) if (wrong := faults(each))} == {}


@pytest.mark.parametrize("package", ["gcd", "gcd_cli", "gcd_vllm", "hmm", "smc"])
def test_messages_are_found(package: str) -> None:
    assert len(list(messages(package))) > 10


def test_function_that_returns_the_error_is_followed() -> None:
    found = [each for each in messages("hmm") if "needs the package faiss" in each.text]
    assert [each.error for each in found] == ["ImportError"]
    assert found[0].text.startswith("latent variable distillation needs")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("expected a list, got {}; pass one", 0),
        ("EOS ids have no bytes", 0),
        ("{} is not a list", 0),
        ("", 1),
        ("Expected a list", 1),
        ("expected a list.", 1),
        ("{} is no list", 1),
        ("two lists, of which one is empty", 1),
        ("expected  a list", 1),
        ("expected a listexpected a list", 1),
    ],
)
def test_rules_find_bad_messages(text: str, number: int) -> None:
    assert len(faults(Message("module.py:1", "ValueError", text))) == number
