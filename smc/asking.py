"""One call from a prompt and a type to a value with its probability.

`ask` compiles the type to a constraint, lifts it to the model's vocabulary, samples, and parses the
most probable answer:

    a type that pydantic validates    its JSON, parsed by pydantic
    a JSON schema (a mapping)         its JSON, parsed
    a list of tools (mappings)        a JSON list of calls, parsed
    a list of strings                 one of them
    a constraint                      its text

The default is GCD with 16 particles. Everything else is `smc.sample`, whose arguments pass through.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from gcd.automata.automaton import Automaton
from gcd.languages.json_schema.class_schemas import is_class
from gcd.languages.json_schema.schema import json_schema
from gcd.languages.literal import choice
from gcd.languages.tools.tool_calls import tool_calls
from gcd.tokens.lifting import lift
from gcd.tokens.token_automaton import TokenAutomaton
from smc.budgeting import BudgetEffect
from smc.fields import Field
from smc.interface import sample
from smc.models.protocol import LanguageModel, Prompt
from smc.posterior import Posterior
from smc.proposals import GCD, Proposal
from smc.reliability import Reliability

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation for the tokenizer's chat template, each message with `role` and `content`."""
Parser: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, repr=False)
class Reply:
    """The most probable answer to a prompt, as a value, and how sure it is.

    Attributes:
        posterior: all answers that were found.
        parser: makes a value of a text.
    """

    posterior: Posterior
    parser: Parser

    @cached_property
    def value(self) -> Any:
        """The most probable answer, parsed.

        Raises:
            ValueError: there is no answer, as the model gives none any probability; or pydantic
                refuses it for a validator that no constraint expresses.
        """
        if self.text is None:
            raise ValueError(
                "no answer was found, as the model gives none within the budget any probability; "
                "ask by another prompt"
            )
        return self.parser(self.text)

    @property
    def text(self) -> str | None:
        """The most probable answer as text; None if there is none."""
        return self.posterior.majority

    @property
    def probability(self) -> float:
        """The posterior probability of this text, estimated; zero if there is none."""
        return max(self.posterior.probabilities, default=0.0)

    @property
    def interval(self) -> tuple[float, float]:
        """A 90 % interval for the probability; see `Posterior.confidence_intervals`."""
        return next(iter(self.posterior.confidence_intervals), (0.0, 0.0))

    @property
    def reliability(self) -> Reliability:
        """How far the probability can be trusted."""
        return self.posterior.reliability

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The distribution of each JSON field; empty for answers that aren't JSON."""
        return {} if self.parser is str else self.posterior.fields()

    @property
    def budget(self) -> BudgetEffect | None:
        """How much probability the budget removed; see `Posterior.budget`."""
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
        kind: what the answer is: a pydantic model, dataclass, TypedDict, `Literal`, enum or other
            type that pydantic validates; a JSON schema; a list of tools, or of strings to choose
            from; or a constraint, lifted or not.
        budget: most tokens of an answer, EOS included.
        particles: distinct prefixes that are kept at a time; see `smc.sample`.
        proposal: `GCD()` if not given.
        algorithm: as for `smc.sample`.
        options: other arguments of `smc.sample`, such as `seed`, `temperature` or `deadline`.

    Raises:
        ConstraintError: no constraint can be made of the type.
        ValueError: it is none of these, or the prompt has messages and the model's tokenizer no
            chat template.
        InfeasibleBudgetError: the budget is shorter than the shortest answer.

    All of these come before the model does any work. What `smc.sample` raises may follow.
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
    """Ask for a value of a type for each prompt, in batches; see `ask`."""
    constraint, parser = constraint_of(kind)
    if isinstance(constraint, Automaton):
        constraint = lift(constraint, lm.vocabulary)
    posteriors = sample(
        lm, [_written(lm, prompt) for prompt in prompts], constraint, budget=budget,
        particles=particles, proposal=GCD() if proposal is None else proposal,
        algorithm=algorithm, **options,
    )  # fmt: skip
    return [Reply(posterior, parser) for posterior in posteriors]


def constraint_of(kind: Any) -> tuple[Automaton | TokenAutomaton, Parser]:
    """Return the constraint that a type stands for, and what parses its texts.

    Raises:
        ConstraintError, ValueError: as for `ask`.
    """
    if isinstance(kind, Automaton | TokenAutomaton):
        return kind, str
    if is_class(kind):
        language = json_schema(kind, whitespace="spaced")
        from pydantic import TypeAdapter  # what the schema of a class needed, too

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
        f"expected a type, a JSON schema, a list of tools or of strings, or a constraint; got "
        f"{kind!r}; make a constraint of a pattern with gcd.regex(...)"
    )


def _written(lm: LanguageModel, prompt: Prompt | Messages) -> Prompt:
    """Write messages as the tokenizer's chat template does, the answer to come next."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return prompt
    if not prompt or not all(isinstance(message, Mapping) for message in prompt):
        return prompt  # type: ignore[return-value]
    tokenizer = getattr(lm, "tokenizer", None)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "expected a tokenizer with a chat template for a prompt of messages; "
            f"{type(lm).__name__} has none; give the prompt as text"
        )
    assert tokenizer is not None
    return list(
        tokenizer.apply_chat_template(
            list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )
