"""Exact tests of samplers, with a toy language model and an enumeration of all random choices.

A *walk* is one execution of a sampler, identified by the outcomes of its random choices. A sampler
is correct if weight times probability, summed over all walks, equals the target:

    sum over walks of P(walk) · Ẑ(walk) · P_walk(x)  =  p_lm(x) 1{x in C, |x| <= n}   for every x

Here Ẑ is the evidence estimate and P_walk the posterior at the end of the walk. `walk` runs a
sampler through every combination of outcomes of every choice made with `draw`, for tokens and for
ancestors. `target` computes the right-hand side by plain enumeration. Both are exact, so they agree
up to rounding, and no statistical test is needed. A sampler with any bias fails.

Cost: each walk samples one example, and the number of walks grows exponentially. Use two or three
particles and a few tokens.

`check_lookahead` tests your own lookahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from gcd import AutomatonBatch, TokenAutomaton, Vocabulary
from smc._models.protocol import Prompt, token_ids
from smc._proposals import AutomatonPosition, Batch, start_position
from smc._proposals.twisted import Lookahead
from smc._vocabulary.draw import Breaks, Draw, Keys

__all__ = ["ToyForward", "ToyLM", "ToyRows", "check_lookahead", "target", "walk"]

Result = TypeVar("Result")


def __dir__() -> list[str]:
    return __all__


class ToyLM:
    """Toy language model with arbitrary, fixed conditional distributions.

    The distribution of the next token is a function of the whole sequence so far: Gaussian logits
    from a generator that is seeded with the sequence.

    Args:
        vocabulary: the vocabulary.
        seed: seed that selects the model.
        spread: standard deviation of the logits.
        context: value of the model's `context`.
        dtype: dtype of its log-probabilities.
        device: device of its log-probabilities.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        seed: int = 0,
        spread: float = 1.0,
        context: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
    ) -> None:
        self.vocabulary = vocabulary
        self.context = context
        self.dtype = dtype
        self.device = torch.device(device)
        self._seed = seed
        self._spread = spread
        self._known: dict[tuple[int, ...], Float[Tensor, "V"]] = {}

    def encode(self, prompt: Prompt) -> list[int]:
        """Return token ids unchanged, and the character codes of a text modulo V."""
        if isinstance(prompt, str):
            return [ord(character) % self.vocabulary.size for character in prompt]
        return token_ids(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[ToyRows, Float[Tensor, "B V"]]:
        """Create one row per prompt, and compute log p(first token)."""
        rows = ToyRows(self, [tuple(prompt) for prompt in prompts])
        return rows, torch.stack([self.log_p(tuple(prompt)) for prompt in prompts])

    def static_forward(self) -> ToyForward:
        """Return the model in static shapes; see `smc._models.static_cache.Forward`."""
        return ToyForward(self)

    def log_p(self, tokens: tuple[int, ...]) -> Float[Tensor, "V"]:
        """Return log p(next | tokens) at temperature one."""
        if tokens not in self._known:
            generator = np.random.default_rng([self._seed, len(tokens), *tokens])
            logits = self._spread * generator.standard_normal(self.vocabulary.size)
            log_p = torch.from_numpy(logits).log_softmax(dim=0)
            self._known[tokens] = log_p.to(self.device, self.dtype)
        return self._known[tokens]


class ToyRows:
    """Rows that store the token sequences; see `smc._models.protocol.Rows`."""

    def __init__(self, lm: ToyLM, prompts: Sequence[tuple[int, ...]]) -> None:
        self._lm = lm
        self._prompt_lengths = [len(prompt) for prompt in prompts]
        self._tokens = list(prompts)

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append runs of tokens.

        Values beyond a run's length are NaN, so that a test detects their use.
        """
        shape = (*runs.shape, self._lm.vocabulary.size)
        log_p = torch.full(shape, torch.nan, dtype=self._lm.dtype, device=self._lm.device)
        for r, (run, length) in enumerate(zip(runs.tolist(), lengths.tolist(), strict=True)):
            for t in range(length):
                self._tokens[r] = (*self._tokens[r], run[t])
                log_p[r, t] = self._lm.log_p(self._tokens[r])
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows `ancestors`."""
        self._tokens = [self._tokens[a] for a in ancestors.tolist()]
        self._prompt_lengths = [self._prompt_lengths[a] for a in ancestors.tolist()]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten each row to its prompt and its first `lengths[r]` generated tokens."""
        self._tokens = [
            tokens[: prompt + length]
            for tokens, prompt, length in zip(
                self._tokens, self._prompt_lengths, lengths.tolist(), strict=True
            )
        ]


class ToyForward:
    """Forward passes of a toy model in static shapes; see `smc._models.static_cache.Forward`."""

    def __init__(self, lm: ToyLM) -> None:
        self._lm = lm

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int, budget: int
    ) -> Float[Tensor, "P V"]:
        """Create N rows per prompt, and compute log p(first token)."""
        self._prompts = [tuple(prompt) for prompt in prompts for _ in range(num_particles)]
        self.rewind()
        return torch.stack([self._lm.log_p(tokens) for tokens in self._prompts])

    def step(
        self, tokens: Int[Tensor, "P"], source: Int[Tensor, "P"], step: Int[Tensor, ""]
    ) -> Float[Tensor, "P V"]:
        """Copy rows, and append a token to each row."""
        self._rows.reorder(source)
        return self._rows.extend(tokens.unsqueeze(1), torch.ones_like(tokens))[:, 0]

    def rewind(self) -> None:
        """Remove all generated tokens from the rows."""
        self._rows = ToyRows(self._lm, self._prompts)


def target(
    lm: ToyLM,
    prompt: Prompt,
    automaton: TokenAutomaton,
    budget: int,
    *,
    temperature: float = 1.0,
) -> dict[tuple[int, ...], float]:
    """Return p_lm(x) of every token sequence x (including EOS) in C with |x| <= budget.

    The values sum to P_lm(C within n). Divided by this sum, they are the target distribution. Cost:
    exponential in the budget.
    """
    found: dict[tuple[int, ...], float] = {}
    start = tuple(lm.encode(prompt))

    def visit(state: int, tokens: tuple[int, ...], probability: float) -> None:
        if state == automaton.final:
            found[tokens] = probability
            return
        if len(tokens) == budget:
            return
        p = (lm.log_p(start + tokens) / temperature).softmax(dim=0).tolist()
        for token in range(lm.vocabulary.size):
            after = automaton.step(state, token)
            if after >= 0:
                visit(after, (*tokens, token), probability * p[token])

    visit(automaton.initial, (), 1.0)
    return found


def walk(
    run: Callable[[Draw, list[int]], Sequence[Result]], *, chunk: int = 1024
) -> Iterator[tuple[float, Result]]:
    """Run a sampler through every combination of outcomes of its random choices.

    A walk is one execution of the sampler, identified by the outcomes of its random choices in
    order. The walks of a chunk are sampled together, as examples of one batch. Each walk begins
    with given outcomes, and takes the first outcome of every later choice. The other outcomes of
    these choices are recorded; each begins another walk. So every walk is run exactly once.

    Args:
        run: function that samples the same example once for each given id, with the given `draw`.
        chunk: number of walks that are sampled together.

    Yields:
        The probability of each walk, and the result of `run` for it. The probabilities sum to one.
    """
    pending: list[tuple[int, ...]] = [()]
    while pending:
        scripts, pending = pending[-chunk:], pending[:-chunk]
        draw = _Scripted(scripts)
        results = run(draw, list(range(len(scripts))))
        for script, choices, result in zip(scripts, draw.choices, results, strict=True):
            taken = tuple(outcome for outcome, _ in choices)
            yield float(np.prod([shares[outcome] for outcome, shares in choices])), result
            for index in range(len(script), len(choices)):
                others = range(1, len(choices[index][1]))
                pending.extend((*taken[:index], other) for other in others)


class _Scripted:
    """A `Draw` that follows a list of outcomes for each example's first choices.

    For later choices it takes the first possible outcome.

    Attributes:
        choices: for each example, a list of its choices, as pairs of the outcome taken and the
            probabilities of all outcomes.
    """

    # Outcomes with a smaller probability are rounding errors between two equal breaks.
    _NOTHING = 1e-14

    def __init__(self, scripts: Sequence[tuple[int, ...]]) -> None:
        self._scripts = scripts
        self.choices: list[list[tuple[int, list[float]]]] = [[] for _ in scripts]
        # Repeated keys get the same number.
        self._known: dict[tuple[int, ...], float] = {}

    def __call__(self, keys: Keys, breaks: Breaks) -> Float64[Tensor, "*M"]:
        """Return numbers in (0, 1) that lead to the outcomes that each example must take."""
        points = breaks()
        rows = points.reshape(-1, points.shape[-1]).clamp(0, 1).sort(dim=1).values.numpy()
        edges = np.concatenate([np.zeros((len(rows), 1)), rows, np.ones((len(rows), 1))], axis=1)
        shares = np.diff(edges, axis=1)
        possible = shares > self._NOTHING
        # At once for all rows, because most have a single outcome.
        several, first = (possible.sum(axis=1) > 1).tolist(), possible.argmax(axis=1).tolist()
        u = np.empty(len(rows))
        parts = (
            torch.as_tensor(part, device="cpu").expand_as(keys.example).flatten().tolist()
            for part in keys
        )
        for m, name in enumerate(zip(*parts, strict=True)):
            if name in self._known:
                u[m] = self._known[name]
                continue
            example = name[0]
            cell = first[m]
            # Choices with one outcome aren't recorded, because their number depends on the batch:
            # numbers are also drawn for examples that have ended.
            if several[m]:
                script, choices = self._scripts[example], self.choices[example]
                cells = possible[m].nonzero()[0]
                outcome = script[len(choices)] if len(choices) < len(script) else 0
                choices.append((outcome, shares[m][cells].tolist()))
                cell = cells[outcome]
            u[m] = edges[m, cell] + shares[m, cell] / 2
            self._known[name] = u[m]
        return torch.from_numpy(u).reshape(keys.example.shape)


def check_lookahead(
    lookahead: Lookahead[Any],
    automaton: TokenAutomaton,
    budget: int,
    *,
    tolerance: float = 1e-9,
    prefixes: int = 200,
) -> int:
    """Check the laws that every lookahead must obey, for prefixes of a constraint.

    Let `completed(x)` be the sum of joint(v) over the tokens v that are allowed after a prefix x,
    or one if x is complete. The laws are

        joint(v) = mass(v) completed(x v),        joint(v) <= eventual(v) <= mass(v),
        joint of a class = the sum of joint over its tokens.

    The first law is a recursion. Together with the boundary condition at the end of the budget, it
    determines all values. Cost: one call for each of at most `prefixes` prefixes, the shortest
    first.

    Args:
        lookahead: the lookahead.
        automaton: the constraint.
        budget: maximum number of tokens of an answer.
        tolerance: allowed relative error.
        prefixes: maximum number of prefixes.

    Returns:
        The number of prefixes checked.

    Raises:
        AssertionError: a law is violated; the message has the prefix.
    """
    batch = Batch(AutomatonBatch([automaton]), torch.tensor([budget], device="cpu"))
    V = automaton.vocabulary.size
    every, looked = torch.arange(V, device="cpu").unsqueeze(0), 0
    waiting: list[tuple[tuple[int, ...], Any, AutomatonPosition]]
    waiting = [((), lookahead.start(batch), start_position(batch))]
    while waiting and looked < prefixes:
        prefix, state, position = waiting.pop(0)
        looked += 1
        allowed = position.steps_after_tokens(every)[0] < position.remaining
        tokens, by_class = lookahead.all_tokens(state, position), lookahead.classes(state, position)
        joint = torch.where(allowed, tokens.log_joint[0].exp(), 0.0)
        mass = torch.where(allowed, tokens.log_mass[0].exp(), 0.0)
        class_of = position.automata.class_of[0].long()
        summed = torch.zeros(by_class.log_joint.shape[1], dtype=torch.float64, device="cpu")
        summed.index_add_(0, class_of, joint)
        alive = position.steps_after_classes()[0] < position.remaining
        found = torch.where(alive, by_class.log_joint[0].exp(), 0.0)
        _close(found, summed, tolerance, prefix, "joint by class is the sum over its tokens")
        for token in allowed.nonzero().flatten().tolist():
            run = torch.tensor([[token]], device="cpu")
            after, there = lookahead.advance(state, run), position.advance(run)
            completed = torch.tensor(1.0, dtype=torch.float64, device="cpu")
            if not bool(there.finished):
                going = there.steps_after_tokens(every)[0] < there.remaining
                each = lookahead.all_tokens(after, there).log_joint[0].exp()
                completed = torch.where(going, each, 0.0).sum()
                waiting.append(((*prefix, token), after, there))
            name = f"joint of token {token} is its mass times what comes after it"
            _close(joint[token], mass[token] * completed, tolerance, prefix, name)
        if tokens.log_eventual is not None:
            eventual = torch.where(allowed, tokens.log_eventual[0].exp(), 0.0)
            ordered = (joint <= eventual * (1 + tolerance)) & (eventual <= mass * (1 + tolerance))
            assert bool(ordered.all()), f"expected joint <= eventual <= mass after prefix {prefix}"
    return looked


def _close(
    found: Tensor, expected: Tensor, tolerance: float, prefix: tuple[int, ...], law: str
) -> None:
    """Raise AssertionError if two probabilities differ by more than a relative tolerance."""
    far = (found - expected).abs() > tolerance * expected.abs()
    assert not bool(far.any()), (
        f"expected that {law}: {expected} after prefix {prefix}, got {found}"
    )
