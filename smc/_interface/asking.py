"""A single call from a prompt and a type to a value with its probability.

`ask` compiles the type to a constraint and lifts it to the tokens of the model's vocabulary. Then
it samples answers, and parses the most probable one:

    type of the answer                value that is returned
    a type that pydantic validates    an object of this type, parsed by pydantic from JSON
    a JSON schema (a mapping)         a value parsed from JSON
    a list of tools                   a list of tool calls parsed from JSON
    a list of strings                 one of these strings
    a constraint                      the text of the answer

By default the proposal is GCD, with 16 particles. Other arguments are passed to `smc.sample`.

Messages become token ids by the tokenizer's chat template, which also gets the tools in the form
that templates expect: `{"type": "function", "function": {"name", "description", "parameters"}}`.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from gcd import Automaton, TokenAutomaton, choice, json_schema, lift, parse_tools, tool_calls
from gcd._languages.json_schema.schema import is_class
from gcd._languages.tools.tool_lists import CONTAINERS, is_schema
from smc._inference.settings import check_options
from smc._interface.interface import sample
from smc._models.checks import check_list, check_model, check_thoughts
from smc._models.protocol import LanguageModel, Prompt
from smc._proposals import GCD, Proposal
from smc._proposals.budget_effect import BudgetEffect
from smc._results.fields import Field, show_probability
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
    def confidence_interval(self) -> tuple[float, float] | None:
        """A 90% interval for the probability; None if nothing is known about it, or without answer.

        See `Posterior.confidence_intervals`.
        """
        return next(iter(self.posterior.confidence_intervals or ()), None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Deprecated name of `confidence_interval`."""
        warnings.warn(
            "Reply.interval is deprecated; use Reply.confidence_interval",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.confidence_interval

    @property
    def reliability(self) -> Reliability:
        """The reliability of the estimated probability."""
        return self.posterior.reliability

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The distribution of the value of each JSON field.

        Empty if the answers are text, as those of a constraint; see `Posterior.fields`.
        """
        return {} if self.parser is str else self.posterior.fields()

    @property
    def budget(self) -> BudgetEffect | None:
        """The probability that the token budget removed; see `Posterior.budget`."""
        return self.posterior.budget

    def __repr__(self) -> str:
        if self.text is None:
            return "Reply(no answer)"
        shown = show_probability(self.probability, self.confidence_interval)
        return f"Reply({self.text!r}, probability {shown}, {self.reliability.label})"


def ask(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    kind: Any,
    *,
    budget: int,
    particles: int = 16,
    proposal: Proposal[Any] | None = None,
    algorithm: str = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Reply:
    """Ask a language model for a value of a type.

    Args:
        lm: the language model.
        prompt: text, token ids, or messages for the tokenizer's chat template.
        kind: the type of the answer. It can be any type that pydantic validates, such as a pydantic
            model, dataclass, TypedDict, `Literal` or enum. It can also be a JSON schema, a list of
            tools, a list of strings to choose from, or a constraint (lifted or not). The value of a
            constraint is the text of the answer, even if it is JSON. With messages, the chat
            template shows tools to the model.
        budget: maximum number of tokens of an answer, including EOS.
        particles: number of distinct prefixes kept at a time; see `smc.sample`.
        proposal: the proposal; `GCD()` by default.
        algorithm: as for `smc.sample`.
        chat_template_kwargs: arguments of the chat template, such as `{"enable_thinking": False}`.
        options: other arguments of `smc.sample`, such as `seed`, `temperature` or `deadline`, but
            not `finished`.

    Raises:
        ConstraintError: the type can't be converted to a constraint.
        ValueError: the type or an option is unsupported; the prompt has messages but the model's
            tokenizer has no chat template; or the prompt ends in an open `<think>`.
        InfeasibleBudgetError: the budget is shorter than the shortest answer.

    Warns:
        UserWarning: the chat template doesn't show the tools, or doesn't read an argument.

    These errors are raised before any forward pass. `smc.sample` may raise others.
    """
    check_model(lm)
    [reply] = ask_all(
        lm, [prompt], kind, budget=budget, particles=particles, proposal=proposal,
        algorithm=algorithm, chat_template_kwargs=chat_template_kwargs, **options,
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
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Reply]:
    """Ask for a value of the same type for each prompt, in batches; see `ask` for the arguments."""
    check_model(lm)
    check_list(prompts)
    check_options("smc.ask", options, ask, sample)
    if "finished" in options:
        raise ValueError(
            f"expected smc.ask without finished, got {options['finished']!r}; use the replies that "
            "it returns, or smc.sample"
        )
    constraint, parser = constraint_of(kind)
    written = _write(lm, prompts, kind, chat_template_kwargs)
    if isinstance(constraint, Automaton):
        constraint = lift(constraint, lm.vocabulary)
    posteriors = sample(
        lm, written, constraint, budget=budget, particles=particles,
        proposal=GCD() if proposal is None else proposal, algorithm=algorithm, **options,
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
    if _is_tools(kind):
        return tool_calls(kind), json.loads
    if isinstance(kind, Mapping | bool):
        return json_schema(kind, whitespace="spaced"), json.loads
    is_list = isinstance(kind, Sequence) and not isinstance(kind, str) and len(kind) > 0
    if is_list and all(isinstance(each, str) for each in kind):
        return choice(kind), str
    raise ValueError(
        "expected a type, a JSON schema, a list of tools or of strings, or a constraint (whose "
        f"value is text), got {kind!r}; for a pattern use gcd.regex(...)"
    )


def _is_tools(kind: Any) -> bool:
    """Return whether a type is a list of tools, or a mapping that contains such a list."""
    if isinstance(kind, Mapping):
        return not is_schema(kind) and any(isinstance(kind.get(k), list | dict) for k in CONTAINERS)
    if isinstance(kind, str) or not isinstance(kind, Sequence) or not kind:
        return False
    return all(isinstance(each, Mapping) or callable(each) for each in kind)


def _is_messages(prompt: Any) -> bool:
    """Return whether a prompt consists of messages."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not len(prompt):
        return False
    return all(isinstance(message, Mapping) for message in prompt)


def _write(
    lm: LanguageModel, prompts: Sequence[Any], kind: Any, arguments: Mapping[str, Any] | None
) -> list[Prompt]:
    """Convert messages to token ids, and refuse prompts that end in an open `<think>`.

    The ids end with the template's generation prompt, after which the model writes its answer.
    """
    chats = [prompt for prompt in prompts if _is_messages(prompt)]
    if arguments is not None and not (isinstance(arguments, Mapping) and chats):
        raise ValueError(
            "expected chat_template_kwargs as a mapping, with a prompt of messages, got "
            f"{arguments!r} with {'messages' if chats else 'text or token ids'}; pass messages and "
            'a mapping such as {"enable_thinking": False}'
        )
    tools = _tools_for_chat(kind) if chats and _is_tools(kind) else []
    written = [
        _apply_template(lm, prompt, tools, arguments or {}) if _is_messages(prompt) else prompt
        for prompt in prompts
    ]
    for prompt in written:
        check_thoughts(lm, prompt)
    return written


def _apply_template(
    lm: LanguageModel,
    messages: Messages,
    tools: list[dict[str, Any]],
    arguments: Mapping[str, Any],
) -> list[int]:
    """Apply the tokenizer's chat template to messages; warn of what the template doesn't read."""
    tokenizer = getattr(lm, "tokenizer", None)
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        raise ValueError(
            "expected a tokenizer with a chat template for a prompt of messages, but "
            f"{type(lm).__name__} has none; pass the prompt as text"
        )
    assert tokenizer is not None
    apply, chat = tokenizer.apply_chat_template, list(messages)
    options = {"add_generation_prompt": True, **arguments, "tokenize": True, "return_dict": False}
    known = {*inspect.signature(apply).parameters, "enable_thinking"}
    unread = [name for name in arguments if not re.search(rf"\b{name}\b", str(template))]
    unread = [name for name in unread if name not in known]
    if unread:
        warnings.warn(
            f"expected a chat template that reads {', '.join(unread)}, got one that doesn't; check "
            "the names in chat_template_kwargs",
            stacklevel=2,
        )
    ids = list(apply(chat, **{"tools": tools, **options} if tools else options))
    texts = json.dumps(chat, default=str)
    hidden = [name for each in tools if (name := each["function"]["name"]) not in texts]
    if hidden and ids == list(apply(chat, **options)):
        warnings.warn(
            f"expected a chat template that shows tools to the model, got one without tools; "
            f"describe them in a message ({', '.join(hidden)})",
            stacklevel=2,
        )
    return ids


def _lower_types(schema: Any) -> Any:
    """Return a schema with the types of Gemini's dialect (`STRING`) as JSON Schema writes them."""
    if isinstance(schema, list):
        return [_lower_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {k: v if k in ("enum", "const") else _lower_types(v) for k, v in schema.items()}
    kind = found.get("type")
    return found | {"type": kind.lower()} if isinstance(kind, str) else found


def _tools_for_chat(tools: Any) -> list[dict[str, Any]]:
    """Return tools in the form that chat templates expect."""
    classes = (
        {}
        if isinstance(tools, Mapping)
        else {each.__name__: each for each in tools if isinstance(each, type)}
    )
    found = []
    for tool in parse_tools(tools).tools:
        parameters = tool.schema
        if tool.name in classes:  # gcd's own schema of a class has patterns that aren't JSON
            from pydantic import TypeAdapter

            parameters = TypeAdapter(classes[tool.name]).json_schema()
        parameters = _lower_types(parameters)
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        found.append({"type": "function", "function": function})
    return found
