"""Matcher with xgrammar's interface: signatures, and every call compared with xgrammar's matcher.

On schemas that both engines interpret alike, all results must agree.
`tests/gcd/serving/test_against_xgrammar.py` covers the differences.
"""

from __future__ import annotations

import inspect
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

import gcd
from gcd._errors import ConstraintError
from gcd._serving.grammar_matcher import GrammarMatcher

xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

WORDS = [b'{"', b'":', b'":"', b'","', b'"}', b"null", b"true", b"12", b"ab", "é".encode()]
TOKENS = [*(bytes([i]) for i in range(256)), *WORDS, b""]
EOS = len(TOKENS) - 1
VOCABULARY = gcd.Vocabulary.from_bytes(TOKENS, [EOS])
WIDTH = (len(TOKENS) + 31) // 32
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["abc", "abd", "xyz"]},
        "on": {"type": "boolean"},
        "n": {"type": "integer", "minimum": 1},
    },
    "required": ["name", "on"],
}


@pytest.fixture(scope="module")
def compiled() -> tuple[gcd.TokenAutomaton, Any]:
    info = xgrammar.TokenizerInfo(TOKENS, vocab_size=len(TOKENS), stop_token_ids=[EOS])
    grammar = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(
        json.dumps(SCHEMA), any_whitespace=False, separators=(",", ":"), strict_mode=True
    )
    return gcd.lift(gcd.json_schema(SCHEMA), VOCABULARY), grammar


def pair(compiled: tuple[gcd.TokenAutomaton, Any], **options: Any) -> tuple[GrammarMatcher, Any]:
    return GrammarMatcher(compiled[0], **options), xgrammar.GrammarMatcher(compiled[1], **options)


def masks(*matchers: Any) -> list[list[int]]:
    """Return the allowed ids of each, ignoring bits past the vocabulary."""
    rows = np.zeros((len(matchers), 2, WIDTH), np.int32)
    for row, matcher in zip(rows, matchers, strict=True):
        assert matcher.fill_next_token_bitmask(row, 1)
    bits = (rows[:, 1, :, None] >> np.arange(32)) & 1
    return [np.flatnonzero(of_one.reshape(-1)[: len(TOKENS)]).tolist() for of_one in bits]


def test_signatures_are_those_of_xgrammar() -> None:
    theirs = xgrammar.GrammarMatcher
    for name, call in inspect.getmembers(theirs):
        if name.startswith("_") and name != "__init__":
            continue
        ours = getattr(GrammarMatcher, name)
        if isinstance(call, property):
            assert isinstance(ours, property), name
            continue
        shapes = [
            [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
            for f in (ours, call)
        ]
        if name == "__init__":
            more = [(name, kind) for name, kind, _ in shapes[0][-3:]]
            assert more == [
                (name, inspect.Parameter.KEYWORD_ONLY) for name in ("budget", "vocabulary", "exact")
            ]
            del shapes[0][-3:]
        assert shapes[0] == shapes[1], name


@pytest.mark.parametrize("seed", range(4))
def test_every_call_answers_as_xgrammar_does(compiled: Any, seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = pair(compiled)
    for _ in range(60):
        if not ours.is_terminated():
            allowed, same = masks(ours, theirs)
            assert allowed == same
            assert ours.find_jump_forward_string() == theirs.find_jump_forward_string()
        kind = rng.random()
        if kind < 0.1:
            for matcher in (ours, theirs):
                matcher.reset()
        elif kind < 0.25:
            count = rng.randint(0, min(3, len(ours._steps)))
            for matcher in (ours, theirs):
                matcher.rollback(count)
        elif kind < 0.35:
            ours, theirs = ours.fork(), theirs.fork()
        elif kind < 0.5:
            text = rng.choice(["", '{"name":"', "ab", "{", 'z","on":tr', "x", '"on":true}', "1"])
            assert ours.accept_string(text) == theirs.accept_string(text)
        else:
            good = kind < 0.9 and not ours.is_terminated()
            token = rng.choice(allowed) if good else rng.randint(-1, len(TOKENS))
            assert ours.accept_token(token) == theirs.accept_token(token)
        assert ours.is_terminated() == theirs.is_terminated()
        assert ours.is_completed() == theirs.is_completed()
    for name in ("max_rollback_tokens", "temperature", "stop_token_ids"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_captures() == theirs.get_captures() == []


def test_a_fork_goes_its_own_way(compiled: Any) -> None:
    ours, _ = pair(compiled)
    assert ours.accept_string('{"n')
    other = ours.fork()
    assert other.accept_string("ame")
    assert not ours.accept_token(TOKENS.index(b'"'))
    other.rollback(2)
    assert other.accept_string('{"n')


@pytest.mark.parametrize("seed", range(6))
def test_trees_of_drafts_get_the_masks_of_xgrammar(compiled: Any, seed: int) -> None:
    rng = random.Random(seed)
    matchers = pair(compiled, default_temperature=0.5)
    for matcher in matchers:
        assert matcher.accept_string('{"name":"ab')
    likely = [TOKENS.index(t) for t in (b'"', b'","', b"c", b"d", b"o", b"n", b'":', b"true", b"}")]
    size = 12
    tokens = torch.tensor([rng.choice([*likely, EOS]) for _ in range(size)])
    child, sibling = torch.full((size,), -1), torch.full((size,), -1)
    for node in range(1, size):
        parent = rng.randint(max(node - 2, 0), node - 1)
        if child[parent] < 0:
            child[parent] = node
        else:
            last = int(child[parent])
            while sibling[last] >= 0:
                last = int(sibling[last])
            sibling[last] = node
    rows = torch.full((2, size, WIDTH), 5, dtype=torch.int32)
    known = torch.full((2, size), 7.0)
    for i, matcher in enumerate(matchers):
        assert matcher.traverse_draft_tree(child, sibling, tokens, rows[i], temperatures=known[i])
        assert matcher.find_jump_forward_string() == ""
    kept = len(TOKENS) % 32
    rows[..., -1] &= (1 << kept) - 1  # bits past the vocabulary
    assert (rows[0] == rows[1]).all()
    assert (known[0] == known[1]).all()


def test_a_jump_has_whole_characters() -> None:
    info = xgrammar.TokenizerInfo(TOKENS, vocab_size=len(TOKENS), stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    for pattern, jump in [("äb(c|d)", "äb"), ("a|b", ""), ("abc", "abc"), ("a(é|è)", "a")]:
        ours = GrammarMatcher(gcd.lift(gcd.regex(pattern), VOCABULARY))
        assert ours.find_jump_forward_string() == jump
        if pattern != "a(é|è)":  # half a character is an error there
            theirs = xgrammar.GrammarMatcher(compiler.compile_regex(pattern))
            assert theirs.find_jump_forward_string() == jump


def test_a_budget_binds_and_forces() -> None:
    automaton = gcd.lift(gcd.regex('"(ab)*"|"abx"'), VOCABULARY)
    matcher = GrammarMatcher(automaton, budget=4)
    assert matcher.accept_string('"ab')
    assert matcher.find_jump_forward_string() == '"', "of two tokens that are left EOS is one"
    assert not matcher.accept_string("ab")
    assert matcher.accept_string('"')
    assert matcher.is_completed()
    assert not matcher.is_terminated()
    assert GrammarMatcher(automaton).find_jump_forward_string() == '"'


def test_strings_are_spelled_with_the_fewest_tokens() -> None:
    vocabulary = gcd.Vocabulary.from_bytes([b"a", b"aa", b"aab", b"b", b""], [4])
    automaton = gcd.lift(gcd.regex("a{3}b"), vocabulary)
    matcher = GrammarMatcher(automaton, budget=3)
    assert matcher.accept_string(b"aaab"), "a, aab"
    assert matcher._matcher.num_tokens == 2
    matcher.rollback()
    assert matcher._matcher.num_tokens == 0
    assert not matcher.accept_string("aaa"), "it takes two tokens, and two more to end"
    assert matcher.accept_token(0)


def test_the_text_ahead_is_found_within_long_tokens() -> None:
    vocabulary = gcd.Vocabulary.from_bytes([b"abc", b"abd", b"ab", b""], [3])
    automaton = gcd.lift(gcd.regex("abc|abd"), vocabulary)
    assert GrammarMatcher(automaton).find_jump_forward_string() == "ab"


def test_texts_that_end_by_themselves_are_terminated_without_a_token() -> None:
    automaton = gcd.lift(gcd.regex("abc|abd"), VOCABULARY, eos="accept")
    matcher = GrammarMatcher(automaton)
    assert matcher.find_jump_forward_string() == "ab"
    assert matcher.accept_string("abd")
    assert matcher.is_terminated()
    assert matcher.is_completed()
    assert matcher.find_jump_forward_string() == ""
    assert not matcher.accept_token(EOS)


def test_what_cannot_be_done_is_refused() -> None:
    automaton = gcd.lift(gcd.regex("ab"), VOCABULARY)
    assert GrammarMatcher(automaton, override_stop_tokens=EOS).stop_token_ids == [EOS]
    with pytest.raises(ConstraintError, match=r"as stop tokens, got \[1, 3\]; .* lift"):
        GrammarMatcher(automaton, override_stop_tokens=[3, 1])
    with pytest.raises(ConstraintError, match='eos="accept"'):
        GrammarMatcher(automaton, terminate_without_stop_token=True)
    with pytest.raises(gcd.InfeasibleBudgetError):
        GrammarMatcher(automaton, budget=1)
    matcher = GrammarMatcher(automaton)
    with pytest.raises(ValueError, match="contiguous int32 of shape"):
        matcher.fill_next_token_bitmask(np.zeros((1, WIDTH + 1), np.int32))
    assert matcher.accept_string("ab")
    for count in (2, -1):
        with pytest.raises(ValueError, match=f"at most 1 steps to roll back, got {count}"):
            matcher.rollback(count)


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("given", [3, None, [97], ["a"], memoryview(b"a")])
def test_what_is_no_string_is_no_string_that_is_refused(
    compiled: tuple[gcd.TokenAutomaton, Any], given: Any
) -> None:
    ours, theirs = pair(compiled)
    with pytest.raises(TypeError, match="expected str or bytes for accept_string, got "):
        ours.accept_string(given)
    with pytest.raises(RuntimeError, match="Unsupported type"):
        theirs.accept_string(given)
    for matcher in (ours, theirs):
        assert matcher.accept_string(bytearray(b'{"'))
