"""Reading ahead and forced runs change the number of passes, but no answer and no weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import smc
import smc._forward.reader
from gcd import Vocabulary, lift, regex
from smc._forward import read_ahead
from smc._forward.read_ahead import MOST_PLACES, find_source, look_up
from smc.testing import ToyLM, target
from tests.smc.calls import assert_same, assert_same_step, sample_with
from tests.smc.cases import (
    ALGORITHMS,
    FORCED,
    LANGUAGES,
    PROPOSALS,
    Anything,
    automaton_of,
)
from tests.smc.matrix import covering
from tests.smc.toys import VOCABULARY, Hooked, choice, tiny_model
from tests.smc.walks import PROMPT, TOY

COUNTS = ("running", "alive", "resampled", "fallbacks", "forced", "generated")


def sampled(lm: Any, *given: Any, guesses: Any = None, **options: Any) -> Any:
    """Sample, with these guesses in place of prompt lookup."""
    with pytest.MonkeyPatch.context() as patch:
        if guesses is not None:
            patch.setattr(read_ahead, "look_up", guesses)
        return sample_with(lm, *given, **{"algorithm": "smc", **options})


def compare(lm: Any, *given: Any, ahead: Any, expected: Any = None, **options: Any) -> Any:
    """Sample with and without reading ahead; return the result with it."""
    found = sampled(lm, *given, **ahead, **options)
    expected = expected or sampled(lm, *given, read_ahead=0, **options)
    assert_same(found, expected, counts=COUNTS)
    for one, other in zip(found, expected, strict=True):
        read = one.diagnostics.tokens - one.diagnostics.drafted + one.diagnostics.used
        assert read == other.diagnostics.tokens
        assert one.diagnostics.lm_calls <= other.diagnostics.lm_calls
        assert one.diagnostics.landed <= one.diagnostics.used <= one.diagnostics.drafted
        if options["particles"] == 1:  # a choice that matches its draft saves a pass
            saved = other.diagnostics.lm_calls - one.diagnostics.lm_calls
            assert one.diagnostics.landed == saved
    return found


LONG = lift(regex("[ab]{5,8}"), VOCABULARY)
GUESSES: dict[str, Callable[[], Any]] = {
    "lookup": lambda: lambda text, tokens: look_up(b"aaabbbab" * 2 + text[-3:], tokens),
    "anything": Anything,
    "told": lambda: lambda text, tokens: [2, 0, 1, 1][len(text) % 4 :],
}
# `test_walk` reads ahead with every proposal; these differ in the state that drafts advance.
READERS = ["lm", "gcd", "own", "in_time", "no_potential"]
ROWS = covering(
    proposal=READERS, algorithm=[*ALGORITHMS], guesses=[*GUESSES], particles=[1, 2],
    ahead=[1, 3, 20], temperature=[1.0, 0.6], forced_runs=[True, False], prompt=[(1, 2), (0,)],
)  # fmt: skip


@pytest.mark.parametrize("proposal", READERS)
def test_answers_are_the_same(proposal: str) -> None:
    """Drafts are only computed in passes over a single row, so answers are long and few."""
    drafted = used = 0
    for seed, row in enumerate(row for row in ROWS if row["proposal"] == proposal):
        options = {name: row[name] for name in ("particles", "temperature", "forced_runs")}
        (found,) = compare(
            TOY, [row["prompt"]], LONG, max_tokens=10, proposal=PROPOSALS[proposal](), seed=seed,
            ahead={"read_ahead": row["ahead"], "guesses": GUESSES[row["guesses"]]()},
            **options, **ALGORITHMS[row["algorithm"]],
        )  # fmt: skip
        drafted += found.diagnostics.drafted
        used += found.diagnostics.used
    assert 0 < used < drafted


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_same_through_forced_runs(language: str) -> None:
    """A draft continues through forced runs, up to the end of a text."""
    used = 0
    for seed, algorithm in enumerate(["smc", "discrete"] * 3):
        found = compare(
            ToyLM(FORCED, seed=seed, spread=1.5), [[0, 1], [2], [3, 3]][seed % 3 :][:1],
            automaton_of(language), max_tokens=8, particles=1 + seed // 4, proposal=smc.GCD(),
            seed=seed, algorithm=algorithm,
            ahead={"read_ahead": 1 + seed, "guesses": Anything(seed)},
        )  # fmt: skip
        used += sum(each.diagnostics.used for each in found)
    assert (used > 0) == (language not in ("forced_last", "all_forced"))


def test_right_guesses_save_every_pass_but_one() -> None:
    given: tuple[Any, ...] = (TOY, [[1]], LONG)
    options = {"max_tokens": 10, "particles": 1, "proposal": smc.GCD()}
    (alone,) = sampled(*given, **options)
    ids = alone.particles[0].ids
    known = {VOCABULARY.decode([1, *ids[:i]]): [token] for i, token in enumerate(ids)}
    (found,) = sampled(*given, **options, read_ahead=20, guesses=lambda text, _: known[text])
    assert (found.particles, found.diagnostics.lm_calls) == (alone.particles, 2)


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
                    read_ahead=ahead, guesses=lambda *_: [1],
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
            TOY, [[1, 2]], LONG, max_tokens=10, proposal=smc.GCD(), particles=3, read_ahead=ahead,
            guesses=Anything(), observe=lambda _, steps=steps: steps.append,
        )  # fmt: skip
        seen.append(steps)
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one.prefixes.log_p, other.prefixes.log_p)
        assert_same_step(one, other)


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


# -- forced runs, whose weights `test_definition` compares ---------------------------------------


def sample_forced(lm: ToyLM, language: str = "all_forced", **options: Any) -> smc.Posterior:
    given = {"max_tokens": 9, "particles": 3, "proposal": smc.GCD(), "algorithm": "smc", **options}
    (found,) = sample_with(lm, [PROMPT], automaton_of(language), **given)
    return found


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_a_run_is_one_pass_and_is_accounted_for(algorithm: str) -> None:
    read: list[int] = []
    lm = Hooked(lambda runs, lengths: read.append(int(lengths.sum())), FORCED)
    evidence = math.log(sum(target(lm, PROMPT, automaton_of("all_forced"), 9).values()))
    # c c c a, and no pass for EOS
    for forced_runs, passes, forced in ((True, [4], 5), (False, [1, 1, 1, 1], 0)):
        read.clear()
        found = sample_forced(lm, algorithm=algorithm, forced_runs=forced_runs)
        assert read == passes
        assert (found.diagnostics.lm_calls, found.diagnostics.tokens) == (
            1 + len(passes), len(PROMPT) + 4,
        )  # fmt: skip
        assert found.diagnostics.forced == forced
        assert found.texts == ("ccca",)
        assert found.log_evidence == pytest.approx(evidence, abs=1e-12)


@pytest.mark.parametrize("most_read", [1, 2 * 5 * 2, 1 << 26])
def test_no_pass_is_wider_than_is_allowed(most_read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smc._forward.reader, "MOST_READ", most_read)
    shapes: list[tuple[int, int]] = []
    sample_forced(
        Hooked(lambda runs, lengths: shapes.append(tuple(runs.shape)), FORCED), particles=4
    )
    assert all(T == 1 or R * T * FORCED.size <= most_read for R, T in shapes)
    assert sum(T for _, T in shapes) == 4
    assert max(T for _, T in shapes) == min(4, max(1, most_read // FORCED.size))


class Talkative(smc.GCD):
    """A proposal that names a forced token even for ended prefixes."""

    def forced(self, state: smc.AutomatonPosition) -> Tensor:
        return torch.where(state.running, super().forced(state), 0)


def test_nothing_is_forced_behind_the_end() -> None:
    lm = ToyLM(FORCED, seed=3)
    found, expected = (
        sample_forced(lm, max_tokens=6, proposal=p) for p in (Talkative(), smc.GCD())
    )
    assert found.texts == expected.texts
    assert found.log_evidence == expected.log_evidence
