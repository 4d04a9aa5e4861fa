"""How good is the HMM alone? It writes answers in the language model's place.

The language model is not asked: neither the prompt nor any token is read. Answers are drawn from

    p_hmm( x | x in C, |x| <= budget ),

by P-GCD with the HMM as its own model, which is exact token by token: every particle has the same
weight. What this scores, an HMM knows of answers without having seen the request; what P-GCD gains
over it is the language model's.

An answer that ran out of tokens is closed as JSON, without regard to its schema.

That is what an engine can do that guarantees JSON within a budget and knows no schemas (TruncProof,
arXiv 2605.13076): locally constrained decoding goes on until what is left is just enough to close
every bracket and string, and then closes them in the fewest tokens. The answer parses; whether it
has what the schema asks for is another question. Here it is the last resort of LCD: answers that it
finishes by itself keep their weights, and only where no particle finished one are all of them
closed. They have no weights then, and no evidence. The discrete filter returns finished answers
alone, so what it kept last is watched, and closed with the weights that it had.

Any JSON value is a regular language down to a depth. Texts that are nested deeper, or are not
JSON, stay as they are: unfinished.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import gcd
import smc
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from hmm.model import HMM
from hmm.product import MAX_BYTES
from smc.models.hmm_lm import PROMPT, HMMLanguageModel
from smc.models.protocol import LanguageModel
from smc.observation import Observation, Observe, Watch


class HMMAlone(smc.PGCD):
    """P-GCD with the very model that it samples from.

    Args:
        hmm: over the vocabulary of the language model that it stands in for.
        max_bytes: as for `smc.PGCD`.
    """

    FIXED: ClassVar[Mapping[str, Any]] = {
        "lookahead": "conditional",
        "exact_top_k": None,
        "defence": 0.0,
        "potential": True,
    }
    """The settings `hmm.*` that make it exact."""

    def __init__(self, hmm: HMM, *, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(hmm, **self.FIXED, max_bytes=max_bytes)
        self._model: HMMLanguageModel | None = None

    def model(self, vocabulary: Vocabulary) -> HMMLanguageModel:
        """Give the HMM as a language model; it is made once, as it is a copy."""
        if self._model is None:
            self._model = HMMLanguageModel(self.hmm, vocabulary)
        return self._model

    @staticmethod
    def sample(
        lm: LanguageModel,
        prompts: Sequence[Any],
        automata: TokenAutomaton | Sequence[TokenAutomaton],
        *,
        proposal: HMMAlone,
        finished: Callable[[Mapping[int, smc.Posterior]], object] | None = None,
        **options: Any,
    ) -> list[smc.Posterior]:
        """Sample as `smc.sample` does, from the HMM.

        Returns:
            Posteriors that are marked inexact, without evidence: both would be the HMM's. Nothing
            was read by the language model, so `lm_calls` and `tokens` are zero.
        """
        unread = [PROMPT] * len(prompts)
        model = proposal.model(lm.vocabulary)
        if finished is not None:
            options["finished"] = lambda found: finished(
                {place: _unread(posterior) for place, posterior in found.items()}
            )
        found = smc.sample(model, unread, automata, proposal=proposal, **options)
        return [_unread(posterior) for posterior in found]


def _unread(posterior: smc.Posterior) -> smc.Posterior:
    """A posterior of the HMM as one of a language model that was not asked."""
    return replace(
        posterior,
        log_evidence=None,
        exact=False,
        diagnostics=replace(posterior.diagnostics, lm_calls=0, tokens=0),
        bounds=None,
    )


DEPTH = 6
"""Nesting up to which JSON is known: calls in a list, with arguments that are nested four deep."""


@lru_cache(maxsize=2)
def _json(vocabulary: gcd.Vocabulary) -> gcd.TokenAutomaton:
    """Every JSON text over these tokens, spelled as `json.dumps` does."""
    return gcd.lift(gcd.json_schema(True, whitespace="spaced", max_depth=DEPTH), vocabulary)


def close_as_json(ids: Sequence[int], json: gcd.TokenAutomaton, budget: int) -> list[int] | None:
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


class _LastPrefixes:
    """What sequences ran in the last step of each example, by the identity of the example.

    Args:
        also: another observer, who is shown the same.

    Attributes:
        found: the tokens and the log weight of each.
    """

    def __init__(self, also: Observe | None) -> None:
        self.found: dict[int, list[tuple[list[int], float]]] = {}
        self._also = also

    def observe(self, names: Sequence[int]) -> Watch:
        """Watch a batch of these examples; see `smc.observation`."""
        other = None if self._also is None else self._also(names)

        def watch(seen: Observation) -> None:
            step = defaultdict(list)
            columns = (seen.example, seen.row, seen.tokens, seen.length, seen.log_weight)
            for place, row, tokens, length, weight in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                if row >= 0:
                    step[names[place]].append((tokens[:length], weight))
            self.found.update(step)
            if other is not None:
                other(seen)

        return watch


def _closed(
    posterior: smc.Posterior,
    json: gcd.TokenAutomaton,
    budget: int,
    prefixes: Sequence[tuple[Sequence[int], float]] | None,
) -> smc.Posterior:
    """Close the texts of a posterior without answers.

    Args:
        posterior: what was sampled.
        json: the texts that count as closed.
        budget: the most tokens of a text.
        prefixes: tokens and log weights of the texts; None: those of the particles, alike.
    """
    if not posterior.dead:
        return posterior
    if prefixes is None:
        prefixes = [(sample.ids, 0.0) for sample in posterior.particles]
    top = max((weight for _, weight in prefixes), default=0.0)
    texts: dict[bytes, float] = defaultdict(float)
    for ids, weight in prefixes:
        whole = close_as_json(ids, json, budget)
        if whole is not None:
            texts[json.vocabulary.decode(whole)] += math.exp(weight - top)
    if not texts:
        return posterior
    ranked = sorted(texts.items(), key=lambda item: (-item[1], item[0]))
    total = math.fsum(texts.values())
    return replace(
        posterior,
        answers=tuple(text for text, _ in ranked),
        probabilities=tuple(share / total for _, share in ranked),
        log_evidence=None,
        exact=False,
        complete=True,
    )


def sample_closing_json(
    lm: smc.LanguageModel,
    prompts: Sequence[Any],
    automata: Sequence[gcd.TokenAutomaton],
    *,
    budget: Sequence[int],
    finished: Callable[[Mapping[int, smc.Posterior]], object] | None = None,
    observe: Observe | None = None,
    **options: Any,
) -> list[smc.Posterior]:
    """Sample as `smc.sample` does, and close as JSON what was not finished."""
    json, last = _json(lm.vocabulary), _LastPrefixes(observe)
    names = options.get("example_ids") or range(len(prompts))
    pooled = options.get("algorithm") == "discrete"

    def close(place: int, posterior: smc.Posterior) -> smc.Posterior:
        prefixes = last.found.get(names[place], []) if pooled else None
        return _closed(posterior, json, budget[place], prefixes)

    if finished is not None:
        options["finished"] = lambda found: finished(
            {place: close(place, posterior) for place, posterior in found.items()}
        )
    options["observe"] = last.observe if pooled else observe
    found = smc.sample(lm, prompts, automata, budget=budget, **options)
    # With `finished` nothing is returned.
    return [close(place, posterior) for place, posterior in enumerate(found)]
