"""Draws of prose are reproducible, and each text is where its label says."""

from __future__ import annotations

import pytest

from scripts import draw_prose
from scripts.list_errors import ROOT

TEXTS = {
    "docstrings": list(draw_prose.docstrings("gcd_cli")),
    "paragraphs": list(draw_prose.paragraphs(ROOT / "README.md")),
}


def test_draws_depend_only_on_the_seed():
    drawn = draw_prose.draw(TEXTS, 1, count=5)
    assert [len(set(texts)) for texts in drawn.values()] == [5, 5]
    assert drawn == draw_prose.draw(TEXTS, 1, count=5)
    assert drawn != draw_prose.draw(TEXTS, 2, count=5)


@pytest.mark.parametrize("kind", TEXTS)
def test_labels_lead_to_the_texts(kind):
    for each in TEXTS[kind]:
        label, _, text = each.partition("\n")
        name, number = label.rsplit(":", 1)
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert text.split()[0] in " ".join(lines[int(number) - 1 :])
