"""Protocols of language models, `LanguageModel` and `Rows`, and checks of models and prompts.

A `LanguageModel` turns prompts into token ids, and runs the model on each prompt once. It returns
`Rows`: the prefixes in progress, one per batch row, with the model's memory of them (a KV cache). A
row can be extended by one or more tokens, copied, dropped, or truncated:

    rows, log_p = lm.prefill(prompts)        log p(x_1 | prompt), one row per prompt
    rows.reorder([0, 0, 0, 1, 1])            three copies of row 0, two of row 1
    log_p = rows.extend(runs, lengths)       log p(x_{t+1} | prompt, x_<=t) after each token x_t
    rows.truncate(lengths)                   drop all but the first `lengths` generated tokens

`reorder` is used to copy rows, to resample, and to remove rows. Log-probabilities are at
temperature 1; the sampler applies its temperature later. Prompts are never truncated: a prompt that
is too long raises an error before any forward pass (`check_prompts`).
"""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcd import Automaton, ConstraintError, TokenAutomaton, Vocabulary, check_budget
from gcd._errors import PickledError

Prompt = str | Sequence[int]
"""A prompt: text, which the model's tokenizer encodes with its special tokens, or token ids."""
Messages = Sequence[Mapping[str, Any]]
"""Messages for the chat template of the model's tokenizer."""


class OpenedPrompt(tuple[int, ...]):
    """The token ids of a prompt that a model has computed; see `TransformersLM.open`.

    Attributes:
        model: the model that computed the prompt.
        layers: keys and values of each layer.
        log_p: log-probabilities of the first token of an answer.
    """

    model: Any = None
    layers: tuple[tuple[Float[Tensor, "heads L d"], Float[Tensor, "heads L d2"]], ...]
    log_p: Float[Tensor, "V"]

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values, in bytes."""
        return self.log_p.nbytes + sum(k.nbytes + v.nbytes for k, v in self.layers)

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        """Copy and pickle only the token ids."""
        return tuple, (tuple(self),)


def of_example(name: int | None) -> str:
    """Return " of example N" for error messages; the empty string for a single example (None)."""
    return "" if name is None else f" of example {name}"


class PromptTooLongError(PickledError):
    """Error for a prompt that doesn't leave enough of the model's context for the answer.

    Attributes:
        example: index of the prompt; None for a single prompt.
        length: number of tokens in the prompt.
        budget: maximum number of tokens in the answer.
        context: maximum number of tokens of prompt and answer together.
    """

    def __init__(self, example: int | None, length: int, budget: int, context: int) -> None:
        self.example = example
        self.length = length
        self.budget = budget
        self.context = context
        super().__init__(
            f"expected the prompt{of_example(example)} and its budget to fit into the model's "
            f"context of {context} tokens, got {length} tokens and a budget of {budget}; shorten "
            "the prompt or lower the budget"
        )


@runtime_checkable
class Rows(Protocol):
    """A batch of R prefixes, each a prompt and the tokens generated so far, modified in place."""

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append the first `lengths[r]` tokens of `runs[r]` to row r; the number may be 0.

        Returns:
            log p(next token | row up to and including runs[r, t]) for t < lengths[r]. Values beyond
            a run's length and after a token of probability zero are undefined.
        """
        ...

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace row q by a copy of row `ancestors[q]`; the number of rows may change."""
        ...

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten row r to its prompt and its first `lengths[r]` generated tokens."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """Interface of a language model that the samplers use.

    A language model may have two more members. `reads_ahead` is whether
    `smc.Hooks(read_ahead="auto")` reads ahead (by default it doesn't). `static_forward` supports
    `smc.captured` (`smc._models.static_cache.StaticLanguageModel`).
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, with one token per column of the log-probabilities."""
        ...

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None for no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the log-probabilities and of the sampler's tensors."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt as token ids (see `token_ids`)."""
        ...

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Float[Tensor, "B V"]]:
        """Run the model on the prompts; return one row and log p(first token) for each."""
        ...


def is_messages(prompt: object) -> bool:
    """Return whether a prompt consists of chat messages."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not len(prompt):
        return False
    return all(isinstance(message, Mapping) for message in prompt)


def chat_tokenizer(lm: LanguageModel) -> Any:
    """Return the tokenizer of a model; raise ValueError if it has no chat template."""
    tokenizer = getattr(lm, "tokenizer", None)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "expected a tokenizer with a chat template for a prompt of messages, but "
            f"{type(lm).__name__} has none; pass the prompt as text"
        )
    return tokenizer


def encode_prompt(lm: LanguageModel, prompt: Prompt | Messages) -> tuple[int, ...]:
    """Return the token ids of a prompt; messages end with the template's generation prompt.

    An opened prompt is returned unchanged.

    Raises:
        ValueError: another model opened the prompt, or the prompt can't be encoded.
    """
    if isinstance(prompt, OpenedPrompt):
        if prompt.model is None or prompt.model is not getattr(lm, "model", None):
            raise ValueError(
                f"expected a prompt opened by this {type(lm).__name__}, got one that another model "
                "computed; open it with this model"
            )
        return prompt
    if not is_messages(prompt):
        return tuple(lm.encode(prompt))  # type: ignore[arg-type]
    template = chat_tokenizer(lm)
    return tuple(apply_template(template, prompt, add_generation_prompt=True))  # type: ignore[arg-type]


def apply_template(tokenizer: Any, messages: Messages, /, **options: Any) -> list[int]:
    """Return the token ids of messages; raise ValueError if the chat template refuses them."""
    options |= {"tokenize": True, "return_dict": False}
    try:
        return list(tokenizer.apply_chat_template(list(messages), **options))
    except ImportError:  # jinja2 is missing
        raise
    except Exception as error:  # a template is a program that may raise anything
        raise ValueError(
            "expected messages and template arguments that the chat template accepts, got its "
            f"error {str(error)!r}; give each message a role and content, in the order that it "
            "expects"
        ) from error


def token_ids(prompt: Sequence[int]) -> list[int]:
    """Convert the token ids of a prompt to a list of integers.

    Raises:
        ValueError: the prompt doesn't consist of token ids, but of chat messages, for example.
    """
    try:
        if not isinstance(prompt, bytes):
            return [operator.index(token) for token in prompt]
    except TypeError:
        pass
    remedy = (
        "for chat messages pass tokenizer.apply_chat_template(messages, "
        "add_generation_prompt=True, return_dict=False)"
    )
    if isinstance(prompt, Mapping):
        remedy = "pass a list of token ids, such as prompt['input_ids'][0].tolist()"
    elif isinstance(prompt, Sequence) and all(isinstance(each, str) for each in prompt):
        remedy = "pass one text, or several texts to a function that takes a list of prompts"
    raise ValueError(
        f"expected a prompt to be text or token ids, got {reprlib.repr(prompt)}; {remedy}"
    )


def check_ids(prompt: Sequence[int], size: int, example: int | None = None) -> None:
    """Raise an error if a prompt has a token id outside of 0 to `size` - 1."""
    if len(prompt) and not 0 <= min(prompt) <= max(prompt) < size:
        wrong = next(token for token in prompt if not 0 <= token < size)
        raise ValueError(
            f"expected token ids from 0 to {size - 1} in the prompt{of_example(example)}, got "
            f"{wrong}; use the model's own tokenizer"
        )


def check_length(
    prompt: Sequence[int], budget: int, context: int | None, example: int | None = None
) -> None:
    """Raise an error if a prompt (as token ids) is empty or too long for its budget."""
    if not len(prompt):
        raise ValueError(
            f"expected at least one token in the prompt{of_example(example)}, got none; pass the "
            "model's beginning-of-text token, for example"
        )
    if context is not None and len(prompt) + budget > context:
        raise PromptTooLongError(example, len(prompt), budget, context)


def check_prompts(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    examples: Sequence[int | None] | None = None,
) -> None:
    """Raise an error if a prompt (as token ids) is empty or too long for its budget.

    Raises:
        PromptTooLongError: a prompt and its budget together exceed the model's context.
        ValueError: a prompt has no tokens.
    """
    if examples is None:
        examples = [None] if len(prompts) == 1 else range(len(prompts))
    for name, prompt, budget in zip(examples, prompts, budgets, strict=True):
        check_length(prompt, budget, lm.context, name)


_OPEN = re.compile(r"(<\|?(?:\w+:)?(?:think|thinking|thought)\|?>|\[THINK\]|◁think▷)\s*\Z")
"""Tags after which models write their thoughts, at the end of a prompt."""
_TAIL = 16
"""Number of a prompt's last tokens in which such a tag is sought."""


def check_model(lm: object) -> None:
    """Raise ValueError unless `lm` has the methods of a `smc.LanguageModel`."""
    if isinstance(lm, str | PathLike):
        raise ValueError(
            f"expected lm to be a smc.LanguageModel, got {reprlib.repr(lm)}; load a model with "
            "smc.TransformersLM.from_pretrained(name)"
        )
    if isinstance(lm, type) or not (hasattr(lm, "encode") and hasattr(lm, "prefill")):
        given = f"the class {lm.__name__}" if isinstance(lm, type) else type(lm).__name__
        raise ValueError(
            f"expected lm to be a smc.LanguageModel, got {given}; wrap a model of transformers "
            "with smc.TransformersLM(model, tokenizer)"
        )


def check_list(prompts: object) -> None:
    """Raise ValueError unless `prompts` is a list of prompts."""
    if isinstance(prompts, str):
        raise ValueError("expected a list of prompts, got a single string; pass [prompt]")
    if isinstance(prompts, Mapping):
        raise ValueError(
            f"expected a list of prompts, got a {type(prompts).__name__} with the keys "
            f"{', '.join(map(str, prompts))}; pass a list of texts, or a list of lists of token ids"
        )
    if not isinstance(prompts, Iterable) or not hasattr(prompts, "__len__"):
        raise ValueError(
            f"expected a list of prompts, got {type(prompts).__name__}; pass [prompt], or "
            "list(prompts)"
        )
    if any(isinstance(each, Integral) for each in prompts):
        raise ValueError("expected a list of prompts, got a list of token ids; pass [token_ids]")
    if any(isinstance(each, Mapping) and "role" in each for each in prompts):
        raise ValueError(
            "expected a list of prompts, got a list of messages, which is a single prompt; pass "
            "[messages] to smc.ask_all, or messages to smc.ask"
        )


def open_tag(lm: LanguageModel, prompt: Prompt) -> str | None:
    """Return the tag such as `<think>` with which a prompt ends; None if there is none."""
    if isinstance(prompt, str):
        text = prompt
    else:
        ids = token_ids(prompt)[-_TAIL:]
        check_ids(ids, lm.vocabulary.size)
        spelled = {index: tag.encode() for tag, index in lm.vocabulary.special_ids.items()}
        tokens = [spelled.get(each, lm.vocabulary.token_bytes[each]) for each in ids]
        text = b"".join(tokens).decode(errors="replace")
    found = _OPEN.search(text)
    return None if found is None else found[1]


def check_thoughts(lm: LanguageModel, prompt: Prompt) -> None:
    """Raise ValueError if a prompt ends in an open tag, after which the model thinks."""
    tag = open_tag(lm, prompt)
    if tag is not None:
        raise ValueError(
            f"expected a prompt after which the answer begins, got one that ends in an open "
            f"{tag}; append '{tag[0]}/{tag[1:]}' to its text, or in smc.ask pass thinking=200, or "
            'with messages chat_template_kwargs={"enable_thinking": False} if the template reads it'
        )


def check_lifted(automaton: object, example: int | None = None) -> None:
    """Raise ConstraintError unless a constraint is lifted to the tokens of a vocabulary."""
    if isinstance(automaton, TokenAutomaton):
        return
    made = "gcd.json_schema" if isinstance(automaton, Mapping) else "gcd.regex"
    given = "automaton" if isinstance(automaton, Automaton) else f"{made}(...)"
    raise ConstraintError(
        f"expected the constraint{of_example(example)} to be a TokenAutomaton, got "
        f"{type(automaton).__name__}; use gcd.lift({given}, lm.vocabulary)"
    )


def check_example(
    lm: LanguageModel,
    prompt: Sequence[int],
    automaton: TokenAutomaton,
    budget: int,
    example: int | None = None,
) -> None:
    """Raise an error if an example can't be sampled.

    Args:
        example: index of the example, for the error message; None for a single example.
    """
    check_ids(prompt, lm.vocabulary.size, example)
    _check_vocabulary(lm.vocabulary, automaton.vocabulary, example)
    check_budget(automaton, budget, "" if example is None else f"example {example}")
    check_prompts(lm, [prompt], [budget], [example])


def _check_vocabulary(model: Vocabulary, constraint: Vocabulary, example: int | None) -> None:
    """Raise an error unless all token ids mean the same in the constraint and in the model."""
    if model == constraint:
        return
    if model.size != constraint.size:
        what = f"the model has {model.size} tokens, the constraint has {constraint.size}"
    elif tuple(model.eos_ids) != tuple(constraint.eos_ids):
        what = f"the model's EOS ids are {model.eos_ids}, the constraint's are {constraint.eos_ids}"
    else:
        pairs = zip(model.token_bytes, constraint.token_bytes, strict=True)
        token = next(i for i, (a, b) in enumerate(pairs) if a != b)
        what = f"token {token} has other bytes in the model's vocabulary"
    raise ConstraintError(
        f"expected the constraint{of_example(example)} to be lifted to the model's vocabulary, "
        f"got another one: {what}; use gcd.lift(automaton, lm.vocabulary)"
    )
