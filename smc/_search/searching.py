"""Search for the most probable answers, whereas sampling draws from all of them.

An answer is a token sequence in C of at most n tokens, including EOS. The search returns the
answers with the highest p_lm, the best first. A next token's log p is at most 0, so the
log-probability of a prefix is an upper bound for all its continuations. The prefixes with the
highest p_lm are computed next, at any depth of the tree (`smc._search.enumerating`), and none is
dropped. The first answer in this order is the most probable answer (Dijkstra's search; A* with the
heuristic 0).

**Proof.** Once there are as many answers as requested, prefixes that can't improve on the worst of
them are ignored. Let `log_bound` be an upper bound on the log p of all other prefixes that weren't
continued. Every answer that isn't returned has at most the probability of the last returned answer,
or a log p of at most `log_bound`. Therefore the rank of a returned answer is certain if its log p
is at least `log_bound`. All answers are proved, unless the search is stopped. (Log-probabilities of
real models are rounded differently in other batches. Ties within rounding aren't proved.)

Cost: one forward pass over at most `max_rows` prefixes per step, with the forced tokens after them.
The number of steps may be exponential in the length of the answers. For answers that need no proof,
`smc.ask` keeps a few prefixes in each step (beam search), and so does `smc.sample` with
`particles=N, algorithm=smc.Discrete(kept=N)`, whose proposal may look ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from gcd import TokenAutomaton
from smc._forward.revisiting import TreeReader
from smc._inference.arguments import check_temperature, real, whole
from smc._inference.deadlines import time_limit
from smc._models.protocol import (
    LanguageModel,
    Messages,
    Prompt,
    check_example,
    check_lifted,
    check_model,
    encode_prompt,
)
from smc._removed import accept_budget
from smc._results.posterior import content
from smc._search.enumerating import Tree, read_trees

READS = 1000
"""Default limit on the number of prefixes."""


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        ids: the tokens, including EOS.
        answer: the bytes of the tokens, without EOS.
        log_p: log p_lm of the tokens, at the temperature of the search.
    """

    ids: tuple[int, ...]
    answer: bytes
    log_p: float

    @property
    def text(self) -> str:
        """The answer as text; bytes that aren't valid UTF-8 are replaced by U+FFFD."""
        return self.answer.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class SearchResult:
    """The most probable answers that were found.

    Attributes:
        answers: token sequences, the most probable first. Two tokenizations of one text are two
            answers. Empty if the language model gives every answer probability zero.
        proved: number of answers at the beginning of `answers` that are proved to be the most
            probable.
        log_bound: upper bound on the log-probability of any answer that wasn't found but is more
            probable than the last one found; -inf if there is no such answer.
        read: number of prefixes that the language model computed after the prompt.
        tokens: number of tokens computed after the prompt, including repeated ones.
        stopped: "deadline" if the search ended early because of the deadline; None otherwise.
    """

    answers: tuple[Answer, ...]
    proved: int
    log_bound: float
    read: int
    tokens: int
    stopped: str | None = None

    @property
    def best(self) -> Answer | None:
        """The most probable answer that was found; None if none was found."""
        return self.answers[0] if self.answers else None


@accept_budget
@torch.inference_mode()
def search(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    constraint: TokenAutomaton,
    *,
    max_tokens: int,
    answers: int = 1,
    temperature: float | int = 1.0,
    max_reads: int = READS,
    max_rows: int = 8,
    deadline: float | int | None = None,
) -> SearchResult:
    """Find the answers x with the highest p_lm(x), among those in C with |x| <= max_tokens.

    Args:
        lm: the language model.
        prompt: text, token ids (used as given), messages for the chat template, or an opened
            prompt.
        constraint: the constraint C, lifted to the model's vocabulary. With `literals="canonical"`
            most texts have a single tokenization, so that the answers are different texts.
        max_tokens: maximum number of tokens of an answer, including EOS.
        answers: maximum number of answers.
        temperature: sampling temperature, which is part of p_lm, as in `smc.sample`.
        max_reads: maximum number of prefixes computed after the prompt. When it is reached, the
            answers found so far are returned. The memory is up to 40 n^2 + 8 n V bytes for n
            prefixes and V tokens.
        max_rows: maximum number of prefixes in one forward pass.
        deadline: seconds from now after which the answers found so far are returned.

    Returns:
        The answers, and the number of answers that are proved to be the best.

    Raises:
        InfeasibleBudgetError: the budget is shorter than the shortest answer.
        OverlongBudgetError: the budget exceeds the lengths that the constraint covers.
        PromptTooLongError: the prompt and the budget together exceed the model's context.
        ConstraintError: the constraint was lifted to another vocabulary than the model's.
        ValueError: another argument is invalid; the message names it.
        FloatingPointError: the model's log-probabilities are NaN or +inf.
    """
    counts = {"answers": answers, "max_reads": max_reads, "max_rows": max_rows}
    for name, value in counts.items():
        if whole(name, value) < 1:
            raise ValueError(f"expected {name} to be at least 1, got {value}")
    temperature = check_temperature(real("temperature", temperature))
    limit = time_limit(deadline, None)
    check_model(lm)
    check_lifted(constraint)
    ids = encode_prompt(lm, prompt)
    check_example(lm, ids, constraint, whole("max_tokens", max_tokens))
    reader = TreeReader(lm, [ids], temperature)
    tree = Tree(constraint, int(max_tokens), int(max_reads), 1.0, reader.eps, wanted=int(answers))
    stopped: str | None = None

    def stop() -> bool:
        nonlocal stopped
        stopped = None if limit is None else limit.reason(0, 1.0)
        return stopped is not None

    read_trees(reader, [tree], [int(max_rows)], int(max_rows), stop=stop)
    best = sorted(tree.found.items(), key=lambda each: (-each[1], each[0]))[:answers]
    eos = set(constraint.vocabulary.eos_ids)
    found = tuple(
        Answer(line, constraint.vocabulary.decode(content(line, eos)), log_p)
        for line, log_p in best
    )
    log_bound = tree.log_bound
    return SearchResult(
        answers=found,
        proved=sum(answer.log_p >= log_bound for answer in found),
        log_bound=log_bound,
        read=tree.read,
        tokens=reader.tokens[0],
        stopped=stopped,
    )
