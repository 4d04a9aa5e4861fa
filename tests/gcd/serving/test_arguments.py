"""Arguments from engines: all kinds of whole numbers and mask arrays, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import gcd
from gcd._arguments import whole_number, whole_numbers
from gcd._tokens.vocabulary import num_words

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

SIZE = 500
VOCABULARY = gcd.Vocabulary.from_bytes([bytes([i]) for i in range(256)], [300], size=SIZE)
AUTOMATON = gcd.lift(gcd.regex("[ab]{0,40}"), VOCABULARY)
A, WIDTH = ord("a"), num_words(SIZE)

SCALARS: list[Any] = [
    *(kind(A) for kind in (int, np.int64, np.int32, np.uint8, np.uint64)),
    np.array(A),
    torch.tensor(A),
    torch.tensor(A, dtype=torch.uint8),
]
NOT_WHOLE: list[Any] = [
    *(97.0, 97.5, float("nan"), True, "a", b"a", None, 97j, Fraction(97)),
    *(np.float32(97), np.bool_(True), np.array(97.0), torch.tensor(97.0), torch.tensor(True)),
    *(torch.tensor(97, dtype=torch.bfloat16), torch.tensor(97, device="meta")),
]
SEQUENCES: list[Callable[[list[int]], Any]] = [
    *(list, tuple, np.array, torch.tensor),
    *(lambda ids, kind=kind: np.array(ids, kind) for kind in (np.int32, np.uint16, ">i8")),
    lambda ids: np.repeat(np.array(ids), 2)[::2],  # not contiguous
    lambda ids: torch.tensor(ids).repeat_interleave(2)[::2],
    lambda ids: np.frombuffer(np.array(ids).tobytes(), np.int64),  # read-only
    lambda ids: [np.int32(token) for token in ids],
]
# A scalar that is refused, and a sequence.
REFUSED: list[tuple[Any, Any]] = [(wrong, [A, wrong, A]) for wrong in NOT_WHOLE]
REFUSED += [
    (97.5, wrong)
    for wrong in (
        *([A, 2**63, A], [A, 2**70, A], np.full(3, 97.5), np.ones(3, np.bool_), "aaa"),
        *(torch.full((3,), 97.0), torch.ones(3, dtype=torch.bool)),
        torch.full((3,), A, device="meta"),
    )
]


def _matcher() -> gcd.Matcher:
    matcher = gcd.Matcher(AUTOMATON, budget=30)
    for _ in range(5):
        assert matcher.advance(A)
    return matcher


def _standing(matcher: gcd.Matcher) -> tuple[Any, ...]:
    return matcher.state, matcher.num_tokens, matcher.remaining, matcher.mask().tolist()


@pytest.mark.parametrize("token", SCALARS, ids=lambda one: f"{type(one).__name__} {one!r}")
def test_whole_numbers_of_any_kind_are_one_number(token: Any) -> None:
    assert type(whole_number(token)) is int
    assert whole_number(token) == A
    matcher = _matcher()
    assert matcher.advance(token)
    count = type(token)(2) if not isinstance(token, np.ndarray | torch.Tensor) else token - A + 2
    matcher.rollback(count)
    assert matcher.num_tokens == 4
    assert matcher.forced(token) == []


@pytest.mark.parametrize("make", SEQUENCES)
def test_sequences_of_any_kind_are_as_lists(make: Callable[[list[int]], Any]) -> None:
    ids = [A, A + 1, A]
    assert whole_numbers(make(ids)).tolist() == ids
    matcher, same = _matcher(), _matcher()
    ours, theirs = np.empty((2, 4, WIDTH), np.int32)
    assert matcher.validate(make([*ids, 99])) == same.validate([*ids, 99]) == 3
    assert matcher.fill_draft_masks(make(ids), ours) == same.fill_draft_masks(ids, theirs) == 3
    assert (ours == theirs).all()
    batch = gcd.MatcherBatch([_matcher() for _ in ids])
    assert batch.advance(make(ids)).tolist() == [True, True, True]
    batch.rollback(make([1, 2, 3]))
    assert [one.num_tokens for one in batch.matchers] == [5, 4, 3]
    assert whole_numbers(make(ids[:0]) if make is not SEQUENCES[4] else []).tolist() == []


@pytest.mark.parametrize(("scalar", "sequence"), REFUSED, ids=repr)
def test_what_is_not_a_whole_number_is_refused_without_effect(scalar: Any, sequence: Any) -> None:
    matcher = _matcher()
    batch = gcd.MatcherBatch([_matcher() for _ in range(3)])
    before = [_standing(one) for one in (matcher, *batch.matchers)]
    out = np.full((4, WIDTH), 7, np.int32)
    scalars: list[Callable[[Any], object]] = [
        *(matcher.advance, matcher.rollback, matcher.forced, matcher.finish_within),
        *(lambda given: AUTOMATON.step(0, given), lambda given: AUTOMATON.step(given, 0)),
    ]
    sequences: list[Callable[[Any], object]] = [
        *(matcher.validate, batch.advance, batch.rollback),
        lambda tokens: matcher.fill_draft_masks(tokens, out),
    ]
    says = r"whole number, got|64-bit|on the CPU|numpy supports"
    for given, calls in ((scalar, scalars), (sequence, sequences)):
        for call in calls:
            with pytest.raises(ValueError, match=says):
                call(given)
    assert [_standing(one) for one in (matcher, *batch.matchers)] == before
    assert (out == 7).all()


# -- rows -----------------------------------------------------------------------------------


def test_masks_are_written_where_a_tensor_lies() -> None:
    matcher = _matcher()
    rows = torch.zeros(4, WIDTH, dtype=torch.int32)
    matcher.fill_mask(rows[0])
    gcd.MatcherBatch([_matcher() for _ in range(3)]).fill_masks(rows[1:])
    assert rows.tolist() == [matcher.mask().tolist()] * 4
    same = np.zeros((4, WIDTH), np.int32)
    draft = torch.tensor([A, A, A])
    assert matcher.fill_draft_masks(draft, rows) == matcher.fill_draft_masks(draft, same) == 3
    assert rows.tolist() == same.tolist()


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (torch.zeros(WIDTH), "contiguous int32 .* got float32"),
        (torch.zeros(WIDTH, dtype=torch.int64), "contiguous int32 .* got int64"),
        (torch.zeros(WIDTH, dtype=torch.bfloat16), "torch.bfloat16 .* torch.int32"),
        (torch.zeros(WIDTH, dtype=torch.int32, device="meta"), "on the CPU, got one on meta"),
        (np.zeros(WIDTH + 1, np.int32), r"of shape \(16,\) for masks, got .* of shape \(17,\)"),
        (torch.zeros(2, WIDTH, dtype=torch.int32), r"got int32 of shape \(2, 16\)"),
        (np.zeros(WIDTH, np.uint32), "contiguous int32 .* got uint32"),
        (torch.zeros(2 * WIDTH, dtype=torch.int32)[::2], "not contiguous"),
        (torch.zeros(WIDTH, dtype=torch.int32).to_sparse(), "a type that numpy supports"),
        (np.frombuffer(bytes(4 * WIDTH), np.int32), "read-only"),
        (np.zeros(WIDTH, ">i4"), "contiguous int32 .* got >i4"),
        ([0] * WIDTH, "an int32 array or CPU tensor of shape .* got list"),
        (None, "got NoneType"),
    ],
)
def test_other_rows_are_refused_by_name(out: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _matcher().fill_mask(out)
    with pytest.raises(ValueError):
        _matcher().fill_draft_masks([A, A], out)
    with pytest.raises(ValueError):
        gcd.MatcherBatch([_matcher()]).fill_masks(out)
