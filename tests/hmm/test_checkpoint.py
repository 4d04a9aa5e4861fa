"""Checkpoints: models round-trip; invalid models and other vocabularies are refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gcd import Vocabulary
from hmm import HMM, Step
from hmm import _checkpoint as checkpoint
from hmm import _em as em
from hmm import _inference as inference
from hmm._files import write_json
from tests.hmm.oracles import batch, parameters, sparse, tiny


def save_ctrlg(hmm: HMM, directory: Path, file: str = "model.safetensors", *, end: int = 0) -> None:
    """Write a model in Ctrl-G's layout, in float32; pickles have a two-dimensional gamma."""
    single, is_safe = hmm.to(dtype=torch.float32), file.endswith(".safetensors")
    gamma = single.initial.log()
    state = {
        "alpha_exp": single.transition.dense().contiguous(),
        "beta": single.emission.T.log().contiguous(),
        "gamma": gamma if is_safe else gamma.unsqueeze(0) + 3,  # known up to a constant
    }
    save_file(state, directory / file) if is_safe else torch.save(state, directory / file)
    sizes = {"hidden_states": hmm.num_states, "vocab_size": hmm.num_tokens}
    (directory / "config.json").write_text(json.dumps(sizes | {"eos_token_id": end}))


def assert_equal(one: HMM, other: HMM) -> None:
    for mine, theirs in zip(parameters(one), parameters(other), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back_as_it_was(tmp_path, dtype):
    hmm, place = tiny(dtype=dtype), tmp_path / "new" / "place"
    checkpoint.save(hmm, place, config={"eos_token_id": 2})
    again, config = checkpoint.load(place, num_tokens=3)
    assert_equal(again, hmm)
    assert config["eos_token_id"] == 2
    assert config["vocab_size"] == 3
    again = checkpoint.load(place, emission_dtype=torch.bfloat16).hmm
    assert_equal(again, hmm.to(emission_dtype=torch.bfloat16))
    # Saving another model leaves nothing of the old one.
    checkpoint.save(tiny(seed=1), place)
    again, config = checkpoint.load(place)
    assert_equal(again, tiny(seed=1))
    assert "eos_token_id" not in config


def test_a_model_that_cannot_be_stored_is_not_written(tmp_path):
    hmm = tiny()
    hmm.initial[:] = torch.tensor([1 - 1e-9, 5e-10, 5e-10], dtype=torch.float64)
    with pytest.raises(ValueError, match="2 positive entries of initial would become zero"):
        checkpoint.save(hmm, tmp_path, dtype=torch.float16)
    broken = tiny()
    broken.emission[0, 0] = float("nan")
    with pytest.raises(ValueError, match="emission"):
        checkpoint.save(broken, tmp_path)
    assert not list(tmp_path.iterdir())
    checkpoint.save(hmm, tmp_path, dtype=torch.bfloat16)
    assert float(checkpoint.load(tmp_path).hmm.initial[1]) == pytest.approx(5e-10, rel=1e-2)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("hmm", [tiny(), sparse(0)], ids=["positive", "zeros"])
def test_ctrlg_files_as_others_write_them(tmp_path, file, hmm):
    save_ctrlg(hmm, tmp_path, file)
    again, config = checkpoint.load(tmp_path, num_tokens=3)
    assert config["eos_token_id"] == 0
    again.check()
    for part, expected in zip(parameters(again), parameters(hmm), strict=True):
        torch.testing.assert_close(part, expected.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("halves", [(), ("alpha_exp", "beta", "gamma"), ("beta",)], ids=str)
def test_half_precision_is_normalized_when_it_is_read(tmp_path, dtype, halves):
    """In this project's layout, or some arrays in Ctrl-G's."""
    hmm = HMM.random(8, 50, generator=torch.Generator().manual_seed(0), concentration=0.5)
    if halves:
        save_ctrlg(hmm, tmp_path)
        path = tmp_path / "model.safetensors"
        state = load_file(path)
        save_file(state | {name: state[name].to(dtype) for name in halves}, path)
    else:
        checkpoint.save(hmm, tmp_path, dtype=dtype)
        stored = load_file(tmp_path / checkpoint.WEIGHTS)
        assert {part.dtype for part in stored.values()} == {dtype}
    again = checkpoint.load(tmp_path).hmm
    # Rounding of an entry, and of the sum; logarithms up to 8 have eight times the error.
    error = (1 if dtype == torch.float16 else 8) * (8e-3 if halves else 1e-3)
    for part, expected in zip(parameters(again), parameters(hmm), strict=True):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part, expected, rtol=error, atol=error / 1000)
    assert float((again.emission.sum(dim=0) - 1).abs().max()) < 1e-6
    assert float((again.transition.dense().sum(dim=1) - 1).abs().max()) < 1e-6
    inference.log_likelihood(again, *batch(0, [3, 5], 50))
    if halves:  # a model that is invalid in every type is still refused
        save_file({**state, "beta": state["beta"] + 0.1}, path)
        with pytest.raises(ValueError, match=r"emission.*got the sum"):
            checkpoint.load(tmp_path)


@pytest.mark.parametrize("emission_dtype", [None, torch.bfloat16])
def test_training_goes_on_to_the_same_result(tmp_path, emission_dtype):
    data = batch(0, [5, 3, 6, 2], 3)

    def step(state: Step) -> Step:
        size = em.step_size(state.step)
        return em.em_step(state, [data], pseudo_counts=0.1, step_size=size)

    straight = Step(tiny().to(emission_dtype=emission_dtype))
    assert checkpoint.load_step(tmp_path) is None
    checkpoint.save_step(straight, tmp_path)
    for _ in range(4):
        straight = step(straight)
        checkpoint.save_step(step(checkpoint.load_step(tmp_path)), tmp_path)
    resumed = checkpoint.load_step(tmp_path)
    assert_equal(resumed.hmm, straight.hmm)
    assert resumed.step == straight.step == 4
    assert resumed.log_likelihood == straight.log_likelihood
    loaded, expected = resumed.statistics.transition, straight.statistics.transition
    assert all(map(torch.equal, loaded, expected))


def test_bad_checkpoints_are_refused(tmp_path):
    hmm, path, config_path = tiny(), tmp_path / checkpoint.WEIGHTS, tmp_path / checkpoint.CONFIG
    checkpoint.save(hmm, tmp_path)
    with pytest.raises(ValueError, match=r"an HMM over 2048 tokens, .* got one over 3"):
        checkpoint.load(tmp_path, num_tokens=2048)
    with pytest.raises(ValueError, match="pass the directory of a model"):
        checkpoint.load(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"\['vocab_size'\]"):
        checkpoint.save(hmm, tmp_path, config={"vocab_size": 3})
    weights, config = load_file(path), json.loads(config_path.read_text())
    for change, message in (
        ({"initial": weights["initial"] * float("nan")}, "initial.*got the sum nan"),
        ({"emission": weights["emission"] * 0.5}, "emission.*got the sum 0.5"),
        ({"extra": torch.ones(1)}, r"expected the arrays initial, .* got \['emission', 'extra'"),
        ({"emission": weights["emission"][:2].clone()}, "vocab_size=2 .* as in the arrays, got 3"),
    ):
        save_file({**weights, **change}, path)
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)
    for change, message in (
        (config | {"format": "hmm-2"}, r"expected the format 'hmm-1' .* got 'hmm-2'"),
        ([], r"expected a dict in .*config\.json, got a list"),
    ):
        config_path.write_text(json.dumps(change))
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)
    save_file({"model.initial": torch.ones(1)}, tmp_path / checkpoint.STEP)
    with pytest.raises(ValueError, match=r"\['log_likelihood', 'step'\] are missing"):
        checkpoint.load_step(tmp_path)


@pytest.mark.parametrize("file", [checkpoint.WEIGHTS, "model.safetensors", "pytorch_model.bin"])
def test_damaged_files_are_named(tmp_path, file):
    """`check_files` finds them, too, without reading the arrays; but pickles only have to exist."""
    ours, is_pickle = file == checkpoint.WEIGHTS, file.endswith(".bin")
    checkpoint.save_step(Step(tiny()), tmp_path) if ours else save_ctrlg(tiny(), tmp_path, file)
    weights, config = tmp_path / file, tmp_path / checkpoint.CONFIG

    def refuse(message: str) -> None:
        for read in (checkpoint.check_files, checkpoint.load)[is_pickle:]:
            with pytest.raises(ValueError, match=message):
                read(tmp_path)

    checkpoint.check_files(tmp_path)
    whole = weights.read_bytes()
    damaged = [whole[:kept] for kept in (0, 5, len(whole) // 2, len(whole) - 1)]
    for content in [*damaged, b"abc", b"\x80\x04.", bytes(range(256)) * 9]:
        weights.write_bytes(content)
        refuse(rf"{file} cannot be read \(.+\); copy it again")
    if is_pickle:
        torch.save([torch.ones(1)], weights)
        refuse(r"expected tensors by name in .*, got a list")
    weights.unlink()  # and our layout is not mistaken for the other one
    refuse(r"hmm\.safetensors does not exist" if ours else r"expected model\.safetensors or")
    for content in (b'{"a": [1, ', b"\xff\xfe{}", b"[" * 100_000, b"1" * 5000):
        config.write_bytes(content)
        refuse(r"config\.json cannot be read")
    config.write_bytes(b"null")
    refuse(r"expected a dict in .*config\.json, got a NoneType")
    if ours:
        (tmp_path / checkpoint.STEP).write_bytes(whole[:9])
        with pytest.raises(ValueError, match=rf"{checkpoint.STEP} cannot be read \(.*\); remove"):
            checkpoint.load_step(tmp_path)


def test_an_interruption_leaves_the_previous_files(tmp_path, monkeypatch):
    config = tmp_path / checkpoint.CONFIG
    checkpoint.save(tiny(), tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    for write in (lambda: checkpoint.save(tiny(seed=1), tmp_path), lambda: write_json({}, config)):
        with pytest.raises(KeyboardInterrupt):
            write()
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())  # a mark that editors add
    assert_equal(checkpoint.load(tmp_path).hmm, tiny())


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_who_may_enter_the_folder_may_read_a_file_of_tensors(tmp_path, folder, file):
    tmp_path.chmod(folder)
    checkpoint.save(tiny(), tmp_path)
    assert (tmp_path / checkpoint.WEIGHTS).stat().st_mode & 0o777 == file


A_B_END = Vocabulary.from_bytes([b"a", b"b", b""], eos_ids=[2])
B_A_END = Vocabulary.from_bytes([b"b", b"a", b""], eos_ids=[2])
END_A_B = Vocabulary.from_bytes([b"", b"a", b"b"], eos_ids=[0])
TWO_ENDS = Vocabulary.from_bytes([b"a", b"", b""], eos_ids=[1, 2])
LONGER = Vocabulary.from_bytes([b"a", b"b", b"", b""], eos_ids=[2])


def test_another_tokenizer_is_refused(tmp_path):
    checkpoint.save(tiny(), tmp_path, vocabulary=A_B_END, config={"distilled_from": "é"})
    again, config = checkpoint.load(tmp_path, vocabulary=A_B_END)
    assert_equal(again, tiny())
    assert config["eos_token_id"] == [2]
    assert config["distilled_from"] == "é"
    for vocabulary, message in (
        (END_A_B, r"EOS tokens \[0\], got eos_token_id=\[2\]"),
        (TWO_ENDS, r"EOS tokens \[1, 2\], got eos_token_id=\[2\]"),
        (B_A_END, "another tokenizer with the same number of tokens"),
        (LONGER, "an HMM over 4 tokens, .* got one over 3"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path, vocabulary=vocabulary)
    with pytest.raises(ValueError, match=r"a vocabulary of 3 tokens, .* got one of 4"):
        checkpoint.save(tiny(), tmp_path, vocabulary=LONGER)
    with pytest.raises(ValueError, match=r"without the keys \['eos_token_id'\]"):
        checkpoint.save(tiny(), tmp_path, vocabulary=A_B_END, config={"eos_token_id": 2})
    # Ctrl-G's files have one end, which is among those of the model, and don't identify the bytes.
    save_ctrlg(tiny(), tmp_path, end=2)
    for vocabulary in (A_B_END, B_A_END, TWO_ENDS):
        checkpoint.load(tmp_path, vocabulary=vocabulary)
    with pytest.raises(ValueError, match=r"EOS tokens \[0\], got eos_token_id=2"):
        checkpoint.load(tmp_path, vocabulary=END_A_B)


def test_files_of_earlier_versions_with_shared_rows(tmp_path):
    hmm, path = tiny(num_tokens=5), tmp_path / checkpoint.WEIGHTS
    checkpoint.save(hmm, tmp_path)
    parts, row_of = load_file(path), torch.arange(5, dtype=torch.int32).flip(0)
    parts["emission_rows"] = parts.pop("emission").flip(0).contiguous()
    save_file({**parts, "row_of": row_of}, path)
    assert_equal(checkpoint.load(tmp_path).hmm, hmm)
    for numbers in (row_of + 1, row_of - 1):
        save_file({**parts, "row_of": numbers}, path)
        with pytest.raises(ValueError, match="row numbers of emission_rows, got others"):
            checkpoint.load(tmp_path)
