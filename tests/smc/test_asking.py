"""A single call returns a typed value with the probability from enumeration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, field_validator

import gcd
import smc
from gcd._tokens.vocabulary import Vocabulary
from smc.testing import ToyLM, target

TOKENS = [bytes([b]) for b in range(32, 127)]
VOCABULARY = Vocabulary.from_bytes([*TOKENS, b'{"day": ', b'"yes"', b"null", b""], [98])
LM = ToyLM(VOCABULARY, seed=5)


class Day(BaseModel):
    day: Literal[1, 2]


class Even(BaseModel):
    day: int

    @field_validator("day")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


@dataclass
class Pair:
    a: bool


class Color(Enum):
    RED = "r"
    BLUE = "b"


SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 1}
TOOLS = [{"name": "f", "description": "", "parameters": {"x": {"type": "boolean"}}}]


@pytest.mark.parametrize(
    ("kind", "language", "parse"),
    [
        (Day, gcd.json_schema(Day, whitespace="spaced"), Day.model_validate_json),
        (Pair, gcd.json_schema(Pair, whitespace="spaced"), TypeAdapter(Pair).validate_json),
        (Color, gcd.choice(['"r"', '"b"']), lambda text: Color(json.loads(text))),
        (Literal["yes", "no"], gcd.choice(['"yes"', '"no"']), json.loads),
        (TypeAdapter(bool), gcd.choice(["true", "false"]), json.loads),
        (SCHEMA, gcd.choice(["[1]", "[2]"]), json.loads),
        (["yes", "no", "y"], gcd.choice(["yes", "no", "y"]), str),
        (gcd.regex("a|bc"), gcd.choice(["a", "bc"]), str),
        (gcd.lift(gcd.regex("a|bc"), VOCABULARY), gcd.choice(["a", "bc"]), str),
    ],
)
def test_value_and_probability_are_those_of_enumeration(
    kind: Any, language: gcd.Automaton, parse: Any
) -> None:
    budget = 16
    reply = smc.ask(LM, "hello", kind, budget=budget, particles=64)
    prompt = LM.encode("hello")
    mass: dict[str, float] = {}
    for ids, p in target(LM, prompt, gcd.lift(language, VOCABULARY), budget).items():
        text = VOCABULARY.decode(ids).decode()
        mass[text] = mass.get(text, 0.0) + p
    best = max(mass, key=mass.__getitem__)
    assert reply.text == best
    assert reply.value == parse(best)
    low, high = reply.interval
    assert low - 1e-9 <= mass[best] / math.fsum(mass.values()) <= high + 1e-9
    assert low <= reply.probability <= high
    assert reply.reliability.label == "certified"
    assert reply.budget is not None
    assert bool(reply.fields) == (parse is not str)


def test_tools_are_called() -> None:
    reply = smc.ask(LM, "x", TOOLS, budget=60, particles=4)
    assert reply.value[0]["name"] == "f"
    assert isinstance(reply.value[0]["arguments"]["x"], bool)


def test_an_answer_is_certified_on_request() -> None:
    reply = smc.ask(LM, "hello", Day, budget=16, particles=2, certify=0.95)
    low, high = reply.interval
    assert reply.reliability.label == "certified"
    assert reply.posterior.certified is not None
    assert reply.posterior.certified >= 0.95
    assert low <= reply.probability <= high <= low + 0.1
    assert reply.posterior.algorithm == "discrete"


def test_prompts_are_answered_independently() -> None:
    prompts = ["hello", [1, 2, 3]]
    together = smc.ask_all(LM, prompts, Day, budget=16, seed=3)
    alone = smc.ask(LM, prompts[0], Day, budget=16, seed=3)
    assert together[0].text == alone.text
    assert together[0].probability == pytest.approx(alone.probability)
    assert len(together) == 2


class Template:
    """A tokenizer that only supports a chat template."""

    chat_template = "a template"

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], **options: Any
    ) -> list[int]:
        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        return [ord(character) % 99 for each in messages for character in each["content"]]


def test_messages_go_through_the_chat_template() -> None:
    lm = ToyLM(VOCABULARY, seed=5)
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(ValueError, match="chat template"):
        smc.ask(lm, messages, Day, budget=16)
    lm.tokenizer = Template()  # type: ignore[attr-defined]
    assert smc.ask(lm, messages, Day, budget=16).text == smc.ask(lm, "hello", Day, budget=16).text


def test_a_validator_that_no_constraint_expresses_is_an_error() -> None:
    with pytest.warns(gcd.CaveatWarning):
        replies = smc.ask_all(LM, [[k] for k in range(20)], Even, budget=10)
    odd = next(reply for reply in replies if json.loads(reply.text or "")["day"] % 2)
    with pytest.raises(ValueError, match="odd"):
        _ = odd.value


@pytest.mark.parametrize("kind", ["a|b", [], [1, 2], ["a", {}], 3, None])
def test_invalid_types_are_refused_before_the_model_is_called(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a type|got None"):
        smc.ask(LM, "x", kind, budget=16)


def test_a_budget_that_no_answer_fits_into_is_refused() -> None:
    with pytest.raises(gcd.InfeasibleBudgetError):
        smc.ask(LM, "x", Day, budget=1)


def test_repr_shows_the_certainty_of_the_answer() -> None:
    shown = repr(smc.ask(LM, "hello", ["yes", "no"], budget=8))
    assert shown.startswith("Reply('")
    assert shown.endswith("certified)")
