"""Rows with the same bytes are stored once, and the loaded matrix is bitwise the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hmm import _checkpoint as checkpoint
from hmm._model import HMM
from hmm._shared_rows import SharedRows, pool_rare, share_rows

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def bits(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
def test_a_matrix_comes_back_bit_for_bit(numbers, width, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    different = torch.randn(6, width, generator=generator, dtype=torch.float64).to(dtype)
    # Zeros of both signs are equal numbers, and different bytes.
    different[0], different[1] = 0.0, -0.0
    matrix = different[torch.tensor(numbers)]
    shared = share_rows(matrix)
    assert bits(shared.matrix()) == bits(matrix)
    assert shared.rows.dtype == dtype
    assert len(shared.rows) == len({bits(row) for row in matrix})
    # In order of first occurrence.
    seen: list[int] = []
    for row in shared.row_of.tolist():
        seen += [] if row in seen else [row]
    assert seen == list(range(len(shared.rows)))


def test_rare_tokens_that_were_seen_equally_often_share_their_emissions():
    hmm = HMM.random(4, 9, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([0, 7, 1, 3, 1, 0, 2, 3, 2])
    pooled = pool_rare(hmm.emission, counts, 2)
    torch.testing.assert_close(pooled.sum(dim=0), hmm.emission.sum(dim=0))
    for alike in ([0, 5], [2, 4], [6, 8]):
        expected = hmm.emission[alike].mean(dim=0).expand(len(alike), -1)
        assert torch.equal(pooled[alike], expected)
    own = [1, 3, 7]
    assert torch.equal(pooled[own], hmm.emission[own])
    assert len(share_rows(pooled).rows) == 3 + len(own)


def unseen(num_tokens: int, num_states: int, occurring: int) -> HMM:
    """Make an HMM in which all tokens but the first few have equal rows."""
    hmm = HMM.random(num_states, num_tokens, generator=torch.Generator().manual_seed(1))
    emission = hmm.emission.clone()
    emission[occurring:] = emission[occurring]
    return HMM(hmm.initial, hmm.transition, emission / emission.sum(dim=0))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_both_forms_of_a_file_say_the_same(tmp_path, dtype):
    hmm = unseen(200, 8, 20)
    for name, shared in (("plain", False), ("shared", True), ("chosen", None)):
        checkpoint.save(hmm, tmp_path / name, dtype=dtype, shared=shared)
    plain, shared, chosen = (
        checkpoint.load(tmp_path / name).hmm for name in ("plain", "shared", "chosen")
    )
    for one in (shared, chosen):
        assert bits(one.emission) == bits(plain.emission)
        assert bits(one.transition.dense()) == bits(plain.transition.dense())
    if dtype is None:
        assert bits(plain.emission) == bits(hmm.emission)
    kept = load_file(tmp_path / "chosen" / checkpoint.WEIGHTS)
    assert kept["emission_rows"].shape == (21, 8)
    assert kept["row_of"].dtype == torch.int32
    sizes = [(tmp_path / n / checkpoint.WEIGHTS).stat().st_size for n in ("plain", "chosen")]
    assert sizes[1] < sizes[0] / 2
    # No rows repeat, so sharing would take more space.
    checkpoint.save(unseen(200, 8, 199), tmp_path / "chosen")
    assert "emission" in load_file(tmp_path / "chosen" / checkpoint.WEIGHTS)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    checkpoint.save(unseen(200, 8, 20), tmp_path)
    path = tmp_path / checkpoint.WEIGHTS
    whole = load_file(path)
    for name, wrong, message in (
        ("row_of", whole["row_of"] + 1, r"numbers in 0\.\.20, got numbers from 1 to 21"),
        ("row_of", whole["row_of"] - 1, "got numbers from -1 to 19"),
        ("row_of", whole["row_of"].float(), "a vector of int32, got .* torch.float32"),
        ("row_of", whole["row_of"][:-1], "vocab_size=199 .* as in the arrays, got 200"),
        ("other", whole["row_of"], "expected the arrays initial, transition"),
    ):
        save_file({**whole, name: wrong.clone()}, path)
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)


def test_sizes_are_those_of_the_arrays():
    shared = SharedRows(torch.zeros(3, 5), torch.zeros(7, dtype=torch.int32))
    assert shared.nbytes == 3 * 5 * 4 + 7 * 4
