"""SGLang's grammar interface, tested with stand-in objects: never run in the engine.

The stand-ins have the names, signatures and order of calls of sglang 0.5.23:
`srt/constrained/base_grammar_backend.py`, `srt/speculative/spec_utils.py`.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import gcd
from gcd.requests import ConstraintRequest
from tests.small_vocabulary import vocabulary

TOKENS = vocabulary()


class BaseGrammarObject:
    def __init__(self):
        self.finished = False
        self.grammar_stats = None


class InvalidGrammarObject(BaseGrammarObject):
    def __init__(self, error_message="Unknown grammar error"):
        super().__init__()
        self.error_message = error_message


@pytest.fixture
def engine(monkeypatch):
    """Return the backends that the plugin registered, and the choices of `--grammar-backend`."""
    base, choices = ModuleType("base_grammar_backend"), ModuleType("choices")
    base.BaseGrammarObject, base.InvalidGrammarObject = BaseGrammarObject, InvalidGrammarObject
    base.BaseGrammarBackend = type("BaseGrammarBackend", (), {})
    known, names = {}, ["xgrammar"]
    base.register_grammar_backend = known.__setitem__
    choices.add_grammar_backend_choices = names.extend
    for name in ("sglang", "sglang.srt", "sglang.srt.arg_groups", "sglang.srt.constrained"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups.choices", choices)
    monkeypatch.setitem(sys.modules, "sglang.srt.constrained.base_grammar_backend", base)
    monkeypatch.delitem(sys.modules, "gcd.serving.sglang_grammar", raising=False)
    plugin = importlib.import_module("gcd.serving.sglang_grammar")
    monkeypatch.setattr(plugin.Vocabulary, "from_tokenizer", lambda *_, **__: TOKENS)
    plugin.register()
    yield known["gcd"](None, object(), TOKENS.size, set(TOKENS.eos_ids)), names
    del sys.modules["gcd.serving.sglang_grammar"]


def spec(constraint, **more):
    return json.dumps(constraint | more)


def allowed(grammar):
    """Return the allowed tokens of a row, next to an unconstrained one."""
    mask = grammar.allocate_vocab_mask(TOKENS.size, 2, "cpu")
    grammar.fill_vocab_mask(mask, 1)
    logits = torch.zeros(2, TOKENS.size)
    grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, "cpu"))
    assert torch.isfinite(logits[0]).all()
    return set(torch.isfinite(logits[1]).nonzero().flatten().tolist())


@pytest.mark.parametrize("seed", range(4))
def test_masks_are_those_of_a_matcher_along_drafts_that_are_taken_back(engine, seed):
    backend, names = engine
    assert "gcd" in names
    rng = random.Random(seed)
    constraint = {"json_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    template = backend.dispatch_ebnf(spec(constraint, budget=14))
    language = ConstraintRequest.parse(spec(constraint)).language()
    matcher = gcd.Matcher(gcd.lift(language, TOKENS), budget=14)
    grammar, count = template.copy(), 0
    while not grammar.is_terminated():
        found = allowed(grammar)
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        assert found == set(np.flatnonzero(bits).tolist())
        drafts = 0
        while drafts < 3 and not grammar.is_terminated():
            grammar.accept_token(rng.choice(sorted(allowed(grammar))))
            drafts += 1
        for _ in range(drafts):
            grammar.rollback(1)
        token = rng.choice(sorted(found))
        grammar.accept_token(token)
        assert matcher.advance(token)
        count += 1
    assert matcher.is_finished
    assert count <= 14
    assert not template.is_terminated()  # the engine's own object is unchanged
    with pytest.raises(ValueError, match="not allowed"):
        template.accept_token(ord("x"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (spec({"choice": ["one"]}), "a budget in the constraint, got none"),
        (spec({"choice": ["one"]}, budget=3), "needs at least 4 .* budget is 3"),
        (spec({"regex": "("}, budget=9), "without"),
        ('root ::= "a"', "one JSON text"),
    ],
)
def test_what_cannot_be_kept_is_an_invalid_grammar_with_the_reason(engine, text, why):
    found = engine[0].dispatch_ebnf(text)
    assert isinstance(found, InvalidGrammarObject)
    with pytest.raises(gcd.ConstraintError, match=f"(?i){why}"):
        raise gcd.ConstraintError(found.error_message)


def test_grammars_that_have_no_budget_are_refused(engine):
    for kind in ("json", "regex", "structural_tag"):
        found = getattr(engine[0], f"dispatch_{kind}")("{}")
        assert "with its budget" in found.error_message
