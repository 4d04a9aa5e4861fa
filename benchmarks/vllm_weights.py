"""Weights of answers inside vLLM: what they cost, and whether they agree with `smc.sample`.

    P=.venv-vllm/bin/python
    VLLM_CPU_KVCACHE_SPACE=1 $P -m benchmarks.vllm_weights cost --model DIR
    VLLM_CPU_KVCACHE_SPACE=1 $P -m benchmarks.vllm_weights evidence --model DIR
    VLLM_CPU_KVCACHE_SPACE=1 $P -m benchmarks.vllm_weights pgcd --model DIR

`cost` asks one engine for the same number of answers in turns: without a constraint, under GCD,
under GCD with weights (`gcd_vllm.sample`), and with resampling between parts; then `smc.sample` on
transformers, with as many particles. Sides without weights send the same requests through the same
code. Unconstrained answers end at the budget. `evidence` compares log evidence over prompts.
`pgcd` compares P-GCD with GCD on tool calls with tight budgets, with the repository's HMM.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.vllm import head, line

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
CONSTRAINT = {"json_schema": SCHEMA}
BUDGET = 30
CITIES = (
    "Rome", "Oslo", "Paris", "Lima", "Cairo", "Tokyo", "Madrid", "Vienna", "Berlin", "Dublin",
    "Athens", "Lisbon", "Prague", "Warsaw", "Delhi", "Seoul", "Boston", "Havana", "Nairobi", "Riga",
)  # fmt: skip


def prompt_of(city: str, days: int) -> str:
    """Return a prompt with one solved example and the request."""
    return (
        'Request: Will it rain in Bern tomorrow?\n{"city":"Bern","days":1}\n'
        f"Request: What will the weather be in {city} over the next {days} days?\n"
    )


def engine(model: str) -> Any:
    """Start vLLM with what `gcd_vllm.sample` needs."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process to measure
    from vllm import LLM

    return LLM(
        model, dtype="float32", max_model_len=512, max_num_seqs=64, enforce_eager=True, seed=0,
        block_size=32, worker_extension_cls="gcd_vllm.WorkerExtension",
    )  # fmt: skip


def send(llm: Any, tokens: Sequence[int], count: int, seed: int, **more: Any) -> int:
    """Send requests with the same prompt, and return the number of tokens of their answers.

    Args:
        llm: a `vllm.LLM`.
        tokens: the prompt.
        count: number of requests.
        seed: their seeds are derived from it.
        more: further arguments of `vllm.SamplingParams`.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    prompts: Sequence[Any] = [{"prompt_token_ids": list(tokens)} for _ in range(count)]
    renderer = getattr(llm, "renderer", None)
    if renderer is not None:
        prompts = renderer.render_cmpl(prompts)
    core = llm.llm_engine
    for n, prompt in enumerate(prompts):
        given = SamplingParams(
            max_tokens=BUDGET, temperature=1.0, seed=1000 * seed + n, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY, **more,
        )  # fmt: skip
        core.add_request(f"{seed}-{n}", prompt, given)
    drawn = 0
    while core.has_unfinished_requests():
        drawn += sum(len(each.outputs[0].token_ids) for each in core.step() if each.finished)
    return drawn


def transformers_model(model: str) -> Any:
    """Load the model for `smc.sample`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import smc

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return smc.TransformersLM(network, AutoTokenizer.from_pretrained(model))


def cost(options: argparse.Namespace) -> None:
    """Measure seconds per call, in turns."""
    import gcd
    import gcd_vllm
    import smc

    llm = engine(options.model)
    prompt = prompt_of("Rome", 3)
    tokens = tuple(llm.get_tokenizer().encode(prompt))

    def ask(seed: int, **more: Any) -> int:
        """Send as many requests as there are particles, as `gcd_vllm.sample` does."""
        return send(llm, tokens, options.particles, seed, **more)

    text = json.dumps(CONSTRAINT | {"budget": BUDGET})

    def weighed(seed: int, **more: Any) -> int:
        (found,) = gcd_vllm.sample(
            llm,
            [prompt],
            CONSTRAINT,
            max_tokens=BUDGET,
            particles=options.particles,
            seed=seed,
            **more,
        )
        return found.diagnostics.generated

    lm = transformers_model(options.model)
    automaton = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)

    def ours(seed: int) -> int:
        (found,) = smc.sample(
            lm, [prompt], automaton, max_tokens=BUDGET, particles=options.particles,
            proposal=smc.GCD(), algorithm="smc", seed=seed, max_rows=options.particles,
        )  # fmt: skip
        return found.diagnostics.generated

    sides: dict[str, Callable[[int], int]] = {
        "vLLM, no constraint": lambda seed: ask(seed),
        "vLLM, GCD": lambda seed: ask(seed, extra_args={"gcd": text}),
        "vLLM, GCD with weights": weighed,
        "vLLM, SMC in parts of 8": lambda seed: weighed(seed, chunk=8),
        "smc.sample on transformers": ours,
    }
    spent_on_weights = time_weights()
    shares = []
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    drawn: dict[str, list[int]] = {name: [] for name in sides}
    for turn in range(options.turns + 1):
        for name, side in sides.items():
            spent_on_weights.clear()
            begin = time.process_time()
            number = side(turn)
            spent = time.process_time() - begin
            print(f"RESULT turn {turn}, {name}: {spent:.2f} s, {number} tokens", flush=True)
            if turn and side is weighed:
                shares.append(sum(spent_on_weights) / spent)
            if turn:  # the first one warms up
                seconds[name].append(spent)
                drawn[name].append(number)
    print(f"RESULT {options.particles} answers, budget {BUDGET}, {options.turns} turns")
    share = statistics.median(shares)
    print(f"RESULT share of GCD with weights that passes for weights take: {share:.4f}")
    names = ("s of processor time", "tokens", "ms per token", "of GCD's")
    print("RESULT", head("", *names).replace("\n", "\nRESULT "))
    per_token = {name: 1000 * sum(seconds[name]) / sum(drawn[name]) for name in sides}
    for name in sides:
        median, count = statistics.median(seconds[name]), statistics.mean(drawn[name])
        ratio = per_token[name] / per_token["vLLM, GCD"]
        cells = (name, f"{median:.2f}", f"{count:.0f}", f"{per_token[name]:.2f}", f"{ratio:.3f}")
        print("RESULT", line(*cells))


def time_weights() -> list[float]:
    """Note the processor time of every pass over the logits that only weights need."""
    from gcd_vllm._step_weights import StepWeights

    spent: list[float] = []
    for name in ("before_mask", "after_mask"):
        original = getattr(StepWeights, name)

        def timed(*arguments: Any, original: Any = original, **options: Any) -> None:
            begin = time.process_time()
            original(*arguments, **options)
            spent.append(time.process_time() - begin)

        setattr(StepWeights, name, timed)
    return spent


def evidence(options: argparse.Namespace) -> None:
    """Compare the log evidence of each prompt with that of `smc.sample`."""
    import gcd
    import gcd_vllm
    import smc

    llm = engine(options.model)
    lm = transformers_model(options.model)
    automaton = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)
    prompts = [prompt_of(city, 2 + n % 7) for n, city in enumerate(CITIES[: options.prompts])]
    common: dict[str, Any] = {"max_tokens": BUDGET, "particles": options.particles, "seed": 1}
    forced: dict[str, Any] = {"chunk": 8, "ess_threshold": 1.0, "strata": "none"}
    sides: dict[str, dict[str, Any]] = {
        "vLLM": {},
        "parts of 8": {"chunk": 8},
        "parts of 8, always resampled": forced,
    }
    found = {
        name: gcd_vllm.sample(llm, prompts, CONSTRAINT, **common, **more)
        for name, more in sides.items()
    }
    exact = smc.sample(
        lm, prompts, automaton, max_tokens=BUDGET, particles=128, proposal=smc.GCD(),
        algorithm="discrete", seed=1,
    )  # fmt: skip
    columns = [column for name in sides for column in (name, "z")]
    print("RESULT", head("prompt", "discrete filter", *columns).replace("\n", "\nRESULT "))
    scores: dict[str, list[float]] = {name: [] for name in sides}
    for number, (city, truth) in enumerate(zip(CITIES, exact, strict=False)):
        cells: list[str] = [city, format_evidence(truth)]
        for name, posteriors in found.items():
            each = posteriors[number]
            errors = each.reliability.log_evidence_error, truth.reliability.log_evidence_error
            z = (each.log_evidence - truth.log_evidence) / math.hypot(*errors)
            scores[name].append(z)
            cells += [format_evidence(each), f"{z:+.1f}"]
        print("RESULT", line(*cells))
    for name, values in scores.items():
        spread = math.sqrt(statistics.mean(z * z for z in values))
        steps = [sum(each.diagnostics.resampled) for each in found[name]]
        print(
            f"RESULT {name}: mean z {statistics.mean(values):+.2f}, root mean square {spread:.2f}, "
            f"|z| over 2: {sum(abs(z) > 2 for z in values)} of {len(values)}; resampled "
            f"{statistics.mean(steps):.1f} times a prompt"
        )
    print("RESULT", found["parts of 8, always resampled"][0].diagnostics.parts)


ROOT = Path(__file__).resolve().parents[1]
MORE = 4  # tokens of the budget beyond a shortest answer
TOOLS = [{"name": "get_weather", "parameters": SCHEMA}]
CALL = '[{"name": "get_weather", "arguments": {"city": "Bern", "days": 1}}]'


def pgcd(options: argparse.Namespace) -> None:
    """Compare P-GCD with GCD in the engine, on tool calls."""
    import gcd
    import gcd_vllm
    import smc

    os.environ["GCD_VLLM_HMMS"] = str(ROOT / "models")
    llm = engine(options.model)
    lm = transformers_model(options.model)
    named = gcd_vllm.PGCD("smollm2-xlam-hmm", lookahead="in_time")
    automaton = gcd.lift(gcd.tool_calls(TOOLS), lm.vocabulary)
    budget = automaton.fewest_tokens + MORE
    proposals: dict[str, Any] = {"GCD": "gcd", "P-GCD": named}
    print(f"RESULT budget {budget}, {options.particles} particles")
    print("RESULT", head("prompt", "discrete filter", *(
        f"{name}: {column}" for name in proposals for column in ("log evidence", "z", "ESS")
    )).replace("\n", "\nRESULT "))  # fmt: skip
    scores: dict[str, list[float]] = {name: [] for name in proposals}
    sizes: dict[str, list[float]] = {name: [] for name in proposals}
    spent: dict[str, list[float]] = {name: [] for name in proposals}
    for number, city in enumerate(CITIES[: options.prompts]):
        prompt = (
            f"Request: Will it rain in Bern tomorrow?\n{CALL}\n"
            f"Request: What will the weather be in {city} over the next {2 + number % 7} days?\n"
        )
        (truth,) = smc.sample(
            lm, [prompt], automaton, max_tokens=budget, particles=128, algorithm="discrete", seed=1,
            proposal=named.proposal(lm.vocabulary, lm.device),
        )  # fmt: skip
        cells: list[Any] = [city, format_evidence(truth)]
        for name, proposal in proposals.items():
            for turn in range(2):  # the first one compiles the constraint and the HMM's table
                begin = time.process_time()
                (found,) = gcd_vllm.sample(
                    llm, [prompt], {"tools": TOOLS}, max_tokens=budget, seed=turn,
                    particles=options.particles, proposal=proposal,
                )  # fmt: skip
                seconds = time.process_time() - begin
            spent[name].append(1000 * seconds / found.diagnostics.generated)
            errors = found.reliability.log_evidence_error, truth.reliability.log_evidence_error
            scores[name].append((found.log_evidence - truth.log_evidence) / math.hypot(*errors))
            sizes[name].append(found.ess)
            cells += [format_evidence(found), f"{scores[name][-1]:+.1f}", f"{found.ess:.1f}"]
        print("RESULT", line(*cells), flush=True)
    for name, values in scores.items():
        spread = math.sqrt(statistics.mean(z * z for z in values))
        print(
            f"RESULT {name}: root mean square of z {spread:.2f}, median ESS "
            f"{statistics.median(sizes[name]):.1f} of {options.particles}, "
            f"{statistics.median(spent[name]):.2f} ms of processor time per token"
        )


def format_evidence(posterior: Any) -> str:
    """Write the log evidence and its standard error."""
    error = posterior.reliability.log_evidence_error
    return f"{posterior.log_evidence:.3f} +- {error:.3f}"


def main() -> None:
    """Read the arguments and run one of the commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, do in (("cost", cost), ("evidence", evidence), ("pgcd", pgcd)):
        command = commands.add_parser(name, help=do.__doc__)
        command.set_defaults(do=do)
        command.add_argument("--model", required=True, help="directory of a model")
        command.add_argument("--particles", type=int, default=64)
        if name == "cost":
            command.add_argument("--turns", type=int, default=5)
        else:
            command.add_argument("--prompts", type=int, default=20)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
