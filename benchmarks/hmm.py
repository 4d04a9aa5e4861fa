"""EM of hidden Markov models: how near to the machine's matrix multiplication, and beside Ctrl-G.

One step of `hmm.em.em_step` on a batch of sequences of equal length: E-step, blending with the
counts before, M-step. In turn with it, in the same run:

* **matmul**: the products that EM consists of and nothing else, B x H times H x H for every
  position, and the H x H counts of all positions in one product; same threads, type and device.
  The faster of the two shapes is the machine's rate.
* **Ctrl-G** (`--ctrlg DIR`): a step of that project's training (`distillation/train_hmm.py`) by
  the model class in `DIR/ctrlg/hmm.py`: its `forward`, its `backward`, and the normalisation of
  the counts in place. From the same parameters, on the same tokens, without its evaluation of the
  likelihood after each step. DIR is a copy of https://github.com/joshuacnf/Ctrl-G.

Operations are counted as 6 H² a token: 2 H² for each of the products forward, backward and counts.
With Monarch transitions (blocks of M x M and K x K, H = K M) they are 8 H (M + K): forward,
backward, and both factors' counts, which need a half of each again; there the product to compare
with is batched over blocks. Tokens are uniform over the vocabulary, which is hardest on caches.

    python -m benchmarks.hmm --ctrlg ../Ctrl-G
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import CLOCKS
from hmm.em import PseudoCounts, Step, em_step
from hmm.model import HMM
from hmm.transition import Dense, Monarch

DTYPES = {"float32": torch.float32, "float64": torch.float64}
PSEUDO_COUNT = 0.1  # a distribution; spread over its entries
AGREEMENT = 1e-3  # how far the transitions may be from Ctrl-G's after a step, in the largest entry


class Setting(NamedTuple):
    """A batch of so many sequences of so many tokens, medians of so many runs, by which clock."""

    sequences: int
    length: int
    repeats: int
    clock: str


class Product(NamedTuple):
    """A matrix product of a shape that EM has, and its operations."""

    run: Callable[[], object]
    operations: int


class CtrlG:
    """Training of Ctrl-G's model, from the parameters of ours and on the same tokens."""

    def __init__(self, model_class: Any, hmm: HMM, tokens: Tensor) -> None:
        assert isinstance(hmm.transition, Dense)
        self.tokens = tokens
        self.model = model_class(hmm.num_states, hmm.num_tokens, 0)
        self.model.update_params(
            hmm.transition.matrix.clone(), hmm.emission.T.log().contiguous(), hmm.initial.log()
        )

    def step(self) -> None:
        """Forward, backward, and the counts normalised in place."""
        model = self.model
        zeros = self.tokens.new_zeros
        kind, states, vocab = model.alpha_exp.dtype, model.hidden_states, model.vocab_size
        transition = zeros(states, states, dtype=kind)
        emission = zeros(vocab + 1, states, dtype=kind)  # one row more, for missing tokens
        initial = zeros(states, dtype=kind)
        with torch.no_grad():
            probabilities = model.forward(self.tokens)
            model.backward(self.tokens, probabilities, transition, emission, initial)
            transition.mul_(model.alpha_exp)
            emission = emission[:-1].T.contiguous()
            for counts in (transition, emission, initial):
                counts += PSEUDO_COUNT / counts.shape[-1]
                counts /= counts.sum(dim=-1, keepdim=True)
            model.update_params(transition, emission.log_(), initial.log_())


def ctrlg_model(directory: Path) -> Any:
    """The model class of a copy of Ctrl-G.

    Raises:
        ValueError: if there is none in that directory, or what it imports is not installed.
    """
    path = directory / "ctrlg" / "hmm.py"
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; give the root of a copy of https://github.com/joshuacnf/Ctrl-G"
        )
    spec = importlib.util.spec_from_file_location("ctrlg_hmm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.HMM
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def operations_a_token(hmm: HMM) -> int:
    """Of one E-step, in its matrix products."""
    if isinstance(hmm.transition, Dense):
        return 6 * hmm.num_states**2
    outer, inner = hmm.transition.first.shape[:2]
    return 8 * hmm.num_states * (inner + outer)


def products(hmm: HMM, sequences: int, length: int) -> list[Product]:
    """The products that an E-step consists of, into memory that is there already."""

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, dtype=hmm.dtype, device=hmm.device)

    states, n = hmm.num_states, sequences * length
    if isinstance(hmm.transition, Monarch):
        made = []
        for blocks in hmm.transition.factors:
            number, size = blocks.shape[:2]
            left, out = random(number, sequences, size), random(number, sequences, size)

            def batched(left: Tensor = left, blocks: Tensor = blocks, out: Tensor = out) -> None:
                for _ in range(length):
                    torch.bmm(left, blocks, out=out)

            made.append(Product(batched, 2 * n * states * size))
        return made
    matrix, left, out = hmm.transition.matrix, random(sequences, states), random(sequences, states)
    before, after, counts = random(n, states), random(n, states), random(states, states)

    def step_by_step() -> None:
        for _ in range(length):
            torch.mm(left, matrix, out=out)

    return [
        Product(step_by_step, 2 * n * states**2),
        Product(lambda: torch.mm(before.T, after, out=counts), 2 * n * states**2),
    ]


def now(clock: str, device: torch.device) -> float:
    """Seconds on this clock, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return CLOCKS[clock]()


def measure(hmm: HMM, setting: Setting, ctrlg: Any = None) -> list[str]:
    """A row of the table: medians of steps of EM, of products and of Ctrl-G's steps, in turn.

    Raises:
        ValueError: if Ctrl-G's first step leads elsewhere than ours.
    """
    sequences, length = setting.sequences, setting.length
    generator = torch.Generator(hmm.device).manual_seed(0)
    tokens = torch.randint(
        hmm.num_tokens, (sequences, length), generator=generator, device=hmm.device
    )
    batch = tokens, torch.full((sequences,), length, device=hmm.device)
    prior = PseudoCounts(
        *(PSEUDO_COUNT / width for width in (hmm.num_states, hmm.num_states, hmm.num_tokens))
    )
    # The first step of each is for warming up, and ends where the other one does.
    state = em_step(Step(hmm), [batch], pseudo_counts=prior)
    theirs = None
    if ctrlg is not None and isinstance(hmm.transition, Dense):
        theirs = CtrlG(ctrlg, hmm, tokens)
        theirs.step()
        expected = state.hmm.transition.dense()
        apart = float((theirs.model.alpha_exp - expected).abs().max() / expected.max())
        if not apart <= AGREEMENT:
            raise ValueError(
                f"after one step Ctrl-G's transitions are {apart:.2g} of the largest from ours, "
                f"more than {AGREEMENT}: the two do not compute the same"
            )

    def step() -> None:
        nonlocal state
        state = em_step(
            state, [batch], pseudo_counts=prior, step_size=0.5, num_sequences=10 * sequences
        )

    def seconds(run: Callable[[], object]) -> float:
        start = now(setting.clock, hmm.device)
        run()
        return now(setting.clock, hmm.device) - start

    shapes = products(hmm, sequences, length)
    ours: list[float] = []
    plain: list[list[float]] = [[] for _ in shapes]
    other: list[float] = []
    for _ in range(setting.repeats):
        ours.append(seconds(step))
        for times, product in zip(plain, shapes, strict=True):
            times.append(seconds(product.run))
        if theirs is not None:
            other.append(seconds(theirs.step))
    fastest = max(
        product.operations / statistics.median(times)
        for times, product in zip(plain, shapes, strict=True)
    )
    needed, n = statistics.median(ours), sequences * length
    rate = operations_a_token(hmm) * n / needed
    cells = ["dense" if isinstance(hmm.transition, Dense) else "Monarch"]
    cells += [f"{hmm.num_tokens}", f"{hmm.num_states}", f"{needed:.3g}", f"{n / needed:,.0f}"]
    cells += [f"{rate / 1e9:.4g}", f"{fastest / 1e9:.4g}", f"{rate / fastest:.2f}"]
    if not other:
        return [*cells, "–", "–"]
    beside = statistics.median(other)
    return [*cells, f"{n / beside:,.0f}", f"{beside / needed:.2f}"]


HEADS = ["transition", "V", "H", "step, s", "tokens/s", "Gflop/s", "matmul, Gflop/s", "share"]
HEADS += ["Ctrl-G, tokens/s", "ours / Ctrl-G"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--states", type=int, nargs="+", default=[512, 2048], help="H")
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 32000], help="V")
    parser.add_argument("--sequences", type=int, default=256, help="in a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens of each")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--ctrlg", type=Path, metavar="DIR", help="a copy of Ctrl-G")
    parser.add_argument("--repeats", type=int, default=5)
    common.add_clock(parser)
    options = parser.parse_args(arguments)
    counted = (*options.states, *options.vocab, options.sequences, options.length, options.repeats)
    if min(counted) < 1:
        parser.error(f"sizes and repeats are at least one, not {min(counted)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch sees no CUDA device here")
    ctrlg = None
    if options.ctrlg is None:
        print("Ctrl-G is left out; `--ctrlg DIR` measures a copy of it.\n")
    else:
        if options.dtype != "float32":
            parser.error("Ctrl-G computes in float32: leave out --dtype, or --ctrlg")
        try:
            ctrlg = ctrlg_model(options.ctrlg)
        except ValueError as error:
            parser.error(f"--ctrlg {options.ctrlg}: {error}")

    device = torch.device(options.device)
    if options.clock == "cpu" and (device.type != "cpu" or torch.get_num_threads() > 1):
        parser.error("--clock cpu is for one thread of the CPU: set OMP_NUM_THREADS=1")
    named = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} thread(s)"
    )
    print(
        f"{options.sequences} sequences of {options.length} tokens, {options.dtype}, {named}, "
        f"torch {torch.__version__}; medians of {options.repeats}, {options.clock} time\n"
    )
    print(common.head(*HEADS))
    setting = Setting(options.sequences, options.length, options.repeats, options.clock)
    for kind, vocab, states in itertools.product((False, True), options.vocab, options.states):
        generator = torch.Generator(device).manual_seed(0)
        hmm = HMM.random(
            states,
            vocab,
            generator=generator,
            dtype=DTYPES[options.dtype],
            device=device,
            monarch=kind,
        )
        try:
            print(common.line(*measure(hmm, setting, ctrlg)), flush=True)
        except ValueError as error:
            raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
