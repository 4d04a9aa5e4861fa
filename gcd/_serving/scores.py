"""Masking of scores for runtimes that call f(tokens, scores) at each step.

llama-cpp-python (`LogitsProcessor`), mlx-lm (`logits_processors`) and custom loops, as around
onnxruntime-genai, pass the token ids so far and the scores of the next token. The ids include the
prompt, or its end, without a marker between prompt and answer. So a processor serves one answer:
the ids of the first call are the prompt, and later ids are the answer so far. The processor only
processes new tokens, and handles tokens that were rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcd._errors import ConstraintError
from gcd._serving.arguments import array_of, whole_numbers
from gcd._serving.matcher import Constraint, Matcher
from gcd._tokens.vocabulary import Vocabulary


class ScoresProcessor:
    """Scores processor that sets tokens to -inf after which the budget can't be met.

    Args:
        automaton: the constraint, as `gcd.lift` returns it. With `literals="canonical"` fixed text
            is tokenized as the tokenizer does it.
        budget: most tokens of the answer, EOS included.
        vocabulary, exact: as in `gcd.Matcher`, for a language that is not lifted.
        array: function that converts a numpy array to the runtime's type, such as `mlx.core.array`.
            Needed if the runtime's scores cannot be written in place; they are then returned as a
            new array.
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
        exact: str = "when_ready",
        array: Callable[[np.ndarray], Any] | None = None,
        prompt_length: int | None = None,
    ) -> None:
        self._matcher = Matcher(automaton, vocabulary, budget=budget, exact=exact)
        self._array, self._start = array, prompt_length
        self._read: list[int] = []

    def __call__(self, tokens: Any, scores: Any) -> Any:
        """Mask the scores of the next token.

        Args:
            tokens: ids of the prompt, or of its end, and of the answer so far.
            scores: scores of all ids, one-dimensional: an array or a tensor on the CPU, which is
                written in place; with `array`, anything that can be added to its result.

        Returns:
            The masked scores.

        Raises:
            ConstraintError: the tokens do not continue those of the previous call, as in another
                answer, or are not allowed; or the scores have the wrong size or type.
        """
        ids = whole_numbers(np.asarray(tokens))
        if any(n != 1 for n in ids.shape[:-1]):
            raise ConstraintError(f"expected one-dimensional token ids, got shape {ids.shape}")
        ids = ids.ravel()
        if self._start is None:
            self._start = ids.size
        if ids.size < self._start:
            raise ConstraintError(
                f"expected at least the {self._start} tokens before the answer, got {ids.size}; "
                "make a processor for each answer"
            )
        self._follow(ids[self._start :].tolist())
        size = self._matcher.automaton.vocabulary.size
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
                f"expected scores that can be written in place, got {type(scores).__name__}; pass "
                "array=, which converts to that type"
            )
        if row.dtype.kind != "f":
            raise ConstraintError(f"expected scores as floating-point numbers, got {row.dtype}")
        if not row.sum(dtype=np.float64) < np.inf:
            raise ConstraintError(
                "expected finite scores or -inf, got NaN or +inf; check the model"
            )
        row[..., refused] = -np.inf
        return scores

    def _follow(self, answer: list[int]) -> None:
        same = 0
        while same < min(len(answer), len(self._read)) and answer[same] == self._read[same]:
            same += 1
        self._matcher.rollback(len(self._read) - same)
        del self._read[same:]
        for token in answer[same:]:
            if not self._matcher.advance(token):
                raise ConstraintError(
                    f"token {token} is not allowed after {self._read}; it may belong to another "
                    "answer, or other scores were used: make a processor for each answer, and "
                    "apply it last"
                )
            self._read.append(token)
