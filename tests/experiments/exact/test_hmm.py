"""The HMM of the convergence task: the same after any interruption, and whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.exact import task as subject
from experiments.exact.task import Distilled, Recipe, distill
from gcd import Vocabulary
from smc.testing import ToyLM

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d"], [3])
PROMPTS = ((0, 1), (2,), (0, 1))
RECIPE = Recipe(states=20, sequences=40, length=5, seed=3_000_000_000)


def made(where: Path, recipe: Recipe = RECIPE, lm: ToyLM | None = None) -> Distilled:
    return distill(lm or ToyLM(VOCABULARY, seed=1), PROMPTS, recipe, where / "hmm")


def same(one: Distilled, other: Distilled) -> bool:
    def content(each: Distilled) -> list:
        hmm = each.hmm
        return [each.note, *(x.tolist() for x in (hmm.initial, hmm.transition.dense()))]

    return content(one) == content(other) and torch.equal(one.hmm.emission, other.hmm.emission)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    return made(tmp_path_factory.mktemp("whole"))


def test_it_is_found_again(whole, tmp_path, monkeypatch):
    made(tmp_path)
    for work in ("sample_batch", "clone"):
        monkeypatch.setattr(subject, work, None)
    assert same(made(tmp_path), whole)
    assert "40 free continuations of 2 prompts" in whole.note
    assert f"HMM of {whole.hmm.num_states} states" in whole.note


@pytest.mark.parametrize(
    ("name", "calls"), [("sample_batch", 2), ("clone", 1), ("save", 1), ("replace", 1)]
)
def test_an_interrupted_one_is_the_same(name, calls, whole, tmp_path, monkeypatch):
    """Also if it ends after it was written, which is beside the place."""
    owner = Path if name == "replace" else subject
    work, done = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        done.extend([None] * (name != "replace" or args[0].is_dir()))
        if len(done) == calls:
            raise KeyboardInterrupt
        return work(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    assert bool(list(tmp_path.glob("hmm.part/*"))) == (name == "replace")
    assert not (tmp_path / "hmm").exists()
    assert same(made(tmp_path), whole)


@pytest.mark.parametrize("change", [{"seed": 4}, {"states": 9}, {"length": 4}, {"sequences": 41}])
def test_another_recipe_is_another_hmm(change, whole, tmp_path):
    found = made(tmp_path, RECIPE._replace(**change))
    assert not same(found, whole)
    assert found.hmm.num_states <= change.get("states", 20)
