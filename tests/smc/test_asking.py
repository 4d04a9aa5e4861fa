"""A single call returns a typed value with the probability from enumeration, or calls of tools."""

from __future__ import annotations

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

import pytest
import regex
from pydantic import BaseModel, TypeAdapter, field_validator

import gcd
import smc
from gcd import Vocabulary
from gcd._languages.tools.call_formats import FORMATS
from smc.testing import ToyLM, target
from tests.gcd.languages.tools.calls import tokenizer_for
from tests.gcd.languages.tools.templates import template_for
from tests.smc.calls import sample_with
from tests.smc.walks import by_text

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
BOOLEAN = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}


def record(required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties; `required` is the required one."""
    inside = {"properties": properties, "required": [required], "additionalProperties": False}
    return {"type": "object", **inside}


INTEGER = record("day", day={"type": "integer"})
SEVERAL = record("a", **{name: {"type": "boolean"} for name in "abc"})


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
    reply = smc.ask(LM, "hello", kind, max_tokens=16, particles=64)
    sequences = target(LM, LM.encode("hello"), gcd.lift(language, VOCABULARY), 16)
    mass = by_text(sequences, VOCABULARY)
    best = max(mass, key=mass.__getitem__)
    assert reply.text == best.decode()
    assert reply.value == parse(best.decode())
    low, high = reply.confidence_interval
    assert low - 1e-9 <= mass[best] / math.fsum(mass.values()) <= high + 1e-9
    assert low <= reply.probability <= high
    assert reply.reliability.label == "certified"
    assert reply.budget is not None
    assert bool(reply.fields) == (parse is not str)


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
    lm, constraint = chatting(reads_tools=False), gcd.lift(gcd.choice(["a", "b"]), VOCABULARY)
    ids = lm.tokenizer.apply_chat_template(MESSAGES)  # type: ignore[attr-defined]
    options: Any = {"max_tokens": 4, "particles": 3, "proposal": smc.GCD()}
    calls: list[Callable[[Any], Any]] = [
        lambda prompt: smc.ask(lm, prompt, Day, max_tokens=16).text,
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
        smc.ask(LM, MESSAGES, Day, max_tokens=16)
    with pytest.raises(ValueError, match="chat template"):
        smc.choose(LM, [MESSAGES], ["a", "b"])
    for call in (calls[0], calls[4]):
        with pytest.raises(ValueError, match="template accepts, got its error \"'content'\""):
            call([{"role": "user"}])
    given, count = {"language": "fi"}, len(lm.tokenizer.seen)  # type: ignore[attr-defined]
    smc.ask_all(lm, ["x", MESSAGES], Day, max_tokens=16, chat_template_kwargs=given)
    assert lm.tokenizer.seen[count:] == [PLAIN | given]  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="reads lang,"):
        smc.ask(lm, MESSAGES, Day, max_tokens=16, chat_template_kwargs={"lang": "fi"})


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
BEDROCK = {"name": "go", "description": "Go there.", "inputSchema": {"json": PARAMETERS}}


@pytest.mark.parametrize(
    "tools",
    [
        [WRAPPED],
        [{"functionDeclarations": [{**FUNCTION, "parameters": {**PARAMETERS, "type": "OBJECT"}}]}],
        {"toolConfig": {"tools": [{"toolSpec": BEDROCK}]}},
    ],
)
def test_tools_reach_the_template_in_one_form(tools: Any) -> None:
    lm = chatting()
    reply = smc.ask(lm, MESSAGES, tools, max_tokens=60, particles=2)
    assert reply.value[0]["arguments"]["day"] in (1, 2)
    [shown] = lm.tokenizer.seen[0]["tools"]  # type: ignore[attr-defined]
    assert shown == WRAPPED


def test_a_template_without_tools_is_reported() -> None:
    lm = chatting(reads_tools=False)
    with pytest.warns(UserWarning, match=r"shows tools.*\(go\)"):
        smc.ask(lm, MESSAGES, [FUNCTION], max_tokens=60, particles=1)
    told = [{"role": "user", "content": "call go"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smc.ask(lm, told, [FUNCTION], max_tokens=60, particles=1)


@pytest.mark.parametrize("tag", ["<think>\n\n ", "<seed:think>", "[THINK]"])
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
    rejected = 0
    for reply, other in zip(replies, plain, strict=True):
        ranked = [other.value, *other.alternatives]
        even = [each["day"] for each in ranked if each["day"] % 2 == 0]
        if not even:
            message = r"accept, but they reject all \d+ that were found .*odd.*particles"
            with pytest.raises(ValueError, match=message):
                _ = reply.value
            assert reply.text in reply.refused
            assert reply.alternatives == []
            rejected += 1
            continue
        assert [reply.value.day, *(each.day for each in reply.alternatives)] == even
        first = next(i for i, each in enumerate(ranked) if each["day"] % 2 == 0)
        assert len(reply.refused) == first
        assert all("odd" in error for error in reply.refused.values())
        assert json.loads(reply.text or "")["day"] == reply.value.day
    assert 0 < rejected < sum(bool(reply.refused) for reply in replies)


@pytest.mark.parametrize("kind", [gcd.regex("[ab]{1,6}"), {"type": "integer"}, Pair])
def test_temperature_zero_is_greedy_decoding(kind: Any) -> None:
    language = kind if isinstance(kind, gcd.Automaton) else gcd.json_schema(kind)
    constraint = gcd.lift(language, VOCABULARY)
    for prompt in range(3):
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
    for prompt in range(4):
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

        assert agreement(reply.text) == pytest.approx(max(map(agreement, found)))


def test_repr_shows_the_certainty_of_the_answer() -> None:
    shown = repr(smc.ask(LM, "hello", ["yes", "no"], max_tokens=8))
    assert shown.startswith("Reply('")
    assert shown.endswith("certified, 10 tokens computed)")
    reply = smc.ask(LM, "hello", {"type": "string"}, max_tokens=12)
    assert reply.probability is None
    low, high = reply.confidence_interval
    assert 0 <= low < high <= 1
    assert "probability unknown" in repr(reply) or f"at least {low:.3f}" in repr(reply)
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


# -- calls or an answer, after a thought -----------------------------------------------------------


# One letter for each token: T and A are Mistral's special tokens, K and k the tags of thoughts.
LETTERS = "TAfynKk."
WORDS = [b"", b"", b"f", b'{"x": true}', b'{"x": false}', b"", b"</think>", b""]
SPECIAL = {"[TOOL_CALLS]": 0, "[ARGS]": 1, "<think>": 5, "</think>": 6}
REPLIES = replace(gcd.Vocabulary.from_bytes(WORDS, [7]), special_ids=SPECIAL)
TOOLS_OF_X = [{"name": "f", "description": "", "parameters": BOOLEAN}]
CALLS = "(TfA[yn])+"
EVERYTHING: dict[str, Any] = {"particles": 4000, "algorithm": smc.Discrete(floor=0)}


class Flag(BaseModel):
    x: bool


def write_letters(letters: str) -> str:
    return "".join(WORDS[LETTERS.index(each)].decode() for each in letters)


def truth(lm: ToyLM, prompt: list[int], pattern: str, budget: int) -> dict[str, float]:
    """Return the probability of every text of letters that matches the pattern, and of EOS."""
    found, whole = {}, regex.compile(pattern)

    def visit(letters: str, p: float) -> None:
        if not whole.fullmatch(letters, partial=True) or len(letters) >= budget:
            return
        after = lm.log_p((*prompt, *map(LETTERS.index, letters))).exp().tolist()
        if whole.fullmatch(letters):
            found[letters] = p * after[-1]
        for letter, each in zip(LETTERS[:-1], after, strict=False):
            visit(letters + letter, p * each)

    visit("", 1.0)
    total = math.fsum(found.values())
    return {letters: p / total for letters, p in found.items()}


def write(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def document(letters: str, *, is_json: bool = False, is_plain: bool = False) -> str:
    """Return a reply without its thought, as `Reply.heads` describes it."""
    reply = letters if is_plain else letters.split("k")[-1]
    if "T" not in reply:
        text = write_letters(reply)
        return write({"answer": json.loads(text) if is_json else text})
    inside = reply[reply.index("T") :]
    calls = [{"name": "f", "arguments": {"x": each == "y"}} for each in inside if each in "yn"]
    return write({"calls": calls})


# The prompt, the type of answers, the limit of a thought, and the pattern of all replies.
CASES = {
    "text": ([1], None, None, f"[fynk]*({CALLS})?"),
    "labels": ([1], ["f", "ff", "fff"], None, f"f{{1,3}}|{CALLS}"),
    "json": ([2], Flag, None, f"[yn]|{CALLS}"),
    "thought": ([3], Flag, 3, f"K[fyn]?k([yn]|{CALLS})"),
    "opened": ([4, 5], ["f", "ff"], 2, f"[fyn]?k(ff?|{CALLS})"),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_branches_and_values_are_those_of_enumeration(name: str, seed: int) -> None:
    prompt, kind, thinking, pattern = CASES[name]
    budget = 6 if kind is None else 8
    known = {"is_json": kind is Flag, "is_plain": thinking is None}
    lm = ToyLM(REPLIES, seed=seed, spread=2.0)
    given: dict[str, Any] = {"tools": TOOLS_OF_X, "style": "mistral", "thinking": thinking}
    reply = smc.ask(lm, prompt, kind, max_tokens=budget, **EVERYTHING, **given)
    assert reply.posterior.enumerated
    exact: dict[str, float] = defaultdict(float)
    every = truth(lm, prompt, pattern, budget)
    for letters, p in every.items():
        exact[document(letters, **known)] += p
    found = {each.value: each.probability for each in reply.fields[""].values}
    assert found == pytest.approx(exact, abs=1e-9)
    calls = math.fsum(p for each, p in exact.items() if "calls" in each)
    assert 0 < calls < 1
    assert reply.branches["calls"].probability == pytest.approx(calls)
    assert reply.branches["answer"].probability == pytest.approx(1 - calls)
    assert bool(reply.calls) == (calls > 0.5)
    assert next(iter(reply.branches)) == ("calls" if calls > 0.5 else "answer")
    if reply.calls:
        assert reply.value == reply.calls == json.loads(reply.text or "")
        chosen = write({"calls": reply.calls})
    else:
        chosen = max((each for each in exact if "answer" in each), key=exact.__getitem__)
        value = json.loads(chosen)["answer"]
        assert reply.value == (Flag(**value) if kind is Flag else value)
    assert reply.probability == pytest.approx(exact[chosen])
    # The head is that of the most probable sequence of tokens.
    same = {k: p for k, p in every.items() if document(k, **known) == chosen}
    top = max(same, key=same.__getitem__)
    *thought, rest = [top] if thinking is None else top.removeprefix("K").split("k")
    assert reply.thought == (write_letters(thought[0]) if thought else None)
    assert reply.before == (write_letters(rest.split("T")[0]) if "T" in rest else "")


def test_prompts_keep_their_random_numbers() -> None:
    lm, prompts = ToyLM(REPLIES), [[1], [2], [3]]
    given: dict[str, Any] = {"tools": TOOLS_OF_X, "style": "mistral", "max_tokens": 6}
    together = smc.ask_all(lm, prompts, **given)
    alone = smc.ask_all(lm, prompts[2:], example_ids=[2], **given)
    assert smc.ask(lm, prompts[0], **given).posterior.probabilities == (
        together[0].posterior.probabilities
    )
    assert alone[0].posterior.probabilities == together[2].posterior.probabilities
    assert smc.ask_all(lm, [], **given) == []
    with pytest.raises(ValueError, match=r"expected as many example_ids as prompts \(3\), got 1"):
        smc.ask_all(lm, prompts, example_ids=[1], **given)


def test_keywords_that_are_left_to_a_check() -> None:
    letters = [bytes([byte]) for byte in range(256)]
    lm = ToyLM(gcd.Vocabulary.from_bytes([*letters, b""], [256]))
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    tool = {"name": "g", "parameters": {"properties": {"x": unique}, "required": ["x"]}}
    given: dict[str, Any] = {"style": "hermes", "max_tokens": 90, "particles": 4}
    for kind, tools, count in ((unique, TOOLS_OF_X, 2), (None, [tool], 1)):
        with pytest.warns(gcd.CaveatWarning) as found:
            reply = smc.ask(lm, [1], kind, tools=tools, **given)
        assert set(reply.branches) == {"calls", "answer"}
        assert len(found) == count


def test_a_budget_that_only_answers_fit_into() -> None:
    for kind, budget in ((["f"], 3), (None, 4)):
        reply = smc.ask(
            ToyLM(REPLIES), [1], kind, tools=TOOLS_OF_X, style="mistral", max_tokens=budget
        )
        assert reply.branches["answer"].probability == 1
        assert set(reply.branches) == {"answer", "calls"}
        assert not reply.calls


def test_a_thought_before_an_answer_without_tools() -> None:
    prompts = [[1], [1, 5]]  # one of them has opened the thought
    replies = smc.ask_all(ToyLM(REPLIES, seed=1), prompts, ["f"], thinking=2, max_tokens=7)
    for reply, prompt in zip(replies, prompts, strict=True):
        assert reply.value == "f"
        assert reply.posterior.valid
        assert (reply.branches, reply.calls) == ({}, [])
        assert (reply.posterior.particles[0].ids[0] == 5) == (5 not in prompt)


@pytest.mark.parametrize("name", ["mistral", "openai"])
def test_the_chat_template_decides_about_the_format(name: str) -> None:
    tokenizer = tokenizer_for(FORMATS[name])
    tokenizer.chat_template = template_for(name)
    lm = ToyLM(gcd.Vocabulary.from_tokenizer(tokenizer), seed=2)
    lm.tokenizer = tokenizer  # type: ignore[attr-defined]
    messages = [{"role": "user", "content": "Call f."}]
    for seed in range(2):
        reply = smc.ask(
            lm, messages, ["yes"], tools=iter(TOOLS_OF_X), max_tokens=180, particles=1, seed=seed,
            thinking=40,
        )  # fmt: skip
        assert reply.posterior.valid
        assert reply.thought is not None
        assert reply.value == (reply.calls or "yes")
        for call in reply.calls:
            assert (call["name"], [*map(type, call["arguments"].values())]) == ("f", [bool])


def test_whitespace_is_that_of_the_calls_if_answers_are_text() -> None:
    given: dict[str, Any] = {"tools": TOOLS_OF_X, "style": "mistral", "max_tokens": 40}
    for kind in (["f"], gcd.choice(["f"])):
        assert smc.ask(ToyLM(REPLIES), [1], kind, whitespace="compact", **given).branches


LIFTED = gcd.lift(gcd.choice(["f"]), REPLIES)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": LIFTED, "thinking": 3}, "isn't lifted"),
    ({"kind": LIFTED, "style": "mistral"}, "style only with tools"),
    ({"kind": TOOLS_OF_X, "tools": TOOLS_OF_X, "style": "mistral"}, "tools once"),
    ({"tools": TOOLS_OF_X}, "pass the name of a format as style"),
    ({"tools": TOOLS_OF_X, "style": "mistrel"}, "got 'mistrel'"),
    ({"tools": TOOLS_OF_X, "style": "granite"}, "special token '<|tool_call|>'"),
    ({"tools": [*TOOLS_OF_X, *TOOLS_OF_X], "style": "mistral"}, "different names, got 'f'"),
    ({"tools": [], "style": "mistral"}, "there are no tools"),
    ({"tools": [{"name": "g h"}], "style": "mistral"}, "rename the tool"),
    ({"kind": ["f"], "thinking": 0}, "thinking to be at least 1"),
    ({"kind": ["f"], "thinking": 1}, "needs at least 2 tokens"),
    (
        {"kind": ["f"], "thinking": 6},
        "thinking=6 with a shortest answer of 2 tokens: needs at least 8 tokens .* budget is 7",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_requests_are_refused_in_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smc.ask(ToyLM(REPLIES), [1], max_tokens=7, **given)
