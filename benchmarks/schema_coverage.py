"""Coverage and compliance of JSON schemas, as JSONSchemaBench defines them (arXiv 2501.10868).

    pip install '.[benchmark]'
    OMP_NUM_THREADS=1 python -m benchmarks.schema_coverage ../shared/data/public_schemas

Every twelfth schema of a folder is compiled by this project, xgrammar, llguidance and
outlines-core. SmolLM2-135M-Instruct writes an answer greedily under each engine's mask, at most 200
tokens long.

    declared     share of the schemas that the engine accepts, within 40 seconds
    empirical    share of the schemas with a finished answer that satisfies the schema, as the
                 package jsonschema decides
    compliance   empirical / declared

*Cut* is the share of the accepted schemas whose answer isn't finished after 200 tokens. The budget
of this project's mask is 200 tokens, and it refuses schemas whose shortest answer is longer. The
other engines have no budget. Answers have no whitespace (`benchmarks.engines`). All engines have
the same prompt: the first 1,500 characters of the schema. Rows are appended to a file and never
computed twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import torch
from tqdm import tqdm

import smc
from benchmarks.answers import load
from benchmarks.common import head, line, read_rows
from benchmarks.engines import COMPETITORS, Engine, Ours, Row
from benchmarks.values import encode

EVERY = 12
MOST_TOKENS = 200
MOST_SECONDS = 40
"""Time limit of a compilation, as in the paper."""
SHOWN = 1500
"""Number of characters of a schema in the prompt."""
BATCH = 16


def engines(lm: smc.TransformersLM) -> dict[str, Engine]:
    """Return the engines, over the model's vocabulary."""
    others = {name: make(lm.vocabulary, 1) for name, make in COMPETITORS.items()}
    return {"ours": Ours(lm.vocabulary, 1), **others}


def compile_in_time(engine: Engine, schema: Any) -> tuple[Any, str | None]:
    """Compile a schema; return the constraint, or None and the engine's refusal.

    A forked process compiles first, as engines can't be interrupted.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_try, args=(engine, schema), daemon=True
    )
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        return None, f"not compiled within {MOST_SECONDS} seconds"
    if process.exitcode != 0:
        return None, f"the process died with {process.exitcode}"
    try:
        return engine.compile(schema), None
    except Exception as error:  # each engine has its own errors
        return None, " ".join(str(error).split())[:200]


def _try(engine: Engine, schema: Any) -> None:
    """Compile a schema in a forked process."""
    with contextlib.suppress(Exception):  # the parent gets the same error
        engine.compile(schema)


class Masked:
    """Masks the logits of a batch by one matcher per row (a logits processor of transformers)."""

    def __init__(
        self, engine: Engine, matchers: list[Any], vocabulary: int, ends: set[int]
    ) -> None:
        self.engine, self.matchers, self.ends = engine, matchers, ends
        self.row, self.width = Row(vocabulary), 0
        self.done = [False] * len(matchers)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Set the logits of invalid tokens to -inf."""
        out = scores.clone()
        for at, matcher in enumerate(self.matchers):
            if self.width and not self.done[at]:
                token = int(ids[at, -1])
                self.done[at] = token in self.ends or not self.engine.take(matcher, token)
            if not self.done[at]:
                self.engine.first(matcher, self.row)
                bits = torch.from_numpy(self.row.first)[:, None] >> torch.arange(32) & 1
                out[at, bits.flatten()[: out.shape[1]] == 0] = -torch.inf
                self.done[at] = bool((out[at] == -torch.inf).all())
                if self.done[at]:
                    out[at] = scores[at]
        self.width = ids.shape[1]
        return out


def answer(lm: smc.TransformersLM, engine: Engine, some: list[tuple[Any, Any]]) -> Iterator[Any]:
    """Write an answer for each schema and constraint; yield the text, None if it isn't finished."""
    prompts = [
        encode(lm, [{
            "role": "user",
            "content": "Write a short JSON document that satisfies this JSON schema:\n"
            + json.dumps(schema)[:SHOWN],
        }])
        for schema, _ in some
    ]  # fmt: skip
    end, width = lm.tokenizer.eos_token_id, max(map(len, prompts))
    matchers = [engine.matcher(constraint) for _, constraint in some]
    masked = Masked(engine, matchers, lm.vocabulary.size, set(lm.vocabulary.eos_ids))
    found = lm.model.generate(
        torch.tensor([[end] * (width - len(ids)) + ids for ids in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(i)) + [1] * len(i) for i in prompts]),
        max_new_tokens=MOST_TOKENS, do_sample=False, pad_token_id=end,
        logits_processor=[masked],
    )[:, width:].tolist()  # fmt: skip
    for ids in found:
        yield lm.tokenizer.decode(ids[: ids.index(end)]) if end in ids else None


def satisfies(schema: Any, text: str) -> bool:
    """Tell whether a text is JSON that satisfies a schema."""
    try:
        value = json.loads(text)
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        return bool(kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value))
    except Exception:  # not JSON, or a reference that the package can't resolve
        return False


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(head("engine", "schemas", "declared, %", "cut, %", "empirical, %", "compliance"))
    for name in dict.fromkeys(row["engine"] for row in rows):
        own = [row for row in rows if row["engine"] == name]
        declared = sum(row["refusal"] is None for row in own)
        valid, cut = (sum(row[key] for row in own) for key in ("valid", "cut"))
        print(line(
            name, len(own), f"{100 * declared / len(own):.0f}", f"{100 * cut / declared:.0f}",
            f"{100 * valid / len(own):.0f}", f"{valid / declared:.2f}",
        ))  # fmt: skip


def main() -> None:
    """Compile the schemas, write the answers, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="JSON files with a schema each, as `schema`")
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--rows", type=Path, default=Path("runs/schema_coverage.jsonl"))
    options = parser.parse_args()
    rows = read_rows(options.rows)
    known = {(row["engine"], row["schema"]) for row in rows}
    paths = sorted(options.folder.glob("*.json"))[:: options.every]
    lm = load("none", "cpu")
    with options.rows.open("a", encoding="utf-8") as file:
        for name, engine in engines(lm).items():
            todo = [path for path in paths if (name, path.stem) not in known]
            for at in tqdm(range(0, len(todo), BATCH), desc=name):
                found = [write_row(engine, name, path) for path in todo[at : at + BATCH]]
                ready = [each for each in found if each[1] is not None]
                texts = answer(lm, engine, [each[:2] for each in ready]) if ready else []
                for (schema, _, row), text in zip(ready, texts, strict=True):
                    row |= {
                        "cut": text is None,
                        "valid": text is not None and satisfies(schema, text),
                    }
                for _, _, row in found:
                    file.write(json.dumps(row) + "\n")
                    rows.append(row)
                file.flush()
    show(rows)


def write_row(engine: Engine, name: str, path: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Compile the schema of a file; return it, the constraint, and the beginning of a row."""
    schema = json.loads(path.read_text("utf-8-sig"))["schema"]
    if isinstance(engine, Ours):
        engine.length, engine.slack = MOST_TOKENS, 0
    constraint, refusal = compile_in_time(engine, schema)
    if (
        isinstance(engine, Ours)
        and constraint is not None
        and constraint.fewest_tokens > MOST_TOKENS
    ):
        constraint, refusal = None, f"the shortest answer has {constraint.fewest_tokens} tokens"
    row = {"engine": name, "schema": path.stem, "refusal": refusal, "cut": False, "valid": False}
    return schema, constraint, row


if __name__ == "__main__":
    main()
