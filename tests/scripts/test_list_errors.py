"""Error messages follow the mechanical rules of `scripts.list_errors`."""

from __future__ import annotations

import pytest

from scripts.list_errors import PACKAGES, Message, faults, messages


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_follow_the_rules(package: str) -> None:
    found = list(messages(package))
    assert len(found) > 10
    assert {each: wrong for each in found if (wrong := faults(each))} == {}


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
