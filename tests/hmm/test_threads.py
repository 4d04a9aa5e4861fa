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


@pytest.mark.parametrize("inference", [False, True])
def test_threads_are_in_the_caller_s_mode(threads: int, inference: bool) -> None:
    """Needed by `smc.sample`, which makes its tables in inference mode."""
    with torch.inference_mode(inference):
        matrix, out = torch.eye(3), torch.zeros(40, 3)

        def work(number: int) -> None:
            row = slice(number, number + 1)
            torch.mm(torch.full((1, 3), float(number)), matrix, out=out[row])

        in_turn(work, 40)
    assert torch.equal(out, torch.arange(40.0).unsqueeze(1).expand(40, 3))


def test_an_error_is_passed_on(threads: int) -> None:
    def work(number: int) -> None:
        if number == 7:
            raise ArithmeticError("seven")

    with pytest.raises(ArithmeticError, match="seven"):
        in_turn(work, 20)
    assert torch.get_num_threads() == threads
