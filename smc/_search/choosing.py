"""Probabilities of labels: a model's distribution over several given answers.

Scoring only the first token of each option can't distinguish options that begin alike. Summing an
option's log-probabilities favors short options and misses other tokenizations. Here the probability
of an option is the probability of its text in all tokenizations, including the end of the answer,
given that the answer is one of the options (`smc.distribution`):

    P(option) = p_lm(option EOS) / evidence,    evidence = sum of p_lm(option EOS) over the options

The evidence is the probability that the model answers with any of the options. If it is low, the
model prefers other answers, and abstaining may be better than the best option.

An option may be the beginning of another, such as "no" and "not sure"; EOS distinguishes them.

**Orders.** Models prefer options by their position in the prompt. If a prompt is given as a
function of the options, their probabilities can be averaged over several orders: the given order,
its reverse, and rotations of both. With two orders, or with all of them, reversing the given
options only changes the order of the result.

**Several fields** (`smc.joint`), such as a verdict, a label and a score, are the members of a JSON
object in the given order, which has finitely many values. `smc.distribution` gives the posterior
over all combinations, and `Posterior.fields` the marginal distributions. The language model
conditions later fields on earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Any, Literal, get_args, get_origin

from gcd import ConstraintError, TokenAutomaton, Vocabulary, choice, json_schema, lift
from gcd._tokens.spellings import LITERALS
from smc._inference.arguments import whole
from smc._models.protocol import (
    LanguageModel,
    Messages,
    Prompt,
    check_example,
    check_list,
    check_model,
    check_thoughts,
    encode_prompt,
    of_example,
)
from smc._results.fields import canonical_json
from smc._results.posterior import Posterior
from smc._search.distributions import (
    PREFIXES,
    TreeTask,
    distribution,
    longest_answer,
    read_distributions,
)

CERTIFIED = 0.999
"""Default share of the evidence that is found."""

PromptOfOptions = Callable[[Sequence[str]], Prompt | Messages]


@dataclass(frozen=True)
class Choice:
    """The probability of each option as the answer to one prompt.

    Attributes:
        options: the options in the given order.
        probabilities: probability of each option, given that the answer is one of them. They sum to
            one, or to zero if no option was found with positive probability.
        intervals: intervals that certainly contain the exact probabilities, which include
            tokenizations that weren't computed.
        log_evidence: log of the probability that the model answers with one of the options, in a
            tokenization that was found. With several orders, the logarithm of the mean probability.
        certified: share of the evidence that was certainly found; the minimum over orders.
        enumerated: whether every tokenization was computed in every order.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    log_evidence: float
    certified: float
    enumerated: bool

    @property
    def best(self) -> str | None:
        """The most probable option, the first one in a tie; None if all probabilities are zero."""
        most = max(self.probabilities)
        return self.options[self.probabilities.index(most)] if most > 0 else None


def choose(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages | PromptOfOptions],
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

    The options share forward passes, and each prompt is computed once for all of them. Options are
    used as given: begin them with a space if the end of the prompt requires one.

    Args:
        lm: the language model.
        prompts: for each prompt, text, token ids (used as given), messages for the chat template,
            an opened prompt, or a function that takes the options in some order and returns one of
            these.
        options: the options, the same for all prompts; or a list of options for each prompt.
        orders: number of orders of the options to average over, each with its own prompt. If there
            is more than one order, prompts must be functions.
        spellings: "all" tokenizations, or "canonical" for only the tokenizer's own tokenization of
            each option.
        temperature: sampling temperature, which is part of p_lm, as in `smc.sample`.
        max_prefixes: maximum number of prefixes computed for each prompt.
        certify: share of the evidence after which the computation ends. With 1, every tokenization
            is computed, possibly many thousands.
        max_rows: maximum number of prefixes in one forward pass.

    Returns:
        One choice per prompt, in the order of the prompts.

    Raises:
        ValueError: there are no options; options are equal or not strings; `orders` exceeds the
            number of different orders; `orders` exceeds 1, but a prompt is not a function; or
            another argument is invalid.
        ConstraintError: the tokens can't spell the options.
        PromptTooLongError: a prompt and its longest option together exceed the model's context.
        FloatingPointError: the model's log-probabilities are NaN or +inf.
    """
    check_model(lm)
    check_list(prompts)
    if spellings not in LITERALS:
        raise ValueError(
            f"expected spellings to be one of {', '.join(LITERALS)}; got {spellings!r}"
        )
    if whole("orders", orders) < 1:
        raise ValueError(f"expected orders to be at least 1, got {orders}")
    several = _options_of_each(options, len(prompts))
    lifted: dict[frozenset[str], tuple[TokenAutomaton, int]] = {}
    tasks: list[TreeTask] = []
    for number, (prompt, texts) in enumerate(zip(prompts, several, strict=True)):
        name = None if len(prompts) == 1 else number
        key = frozenset(texts)
        if key not in lifted:
            automaton = _automaton(texts, lm.vocabulary, spellings, name)
            longest = longest_answer(automaton)
            assert longest is not None, "a finite choice has a longest answer"
            lifted[key] = automaton, longest
        automaton, budget = lifted[key]
        for order in _orders(texts, orders, name):
            if callable(prompt):
                written = prompt(order)
            elif orders == 1:
                written = prompt
            else:
                raise ValueError(
                    f"expected the prompt{of_example(name)} to be a function of the options, as "
                    f"orders={orders} requires, got {type(prompt).__name__}; pass a function, or "
                    "orders=1"
                )
            ids = encode_prompt(lm, written)
            check_thoughts(lm, written if isinstance(written, str) else ids)
            check_example(lm, ids, automaton, budget, name)
            tasks.append(TreeTask(ids, automaton, budget))
    found = read_distributions(
        lm, tasks, temperature=temperature, max_prefixes=max_prefixes, certify=certify,
        max_rows=max_rows,
    )  # fmt: skip
    return [
        _average(texts, found[number * orders : (number + 1) * orders])
        for number, texts in enumerate(several)
    ]


def _options_of_each(options: Any, count: int) -> list[tuple[str, ...]]:
    """Check the options, and return the options of each prompt."""
    if isinstance(options, str | Mapping) or not isinstance(options, Sequence):
        raise ValueError(f"expected a list of options, got {type(options).__name__}")
    nested = bool(options) and all(
        isinstance(each, Sequence) and not isinstance(each, str | bytes) for each in options
    )
    several = list(options) if nested else [options] * count
    if len(several) != count:
        raise ValueError(
            f"expected as many lists of options as prompts ({count}), got {len(several)}"
        )
    for number, texts in enumerate(several):
        where = of_example(number if nested and count > 1 else None)
        if not len(texts):
            raise ValueError(f"expected at least one option{where}, got none; pass the labels")
        seen: dict[str, int] = {}
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(
                    f"expected options{where} as strings, got {text!r} at index {index}; "
                    "convert it to text, as in '3'"
                )
            if text in seen:
                raise ValueError(
                    f"expected distinct options{where}, got {text!r} at indices {seen[text]} and "
                    f"{index}; pass each option once"
                )
            seen[text] = index
    return [tuple(texts) for texts in several]


def _orders(texts: tuple[str, ...], count: int, name: int | None) -> list[tuple[str, ...]]:
    """Return `count` different orders: the given order, its reverse, and rotations of both."""
    n = len(texts)
    most = n if n <= 2 else 2 * n  # with two options, the rotation equals the reverse
    if count > most:
        raise ValueError(
            f"expected orders to be at most {most} (rotations and their reverses) for {n} "
            f"options{of_example(name)}, got {count}; lower orders"
        )
    pairs = (count + 1) // 2
    shifts = [index * n // pairs for index in range(pairs)]
    rotated = [texts[shift:] + texts[:shift] for shift in shifts]
    return [order for each in rotated for order in (each, each[::-1])][:count]


def _automaton(
    texts: tuple[str, ...], vocabulary: Vocabulary, spellings: str, name: int | None
) -> TokenAutomaton:
    """Return the automaton of the options, in all tokenizations or in canonical ones."""
    language = choice(texts)
    if spellings == "all":
        return lift(language, vocabulary)
    segmentation = vocabulary.segmentation
    if segmentation is None:
        raise ConstraintError(
            "expected a vocabulary with the tokenizer's segmentation for spellings='canonical', "
            "got one without; create it with Vocabulary.from_tokenizer, or set spellings='all'"
        )
    edges: set[tuple[tuple[int, ...], int, tuple[int, ...]]] = set()
    ends = set()
    for text in texts:
        ids = tuple(segmentation.encode(text))
        if vocabulary.decode(ids) != text.encode():
            raise ConstraintError(
                f"expected options that the tokenizer can encode, but the option "
                f"{text!r}{of_example(name)} decodes to "
                f"{vocabulary.decode(ids).decode(errors='replace')!r}; set spellings='all'"
            )
        edges |= {(ids[:t], ids[t], ids[: t + 1]) for t in range(len(ids))}
        ends.add(ids)
    return TokenAutomaton.from_transitions(
        vocabulary,
        [(source, [token], target) for source, token, target in sorted(edges)],
        accepting=ends,
        initial=(),
    )


def _average(texts: tuple[str, ...], found: Sequence[Posterior]) -> Choice:
    """Average the probabilities of the options over the posteriors of all orders."""
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


def joint(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    fields: Mapping[str, Any],
    *,
    whitespace: str = "compact",
    spellings: str = "all",
    temperature: float | int = 1.0,
    max_prefixes: int = PREFIXES,
    certify: float | int = CERTIFIED,
    max_rows: int = 256,
) -> Posterior:
    """Compute the joint posterior of several fields as the members of one JSON object.

    Args:
        lm: the language model.
        prompt: text, token ids (used as given), messages, or an opened prompt; it should ask
            for the object.
        fields: for each field name, in order, the possible values: `bool`, a range of integers such
            as `range(1, 6)` for a score, an enum, a `Literal[...]`, or a list of JSON scalars.
        whitespace: whitespace of the object, as in `gcd.json_schema`.
        spellings, temperature, max_prefixes, certify, max_rows: as in `smc.distribution`.

    Returns:
        The posterior over objects. `Posterior.fields` has the marginal distribution of each field,
        at the JSON pointer of the field's name.

    Raises:
        ValueError: there are no fields; or a field has no values, equal values, or values that are
            not JSON scalars. Errors of `smc.distribution` are raised, too.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"expected a mapping from field names to values, got {type(fields).__name__}"
        )
    if not fields:
        raise ValueError("expected at least one field, got an empty mapping")
    check_model(lm)
    ids = encode_prompt(lm, prompt)
    check_thoughts(lm, prompt if isinstance(prompt, str) else ids)
    members = {name: {"enum": _values(name, given)} for name, given in fields.items()}
    schema = {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }
    [found] = distribution(
        lm, [ids], json_schema(schema, whitespace=whitespace), spellings=spellings,
        temperature=temperature, max_prefixes=max_prefixes, certify=certify, max_rows=max_rows,
    )  # fmt: skip
    return found


def _values(name: Any, given: Any) -> list[Any]:
    """Return the values of a field as JSON scalars."""
    if not isinstance(name, str):
        raise ValueError(f"expected field names as strings, got {name!r}")
    values: list[Any]
    if given is bool:
        values = [False, True]
    elif isinstance(given, type) and issubclass(given, Enum):
        values = [member.value for member in given]
    elif get_origin(given) is Literal:
        values = [each.value if isinstance(each, Enum) else each for each in get_args(given)]
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        values = list(given)  # including ranges
    else:
        raise ValueError(
            f"expected field {name!r} to be bool, a range, an enum, a Literal or a list of values; "
            f"got {given!r}"
        )
    if not values:
        raise ValueError(
            f"expected field {name!r} to have at least one value, got none; list its values"
        )
    seen: dict[str, Any] = {}
    for value in values:
        is_scalar = value is None or isinstance(value, str | bool | int | float)
        if not is_scalar or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(
                f"expected field {name!r} to have strings, finite numbers, booleans or None, "
                f"got {value!r}"
            )
        written = canonical_json(value)
        if written in seen:
            raise ValueError(
                f"expected distinct values in field {name!r}, got {seen[written]!r} and {value!r}, "
                "which are equal; pass each value once"
            )
        seen[written] = value
    return values
