"""A logits processor makes `generate` of `transformers` obey a constraint within a budget.

    model.generate(**inputs, max_new_tokens=60,
                   logits_processor=[smc.BudgetLogitsProcessor(constraint, budget=60)])

In each step the scores of tokens after which the answer could not be finished in time become -inf
(GCD's mask), so that greedy search, sampling and beams alike end with complete, valid answers. With
a lookahead, the scores become those of its proposal,

    score(v)  ->  score(v) + log g(v) - log g(last token),

as the sampler draws from it: q(v) is proportional to p_lm(v) g(v). The last term, which is the same
for all v, is there for beams: summed up along an answer the potentials cancel, so that a beam is
ranked by p_lm of what it has times the probability that it will be completed, and a complete answer
by p_lm alone (up to defence and tying, see `smc.proposals.twisted`).

Unlike `smc.generate`, this corrects no bias: each step's mask renormalises the model's belief.

**States are functions of the tokens.** A row's state follows from its constraint and from what was
generated, which is read off `input_ids` each time. States of recent calls are kept, by the tokens
that lead to them, so that usually a row goes one token on from a state that is known, whichever row
had it. Nothing else is remembered: beams may reorder and drop rows, an assistant may draft and be
refused, and one processor may serve any number of calls, with other prompts or in other threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from transformers import LogitsProcessor

from gcd.errors import ConstraintError
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.budget import check_budget
from gcd.tokens.token_automaton import TokenAutomaton
from smc.decoding.generate_call import GenerateCall, generate_call
from smc.prefixes import no_numbers, refuse_nan
from smc.proposals import GCD, AutomatonPosition, Batch
from smc.proposals.lookahead import Lookahead
from smc.proposals.twisted import Twisted, looking_ahead
from smc.settings import whole

MOST_KNOWN = 32
"""Calls whose states are kept: as long as a draft of assisted decoding usually is, and longer."""


class _Known(NamedTuple):
    """States of the rows of a call.

    Attributes:
        row_of: their rows, by constraint and tokens generated.
        state: the proposal's.
        log_potential: log g of the last token of each.
    """

    row_of: dict[tuple[int, bytes], int]
    state: Any
    log_potential: Float64[Tensor, "R"]


class BudgetLogitsProcessor(LogitsProcessor):
    """A logits processor that lets `generate` finish a constraint within a budget.

    It serves greedy search, sampling, beams, assisted decoding, left padding and several returned
    sequences, in any number of calls. Within `generate` it finds out itself where prompts end; in
    a loop of your own, say so by `prompt_length`.

    Args:
        constraint: a constraint for all prompts, or one for each, lifted to the model's vocabulary.
        budget: most tokens of an answer, EOS included, which `max_new_tokens` must equal; one for
            all constraints or one for each, of which `max_new_tokens` must be the largest.
        lookahead: a proposal that looks ahead, such as `smc.PGCD(hmm)`, or a `smc.Lookahead`; None
            for GCD's mask alone.
        prompt_length: columns of `input_ids` before the answer, if they are not those that
            `generate` was given: an answer of which a part is given counts that part.

    Raises:
        InfeasibleBudgetError: a budget is shorter than the shortest answer.
        OverlongBudgetError: a budget allows longer texts than its constraint is known for.
        ConstraintError: a constraint is not over tokens, has no token that ends a text, or is
            refused by the lookahead.
        ValueError: another argument makes no sense.
    """

    def __init__(
        self,
        constraint: TokenAutomaton | Sequence[TokenAutomaton],
        budget: int | Sequence[int],
        lookahead: Twisted[Any] | Lookahead[Any] | None = None,
        *,
        prompt_length: int | None = None,
    ) -> None:
        self.constraints = one_or_more(constraint)
        self._one_each = isinstance(constraint, Sequence)
        count = len(self.constraints)
        budgets = list(budget) if isinstance(budget, Sequence) else [budget] * count
        if len(budgets) != count:
            raise ValueError(f"{count} constraints but {len(budgets)} budgets; give one for each")
        self.vocabulary = self.constraints[0].vocabulary
        if not self.vocabulary.eos_ids:
            raise ConstraintError(
                "the constraint's vocabulary has no token that ends a text, at which generate "
                "would stop; give it eos_ids, or use smc.generate"
            )
        for index, (automaton, tokens) in enumerate(zip(self.constraints, budgets, strict=True)):
            check_budget(automaton, tokens, f"constraint {index}" if self._one_each else "")
        if prompt_length is not None and whole("prompt_length", prompt_length) < 0:
            raise ValueError(f"prompt_length is {prompt_length}; it must be 0 or more")
        self.proposal = looking_ahead(lookahead)
        self.proposal.check(self.constraints, budgets)
        self.budgets = [int(tokens) for tokens in budgets]
        self.prompt_length = prompt_length
        self._start: dict[torch.device, Any] = {}
        self._known: OrderedDict[tuple[torch.device, int], _Known] = OrderedDict()

    @torch.no_grad()
    def __call__(
        self, input_ids: Int64[Tensor, "R L"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return the scores of the next token under constraint and budget.

        Args:
            input_ids: prompts, and what was generated so far.
            scores: the model's, unnormalised or not.

        Raises:
            ConstraintError: the model predicts other tokens than the constraint knows.
            FloatingPointError: the scores have NaN or +inf.
            ValueError: the call does not fit the constraints and budgets, or no token is left that
                both the constraint and other processors allow.
        """
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

        walk: AutomatonPosition = known.state.walk
        alive = ~walk.finished & (walk.states >= 0)
        alive &= walk.automata.steps_to_accept[walk.states.clamp(min=0)] <= walk.remaining
        if call is not None and call.plain and not bool((alive | walk.finished).all()):
            self._refuse_strays(generated, alive | walk.finished)
        if bool(alive.all()):
            return self._scores(known, scores, call)
        # What is over ends again, whatever else is said of it: in beams such rows stay.
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
        """The scores after prefixes that go on."""
        walk: AutomatonPosition = known.state.walk
        masked = scores.masked_fill(~walk.mask.mask(walk.states, walk.remaining), -torch.inf)
        forbidden = masked.amax(dim=1).isneginf()
        if bool(forbidden.any()):
            self._refuse_forbidden(walk.take(forbidden.nonzero().squeeze(1)[:1]))
        if isinstance(self.proposal, GCD):
            return masked
        # The temperature belongs to p_lm and not to g, but divides what is returned here.
        temperature = 1.0 if call is None else call.temperature
        precision = torch.promote_types(scores.dtype, torch.float32)
        log_p = (scores / temperature).log_softmax(dim=1, dtype=precision)
        log_g = self.proposal.guide(known.state, log_p).log_g
        twisted = scores + temperature * (log_g - known.log_potential.unsqueeze(1))
        return twisted.to(scores.dtype)

    def _prompt_length(self, input_ids: Int64[Tensor, "R L"], call: GenerateCall | None) -> int:
        """Where answers begin."""
        start = self.prompt_length
        if start is None:
            if call is None:
                raise ValueError(
                    "this processor is not called by generate of transformers, so it cannot know "
                    "where the prompt ends; make it with prompt_length=input_ids.shape[1]"
                )
            start = call.prompt_length
        if not 0 <= start <= input_ids.shape[1]:
            raise ValueError(
                f"prompt_length is {start}, but there are {input_ids.shape[1]} tokens in all; "
                "give the number of columns before the answer"
            )
        return start

    def _check_tensors(self, input_ids: Int64[Tensor, "R L"], scores: Float[Tensor, "R V"]) -> None:
        """Refuse scores and ids that don't fit to the vocabulary, in every call."""
        size = self.vocabulary.size
        if scores.dim() == 2 and scores.shape[1] != size:
            raise ConstraintError(
                f"the model predicts {scores.shape[1]} tokens, the constraint knows {size}; lift "
                "it to the model's vocabulary, such as smc.TransformersLM(model, tokenizer)"
                ".vocabulary"
            )
        if input_ids.dim() != 2 or scores.dim() != 2 or len(scores) != len(input_ids):
            raise ValueError(
                f"expected ids of shape (rows, length) and scores of shape (rows, {size}), got "
                f"{tuple(input_ids.shape)} and {tuple(scores.shape)}"
            )
        if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise ValueError(f"expected token ids as integers, got {input_ids.dtype}")
        if not scores.is_floating_point():
            raise ValueError(f"expected scores as floats, got {scores.dtype}")
        refuse_nan(no_numbers(scores).any())

    def _check(
        self, input_ids: Int64[Tensor, "R L"], call: GenerateCall | None, start: int
    ) -> None:
        """Refuse a call that these constraints and budgets do not fit."""
        count = len(self.constraints)
        prompts = len(input_ids) if call is None else call.num_prompts
        fits = prompts % count == 0 if call is None else prompts == count
        if self._one_each and not fits:
            raise ValueError(
                f"{count} constraints but {prompts} {'rows' if call is None else 'prompts'}; "
                "give one constraint for all prompts, or one for each"
            )
        if call is None:
            return
        most = call.max_length - start
        if most != max(self.budgets):
            raise ValueError(
                f"max_new_tokens is {most}, the budget of BudgetLogitsProcessor is "
                f"{max(self.budgets)}; give both the same number"
            )
        if set(call.eos_ids) != set(self.vocabulary.eos_ids):
            raise ConstraintError(
                f"generate stops at tokens {list(call.eos_ids)}, the constraint at "
                f"{list(self.vocabulary.eos_ids)}; pass "
                f"eos_token_id={list(self.vocabulary.eos_ids)} to generate"
            )

    def _reach(self, which: Int64[Tensor, "R"], generated: Int64[Tensor, "R T"]) -> _Known:
        """The states after these tokens, under the constraint of each row."""
        device, length = which.device, generated.shape[1]
        lines = generated.cpu().numpy()
        if lines.size and not 0 <= lines.min() <= lines.max() < self.vocabulary.size:
            wrong = int(lines.min()) if lines.min() < 0 else int(lines.max())
            raise ValueError(
                f"the answer so far has token {wrong}, which is not one of the "
                f"{self.vocabulary.size} ids; does the prompt end at column prompt_length?"
            )
        owners = which.tolist()
        names = [(owner, line.tobytes()) for owner, line in zip(owners, lines, strict=True)]
        known = self._look_up(device, length, names)
        if known is not None:
            return known
        parents = [(owner, line[:-1].tobytes()) for owner, line in zip(owners, lines, strict=True)]
        known = self._look_up(device, length - 1, parents)
        if known is None:
            state = self.proposal.take(self._started(device), which)
            none = torch.zeros(len(which), dtype=torch.float64, device=device)
            known = _Known({}, state, none)
            for token in generated[:, :-1].unbind(dim=1):
                known = self._extended(known, token)
        if length:
            known = self._extended(known, generated[:, -1])
        known = known._replace(row_of={name: row for row, name in enumerate(names)})
        self._known[device, length] = known
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def _look_up(
        self, device: torch.device, length: int, names: list[tuple[int, bytes]]
    ) -> _Known | None:
        """The states of these rows, where all of them are known."""
        known = self._known.get((device, length))
        if known is None or not known.row_of.keys() >= set(names):
            return None
        rows = torch.tensor([known.row_of[name] for name in names], device=device)
        return _Known({}, self.proposal.take(known.state, rows), known.log_potential[rows])

    def _extended(self, known: _Known, token: Int64[Tensor, "R"]) -> _Known:
        """The states one token on; what is over stays, and pays no heed to padding."""
        running = known.state.walk.running
        some = running.nonzero().squeeze(1)
        log_potential = torch.zeros_like(known.log_potential)
        if len(some):
            before = self.proposal.take(known.state, some)
            log_potential[some] = self.proposal.log_g_of_forced(before, token[some])
        run = token.masked_fill(~running, -1).unsqueeze(1)
        return _Known({}, self.proposal.advance(known.state, run), log_potential)

    def _started(self, device: torch.device) -> Any:
        """The state before the first token, a row for each constraint."""
        if device not in self._start:
            batch = AutomatonBatch(self.constraints, device=device)
            budgets = torch.tensor(self.budgets, device=device)
            self._start[device] = self.proposal.start(Batch(batch, budgets))
        return self._start[device]

    def _refuse_forbidden(self, walk: AutomatonPosition) -> None:
        """Another processor, or the model, forbids all that may come after this prefix."""
        tokens = walk.mask.mask(walk.states, walk.remaining)[0].nonzero().squeeze(1).tolist()
        others = f" and {len(tokens) - 1} others" if len(tokens) > 1 else ""
        taken = int(walk.mask.budget[walk.automaton_of_row[0]] - walk.remaining[0])
        raise ValueError(
            f"after {taken} tokens constraint and budget allow {self._shown(tokens[0])}{others} "
            "alone, but the scores of all of that are -inf already: another logits processor "
            "(suppress_tokens, bad_words_ids, min_new_tokens, …) or the model forbids it; take "
            "that processor away or relax the constraint"
        )

    def _refuse_strays(self, generated: Int64[Tensor, "R T"], good: Tensor) -> None:
        """A row has a token that was not allowed."""
        row = int((~good).nonzero()[0])
        raise ValueError(
            f"the answer in row {row} ends with {self._shown(int(generated[row, -1]))}, which was "
            "not allowed there: a processor after this one allowed it again; put "
            "BudgetLogitsProcessor last"
        )

    def _shown(self, token: int) -> str:
        if token in self.vocabulary.eos_ids:
            return f"token {token} (the end of the text)"
        return f"token {token} ({self.vocabulary.token_bytes[token]!r})"

    def __repr__(self) -> str:
        return f"BudgetLogitsProcessor({self.constraints}, {self.budgets}, {self.proposal!r})"


def one_or_more(constraint: object) -> list[TokenAutomaton]:
    """Return one constraint, or several, as a list.

    Raises:
        ConstraintError: there is none, or one is not over tokens.
    """
    several = isinstance(constraint, Sequence)
    constraints = list(constraint) if isinstance(constraint, Sequence) else [constraint]
    for index, each in enumerate(constraints):
        if not isinstance(each, TokenAutomaton):
            raise ConstraintError(
                f"constraint{f' {index}' if several else ''} is {type(each).__name__}, not over "
                "tokens; lift it with gcd.lift(constraint, "
                "smc.TransformersLM(model, tokenizer).vocabulary)"
            )
    if not constraints:
        raise ConstraintError("there is no constraint in the list; give at least one")
    return constraints  # type: ignore[return-value]
