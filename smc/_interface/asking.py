"""A single call from a prompt and a type to a value with its probability.

`ask` compiles the type to a constraint and lifts it to the tokens of the model's vocabulary. Then
it samples answers, and parses the most probable one:

    type of the answer                value that is returned
    a type that pydantic validates    an object of this type, parsed by pydantic from JSON
    a JSON schema (a mapping)         a value parsed from JSON
    a list of tools (mappings)        a list of tool calls parsed from JSON
    a list of strings                 one of these strings
    a constraint                      the text of the answer

By default the proposal is GCD, with 16 particles. Other arguments are passed to `smc.sample`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from gcd import Automaton, TokenAutomaton, choice, json_schema, lift, tool_calls
from gcd._languages.json_schema.pydantic_schemas import is_class
from smc._interface.interface import sample
from smc._models.protocol import LanguageModel, Prompt
from smc._proposals import GCD, Proposal
from smc._proposals.budget_effect import BudgetEffect
from smc._results.fields import Field
from smc._results.posterior import Posterior
from smc._results.reliability import Reliability

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation for the tokenizer's chat template, each message with `role` and `content`."""
Parser: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, repr=False)
class Reply:
    """The most probable answer to a prompt as a value, with its probability.

    Attributes:
        posterior: the posterior over all answers that were found.
        parser: function that converts the text of an answer to a value.
    """

    posterior: Posterior
    parser: Parser

    @cached_property
    def value(self) -> Any:
        """The most probable answer, parsed.

        Raises:
            ValueError: no answer has positive probability, or a pydantic validator that the
                constraint can't express rejects the answer.
        """
        if self.text is None:
            raise ValueError(
                "expected an answer, got none: the model gives every answer within the budget "
                "probability zero; change the prompt"
            )
        return self.parser(self.text)

    @property
    def text(self) -> str | None:
        """The most probable answer as text; None if no answer was found."""
        return self.posterior.majority

    @property
    def probability(self) -> float:
        """The estimated posterior probability of `text`; zero if no answer was found."""
        return max(self.posterior.probabilities, default=0.0)

    @property
    def interval(self) -> tuple[float, float]:
        """A 90% interval for the probability; see `Posterior.confidence_intervals`."""
        return next(iter(self.posterior.confidence_intervals), (0.0, 0.0))

    @property
    def reliability(self) -> Reliability:
        """The reliability of the estimated probability."""
        return self.posterior.reliability

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The distribution of the value of each JSON field; empty if the answers aren't JSON."""
        return {} if self.parser is str else self.posterior.fields()

    @property
    def budget(self) -> BudgetEffect | None:
        """The probability that the token budget removed; see `Posterior.budget`."""
        return self.posterior.budget

    def __repr__(self) -> str:
        if self.text is None:
            return "Reply(no answer)"
        low, high = self.interval
        return (
            f"Reply({self.text!r}, probability {self.probability:.3f} [{low:.3f}, {high:.3f}], "
            f"{self.reliability.label})"
        )


def ask(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    kind: Any,
    *,
    budget: int,
    particles: int = 16,
    proposal: Proposal[Any] | None = None,
    algorithm: str = "auto",
    **options: Any,
) -> Reply:
    """Ask a language model for a value of a type.

    Args:
        lm: the language model.
        prompt: text, token ids, or messages for the tokenizer's chat template.
        kind: the type of the answer. It can be any type that pydantic validates, such as a pydantic
            model, dataclass, TypedDict, `Literal` or enum. It can also be a JSON schema, a list of
            tools, a list of strings to choose from, or a constraint (lifted or not).
        budget: maximum number of tokens of an answer, including EOS.
        particles: number of distinct prefixes kept at a time; see `smc.sample`.
        proposal: the proposal; `GCD()` by default.
        algorithm: as for `smc.sample`.
        options: other arguments of `smc.sample`, such as `seed`, `temperature` or `deadline`.

    Raises:
        ConstraintError: the type can't be converted to a constraint.
        ValueError: the type is unsupported, or the prompt has messages but the model's tokenizer
            has no chat template.
        InfeasibleBudgetError: the budget is shorter than the shortest answer.

    These errors are raised before any forward pass. `smc.sample` may raise others.
    """
    [reply] = ask_all(
        lm, [prompt], kind, budget=budget, particles=particles, proposal=proposal,
        algorithm=algorithm, **options,
    )  # fmt: skip
    return reply


def ask_all(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    kind: Any,
    *,
    budget: int,
    particles: int = 16,
    proposal: Proposal[Any] | None = None,
    algorithm: str = "auto",
    **options: Any,
) -> list[Reply]:
    """Ask for a value of the same type for each prompt, in batches; see `ask` for the arguments."""
    constraint, parser = constraint_of(kind)
    if isinstance(constraint, Automaton):
        constraint = lift(constraint, lm.vocabulary)
    posteriors = sample(
        lm, [_apply_template(lm, prompt) for prompt in prompts], constraint, budget=budget,
        particles=particles, proposal=GCD() if proposal is None else proposal,
        algorithm=algorithm, **options,
    )  # fmt: skip
    return [Reply(posterior, parser) for posterior in posteriors]


def constraint_of(kind: Any) -> tuple[Automaton | TokenAutomaton, Parser]:
    """Return the constraint for a type, and the function that parses its answers.

    Raises:
        ConstraintError, ValueError: see `ask`.
    """
    if isinstance(kind, Automaton | TokenAutomaton):
        return kind, str
    if is_class(kind):
        language = json_schema(kind, whitespace="spaced")
        from pydantic import TypeAdapter  # the schema of a class needs pydantic, too

        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return language, adapter.validate_json
    if isinstance(kind, Mapping | bool):
        return json_schema(kind, whitespace="spaced"), json.loads
    if isinstance(kind, Sequence) and not isinstance(kind, str) and kind:
        if all(isinstance(each, str) for each in kind):
            return choice(kind), str
        if all(isinstance(each, Mapping) for each in kind):
            return tool_calls(kind), json.loads
    raise ValueError(
        f"expected a type, a JSON schema, a list of tools or of strings, or a constraint, got "
        f"{kind!r}; for a pattern use gcd.regex(...)"
    )


def _apply_template(lm: LanguageModel, prompt: Prompt | Messages) -> Prompt:
    """Convert messages to token ids by the tokenizer's chat template; return other prompts as is.

    The ids end with the template's generation prompt, after which the model writes its answer.
    """
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return prompt
    if not prompt or not all(isinstance(message, Mapping) for message in prompt):
        return prompt  # type: ignore[return-value]
    tokenizer = getattr(lm, "tokenizer", None)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "expected a tokenizer with a chat template for a prompt of messages, but "
            f"{type(lm).__name__} has none; pass the prompt as text"
        )
    assert tokenizer is not None
    return list(
        tokenizer.apply_chat_template(
            list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )
