"""The HMM of the convergence task: the same after any interruption, and honest about itself."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from experiments.convergence import hmm as subject
from experiments.convergence.hmm import Distilled, Recipe, continuations, distil
from gcd import Vocabulary
from hmm import em
from smc.testing import ToyLM

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d"], [3])
PROMPTS = ((0, 1), (2,), (0, 1))
# A seed that takes more than 31 bits: faiss has no wider one.
RECIPE = Recipe(states=3, sequences=40, length=5, passes=3, temperature=1.0, seed=3_000_000_000)


def made(where: Path, recipe: Recipe = RECIPE, lm: ToyLM | None = None) -> Distilled:
    return distil(lm or ToyLM(VOCABULARY, seed=1), {"files": "toy"}, PROMPTS, recipe, where)


def same(one: Distilled, other: Distilled) -> bool:
    return (one.note, one.nats) == (other.note, other.nats) and all(
        torch.equal(getattr(one.hmm, name), getattr(other.hmm, name))
        for name in ("initial", "emission")
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    pytest.importorskip("faiss")
    return made(tmp_path_factory.mktemp("whole"))


def test_it_is_found_again(whole, tmp_path, monkeypatch):
    made(tmp_path)
    for work in ("continuations", "compare", "mean_log_likelihood"):
        monkeypatch.setattr(subject, work, None)
    assert same(made(tmp_path), whole)
    assert set(whole.nats) == {"unigram", "bigram", "HMM", "language model"}
    assert "40 free continuations of 2 prompts" in whole.note
    assert "at random" not in whole.note


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [(subject, "continuations", 2), (em, "em_step", 2), (subject, "compare", 1)],
)
def test_an_interrupted_one_is_the_same(module, name, calls, whole, tmp_path, monkeypatch):
    work, done = getattr(module, name), []

    def interrupted(*args, **kwargs):
        done.append(None)
        if len(done) == calls:
            raise KeyboardInterrupt
        return work(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    assert same(made(tmp_path), whole)


def test_figures_are_written_whole_or_not_at_all(whole, tmp_path, monkeypatch):
    """A run killed while it writes leaves a part beside the file, never a part of the file."""

    def killed(self, target):
        assert json.loads(self.read_text())
        raise KeyboardInterrupt

    made(tmp_path)
    [figures] = tmp_path.glob("*/nats.json")
    figures.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    assert not figures.exists()
    assert same(made(tmp_path), whole)


def test_without_faiss_it_says_so(whole, tmp_path, monkeypatch):
    made(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    found = made(tmp_path)  # not the one that is there
    assert "begun at random" in found.note
    assert not same(found, whole)


def test_too_few_tokens_for_the_states_name_the_settings(tmp_path):
    pytest.importorskip("faiss")
    with pytest.raises(
        ValueError, match=r"task\.hmm_states=500, task\.hmm_sequences=40: .*cluster"
    ):
        made(tmp_path, dataclasses.replace(RECIPE, states=500))


def test_continuations_stay_within_the_context():
    lm = ToyLM(VOCABULARY, seed=1, context=6)
    sequences, vectors = continuations(lm, (0, 1, 2), 30, 5)
    assert int(sequences.lengths.max()) == 3
    assert len(vectors) == sequences.num_tokens
    free, _ = continuations(ToyLM(VOCABULARY, seed=1), (0, 1, 2), 30, 5)
    assert int(free.lengths.max()) == 5
