"""Wrong widths, dtypes and ids are rejected before compiled code reads them.

The vocabulary is large enough for compiled loops, which read out of bounds without an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import gcd
import hmm
import smc
from hmm._initialize import counts_of_states
from smc import MaskProposal
from smc._models.protocol import token_ids
from tests.smc.calls import sample_with
from tests.smc.matrix import covering

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

V = 1100
EOS = V - 1
VOCABULARY = gcd.Vocabulary.from_bytes([bytes([i]) for i in range(128)], EOS, size=V)
AUTOMATON = gcd.lift(gcd.regex("[ab]{1,3}|c{2,4}"), VOCABULARY)
BUDGET = 6
MODEL = hmm.HMM.random(3, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

Make = Callable[[Tensor], Tensor]
"""A function that corrupts log-probabilities."""


class Model:
    """A language model with corrupted log-probabilities, after the prompt or in later passes."""

    def __init__(self, spoil: Make, *, after_prompt: bool) -> None:
        self.vocabulary, self.context, self.device = VOCABULARY, None, torch.device("cpu")
        self._spoil, self._after_prompt, self._rows = spoil, after_prompt, 0

    def encode(self, prompt: Any) -> list[int]:
        return token_ids(prompt)

    def _log_p(self, *shape: int, prompt: bool) -> Tensor:
        log_p = torch.full((*shape, V), -math.log(V))
        return self._spoil(log_p) if prompt == self._after_prompt else log_p

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Model, Tensor]:
        return self, self._log_p(len(prompts), prompt=True)

    def extend(self, runs: Tensor, lengths: Tensor) -> Tensor:
        return self._log_p(*runs.shape, prompt=False)

    def reorder(self, ancestors: Tensor) -> None: ...

    def truncate(self, lengths: Tensor) -> None: ...

    def static_forward(self) -> Model:
        return self

    def start(self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int) -> Tensor:
        self._rows = len(prompts) * num_particles
        return self._log_p(self._rows, prompt=True)

    def step(self, tokens: Tensor, source: Tensor, step: Tensor) -> Tensor:
        return self._log_p(self._rows, prompt=False)

    def rewind(self) -> None: ...


def sampled(lm: Model, prompts: Any, proposal: Any, particles: int = 2, **options: Any) -> Any:
    given = {"max_tokens": BUDGET, "particles": particles, "proposal": proposal, **options}
    return sample_with(lm, prompts, AUTOMATON, **given)


SPOILT: dict[str, tuple[Make, type[Exception], str]] = {
    "one column more": (lambda x: torch.nn.functional.pad(x, (0, 1)), ValueError, f"{V}.*{V + 1}"),
    "one less": (lambda x: x[..., :-1], ValueError, f"{V}.*{V - 1}"),
    "no columns": (lambda x: x[..., :0], ValueError, f"{V}.* 0"),
    "one row more": (lambda x: torch.cat([x, x[:1]]), ValueError, f"{V}"),
    "no rows": (lambda x: x[:0], ValueError, f"{V}"),
    "whole numbers": (lambda x: x.long(), ValueError, "int64"),
    "an array": (lambda x: x.numpy(), ValueError, "ndarray"),
    "NaN": (lambda x: x.masked_fill(torch.arange(V) == 3, torch.nan), FloatingPointError, "NaN"),
    "+inf": (lambda x: x.masked_fill(torch.arange(V) == 3, torch.inf), FloatingPointError, "inf"),
}
PROPOSALS: dict[str, Callable[[], smc.Proposal[Any]]] = {
    "lcd": smc.LCD,  # the first token of `smc.LM` may end all particles
    "gcd": smc.GCD,
    "pgcd": lambda: smc.PGCD(MODEL),
    "pgcd of all tokens": lambda: smc.PGCD(MODEL, exact_top_k=None),
}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"execution": "eager", "forced_runs": False},
    "forced": {"execution": "eager"},
    "static": {"execution": "static", "forced_runs": False},
    "discrete": {"algorithm": "discrete"},
    "discrete, static": {"algorithm": "discrete", "execution": "static", "forced_runs": False},
}


ROWS = covering(way=[*WAYS], how=[*SPOILT], proposal=[*PROPOSALS], after_prompt=[True, False])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(map(str, row.values())))
def test_spoilt_log_probabilities_are_refused(row: dict[str, Any]) -> None:
    spoil, error, message = SPOILT[row["how"]]
    lm = Model(spoil, after_prompt=row["after_prompt"])
    proposal, way = PROPOSALS[row["proposal"]](), WAYS[row["way"]]
    with pytest.raises(error, match=message):
        sampled(lm, [[1], [2, 3]], proposal, particles=4, **way)


@pytest.mark.parametrize("after_prompt", [True, False])
@pytest.mark.parametrize("how", SPOILT)
def test_search_refuses_them_too(how: str, after_prompt: bool) -> None:
    """The values of tokens that the constraint excludes aren't looked at."""
    spoil, error, message = SPOILT[how]
    lm = Model(spoil, after_prompt=after_prompt)
    anything = gcd.lift(gcd.regex("(?s).*"), VOCABULARY)
    with pytest.raises(error, match=message):
        smc.search(lm, [1], anything, max_tokens=BUDGET, answers=99)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize(("generated", "lookahead"), [(0, None), (1, smc.PGCD(MODEL))])
def test_the_logits_processor_refuses_them_in_every_call(
    lookahead: Any, generated: int, how: str
) -> None:
    spoil, error, message = SPOILT[how]
    processor = smc.BudgetLogitsProcessor(AUTOMATON, BUDGET, lookahead, prompt_length=2)
    ids = torch.tensor([[5, 6], [7, 8]])
    good = torch.zeros(2, V)
    assert processor(ids, good)[:, [97, 99]].isfinite().all()
    ids = torch.cat([ids, torch.full((2, generated), 97)], dim=1)
    with pytest.raises((error, gcd.ConstraintError, AttributeError)) as caught:
        processor(ids, spoil(good))
    for part in message.split(".*"):
        assert part.strip() in str(caught.value)


Entrance = Callable[[list[int]], Any]
BATCH = gcd.AutomatonBatch([AUTOMATON])
MASK = gcd.BudgetMask(BATCH, BUDGET)
TABLE = hmm.lookahead_table(MODEL, AUTOMATON, BUDGET)
INITIAL = BATCH.initial
SCORES = np.zeros(V, np.float32)


def _batch_of(matchers: int, ids: list[int]) -> Any:
    return gcd.MatcherBatch([gcd.Matcher(AUTOMATON) for _ in range(matchers)]).advance(ids)


def _processor(ids: list[int]) -> Any:
    processor = smc.BudgetLogitsProcessor(AUTOMATON, BUDGET, prompt_length=1)
    return processor(torch.tensor([[5, *ids]]), torch.zeros(1, V))


def _scores(ids: list[int]) -> Any:
    return gcd.ScoresProcessor(AUTOMATON, BUDGET, prompt_length=0)(ids, SCORES.copy())


def _sample(ids: list[int]) -> Any:
    return sampled(Model(lambda x: x, after_prompt=True), [ids], smc.GCD())


def _search(ids: list[int]) -> Any:
    return smc.search(Model(lambda x: x, after_prompt=True), ids, AUTOMATON, max_tokens=BUDGET)  # type: ignore[arg-type]


IDS: dict[str, Entrance] = {
    "decode": VOCABULARY.decode,
    "step": lambda ids: AUTOMATON.step(AUTOMATON.initial, ids[0]),
    "run": AUTOMATON.run,
    "accepts": AUTOMATON.accepts,
    "next": lambda ids: BATCH.next(INITIAL, torch.tensor(ids)),
    "matcher": lambda ids: gcd.Matcher(AUTOMATON).advance(ids[0]),
    "validate": lambda ids: gcd.Matcher(AUTOMATON).validate(ids),
    "draft": lambda ids: gcd.Matcher(AUTOMATON).fill_draft_masks(
        ids, np.zeros((2, gcd.Matcher(AUTOMATON).automaton.num_words), np.int32)
    ),
    "scores": _scores,
    "processor": _processor,
    "prompt": _sample,
    "prompt of a search": _search,
    "filter step": lambda ids: hmm.filter_step(
        MODEL, MODEL.initial.expand(1, -1), torch.tensor(ids)
    ),
    "filter": lambda ids: hmm.filter_all(MODEL, torch.tensor([ids]), torch.tensor([1])),
    "likelihood": lambda ids: hmm.log_likelihood(MODEL, torch.tensor([ids]), torch.tensor([1])),
    "smoother": lambda ids: hmm.marginals(MODEL, torch.tensor([ids]), torch.tensor([1])),
    "statistics": lambda ids: hmm.expected_statistics(
        MODEL, torch.tensor([ids]), torch.tensor([1])
    ),
    "counts": lambda ids: counts_of_states(
        torch.tensor([[0]]), torch.tensor([ids]), torch.tensor([1]), 3, V
    ),
    "lookahead": lambda ids: hmm.expect_tokens(
        TABLE, MODEL.initial.expand(1, -1), INITIAL, torch.tensor([BUDGET]), torch.tensor([ids])
    ),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_that_are_none_are_refused(name: str) -> None:
    IDS[name]([97])
    for wrong in (-1, -V, -(1 << 40), V, V + 4000, 1 << 40):
        with pytest.raises(ValueError, match=f"{wrong}\\b") as caught:
            IDS[name]([wrong])
        assert str(V) in str(caught.value) or str(V - 1) in str(caught.value)
    with pytest.raises((ValueError, IndexError)):
        IDS[name]([1.5])  # type: ignore[list-item]


STATES: dict[str, Entrance] = {
    "step": lambda states: AUTOMATON.step(states[0], 97),
    "allowed": lambda states: AUTOMATON.allowed(states[0]),
    "next": lambda states: BATCH.next(torch.tensor(states), torch.tensor([97])),
    "mask": lambda states: MASK.mask(torch.tensor(states), torch.tensor([3])),
    "packed": lambda states: MASK.packed(torch.tensor(states), torch.tensor([3])),
    "mask without budget": lambda states: MASK.lcd_mask(torch.tensor(states)),
    "classes": lambda states: hmm.expect_classes(
        TABLE, MODEL.initial.expand(1, -1), torch.tensor(states), torch.tensor([3])
    ),
    "all tokens": lambda states: hmm.expect_all_tokens(
        TABLE, MODEL.initial.expand(1, -1), torch.tensor(states), torch.tensor([3])
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_are_none_are_refused(name: str) -> None:
    STATES[name]([AUTOMATON.initial])
    STATES[name]([-1])  # where nothing is allowed
    assert AUTOMATON.allowed(-1).size == 0
    for wrong in (-2, AUTOMATON.num_states, 1 << 40):
        with pytest.raises(ValueError, match=rf"-1\.\.{AUTOMATON.num_states - 1}, got {wrong}\b"):
            STATES[name]([wrong])


SHAPES: dict[str, Callable[[], Any]] = {
    "remaining of another length": lambda: MASK.mask(INITIAL, torch.tensor([3, 3])),
    "remaining without an axis": lambda: MASK.packed(INITIAL, torch.tensor(3)),
    "remaining in halves": lambda: MASK.mask(INITIAL, torch.tensor([3.0])),
    "states in halves": lambda: MASK.mask(INITIAL.double(), torch.tensor([3])),
    "a table of states": lambda: MASK.mask(INITIAL.unsqueeze(0), torch.tensor([[3]])),
    "fewer hidden states": lambda: hmm.expect_classes(
        TABLE, MODEL.initial[:2].expand(1, -1), INITIAL, torch.tensor([3])
    ),
    "more prefixes than states": lambda: hmm.expect_all_tokens(
        TABLE, MODEL.initial.expand(2, -1), INITIAL, torch.tensor([3])
    ),
    "fewer budgets than prefixes": lambda: hmm.expect_classes(
        TABLE, MODEL.initial.expand(2, -1), INITIAL.expand(2), torch.tensor([3])
    ),
    "distributions of another size": lambda: hmm.filter_step(
        MODEL, MODEL.initial[:2].expand(1, -1), torch.tensor([97])
    ),
    "tokens in halves": lambda: hmm.filter_all(MODEL, torch.tensor([[1.0]]), torch.tensor([1])),
    "tokens without rows": lambda: hmm.log_likelihood(MODEL, torch.tensor([1]), torch.tensor([1])),
    "more lengths": lambda: hmm.marginals(MODEL, torch.tensor([[1]]), torch.tensor([1, 1])),
    "an HMM of other tokens": lambda: hmm.lookahead_table(
        hmm.HMM.random(2, V + 1, generator=torch.Generator().manual_seed(0)), AUTOMATON, BUDGET
    ),
    "scores of several rows": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)([5], SCORES[:, None]),
    "wider scores": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)([5], np.zeros(V + 1)),
    "narrower scores": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)([5], np.zeros(V - 1)),
    "scores as a list": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)([5], [0.0] * V),
    "scores as whole numbers": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)(
        [5], np.zeros(V, np.int64)
    ),
    "NaN among scores": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)([5], SCORES + np.nan),
    "several rows of ids": lambda: gcd.ScoresProcessor(AUTOMATON, BUDGET)(
        np.array([[5], [6]]), SCORES.copy()
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes_and_types_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"\d|got|NaN"):
        SHAPES[name]()


class Wide(MaskProposal):
    """A proposal whose guide has a different number of columns than the model."""

    def __init__(self, change: int) -> None:
        self.change = change

    def guide(self, state: Any, log_p: Tensor) -> smc.Factors:
        return smc.Factors.dense(torch.zeros(len(log_p), V + self.change, dtype=torch.float64))


@pytest.mark.parametrize("way", WAYS)
def test_guides_of_another_width_or_type_are_refused(way: str) -> None:
    lm = Model(lambda x: x, after_prompt=True)
    for change in (-1, 1, 4000):
        with pytest.raises(ValueError, match=f"{V}.*{V + change}"):
            sampled(lm, [[1]], Wide(change), **WAYS[way])
    proposal = smc.GCD()
    proposal.guide = lambda state, log_p: torch.zeros_like(log_p)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"expected a smc\.Factors .* got Tensor; .*dense"):
        sampled(lm, [[1]], proposal, **WAYS[way])


def test_resized_embeddings_are_refused_by_both_widths() -> None:
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, eos_token_id=EOS, pad_token_id=None, bos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    lm = smc.TransformersLM(model, None, VOCABULARY)
    decode = smc.generate(AUTOMATON, seed=0)
    for width in (V + 1, V + 4000, V - 1):
        model.resize_token_embeddings(width)
        with pytest.raises(ValueError, match=f"{V}.*{width}"):
            smc.sample(lm, [[1]], AUTOMATON, max_tokens=BUDGET, particles=2, proposal=smc.GCD())
        with pytest.raises(ValueError, match=f"{width}.*{V}"):
            model.generate(torch.tensor([[1]]), custom_generate=decode, max_new_tokens=BUDGET)
