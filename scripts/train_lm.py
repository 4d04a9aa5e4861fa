"""Train the small tool-calling language model of `models/toolcall-lm` from scratch.

    python -m scripts.train_lm --out models/toolcall-lm --minutes 60 --data FILE.jsonl FILE.json ...

A byte-level BPE tokenizer and a Llama-architecture model of a few million parameters, saved as a
plain Hugging Face checkpoint. What makes so small a model learn to copy in so short a time:

- the tokenizer cuts at every space, digit and punctuation mark, so a value has the same tokens in
  the request and between the quotes of the answer: copying is induction, token by token;
- most records are invented (see `experiments.tool_calling.generator`), and the curriculum begins
  with one tool and one or two arguments;
- four requests share a list of tools, which is read once for them: a row is the list and then the
  requests with their answers, each of which sees the list and itself;
- batches hold a number of tokens, of rows of like length; loss is on the answers, and a tenth of it
  on the prompts;
- matrices are trained with Muon, embeddings and norms with AdamW; warm-up, constant rate, then a
  linear decay to zero.

Training is a function of the arguments: batches depend on the seed and their number only. With
`--steps` an interrupted run, called again, ends where an uninterrupted one would; with `--minutes`
the schedule follows the clock (time already trained counts). State is kept in `--work`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.small_lm.architecture import build_model, export, load_tokenizer, train_tokenizer
from experiments.small_lm.greedy import exact_match
from experiments.small_lm.muon import Muon
from experiments.tool_calling.answers import STYLES, write_answer
from experiments.tool_calling.generator import generate, training_group, training_record
from experiments.tool_calling.prompts import compact_prompt
from experiments.tool_calling.records import ToolRecord, read_hub, read_toolcalls, read_xlam

_LOG = logging.getLogger("train_lm")

PROMPT_WEIGHT = 0.1
POOL = 160  # groups sorted by length together
GROUP = 4  # requests over one list of tools
MAX_TOKENS = 1100  # longer real records are left out
WARMUP_STEPS = 60
WIDTH_STEP = 24
IGNORED = -100  # no target
MONITOR_SEED = 1000  # held-out records to watch while training; evaluation draws others
LEVEL_STARTS = (0.0, 0.12, 0.3, 0.5)  # shares of the training at which a level begins


@dataclasses.dataclass
class State:
    """Where training stands; with the arguments it determines everything that follows."""

    step: int = 0
    pool: int = 0
    position: int = 0  # batches of the pool already used
    pool_progress: float = 0.0
    seconds: float = 0.0
    tokens: int = 0


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="checkpoint directory to write")
    parser.add_argument(
        "--work", type=Path, default=None, help="training state (default: OUT.work)"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="steps of the schedule (repeatable exactly)")
    length.add_argument(
        "--minutes", type=float, help="minutes of the schedule, saved ones included"
    )
    parser.add_argument("--data", type=Path, nargs="*", default=[], help=".jsonl (xLAM) or .json")
    parser.add_argument("--data-limit", type=int, default=500, help="records used of each .jsonl")
    parser.add_argument("--hub", default=None, help="a set on the hub in xLAM's form")
    parser.add_argument(
        "--tokenizer", type=Path, default=None, help="a checkpoint's, not a new one"
    )
    parser.add_argument(
        "--init", type=Path, default=None, help="a checkpoint to begin with, not random weights"
    )
    parser.add_argument(
        "--from-level", type=int, default=0, help="level of the curriculum to begin at"
    )
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp", type=int, default=640)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=4e-3, help="of Muon; AdamW's is half of it")
    parser.add_argument(
        "--decay-from", type=float, default=0.55, help="share at which decay begins"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--save-minutes", type=float, default=3.0)
    parser.add_argument("--evaluate-minutes", type=float, default=4.0)
    parser.add_argument("--stop-after", type=int, default=None, help="stop at this step, resumable")
    return parser.parse_args(argv)


def read_real(arguments: argparse.Namespace) -> list[ToolRecord]:
    """The real records to train on; of every xLAM file the first `--data-limit` alone."""
    records: list[ToolRecord] = []
    for path in arguments.data:
        if path.suffix == ".jsonl":
            records += read_xlam(path).records[: arguments.data_limit]
        else:
            records += read_toolcalls(path).records
    if arguments.hub is not None:
        records += read_hub(arguments.hub).records
    return records


def corpus(real: Sequence[ToolRecord], seed: int) -> Iterator[str]:
    """The text that the tokenizer is trained on."""
    rng = random.Random(f"tokenizer-{seed}")
    for record in real:
        yield _text(record, rng.choice(STYLES))
    for number in range(4000):
        yield _text(training_record(rng, 3, str(number)), rng.choice(STYLES))


def _text(record: ToolRecord, style: str) -> str:
    return compact_prompt(record, style) + write_answer(record.calls, record.tools, style)


def new_model(
    arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast
) -> LlamaForCausalLM:
    """The model that training begins with: as the arguments describe it, or `--init`'s."""
    if arguments.init is not None:
        model = LlamaForCausalLM.from_pretrained(arguments.init, dtype=torch.float32)
    else:
        model = build_model(
            tokenizer,
            hidden=arguments.hidden,
            layers=arguments.layers,
            heads=arguments.heads,
            mlp=arguments.mlp,
            seed=arguments.seed,
        )
    torch.nn.Module.to(model, arguments.device)  # in place; transformers' own `to` is mistyped
    return model


def build_optimizers(model: LlamaForCausalLM, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, lr=lr, weight_decay=0.02),
        torch.optim.AdamW(others, lr=lr / 2, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def real_variant(rng: random.Random, record: ToolRecord) -> ToolRecord:
    """The record with its tools in another order, some of the others left out."""
    called = {call.name for call in record.calls}
    needed = [tool for tool in record.tools if tool.get("name") in called]
    rest = [tool for tool in record.tools if tool.get("name") not in called]
    tools = needed + rng.sample(rest, rng.randint(0, len(rest)))
    rng.shuffle(tools)
    return dataclasses.replace(record, tools=tuple(tools))


def level_of(progress: float) -> int:
    return sum(progress >= start for start in LEVEL_STARTS) - 1


def pool_batches(
    arguments: argparse.Namespace,
    tokenizer: PreTrainedTokenizerFast,
    real: Sequence[ToolRecord],
    state: State,
) -> list[list[Row]]:
    """The batches of one pool."""
    rng = random.Random(f"{arguments.seed}-{state.pool}")
    level = max(arguments.from_level, level_of(state.pool_progress))
    real_share = (0.0, 0.0, 0.03, 0.03)[level] if real else 0.0
    rows = []
    for number in range(POOL):
        if rng.random() < real_share:
            group = [real_variant(rng, rng.choice(real))]
        else:
            # A share of simpler records stays in to the end.
            easier = rng.randint(0, level) if rng.random() < 0.25 else level
            group = training_group(rng, easier, str(number), GROUP)
        row = row_of(tokenizer, [(record, rng.choice(STYLES)) for record in group])
        if row is not None and len(row.ids) < MAX_TOKENS:
            rows.append(row)
    rows.sort(key=lambda row: len(row.ids))
    batches: list[list[Row]] = [[]]
    for row in rows:
        if batches[-1] and len(batches[-1]) >= arguments.batch_tokens // padded(len(row.ids)):
            batches.append([])
        batches[-1].append(row)
    rng.shuffle(batches)
    return batches


@dataclasses.dataclass(frozen=True)
class Row:
    """A list of tools, then branches of request and answer; T tokens.

    `branches` numbers each token's branch, 0 being the list of tools, which every branch sees.
    """

    ids: list[int]
    branches: list[int]
    positions: list[int]
    targets: list[int]  # the token that follows in the same branch; IGNORED at a branch's end
    weights: list[float]  # of the loss at each token


def row_of(
    tokenizer: PreTrainedTokenizerFast, branches: Sequence[tuple[ToolRecord, str]]
) -> Row | None:
    """The row of records with equal tools, each in its style; None if an answer has no literal."""
    row = Row([], [], [], [], [])
    shared: list[int] = []
    for number, (record, style) in enumerate(branches, start=1):
        try:
            answer = write_answer(record.calls, record.tools, style)
        except ValueError:
            return None  # a gold value that has no literal (NaN)
        tools, mark, request = compact_prompt(record, style).rpartition("Request: ")
        prompt = tokenizer(mark + request)["input_ids"]
        if not shared:
            shared = tokenizer(tools)["input_ids"]
            _append(row, 0, 0, shared, [PROMPT_WEIGHT] * (len(shared) - 1))
        ids = [*prompt, *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        weights = [PROMPT_WEIGHT] * (len(prompt) - 1) + [1.0] * (len(ids) - len(prompt))
        _append(row, number, len(shared), ids, weights)
    return row


def _append(row: Row, branch: int, start: int, ids: list[int], weights: list[float]) -> None:
    row.ids.extend(ids)
    row.branches.extend([branch] * len(ids))
    row.positions.extend(range(start, start + len(ids)))
    row.targets.extend([*ids[1:], IGNORED])
    row.weights.extend([*weights, 0.0])


def padded(length: int) -> int:
    """Widths come in few sizes, so that compiled matrix kernels are found again."""
    return -(-length // WIDTH_STEP) * WIDTH_STEP


def loss_of(
    model: LlamaForCausalLM, batch: Sequence[Row], arguments: argparse.Namespace
) -> tuple[torch.Tensor, float]:
    """Weighted cross entropy of a batch in nats, and that of the answers alone."""
    width = padded(max(len(row.ids) for row in batch))
    rows = max(len(batch), arguments.batch_tokens // width)
    ids = torch.zeros(rows, width, dtype=torch.long)
    positions, targets = ids.clone(), ids + IGNORED
    branches = ids - 1  # padding: a branch of its own
    weights = torch.zeros(rows, width)
    for number, row in enumerate(batch):
        for tensor, values in (
            (ids, row.ids),
            (positions, row.positions),
            (targets, row.targets),
            (branches, row.branches),
            (weights, row.weights),
        ):
            tensor[number, : len(values)] = torch.tensor(values, dtype=tensor.dtype)
    seen = (branches[:, None, :] == branches[:, :, None]) | (branches[:, None, :] == 0)
    seen = (seen & torch.ones(width, width, dtype=torch.bool).tril())[:, None]
    device = arguments.device
    dtype = dtype_of(arguments)
    with torch.autocast(device.split(":")[0], dtype, enabled=dtype != torch.float32):
        logits = model(
            input_ids=ids.to(device),
            attention_mask=seen.to(device),
            position_ids=positions.to(device),
        ).logits
    losses = torch.nn.functional.cross_entropy(
        logits.float().transpose(1, 2),
        targets.to(device),
        reduction="none",
        ignore_index=IGNORED,
    )
    weights = weights.to(device)
    answers = weights == 1.0
    return (losses * weights).sum() / weights.sum(), float(losses.detach()[answers].mean())


def dtype_of(arguments: argparse.Namespace) -> torch.dtype:
    """`--dtype`; of itself bfloat16 where the device multiplies it fast, float32 elsewhere."""
    if arguments.dtype != "auto":
        return getattr(torch, arguments.dtype)
    fast = arguments.device != "cpu" or torch.cpu.get_capabilities().get("avx512_bf16", False)
    return torch.bfloat16 if fast else torch.float32


def train(arguments: argparse.Namespace) -> None:
    work = arguments.work or arguments.out.with_name(arguments.out.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    real = read_real(arguments)
    _LOG.info("%d real records", len(real))
    given_tokenizer = arguments.tokenizer or arguments.init
    saved_tokenizer = given_tokenizer or (work if (work / "tokenizer.json").exists() else None)
    if saved_tokenizer is not None:
        tokenizer = load_tokenizer(saved_tokenizer)
    else:
        tokenizer = train_tokenizer(corpus(real, arguments.seed), arguments.vocab)
    tokenizer.save_pretrained(work)
    model = new_model(arguments, tokenizer)
    optimizers = build_optimizers(model, arguments.lr)
    state = State()
    if (work / "state.pt").exists():
        state = load_state(work, model, optimizers, arguments.device)
        _LOG.info("going on from step %d, after %.0f s", state.step, state.seconds)
    size = sum(p.numel() for p in model.parameters())
    _LOG.info("%.2f M parameters, %d tokens in the vocabulary", size / 1e6, len(tokenizer))
    _loop(arguments, work, tokenizer, real, model, optimizers, state)
    save_state(work, model, optimizers, state)
    if _progress(arguments, state) >= 1:
        export(arguments.out, model, tokenizer)
        _LOG.info("written to %s", arguments.out)


def _progress(arguments: argparse.Namespace, state: State) -> float:
    if arguments.steps is not None:
        return state.step / arguments.steps
    return state.seconds / (60 * arguments.minutes)


def _rate(arguments: argparse.Namespace, state: State, progress: float) -> float:
    """Share of the full learning rate: warm-up, constant, linear decay."""
    decay = min(1.0, (1 - progress) / (1 - arguments.decay_from))
    return min(1.0, (state.step + 1) / WARMUP_STEPS) * max(0.0, decay)


def _loop(
    arguments: argparse.Namespace,
    work: Path,
    tokenizer: PreTrainedTokenizerFast,
    real: Sequence[ToolRecord],
    model: LlamaForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    state: State,
) -> None:
    last_saved = last_evaluated = state.seconds
    bases = (arguments.lr, arguments.lr / 2)
    batches = pool_batches(arguments, tokenizer, real, state)
    running = math.nan
    bar = tqdm(initial=state.step, total=arguments.steps, unit="step", mininterval=20)
    while _progress(arguments, state) < 1 and state.step != arguments.stop_after:
        started = time.monotonic()
        progress = _progress(arguments, state)
        if state.position >= len(batches):
            state.pool, state.position, state.pool_progress = state.pool + 1, 0, progress
            batches = pool_batches(arguments, tokenizer, real, state)
        batch = batches[state.position]
        model.train()
        loss, answer_loss = loss_of(model, batch, arguments)
        if not math.isfinite(answer_loss):
            raise RuntimeError(f"the loss is {answer_loss} at step {state.step}: lower --lr")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, base in zip(optimizers, bases, strict=True):
            optimizer.param_groups[0]["lr"] = base * _rate(arguments, state, progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.position += 1
        state.tokens += sum(len(row.ids) for row in batch)
        state.seconds += time.monotonic() - started
        running = answer_loss if math.isnan(running) else 0.95 * running + 0.05 * answer_loss
        bar.update()
        if state.step % 25 == 0:
            speed = state.tokens / state.seconds
            bar.set_postfix_str(
                f"answers {running:.3f}, {state.tokens / 1e6:.2f} M tokens, "
                f"{speed:.0f}/s, {progress:.1%}"
            )
        if state.seconds - last_saved > 60 * arguments.save_minutes:
            save_state(work, model, optimizers, state)
            last_saved = state.seconds
        if state.seconds - last_evaluated > 60 * arguments.evaluate_minutes:
            _log_exact(model, tokenizer, max(arguments.from_level, level_of(progress)))
            last_evaluated = state.seconds
    bar.close()


def _log_exact(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, level: int) -> None:
    rng = random.Random("evaluation")
    sources = {
        f"level {level}": [training_record(rng, level, str(number)) for number in range(24)],
        "held out": generate(24, MONITOR_SEED, split="held_out"),
    }
    for (name, records), style in itertools.product(sources.items(), STYLES):
        right = exact_match(model, tokenizer, records, style, max_new_tokens=100, batch_size=32)
        _LOG.info("%s, %s: %d of %d exact", name, style, sum(right), len(right))


def save_state(
    work: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], state: State
) -> None:
    """Write a checkpoint; an interruption leaves the old one in place."""
    content = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "state": dataclasses.asdict(state),
    }
    partial = work / "state.part"
    torch.save(content, partial)
    partial.replace(work / "state.pt")


def load_state(
    work: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], device: str
) -> State:
    content: dict[str, Any] = torch.load(work / "state.pt", map_location=device, weights_only=True)
    model.load_state_dict(content["model"])
    for optimizer, saved in zip(optimizers, content["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return State(**content["state"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    train(parse_arguments())
