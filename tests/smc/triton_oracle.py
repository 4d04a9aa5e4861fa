"""The part of tests/smc/test_tying.py that runs in a process with Triton's interpreter."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch

from smc._models.kernels.triton_rows import move_rows
from smc._vocabulary import triton
from smc._vocabulary.passes import VocabularyPass, best
from tests.smc import passes as cases

TRITON = VocabularyPass(triton.prepare_draws, best)


def main() -> None:
    # With and without token-specific factors, one in each precision: a comparison takes seconds.
    for name, dtype in (("gcd", torch.float64), ("pgcd", torch.float32)):
        cases.compare(TRITON, name, dtype, draws=1)
        print(name, "agrees")
    cases.compare_selection(TRITON, torch.float32, N=2)
    print("candidates agree")
    piece = torch.randn(3, 4, 2, 9, 5)
    source = torch.tensor([0, 0, 2, 2])
    expected = piece.clone()
    expected[:, :, :, 4:] = piece[:, source][:, :, :, 4:]
    move_rows(piece, source, 4)
    assert torch.equal(piece, expected)
    print("rows agree")


if __name__ == "__main__":
    main()
