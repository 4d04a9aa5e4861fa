"""Work distributed over threads: each part runs once, and torch's settings don't change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hmm._threads import in_turn


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "inference"), [(0, False), (1, True), (3, False), (100, True)])
def test_every_part_is_done_once_in_the_callers_mode(
    threads: int, count: int, inference: bool
) -> None:
    """`smc.sample` makes its tables in inference mode, where only such threads may write."""
    done, seen = [], set()
    with torch.inference_mode(inference):
        matrix, out = torch.eye(3), torch.zeros(count, 3)

        def work(number: int) -> None:
            done.append(number)
            seen.add(torch.get_num_threads())
            torch.mm(torch.full((1, 3), float(number)), matrix, out=out[number : number + 1])

        in_turn(work, count)
    assert sorted(done) == list(range(count))
    assert torch.equal(out, torch.arange(float(count)).unsqueeze(1).expand(count, 3))
    assert seen <= {1}, "inside, torch has one thread"
    assert torch.get_num_threads() == threads


def test_an_error_is_passed_on(threads: int) -> None:
    def work(number: int) -> None:
        if number == 7:
            raise ArithmeticError("seven")

    with pytest.raises(ArithmeticError, match="seven"):
        in_turn(work, 20)
    assert torch.get_num_threads() == threads
