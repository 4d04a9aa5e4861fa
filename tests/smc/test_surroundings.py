"""Settings of the caller's process (default device and dtype, autocast) change no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smc
from hmm import HMM
from smc._models.static_cache import NotStaticError
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

transformers = pytest.importorskip("transformers")

AUTOMATON = CONSTRAINTS["few_words"]()
AHEAD = HMM.random(2, VOCABULARY.size, generator=torch.Generator().manual_seed(0))
PROMPTS = [(0, 1), (2,)]


def sampled(**options: Any) -> Callable[[], Any]:
    lm = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    chosen = {"max_tokens": 5, "particles": 4, "proposal": smc.GCD(), **options}

    def call() -> Any:
        found = sample_with(lm, PROMPTS, AUTOMATON, **chosen)
        return [(each.texts, each.log_evidence) for each in found]

    return call


def searched() -> Callable[[], Any]:
    lm = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    return lambda: smc.search(lm, PROMPTS[0], AUTOMATON, max_tokens=5).best.text


def generated(**options: Any) -> Callable[[], Any]:
    model = tiny_model()
    ids = torch.tensor([PROMPTS[0]], device="cpu")
    options |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5}
    return lambda: model.generate(ids, **options).tolist()


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "gcd": sampled,
    "lcd": lambda: sampled(proposal=smc.LCD()),
    "lm": lambda: sampled(proposal=smc.LM()),
    "pgcd": lambda: sampled(proposal=smc.PGCD(AHEAD)),
    "discrete": lambda: sampled(algorithm="discrete", proposal=smc.PGCD(AHEAD)),
    "static": lambda: sampled(execution="static"),
    "ahead": lambda: sampled(read_ahead=2),
    "search": searched,
    "generate": lambda: generated(custom_generate=smc.generate(AUTOMATON, particles=4, seed=0)),
    "processor": lambda: generated(logits_processor=[smc.BudgetLogitsProcessor(AUTOMATON, 5)]),
    "processor, ahead": lambda: generated(
        logits_processor=[smc.BudgetLogitsProcessor(AUTOMATON, 5, smc.PGCD(AHEAD))]
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_default_device_and_dtype_change_nothing(name: str) -> None:
    call = CALLS[name]()
    expected = call()
    if name != "batch":  # creates its model in the call
        with torch.device("meta"):
            assert call() == expected
    torch.set_default_dtype(torch.float64)
    try:
        found = call()
    finally:
        torch.set_default_dtype(torch.float32)
    assert name == "batch" or found == expected


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_everything_works_within_autocast(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name]()
    with torch.autocast("cpu", dtype=dtype):
        if name == "static":
            with pytest.raises(NotStaticError, match="autocast"):
                call()
        else:
            call()
