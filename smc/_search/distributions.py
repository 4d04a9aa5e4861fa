"""The exact posterior over all answers of a finite language, or intervals for each answer.

`smc.distribution` computes the tree of token sequences that obey the constraint, instead of
sampling from it (`smc._search.enumerating`). Each answer's probability is summed over its
tokenizations. Let p(a) be the probability of a found token sequence a, and O the probability of all
open branches, which are continuations that weren't computed. Then

    P(y) = sum of p(a) with text(a) = y  /  sum of p(a)                       exact if O = 0

If O > 0, the exact probability is within the intervals of `smc.Bounds`.

**Many tokenizations.** With a vocabulary of 150,000 tokens, a label of two words has hundreds to
hundreds of thousands of prefixes, and most have a negligible probability. So `certify` ends the
computation once the found answers have a given share of the evidence, and `max_prefixes` limits it
in any case.

**Size of the language.** The longest answer and the number of prefixes refer to token sequences, so
a text counts once for each way to split it into tokens. With w(c) the number of token ids of class
c, and paths(t, s) the number of prefixes of t tokens that lead to state s,

    longest(s)   = max over edges s -> s' of 1 + longest(s'),        longest(final) = 0
    paths(t, s') = sum over edges s -> s' by class c of paths(t - 1, s) w(c)

The second sum only includes edges that the budget allows. The longest answer takes O(E log E), with
E the number of connected pairs of states. The number of prefixes takes O(t S C), with t the step in
which the limit is exceeded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gcd import Automaton, ConstraintError, EmptyLanguageError, TokenAutomaton, lift
from gcd._tokens.distances import fits
from gcd._tokens.spellings import LITERALS, canonical
from smc._forward.revisiting import TreeReader
from smc._inference.arguments import check_temperature, real, whole
from smc._inference.deadlines import progress
from smc._models.protocol import (
    LanguageModel,
    Messages,
    Prompt,
    check_example,
    check_lifted,
    check_list,
    check_model,
    encode_prompt,
    of_example,
)
from smc._removed import accept_budget
from smc._results.posterior import Diagnostics, Posterior, Sample, content, posterior
from smc._search.enumerating import NARROW, Tree, read_trees

PREFIXES = 1000
"""Default limit on the number of prefixes computed for each prompt."""
BATCH = 32
"""Number of prompts computed together."""
MOST_STATES = 2000
"""Maximum number of states of a constraint whose canonical tokenizations are computed first."""

Constraint = TokenAutomaton | Automaton


class TreeTask(NamedTuple):
    """A prompt as token ids, with its constraint and budget."""

    prompt: tuple[int, ...]
    automaton: TokenAutomaton
    budget: int


@accept_budget
def distribution(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    constraint: Constraint | Sequence[Constraint],
    *,
    max_tokens: int | Sequence[int] | None = None,
    spellings: str = "all",
    temperature: float | int = 1.0,
    max_prefixes: int = PREFIXES,
    certify: float | int = 1.0,
    max_rows: int = 256,
) -> list[Posterior]:
    """Compute the posterior over a finite language, p_lm(x | x in C, |x| <= max_tokens).

    If the language has at most `max_prefixes` prefixes, all of them are computed, and the posterior
    is the target itself (`Posterior.enumerated`). Otherwise the most probable branches are computed
    first (preceded by the tokenizer's own tokenizations, if there are few).
    `Posterior.probabilities` are then relative to the found answers, and `Posterior.intervals`
    contain the exact probabilities. No random numbers are used.

    Args:
        lm: the language model.
        prompts: for each prompt, text, token ids (used as given), messages for the chat
            template, or an opened prompt.
        constraint: the constraint C, one for all prompts or one per prompt. A `gcd.Automaton` is
            lifted to the model's vocabulary; a `gcd.TokenAutomaton` is used as given.
        max_tokens: maximum number of tokens of an answer, including EOS; one for all prompts or one
            per prompt. By default, the length of the longest tokenization of any answer.
        spellings: "all" counts every tokenization of a text. "canonical" counts only the
            tokenizer's own, like `gcd.lift(..., literals="canonical")`; the target is then the
            model's distribution over these.
        temperature: sampling temperature, which is part of p_lm, as in `smc.sample`.
        max_prefixes: maximum number of prefixes computed for each prompt.
        certify: share of the evidence (`Posterior.certified`) after which the computation ends.
            With 1, it continues until all prefixes are computed.
        max_rows: maximum number of prefixes in one forward pass.

    Returns:
        One posterior per prompt, in the order of the prompts. `log_evidence` is the log-probability
        that the model gives any of the found answers. If `enumerated`, these are all answers.
        Otherwise it is a lower bound, and `bounds` has both bounds. A low value means that the
        model prefers other answers. The posterior is dead if no answer was found.

    Raises:
        ConstraintError: the language is infinite and no budget is given, or the constraint was
            lifted to another vocabulary than the model's.
        InfeasibleBudgetError: a budget is shorter than the shortest answer.
        OverlongBudgetError: a budget exceeds the lengths that the constraint covers.
        PromptTooLongError: a prompt and its budget together exceed the model's context.
        ValueError: another argument is invalid; the message names it.
        FloatingPointError: the model's log-probabilities are NaN or +inf.
    """
    check_model(lm)
    check_list(prompts)
    if spellings not in LITERALS:
        raise ValueError(
            f"expected spellings to be one of {', '.join(LITERALS)}; got {spellings!r}"
        )
    count = len(prompts)
    several = isinstance(constraint, Sequence) and not isinstance(constraint, str)
    constraints: list[Constraint] = list(constraint) if several else [constraint] * count  # type: ignore
    budgets = list(max_tokens) if isinstance(max_tokens, Sequence) else [max_tokens] * count
    for what, size in (("constraints", len(constraints)), ("max_tokens", len(budgets))):
        if size != count:
            raise ValueError(f"expected as many {what} as prompts ({count}), got {size}")
    lifted: dict[int, TokenAutomaton] = {}
    longest: dict[int, int | None] = {}
    tasks = []
    for number, (prompt, given, most) in enumerate(zip(prompts, constraints, budgets, strict=True)):
        name = None if count == 1 else number
        if id(given) not in lifted:
            lifted[id(given)] = _lift(lm, given, spellings, name)
        automaton = lifted[id(given)]
        if most is None:
            if id(given) not in longest:
                longest[id(given)] = longest_answer(automaton)
            most = _finite(longest[id(given)], name)
        ids = encode_prompt(lm, prompt)
        check_example(lm, ids, automaton, whole("max_tokens", most), name)
        tasks.append(TreeTask(ids, automaton, int(most)))
    return read_distributions(
        lm, tasks, temperature=temperature, max_prefixes=max_prefixes, certify=certify,
        max_rows=max_rows,
    )  # fmt: skip


def read_distributions(
    lm: LanguageModel,
    tasks: Sequence[TreeTask],
    *,
    temperature: float | int,
    max_prefixes: int,
    certify: float | int,
    max_rows: int,
) -> list[Posterior]:
    """Compute the posteriors of examples whose arguments were checked.

    Examples with the same prompt, automaton and budget are computed once.
    """
    temperature = check_temperature(real("temperature", temperature))
    share = real("certify", certify)
    if not 0 < share <= 1:
        raise ValueError(f"expected certify to be in (0, 1], got {certify}; 1 means all spellings")
    for what, value in (("max_prefixes", max_prefixes), ("max_rows", max_rows)):
        if whole(what, value) < 1:
            raise ValueError(f"expected {what} to be at least 1, got {value}")
    different = list({(t.prompt, id(t.automaton), t.budget): t for t in tasks}.values())
    # Prompts of one batch are padded, so prompts of similar lengths form a batch.
    different.sort(key=lambda task: len(task.prompt))
    found: dict[tuple[tuple[int, ...], int, int], Posterior] = {}
    size = max(1, min(max_rows, BATCH))
    with progress(len(different), "prompt") as bar:
        for first in range(0, len(different), size):
            batch = different[first : first + size]
            posteriors = _read(lm, batch, temperature, max_prefixes, share, max_rows, bar)
            for task, each in zip(batch, posteriors, strict=True):
                found[task.prompt, id(task.automaton), task.budget] = each
    return [found[task.prompt, id(task.automaton), task.budget] for task in tasks]


@torch.inference_mode()
def _read(
    lm: LanguageModel,
    tasks: Sequence[TreeTask],
    temperature: float,
    max_prefixes: int,
    certify: float,
    max_rows: int,
    bar: Any,
) -> list[Posterior]:
    """Compute the trees of answers (`Tree`) of one batch of examples; count them in a bar."""
    started = time.perf_counter()
    reader = TreeReader(lm, [task.prompt for task in tasks], temperature)
    start_seconds = time.perf_counter() - started
    trees, widths = [], []
    for task in tasks:
        every = count_prefixes(task.automaton, task.budget, max_prefixes)
        own = None if every <= max_prefixes else _canonical(task, max_prefixes // 2)
        trees.append(Tree(task.automaton, task.budget, max_prefixes, certify, reader.eps, own))
        widths.append(max_rows if every <= max_prefixes else NARROW)
    before = 0 if bar is None else bar.n

    def count() -> bool:
        if bar is not None:
            bar.update(before + sum(tree.is_done for tree in trees) - bar.n)
        return False

    read_trees(reader, trees, widths, max_rows, stop=count)
    count()
    seconds = time.perf_counter() - started
    total = sum(len(task.prompt) for task in tasks) + sum(reader.tokens)
    results = []
    for number, (task, tree) in enumerate(zip(tasks, trees, strict=True)):
        tokens = len(task.prompt) + reader.tokens[number]
        diagnostics = Diagnostics(
            ess=(),
            resampled=(False,) * len(tree.widths),
            running=tuple(tree.widths),
            alive=tuple(tree.widths),
            lm_calls=reader.passes[number],
            tokens=tokens,
            generated=sum(map(len, tree.found)),
            share_finished=float(bool(tree.found)),
            seconds=seconds * tokens / total,
            start_seconds=start_seconds * tokens / total,
        )
        results.append(_posterior(task, tree, diagnostics))
    return results


def _canonical(task: TreeTask, most: int) -> TokenAutomaton | None:
    """Return the automaton of canonical tokenizations; None if it is large or has many prefixes."""
    given = task.automaton
    if given.vocabulary.segmentation is None or given.num_states > MOST_STATES:
        return None
    table = canonical(given)
    if table is None:
        return None
    own = TokenAutomaton(given.vocabulary, *table)
    return own if count_prefixes(own, task.budget, most) <= most else None


def _posterior(task: TreeTask, tree: Tree, diagnostics: Diagnostics) -> Posterior:
    """Build the posterior of the found answers, weighted by their model probabilities."""
    vocabulary = task.automaton.vocabulary
    eos = set(vocabulary.eos_ids)
    samples = [
        Sample(ids, vocabulary.decode(content(ids, eos)), log_p, True, log_p)
        for ids, log_p in tree.found.items()
    ]
    log_found = tree.log_found
    shares = torch.tensor([each.log_p for each in samples], dtype=torch.float64, device="cpu")
    squares = float((shares - log_found).exp().square().sum()) if samples else 0.0
    return posterior(
        samples,
        task.automaton,
        log_evidence=log_found,
        ess=1 / squares if squares else 0.0,
        enumerated=tree.is_whole,
        diagnostics=diagnostics,
        log_upper=tree.log_mass,
        algorithm="enumeration",
    )


def _lift(lm: LanguageModel, given: Constraint, spellings: str, name: int | None) -> TokenAutomaton:
    """Lift a constraint to the model's tokens, in the requested tokenizations."""
    if isinstance(given, Automaton):
        return lift(given, lm.vocabulary, literals=spellings)
    check_lifted(given, name)
    if spellings == "all":
        return given
    table = canonical(given)
    if table is None:
        raise EmptyLanguageError(
            f"expected at least one canonical tokenization of an answer{of_example(name)}, got "
            "none; set spellings='all'"
        )
    return TokenAutomaton(
        given.vocabulary, *table, max_bytes=given.max_bytes, caveats=given.caveats
    )


def _finite(longest: int | None, name: int | None) -> int:
    """Return the length of the longest answer; raise an error if the language is infinite."""
    if longest is None:
        raise ConstraintError(
            f"expected a finite language, but the constraint{of_example(name)} has answers of any "
            "length; pass max_tokens to limit the length of an answer, and max_prefixes to limit "
            "the computation"
        )
    return longest


def longest_answer(automaton: TokenAutomaton) -> int | None:
    """Return the number of tokens of a longest answer, EOS included; None if unbounded."""
    pairs = automaton.rows.edges.T
    pairs = pairs[pairs[:, 0] != automaton.final]  # without the loop of the final state
    start = np.searchsorted(pairs[:, 0], np.arange(automaton.num_states + 1))
    waiting = np.bincount(pairs[:, 1], minlength=automaton.num_states)
    layer = np.array([automaton.initial]) if waiting[automaton.initial] == 0 else np.zeros(0, int)
    seen = depth = 0
    while layer.size:  # states all of whose predecessors are in earlier layers
        seen, depth = seen + layer.size, depth + 1
        targets = np.concatenate([pairs[start[s] : start[s + 1], 1] for s in layer.tolist()])
        reached, arrivals = np.unique(targets, return_counts=True)
        waiting[reached] -= arrivals
        layer = reached[waiting[reached] == 0]
    return depth - 1 if seen == automaton.num_states else None


def count_prefixes(automaton: TokenAutomaton, budget: int, most: int) -> int:
    """Count the token sequences that begin an answer of at most `budget` tokens.

    Empty sequences and whole answers don't count. Counting stops at a number above `most`.
    """
    paths = {automaton.initial: 1} if automaton.initial != automaton.final else {}
    total = 0
    width = automaton.tokens_per_class
    for remaining in range(budget, 0, -1):
        after: dict[int, int] = {}
        for state, count in paths.items():
            classes, targets = automaton.rows.row(state)
            goes_on = fits(automaton.steps_to_accept[targets], remaining)
            goes_on &= targets != automaton.final
            tokens_of = width[classes[goes_on]].tolist()
            for target, tokens in zip(targets[goes_on].tolist(), tokens_of, strict=True):
                after[target] = after.get(target, 0) + count * tokens
        total += sum(after.values())
        if total > most or not after:
            break
        paths = after
    return total
