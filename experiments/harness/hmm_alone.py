"""How good is the HMM alone? It writes answers in the language model's place.

The language model is not asked: neither the prompt nor any token is read. Answers are drawn from

    p_hmm( x | x in C, |x| <= budget ),

by P-GCD with the HMM as its own model, which is exact token by token: every particle has the same
weight. What this scores, an HMM knows of answers without having seen the request; what P-GCD gains
over it is the language model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import smc
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from hmm.model import HMM
from hmm.product import MAX_BYTES
from smc.models.hmm_lm import PROMPT, HMMLanguageModel
from smc.models.protocol import LanguageModel


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
        budget=None,
    )
