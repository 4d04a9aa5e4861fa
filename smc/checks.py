"""What `smc.sample` and `smc.search` are given is checked here, before the model does any work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError
from gcd.tokens.budget import check_budget
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from smc.models.protocol import LanguageModel, check_ids, check_prompts, of_example


def check_model(lm: object) -> None:
    """Raise ValueError where a model of transformers, say, was given as it is."""
    if not (hasattr(lm, "encode") and hasattr(lm, "prefill")):
        raise ValueError(
            f"lm is {type(lm).__name__}, not a smc.LanguageModel; make one of a model of "
            "transformers by smc.TransformersLM(model, tokenizer)"
        )


def check_list(prompts: object) -> None:
    """Raise ValueError where one prompt was given, or a mapping, and not a list of prompts."""
    if isinstance(prompts, str):
        raise ValueError("prompts is a single string; give a list of prompts")
    if isinstance(prompts, Mapping):
        raise ValueError(
            f"prompts is {type(prompts).__name__} of {', '.join(map(str, prompts))}; give a list "
            "of texts, or of lists of token ids"
        )
    if not isinstance(prompts, Iterable) or any(isinstance(each, Integral) for each in prompts):
        raise ValueError("prompts is a list of token ids; give a list of such lists")


def check_lifted(automaton: object, example: int | None = None) -> None:
    """Raise ConstraintError where a constraint is not over tokens."""
    if isinstance(automaton, TokenAutomaton):
        return
    advice = "lift it with gcd.lift(automaton, lm.vocabulary)"
    if not isinstance(automaton, Automaton):
        advice = "make one with gcd.lift(gcd.regex(...), lm.vocabulary), say"
    raise ConstraintError(
        f"the constraint{of_example(example)} is {type(automaton).__name__}, not over tokens; "
        f"{advice}"
    )


def check_example(
    lm: LanguageModel,
    prompt: Sequence[int],
    automaton: TokenAutomaton,
    budget: int,
    example: int | None = None,
) -> None:
    """Refuse an example that cannot be sampled; `example` names it, None if there is one alone.

    Raises:
        InfeasibleBudgetError, OverlongBudgetError: see `gcd.tokens.budget.check_budget`.
        PromptTooLongError: prompt and budget together exceed the model's context.
        ConstraintError: the constraint was lifted to another vocabulary than the model's.
        ValueError: the prompt is empty, or has a token that the model does not know.
    """
    check_ids(prompt, lm.vocabulary.size, example)
    _check_vocabulary(lm.vocabulary, automaton.vocabulary, example)
    check_budget(automaton, budget, "" if example is None else f"example {example}")
    check_prompts(lm, [prompt], [budget], [example])


def _check_vocabulary(model: Vocabulary, constraint: Vocabulary, example: int | None) -> None:
    """Refuse a constraint to which token ids mean something else than to the model."""
    if model == constraint:
        return
    if model.size != constraint.size:
        what = f"the model predicts {model.size} tokens, the constraint knows {constraint.size}"
    elif tuple(model.eos_ids) != tuple(constraint.eos_ids):
        what = f"the model ends with ids {model.eos_ids}, the constraint with {constraint.eos_ids}"
    else:
        pairs = zip(model.token_bytes, constraint.token_bytes, strict=True)
        token = next(i for i, (a, b) in enumerate(pairs) if a != b)
        what = f"token {token} stands for different bytes in them"
    raise ConstraintError(
        f"the constraint{of_example(example)} was lifted to another vocabulary than the "
        f"model's: {what}; lift it with gcd.lift(automaton, lm.vocabulary)"
    )
