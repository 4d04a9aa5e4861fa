"""Lookahead tables, inference, distillation and EM give what they give on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hmm as models
from gcd import AutomatonBatch, BudgetMask
from hmm import HMM
from tests.devices.device import DEVICE, assert_same, there
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


@pytest.mark.parametrize("budgets", [None, BUDGETS], ids=["every budget", "some budgets"])
def test_lookahead_tables(budgets: Any) -> None:
    hmm, rows = random_hmm(), torch.arange(12)
    generator = torch.Generator().manual_seed(1)
    predicted = torch.rand(12, 4, generator=generator, dtype=torch.float64)
    results = []
    for device in ("cpu", DEVICE):
        batch = batch_on(device)
        model = hmm.to(device)
        table = models.lookahead_table(model, batch, 5, budgets=budgets, eventual=True)
        given = predicted.to(device), batch.initial[rows.to(device) % 3], 1 + rows.to(device) % 3
        tokens = (rows.unsqueeze(1) + torch.arange(3)).to(device) % VOCABULARY.size
        tables = (table,) if budgets is not None else (table, table.without_budget)
        results.append(
            [
                found
                for each in tables
                for found in (
                    tuple(models.expect_classes(each, *given)),
                    tuple(models.expect_tokens(each, *given, tokens)),
                    tuple(models.expect_all_tokens(each, *given)),
                )
            ]
        )
    assert_same(results[1], results[0], tolerance=1e-6)


def test_inference() -> None:
    hmm, (tokens, lengths) = random_hmm(), sequences()
    for run in (models.filter_all, models.log_likelihood, models.marginals):
        found = run(hmm.to(DEVICE), *there((tokens, lengths)))
        assert_same([found], [run(hmm, tokens, lengths)])
    assert_same(
        tuple(models.filter_step(hmm.to(DEVICE), there(hmm.initial[None]), there(tokens[:1, 0]))),
        tuple(models.filter_step(hmm, hmm.initial[None], tokens[:1, 0])),
    )


def test_em() -> None:
    first, batch = random_hmm(), sequences()
    ends = []
    for device in (DEVICE, "cpu"):
        state = models.Step(first.to(device))
        for _ in range(3):
            given = [tuple(each.to(device) for each in batch)]
            state = models.em_step(
                state, given, pseudo_counts=0.1, step_size=0.7, num_sequences=100.0
            )
        ends.append(state)
    found, expected = ends
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, abs=1e-10)
    for one, other in zip(parts(found.hmm), parts(expected.hmm), strict=True):
        assert_same([one], [other])


def parts(hmm: HMM) -> list[torch.Tensor]:
    return [hmm.initial, *hmm.transition.factors, hmm.emission]


def test_distilled_from_hidden_states() -> None:
    pytest.importorskip("faiss")
    tokens, lengths = sequences()
    vectors = torch.randn(int(lengths.sum()), 5, generator=torch.Generator().manual_seed(2))
    made = [
        models.distilled(
            *(each.to(device) for each in (vectors, tokens, lengths)), 4, VOCABULARY.size,
            eos_ids=(3, 5),
        )
        for device in (DEVICE, "cpu")
    ]  # fmt: skip
    for one, other in zip(parts(made[0]), parts(made[1]), strict=True):
        assert_same([one], [other], tolerance=1e-6)


def test_saved_here_and_loaded_there(tmp_path: Path) -> None:
    hmm = random_hmm()
    models.save(hmm.to(DEVICE), tmp_path, config={"eos_token_id": [3, 5]})
    found, expected = (models.load(tmp_path).hmm.to(device) for device in (DEVICE, "cpu"))
    for one, other in zip(parts(found), parts(expected), strict=True):
        assert_same([one], [other])


def test_masks_of_the_budget() -> None:
    results = []
    for device in (DEVICE, "cpu"):
        batch = batch_on(device)
        mask = BudgetMask(batch, torch.tensor([4, 6, 3], device=device))
        states = torch.arange(batch.num_states, device=device)
        tokens = states % VOCABULARY.size
        results.append([mask.mask(states, 1 + states % 4), batch.next(states, tokens)])
    assert_same(*results)
