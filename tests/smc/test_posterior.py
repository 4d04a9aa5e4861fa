"""The posterior as a distribution over answers, and the marginals of JSON fields."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
import smc.captured
from gcd import Automaton, Vocabulary, lift
from smc import GCD, Bounds, Diagnostics, Posterior, Sample
from smc._results.fields import canonical_json, fields_of
from smc._results.posterior import merge, posterior
from smc.testing import ToyLM, target
from tests.smc.cases import JSON_VOCABULARY
from tests.smc.toys import VOCABULARY, choice
from tests.smc.walks import by_text, outcomes

NOTHING = Diagnostics((), (), (), (), 1, 1, 1, 1.0, 0.0)
WORDS = lift(choice("ab", "b", "ba"), VOCABULARY)


def one(ids: list[int], weight: float, finished: bool = True, p: float = 1.0) -> Sample:
    log = math.log(weight) if weight else -math.inf
    return Sample(tuple(ids), VOCABULARY.decode(ids), log, finished, math.log(p))


def made_for(automaton: gcd.TokenAutomaton, samples: Sequence[Sample], ess: float = 2.0) -> Any:
    logs = {"log_evidence": -1.0 if ess else -math.inf, "ess": ess}
    return posterior(samples, automaton, enumerated=False, diagnostics=NOTHING, **logs)


def make(*samples: Sample) -> Posterior:
    return made_for(WORDS, samples)


def test_answers_are_weighed_and_ordered() -> None:
    p = make(
        one([1, 3], 5, p=0.1),  # b
        one([0, 1, 3], 1, p=0.2),  # a b
        one([0, 1, 3], 1, p=0.2),  # the same tokens
        one([2, 5], 1, p=0.09),  # ab, another spelling with another EOS
        one([1, 0, 3], 2, p=0.28),  # ba
        one([1, 0, 5], 0, False, p=0.9),  # dead
    )
    assert (p.texts, p.answers) == (("b", "ab", "ba"), (b"b", b"ab", b"ba"))
    assert p.probabilities == pytest.approx((0.5, 0.3, 0.2))
    assert (p.complete, p.valid, p.dead, p.exact) == (True, True, False, True)
    assert (p.majority, p.best) == ("b", "ab")  # the best has most of the model's probability
    assert len(p.particles) == 6
    assert p.expectation(len) == pytest.approx(1.5)
    assert make(one([1, 3], 1, p=0.1), one([2, 3], 2, p=0.1)).best == "ab"
    assert make(one([1, 3], 0, False, p=0.4)).best is None
    samples = [one([1, 0, 3], 1), one([2, 3], 1), one([1, 3], 1)]  # ordered by their bytes
    assert make(*samples).texts == make(*reversed(samples)).texts == ("ab", "b", "ba")
    assert not make(one([0, 3], 1)).valid
    assert not make(one([1], 1, finished=False)).complete
    for shift in (-4000.0, 4000.0):
        far = (Sample(tuple(i), VOCABULARY.decode(i), shift, True, 0.0) for i in ([1, 3], [2, 3]))
        assert make(*far).probabilities == (0.5, 0.5)


def test_sampling_follows_the_probabilities_and_repeats() -> None:
    p = make(one([1, 3], 6), one([2, 3], 3), one([1, 0, 3], 1))
    texts = p.sample(4000, seed=1)
    assert texts == p.sample(4000, seed=1)
    assert texts[:10] == p.sample(10, seed=1)
    assert texts != p.sample(4000, seed=2)
    for text, probability in zip(p.texts, p.probabilities, strict=True):
        assert texts.count(text) / 4000 == pytest.approx(probability, abs=0.03)
    assert p.sample(0) == []


def test_bytes_that_are_not_text() -> None:
    vocabulary = Vocabulary.from_bytes([b"\xc3", b"\xa9", b""], [2])
    automaton = lift(Automaton.any_bytes(), vocabulary)
    samples = [
        Sample(ids, vocabulary.decode(ids), log, True, 0.0)
        for ids, log in (((0, 1, 2), 0.0), ((0, 2), -1.0))
    ]
    p = made_for(automaton, samples)
    assert p.texts == ("é", "\ufffd")
    assert p.answers == ("é".encode(), b"\xc3")


# -- marginals of JSON fields against sums over the enumerated posterior ---------------------------


TEXTS = ['{"a":1}', '{"a":1.0}', '{"a":2,"b":[true]}', '{"b":[]}', '{"b":[true],"a":1}']
AUTOMATON = gcd.lift(gcd.choice(TEXTS), JSON_VOCABULARY)
BUDGET = 8
ABSENT = object()


def no_errors(group: Sequence[int], count: int) -> list[float]:
    """Zero errors for known texts."""
    assert all(0 <= number < count for number in group)
    return [0.0] * count


def at(document: Any, pointer: str) -> Any:
    """The value at a pointer, as defined in RFC 6901."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(key) if isinstance(document, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return ABSENT
    return document


def truth(lm: ToyLM, pointer: str) -> dict[Any, float]:
    """P of every value at a pointer, or of its absence, from enumeration."""
    mass: dict[Any, float] = defaultdict(float)
    for ids, p in target(lm, [0], AUTOMATON, BUDGET).items():
        mass[written(JSON_VOCABULARY.decode(ids).decode(), pointer)] += p
    return {value: p / sum(mass.values()) for value, p in mass.items()}


def written(text: str, pointer: str) -> Any:
    """JSON of the value at a pointer, or `ABSENT`."""
    value = at(json.loads(text), pointer)
    return value if value is ABSENT else json.dumps(value, sort_keys=True).replace("1.0", "1")


def shares(field: smc.Field) -> dict[Any, tuple[float, Any]]:
    """Probability and interval of every value at a pointer, and of its absence."""
    found = {
        json.dumps(json.loads(each.value)): (each.probability, each.interval)
        for each in field.values
    }
    return {**found, ABSENT: (field.absent, field.absent_interval)}


def test_the_marginals_of_an_enumerated_posterior() -> None:
    for seed in range(3):
        lm = ToyLM(JSON_VOCABULARY, seed=seed)
        [found] = smc.sample(
            lm, [[0]], AUTOMATON, max_tokens=BUDGET, particles=500, proposal=smc.GCD(),
            algorithm="discrete",
        )  # fmt: skip
        assert found.enumerated
        fields = found.fields()
        assert set(fields) == {"", "/a", "/b", "/b/0"}
        for pointer, field in fields.items():
            expected = truth(lm, pointer)
            for value, (probability, interval) in shares(field).items():
                p = expected.get(value, 0.0)
                assert probability == pytest.approx(p, abs=1e-12)
                assert interval[0] <= p <= interval[1]
                assert interval[1] - interval[0] < 1e-7
            assert set(shares(field)) >= set(expected)
        ordered = [each.probability for each in fields["/a"].values]
        assert ordered == sorted(ordered, reverse=True)
        assert fields["/a"].best.load() in (1, 2)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_the_intervals_hold_in_every_outcome(algorithm: str) -> None:
    texts = ['{"a":1}', '{"a":2}', '{"b":[]}']
    automaton = gcd.lift(gcd.choice(texts), JSON_VOCABULARY)
    lm = ToyLM(JSON_VOCABULARY, seed=3, spread=2.0)
    masses = by_text(target(lm, [0], automaton, 5), JSON_VOCABULARY)
    total = sum(masses.values())
    partial = 0
    given = {"particles": 2, "proposal": smc.GCD(), "algorithm": algorithm}
    for _, found in outcomes(automaton, 5, lm=lm, prompt=[0], **given):
        for pointer, field in found.fields().items():
            for value, (_, (low, high)) in shares(field).items():
                texts = (text for text in masses if written(text.decode(), pointer) == value)
                p = sum(masses[text] for text in texts)
                p /= total
                assert low <= p <= high
                partial += 1e-3 < high - low < 1
    assert partial


SHORT = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | SHORT
    | st.floats(width=16, allow_nan=False, allow_infinity=False),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(SHORT, below, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60)
@given(JSON, st.booleans())
def test_equal_values_are_one_value(value: Any, reverse: bool) -> None:
    """Equal regardless of spacing, order and escapes; the canonical text parses to the value."""
    text = json.dumps(value, indent=1, ensure_ascii=reverse)
    items = list(value.items()) if isinstance(value, dict) else None
    other = json.dumps(dict(reversed(items)) if items else value)
    fields = fields_of([text, other + " "], [0.25, 0.75], no_errors, [-1.0, -2.0], None)
    [whole] = fields[""].values
    assert whole.probability == 1
    assert whole.interval is None
    assert whole.load() == value
    for pointer, field in fields.items():
        assert len(field.values) == 1
        assert field.values[0].load() == at(value, pointer)
        assert field.absent == 0


@given(
    st.integers(-(10**25), 10**25), st.integers(-60, 60), st.sampled_from(["{}e{}", "{}.0E{:+d}"])
)
def test_equal_numbers_are_one_number(digits: int, exponent: int, form: str) -> None:
    text = form.format(digits, exponent)
    [field] = fields_of([text], [1.0], no_errors, [0.0], None).values()
    assert Decimal(field.best.value) == Decimal(text)
    assert canonical_json(Decimal(field.best.value)) == field.best.value
    assert len(field.best.value) < 80


def test_pointers_escape_names() -> None:
    document = {"a/b": {"m~n": [0, {"": 1}]}}
    fields = fields_of([json.dumps(document)], [1.0], no_errors, [0.0], Bounds(0.0, 0.0))
    assert list(fields) == ["", "/a~1b", "/a~1b/m~0n", "/a~1b/m~0n/0", "/a~1b/m~0n/1",
                            "/a~1b/m~0n/1/"]  # fmt: skip
    assert [pointer for pointer, field in fields.items() if field.is_leaf] == [
        "/a~1b/m~0n/0", "/a~1b/m~0n/1/",
    ]  # fmt: skip
    assert fields["/a~1b/m~0n/1/"].absent_interval == pytest.approx((0, 0), abs=1e-8)


def test_a_lone_surrogate_stays_an_escape() -> None:
    [field] = fields_of(['"\\ud800"'], [1.0], no_errors, [0.0], None).values()
    assert field.best.value == '"\\ud800"'


@pytest.mark.parametrize("text", ["yes", "", "NaN", '{"a":-Infinity}', "[" * 100_000, "1 2"])
def test_answers_that_are_not_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected JSON answers, got .*gcd\.json_schema"):
        fields_of(["1", text], [0.5, 0.5], no_errors, [0.0, 0.0], None)


def test_nothing_found() -> None:
    assert fields_of([], [], no_errors, [], Bounds(-math.inf, 0.0)) == {}


def error_of(found: smc.Posterior, inside: list[int]) -> float:
    """Standard error of a set of texts; the largest possible one if the particles agree."""
    spread = found.ancestry.spread(np.array(inside), 2)
    error, p = math.sqrt(spread.probabilities[1]), spread.means[1]
    return error if error > 1e-6 * p else 1 - found.certified


@pytest.mark.parametrize("size", [1, 3, 60])
def test_fields_are_shown_in_short_lines(size: int) -> None:
    texts = [json.dumps({f"n{i}": "x" * 5 * k for i in range(size)}) for k in range(40)]
    found = fields_of(texts, [1 / 40] * 40, no_errors, [-4.0] * 40, Bounds(-1.0, 0.0))
    lines = repr(found).splitlines()
    assert len(lines) == min(size + 1, 21)
    assert all(len(line) < 400 for line in lines)
    assert "'/n0': " in repr(found)
    assert '"" 0.025 [' in repr(found["/n0"])
    assert "37 more" in repr(found["/n0"])
    rare = fields_of(["1", '{"a":2}'], [0.5, 0.5], no_errors, [-1.0, -1.0], None)
    assert repr(rare["/a"]) == "2 0.500, absent 0.500"
    assert found == dict(found)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_errors_of_a_field_are_those_of_the_texts_with_its_values(algorithm: str) -> None:
    lm = ToyLM(JSON_VOCABULARY, seed=3)
    options = {"max_tokens": BUDGET, "particles": 4, "proposal": smc.GCD()}
    (found,) = smc.sample(lm, [[0]], AUTOMATON, algorithm=algorithm, **options)
    for pointer, field in found.fields().items():
        values = [at(json.loads(text), pointer) for text in found.texts]
        for each in field.values:
            inside = [int(value is not ABSENT and value == each.load()) for value in values]
            assert each.error == pytest.approx(error_of(found, inside))
        outside = [int(value is ABSENT) for value in values]
        assert field.absent_error == pytest.approx(error_of(found, outside))


def test_dead_parts_merge_to_a_dead_posterior() -> None:
    dead = made_for(WORDS, [one([0], 0.0)], ess=0.0)
    with np.errstate(all="raise"):
        found = merge([dead, dead], WORDS, 1)
    assert found.dead
    assert found.ess == 0


@pytest.mark.parametrize("call", [smc.sample, smc.captured.sample])
def test_the_former_name_of_max_tokens_warns_the_caller(call: Any) -> None:
    with pytest.warns(DeprecationWarning, match="pass max_tokens=") as caught:
        call(ToyLM(VOCABULARY), [[0]], WORDS, budget=4, particles=2, proposal=GCD())
    assert {each.filename for each in caught} == {__file__}
