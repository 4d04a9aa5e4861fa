"""Reading ahead changes the number of passes, but no answer and no weight, for any guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import smc
import smc._forward.reader
from gcd import Automaton, Vocabulary, lift, regex
from smc._forward import read_ahead
from smc._forward.read_ahead import MOST_PLACES, find_source, look_up
from smc.testing import ToyLM
from tests.smc.calls import sample_with
from tests.smc.cases import FILTER, FORCED, LANGUAGES, PROPOSALS, Anything
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, stories, tiny_model
from tests.smc.walks import TOY


class Told:
    """Guesses that know the answers and are always right."""

    def __init__(self, *answers: Sequence[int]) -> None:
        self._answers = answers

    def __call__(self, text: bytes, vocabulary: Vocabulary) -> list[int]:
        """Continue like the answers, for any prompt."""
        pieces = vocabulary.token_bytes
        return [
            answer[i]
            for answer in self._answers
            for i in range(len(answer))
            if i == 0 or text.endswith(b"".join(pieces[t] or b"" for t in answer[:i]))
        ][::-1]


def sampled(lm: Any, *given: Any, guesses: Any = None, **options: Any) -> Any:
    """Sample, with these guesses in place of prompt lookup."""
    with pytest.MonkeyPatch.context() as patch:
        if guesses is not None:
            patch.setattr(read_ahead, "look_up", guesses)
        return sample_with(lm, *given, **{"algorithm": "smc", **options})


class CountingRows:
    """Rows that count their passes."""

    def __init__(self, lm: CountingLM, rows: Any) -> None:
        self._lm = lm
        self._rows = rows

    def extend(self, runs: Tensor, lengths: Tensor) -> Tensor:
        """Extend rows."""
        self._lm.passes += 1
        self._lm.tokens += int(lengths.sum())
        return self._rows.extend(runs, lengths)

    def reorder(self, ancestors: Tensor) -> None:
        """Reorder rows."""
        self._rows.reorder(ancestors)

    def truncate(self, lengths: Tensor) -> None:
        """Truncate rows."""
        self._rows.truncate(lengths)


class CountingLM(ToyLM):
    """A model that counts passes and their tokens."""

    passes = tokens = 0

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Compute prompts."""
        rows, log_p = super().prefill(prompts)
        return CountingRows(self, rows), log_p


def assert_same(
    lm: Any, *given: Any, ahead: Any, tolerance: float = 1e-9, expected: Any = None, **options: Any
) -> Any:
    """Sample with and without reading ahead; return the result with it."""
    found = sampled(lm, *given, **ahead, **options)
    expected = expected or sample_with(lm, *given, read_ahead=0, **{"algorithm": "smc", **options})
    for one, other in zip(found, expected, strict=True):
        assert [s.ids for s in one.particles] == [s.ids for s in other.particles]
        assert [s.finished for s in one.particles] == [s.finished for s in other.particles]
        for name in ("log_weight", "log_p"):
            values = [getattr(s, name) for s in other.particles]
            found_values = [getattr(s, name) for s in one.particles]
            assert found_values == pytest.approx(values, abs=tolerance)
        assert one.enumerated == other.enumerated
        if other.log_evidence is not None:
            assert one.log_evidence == pytest.approx(other.log_evidence, abs=tolerance)
        for name in ("running", "alive", "resampled", "fallbacks", "forced", "generated"):
            assert getattr(one.diagnostics, name) == getattr(other.diagnostics, name), name
        assert one.diagnostics.ess == pytest.approx(other.diagnostics.ess, abs=1e-6)
        read = one.diagnostics.tokens - one.diagnostics.drafted + one.diagnostics.used
        assert read == other.diagnostics.tokens
        assert one.diagnostics.lm_calls <= other.diagnostics.lm_calls
        assert one.diagnostics.landed <= one.diagnostics.used <= one.diagnostics.drafted
        if options["particles"] == 1:  # a choice that matches its draft saves a pass
            saved = other.diagnostics.lm_calls - one.diagnostics.lm_calls
            assert one.diagnostics.landed == saved
    return found


def examples() -> dict[str, Any]:
    names = ("few_words", "a_star_b", "forced", "a_star_b", "few_words")
    return {
        "prompts": [[0], [1, 2], [2, 2, 1], [0, 0], [1, 1, 1]],
        "constraint": [CONSTRAINTS[each]() for each in names],
        "max_tokens": [4, 6, 3, 8, 5],
        "example_ids": [3, 9, 0, 4, 1],
    }


def one_by_one() -> list[dict[str, Any]]:
    """The examples as calls with one example each, whose passes may have drafts."""
    given = examples()
    return [{name: [each[i]] for name, each in given.items()} for i in range(5)]


GUESSES: dict[str, Callable[[], Any]] = {
    "lookup": lambda: lambda text, tokens: look_up(text[-1:] * 3 + text[-3:], tokens),
    "anything": Anything,
    "told": lambda: Told([0, 0, 0, 0, 0, 0, 1], [2], [1, 1, 1]),
}


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_particles_are_the_same(proposal: str) -> None:
    used, wasted = dict.fromkeys(GUESSES, 0), dict.fromkeys(GUESSES, 0)
    # Half of the rows for each proposal: single particles as well as groups. Without a mask few
    # guesses are right.
    rows = [*[(1, 6)] * 4, (1, 1), (2, 2), (5, 3), (3, 20)]
    first, step = (0, 1) if proposal == "lm" else ([*PROPOSALS].index(proposal) % 2, 2)
    for seed in range(first, len(rows), step):
        particles, ahead = rows[seed]
        options: dict[str, Any] = {
            "particles": particles, "seed": seed, "forced_runs": bool(seed % 3),
            "strata": ("none", "state")[seed % 2], "ess_threshold": (0.5, 1.0)[seed % 2],
            "temperature": (1.0, 0.6)[seed % 2],
        }  # fmt: skip
        lm = CountingLM(VOCABULARY, seed=seed, spread=1.5)
        for some in one_by_one()[seed // 2 % step :: step] if particles == 1 else [examples()]:
            given = {**options, **some}
            expected = sampled(lm, proposal=PROPOSALS[proposal](), read_ahead=0, **given)
            for name, guesses in GUESSES.items():
                found = assert_same(
                    lm, proposal=PROPOSALS[proposal](), expected=expected,
                    ahead={"read_ahead": ahead, "guesses": guesses()}, **given,
                )  # fmt: skip
                used[name] += sum(each.diagnostics.used for each in found)
                wasted[name] += sum(e.diagnostics.drafted - e.diagnostics.used for e in found)
    assert used["anything"] + used["told"] > 0
    assert wasted["anything"] + wasted["told"] > 0


@pytest.mark.parametrize("guesses", ["anything", "told"])
@pytest.mark.parametrize("options", FILTER)
def test_answers_of_the_filter_are_the_same(options: str, guesses: str) -> None:
    used, offset = 0, [*FILTER].index(options) + [*GUESSES].index(guesses)
    for seed, (particles, ahead) in enumerate([(1, 1), (1, 6), (2, 2), (4, 3)]):
        # Options, guesses and proposals are independent: all pairs of them occur.
        proposal = ("gcd", "pgcd", "lm")[(seed + offset) % 3]
        for some in one_by_one()[seed % 2 :: 2]:
            found = assert_same(
                TOY, **some, proposal=PROPOSALS[proposal](), particles=particles, seed=seed,
                ahead={"read_ahead": ahead, "guesses": GUESSES[guesses]()},
                algorithm="discrete", forced_runs=bool(seed % 2), **FILTER[options],
            )  # fmt: skip
            used += sum(each.diagnostics.used for each in found)
    assert used > 0


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_same_through_forced_runs(language: str, algorithm: str) -> None:
    """A draft continues through forced runs, up to the end of a text."""
    automaton, used = lift(LANGUAGES[language](), FORCED), 0
    for seed in range(4):
        # Each seed with two of the three prompts, and with every number of particles.
        for prompt, budget in ([([0, 1], 6), ([2], 7), ([3, 3], 8)] * 2)[seed % 3 :][:2]:
            found = assert_same(
                ToyLM(FORCED, seed=seed, spread=1.5), [prompt], automaton,
                max_tokens=budget, particles=1 + seed % 3, proposal=smc.GCD(), seed=seed,
                algorithm=algorithm, ahead={"read_ahead": 1 + 2 * seed, "guesses": Anything(seed)},
            )  # fmt: skip
            used += sum(each.diagnostics.used for each in found)
    assert (used > 0) == (language not in ("forced_last", "all_forced"))


@settings(max_examples=25)
@given(
    st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(0, 1 << 30),
)
def test_on_random_languages(words: list[str], ahead: int, particles: int, seed: int) -> None:
    language = choice(*words) + Automaton.literal("a").star()
    automaton = lift(language, VOCABULARY)
    assert_same(
        ToyLM(VOCABULARY, seed=seed, spread=2.0), [[0, 1, 1]], automaton,
        max_tokens=automaton.fewest_tokens + 3, particles=particles, proposal=smc.GCD(), seed=seed,
        ahead={"read_ahead": ahead, "guesses": Anything(seed)},
    )  # fmt: skip


def test_a_right_guess_saves_every_pass_but_one() -> None:
    automaton = lift(regex("[ab]{8}"), VOCABULARY)
    lm = CountingLM(VOCABULARY, seed=2)
    options: dict[str, Any] = {"max_tokens": 12, "particles": 1, "proposal": smc.GCD(), "seed": 4}
    (alone,) = sampled(lm, [[1]], automaton, **options)
    (answer,) = alone.particles
    assert len(answer.ids) > 4
    slow, lm.passes = lm.passes, 0
    (found,) = sampled(lm, [[1]], automaton, **options, read_ahead=20, guesses=Told(answer.ids))
    assert slow == alone.diagnostics.lm_calls - 1 > 3
    assert (lm.passes, found.diagnostics.lm_calls) == (1, 2)
    assert found.particles == alone.particles


@pytest.mark.parametrize("most_read", [1, 3 * VOCABULARY.size])
def test_long_runs_are_read_in_parts(most_read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smc._forward.reader, "MOST_READ", most_read)
    assert_same(
        TOY, **one_by_one()[1], proposal=smc.GCD(), particles=3,
        ahead={"read_ahead": 5, "guesses": Anything()},
    )  # fmt: skip


class PartlyNaN(ToyLM):
    """A model that returns NaN after texts that begin with two b."""

    def log_p(self, tokens: tuple[int, ...]) -> Tensor:
        """Return log p(next | tokens)."""
        found = super().log_p(tokens)
        return torch.full_like(found, torch.nan) if tokens[1:3] == (1, 1) else found


def test_nan_matters_where_somebody_lands_on_it() -> None:
    automaton = lift(choice("aaa", "aab", "bbb", "bba"), VOCABULARY)
    lm, seen = PartlyNaN(VOCABULARY, seed=1), set()
    for seed in range(12):
        outcomes = []
        for ahead in (0, 3):
            try:
                (found,) = sampled(
                    lm, [[0]], automaton, max_tokens=5, particles=1, proposal=smc.GCD(), seed=seed,
                    read_ahead=ahead, guesses=Told([1, 1, 1]),
                )  # fmt: skip
                outcomes.append([s.ids for s in found.particles])
            except FloatingPointError:
                outcomes.append("refused")
        assert outcomes[0] == outcomes[1]
        seen.add(str(outcomes[0] == "refused"))
    assert seen == {"True", "False"}


def test_an_observer_sees_the_same_as_without() -> None:
    seen: list[list[Any]] = []
    for ahead in (0, 3):
        steps: list[Any] = []
        sampled(
            TOY, **one_by_one()[1], proposal=smc.GCD(), particles=3, read_ahead=ahead,
            guesses=Anything(), observe=lambda _, steps=steps: steps.append,
        )  # fmt: skip
        seen.append(steps)
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one.prefixes.log_p, other.prefixes.log_p)
        for name in ("example", "row", "tokens", "length", "log_weight"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        for found, expected in zip(one.after, other.after, strict=True):
            assert torch.equal(found, expected)


@cache
def _model(kind: str) -> Any:
    lm = stories(layers=5)
    lm._shares_prompts = lambda: kind == "shared"
    return lm


@pytest.mark.parametrize("kind", ["shared", "plain"])
@pytest.mark.parametrize("particles", [1, 4])
def test_a_transformer_agrees(kind: str, particles: int) -> None:
    lm = _model(kind)
    automaton = lift(regex(r"(Lily|Tim|Once)( [a-z]{2,6}){2,6}\."), lm.vocabulary)
    prompts = ["Once upon a time Lily and Tim", "A red ball. A", "Lily saw a big red ball"]
    drafted = 0
    for prompt, budget in zip(prompts, [16, 13, 18], strict=True):
        found = assert_same(
            lm, [prompt], automaton, max_tokens=budget, particles=particles, seed=budget,
            proposal=smc.GCD(), ahead={"read_ahead": 4, "guesses": Anything(3)},
        )  # fmt: skip
        drafted += found[0].diagnostics.drafted
    assert drafted > 2


@pytest.mark.parametrize("kind", ["shared", "plain"])
@settings(max_examples=8)
@given(data=st.data())
def test_rows_agree_with_fresh_rows(kind: str, data: st.DataObject) -> None:
    """Compare after any sequence of drafts, truncations and moves."""
    lm = _model(kind)
    draw, size = data.draw, lm.vocabulary.size
    prompts = [[1, 5, 9], [1, 7], [1, 300, 2, 8]]
    rows, _ = lm.prefill(prompts)
    texts: list[list[int]] = [list(prompt) for prompt in prompts]
    owners = [0, 1, 2]
    for _ in range(draw(st.integers(1, 5))):
        ancestors = draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4))
        rows.reorder(torch.tensor(ancestors))
        texts, owners = [list(texts[a]) for a in ancestors], [owners[a] for a in ancestors]
        kept = [
            draw(st.integers(0, len(t) - len(prompts[o])))
            for t, o in zip(texts, owners, strict=True)
        ]
        rows.truncate(torch.tensor(kept))
        texts = [t[: len(prompts[o]) + k] for t, o, k in zip(texts, owners, kept, strict=True)]
        lengths = [draw(st.integers(0, 3)) for _ in texts]
        lengths[0] = max(1, lengths[0])
        runs = torch.tensor([[draw(st.integers(3, size - 1)) for _ in range(3)] for _ in texts])
        said = rows.extend(runs, torch.tensor(lengths))
        read, values = [], []
        for r, length in enumerate(lengths):
            for t in range(length):
                texts[r].append(int(runs[r, t]))
                read.append(list(texts[r]))
                values.append(said[r, t])
        _, fresh = lm.prefill(read)
        assert torch.allclose(torch.stack(values), fresh, rtol=0, atol=1e-9)


@settings(max_examples=200)
@given(st.text("ab ", max_size=24).map(str.encode), st.integers(1, 5), st.integers(1, 3))
def test_look_up_finds_the_longest_end(text: bytes, longest: int, shortest: int) -> None:
    def ends(size: int) -> list[int]:
        """Return where copies of the last `size` bytes end."""
        tail = text[len(text) - size :]
        return [i for i in range(size, len(text)) if text[i - size : i] == tail]

    found = find_source(text, shortest, longest)
    sizes = [size for size in range(shortest, min(longest, len(text) - 1) + 1) if ends(size)]
    if not sizes:
        assert found is None
        return
    size = max(sizes)
    places = ends(size)
    start = len(text) - size
    word = [i for i in places if i == size or text[i - size - 1 : i - size] == b" "]
    if word and (start == 0 or text[start - 1 : start] == b" "):
        places = word
    assert found == max(places)


def test_look_up_goes_back_no_further_than_it_may() -> None:
    """Among many occurrences that don't begin a word, the last one is copied."""
    text = b"(abcX" + b"zabcY" * (MOST_PLACES - 1)
    assert find_source(text + b".abc") == 4
    text += b"zabcY"
    assert find_source(text + b".abc") == len(text) - 1


def test_look_up_gives_the_tokens_that_followed() -> None:
    vocabulary = Vocabulary.from_bytes([b"N", b"ew", b" York", b" ", b"Y", b"ork", b""], [6])
    assert look_up(b'in New York: "New', vocabulary) == [2, 3]  # " York", or else " "
    assert look_up(b"q", vocabulary) == []


def test_by_itself_it_reads_ahead_on_a_cpu_where_rows_are_few() -> None:
    options = {"max_tokens": 9, "particles": 1, "proposal": smc.GCD()}
    automaton = lift(regex("[ab]{8}"), VOCABULARY)

    def drafted(lm: Any, **more: Any) -> int:
        [found] = sample_with(
            lm, [[1, 0, 1, 0, 1]], automaton, **options, **{"algorithm": "smc", **more}
        )
        return found.diagnostics.drafted

    lm = ToyLM(VOCABULARY, seed=2)
    assert drafted(lm) == 0 < drafted(lm, read_ahead=4)
    lm.reads_ahead = True  # type: ignore[attr-defined]
    assert 0 < drafted(lm) == drafted(lm, read_ahead=4)
    assert not smc.TransformersLM(tiny_model(), None, VOCABULARY).reads_ahead
