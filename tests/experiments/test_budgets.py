"""Budgets by name."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

import gcd
from experiments.config import budget_of, check_budget, multiple_in, part_of

VOCABULARY = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], [256])


def test_names_grow_with_the_shortest_answer():
    short = gcd.lift(gcd.literal("abc"), VOCABULARY)  # 3 bytes and EOS
    long = gcd.lift(gcd.literal("abcdefgh"), VOCABULARY)
    assert [budget_of(name, short) for name in ("tight", "default", "loose")] == [20, 40, 112]
    assert [budget_of(name, long) for name in ("tight", "default", "loose")] == [25, 50, 132]


def test_a_number_is_taken_as_it_is():
    assert budget_of(7, gcd.lift(gcd.literal("abc"), VOCABULARY)) == 7


def test_multiples_of_the_fewest_tokens_and_of_the_right_answer():
    words = gcd.lift(gcd.choice(["a", "abc", "abcab"]), VOCABULARY)
    gold = list(b"abc")
    assert budget_of("fewest:1.5", words) == 3  # "a" and EOS
    assert budget_of("gold:1", words, gold) == len(gold) + 1
    assert budget_of("gold:1.25", words, gold) == -(-5 * (len(gold) + 1) // 4)
    with pytest.raises(
        gcd.ConstraintError, match="gold answer that satisfies the record's constraint"
    ):
        budget_of("gold:1", words, list(b"ab"))
    with pytest.raises(ValueError, match="gold:2, got one without; give fewest:2"):
        budget_of("gold:2", words)


@pytest.mark.parametrize("style", ["json", "", "a, b"])
def test_a_part_of_a_run_shows_its_style_and_multiple(style: str):
    assert multiple_in(part_of(style, "gold:1.25")) == (style, 1.25)
    assert multiple_in(part_of(style, "tight")) is None
    assert multiple_in(style) is None


@pytest.mark.parametrize(
    ("specs", "refused"),
    [
        (["gold:1.0", "gold:2.0", 7, "tight"], None),
        (["fewest:1.5"], None),
        ([], "to be one or several different budgets"),
        (["gold:1", "gold:1.0"], "to be one or several different budgets"),
        ([7, 7], "to be one or several different budgets"),
        (["gold:2.0", "fewest:2.0"], "multiples of either gold or fewest"),
        (["gold:0.5"], "expected a multiple such as"),
    ],
)
def test_lists_of_budgets(specs: list, refused: str | None):
    given = OmegaConf.create(specs)
    if refused is None:
        check_budget("task.budget", given)
    else:
        with pytest.raises(ValueError, match=refused):
            check_budget("task.budget", given)
