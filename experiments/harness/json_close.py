"""An answer that ran out of tokens is closed as JSON, without regard to its schema.

That is what an engine can do that guarantees JSON within a budget and knows no schemas (TruncProof,
arXiv 2605.13076): locally constrained decoding goes on until what is left is just enough to close
every bracket and string, and then closes them in the fewest tokens. The answer parses; whether it
has what the schema asks for is another question. Here it is the last resort of LCD: answers that it
finishes by itself keep their weights, and only where no particle finished one are all of them
closed. They have no weights then, and no evidence.

Any JSON value is a regular language down to a depth. Texts that are nested deeper, or are not
JSON, stay as they are: unfinished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import gcd
import smc

DEPTH = 6
"""Nesting up to which JSON is known: calls in a list, with arguments that are nested four deep."""


@lru_cache(maxsize=2)
def _json(vocabulary: gcd.Vocabulary) -> gcd.TokenAutomaton:
    """Every JSON text over these tokens, spelled as `json.dumps` does."""
    return gcd.lift(gcd.json_schema(True, whitespace="spaced", max_depth=DEPTH), vocabulary)


def closed(ids: Sequence[int], json: gcd.TokenAutomaton, budget: int) -> list[int] | None:
    """Cut a text where the rest of the budget is just enough to close it as JSON, and close it.

    Args:
        ids: the tokens of a text that was not finished.
        json: the texts that count as closed.
        budget: the most tokens in all, EOS included.

    Returns:
        The tokens, EOS included; None where the text is no beginning of JSON.
    """
    states = [json.initial]
    for token in ids:
        states.append(json.step(states[-1], token))
        if states[-1] < 0:
            return None
    fits = [t for t, state in enumerate(states) if t + json.steps_to_accept[state] <= budget]
    if not fits:
        return None
    kept, state = list(ids[: fits[-1]]), states[fits[-1]]
    while state != json.final:
        steps = json.steps_to_accept[state]
        token = next(
            t for t in range(json.vocabulary.size)
            if (after := json.step(state, t)) >= 0 and json.steps_to_accept[after] < steps
        )  # fmt: skip
        kept.append(token)
        state = json.step(state, token)
    return kept


def _closed(posterior: smc.Posterior, json: gcd.TokenAutomaton, budget: int) -> smc.Posterior:
    """Close the texts of a posterior without answers, each as probable as often as it occurs."""
    if not posterior.dead:
        return posterior
    texts = Counter[bytes]()
    for sample in posterior.particles:
        ids = closed(sample.ids, json, budget)
        if ids is not None:
            texts[json.vocabulary.decode(ids)] += 1
    if not texts:
        return posterior
    ranked = sorted(texts.items(), key=lambda item: (-item[1], item[0]))
    return replace(
        posterior,
        answers=tuple(text for text, _ in ranked),
        probabilities=tuple(count / texts.total() for _, count in ranked),
        log_evidence=None,
        exact=False,
        complete=True,
    )


def sample(
    lm: smc.LanguageModel,
    prompts: Sequence[Any],
    automata: Sequence[gcd.TokenAutomaton],
    *,
    budget: Sequence[int],
    finished: Callable[[Mapping[int, smc.Posterior]], object] | None = None,
    **options: Any,
) -> list[smc.Posterior]:
    """Sample as `smc.sample` does, and close as JSON what no particle has finished."""
    json = _json(lm.vocabulary)
    if finished is not None:
        options["finished"] = lambda found: finished(
            {place: _closed(posterior, json, budget[place]) for place, posterior in found.items()}
        )
    found = smc.sample(lm, prompts, automata, budget=budget, **options)
    # With `finished` nothing is returned.
    return [_closed(each, json, n) for each, n in zip(found, budget, strict=False)]
