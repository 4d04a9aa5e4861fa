"""Every schema of the official test suite against a golden file of outcomes.

The golden file is written by `python -m scripts.check_json_schema SUITE --update`; a change of any
outcome, for better or worse, is seen in its diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.check_json_schema import DRAFT, GOLDEN, outcomes, shares

SUITE = Path(__file__).parents[5] / "shared" / "data" / "json_schema_test_suite"
golden = json.loads(GOLDEN.read_text())
FILES = sorted({key.partition(":")[0] for key in golden})


def test_no_schema_is_compiled_wrongly_and_few_are_refused() -> None:
    required, formats = shares(golden)
    assert required.schemas == 383
    assert required.wrong == formats.wrong == required.narrower == 0
    assert required.refused <= required.schemas / 4
    assert formats.refused == 0


@pytest.mark.skipif(not SUITE.is_dir(), reason="the official test suite is not there")
@pytest.mark.parametrize("name", FILES)
def test_outcomes_are_those_of_the_golden_file(name: str) -> None:
    expected = {key: value for key, value in golden.items() if key.partition(":")[0] == name}
    assert outcomes(SUITE, [name]) == expected


@pytest.mark.skipif(not SUITE.is_dir(), reason="the official test suite is not there")
def test_the_golden_file_covers_the_required_part() -> None:
    assert {f"{DRAFT}/{path.name}" for path in (SUITE / DRAFT).glob("*.json")} <= set(FILES)
