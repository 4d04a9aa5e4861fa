"""Every entry point refuses a wrong kind of model, prompt, constraint or option in one sentence."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gcd
import smc
from gcd import Vocabulary
from smc._inference import deadlines
from smc.testing import ToyLM
from tests.smc.calls import sample_with

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b""], [2])
LM = ToyLM(VOCABULARY)
LIFTED = gcd.lift(gcd.regex("a|b"), VOCABULARY)
SAMPLED = {"max_tokens": 3, "particles": 2, "proposal": smc.GCD()}
ENTRIES: dict[str, Callable[..., Any]] = {
    "ask": lambda lm, prompt, **options: smc.ask(lm, prompt, ["a"], max_tokens=3, **options),
    "ask_all": lambda lm, prompt, **options: smc.ask_all(
        lm, [prompt], ["a"], max_tokens=3, **options
    ),
    "sample": lambda lm, prompt, **options: sample_with(lm, [prompt], LIFTED, **SAMPLED, **options),
    "choose": lambda lm, prompt, **options: smc.choose(lm, [prompt], ["a"], **options),
    "distribution": lambda lm, prompt, **options: smc.distribution(lm, [prompt], LIFTED, **options),
    "joint": lambda lm, prompt, **options: smc.joint(lm, prompt, {"a": bool}, **options),
    "search": lambda lm, prompt, **options: smc.search(lm, prompt, LIFTED, max_tokens=3, **options),
}


def refused(call: Callable[[], Any], *words: str) -> str:
    """Return the message of an error, which is one sentence that begins with "expected"."""
    with pytest.raises((ValueError, OSError)) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("expected ")
    assert "\n" not in text
    for word in words:
        assert word in text
    return text


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt2", ("'gpt2'", 'from_pretrained(name)')),
        (smc.TransformersLM, ("the class TransformersLM", "TransformersLM(model, tokenizer)")),
        (object(), ("got object", "TransformersLM(model, tokenizer)")),
        (None, ("got NoneType",)),
    ],
)  # fmt: skip
def test_a_model_that_is_no_language_model(name: str, model: Any, words: tuple[str, ...]) -> None:
    refused(lambda: ENTRIES[name](model, "a"), "smc.LanguageModel", *words)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        (None, "got None"),
        (b"a", "got b'a'"),
        (["a", "b"], "one text"),
        ({"input_ids": [[0]]}, "input_ids"),
    ],
)
def test_a_prompt_of_another_kind(name: str, prompt: Any, word: str) -> None:
    refused(lambda: ENTRIES[name](LM, prompt), word)


@pytest.mark.parametrize("call", [smc.ask_all, smc.sample, smc.choose, smc.distribution])
@pytest.mark.parametrize(
    ("prompts", "word"),
    [
        ("a", "[prompt]"),
        ([0, 1], "[token_ids]"),
        ([{"role": "user", "content": "a"}], "[messages]"),
        (None, "NoneType"),
        ((text for text in "ab"), "list(prompts)"),
        ({"input_ids": [[0]]}, "input_ids"),
    ],
)
def test_prompts_that_are_no_list(call: Callable[..., Any], prompts: Any, word: str) -> None:
    options = {smc.ask_all: {"max_tokens": 3}, smc.sample: SAMPLED}.get(call, {})
    kind = LIFTED if call in (smc.sample, smc.distribution) else ["a"]
    refused(lambda: call(LM, prompts, kind, **options), "a list of prompts", word)


@pytest.mark.parametrize("name", ["ask", "ask_all"])
@pytest.mark.parametrize(
    ("option", "near"),
    [("temper", "temperature"), ("sed", "seed"), ("deadlin", "deadline"), ("qwertyuiop", "help(")],
)
def test_a_misspelt_option(name: str, option: str, near: str) -> None:
    refused(lambda: ENTRIES[name](LM, "a", **{option: 1}), f"{option}=1", near)


def test_other_options_of_ask_and_generate() -> None:
    refused(lambda: ENTRIES["ask"](LM, "a", chat_template_kwarg={}), "chat_template_kwargs?")
    refused(lambda: ENTRIES["ask"](LM, "a", chat_template_kwargs={"x": 1}), "messages")
    refused(lambda: ENTRIES["ask"](LM, "a", chat_template_kwargs=True), "mapping")
    hooks = smc.Hooks(finished=print)
    refused(lambda: ENTRIES["ask_all"](LM, "a", hooks=hooks), "finished", "smc.sample")
    refused(lambda: ENTRIES["sample"](LM, "a", hooks={"draw": None}), "smc.Hooks(...)", "draw")


def test_a_constraint_of_another_kind_names_what_makes_one() -> None:
    for kind, word in (({}, "json_schema"), ("a", "regex"), (gcd.regex("a"), "gcd.lift(automaton")):
        refused(lambda kind=kind: sample_with(LM, ["a"], kind, **SAMPLED), word)
    refused(lambda: smc.ask(LM, "a", 3, max_tokens=3), "whose value is text")
    assert smc.ask(LM, "a", LIFTED, max_tokens=3).value in ("a", "b")


def test_loading_what_is_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    hub = pytest.importorskip("huggingface_hub")
    load = smc.TransformersLM.from_pretrained
    refused(lambda: load(LM), "ToyLM", "TransformersLM(model, tokenizer)")
    refused(lambda: load("x", device="cpu"), "device='cpu'", "device_map", ".to(device)")
    refused(lambda: load("x", compile=True), "compile=True", "TransformersLM(model, tokenizer)")
    refused(lambda: load("/no/such/folder"), "'/no/such/folder'", "neither")

    def is_away(*given: Any, **options: Any) -> None:
        assert options["timeout"] < 10
        raise ConnectionError("no network")

    monkeypatch.setattr(hub, "model_info", is_away)
    for options in ({}, {"local_files_only": True}):
        refused(lambda o=options: load("no-such/model", **o), "'no-such/model'", "can't be asked")
    snapshot = tmp_path / "models--own--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--own--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    seen = []

    def record(path: str, **options: Any) -> None:
        seen.append(path)
        raise TypeError("f() got an unexpected keyword argument 'dtipe'")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", record)
    given = {"cache_dir": str(tmp_path), "dtipe": "x"}
    refused(lambda: load("own/model", **given), "dtipe='x'")
    assert seen == [str(snapshot)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_calls_show_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    pytest.importorskip("tqdm")
    kind = {"type": "array", "items": {"enum": [1, 2]}}
    vocabulary = Vocabulary.from_bytes([*[bytes([b]) for b in b"[]12, "], b""], [6])
    lm = ToyLM(vocabulary)
    calls: list[Callable[[], Any]] = [
        lambda: smc.ask_all(lm, [[0], [1]], kind, max_tokens=9, max_rows=16),
        lambda: smc.choose(lm, [[0], [1]], ["1", "2"], max_rows=1),
    ]
    for call in calls:
        found = []
        for delay in (0.0, 60.0):
            stream = Terminal() if is_terminal else io.StringIO()
            monkeypatch.setattr(sys, "stderr", stream)
            monkeypatch.setattr(deadlines, "DELAY", delay)
            found.append(call())
            assert ("smc" in stream.getvalue()) == (is_terminal and not delay)
        assert [each.probabilities for each in found[0]] if call is calls[1] else True
        assert str(found[0]) == str(found[1])
