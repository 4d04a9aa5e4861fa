"""Random log-probabilities and classes, for both forms of the passes over them."""

from __future__ import annotations

import torch

from gcd._tokens.batch import TokenClasses

FORMS = {"compiled": ("cpu",), "tensors": ()}


def case(rows: int, vocabulary: int, classes: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Log-probabilities over hundreds of orders of magnitude, with some impossible tokens."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 30.0, 200.0])[torch.arange(rows) % 3].unsqueeze(1)
    log_p = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale
    nothing = torch.rand(rows, vocabulary, generator=generator) < 0.1
    log_p = log_p.masked_fill(nothing, -torch.inf).log_softmax(dim=1)
    class_of = torch.randint(0, classes, (2, vocabulary), generator=generator, dtype=torch.int32)
    which = torch.randint(0, 2, (rows,), generator=generator)
    alive = torch.rand(rows, classes, generator=generator) < 0.6
    return log_p, class_of, which, alive


def both_ways(class_of: torch.Tensor, classes: int) -> TokenClasses:
    """The classes with the tokens of each class."""
    inside = torch.stack([torch.bincount(row, minlength=classes) for row in class_of])
    start = torch.nn.functional.pad(inside.cumsum(dim=1), (1, 0))
    return TokenClasses(class_of, class_of.argsort(dim=1, stable=True).int(), start)


PRECISION = {torch.float32: 1e-5, torch.float64: 1e-12}
