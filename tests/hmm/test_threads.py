"""Work shared out over threads: all of it is done, once, and torch is left as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hmm.kernels.threads import in_turn


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_every_part_is_done_once(threads: int, count: int) -> None:
    done, seen = [], set()

    def work(number: int) -> None:
        done.append(number)
        seen.add(torch.get_num_threads())

    in_turn(work, count)
    assert sorted(done) == list(range(count))
    assert seen <= {1}, "inside, torch has one thread"
    assert torch.get_num_threads() == threads


def test_an_error_is_passed_on(threads: int) -> None:
    def work(number: int) -> None:
        if number == 7:
            raise ArithmeticError("seven")

    with pytest.raises(ArithmeticError, match="seven"):
        in_turn(work, 20)
    assert torch.get_num_threads() == threads
