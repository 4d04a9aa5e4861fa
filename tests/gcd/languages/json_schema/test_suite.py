"""Every schema of the official test suite, of every draft, against golden files of outcomes.

`python -m scripts.check_json_schema SUITE --update` writes the golden files, so that their diff
shows every change of an outcome.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gcd
from scripts.check_json_schema import DRAFTS, accepts, golden, outcomes, shares, suite_files

SUITE = Path(__file__).parents[5] / "shared" / "data" / "json_schema_test_suite"
EXPECTED = {draft: json.loads(golden(draft).read_text()) for draft in DRAFTS}
FILES = sorted({(draft, key.partition(":")[0]) for draft in DRAFTS for key in EXPECTED[draft]})
SCHEMAS = {"4": 160, "6": 232, "7": 257, "2019-09": 372, "2020-12": 383}


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_schema_is_compiled_wrongly_and_few_are_refused(draft: str) -> None:
    required, formats = shares(draft, EXPECTED[draft])
    assert required.schemas == SCHEMAS[draft]
    assert required.wrong == formats.wrong == required.narrower == 0
    assert required.refused <= required.schemas / 10
    assert formats.refused == 0


@pytest.mark.skipif(not SUITE.is_dir(), reason="the official test suite is not there")
@pytest.mark.parametrize(("draft", "name"), FILES)
def test_outcomes_are_those_of_the_golden_file(draft: str, name: str) -> None:
    expected = {
        key: value for key, value in EXPECTED[draft].items() if key.partition(":")[0] == name
    }
    assert outcomes(SUITE, draft, [name]) == expected


@pytest.mark.skipif(not SUITE.is_dir(), reason="the official test suite is not there")
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_golden_file_covers_the_required_part(draft: str) -> None:
    assert {(draft, name) for name in suite_files(SUITE, draft)} <= set(FILES)


@pytest.mark.skipif(not SUITE.is_dir(), reason="the official test suite is not there")
def test_optional_patterns_are_compiled() -> None:
    names = ["optional/ecmascript-regex.json", "optional/non-bmp-regex.json"]
    found = outcomes(SUITE, "2020-12", names)
    assert len(found) == 22
    assert set(found.values()) == {"compiled"}


def test_a_value_is_found_in_whichever_order_its_members_are_admitted() -> None:
    inner = {"type": "object", "properties": {"x": {"const": 1}, "y": {"const": 2}}}
    members = {"b": {"items": inner, "type": "array"}, "a": {"const": 0}}
    language = gcd.json_schema({"type": "object", "properties": members})
    value = {"a": 0, "b": [{"y": 2, "x": 1.0}, {}]}
    assert accepts(language, value)
    assert not accepts(language, value, any_order=False)
    assert accepts(language, {"b": [{"x": 1, "y": 2}], "a": 0}, any_order=False)
    assert not accepts(language, {"a": 0, "b": [{"y": 1}]})
