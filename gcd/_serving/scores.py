"""Masking of scores for runtimes that call a function of tokens and scores at each step.

llama-cpp-python (`LogitsProcessor`), mlx-lm (`logits_processors`) and your own loops pass the token
ids so far and the scores of the next token. The ids include the prompt (or its end), without a
marker between prompt and answer. So a processor serves a single answer: the ids of the first call
are the prompt, and further ids in later calls are the answer so far. The processor only processes
new tokens. If the runtime rolls tokens back, so does the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcd._arguments import array_of, whole_numbers
from gcd._errors import ConstraintError
from gcd._serving.matcher import Constraint, Matcher, follow
from gcd._tokens.vocabulary import Vocabulary


class ScoresProcessor:
    """Sets scores to -inf for tokens after which the answer can't be finished within the budget.

    Args:
        automaton: the constraint, as `gcd.lift` returns it. If it was lifted with
            `literals="canonical"`, fixed text only has the tokenizer's own tokens.
        budget: maximum number of tokens of the answer, EOS included.
        vocabulary: the tokens, for a language that is not lifted.
        array: function that converts a numpy array to the runtime's type, such as `mlx.core.array`.
            It is needed if the runtime's scores can't be changed in place. The masked scores are
            then a new array.
        prompt_length: number of ids in the prompt; by default, all ids of the first call.

    Raises:
        InfeasibleBudgetError, OverlongBudgetError: as in `gcd.Matcher`.
    """

    def __init__(
        self,
        automaton: Constraint,
        budget: int,
        *,
        vocabulary: Vocabulary | None = None,
        array: Callable[[np.ndarray], Any] | None = None,
        prompt_length: int | None = None,
    ) -> None:
        self._matcher = Matcher(automaton, vocabulary, budget=budget)
        self._array, self._start = array, prompt_length
        self._read: list[int] = []

    def __call__(self, tokens: Any, scores: Any) -> Any:
        """Mask the scores of the next token.

        Args:
            tokens: ids of the prompt (or its end), followed by the answer so far.
            scores: one-dimensional scores of all ids. They are a CPU array or tensor, which is
                changed in place; with `array`, they may be anything that can be added to its
                result.

        Returns:
            The masked scores.

        Raises:
            ConstraintError: the answer so far is not allowed (for example because it is another
                answer than in the previous call), or the scores have the wrong size or type.
        """
        ids = whole_numbers(np.asarray(tokens))
        if any(n != 1 for n in ids.shape[:-1]):
            raise ConstraintError(f"expected one-dimensional token ids, got shape {ids.shape}")
        ids = ids.ravel()
        if self._start is None:
            self._start = ids.size
        if ids.size < self._start:
            raise ConstraintError(
                f"expected token ids that begin with the prompt of {self._start} tokens, got "
                f"{ids.size}; make a processor for each answer"
            )
        answer, size = ids[self._start :].tolist(), self._matcher.automaton.vocabulary.size
        if not follow(self._matcher, self._read, answer):
            raise ConstraintError(
                f"expected a token that the mask allows after {self._read}, got "
                f"{answer[len(self._read)]} of {size} ids; make a processor for each answer, and "
                "apply it after all other processors"
            )
        shape = tuple(getattr(scores, "shape", ()))
        if shape[-1:] != (size,) or any(n != 1 for n in shape[:-1]):
            found = f"shape {shape}" if shape else type(scores).__name__
            raise ConstraintError(
                f"expected one score for each of the vocabulary's {size} ids, got {found}; lift "
                "to a vocabulary as wide as the scores"
            )
        refused = ~np.unpackbits(self._matcher.mask().view(np.uint8), bitorder="little")[
            :size
        ].astype(np.bool_)
        if self._array is not None:
            return scores + self._array(np.where(refused, np.float32(-np.inf), np.float32(0)))
        row = array_of(scores)
        if row is None or not row.flags.writeable:
            raise ConstraintError(
                f"expected a writable CPU array or tensor of scores, got {type(scores).__name__}; "
                "pass array=, a function that makes such scores from a numpy array"
            )
        if row.dtype.kind != "f":
            raise ConstraintError(f"expected scores as floating-point numbers, got {row.dtype}")
        if not row.sum(dtype=np.float64) < np.inf:
            raise ConstraintError(
                "expected finite scores or -inf, got NaN or +inf; check the model"
            )
        row[..., refused] = -np.inf
        return scores
