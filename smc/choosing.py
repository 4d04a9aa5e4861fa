"""Probabilities of labels: which of several options a model answers with, and how probably.

Scoring the first token of each option confuses options that begin alike, and the sum of its
log-probabilities favors short ones and misses other spellings. Here the probability of an option is
that of its text, in all spellings and with the end of the answer, given that the answer is one of
the options (`smc.distribution`):

    P(option) = p_lm(option EOS) / evidence,    evidence = sum of p_lm(option EOS) over the options

The evidence is the probability that the model answers with any of the options at all. Where it is
low, the model would rather say something else, and abstaining may be better than the best option.

An option may be the beginning of another, such as "no" and "not sure": EOS decides between them.

**Orders.** Models prefer options by their place in the prompt. Where a prompt is given as a
function of the options, their probabilities can be averaged over several orders: the order given,
its reverse, and rotations of both. With two orders, or as many as there are, reversing the options
changes nothing but the order of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gcd.errors import ConstraintError
from gcd.languages.literal import choice
from gcd.tokens.canonical import LITERALS
from gcd.tokens.extent import longest_answer
from gcd.tokens.lifting import lift
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from smc.checks import check_example, check_list, check_model
from smc.distributions import PREFIXES, Task, read_distributions
from smc.models.protocol import LanguageModel, Prompt, of_example
from smc.posterior import Posterior
from smc.settings import whole

CERTIFIED = 0.999
"""The share of the evidence that is found unless another one is asked for."""

PromptOfOptions = Callable[[Sequence[str]], Prompt]


@dataclass(frozen=True)
class Choice:
    """The probability of each option.

    Attributes:
        options: in the order given.
        probabilities: of the options, given that the answer is one of them; their sum is one, or
            zero if no option has any probability or none was found.
        intervals: each contains the option's true probability. The probabilities are exact up to
            spellings that were not read, whose share these intervals count.
        log_evidence: log of the probability that the model answers with one of the options, of the
            spellings that were found; averaged over orders before the logarithm.
        certified: the share of the evidence that was certainly found; the least of all orders.
        enumerated: whether every spelling was read, in every order.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    log_evidence: float
    certified: float
    enumerated: bool

    @property
    def best(self) -> str | None:
        """The most probable option, the first of equal ones; None if none has any probability."""
        most = max(self.probabilities)
        return self.options[self.probabilities.index(most)] if most > 0 else None


def choose(
    lm: LanguageModel,
    prompts: Sequence[Prompt | PromptOfOptions],
    options: Sequence[str] | Sequence[Sequence[str]],
    *,
    orders: int = 1,
    spellings: str = "all",
    temperature: float | int = 1.0,
    max_prefixes: int = PREFIXES,
    certify: float | int = CERTIFIED,
    max_rows: int = 256,
) -> list[Choice]:
    """Compute the probability of each option as the answer to a prompt.

    The options share forward passes, and the prompt is read once for all of them. An option is
    taken as it is: whether it begins with a space is up to the prompt's end.

    Args:
        lm: the language model.
        prompts: text, token ids taken as they are, or a function that makes one of these from the
            options in some order.
        options: the texts, the same for all prompts, or a list of them for each prompt.
        orders: how many orders of the options to average over, each with a prompt of its own; more
            than one needs prompts that are functions.
        spellings: "all", or "canonical" for the tokenizer's own spelling of each option alone.
        temperature: part of p_lm, as in `smc.sample`.
        max_prefixes: most prefixes that are read for each prompt.
        certify: the share of the evidence after which reading ends; 1 reads every spelling, which
            may be many thousands.
        max_rows: most prefixes in one forward pass.

    Returns:
        One choice per prompt, in order.

    Raises:
        ValueError: there are no options, two are equal, one is no text; more orders than there are,
            or than a prompt that is no function allows; or any other argument that makes no sense.
        ConstraintError: the tokens cannot spell the options.
        PromptTooLongError: a prompt leaves too little of the model's context.
        FloatingPointError: the model's log-probabilities are not numbers.
    """
    check_model(lm)
    check_list(prompts)
    if spellings not in LITERALS:
        raise ValueError(
            f"expected spellings to be one of {', '.join(LITERALS)}; got {spellings!r}"
        )
    if whole("orders", orders) < 1:
        raise ValueError(f"expected orders of at least 1, got {orders}")
    several = _options_of_each(options, len(prompts))
    lifted: dict[frozenset[str], tuple[TokenAutomaton, int]] = {}
    tasks: list[Task] = []
    for number, (prompt, texts) in enumerate(zip(prompts, several, strict=True)):
        name = None if len(prompts) == 1 else number
        key = frozenset(texts)
        if key not in lifted:
            automaton = _automaton(texts, lm.vocabulary, spellings, name)
            longest = longest_answer(automaton)
            assert longest is not None, "texts have ends"
            lifted[key] = automaton, longest
        automaton, budget = lifted[key]
        for order in _orders(texts, orders, name):
            if callable(prompt):
                written = prompt(order)
            elif orders == 1:
                written = prompt
            else:
                raise ValueError(
                    f"orders is {orders}, but the prompt{of_example(name)} is "
                    f"{type(prompt).__name__}; give a function from the ordered options to a prompt"
                )
            ids = tuple(lm.encode(written))
            check_example(lm, ids, automaton, budget, name)
            tasks.append(Task(ids, automaton, budget))
    found = read_distributions(
        lm, tasks, temperature=temperature, max_prefixes=max_prefixes, certify=certify,
        max_rows=max_rows,
    )  # fmt: skip
    return [
        _averaged(texts, found[number * orders : (number + 1) * orders])
        for number, texts in enumerate(several)
    ]


def _options_of_each(options: Any, count: int) -> list[tuple[str, ...]]:
    """Return the options of each prompt, once they make sense."""
    if isinstance(options, str | Mapping) or not isinstance(options, Sequence):
        raise ValueError(f"expected a list of options, got {type(options).__name__}")
    nested = bool(options) and all(
        isinstance(each, Sequence) and not isinstance(each, str | bytes) for each in options
    )
    several = list(options) if nested else [options] * count
    if len(several) != count:
        raise ValueError(
            f"expected {count} lists of options, one for each prompt; got {len(several)}"
        )
    for number, texts in enumerate(several):
        where = of_example(number if nested and count > 1 else None)
        if not len(texts):
            raise ValueError(f"expected at least one option{where}, got none")
        seen: dict[str, int] = {}
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(
                    f"expected options{where} that are strings, got {text!r} at place {place}; "
                    "write it out, as in '3'"
                )
            if text in seen:
                raise ValueError(
                    f"options {seen[text]} and {place}{where} are equal: {text!r}; give each once"
                )
            seen[text] = place
    return [tuple(texts) for texts in several]


def _orders(texts: tuple[str, ...], count: int, name: int | None) -> list[tuple[str, ...]]:
    """Return so many different orders: the given one, its reverse, and rotations of both."""
    n = len(texts)
    most = n if n <= 2 else 2 * n  # with two options rotations are reverses
    if count > most:
        raise ValueError(
            f"orders is {count}, but {n} options{of_example(name)} have {most} orders that are "
            "rotations or their reverses; give no more than that"
        )
    pairs = (count + 1) // 2
    turns = [place * n // pairs for place in range(pairs)]
    rotated = [texts[turn:] + texts[:turn] for turn in turns]
    return [order for each in rotated for order in (each, each[::-1])][:count]


def _automaton(
    texts: tuple[str, ...], vocabulary: Vocabulary, spellings: str, name: int | None
) -> TokenAutomaton:
    """Return the automaton of the options, in all spellings or in the tokenizer's own."""
    language = choice(texts)
    if spellings == "all":
        return lift(language, vocabulary)
    segmentation = vocabulary.segmentation
    if segmentation is None:
        raise ConstraintError(
            "spellings='canonical' needs the tokenizer's own spelling, which this vocabulary does "
            "not know; make it with Vocabulary.from_tokenizer, or give spellings='all'"
        )
    edges: set[tuple[tuple[int, ...], int, tuple[int, ...]]] = set()
    ends = set()
    for text in texts:
        ids = tuple(segmentation.encode(text))
        if vocabulary.decode(ids) != text.encode():
            raise ConstraintError(
                f"the tokenizer writes the option {text!r}{of_example(name)} as "
                f"{vocabulary.decode(ids).decode(errors='replace')!r}; give spellings='all'"
            )
        edges |= {(ids[:t], ids[t], ids[: t + 1]) for t in range(len(ids))}
        ends.add(ids)
    return TokenAutomaton.from_transitions(
        vocabulary,
        [(source, [token], target) for source, token, target in sorted(edges)],
        accepting=ends,
        initial=(),
    )


def _averaged(texts: tuple[str, ...], found: Sequence[Posterior]) -> Choice:
    """Average over orders."""
    shares, intervals = [], []
    for each in found:
        assert each.bounds is not None
        share = dict(zip(each.answers, each.probabilities, strict=True))
        known = dict(zip(each.answers, each.intervals or (), strict=True))
        nothing = each.bounds.of_text(-math.inf)
        shares.append([share.get(text.encode(), 0.0) for text in texts])
        intervals.append([known.get(text.encode(), nothing) for text in texts])
    alive = [row for row in shares if any(row)] or shares[:1]
    evidence = fmean(math.exp(each.log_evidence or 0.0) for each in found)
    return Choice(
        options=texts,
        probabilities=tuple(fmean(column) for column in zip(*alive, strict=True)),
        intervals=tuple(
            (fmean(low for low, _ in column), fmean(high for _, high in column))
            for column in zip(*intervals, strict=True)
        ),
        log_evidence=math.log(evidence) if evidence > 0 else -math.inf,
        certified=min(each.certified or 0.0 for each in found),
        enumerated=all(each.enumerated for each in found),
    )
