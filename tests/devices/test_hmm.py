"""Lookahead tables, inference, distillation and EM give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hmm as models
from gcd import AutomatonBatch, BudgetMask
from hmm import HMM
from tests.devices.device import DEVICE, assert_same
from tests.smc.toys import CONSTRAINTS, VOCABULARY

BUDGETS = [(4,), (6, 2), (3,)]


def random_hmm() -> HMM:
    generator = torch.Generator().manual_seed(7)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    return HMM.random(4, VOCABULARY.size, **options)


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY.size, (6, 9), generator=generator)
    return tokens, torch.tensor([9, 1, 4, 0, 7, 9])


def batch_on(device: Any) -> AutomatonBatch:
    return AutomatonBatch([make() for make in CONSTRAINTS.values()], device=device)


def compare(run: Callable[[Any], Any], *, tolerance: float = 1e-10) -> None:
    """Compare what a function returns for the device with what it returns for the CPU."""
    assert_same(run(DEVICE), run("cpu"), tolerance=tolerance)


def parts(hmm: HMM) -> list[torch.Tensor]:
    return [hmm.initial, *hmm.transition.factors, hmm.emission]


@pytest.mark.parametrize("budgets", [None, BUDGETS], ids=["every budget", "some budgets"])
def test_lookahead_tables(budgets: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    predicted = torch.rand(12, 4, generator=generator, dtype=torch.float64)

    def run(device: Any) -> list[tuple[torch.Tensor, ...]]:
        batch, rows = batch_on(device), torch.arange(12, device=device)
        model = random_hmm().to(device)
        table = models.lookahead_table(model, batch, 5, budgets=budgets, eventual=True)
        given = predicted.to(device), batch.initial[rows % 3], 1 + rows % 3
        tokens = (rows.unsqueeze(1) + torch.arange(3, device=device)) % VOCABULARY.size
        found = []
        for each in (table,) if budgets is not None else (table, table.without_budget):
            found += [
                tuple(models.expect_classes(each, *given)),
                tuple(models.expect_tokens(each, *given, tokens)),
                tuple(models.expect_all_tokens(each, *given)),
            ]
        return found

    compare(run, tolerance=1e-6)


@pytest.mark.parametrize("run", [models.filter_all, models.log_likelihood, models.marginals])
def test_inference(run: Callable[..., Any]) -> None:
    tokens, lengths = sequences()
    compare(lambda device: [run(random_hmm().to(device), tokens.to(device), lengths.to(device))])


def test_a_step_of_the_filter() -> None:
    hmm, first = random_hmm(), sequences()[0][:1, 0]
    compare(
        lambda device: tuple(
            models.filter_step(hmm.to(device), hmm.initial[None].to(device), first.to(device))
        )
    )


def test_em() -> None:
    def run(device: Any) -> list[Any]:
        state = models.Step(random_hmm().to(device))
        given = [tuple(each.to(device) for each in sequences())]
        for _ in range(3):
            state = models.em_step(
                state, given, pseudo_counts=0.1, step_size=0.7, num_sequences=100.0
            )
        return [*parts(state.hmm), round(state.log_likelihood, 9)]

    compare(run)


def test_distilled_from_hidden_states() -> None:
    pytest.importorskip("faiss")
    tokens, lengths = sequences()
    vectors = torch.randn(int(lengths.sum()), 5, generator=torch.Generator().manual_seed(2))

    def run(device: Any) -> list[torch.Tensor]:
        given = (each.to(device) for each in (vectors, tokens, lengths))
        return parts(models.distilled(*given, 4, VOCABULARY.size, eos_ids=(3, 5)))

    compare(run, tolerance=1e-6)


def test_saved_here_and_loaded_there(tmp_path: Path) -> None:
    models.save(random_hmm().to(DEVICE), tmp_path, config={"eos_token_id": [3, 5]})
    compare(lambda device: parts(models.load(tmp_path).hmm.to(device)))


def test_masks_of_the_budget() -> None:
    def run(device: Any) -> list[torch.Tensor]:
        batch = batch_on(device)
        mask = BudgetMask(batch, torch.tensor([4, 6, 3], device=device))
        states = torch.arange(batch.num_states, device=device)
        return [mask.mask(states, 1 + states % 4), batch.next(states, states % VOCABULARY.size)]

    compare(run)
