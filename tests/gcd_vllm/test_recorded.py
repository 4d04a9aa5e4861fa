"""Both processors get the calls that vLLM 0.32 made, and mask as matchers do.

`tests_vllm/recording.py` says what a record is. The engines ran a random model of 512 tokens, with
so little memory that they preempt; V1 scheduled asynchronously, V2 drafted two tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import gcd
from gcd_vllm import Processor
from tests.gcd_vllm.fakes import (
    BatchUpdate,
    MoveDirectionality,
    RequestStates,
    SamplingParams,
    VllmConfig,
    allowed_after,
    finite,
    lifted,
    v2_context,
)
from tests_vllm.cases import CONSTRAINTS

FOLDER = Path(__file__).parent / "recorded"
STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"
SIZE, LENGTH = 512, 128  # tokens of the vocabulary, max_model_len


@pytest.fixture(scope="module")
def stories():
    return gcd.Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(STORIES), size=SIZE)


class Request:
    """A request of the record, and a matcher that is told its tokens."""

    def __init__(self, recorded, vocabulary):
        constraint, most, self.prompt = recorded
        text = json.dumps(CONSTRAINTS[constraint])
        self.params = SamplingParams(max_tokens=most, extra_args={"gcd": text})
        budget = min(most, LENGTH - len(self.prompt))
        self.matcher = gcd.Matcher(lifted(text, vocabulary), budget=budget)
        self.output = []

    def allowed(self, output, draft=()):
        """Return the tokens allowed after an output that the processor has allowed."""
        assert output[: len(self.output)] == self.output
        for token in output[len(self.output) :]:
            # A step that was scheduled before the end was known writes one more.
            assert self.ended or self.matcher.advance(token)
            self.output.append(token)
        return allowed_after(self.matcher, list(draft), SIZE)

    @property
    def ended(self):
        return bool(set(self.output) & set(self.matcher.automaton.vocabulary.eos_ids))


def events(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_v1_masks_what_it_was_asked_as_matchers_do(stories):
    processor = Processor(VllmConfig(stories, max_model_len=LENGTH), torch.device("cpu"), False)
    batch, lists, ended = {}, {}, set()
    for kind, *event in events("v1"):
        if kind == "update":
            removed, added, moved = event
            entered = [(i, Request(given, stories), name) for i, given, name in added]
            lists |= {name: [] for *_, name in added}
            given = [(i, r.params, r.prompt, lists[name]) for i, r, name in entered]
            directed = [(here, there, MoveDirectionality[how]) for here, there, how in moved]
            processor.update_state(BatchUpdate(0, removed, given, directed))
            for index in removed:
                batch.pop(index, None)
            batch |= {i: (request, name) for i, request, name in entered}
            for here, there, how in moved:
                one, other = batch.pop(here, None), batch.pop(there, None)
                batch |= {} if one is None else {there: one}
                batch |= {here: other} if other is not None and how == "SWAP" else {}
            continue
        rows, now = event
        for name, (same, more) in now.items():
            lists[int(name)][same:] = more
        logits = processor.apply(torch.zeros(rows, SIZE))
        for index, (request, name) in batch.items():
            assert finite(logits[index]) == request.allowed(lists[name])
            ended |= {name} if request.ended else set()
    assert ended


def test_v2_masks_what_it_was_asked_as_matchers_do(stories):
    states = RequestStates(8, LENGTH, SIZE)
    processor = Processor(VllmConfig(stories, max_model_len=LENGTH, drafts=2), states)
    requests, held, drafts = {}, {}, 0
    for kind, *event in events("v2"):
        if kind == "add":
            slot, given = event
            requests[slot] = Request(given, stories)
            states.prompt_len.np[slot] = len(requests[slot].prompt)
            assert processor.add_request(slot, requests[slot].params)
            continue
        order, rows, local, ids, slots = event
        for slot in order:
            prefill, (same, more) = slots[str(slot)]
            held[slot] = held.get(slot, [])[:same] + more
            states.enter(slot, requests[slot].prompt, held[slot][len(requests[slot].prompt) :])
            states.prefill_len.np[slot] = prefill
        processor.apply_staged_writes()
        context = v2_context(order, [*zip(rows, local, ids, strict=True)])
        logits = processor.apply(torch.zeros(len(rows), SIZE), context)
        for row, (slot, place) in enumerate(zip(rows, local, strict=True)):
            request = requests[slot]
            output = held[slot][len(request.prompt) :]
            draft = ids[row - place + 1 : row + 1]
            assert finite(logits[row]) == request.allowed(output, draft)
            drafts += place > 0
    assert drafts > 0
