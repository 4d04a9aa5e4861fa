"""Samplers of methods that `smc.sample` doesn't cover: the HMM alone, and closing answers as JSON.

**The HMM alone** (`HMMAlone`) samples from the HMM in place of the language model:

    p_hmm( x | x in C, |x| <= budget ).

This is P-GCD with the HMM as the language model, which is exact token by token, so all particles
have the same weight. Its score shows how well the HMM predicts answers without the request; the
difference from P-GCD is due to the language model.

**Closing as JSON** (`sample_closing_json`) completes an unfinished answer as JSON without regard to
its schema, like an engine that guarantees JSON within a budget (TruncProof, arXiv 2605.13076).
Locally constrained decoding continues until the remaining budget is just enough to close all
brackets and strings. Then they are closed in the fewest tokens. The answer parses, but may violate
the schema. Answers that LCD finishes keep their weights. Only if no particle finished are all of
them closed, without weights and evidence. The discrete filter returns only finished answers, so
its last prefixes are observed and closed with their weights.

JSON values up to a nesting depth form a regular language. Texts that are nested deeper or aren't
JSON stay unfinished.
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
from gcd import TokenAutomaton, Vocabulary
from hmm import HMM
from hmm._product import MAX_BYTES
from smc import HMMLanguageModel, LanguageModel
from smc._inference.observation import Observation, Observe, Watch

_PROMPT = (0,)
"""A prompt for a model that ignores prompts."""


class HMMAlone(smc.PGCD):
    """P-GCD whose language model is its own HMM.

    Args:
        hmm: an HMM over the vocabulary of the language model that it replaces.
        max_bytes: see `smc.PGCD`.
    """

    FIXED: ClassVar[Mapping[str, Any]] = {
        "lookahead": "conditional",
        "exact_top_k": None,
        "defense": 0.0,
    }
    """Settings `hmm.*` with which sampling is exact."""

    def __init__(self, hmm: HMM, *, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(hmm, **self.FIXED, max_bytes=max_bytes)
        self._model: HMMLanguageModel | None = None

    def model(self, vocabulary: Vocabulary) -> HMMLanguageModel:
        """Return the HMM as a language model, which is made once."""
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
        """Sample from the HMM; arguments as for `smc.sample`.

        Returns:
            Posteriors marked as inexact and without evidence, as both would refer to the HMM. The
            language model wasn't called, so `lm_calls` and `tokens` are zero.
        """
        unread = [_PROMPT] * len(prompts)
        model = proposal.model(lm.vocabulary)
        if finished is not None:
            options["finished"] = lambda found: finished(
                {index: _unread(posterior) for index, posterior in found.items()}
            )
        found = smc.sample(model, unread, automata, proposal=proposal, **options)
        return [_unread(posterior) for posterior in found]


def _unread(posterior: smc.Posterior) -> smc.Posterior:
    """Remove the values of a posterior that refer to the HMM."""
    return replace(
        posterior,
        log_evidence=None,
        exact=False,
        diagnostics=replace(posterior.diagnostics, lm_calls=0, tokens=0),
        bounds=None,
        budget=None,
    )


DEPTH = 6
"""Largest nesting depth of JSON: calls in a list, with arguments nested four deep."""


@lru_cache(maxsize=2)
def _json(vocabulary: gcd.Vocabulary) -> gcd.TokenAutomaton:
    """Return the automaton of all JSON texts, formatted as by `json.dumps`."""
    return gcd.lift(gcd.json_schema(True, whitespace="spaced", max_depth=DEPTH), vocabulary)


def close_as_json(ids: Sequence[int], json: gcd.TokenAutomaton, budget: int) -> list[int] | None:
    """Truncate a text so that the remaining budget is just enough to close it as JSON; close it.

    Args:
        ids: tokens of an unfinished text.
        json: automaton of the texts that count as closed.
        budget: maximum number of tokens, EOS included.

    Returns:
        The tokens, EOS included; None if the text isn't a prefix of JSON.
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
    """Observer that stores the sequences of each example's last step.

    Args:
        also: another observer to call.

    Attributes:
        found: by example id, tokens and log weight of each sequence.
    """

    def __init__(self, also: Observe | None) -> None:
        self.found: dict[int, list[tuple[list[int], float]]] = {}
        self._also = also

    def observe(self, names: Sequence[int]) -> Watch:
        """Start to observe a batch of examples, given by name; see `smc._inference.observation`."""
        other = None if self._also is None else self._also(names)

        def watch(seen: Observation) -> None:
            step = defaultdict(list)
            columns = (seen.example, seen.row, seen.tokens, seen.length, seen.log_weight)
            for index, row, tokens, length, weight in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                if row >= 0:
                    step[names[index]].append((tokens[:length], weight))
            self.found.update(step)
            if other is not None:
                other(seen)

        return watch


def _close_texts(
    posterior: smc.Posterior,
    json: gcd.TokenAutomaton,
    budget: int,
    prefixes: Sequence[tuple[Sequence[int], float]] | None,
) -> smc.Posterior:
    """Close the texts of a posterior without answers.

    Args:
        posterior: the sampled posterior.
        json: automaton of the texts that count as closed.
        budget: maximum number of tokens.
        prefixes: tokens and log weights of the texts; None for the particles with equal weights.
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
    """Sample with `smc.sample`, and close unfinished answers as JSON."""
    json, last = _json(lm.vocabulary), _LastPrefixes(observe)
    names = options.get("example_ids") or range(len(prompts))
    pooled = options.get("algorithm") == "discrete"

    def close(index: int, posterior: smc.Posterior) -> smc.Posterior:
        prefixes = last.found.get(names[index], []) if pooled else None
        return _close_texts(posterior, json, budget[index], prefixes)

    if finished is not None:
        options["finished"] = lambda found: finished(
            {index: close(index, posterior) for index, posterior in found.items()}
        )
    options["observe"] = last.observe if pooled else observe
    found = smc.sample(lm, prompts, automata, budget=budget, **options)
    # `smc.sample` returns an empty list if `finished` is given.
    return [close(index, posterior) for index, posterior in enumerate(found)]
