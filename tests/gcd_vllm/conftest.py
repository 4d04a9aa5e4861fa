from __future__ import annotations

import pytest

from gcd_vllm._admission import Admission
from tests.small_vocabulary import vocabulary


@pytest.fixture(scope="session")
def tokens():
    """Single bytes, a few longer tokens, and EOS."""
    return vocabulary()


@pytest.fixture(autouse=True)
def engines_know_their_vocabulary(monkeypatch):
    """Take the vocabulary from the fake configuration instead of vLLM's tokenizer."""
    known = {}

    def start(self, config):
        known[id(self)] = config.vocabulary
        made(self, config)

    made = Admission.__init__
    monkeypatch.setattr(Admission, "__init__", start)
    monkeypatch.setattr(Admission, "_vocabulary", lambda self: known[id(self)])
    monkeypatch.setattr(Admission, "warm_up", lambda self: None)
