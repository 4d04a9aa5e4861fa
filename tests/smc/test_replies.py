"""Calls or an answer, after a thought: probabilities, values and errors of `smc.ask`.

The truth is summed over all token sequences that a regular expression of single letters defines,
one letter for each token.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest
import regex
from pydantic import BaseModel

import gcd
import smc
from gcd._languages.tools.call_formats import FORMATS
from smc.testing import ToyLM
from tests.gcd.languages.tools.calls import tokenizer_for
from tests.gcd.languages.tools.templates import template_for

# One letter for each token: T and A are Mistral's special tokens, K and k the tags of thoughts.
LETTERS = "TAfynKk."
TOKENS = [b"", b"", b"f", b'{"x": true}', b'{"x": false}', b"", b"</think>", b""]
SPECIAL = {"[TOOL_CALLS]": 0, "[ARGS]": 1, "<think>": 5, "</think>": 6}
VOCABULARY = replace(gcd.Vocabulary.from_bytes(TOKENS, [7]), special_ids=SPECIAL)
PARAMETERS = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
TOOLS = [{"name": "f", "description": "", "parameters": PARAMETERS}]
CALLS = "(TfA[yn])+"
EVERYTHING: dict[str, Any] = {"particles": 4000, "algorithm": smc.Discrete(floor=0)}


class Flag(BaseModel):
    x: bool


def spell(letters: str) -> str:
    return "".join(TOKENS[LETTERS.index(each)].decode() for each in letters)


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
        text = spell(reply)
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_branches_and_values_are_those_of_enumeration(name: str, seed: int) -> None:
    prompt, kind, thinking, pattern = CASES[name]
    budget = 6 if kind is None else 8
    known = {"is_json": kind is Flag, "is_plain": thinking is None}
    lm = ToyLM(VOCABULARY, seed=seed, spread=2.0)
    given: dict[str, Any] = {"tools": TOOLS, "style": "mistral", "thinking": thinking}
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
    assert reply.thought == (spell(thought[0]) if thought else None)
    assert reply.before == (spell(rest.split("T")[0]) if "T" in rest else "")


@pytest.mark.slow
def test_the_probability_of_calls_is_within_three_standard_errors() -> None:
    """Of 20 errors, the default of 16 particles may misjudge one."""
    lm = ToyLM(VOCABULARY, seed=0)
    prompts = [[*map(LETTERS.index, each)] for each in islice(product("fynk", repeat=3), 20)]
    given: dict[str, Any] = {"tools": TOOLS, "style": "mistral", "max_tokens": 5}
    every = smc.ask_all(lm, prompts, particles=1000, algorithm=smc.Discrete(floor=0), **given)
    errors = []
    for exact, found in zip(every, smc.ask_all(lm, prompts, **given), strict=True):
        assert exact.posterior.enumerated
        assert not found.posterior.enumerated
        right, one = exact.branches["calls"], found.branches["calls"]
        assert one.interval is not None
        assert one.interval[0] - 1e-12 <= right.probability <= one.interval[1] + 1e-12
        errors.append((one.probability - right.probability) / one.error)
        assert 0.5 < one.probability / right.probability < 2
    assert sum(abs(each) <= 3 for each in errors) >= 19
    assert sum(abs(each) <= 0.01 for each in errors) < 10


def test_prompts_keep_their_random_numbers() -> None:
    lm, prompts = ToyLM(VOCABULARY), [[1], [2], [3]]
    given: dict[str, Any] = {"tools": TOOLS, "style": "mistral", "max_tokens": 6}
    together = smc.ask_all(lm, prompts, **given)
    alone = smc.ask_all(lm, prompts[2:], example_ids=[2], **given)
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
    for kind, tools, count in ((unique, TOOLS, 2), (None, [tool], 1), (unique, [tool], 2)):
        with pytest.warns(gcd.CaveatWarning) as found:
            reply = smc.ask(lm, [1], kind, tools=tools, **given)
        assert set(reply.branches) == {"calls", "answer"}
        assert len(found) == count


def test_a_budget_that_only_answers_fit_into() -> None:
    for kind, budget in ((["f"], 3), (None, 4)):
        reply = smc.ask(
            ToyLM(VOCABULARY), [1], kind, tools=TOOLS, style="mistral", max_tokens=budget
        )
        assert reply.branches["answer"].probability == 1
        assert set(reply.branches) == {"answer", "calls"}
        assert not reply.calls


def test_a_thought_before_an_answer_without_tools() -> None:
    lm = ToyLM(VOCABULARY, seed=1)
    reply = smc.ask(lm, [1], Flag, thinking=3, max_tokens=7, **EVERYTHING)
    exact: dict[str, float] = defaultdict(float)
    for letters, p in truth(lm, [1], "K[fyn]?k[yn]", 7).items():
        exact[letters[-1]] += p
    best = max(exact, key=exact.__getitem__)
    assert reply.value == Flag(x=best == "y")
    assert reply.probability == pytest.approx(exact[best])
    assert reply.posterior.valid
    assert (reply.branches, reply.calls) == ({}, [])
    prompts = [[1], [1, 5]]  # one of them has opened the thought
    for one, each in zip(
        smc.ask_all(lm, prompts, ["f"], thinking=2, max_tokens=7), prompts, strict=True
    ):
        assert one.value == "f"
        assert (one.posterior.particles[0].ids[0] == 5) == (5 not in each)


@pytest.mark.parametrize("name", ["hermes", "mistral", "glm45", "openai", "pythonic"])
def test_the_chat_template_decides_about_the_format(name: str) -> None:
    tokenizer = tokenizer_for(FORMATS[name])
    tokenizer.chat_template = template_for(name)
    lm = ToyLM(gcd.Vocabulary.from_tokenizer(tokenizer), seed=2)
    lm.tokenizer = tokenizer  # type: ignore[attr-defined]
    messages = [{"role": "user", "content": "Call f."}]
    for seed in range(2):
        reply = smc.ask(
            lm,
            messages,
            ["yes"],
            tools=iter(TOOLS),
            max_tokens=180,
            particles=1,
            seed=seed,
            thinking=40,
        )
        assert reply.posterior.valid
        assert reply.thought is not None
        assert reply.value == (reply.calls or "yes")
        for call in reply.calls:
            assert (call["name"], [*map(type, call["arguments"].values())]) == ("f", [bool])


def test_whitespace_is_that_of_the_calls_if_answers_are_text() -> None:
    for kind in (["f"], gcd.choice(["f"])):
        lm, options = ToyLM(VOCABULARY), {"tools": TOOLS, "style": "mistral", "max_tokens": 40}
        assert smc.ask(lm, [1], kind, whitespace="compact", **options).branches
        with pytest.raises(ValueError, match="whitespace only for answers in JSON"):
            smc.ask(lm, [1], kind, whitespace="compact", max_tokens=40)


LIFTED = gcd.lift(gcd.choice(["f"]), VOCABULARY)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": None}, "got None"),
    ({"kind": ["f"], "style": "mistral"}, "style only with tools"),
    ({"kind": LIFTED, "thinking": 3}, "isn't lifted"),
    ({"kind": LIFTED, "style": "mistral"}, "style only with tools"),
    ({"kind": LIFTED, "tools": TOOLS, "style": "mistral"}, "isn't lifted"),
    ({"kind": TOOLS, "tools": TOOLS, "style": "mistral"}, "tools once"),
    ({"tools": TOOLS}, "pass the name of a format as style"),
    ({"tools": TOOLS, "style": "mistrel"}, "got 'mistrel'"),
    ({"tools": TOOLS, "style": "granite"}, "special token '<|tool_call|>'"),
    ({"tools": [*TOOLS, *TOOLS], "style": "mistral"}, "different names, got 'f'"),
    ({"tools": [], "style": "mistral"}, "there are no tools"),
    ({"tools": [{"name": "g h"}], "style": "mistral"}, "rename the tool"),
    ({"kind": ["f"], "thinking": 0}, "thinking to be at least 1"),
    ({"kind": ["f"], "thinking": "9"}, "thinking"),
    ({"kind": ["f"], "thinking": 1}, "needs at least 2 tokens"),
    (
        {"kind": ["f"], "thinking": 6},
        "thinking=6 with a shortest answer of 2 tokens: needs at least 8 tokens .* budget is 7",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_requests_are_refused_in_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smc.ask(ToyLM(VOCABULARY), [1], max_tokens=7, **given)
