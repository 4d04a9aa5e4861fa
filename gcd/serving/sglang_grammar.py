"""Grammar backend for SGLang, which masks tokens by one grammar object per request.

It implements the interface of sglang 0.5.23 and is tested with objects that stand in for the
engine. It has *never run in the engine*, which does not install without a GPU.

The entry point `sglang.srt.plugins` names `register`, after which `--grammar-backend gcd` selects
this backend. A request's `ebnf` is then a constraint of `gcd.requests` as a JSON text, with its
budget: `{"json_schema": ..., "budget": 40}`. The engine passes neither `max_new_tokens` nor the
context's length to a grammar, so a request has to set `max_new_tokens` to at least the budget. The
engine waits for a step's tokens before it requests the next mask, and undoes drafts by `rollback`.

A logits processor (`CustomLogitProcessor`) would know `max_new_tokens`, but the engine doesn't wait
for the last token before calling it: with its overlapping schedule, the mask would be one step
late. So this module doesn't provide one.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from sglang.srt.arg_groups.choices import add_grammar_backend_choices
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
    register_grammar_backend,
)
from torch import Tensor

from gcd.errors import ConstraintError
from gcd.requests import ConstraintRequest
from gcd.serving.constraint_cache import ConstraintCache, usable_budget
from gcd.serving.matcher import Matcher
from gcd.tokens.vocabulary import BITS, Vocabulary

NAME = "gcd"
"""Value of `--grammar-backend`."""


class BudgetGrammar(BaseGrammarObject):
    """Constraint of a request and its tokens so far, with the engine's interface."""

    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self._matcher = matcher

    def accept_token(self, token: int) -> None:
        """Append a token; raise `ValueError` if it is refused, which ends the request."""
        if not self._matcher.advance(token):
            raise ConstraintError(f"token {token} is not allowed by {self._matcher!r}")

    def rollback(self, k: int) -> None:
        self._matcher.rollback(k)

    def is_terminated(self) -> bool:
        return self._matcher.is_finished

    def allocate_vocab_mask(
        self, vocab_size: int, batch_size: int, device: Any
    ) -> Int32[Tensor, "B W"]:
        """Make masks on the CPU that allow everything, for `fill_vocab_mask` to overwrite."""
        shape = (batch_size, self._matcher.automaton.num_words)
        return torch.full(shape, -1, dtype=torch.int32, device="cpu")

    def fill_vocab_mask(self, vocab_mask: Int32[Tensor, "B W"], idx: int) -> None:
        self._matcher.fill_mask(vocab_mask[idx])

    @staticmethod
    def reset_vocab_mask(vocab_mask: Int32[Tensor, "B W"]) -> None:
        vocab_mask.fill_(-1)

    @staticmethod
    def move_vocab_mask(vocab_mask: Int32[Tensor, "B W"], device: Any) -> Int32[Tensor, "B W"]:
        return vocab_mask.to(device, non_blocking=True)

    @staticmethod
    def apply_vocab_mask(logits: Float[Tensor, "B V"], vocab_mask: Int32[Tensor, "B W"]) -> None:
        if logits.shape[1] > BITS * vocab_mask.shape[1]:
            raise ValueError(
                f"expected logits of at most {BITS * vocab_mask.shape[1]} tokens, the width of the "
                f"masks, got {logits.shape[1]}"
            )
        shifts = torch.arange(BITS, dtype=torch.int32, device=vocab_mask.device)
        refused = ((vocab_mask.unsqueeze(-1) >> shifts) & 1 == 0).flatten(1)
        logits.masked_fill_(refused[:, : logits.shape[1]], -torch.inf)

    def copy(self) -> BudgetGrammar:
        return BudgetGrammar(self._matcher.copy())

    def try_jump_forward(self, tokenizer: Any) -> None:
        """Do nothing: appending text in advance could spell it with other tokens."""


class BudgetBackend(BaseGrammarBackend):
    """Compiler of requests' constraints; the engine calls it on its own threads.

    Args:
        tokenizer: the engine's tokenizer.
        vocab_size: the width of its logits.
        eos_ids: the ids at which it ends a request; None for the tokenizer's.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: set[int] | None = None) -> None:
        super().__init__()
        ends = sorted(eos_ids) if eos_ids else None
        vocabulary = Vocabulary.from_tokenizer(tokenizer, size=vocab_size, eos_ids=ends)
        self._cache = ConstraintCache(vocabulary)

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        """Compile a constraint; one that is refused becomes an object with the reason."""
        try:
            request = ConstraintRequest.parse(key_string)
            if request.budget is None:
                raise ConstraintError(
                    "expected a budget in the constraint, got none; add it, because SGLang "
                    "does not pass max_new_tokens"
                )
            if request.deadline_ms is not None:
                raise ConstraintError(
                    "expected no deadline, which SGLang's grammars don't support, got "
                    f"deadline_ms={request.deadline_ms}; remove it"
                )
            automaton = self._cache.get(request)
            budget = usable_budget(automaton, {"the request's budget": request.budget})
            return BudgetGrammar(Matcher(automaton, budget=budget))
        except ValueError as error:
            return InvalidGrammarObject(str(error))

    def _no_budget(self, key_string: str) -> BaseGrammarObject:
        return InvalidGrammarObject(
            "--grammar-backend gcd takes a constraint as `ebnf`, a JSON text with its budget"
        )

    dispatch_json = dispatch_regex = dispatch_structural_tag = _no_budget


def register() -> None:
    """Register the backend with SGLang by name; its plugin loader calls this in each process."""
    register_grammar_backend(
        NAME,
        lambda server_args, tokenizer, vocab_size, eos_ids: BudgetBackend(
            tokenizer, vocab_size, eos_ids
        ),
    )
    add_grammar_backend_choices([NAME])
