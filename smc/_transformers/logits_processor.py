"""Logits processor that makes `generate` of `transformers` obey a constraint within a budget.

    model.generate(**inputs, max_new_tokens=60,
                   logits_processor=[smc.BudgetLogitsProcessor(constraint, max_tokens=60)])

In each step, tokens after which the answer can't be finished in time get the score -inf (GCD's
mask). Greedy search, sampling and beam search therefore end with complete, valid answers. With a
lookahead, the scores change as follows:

    score(v)  ->  score(v) + log g(v) - log g(last token)

Here g belongs to the lookahead's proposal q(v), which is proportional to p_lm(v) g(v). The last
term is the same for all v, and only affects beam search. Summed along an answer, the terms with g
cancel. An unfinished beam is therefore ranked by p_lm of its tokens times the probability that it
will be completed. A complete answer is ranked by p_lm alone (up to the defensive mixture and tying,
see `smc._proposals.twisted`).

Unlike `smc.generate`, the processor doesn't correct the bias of renormalizing in each step.

**States are functions of the tokens.** The state of a batch row depends only on its constraint and
its generated tokens, which are read from `input_ids` in each call. States of recent calls are
cached by their tokens. So a row usually extends a cached state by one token. No other data is kept.
Therefore beam search may reorder and drop rows, and an assistant's drafts may be rejected. One
processor may be used in any number of calls, with other prompts and in other threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from transformers import LogitsProcessor

from gcd import AutomatonBatch, ConstraintError, TokenAutomaton, check_budget
from smc._forward.reader import has_nan, refuse_nan
from smc._inference.arguments import whole
from smc._proposals import GCD, AutomatonPosition, Batch
from smc._proposals.twisted import Lookahead, Twisted, looking_ahead
from smc._removed import accept_budget
from smc._transformers.generate_call import GenerateCall, generate_call
from smc._vocabulary.factors import defend

MOST_KNOWN = 32
"""Number of calls whose states are cached, more than the usual length of an assistant's draft."""


class _Known(NamedTuple):
    """Cached states of the batch rows of one call.

    Attributes:
        row_of: the row in `state` that belongs to a constraint (its index) and generated tokens.
        state: the proposal's state.
        log_potential: log g of the last token of each row.
    """

    row_of: dict[tuple[int, bytes], int]
    state: Any
    log_potential: Float64[Tensor, "R"]


class BudgetLogitsProcessor(LogitsProcessor):
    """Logits processor that finishes constrained answers within a budget.

    It supports greedy search, sampling, beam search, assisted decoding, left padding and several
    returned sequences, in any number of calls. Inside `generate` it finds the prompt length itself.
    In your own loop, pass `prompt_length`.

    Args:
        constraint: a constraint for all prompts, or one per prompt, lifted to the model's
            vocabulary.
        max_tokens: maximum number of tokens of an answer, including EOS; one for all constraints or
            one per constraint. `max_new_tokens` of `generate` must equal the largest one.
        lookahead: a proposal with a lookahead, such as `smc.PGCD(hmm)`, or a `smc.Lookahead`. None
            uses only GCD's mask.
        prompt_length: number of columns of `input_ids` before the answer; by default, the prompt
            length of `generate`. Pass a smaller number to continue a partial answer, whose tokens
            then count toward the budget.

    Raises:
        InfeasibleBudgetError: a budget is shorter than the shortest answer.
        OverlongBudgetError: a budget exceeds the lengths that its constraint covers.
        ConstraintError: a constraint is not lifted to tokens, has no EOS token, or isn't supported
            by the lookahead.
        ValueError: another argument is invalid.
    """

    @accept_budget
    def __init__(
        self,
        constraint: TokenAutomaton | Sequence[TokenAutomaton],
        max_tokens: int | Sequence[int],
        lookahead: Twisted[Any] | Lookahead[Any] | None = None,
        *,
        prompt_length: int | None = None,
    ) -> None:
        self.constraints = check_constraints(constraint)
        self._one_each = isinstance(constraint, Sequence)
        count = len(self.constraints)
        several = isinstance(max_tokens, Sequence) and not isinstance(max_tokens, str)
        budgets: list[Any] = [*max_tokens] if several else [max_tokens] * count  # type: ignore[misc]
        if len(budgets) != count:
            raise ValueError(
                f"expected one max_tokens, or one per constraint ({count}), got {len(budgets)}"
            )
        self.vocabulary = self.constraints[0].vocabulary
        if not self.vocabulary.eos_ids:
            raise ConstraintError(
                "expected a constraint with an EOS token, at which generate ends an answer, got "
                "one without; set eos_ids of its vocabulary, or use smc.generate"
            )
        for index, (automaton, tokens) in enumerate(zip(self.constraints, budgets, strict=True)):
            check_budget(automaton, tokens, f"constraint {index}" if self._one_each else "")
        self.budgets = [whole("max_tokens", tokens) for tokens in budgets]
        if prompt_length is not None and whole("prompt_length", prompt_length) < 0:
            raise ValueError(f"expected prompt_length to be at least 0, got {prompt_length}")
        self.proposal = looking_ahead(lookahead)
        self.proposal.check(self.constraints, self.budgets)
        self.prompt_length = prompt_length
        self._start: dict[torch.device, Any] = {}
        self._known: OrderedDict[tuple[torch.device, int], _Known] = OrderedDict()

    @torch.no_grad()
    def __call__(
        self, input_ids: Int64[Tensor, "R L"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return the scores of the next token under the constraint and the budget."""
        call = generate_call(self)
        start = self._prompt_length(input_ids, call)
        self._check_tensors(input_ids, scores)
        if call is None or input_ids.shape[1] == call.prompt_length:
            self._check(input_ids, call, start)
        rows = torch.arange(len(input_ids), device=scores.device)
        which = (
            rows // max(1, len(input_ids) // len(self.constraints)) if self._one_each else rows * 0
        )
        generated = input_ids[:, start:].to(scores.device)
        known = self._reach(which, generated)

        position: AutomatonPosition = known.state.position
        alive = ~position.finished & (position.states >= 0)
        alive &= (
            position.automata.steps_to_accept[position.states.clamp(min=0)] <= position.remaining
        )
        if call is not None and call.plain and not bool((alive | position.finished).all()):
            self._refuse_strays(generated, alive | position.finished)
        if bool(alive.all()):
            return self._scores(known, scores, call)
        # Only EOS is allowed in ended rows, which beam search keeps.
        found = torch.full_like(scores, -torch.inf)
        found[:, list(self.vocabulary.eos_ids)] = 0.0
        some = alive.nonzero().squeeze(1)
        if len(some):
            rest = known._replace(
                state=self.proposal.take(known.state, some), log_potential=known.log_potential[some]
            )
            found[some] = self._scores(rest, scores[some], call)
        return found

    def _scores(
        self, known: _Known, scores: Float[Tensor, "R V"], call: GenerateCall | None
    ) -> Float[Tensor, "R V"]:
        """Return the scores of the next tokens of unfinished prefixes."""
        position: AutomatonPosition = known.state.position
        masked = scores.masked_fill(
            ~position.mask.mask(position.states, position.remaining), -torch.inf
        )
        forbidden = masked.amax(dim=1).isneginf()
        if bool(forbidden.any()):
            self._refuse_forbidden(position.take(forbidden.nonzero().squeeze(1)[:1]))
        if isinstance(self.proposal, GCD):
            return masked
        # The temperature applies to p_lm, not to g, but `generate` divides the returned scores.
        temperature = 1.0 if call is None else call.temperature
        precision = torch.promote_types(scores.dtype, torch.float32)
        log_p = (scores / temperature).log_softmax(dim=1, dtype=precision)
        log_g = defend(self.proposal.guide(known.state, log_p), log_p).log_g
        twisted = scores + temperature * (log_g - known.log_potential.unsqueeze(1))
        return twisted.to(scores.dtype)

    def _prompt_length(self, input_ids: Int64[Tensor, "R L"], call: GenerateCall | None) -> int:
        """Return the column in which answers begin."""
        start = self.prompt_length
        if start is None:
            if call is None:
                raise ValueError(
                    "expected prompt_length, because BudgetLogitsProcessor was called outside of "
                    "generate of transformers, got None; pass prompt_length=input_ids.shape[1]"
                )
            start = call.prompt_length
        if not 0 <= start <= input_ids.shape[1]:
            raise ValueError(
                "expected prompt_length to be at most the number of columns of input_ids "
                f"({input_ids.shape[1]}), got {start}"
            )
        return start

    def _check_tensors(self, input_ids: Int64[Tensor, "R L"], scores: Float[Tensor, "R V"]) -> None:
        """Raise an error if scores and ids don't match the vocabulary; runs in every call."""
        size = self.vocabulary.size
        if scores.dim() == 2 and scores.shape[1] != size:
            raise ConstraintError(
                f"expected scores of {size} tokens, as in the constraint, got scores of "
                f"{scores.shape[1]} tokens; lift the constraint to the model's vocabulary, "
                "smc.TransformersLM(model, tokenizer).vocabulary"
            )
        if input_ids.dim() != 2 or scores.dim() != 2 or len(scores) != len(input_ids):
            raise ValueError(
                f"expected input_ids of shape (rows, length) and scores of shape (rows, {size}), "
                f"got the shapes {tuple(input_ids.shape)} and {tuple(scores.shape)}"
            )
        if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise ValueError(f"expected input_ids of an integer type, got {input_ids.dtype}")
        if not scores.is_floating_point():
            raise ValueError(f"expected scores of a floating-point type, got {scores.dtype}")
        refuse_nan(has_nan(scores).any())

    def _check(
        self, input_ids: Int64[Tensor, "R L"], call: GenerateCall | None, start: int
    ) -> None:
        """Raise an error if the call doesn't match the constraints and budgets."""
        count = len(self.constraints)
        prompts = len(input_ids) if call is None else call.num_prompts
        fits = prompts % count == 0 if call is None else prompts == count
        if self._one_each and not fits:
            raise ValueError(
                f"expected as many {'rows' if call is None else 'prompts'} as constraints "
                f"({count}), got {prompts}; pass one constraint for all prompts, or one per prompt"
            )
        if call is None:
            return
        most = call.max_length - start
        if most != max(self.budgets):
            raise ValueError(
                f"expected max_new_tokens to equal the budget {max(self.budgets)}, got {most}; "
                "pass the same number to generate and BudgetLogitsProcessor"
            )
        if set(call.eos_ids) != set(self.vocabulary.eos_ids):
            raise ConstraintError(
                f"expected generate to stop at the constraint's EOS ids "
                f"{list(self.vocabulary.eos_ids)}, got {list(call.eos_ids)}; pass "
                f"eos_token_id={list(self.vocabulary.eos_ids)} to generate"
            )

    def _reach(self, which: Int64[Tensor, "R"], generated: Int64[Tensor, "R T"]) -> _Known:
        """Return the proposal's state after the generated tokens of each row."""
        device, length = which.device, generated.shape[1]
        lines = generated.cpu().numpy()
        if lines.size and not 0 <= lines.min() <= lines.max() < self.vocabulary.size:
            wrong = int(lines.min()) if lines.min() < 0 else int(lines.max())
            raise ValueError(
                f"expected token ids of the answer from 0 to {self.vocabulary.size - 1}, got "
                f"{wrong}; check that prompt_length is the column in which the answer begins"
            )
        owners = which.tolist()
        names = [(owner, line.tobytes()) for owner, line in zip(owners, lines, strict=True)]
        known = self._look_up(device, length, names)
        if known is not None:
            return known
        parents = [(owner, line[:-1].tobytes()) for owner, line in zip(owners, lines, strict=True)]
        known = self._look_up(device, length - 1, parents)
        if known is None:
            state = self.proposal.take(self._start_state(device), which)
            none = torch.zeros(len(which), dtype=torch.float64, device=device)
            known = _Known({}, state, none)
            for token in generated[:, :-1].unbind(dim=1):
                known = self._extend(known, token)
        if length:
            known = self._extend(known, generated[:, -1])
        known = known._replace(row_of={name: row for row, name in enumerate(names)})
        self._known[device, length] = known
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def _look_up(
        self, device: torch.device, length: int, names: list[tuple[int, bytes]]
    ) -> _Known | None:
        """Return the proposal's state of these rows if all of them are cached; None otherwise."""
        known = self._known.get((device, length))
        if known is None or not known.row_of.keys() >= set(names):
            return None
        rows = torch.tensor([known.row_of[name] for name in names], device=device)
        return _Known({}, self.proposal.take(known.state, rows), known.log_potential[rows])

    def _extend(self, known: _Known, token: Int64[Tensor, "R"]) -> _Known:
        """Return the proposal's state after one more token; ended rows don't change."""
        running = known.state.position.running
        some = running.nonzero().squeeze(1)
        log_potential = torch.zeros_like(known.log_potential)
        if len(some):
            before = self.proposal.take(known.state, some)
            log_potential[some] = self.proposal.log_g_of_forced(before, token[some])
        run = token.masked_fill(~running, -1).unsqueeze(1)
        return _Known({}, self.proposal.advance(known.state, run), log_potential)

    def _start_state(self, device: torch.device) -> Any:
        """Return the proposal's state before the first token, with one row per constraint."""
        if device not in self._start:
            batch = AutomatonBatch(self.constraints, device=device)
            budgets = torch.tensor(self.budgets, device=device)
            self._start[device] = self.proposal.start(Batch(batch, budgets))
        return self._start[device]

    def _refuse_forbidden(self, position: AutomatonPosition) -> None:
        """Raise the error for scores that are -inf for every allowed token."""
        tokens = (
            position.mask.mask(position.states, position.remaining)[0].nonzero().squeeze(1).tolist()
        )
        others = f" and {len(tokens) - 1} more" if len(tokens) > 1 else ""
        allowed = self._describe_token(tokens[0]) + others
        taken = int(position.mask.budget[position.automaton_of_row[0]] - position.remaining[0])
        raise ValueError(
            f"expected a finite score for a token allowed after {taken} tokens ({allowed}), got "
            "-inf; remove the logits processor that forbids it (suppress_tokens, bad_words_ids, "
            "min_new_tokens, …) or relax the constraint"
        )

    def _refuse_strays(self, generated: Int64[Tensor, "R T"], good: Tensor) -> None:
        """Raise the error for a row that was extended by a token that was not allowed."""
        row = int((~good).nonzero()[0])
        raise ValueError(
            f"expected an allowed token in row {row}, got "
            f"{self._describe_token(int(generated[row, -1]))}, "
            "which a later logits processor allowed again; pass BudgetLogitsProcessor as the last "
            "processor"
        )

    def _describe_token(self, token: int) -> str:
        if token in self.vocabulary.eos_ids:
            return f"token {token} (EOS)"
        return f"token {token} ({self.vocabulary.token_bytes[token]!r})"

    def __repr__(self) -> str:
        return f"BudgetLogitsProcessor({self.constraints}, {self.budgets}, {self.proposal!r})"


def check_constraints(constraint: object) -> list[TokenAutomaton]:
    """Return one constraint, or a sequence of constraints, as a list."""
    several = isinstance(constraint, Sequence)
    constraints = list(constraint) if isinstance(constraint, Sequence) else [constraint]
    for index, each in enumerate(constraints):
        if not isinstance(each, TokenAutomaton):
            raise ConstraintError(
                f"expected constraint{f' {index}' if several else ''} to be a TokenAutomaton, got "
                f"{type(each).__name__}; use gcd.lift(constraint, "
                "smc.TransformersLM(model, tokenizer).vocabulary)"
            )
    if not constraints:
        raise ConstraintError("expected at least one constraint, got an empty list")
    return constraints  # type: ignore[return-value]
