"""Record the calls of an engine to a processor, as plain lists in JSON.

`tests/gcd_vllm/test_recorded.py` hands it to the processors again, without vLLM.
`RECORD=1 make vllm` records anew.

A record is one list of events. In both model runners, a request is [constraint, maximum number of
tokens, prompt], with the constraint as a number of `CONSTRAINTS`. Tokens are [n, more]: those of
the last event of the same list up to the nth, and more.

    V1: ["update", removed, [[index, request, list], ...], [[here, there, "SWAP" or other], ...]]
        ["apply", number of rows, {list: tokens}]
    V2: ["add", slot, request]
        ["apply", slots of the batch, slot of each row, place of each row in its draft, token that
         each row read, {slot: [tokens at its last entering, tokens]}]
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests_vllm.cases import CONSTRAINTS

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "gcd_vllm" / "recorded"


class Recording:
    """The events so far; `write` keeps them if `RECORD` is set."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._last: dict[int, list[int]] = {}

    def tokens(self, name: int, now: list[int]) -> list[Any]:
        """Say which tokens a list has now, by those it had."""
        last = self._last.get(name, [])
        same = 0
        while same < min(len(last), len(now)) and last[same] == now[same]:
            same += 1
        self._last[name] = list(now)
        return [same, now[same:]]

    def write(self, name: str) -> None:
        if os.environ.get("RECORD"):
            FOLDER.mkdir(exist_ok=True)
            lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in self.events)
            (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def request_of(params: Any, prompt: list[int]) -> list[Any]:
    """A request as the record has it."""
    constraint = json.loads(params.extra_args["gcd"])
    return [CONSTRAINTS.index(constraint), params.max_tokens, prompt]


def recorded_v1(monkeypatch: Any) -> Recording:
    """Record the calls of V1."""
    from gcd_vllm._v1 import EngineProcessor

    made, lists = Recording(), []
    update, apply = EngineProcessor.update_state, EngineProcessor.apply

    def updated(self: Any, batch_update: Any) -> None:
        if batch_update is not None:
            added = []
            for index, params, prompt, tokens in batch_update.added:
                added.append([index, request_of(params, prompt), len(lists)])
                lists.append(tokens)
            moved = [[here, there, kind.name] for here, there, kind in batch_update.moved]
            made.events.append(["update", list(batch_update.removed), added, moved])
        update(self, batch_update)

    def applied(self: Any, logits: Any) -> Any:
        lists_now = {
            number: made.tokens(number, tokens)
            for number, tokens in enumerate(lists)
            if any(row.tokens is tokens for row in self._rows.values())
        }
        made.events.append(["apply", len(logits), lists_now])
        return apply(self, logits)

    monkeypatch.setattr(EngineProcessor, "update_state", updated)
    monkeypatch.setattr(EngineProcessor, "apply", applied)
    return made


def recorded_v2(monkeypatch: Any) -> Recording:
    """Record the calls of V2, and what its buffers hold when it asks for masks."""
    from gcd_vllm._v2 import EngineProcessor

    made = Recording()
    add, apply = EngineProcessor.add_request, EngineProcessor.apply
    prompts: dict[int, Any] = {}

    def added(self: Any, slot: int, params: Any) -> bool:
        made.events.append(["add", slot, request_of(params, [])])
        prompts[slot] = made.events[-1][2]
        return add(self, slot, params)

    def applied(self: Any, logits: Any, ctx: Any) -> Any:
        states, slots = self._requests, {}
        for slot in ctx.idx_mapping_np.tolist():
            tokens = states.all_token_ids.gpu[slot, : int(states.total_len.gpu[slot])].tolist()
            prompts[slot][2] = tokens[: int(states.prompt_len.np[slot])]
            slots[slot] = [int(states.prefill_len.np[slot]), made.tokens(slot, tokens)]
        rows = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids)
        event = ["apply", ctx.idx_mapping_np.tolist(), *(row.tolist() for row in rows), slots]
        made.events.append(event)
        return apply(self, logits, ctx)

    monkeypatch.setattr(EngineProcessor, "add_request", added)
    monkeypatch.setattr(EngineProcessor, "apply", applied)
    return made
