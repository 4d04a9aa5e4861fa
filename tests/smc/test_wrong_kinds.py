"""Every entry point refuses a wrong model, prompt, constraint or option in one sentence, unread."""

from __future__ import annotations

import inspect
import io
import itertools
import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcd
import smc
from gcd import Vocabulary
from hmm import HMM
from smc._inference import deadlines
from smc._removed import REMOVED
from smc.testing import ToyLM
from tests.smc.calls import arguments, sample_with
from tests.smc.cases import JSON_VOCABULARY
from tests.smc.toys import VOCABULARY

pytestmark = pytest.mark.usefixtures("unchecked_annotations")


class Unread(ToyLM):
    """A model that fails on any forward pass."""

    def prefill(self, prompts: Any) -> Any:
        raise AssertionError("refusals come before any model work")


LM, UNREAD = ToyLM(VOCABULARY), Unread(VOCABULARY)
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


def lifted(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> gcd.TokenAutomaton:
    return gcd.lift(gcd.regex(pattern), vocabulary)


def written(options: Sequence[str]) -> list[int]:
    return [len(options)]


HMM_ = HMM.random(3, VOCABULARY.size)
BIGRAMS = smc.HMMLookahead(HMM_)
OTHER = lifted("a", Vocabulary.from_bytes([b"a", b""], 1))
GIVEN = {"lm": UNREAD, "prompts": [[0]], "constraint": LIFTED}
CALLS: dict[str, Callable[..., Any]] = {
    "sample": lambda **options: sample_with(**{**GIVEN, **SAMPLED, **options}),
    "a removed argument": lambda **options: smc.sample(**GIVEN, **SAMPLED, **options),
    "generate": lambda **options: smc.generate(**arguments({"constraint": LIFTED, **options})),
    "distribution": lambda **options: smc.distribution(**{**GIVEN, **options}),
    "search": lambda **options: smc.search(
        **{"lm": UNREAD, "prompt": [0], "constraint": LIFTED, "max_tokens": 5, **options}
    ),
    "choose": lambda **options: smc.choose(
        **{"lm": UNREAD, "prompts": [[0]], "options": ["a", "b"], **options}
    ),
    "joint": lambda fields: smc.joint(Unread(JSON_VOCABULARY), [0], fields),
    "ask": lambda kind, **options: smc.ask(UNREAD, "x", kind, **{"max_tokens": 16, **options}),
    "PGCD": lambda hmm=HMM_, **options: smc.PGCD(hmm, **options),
    "Twisted": lambda lookahead=BIGRAMS, **options: smc.Twisted(lookahead, **options),
    "BudgetLogitsProcessor": lambda **options: smc.BudgetLogitsProcessor(
        **{"constraint": LIFTED, "max_tokens": 6, **options}
    ),
}
WHOLE = [
    ("1", "a whole number"),
    (4.5, "a whole number, got 4.5"),
    (True, "a whole number, got True"),
]
POSITIVE = [*WHOLE, (0, "at least 1, got 0")]
# Refused by every call that has the option, as "expected NAME to be ...".
COMMON: dict[str, list[tuple[Any, str]]] = {
    "algorithm": [("beam", "one of auto, smc, discrete, .* got 'beam'")],
    "certify": [(wrong, rf"in \(0, 1\], got {wrong}") for wrong in (0, 1.1)] + [("all", ".*'all'")],
    "deadline": [
        (-1, "at least 0 .* got -1.0"),
        (math.nan, ".*got nan"),
        ("soon", "a number, got"),
    ],
    "max_prefixes": POSITIVE,
    "max_rows": POSITIVE,
    "max_tokens": WHOLE,
    "particles": POSITIVE,
    "proposal": [(wrong, r".*an instance such as smc.GCD\(\), got") for wrong in (smc.GCD, "gcd")],
    "seed": WHOLE,
    "spellings": [("both", "one of all, canonical")],
    "temperature": [
        (0, ".*got 0"),
        (math.nan, ".*got nan"),
        (None, "a number, got None"),
        ("0.5", "a number, got '0.5'"),
    ],
}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "sample": [
        ({"temperature": 0}, "expected temperature .*got 0.*small temperature"),
        ({"temperature": 1e-320}, "overflow, got 1e-320; use a larger temperature"),
        *(({"ess_threshold": x}, f"ess_threshold to be .* got {x}") for x in (-0.1, math.nan)),
        ({"resampling": "best"}, "resampling to be one of .* got 'best'"),
        ({"example_ids": []}, r"expected as many example_ids as prompts \(1\), got 0"),
        ({"example_ids": [0.5]}, "expected example_ids to be a whole number, got 0.5"),
        ({"example_ids": 5}, "expected example_ids to be a list of numbers, got 5"),
        ({"example_ids": [1 << 63]}, "expected example_ids of at most 9007199254740992, got"),
        *(({"kept": wrong}, f"expected kept to be .* got {wrong}") for wrong in (0.5, -1)),
        *(
            ({name: 5}, f"expected {name} to be a function, got 5")
            for name in ("draw", "finished", "observe", "run")
        ),
        ({"abandon": threading.Event}, "expected abandon to be a threading.Event, got <class"),
        *(({"cancel": x}, "cancel to be a threading.Event, got") for x in (True, threading.Event)),
        ({"run": print, "execution": "static"}, "expected smc.Hooks without `run`"),
        ({"max_tokens": [8.7]}, "expected max_tokens to be a whole number, got 8.7"),
        *(({"prompts": [[0], [1, x]]}, f"prompt of example 1, got {x};") for x in (6, -1)),
        ({"prompts": np.array([0, 1])}, r"got a list of token ids; pass \[token_ids\]"),
        *(
            ({"prompts": [[0], prompt]}, r"text or token ids, got .*(one text|$)|got a list of")
            for prompt in ([0, 1.0], [[0, 1]], 3.5, ["a"])
        ),
        (
            {"constraint": lifted("a", Vocabulary.from_bytes(VOCABULARY.token_bytes, [3]))},
            r"EOS ids are \(3, 5\), the constraint's are \(3,\)",
        ),
        (
            {"constraint": lifted("a", Vocabulary.from_bytes([b"b", b"a", *[b""] * 4], [3, 5]))},
            "token 0 has other bytes",
        ),
        ({"constraint": OTHER}, "the model has 6 tokens, the constraint has 2"),
        ({"constraint": gcd.regex("a")}, r"got Automaton.*gcd.lift\(automaton, lm"),
        ({"algorithm": "smc", "strata": "budget"}, "to be one of none, state, got 'budget'"),
        *(({"floor": x}, rf"floor to be in \[0, 1\), got {x}") for x in (1, -0.1, math.nan)),
        *(({"floor": wrong}, "expected floor to be .*") for wrong in ("0.5", True)),
        ({"count_finished": 1}, "expected count_finished to be .*1"),
        ({"proposal": smc.PGCD(HMM.random(3, 9))}, "over 6 tokens.*got one over 9"),
        (  # also if only a later batch of examples would fail
            {"prompts": [[0]] * 3, "constraint": [LIFTED, LIFTED, lifted("(ab){40}")],
             "max_tokens": [4, 4, 90], "max_rows": 2, "proposal": smc.PGCD(HMM_, max_bytes=9999)},
            r"MiB for .* states",
        ),
        *(({"read_ahead": x}, f"expected read_ahead .*got {x!r}") for x in (-1, 1.5, True, "much")),
        ({"read_ahead": 2, "execution": "static"}, "in captured steps, got 2"),
    ],
    "a removed argument": [
        ({name.removesuffix("="): None}, f"was removed; {re.escape(advice)}$")
        for name, advice in REMOVED.items()
        if name.endswith("=")
    ],
    "generate": [
        ({"hooks": {}}, r"expected hooks to be a smc.Hooks\(...\), got {}"),
        ({"finished": print}, "expected smc.Hooks without `finished`"),
        ({"constraint": gcd.regex("a")}, "a TokenAutomaton, got Automaton; use gcd.lift"),
    ],
    "distribution": [
        (
            {"prompts": [[0]] * 2, "constraint": [LIFTED, lifted("a*b")]},
            "constraint of example 1 has answers of any length; pass max_tokens",
        ),
        ({"constraint": gcd.regex("a*")}, "expected a finite language"),
        ({"max_tokens": 1}, "needs at least 2 tokens"),
        ({"constraint": [LIFTED] * 2}, r"as many constraints as prompts \(1\)"),
        ({"constraint": "a|b"}, "to be a TokenAutomaton, got str"),
        ({"spellings": "canonical"}, "made from a tokenizer"),
        ({"prompts": "yes"}, "got a single string"),
        ({"prompts": [()]}, "at least one token in the prompt"),
        ({"constraint": OTHER}, "to be lifted to the model's vocabulary"),
    ],
    "search": [
        ({"answers": 0}, "expected answers .*got 0"),
        ({"max_reads": 0}, "expected max_reads .*got 0"),
        ({"max_tokens": 1}, "needs at least 2 tokens"),
        ({"prompt": ()}, "at least one token in the prompt"),
        ({"prompt": (77,)}, "in the prompt, got 77"),
        ({"constraint": gcd.regex("a")}, "to be a TokenAutomaton, got Automaton"),
        ({"constraint": OTHER}, "to be lifted to the model's vocabulary"),
    ],
    "choose": [
        ({"options": []}, "expected at least one option, got none"),
        *(({"options": x}, "expected a list of options, got") for x in ("yes", {"a": 1}, {"a"})),
        ({"options": ["a", "b", "a"]}, "distinct options, got 'a' at indices 0 and 2"),
        ({"options": ["a", 3]}, "got 3 at index 1; convert it to text, as in '3'"),
        ({"options": [["a"], ["b"]]}, r"expected as many lists of options as prompts \(1\), got 2"),
        ({"options": ["a", "\ud800"]}, "lone surrogate"),
        ({"options": ["c"]}, "can be written with the tokens"),
        ({"prompts": [[0]] * 2, "options": [["a"], []]}, "option of example 1, got none"),
        ({"orders": 2}, "to be a function of the options, as orders=2 requires, got list"),
        ({"orders": 3, "prompts": [written]}, "orders to be at most 2 .* for 2 options, got 3"),
        ({"orders": 0}, "expected orders to be at least 1"),
        ({"spellings": "canonical"}, "got one without"),
    ],
    "joint": [
        ({"fields": {}}, "expected at least one field"),
        ({"fields": [("a", bool)]}, "expected a mapping"),
        ({"fields": {1: bool}}, "expected field names as strings"),
        ({"fields": {"a": []}}, "expected field 'a' to have at least one value"),
        ({"fields": {"a": str}}, "expected field 'a' to be bool, a range"),
        ({"fields": {"a": [1, 1.0]}}, "got 1 and 1.0, which are equal"),
        ({"fields": {"a": [math.inf]}}, "finite numbers"),
        ({"fields": {"a": [[1]]}}, "finite numbers, booleans or None"),
    ],
    "ask": [
        *(({"kind": kind}, "expected a type") for kind in ("a|b", [], ["a", {}], 3)),
        ({"kind": None}, "got None"),
        ({"kind": ["a", "b"], "whitespace": "compact"}, "whitespace.*; (omit it|pass)"),
        ({"kind": gcd.regex("[ab]"), "whitespace": "compact"}, "whitespace.*; (omit it|pass)"),
        ({"kind": LIFTED, "literals": "canonical"}, "literals.*; (omit it|pass)"),
        ({"kind": ["ab"], "max_tokens": 1}, "needs at least 2 tokens"),
        ({"kind": ["ab"], "hooks": smc.Hooks(finished=print)}, "smc.Hooks without `finished`"),
    ],
    "PGCD": [
        ({"hmm": HMM(HMM_.initial, HMM_.transition, HMM_.emission * 2)}, "emission"),
        ({"hmm": HMM(HMM_.initial * math.nan, HMM_.transition, HMM_.emission)}, "initial"),
        ({"hmm": "models/some-hmm"}, r"got str.*hmm\.load"),
        ({"lookahead": "both"}, "lookahead to be one of conditional, .* got 'both'"),
        ({"lookahead": 1.5}, "lookahead to be one of conditional, .* got 1.5"),
        *(({"lookahead": wrong}, "lookahead to be one of") for wrong in (True, math.nan)),
        *(({"exact_top_k": wrong}, "exact_top_k") for wrong in (-1, True, 64.0, "all")),
        ({"max_bytes": -1}, "max_bytes"),
        *(({"defense": wrong}, "defense") for wrong in (1.5, math.nan)),
    ],
    "Twisted": [
        ({"lookahead": "bigram"}, "got str.*smc.PGCD"),
        (
            {"lookahead": smc.HMMLookahead(HMM_, eventual=False), "twist": "in_time"},
            "log_eventual for twist=.*, but HMMLookahead doesn't",
        ),
        ({"twist": "both"}, "twist to be one of conditional"),
        ({"exact_top_k": -1}, "exact_top_k"),
    ],
    "BudgetLogitsProcessor": [
        ({"constraint": [LIFTED, LIFTED], "max_tokens": [6, 1]}, "constraint 1: needs at least"),
        ({"constraint": [LIFTED, LIFTED], "max_tokens": [6]}, r"one per constraint \(2\), got 1"),
        ({"constraint": gcd.regex("a")}, r"a TokenAutomaton, got Automaton; use gcd.lift"),
        ({"constraint": []}, "at least one"),
        ({"lookahead": smc.LCD()}, "expected lookahead to be a proposal .* got LCD"),
        ({"max_tokens": 6.0}, r"whole number of tokens, got 6\.0"),
        ({"max_tokens": None}, "expected max_tokens to be a whole number, got None"),
        ({"prompt_length": 4.0}, r"expected prompt_length to be a whole number, got 4\.0"),
        ({"prompt_length": -1}, "prompt_length to be at least 0, got -1"),
        (
            {"constraint": gcd.lift(gcd.literal("a"), Vocabulary.from_bytes([b"a"], []),
                                    eos="accept")},
            "expected a constraint with an EOS token",
        ),
    ],
}  # fmt: skip


ROWS = [(call, *row) for call, rows in REFUSED.items() for row in rows]
ROWS += [
    (call, {name: wrong}, f"expected {name} to be {message}")
    for call in ("sample", "generate", "distribution", "search", "choose")
    for name, rows in COMMON.items()
    if name in inspect.signature(getattr(smc, call)).parameters
    for wrong, message in rows
]


@pytest.mark.parametrize(("call", "options", "message"), ROWS)
def test_options_without_sense(call: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CALLS[call](**options)


@pytest.mark.parametrize("name", [name for name in REMOVED if not name.endswith("=")])
def test_what_was_removed_names_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name} was removed; {re.escape(REMOVED[name])}$"):
        getattr(smc, name)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    ("model", "prompt", "words"),
    [
        ("gpt2", "a", ("smc.LanguageModel", "'gpt2'", "from_pretrained(name)")),
        (smc.TransformersLM, "a", ("the class TransformersLM", "TransformersLM(model, tokenizer)")),
        (object(), "a", ("got object", "TransformersLM(model, tokenizer)")),
        (None, "a", ("got NoneType",)),
        (LM, None, ("got None",)),
        (LM, b"a", ("got b'a'",)),
        (LM, ["a", "b"], ("one text",)),
        (LM, {"input_ids": [[0]]}, ("input_ids",)),
    ],
)
def test_a_model_or_a_prompt_of_another_kind(
    name: str, model: Any, prompt: Any, words: tuple[str, ...]
) -> None:
    refused(lambda: ENTRIES[name](model, prompt), *words)


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


def test_other_options_of_ask_and_generate() -> None:
    near = {"temper": "temperature", "deadlin": "deadline", "qwertyuiop": "help("}
    for name, option in itertools.product(("ask", "ask_all"), near):
        refused(lambda n=name, o=option: ENTRIES[n](LM, "a", **{o: 1}), f"{option}=1", near[option])
    hooks = smc.Hooks(finished=print)
    for name, options, words in (
        ("ask", {"chat_template_kwarg": {}}, ("chat_template_kwargs?",)),
        ("ask", {"chat_template_kwargs": {"x": 1}}, ("messages",)),
        ("ask", {"chat_template_kwargs": True}, ("mapping",)),
        ("ask_all", {"hooks": hooks}, ("finished", "smc.sample")),
        ("sample", {"hooks": {"draw": None}}, ("smc.Hooks(...)", "draw")),
    ):
        refused(lambda n=name, o=options: ENTRIES[n](LM, "a", **o), *words)


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
    lm = ToyLM(Vocabulary.from_bytes([*[bytes([b]) for b in b"[]12, "], b""], [6]))
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
            found.append(str(call()))
            assert ("smc" in stream.getvalue()) == (is_terminal and not delay)
        assert found[0] == found[1]
