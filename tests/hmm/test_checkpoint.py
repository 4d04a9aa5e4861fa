"""Checkpoints: models round-trip; invalid models and other vocabularies are refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gcd import Vocabulary
from hmm import HMM, Step
from hmm import _checkpoint as checkpoint
from hmm import _em as em
from hmm import _inference as inference
from tests.hmm.oracles import batch, parameters, sparse, tiny


def save_ctrlg(hmm: HMM, directory: Path, *, eos_token_id: int) -> None:
    """Write a model in Ctrl-G's layout, in float32."""
    directory.mkdir(parents=True, exist_ok=True)
    single = hmm.to(dtype=torch.float32)
    state = {
        "alpha_exp": single.transition.dense().contiguous(),
        "beta": single.emission.T.log().contiguous(),
        "gamma": single.initial.log(),
    }
    save_file(state, directory / "model.safetensors")
    sizes = {"hidden_states": hmm.num_states, "vocab_size": hmm.num_tokens}
    (directory / "config.json").write_text(json.dumps(sizes | {"eos_token_id": eos_token_id}))


def assert_equal(one: HMM, other: HMM) -> None:
    for mine, theirs in zip(parameters(one), parameters(other), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back_as_it_was(tmp_path, dtype):
    hmm = tiny(dtype=dtype)
    checkpoint.save(hmm, tmp_path / "new" / "place", config={"eos_token_id": 2})
    again, config = checkpoint.load(tmp_path / "new" / "place", num_tokens=3)
    assert_equal(again, hmm)
    assert config["eos_token_id"] == 2
    assert config["vocab_size"] == 3
    # Saving another model leaves nothing of the old one.
    checkpoint.save(tiny(seed=1), tmp_path / "new" / "place")
    again, config = checkpoint.load(tmp_path / "new" / "place")
    assert_equal(again, tiny(seed=1))
    assert "eos_token_id" not in config


def test_emissions_may_stay_in_bfloat16(tmp_path):
    hmm = tiny(dtype=torch.float32)
    checkpoint.save(hmm, tmp_path)
    again = checkpoint.load(tmp_path, emission_dtype=torch.bfloat16).hmm
    assert_equal(again, hmm.to(emission_dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float16, 5e-4), (torch.bfloat16, 4e-3)], ids=str
)
def test_half_precision_is_normalized_when_it_is_read(tmp_path, dtype, error):
    hmm = tiny(dtype=torch.float32)
    checkpoint.save(hmm, tmp_path, dtype=dtype)
    stored = load_file(tmp_path / checkpoint.WEIGHTS)
    assert {part.dtype for part in stored.values()} == {dtype}
    again = checkpoint.load(tmp_path).hmm
    for part, expected in zip(parameters(again), parameters(hmm), strict=True):
        assert part.dtype == torch.float32
        # Rounding of the entry itself, and of the sum it was divided by.
        torch.testing.assert_close(part, expected, rtol=2 * error, atol=1e-7)
    assert float((again.emission.sum(dim=0) - 1).abs().max()) < 1e-6


def test_entries_too_small_for_a_half_type_are_refused(tmp_path):
    hmm = tiny()
    hmm.initial[:] = torch.tensor([1 - 1e-9, 5e-10, 5e-10], dtype=torch.float64)
    with pytest.raises(ValueError, match="2 positive entries of initial would become zero"):
        checkpoint.save(hmm, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    checkpoint.save(hmm, tmp_path, dtype=torch.bfloat16)
    assert float(checkpoint.load(tmp_path).hmm.initial[1]) == pytest.approx(5e-10, rel=1e-2)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("hmm", [tiny(), sparse(0)], ids=["positive", "zeros"])
def test_ctrlg_files_as_others_write_them(tmp_path, file, hmm):
    """A pickle of tensors, with a two-dimensional gamma that is known only up to a constant."""
    hmm = hmm.to(dtype=torch.float32)
    state = {
        "alpha_exp": hmm.transition.dense().clone(),
        "beta": hmm.emission.T.log().contiguous(),
        "gamma": hmm.initial.log().unsqueeze(0) + 3,
    }
    save_file(state, tmp_path / file) if "safe" in file else torch.save(state, tmp_path / file)
    sizes = {"hidden_states": hmm.num_states, "vocab_size": 3, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    again, config = checkpoint.load(tmp_path, num_tokens=3)
    assert config["eos_token_id"] == 0
    again.check()
    for part, expected in zip(parameters(again), parameters(hmm), strict=True):
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("halves", [("alpha_exp", "beta", "gamma"), ("beta",), ("gamma",)], ids=str)
def test_ctrlg_in_half_precision_is_normalized_when_it_is_read(tmp_path, dtype, error, halves):
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(8, 50, generator=generator, concentration=0.5)
    save_ctrlg(hmm, tmp_path, eos_token_id=0)
    state = load_file(tmp_path / "model.safetensors")
    state |= {name: state[name].to(dtype) for name in halves}
    save_file(state, tmp_path / "model.safetensors")
    again = checkpoint.load(tmp_path).hmm
    for part, expected in zip(parameters(again), parameters(hmm), strict=True):
        assert part.dtype == torch.float32
        # Logarithms up to 8 have an error of half a unit in the last place, and so does the sum.
        torch.testing.assert_close(part, expected, rtol=2 * error, atol=1e-3 * error)
    assert float((again.emission.sum(dim=0) - 1).abs().max()) < 1e-6
    assert float((again.transition.dense().sum(dim=1) - 1).abs().max()) < 1e-6
    inference.log_likelihood(again, *batch(0, [3, 5], 50))
    # A model that is invalid in every type is still refused.
    save_file({**state, "beta": state["beta"] + 0.1}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"emission.*got the sum"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("emission_dtype", [None, torch.bfloat16])
def test_training_goes_on_to_the_same_result(tmp_path, emission_dtype):
    tokens, lengths = batch(0, [5, 3, 6, 2], 3)

    def step(state: Step) -> Step:
        return em.em_step(
            state,
            [(tokens, lengths)],
            pseudo_counts=0.1,
            step_size=em.step_size(state.step),
        )

    start = Step(tiny().to(emission_dtype=emission_dtype))
    assert checkpoint.load_step(tmp_path) is None
    checkpoint.save_step(start, tmp_path)
    straight = start
    for _ in range(4):
        straight = step(straight)
    resumed = None
    for _ in range(4):
        resumed = step(checkpoint.load_step(tmp_path))
        checkpoint.save_step(resumed, tmp_path)
    assert_equal(resumed.hmm, straight.hmm)
    assert resumed.step == straight.step == 4
    assert resumed.log_likelihood == straight.log_likelihood
    loaded = checkpoint.load_step(tmp_path).statistics
    for part, expected in zip(loaded.transition, straight.statistics.transition, strict=True):
        assert torch.equal(part, expected)


def test_bad_checkpoints_are_refused(tmp_path):
    hmm = tiny()
    checkpoint.save(hmm, tmp_path)
    with pytest.raises(ValueError, match=r"an HMM over 2048 tokens, .* got one over 3"):
        checkpoint.load(tmp_path, num_tokens=2048)
    with pytest.raises(ValueError, match="pass the directory of a model"):
        checkpoint.load(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"\['vocab_size'\]"):
        checkpoint.save(hmm, tmp_path, config={"vocab_size": 3})
    weights = load_file(tmp_path / checkpoint.WEIGHTS)
    for change, message in (
        ({"initial": weights["initial"] * float("nan")}, "initial.*got the sum nan"),
        ({"emission": weights["emission"] * 0.5}, "emission.*got the sum 0.5"),
        ({"extra": torch.ones(1)}, r"got \['emission', 'extra'"),
        (
            {"emission": weights["emission"][:2].contiguous()},
            "vocab_size=2 .* as in the arrays, got 3",
        ),
    ):
        save_file({**weights, **change}, tmp_path / checkpoint.WEIGHTS)
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)
    checkpoint.save(hmm, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        (config | {"format": "hmm-2"}, r"expected the format 'hmm-1' .* got 'hmm-2'"),
        ([], r"expected a dict in .*config\.json, got a list"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(change))
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)
    save_file({"model.initial": torch.ones(1)}, tmp_path / checkpoint.STEP)
    with pytest.raises(ValueError, match=r"\['log_likelihood', 'step'\] are missing"):
        checkpoint.load_step(tmp_path)
    save_ctrlg(hmm, tmp_path, eos_token_id=0)
    with pytest.raises(ValueError, match=r"an HMM over 7 tokens, .* got one over 3"):
        checkpoint.load(tmp_path, num_tokens=7)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.STEP])
def test_damaged_files_are_named(tmp_path, name):
    checkpoint.save_step(Step(tiny()), tmp_path)
    cut(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} cannot be read \(.*\); "):
        (checkpoint.load_step if name == checkpoint.STEP else checkpoint.load)(tmp_path)


@pytest.mark.parametrize("layout", ["ours", "theirs"])
def test_files_are_checked_without_reading_them(tmp_path, layout):
    hmm = tiny(dtype=torch.float32)
    if layout == "ours":
        checkpoint.save(hmm, tmp_path)
        weights = tmp_path / checkpoint.WEIGHTS
    else:
        save_ctrlg(hmm, tmp_path, eos_token_id=0)
        weights = tmp_path / "model.safetensors"
    checkpoint.check_files(tmp_path)
    content = weights.read_bytes()
    for kept in (0, 5, len(content) // 2, len(content) - 1):
        weights.write_bytes(content[:kept])
        with pytest.raises(
            ValueError, match=rf"{weights.name} cannot be read \(.*\); copy it again"
        ):
            checkpoint.check_files(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"does not exist|expected model\.safetensors or"):
        checkpoint.check_files(tmp_path)
    cut(tmp_path / checkpoint.CONFIG)
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        checkpoint.check_files(tmp_path)


def test_the_configuration_tells_the_layout(tmp_path):
    hmm = tiny(dtype=torch.float32)
    checkpoint.save(hmm, tmp_path / "ours")
    save_ctrlg(hmm, tmp_path / "theirs", eos_token_id=0)
    assert_equal(checkpoint.load(tmp_path / "ours", num_tokens=3).hmm, hmm)
    theirs = checkpoint.load(tmp_path / "theirs", num_tokens=3).hmm
    torch.testing.assert_close(theirs.emission, hmm.emission)
    # Our layout without its weights is not mistaken for the other layout.
    (tmp_path / "ours" / checkpoint.WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"hmm\.safetensors does not exist"):
        checkpoint.load(tmp_path / "ours")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    (tmp_path / "theirs" / "pytorch_model.bin").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be read"):
        checkpoint.load(tmp_path / "theirs")


A_B_END = Vocabulary.from_bytes([b"a", b"b", b""], eos_ids=[2])
B_A_END = Vocabulary.from_bytes([b"b", b"a", b""], eos_ids=[2])
END_A_B = Vocabulary.from_bytes([b"", b"a", b"b"], eos_ids=[0])
TWO_ENDS = Vocabulary.from_bytes([b"a", b"", b""], eos_ids=[1, 2])
LONGER = Vocabulary.from_bytes([b"a", b"b", b"", b""], eos_ids=[2])


def test_another_tokenizer_is_refused(tmp_path):
    checkpoint.save(tiny(), tmp_path, vocabulary=A_B_END, config={"distilled_from": "x"})
    again, config = checkpoint.load(tmp_path, vocabulary=A_B_END)
    assert_equal(again, tiny())
    assert config["eos_token_id"] == [2]
    assert config["distilled_from"] == "x"
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


def test_ctrlgs_one_end_is_among_those_of_the_language_model(tmp_path):
    save_ctrlg(tiny(dtype=torch.float32), tmp_path, eos_token_id=2)
    for vocabulary in (A_B_END, B_A_END, TWO_ENDS):  # its files don't identify the bytes
        checkpoint.load(tmp_path, vocabulary=vocabulary)
    with pytest.raises(ValueError, match=r"EOS tokens \[0\], got eos_token_id=2"):
        checkpoint.load(tmp_path, vocabulary=END_A_B)


def test_a_broken_model_is_not_written(tmp_path):
    hmm = tiny()
    hmm.emission[0, 0] = float("nan")
    with pytest.raises(ValueError, match="emission"):
        checkpoint.save(hmm, tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_of_earlier_versions_with_shared_rows(tmp_path):
    hmm = tiny(num_tokens=5)
    checkpoint.save(hmm, tmp_path)
    path = tmp_path / checkpoint.WEIGHTS
    parts = load_file(path)
    rows, row_of = parts.pop("emission").flip(0), torch.arange(5, dtype=torch.int32).flip(0)
    parts["emission_rows"] = rows.contiguous()
    for numbers in (row_of, row_of + 1, row_of - 1):
        save_file({**parts, "row_of": numbers.contiguous()}, path)
        if numbers is row_of:
            assert_equal(checkpoint.load(tmp_path).hmm, hmm)
            continue
        with pytest.raises(ValueError, match="row numbers of emission_rows, got others"):
            checkpoint.load(tmp_path)
    save_file({**parts, "first": row_of}, path)
    with pytest.raises(ValueError, match="expected the arrays initial, transition"):
        checkpoint.load(tmp_path)
