"""Probabilities of labels and of joint fields against plain enumeration."""

from __future__ import annotations

import enum
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import Vocabulary, lift
from smc._search.distributions import longest_answer
from smc.testing import ToyLM, target
from tests.smc.cases import JSON_VOCABULARY
from tests.smc.toys import VOCABULARY, choice, stories
from tests.smc.walks import HMMAsLM, never

PROMPT = (0, 1)
OPTIONS = ("b", "ab", "a", "abba", "")


def truth(lm: ToyLM, prompt: Any, options: Sequence[str]) -> tuple[list[float], float]:
    """Return P of each option and the evidence, summed over all spellings."""
    automaton = lift(choice(*options), VOCABULARY)
    mass: dict[bytes, float] = defaultdict(float)
    for ids, p in target(lm, prompt, automaton, longest_answer(automaton) or 1).items():
        mass[VOCABULARY.decode(ids)] += p
    evidence = sum(mass.values())
    return [mass[option.encode()] / evidence for option in options], evidence


def test_options_have_the_probabilities_of_their_texts() -> None:
    """Options keep their order; one may begin another, or be empty."""
    for seed in range(4):
        lm = ToyLM(VOCABULARY, seed=seed, spread=2.0)
        shares, evidence = truth(lm, PROMPT, OPTIONS)
        [found] = smc.choose(lm, [PROMPT], OPTIONS, certify=1)
        assert found.options == OPTIONS
        assert found.probabilities == pytest.approx(shares)
        assert found.log_evidence == pytest.approx(math.log(evidence))
        assert found.best == OPTIONS[shares.index(max(shares))]
        assert found.enumerated
        [reverse] = smc.choose(lm, [PROMPT], OPTIONS[::-1], certify=1)
        assert reverse.probabilities == pytest.approx(shares[::-1])


@settings(max_examples=60)
@given(st.integers(0, 9), st.sampled_from([0.2, 0.8, 0.999]), st.integers(1, 12), st.integers(1, 4))
def test_intervals_hold(seed: int, certify: float, most: int, orders: int) -> None:
    lm = ToyLM(VOCABULARY, seed=seed, spread=2.0)
    [found] = smc.choose(lm, [written], OPTIONS, certify=certify, max_prefixes=most, orders=orders)
    each = [truth(lm, written(order), OPTIONS) for order in expected_orders(OPTIONS, orders)]
    for place in range(len(OPTIONS)):
        low, high = found.intervals[place]
        assert low <= fmean(shares[place] for shares, _ in each) <= high
    assert found.log_evidence <= math.log(fmean(evidence for _, evidence in each)) + 1e-9
    assert found.certified >= certify or most < 12
    assert sum(found.probabilities) in (0, pytest.approx(1))


def written(options: Sequence[str]) -> tuple[int, ...]:
    """Build a prompt that lists the options in order."""
    return tuple(i for option in options for i in (*VOCABULARY_IDS[option], 4))


VOCABULARY_IDS = {option: tuple(" ab".index(c) - 1 for c in option) for option in OPTIONS}


def expected_orders(options: Sequence[str], count: int) -> list[list[str]]:
    n, pairs = len(options), (count + 1) // 2
    orders = []
    for place in range(pairs):
        turn = place * n // pairs
        rotated = [*options[turn:], *options[:turn]]
        orders += [rotated, rotated[::-1]]
    return orders[:count]


def test_orders_are_averaged() -> None:
    lm = ToyLM(VOCABULARY, seed=1, spread=2.0)
    for orders in (1, 2, 3, 10):
        seen: list[tuple[str, ...]] = []

        def prompt(options: Sequence[str], seen: list[tuple[str, ...]] = seen) -> tuple[int, ...]:
            seen.append(tuple(options))
            return written(options)

        [found] = smc.choose(lm, [prompt], OPTIONS, certify=1, orders=orders)
        assert len(seen) == len(set(seen)) == orders
        assert [list(order) for order in seen] == expected_orders(OPTIONS, orders)
        each = [truth(lm, written(order), OPTIONS) for order in seen]
        assert found.probabilities == pytest.approx(
            [fmean(column) for column in zip(*(shares for shares, _ in each), strict=True)]
        )
        assert found.log_evidence == pytest.approx(math.log(fmean(p for _, p in each)))


def test_two_orders_or_all_make_reversing_harmless() -> None:
    lm = ToyLM(VOCABULARY, seed=6, spread=2.0)
    for orders, same in ((1, False), (2, True), (10, True)):
        [found] = smc.choose(lm, [written], OPTIONS, orders=orders, certify=1)
        [reverse] = smc.choose(lm, [written], OPTIONS[::-1], orders=orders, certify=1)
        assert (found.probabilities == pytest.approx(reverse.probabilities[::-1])) == same


def test_prompts_with_different_options() -> None:
    lm = ToyLM(VOCABULARY, seed=2)
    options = [("a", "b"), ("b", "a"), ("abba",)]
    prompts = [(0,), (0,), (1, 2)]
    found = smc.choose(lm, prompts, options, certify=1)
    for each, prompt, texts in zip(found, prompts, options, strict=True):
        assert each.options == texts
        assert each.probabilities == pytest.approx(truth(lm, prompt, texts)[0])
    assert found[2].probabilities == (1,)
    assert found[0].probabilities == pytest.approx(found[1].probabilities[::-1])
    same = smc.choose(lm, prompts, ["a", "b"], certify=1)
    assert same[0] == found[0]


def test_options_that_a_model_never_gives() -> None:
    lm = HMMAsLM(VOCABULARY, never([1, 2]))  # neither b nor ab
    [found] = smc.choose(lm, [(0,)], ["b", "ab"])
    assert (found.probabilities, found.best) == ((0, 0), None)
    assert found.log_evidence == -math.inf
    assert found.enumerated
    [found] = smc.choose(lm, [(0,)], ["b", "aa"])
    assert (found.best, found.probabilities) == ("aa", (0, 1))
    assert found.intervals[0] == pytest.approx((0, 0), abs=1e-8)


def test_an_option_that_was_not_found() -> None:
    """One prefix isn't enough for any option, so each interval reaches one."""
    lm = ToyLM(VOCABULARY, seed=2)
    [found] = smc.choose(lm, [PROMPT], ["abab", "baba"], max_prefixes=1)
    assert found.best is None
    assert found.intervals == ((0, 1), (0, 1))


def test_canonical_spelling() -> None:
    """Only the tokenizer's spelling counts, although options have other tokenizations."""
    lm = stories()
    texts, prompt = [" park", " parking", " zoo", " \u00fcber"], "One day, Tom went to the"
    [found] = smc.choose(lm, [prompt], texts, spellings="canonical", certify=1)
    segmentation = lm.vocabulary.segmentation
    assert segmentation is not None
    ids, masses = lm.encode(prompt), []
    for text in texts:
        spelled = segmentation.encode(text)
        log_p = [
            lm.prefill([[*ids, *spelled[:t]]])[1][0, token].item()
            for t, token in enumerate(spelled)
        ]
        last = lm.prefill([[*ids, *spelled]])[1][0, list(lm.vocabulary.eos_ids)]
        masses.append(math.exp(sum(log_p) + float(last.logsumexp(dim=0))))
    assert found.log_evidence == pytest.approx(math.log(sum(masses)), abs=1e-6)
    assert found.probabilities == pytest.approx([p / sum(masses) for p in masses])

    # Most prefixes are not computed, but canonical spellings come first, so none is missing.
    fields = {"positive": bool, "topic": ["food", "staff"]}
    joint = smc.joint(lm, prompt, fields, max_prefixes=200)
    assert not joint.enumerated
    assert len(joint.texts) == 4
    assert joint.diagnostics.lm_calls < 50


# -- joint ---------------------------------------------------------------------------------------


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("a", "b", "values"),
    [
        (range(1, 3), bool, ([1, 2], [False, True])),
        (Grade, Literal["a", "b"], ([1, 2], ["a", "b"])),
        ([1, True], ["b", 2], ([1, True], ["b", 2])),
    ],
)
def test_a_joint_posterior(a: Any, b: Any, values: tuple[list[Any], list[Any]]) -> None:
    tokens = [*JSON_VOCABULARY.token_bytes[:-1], b"false", b"fal", b"se", b""]
    vocabulary = Vocabulary.from_bytes(tokens, [len(tokens) - 1])
    lm = ToyLM(vocabulary, seed=4)
    found = smc.joint(lm, [0], {"a": a, "b": b}, certify=1, max_prefixes=50_000)
    assert found.enumerated
    pairs = {json.dumps({"a": x, "b": y}, separators=(",", ":")) for x in values[0]
             for y in values[1]}  # fmt: skip
    assert set(found.texts) == pairs
    automaton = gcd.lift(gcd.choice(pairs), vocabulary)
    mass: dict[str, float] = defaultdict(float)
    for ids, p in target(lm, [0], automaton, longest_answer(automaton) or 1).items():
        mass[vocabulary.decode(ids).decode()] += p
    evidence = sum(mass.values())
    assert found.log_evidence == pytest.approx(math.log(evidence))
    assert dict(zip(found.texts, found.probabilities, strict=True)) == pytest.approx(
        {text: p / evidence for text, p in mass.items()}
    )
    for name in ("a", "b"):
        field = found.fields()[f"/{name}"]
        assert field.absent == 0
        for each in field.values:
            p = sum(p for text, p in mass.items() if json.loads(text)[name] == each.load()
                    and type(json.loads(text)[name]) is type(each.load()))  # fmt: skip
            assert each.probability == pytest.approx(p / evidence)


# -- bad input -----------------------------------------------------------------------------------
