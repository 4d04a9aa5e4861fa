"""Task `+task=latency`: milliseconds per token, as in the paper's Table 2.

The task times the steps of `smc.captured.sample` with the paper's proposals for
`task.batch` particles of one prompt, and the discrete filter with as many prefixes. On a CUDA
device a step, including the model's forward pass, is one captured graph. The baselines are the same
loop without a constraint, also captured, and `transformers.generate`. Tokens are fixed in advance,
so that all methods except the filter write the same text whatever the weights. Warm-up runs are
excluded, and one-time preparation is reported separately. Times of a run begin after the prompt is
prefilled and the graph captured.

    python -m experiments.run +task=latency                       # SmolLM2, on the CPU
    python -m experiments.run +experiment=table2_latency          # on a GPU
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from operator import itemgetter, truediv
from typing import Any

import torch
from omegaconf import DictConfig

import gcd
import smc.captured
from experiments.arms import ALGORITHMS
from experiments.config import Config, at_least, distinct, one_of, refuse_unused
from experiments.models import SHAPE, load_model, resolve_device, title_of, weights_of
from experiments.results import write_results
from experiments.tables import as_markdown, group_rows, number
from experiments.tasks import (
    ExperimentTask,
    Identity,
    Key,
    Row,
    Run,
    derive_seed,
    key_of,
    read_rows,
    results_config,
)
from hmm import HMM
from smc import TransformersLM
from smc._inference.captured import check_room
from smc.captured import Forward
from smc.testing import ToyLM

KINDS = ("generate", "lm", "lcd", "gcd", "discrete", "pgcd")
"""Kinds to time: `transformers.generate`; `smc.captured.sample` with each proposal; and the
discrete filter under GCD in static shapes, with `task.batch` prefixes."""
LOOKAHEADS = ("conditional", "in_time")


@dataclass
class LatencyConfig:
    """Milliseconds per token of `smc.captured.sample`, with fixed tokens."""

    name: str = "latency"
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    hidden: list[int] = field(default_factory=lambda: [64, 256])  # numbers of HMM states, for pgcd
    batch: int = 16  # particles of one prompt
    tokens: int = 40  # maximum tokens of a text, EOS included
    prompt_tokens: int = 64
    warm_up: int = 1  # warm-up runs of each kind
    compile: bool = False  # the steps with torch.compile; lm is also timed without it
    repeats: int = 3  # timed runs of each kind, in turns, with different seeds
    lookahead: str = "conditional"  # of pgcd, as in the paper; or "in_time"
    exact_top_k: int = 64
    max_table_mib: int = 2048  # memory of the lookahead tables; doesn't affect results


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    distinct("task.kinds", task.kinds)
    for kind in task.kinds:
        one_of("task.kinds", kind, KINDS)
    if "lm" not in task.kinds:
        raise ValueError(
            f"expected lm in task.kinds, because other methods are compared with it; got "
            f"{list(task.kinds)}"
        )
    if "pgcd" in task.kinds:
        distinct("task.hidden", task.hidden)
        for hidden in task.hidden:
            at_least("task.hidden", hidden, 1)
    else:
        reason = "of task.kinds pgcd alone looks ahead, and it is not run; leave it out"
        keys = ("task.hidden", "task.lookahead", "task.exact_top_k")
        refuse_unused(config, {"task": LatencyConfig}, keys, reason)
    for key, least in (("batch", 1), ("tokens", 8), ("prompt_tokens", 1), ("warm_up", 0),
                       ("repeats", 1), ("exact_top_k", 0), ("max_table_mib", 1)):  # fmt: skip
        at_least(f"task.{key}", getattr(task, key), least)
    one_of("task.lookahead", task.lookahead, LOOKAHEADS)
    unread = ("data.path", "data.hub", "data.offset", "model.prompt", "model.prompt_mib",
              "model.device_map", "smc.max_rows", "smc.execution")  # fmt: skip
    refuse_unused(config, Config, unread, "+task=latency times tokens that are fixed in advance")
    device = resolve_device(config.model.device)
    if config.model.path == SHAPE and device.type != "cuda":
        raise ValueError(
            f"expected a CUDA device for model.path={SHAPE}, which has 8 billion weights (16 GB in "
            f"bfloat16), got {device}; give model=smollm2, or a small checkpoint"
        )


# -- models, a synthetic vocabulary, and scripts of fixed tokens

SHAPE_TOKENS = 128_256
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 200},
        "kind": {"enum": ["request", "answer", "remark"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99999},
        "parts": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "parts"],
    "additionalProperties": False,
}
"""Constraint with free strings, a choice, a number and a list."""


def load_or_make(config: DictConfig) -> TransformersLM:
    """Load the model of the run, or make one of the paper's shape with random weights.

    Raises:
        ValueError: the model can't be loaded.
    """
    if config.model.path != SHAPE:
        return load_model(config.model)[0]
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=SHAPE_TOKENS,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        bos_token_id=0,
        eos_token_id=SHAPE_TOKENS - 1,
    )
    device, before = resolve_device(config.model.device), torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.model.dtype))
    try:
        with device, torch.random.fork_rng():
            torch.manual_seed(0)
            model: Any = LlamaForCausalLM(shape)
    finally:
        torch.set_default_dtype(before)
    return TransformersLM(model, None, make_vocabulary(SHAPE_TOKENS))


def make_vocabulary(size: int) -> gcd.Vocabulary:
    """Make a vocabulary of a given size: bytes, tokens of JSON syntax, and words of letters.

    The last token is EOS. A real tokenizer has more token classes; number and length of the words
    here are realistic.
    """
    tokens = list(islice(dict.fromkeys(_tokens()), size - 1))
    return gcd.Vocabulary.from_bytes([*tokens, b""], [size - 1])


def _tokens() -> Iterator[bytes]:
    yield from (bytes([byte]) for byte in range(256))
    marks = (b'{"', b'":', b'": ', b'", "', b'","', b'"}', b'["', b'"]', b'"]}', b", ", b": ")
    yield from marks
    yield from (b"%d" % number for number in range(10, 1000))
    letters = b"etaoinshrdlucmfwypvbgkjqxz"
    for length in range(2, 5):
        for word in product(letters, repeat=length):
            yield bytes(word)
            yield b" " + bytes(word)


class Scripted:
    """A language model that almost surely outputs the tokens of a script.

    The underlying model is called as usual, and then the script's token gets almost all
    probability. All methods therefore write the same text, whatever the weights, and every run
    ends.

    Args:
        lm: the underlying model.
        tokens: the script.
    """

    def __init__(self, lm: TransformersLM, tokens: list[int]) -> None:
        self._lm, self._tokens = lm, tokens
        self.vocabulary, self.context, self.device = lm.vocabulary, lm.context, lm.device
        self.encode, self.prefill = lm.encode, lm.prefill

    def static_forward(self) -> _ScriptedForward:
        """Return the model in static shapes."""
        tokens = torch.tensor(self._tokens, device=self.device)
        return _ScriptedForward(self._lm.static_forward(), tokens)


class _ScriptedForward:
    """The scripted model in static shapes; see `smc.captured.Forward`."""

    def __init__(self, forward: Forward, tokens: torch.Tensor) -> None:
        self._forward, self._tokens = forward, tokens
        self.rewind = forward.rewind

    def start(self, prompts: Any, num_particles: int, budget: int) -> torch.Tensor:
        """Prefill the prompts."""
        log_p = self._forward.start(prompts, num_particles, budget)
        return self._said(log_p, torch.zeros((), dtype=torch.int64, device=log_p.device))

    def step(self, tokens: torch.Tensor, source: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Process one token of each row."""
        return self._said(self._forward.step(tokens, source, step), step + 1)

    def _said(self, log_p: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        # Not tokens[step], which would synchronize with the host.
        token = self._tokens.index_select(0, step.clamp(max=len(self._tokens) - 1).view(1))
        return log_p.sub(1000.0).index_fill_(1, token, 0.0)


def draw_tokens(constraint: gcd.TokenAutomaton, budget: int) -> list[int]:
    """Draw a text of the constraint, including EOS, of limited length: the longest of 4 draws.

    With random weights the model's own texts would differ between methods and violate the
    constraint, so all methods write this text.
    """
    even = ToyLM(constraint.vocabulary, spread=0.0, dtype=torch.float32)
    drawn: list[tuple[int, ...]] = [
        smc.sample(
            even, [[0]], constraint, max_tokens=budget, particles=1, proposal=smc.GCD(),
            algorithm="smc", seed=seed,
        )[0].particles[0].ids
        for seed in range(4)
    ]  # fmt: skip
    longest = max(drawn, key=len)
    return list(longest)


# -- timing of single runs

UNCOMPILED = "lm:uncompiled"
"""The method without a constraint and without `torch.compile`, beside the compiled ones."""
PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM, UNCOMPILED: smc.LM, "lcd": smc.LCD, "gcd": smc.GCD, "discrete": smc.GCD,
}  # fmt: skip


class Bench:
    """A model, a constraint and the tokens of one text to time.

    Attributes:
        automaton_seconds: time from the schema to the automaton over tokens.
        table_seconds: time of the table of completion probabilities, by method.
    """

    def __init__(self, lm: TransformersLM, config: DictConfig) -> None:
        self.lm, self.config = lm, config
        self._compiled = (
            TransformersLM(lm.model, lm.tokenizer, lm.vocabulary, compile=True)
            if config.task.compile
            else lm
        )
        self.table_seconds: dict[str, float] = {}
        self._proposals: dict[str, smc.Proposal] = {}
        started = time.perf_counter()
        self.constraint = gcd.lift(gcd.json_schema(SCHEMA), self.lm.vocabulary)
        self.automaton_seconds = time.perf_counter() - started
        least = self.constraint.fewest_tokens
        if self.config.task.tokens < least:
            raise ValueError(
                f"expected task.tokens to be at least {least}, the length of the constraint's "
                f"shortest text in the model's tokens, got {self.config.task.tokens}"
            )
        self.tokens = draw_tokens(self.constraint, self.config.task.tokens)
        if "discrete" in self.config.task.kinds:
            # Refuses too many prefixes before anything is timed.
            automata = gcd.AutomatonBatch([self.constraint])
            check_room(automata, self.config.task.batch, len(self.tokens))

    @property
    def prompt(self) -> list[int]:
        """The prompt: distinguishable tokens with arbitrary meaning."""
        size = self.lm.vocabulary.size
        return [(7 * i) % (size - 1) for i in range(self.config.task.prompt_tokens)]

    def seconds_per_token(self, method: str, seed: int) -> float:
        """Return the seconds per token of one run of a method, without the time to start it."""
        if method == "generate":
            return self._generate(seed) / len(self.tokens)
        algorithm: smc.SMC | smc.Discrete = ALGORITHMS["smc"].make(self.config)
        base = self.lm if method == UNCOMPILED else self._compiled
        lm: smc.LanguageModel = Scripted(base, self.tokens)
        if method == "discrete":
            # All particles run until the end of the budget.
            algorithm = smc.Discrete(count_finished=False, floor=0.0)
            lm = base
        (found,) = smc.captured.sample(
            lm,
            [self.prompt],
            self.constraint,
            max_tokens=len(self.tokens),
            particles=self.config.task.batch,
            proposal=self._proposal(method),
            temperature=self.config.smc.temperature,
            seed=seed,
            algorithm=algorithm,
        )
        how = found.diagnostics
        if method != "discrete":
            taken = {list(particle.ids) == self.tokens for particle in found.particles}
            assert taken == {True}, "particles take the fixed tokens"
        return (how.seconds - how.start_seconds) / len(how.running)

    def _proposal(self, method: str) -> smc.Proposal:
        """Return the proposal of this name; its table is made and timed once."""
        if method not in self._proposals:
            kind, _, hidden = method.partition(":H")
            if kind != "pgcd":
                self._proposals[method] = PROPOSALS[kind]()
            else:
                self._proposals[method] = self._pgcd(int(hidden), method)
        return self._proposals[method]

    def _pgcd(self, hidden: int, method: str) -> smc.Proposal:
        device = self.lm.device
        # The values don't affect the time.
        hmm = HMM.random(
            hidden,
            self.lm.vocabulary.size,
            generator=torch.Generator(device).manual_seed(hidden),
            device=device,
        )
        proposal = smc.PGCD(
            hmm,
            lookahead=self.config.task.lookahead,
            exact_top_k=self.config.task.exact_top_k,
            max_bytes=self.config.task.max_table_mib << 20,
        )
        tokens = len(self.tokens)
        proposal.check([self.constraint], [tokens])
        self.table_seconds[method] = table_seconds(proposal, self.constraint, tokens, device)
        return proposal

    def _generate(self, seed: int) -> float:
        """Time `transformers.generate` with sampling, for the same number of tokens and rows."""
        count, device = len(self.tokens), self.lm.device
        prompts = torch.tensor([self.prompt] * self.config.task.batch, device=device)
        arguments: dict[str, Any] = {
            "input_ids": prompts,
            "attention_mask": torch.ones_like(prompts),
            "do_sample": True,
            "top_k": 0,
            "temperature": float(self.config.smc.temperature),
            "pad_token_id": 0,
        }

        def run(tokens: int) -> None:
            self.lm.model.generate(**arguments, min_new_tokens=tokens, max_new_tokens=tokens)

        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            first = seconds_of(lambda: run(1), device)  # prefills the prompt, as above
            return max(seconds_of(lambda: run(count + 1), device) - first, 0.0)


def methods_of(kinds: Sequence[str], hidden: Sequence[int], *, compile: bool = False) -> list[str]:
    """Return the methods to time: each of `kinds`, but pgcd once for each HMM size.

    With `compile`, all steps are compiled by torch.compile, and lm is also timed without it.
    """
    each = {kind: [kind] for kind in kinds} | {"pgcd": [f"pgcd:H{size}" for size in hidden]}
    if compile:
        each["lm"] = [UNCOMPILED, "lm"]
    return [name for kind in kinds for name in each[kind]]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the work is done, including work on the device."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    work()
    return now() - started


def table_seconds(
    proposal: smc.Proposal, constraint: gcd.TokenAutomaton, budget: int, device: torch.device
) -> float:
    """Return the seconds in which a proposal makes its table.

    The proposal caches the table, so this must be called first. A small table is made before and
    discarded, to load or compile the kernels.
    """
    automata = gcd.AutomatonBatch([constraint], device=device)
    shortest = constraint.fewest_tokens
    small, whole = (
        smc.Batch(automata, torch.tensor([tokens], device=device)) for tokens in (shortest, budget)
    )
    proposal.start(small)
    proposal.free()
    return round(seconds_of(lambda: proposal.start(whole), device), 5)


# -- the study

PAPER = {"lm": 1.69, "lcd": 1.83, "gcd": 1.86, "pgcd:H1024": 5.26, "pgcd:H4096": 8.23,
         "pgcd:H16384": 17.30}  # fmt: skip
"""Table 2 of the paper: milliseconds per token, Llama-3.1-8B, batch 16, one H100."""
ALGORITHM = {"discrete": "discrete"}  # unit of a method; the others have particles


def _machine(device: torch.device) -> str:
    """Describe the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()}, {threads} thread{'s'[: threads != 1]}"


def _read(config: DictConfig) -> str:
    return _machine(resolve_device(config.model.device))


def _identity(config: DictConfig, machine: str) -> Identity:
    weights = {"model_files": SHAPE} if config.model.path == SHAPE else weights_of(config.model)
    return {**results_config(config), **weights, "machine": machine}


def _run(run: Run, machine: str) -> None:
    """Time every method, in turns, and report."""
    task = run.config.task
    methods = methods_of(task.kinds, task.hidden, compile=task.compile)
    keys = [
        Key("latency", method, ALGORITHM.get(method, "smc"), task.batch, repeat)
        for repeat in range(task.repeats)
        for method in methods
    ]
    path = run.directory / "results.jsonl"
    made = {key_of(row) for row in read_rows(path)} if run.config.resume and path.exists() else ()
    due = [key for key in keys if key not in made]
    # Before the run is open, as this refuses a text that is too short.
    bench = Bench(load_or_make(run.config), run.config) if due else None
    run.open(keys)
    if bench is not None:
        warm: set[str] = set()
        with run.sampling(keys) as progress:
            for key in due:
                if key.method not in warm:
                    for _ in range(task.warm_up):
                        bench.seconds_per_token(key.method, 0)
                    warm.add(key.method)
                run.store.append([_row(key, bench, run.config.seed, machine)])
                progress(1)
    rows = run.store.merge(keys)
    _report(run, rows, methods)


def _row(key: Key, bench: Bench, seed: int, machine: str) -> Row:
    seconds = bench.seconds_per_token(key.method, derive_seed(seed, key.repeat) % 2**31)
    return {
        **key._asdict(),
        "ms_per_token": 1e3 * seconds,
        "tokens": len(bench.tokens),
        "automaton_seconds": bench.automaton_seconds,
        "table_seconds": bench.table_seconds.get(key.method),
        "states": bench.constraint.num_states,
        "classes": bench.constraint.num_classes,
        "machine": machine,
    }


def _report(run: Run, rows: list[Row], methods: list[str]) -> None:
    """Make the table: medians, ratios within each turn, and the paper's figures."""
    times = {
        method: [row["ms_per_token"] for row in sorted(own, key=itemgetter("repeat"))]
        for method, own in group_rows(rows, itemgetter("method")).items()
    }
    records = [_record(method, rows, times) for method in methods]
    table = [
        {
            "method": record["method"],
            "ms per token": f"{record['ms_per_token']:.2f}",
            "least to greatest": f"{record['least']:.2f} to {record['greatest']:.2f}",
            "x lm": number(record["slowdown"]),
            "x generate": number(record["slowdown_generate"]),
            "table, s": number(record["table_seconds"]),
            "paper, ms": number(PAPER.get(method)),
            "paper, x lm": number(PAPER[method] / PAPER["lm"] if method in PAPER else None),
        }
        for method, record in zip(methods, records, strict=True)
    ]
    first = rows[0]
    own = " (the discrete filter chooses its own)" if "discrete" in methods else ""
    text = (
        f"## Milliseconds a token\n\n{as_markdown(table)}\n\n"
        f"The model is {title_of(run.config.model)}, on {first['machine']}, with "
        f"{first['particles']} particles and {first['tokens']} tokens that are fixed in "
        f"advance{own}. Times are medians of {run.config.task.repeats} runs, in turns. Ratios are "
        "medians of the ratios within a turn. The times don't include the prompt, the "
        f"constraint ({first['states']} states, {first['classes']} classes, "
        f"{first['automaton_seconds']:.2f} s), and the table of P-GCD. HMMs have random "
        "parameters. The paper's times (arXiv 2606.01926, Table 2) are for Llama-3.1-8B with batch "
        "16 on one H100.\n"
    )
    summary = {"machine": first["machine"], "tokens": first["tokens"], "rows": records}
    write_results(run, text, summary, tables={"times": table})


def _record(method: str, rows: Sequence[Row], times: Mapping[str, list[float]]) -> dict[str, Any]:
    mine = times[method]
    tables = [row["table_seconds"] for row in rows if row["method"] == method]
    ratios = {
        floor: statistics.median(map(truediv, mine, times[floor])) if floor in times else None
        for floor in ("lm", "generate")
    }
    return {
        "method": method,
        "ms_per_token": statistics.median(mine),
        "least": min(mine),
        "greatest": max(mine),
        "slowdown": ratios["lm"],
        "slowdown_generate": ratios["generate"],
        "table_seconds": next((each for each in tables if each is not None), None),
    }


TASK = ExperimentTask("latency", LatencyConfig, check, _read, _identity, _run)
