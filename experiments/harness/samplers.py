"""The HMM alone (`HMMAlone`), which samples from the HMM in place of the language model.

Its target is

    p_hmm( x | x in C, |x| <= budget ).

This is P-GCD with the HMM as the language model, which is exact token by token, so all particles
have the same weight. Its score shows how well the HMM predicts answers without the request; the
difference from P-GCD is due to the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import smc
from gcd import TokenAutomaton, Vocabulary
from hmm import HMM
from hmm._product import MAX_BYTES
from smc import HMMLanguageModel, LanguageModel

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
