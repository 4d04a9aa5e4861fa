"""Drawings: an arrow for every pair of states, and labels that parse to the edges' bytes."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import gcd
from gcd import Automaton, ConstraintError, TokenAutomaton, Vocabulary
from gcd._readable import readable_ranges
from gcd_cli import _drawing as drawing

_ARROW = re.compile(r"^\t(\d+) -> (\d+) \[label=(.*)\]$", re.MULTILINE)


def _arrows(source: str) -> dict[tuple[int, int], str]:
    found = _ARROW.findall(source)
    assert len({(s, t) for s, t, _ in found}) == len(found), "one arrow for a pair of states"
    return {(int(s), int(t)): label.strip('"').replace("\\\\", "\\") for s, t, label in found}


@pytest.mark.parametrize("language", [gcd.regex('[a-z"]+\\\\|é{2}'), gcd.literal("<b>")])
def test_every_edge_of_a_byte_automaton_is_drawn(language: Automaton) -> None:
    source = drawing.to_dot(language)
    expected = {}
    for state, row in enumerate(language.transitions):
        for target in np.unique(row[row >= 0]).tolist():
            expected[state, target] = readable_ranges(np.flatnonzero(row == target).tolist())
    assert {key: label.replace('\\"', '"') for key, label in _arrows(source).items()} == expected
    assert source.count("doublecircle") == language.accepting.sum()


def test_a_token_automaton_shows_tokens_and_steps() -> None:
    vocabulary = Vocabulary.from_bytes([str(i).encode() for i in range(10)] + [b"$"], eos_ids=10)
    lifted = gcd.lift(gcd.regex("[0-9]2"), vocabulary)
    source = drawing.to_dot(lifted)
    arrows = _arrows(source)
    pairs = {(s, t) for s in range(lifted.num_states) for t in lifted.delta[s] if t >= 0}
    assert arrows.keys() == pairs
    assert "10 tokens: '0' '1'" in arrows[lifted.initial, 1]
    assert arrows[1, 2] == "'2'"
    assert arrows[2, 3] == arrows[3, 3] == "EOS"
    assert "0\\n3" in source, "the fewest tokens to the end stand under a state's number"


def test_large_automata_are_refused() -> None:
    with pytest.raises(ConstraintError, match="at most 300 states to draw, got 301"):
        drawing.to_dot(gcd.literal("x" * 300))


def test_svg_needs_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing.shutil, "which", lambda _: None)
    with pytest.raises(ConstraintError, match="`dot` on the PATH, got none"):
        drawing.to_svg(gcd.literal("a"))


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs graphviz's `dot`")
def test_svg_is_a_drawing() -> None:
    automaton: Automaton | TokenAutomaton = gcd.regex("[a-c]+<>")
    svg = drawing.to_svg(automaton)
    assert "<svg" in svg
    assert "a-c" in svg
    assert "&lt;" in svg
