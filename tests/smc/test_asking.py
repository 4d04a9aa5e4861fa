"""A single call returns a typed value with the probability from enumeration."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, field_validator

import gcd
import smc
from gcd import Vocabulary
from smc.testing import ToyLM, target
from tests.smc.calls import sample_with

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


class Never(Even):
    @field_validator("day")
    @classmethod
    def check(cls, value: int) -> int:
        raise ValueError("never")


@dataclass
class Pair:
    a: bool


class Color(Enum):
    RED = "r"
    BLUE = "b"


SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 1}
BOOLEAN = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
INTEGER = {
    "type": "object",
    "properties": {"day": {"type": "integer"}},
    "required": ["day"],
    "additionalProperties": False,
}
SEVERAL = {
    "type": "object",
    "properties": {name: {"type": "boolean"} for name in "abc"},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [{"name": "f", "description": "", "parameters": BOOLEAN}]


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
    reply = smc.ask(LM, "hello", kind, max_tokens=budget, particles=64)
    prompt = LM.encode("hello")
    mass: dict[str, float] = {}
    for ids, p in target(LM, prompt, gcd.lift(language, VOCABULARY), budget).items():
        text = VOCABULARY.decode(ids).decode()
        mass[text] = mass.get(text, 0.0) + p
    best = max(mass, key=mass.__getitem__)
    assert reply.text == best
    assert reply.value == parse(best)
    assert reply.confidence_interval is not None
    low, high = reply.confidence_interval
    assert low - 1e-9 <= mass[best] / math.fsum(mass.values()) <= high + 1e-9
    assert low <= reply.probability <= high
    assert reply.reliability.label == "certified"
    assert reply.budget is not None
    assert bool(reply.fields) == (parse is not str)


def test_tools_are_called() -> None:
    reply = smc.ask(LM, "x", TOOLS, max_tokens=60, particles=4)
    assert reply.value[0]["name"] == "f"
    assert isinstance(reply.value[0]["arguments"]["x"], bool)


def test_an_answer_is_certified_on_request() -> None:
    reply = smc.ask(LM, "hello", Day, max_tokens=16, particles=2, certify=0.95)
    assert reply.confidence_interval is not None
    low, high = reply.confidence_interval
    assert reply.reliability.label == "certified"
    assert reply.posterior.certified is not None
    assert reply.posterior.certified >= 0.95
    assert low <= reply.probability <= high <= low + 0.1
    assert reply.posterior.algorithm == "discrete"


def test_prompts_are_answered_independently() -> None:
    prompts = ["hello", [1, 2, 3]]
    together = smc.ask_all(LM, prompts, Day, max_tokens=16, seed=3)
    alone = smc.ask(LM, prompts[0], Day, max_tokens=16, seed=3)
    assert together[0].text == alone.text
    assert together[0].probability == pytest.approx(alone.probability)
    assert len(together) == 2


def spell(text: str) -> list[int]:
    """Return a token for each character; a space for characters without a token."""
    return [TOKENS.index(each) if each in TOKENS else 0 for each in map(str.encode, text)]


class Template:
    """A tokenizer that only supports a chat template, and records its arguments."""

    chat_template = "a template that reads tools, enable_thinking and language"

    def __init__(self, *, opens: str = "", reads_tools: bool = True) -> None:
        self.opens, self.reads_tools = opens, reads_tools
        self.seen: list[dict[str, Any]] = []

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], **options: Any
    ) -> list[int]:
        self.seen.append(options)
        text = "".join(each["content"] for each in messages)
        if self.reads_tools:
            text += json.dumps(options.get("tools") or "")
        text += self.opens if options.get("enable_thinking", True) else ""
        return spell(text)


PLAIN = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
MESSAGES = [{"role": "user", "content": "hello"}]


def chatting(**options: Any) -> ToyLM:
    lm = ToyLM(VOCABULARY, seed=5)
    lm.tokenizer = Template(**options)  # type: ignore[attr-defined]
    return lm


def test_messages_go_through_the_chat_template() -> None:
    with pytest.raises(ValueError, match="chat template"):
        smc.ask(LM, MESSAGES, Day, max_tokens=16)
    lm = chatting(reads_tools=False)
    ids = lm.tokenizer.apply_chat_template(MESSAGES)  # type: ignore[attr-defined]
    assert (
        smc.ask(lm, MESSAGES, Day, max_tokens=16).text == smc.ask(lm, ids, Day, max_tokens=16).text
    )
    assert lm.tokenizer.seen[1:] == [PLAIN]  # type: ignore[attr-defined]
    given = {"language": "fi"}
    smc.ask_all(lm, ["x", MESSAGES], Day, max_tokens=16, chat_template_kwargs=given)
    assert lm.tokenizer.seen[2:] == [PLAIN | given]  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="reads lang,"):
        smc.ask(lm, MESSAGES, Day, max_tokens=16, chat_template_kwargs={"lang": "fi"})
    with pytest.raises(ValueError, match="template accepts, got its error \"'content'\""):
        smc.ask(lm, [{"role": "user"}], Day, max_tokens=16)


def test_every_call_takes_messages() -> None:
    lm, constraint = chatting(reads_tools=False), gcd.lift(gcd.choice(["a", "b"]), VOCABULARY)
    ids = lm.tokenizer.apply_chat_template(MESSAGES)  # type: ignore[attr-defined]
    options: Any = {"max_tokens": 4, "particles": 3, "proposal": smc.GCD()}
    calls: list[Callable[[Any], Any]] = [
        lambda prompt: sample_with(lm, [prompt], constraint, **options)[0].probabilities,
        lambda prompt: smc.distribution(lm, [prompt], constraint, max_tokens=4)[0].probabilities,
        lambda prompt: smc.search(lm, prompt, constraint, max_tokens=4).best,
        lambda prompt: smc.choose(lm, [prompt], ["a", "b"])[0].probabilities,
        lambda prompt: smc.joint(lm, prompt, {"a": [1, 2]}).probabilities,
    ]
    for call in calls:
        assert call(MESSAGES) == call(ids)
        assert lm.tokenizer.seen.pop() == PLAIN  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="chat template"):
        smc.choose(LM, [MESSAGES], ["a", "b"])
    with pytest.raises(ValueError, match="template accepts, got its error"):
        smc.choose(lm, [[{"role": "user"}]], ["a", "b"])


def test_the_former_name_of_max_tokens_warns() -> None:
    former, constraint = {"budget": 16}, gcd.lift(gcd.choice(["a"]), VOCABULARY)
    with pytest.warns(DeprecationWarning, match="pass max_tokens="):
        reply = smc.ask(LM, "hello", Day, **former)  # type: ignore[call-arg]
    assert reply.text == smc.ask(LM, "hello", Day, max_tokens=16).text
    with pytest.raises(TypeError, match="got its former name"):
        smc.search(LM, "x", constraint, max_tokens=3, **former)  # type: ignore[arg-type]


FUNCTION = {
    "name": "go",
    "description": "Go there.",
    "parameters": {
        "type": "object",
        "properties": {"day": {"enum": [1, 2], "description": "When."}},
        "required": ["day"],
    },
}
PARAMETERS = FUNCTION["parameters"]
WRAPPED = {"type": "function", "function": FUNCTION}
MCP = {"name": "go", "description": "Go there.", "inputSchema": PARAMETERS}
BEDROCK = {**MCP, "inputSchema": {"json": PARAMETERS}}


@pytest.mark.parametrize(
    "tools",
    [
        [WRAPPED],
        [FUNCTION],
        {"tools": [WRAPPED]},
        [{"name": "go", "description": "Go there.", "input_schema": PARAMETERS}],
        {"result": {"tools": [MCP]}},
        [{"functionDeclarations": [FUNCTION]}],
        [{"functionDeclarations": [{**FUNCTION, "parameters": {**PARAMETERS, "type": "OBJECT"}}]}],
        {"toolConfig": {"tools": [{"toolSpec": BEDROCK}]}},
    ],
)
def test_tools_reach_the_template_in_one_form(tools: Any) -> None:
    lm = chatting()
    reply = smc.ask(lm, MESSAGES, tools, max_tokens=60, particles=2)
    assert reply.value[0]["arguments"]["day"] in (1, 2)
    [shown] = lm.tokenizer.seen[0]["tools"]  # type: ignore[attr-defined]
    assert shown["type"] == "function"
    assert shown["function"]["name"] == "go"
    assert shown["function"]["description"] == "Go there."
    assert shown["function"]["parameters"]["type"] == "object"
    properties = shown["function"]["parameters"]["properties"]
    assert properties["day"]["description"] == "When."
    assert properties["day"]["enum"] == [1, 2]


def test_a_template_without_tools_is_reported() -> None:
    lm = chatting(reads_tools=False)
    with pytest.warns(UserWarning, match=r"shows tools.*\(go\)"):
        smc.ask(lm, MESSAGES, [FUNCTION], max_tokens=60, particles=1)
    told = [{"role": "user", "content": "call go"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smc.ask(lm, told, [FUNCTION], max_tokens=60, particles=1)


@pytest.mark.parametrize("tag", ["<think>", "<think>\n", "<think>\n\n ", "<seed:think>", "[THINK]"])
def test_no_answer_begins_inside_of_thoughts(tag: str) -> None:
    lm, closed = chatting(opens=tag), {"enable_thinking": False}
    ids = spell(f"hello {tag}")
    for prompt in (MESSAGES, f"hello {tag}", ids):
        with pytest.raises(ValueError, match=r"open .* enable_thinking|open .*append"):
            smc.ask(lm, prompt, Day, max_tokens=16)
    for prompt in (f"hello {tag}", ids):
        with pytest.raises(ValueError, match="open"):
            smc.choose(lm, [prompt], ["a", "b"])
        with pytest.raises(ValueError, match="open"):
            smc.joint(lm, prompt, {"day": [1, 2]})
    smc.ask(lm, MESSAGES, Day, max_tokens=16, chat_template_kwargs=closed)
    for text in (f"hello {tag} so </think>", f"{tag[0]}/{tag[1:]}", f"Use {tag} tags."):
        smc.ask(lm, text, Day, max_tokens=16)


def test_the_best_answer_that_a_validator_accepts_is_returned() -> None:
    with pytest.warns(gcd.CaveatWarning):
        replies = smc.ask_all(LM, [[k] for k in range(20)], Even, max_tokens=10)
    plain = smc.ask_all(LM, [[k] for k in range(20)], INTEGER, max_tokens=10)
    for reply, other in zip(replies, plain, strict=True):
        ranked = [other.value, *other.alternatives]
        even = [each["day"] for each in ranked if each["day"] % 2 == 0]
        if not even:
            with pytest.raises(ValueError, match="reject"):
                _ = reply.value
            continue
        assert [reply.value.day, *(each.day for each in reply.alternatives)] == even
        first = next(i for i, each in enumerate(ranked) if each["day"] % 2 == 0)
        assert len(reply.refused) == first
        assert all("odd" in error for error in reply.refused.values())
        assert json.loads(reply.text or "")["day"] == reply.value.day
    assert any(reply.refused for reply in replies)


def test_a_validator_that_rejects_all_answers_is_an_error() -> None:
    with pytest.warns(gcd.CaveatWarning):
        reply = smc.ask(LM, "hello", Never, max_tokens=10)
    with pytest.raises(
        ValueError, match=r"accept, but they reject all \d+ that were found .*never.*particles"
    ):
        _ = reply.value
    assert reply.text in reply.refused
    assert reply.alternatives == []


def test_by_default_nothing_is_random() -> None:
    first, second = (smc.ask(LM, "hello", Pair, max_tokens=16, seed=seed) for seed in (0, 1))
    assert repr(first) == repr(second)
    assert first.posterior.particles == second.posterior.particles


@pytest.mark.parametrize("kind", [gcd.regex("[ab]{1,6}"), {"type": "integer"}, Pair])
def test_temperature_zero_is_greedy_decoding(kind: Any) -> None:
    language = kind if isinstance(kind, gcd.Automaton) else gcd.json_schema(kind)
    constraint = gcd.lift(language, VOCABULARY)
    for prompt in range(10):
        reply = smc.ask(LM, [prompt], constraint, max_tokens=16, temperature=0)
        state, ids = constraint.initial, [prompt]
        while state != constraint.final:
            log_p = LM.log_p(tuple(ids))
            allowed = constraint.allowed(state, 16 + 1 - len(ids)).tolist()
            ids.append(max(allowed, key=lambda v, p=log_p: float(p[v])))
            state = constraint.step(state, ids[-1])
        assert reply.text == VOCABULARY.decode(ids[1:]).decode()
    for given in ({"particles": 4}, {"algorithm": smc.Discrete(kept=2)}, {"algorithm": "smc"}):
        with pytest.raises(ValueError, match="omit them"):
            smc.ask(LM, "hello", kind, max_tokens=16, temperature=0, **given)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (["a", "b"], {"whitespace": "compact"}),
        (gcd.regex("[ab]"), {"whitespace": "compact"}),
        (gcd.lift(gcd.regex("[ab]"), VOCABULARY), {"literals": "canonical"}),
    ],
)
def test_options_without_effect_are_refused(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(given))}.*; (omit it|pass)"):
        smc.ask(LM, "hello", kind, max_tokens=16, **given)


def test_odd_answers_can_be_shown() -> None:
    tokens = [b"1e99999999999999999999", b"2", b"[1]", b'{"0":1}', b"\xff", b"\xfe", b""]
    vocabulary = Vocabulary.from_bytes(tokens, [6])
    lm = ToyLM(vocabulary, seed=0)
    huge = smc.ask(lm, [0], {"type": "number"}, max_tokens=3)
    assert repr(huge.text) in repr(huge)
    either = {"anyOf": [{"const": [1]}, {"const": {"0": 1}}]}
    both = smc.ask(lm, [0], either, max_tokens=3, whitespace="compact")
    assert sorted(map(str, [both.value, *both.alternatives])) == ["[1]", "{'0': 1}"]
    raw = smc.ask(lm, [0], gcd.Automaton.from_strings([b"\xff", b"\xfe"]), max_tokens=3)
    assert raw.probability is None
    assert raw.confidence_interval is None
    empty = smc.ask(LM, "hello", gcd.regex("a?"), max_tokens=4)
    assert "no answer" not in empty._repr_html_()


@pytest.mark.parametrize("particles", [None, 2, 16])
def test_the_value_has_the_largest_expected_agreement(particles: int | None) -> None:
    """The score is computed here from its definition, over all pairs of answers."""
    options = {} if particles is None else {"particles": particles}
    for prompt in range(10):
        reply = smc.ask(LM, [prompt], SEVERAL, max_tokens=40, **options)
        found: dict[str, float] = {}
        for each in {s.ids: s for s in reply.posterior.particles}.values():
            text = each.answer.decode()
            found[text] = found.get(text, 0.0) + math.exp(each.log_p)
        values = {text: set(json.loads(text).items()) for text in found}

        def agreement(text: str, found: Any = found, values: Any = values) -> float:
            mine = values[text]
            return sum(
                p * 2 * len(mine & values[other]) / (len(mine) + len(values[other]))
                for other, p in found.items()
            )

        assert reply.text is not None
        assert agreement(reply.text) == pytest.approx(max(map(agreement, found)))


def test_an_unknown_probability_is_not_shown_as_a_number() -> None:
    reply = smc.ask(LM, "hello", {"type": "string"}, max_tokens=12)
    assert reply.probability is None
    assert reply.confidence_interval is not None
    low, high = reply.confidence_interval
    assert 0 <= low < high <= 1
    assert "probability unknown" in repr(reply) or f"at least {low:.3f}" in repr(reply)
    assert "tokens computed" in repr(reply)
    short = smc.ask(LM, "hello", INTEGER, max_tokens=10)
    enough = smc.sufficient_budget(short.posterior)
    assert f"the budget of 10 tokens binds, {enough} wouldn't" in repr(short)


def test_two_texts_of_one_value_count_together() -> None:
    reply = smc.ask(
        LM, "hello", {"enum": [1, 2]}, max_tokens=8, whitespace="flexible", particles=64
    )
    ones = [text for text in reply.posterior.texts if json.loads(text) == reply.value]
    assert len(ones) > 1
    total = sum(
        p for text, p in zip(reply.posterior.texts, reply.posterior.probabilities, strict=True)
        if text in ones
    )  # fmt: skip
    assert reply.fields[""].best.probability == pytest.approx(total)
    assert reply.alternatives == [3 - reply.value]


@pytest.mark.parametrize("kind", ["a|b", [], [1, 2], ["a", {}], 3, None])
def test_invalid_types_are_refused_before_the_model_is_called(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a type|got None"):
        smc.ask(LM, "x", kind, max_tokens=16)


def test_a_budget_that_no_answer_fits_into_is_refused() -> None:
    with pytest.raises(gcd.InfeasibleBudgetError):
        smc.ask(LM, "x", Day, max_tokens=1)


def test_repr_shows_the_certainty_of_the_answer() -> None:
    shown = repr(smc.ask(LM, "hello", ["yes", "no"], max_tokens=8))
    assert shown.startswith("Reply('")
    assert shown.endswith("certified, 10 tokens computed)")
