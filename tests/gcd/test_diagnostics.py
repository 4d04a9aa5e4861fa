"""Reports on prefixes, compared with their automaton."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
from gcd import Automaton, ConstraintError, Vocabulary
from gcd._readable import readable_bytes, readable_ranges
from tests.gcd.oracles import byte_automata, checked_inside_strategies, lift_or_skip, vocabularies

pytestmark = checked_inside_strategies

VOCABULARY = Vocabulary.from_bytes([b"1", b"2", b"x", b"", b"12", b"<eos>", b"1x"], eos_ids=5)


@settings(max_examples=40)
@given(byte_automata(), vocabularies(), st.integers(0, 6), st.data())
def test_a_token_has_a_reason_exactly_if_it_is_not_allowed(
    automaton: Automaton, vocabulary: Vocabulary, remaining: int, data: st.DataObject
) -> None:
    lifted = lift_or_skip(automaton, vocabulary)
    prefix: list[int] = []
    for _ in range(data.draw(st.integers(0, 4))):
        ways = lifted.allowed(lifted.run(prefix)).tolist()
        if not ways:
            break
        prefix.append(data.draw(st.sampled_from(ways)))
    state = lifted.run(prefix)
    for budget in (None, remaining):
        log_p = np.log(np.arange(1, vocabulary.size + 1))
        report = gcd.inspect_prefix(lifted, prefix, remaining=budget, log_p=log_p)
        assert report.state == state
        assert report.reason is None
        assert report.needed == lifted.steps_to_accept[state]
        assert report.complete == (lifted.step(state, vocabulary.eos_ids[0]) == lifted.final)
        allowed = set(lifted.allowed(state, budget).tolist())
        assert set(report.allowed.tolist()) == allowed
        share = sum(t + 1 for t in allowed) / sum(range(1, vocabulary.size + 1))
        assert report.rejected_mass == pytest.approx(1 - share, abs=1e-12)
        for token in range(vocabulary.size):
            for language in (None, automaton):
                why = gcd.why_refused(lifted, prefix, token, remaining=budget, language=language)
                assert (why is None) == (token in allowed)


def test_reasons_name_the_problem() -> None:
    language = gcd.regex("[12]{2,3}|12x{3}")
    lifted = gcd.lift(language, VOCABULARY)

    def why(prefix: list[int], token: int, remaining: int | None = None) -> str | None:
        return gcd.why_refused(lifted, prefix, token, remaining=remaining, language=language)

    assert why([], 0) is None
    assert why([], 2) == "no string of the language has 'x' after ''; expected 1 2"
    assert why([], 6) == "no string of the language has 'x' after '1'; expected 1 2"
    assert why([0], 5) is not None
    assert "it needs at least 2 more tokens" in str(why([0], 5))
    assert "no bytes" in str(why([], 3))
    assert "expected a token id in 0..6, got 7" in str(why([], 7))
    assert "needs at least 3 more tokens after it" in str(why([4], 2, remaining=3))
    assert "the budget leaves 2" in str(why([4], 2, remaining=3))
    assert why([4], 2, remaining=4) is None
    assert why([4, 5], 0) == "the text has ended"
    assert why([4, 0], 0) == "no string of the language has '1' after '121'; it ends"
    assert "continues with token 2 ('x') after ''" in str(gcd.why_refused(lifted, [], 2))
    # No token of the vocabulary can continue `a`.
    language = gcd.choice(["ab", "c"])
    lifted = gcd.lift(language, Vocabulary.from_bytes([b"a", b"c", b"$"], eos_ids=2))
    assert "begins with 'a' can be spelled with the vocabulary's tokens" in str(why([], 0))


def test_a_refused_prefix_is_reported_with_its_position() -> None:
    lifted = gcd.lift(gcd.regex("[12]{2,3}"), VOCABULARY)
    report = gcd.inspect_prefix(lifted, [0, 2, 1], log_p=np.zeros(7))
    assert (report.state, report.needed, report.text) == (-1, None, b"1x2")
    assert report.rejected_mass == 1.0
    assert str(report.reason).startswith("token 2 of the prefix: no string of the language contin")
    with pytest.raises(ConstraintError, match="got '1x'"):
        gcd.why_refused(lifted, [0, 2], 0)
    with pytest.raises(ConstraintError, match=r"log_p of shape \(7,\), .* got \(3,\)"):
        gcd.inspect_prefix(lifted, [], log_p=np.zeros(3))
    with pytest.raises(ConstraintError, match="token ids as whole numbers, got b'12'"):
        gcd.inspect_prefix(lifted, b"12")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (b"ab", "a b"),
        (b"a-z_ \n", "\\n space '-' _ a z"),
        (range(256), "any byte"),
        (range(0x80, 0xC0), "\\x80-\\xBF"),
        ([*range(48, 58), 0], "\\x00 0-9"),
    ],
)
def test_sets_of_bytes_as_ranges(values: list[int], shown: str) -> None:
    assert readable_ranges(values) == shown


def test_byte_strings_as_text() -> None:
    assert readable_bytes("é\n".encode()) == "'é\\n'"
    assert readable_bytes(b"\xff") == "'\\xFF'"
    assert readable_bytes("Zü".encode()[:2]) == "'Z\\xC3'"
    assert readable_bytes("\x85\xa0ÿ".encode()) == "'\\u0085\\u00a0ÿ'"  # characters, not bytes
    assert readable_bytes(b"\\x85\\udc85'") == '"\\\\x85\\\\udc85\'"'
    assert readable_bytes(b"a" * 2 + "é".encode() + b"b" * 39) == "...'" + "b" * 39 + "'"
    assert readable_bytes("é".encode() * 30, None) == "'" + "é" * 30 + "'"
    assert readable_bytes(b"x" * 50 + b"y") == "...'" + "x" * 39 + "y'"


@given(st.text(max_size=20))
def test_whole_characters_are_written_as_python_reads_them(text: str) -> None:
    assert ast.literal_eval(readable_bytes(text.encode(), None)) == text
    half = readable_bytes(text.encode() + b"\xc3", None)
    assert half[1:-1].endswith("\\xC3")
    assert ast.literal_eval(half) == text + "\xc3"
