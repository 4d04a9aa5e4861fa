"""Hidden Markov model as a language model, for tests and exact references.

The distribution of the next token comes from the HMM's filter, in float64:

    p(v | x_<=t) = sum over h of  predicted_{t+1}(h) emission(v, h),     predicted_1 = initial

Prompts are ignored: the first token of an answer comes from the initial distribution. The model's
probability of a constraint is known exactly from the product of the HMM and the automaton
(`hmm._product`).

Cost of a step for R rows: one product with the transition matrix and one with the emission matrix,
with 2 R H (H + V) operations, independent of the length of the prefixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from gcd import Vocabulary
from hmm import HMM, filter_step
from smc._models.protocol import Prompt, token_ids

PROMPT = (0,)
"""Token ids of a text prompt; the model ignores them."""


class HMMLanguageModel:
    """A language model whose next-token distribution comes from an HMM; see `smc.LanguageModel`.

    Args:
        hmm: an HMM in any dtype. `self.hmm` is a copy in float64, normalized again.
        vocabulary: the vocabulary of the HMM's tokens.

    Raises:
        ValueError: the HMM and the vocabulary have different numbers of tokens, or the HMM's
            parameters are not distributions.
    """

    context: int | None = None

    def __init__(self, hmm: HMM, vocabulary: Vocabulary) -> None:
        if hmm.num_tokens != vocabulary.size:
            raise ValueError(
                f"expected an HMM over {vocabulary.size} tokens, as in the vocabulary, got one "
                f"over {hmm.num_tokens} tokens; pass the vocabulary of the language model from "
                "which the HMM was distilled"
            )
        # Distributions sum to one only within 1e-3 in half precision, and 1e-7 in single precision.
        self.hmm = hmm.normalized(torch.float64)
        self.hmm.check()
        self.vocabulary = vocabulary

    @property
    def device(self) -> torch.device:
        """The HMM's device."""
        return self.hmm.device

    def digest(self) -> str:
        """Return a hash of all parameters."""
        found = hashlib.sha256()
        for part in (self.hmm.initial, *self.hmm.transition.factors, self.hmm.emission):
            found.update(part.cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    def encode(self, prompt: Prompt) -> list[int]:
        """Return token ids unchanged. All texts get the same ids, because prompts are ignored."""
        return list(PROMPT) if isinstance(prompt, str) else token_ids(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[HMMRows, Float64[Tensor, "B V"]]:
        """Create one empty row per prompt, and compute log p(first token); prompts are ignored."""
        rows = HMMRows(self, len(prompts))
        return rows, rows.log_p(torch.arange(len(prompts), device=self.device))


class HMMRows:
    """Prefixes, represented by distributions of the hidden state; see `smc._models.protocol.Rows`.

    Tokens are stored only for `truncate`, which recomputes the distributions from the beginning.
    """

    def __init__(self, lm: HMMLanguageModel, count: int) -> None:
        self._hmm = lm.hmm
        self._predicted: Float64[Tensor, "R H"] = lm.hmm.initial.expand(count, -1).clone()
        self._tokens: list[tuple[int, ...]] = [()] * count

    def log_p(self, rows: Int64[Tensor, "n"]) -> Float64[Tensor, "n V"]:
        """Return log p(next token | prefix) of the given rows."""
        return torch.mm(self._predicted[rows], self._hmm.emission.T).log_()

    def extend(
        self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]
    ) -> Float64[Tensor, "R T V"]:
        """Append runs of tokens; see `smc._models.protocol.Rows`."""
        shape = (*runs.shape, self._hmm.num_tokens)
        log_p = torch.full(shape, torch.nan, dtype=torch.float64, device=self._hmm.device)
        for t in range(runs.shape[1]):
            on = (lengths > t).nonzero().squeeze(1)
            self._append(on, runs[on, t].long())
            log_p[on, t] = self.log_p(on)
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows `ancestors`."""
        self._predicted = self._predicted[ancestors.long()]
        self._tokens = [self._tokens[a] for a in ancestors.tolist()]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten each row to its first tokens, and recompute the hidden state's distribution."""
        kept = [row[:n] for row, n in zip(self._tokens, lengths.tolist(), strict=True)]
        self._predicted = self._hmm.initial.expand(len(kept), -1).clone()
        self._tokens = [()] * len(kept)
        for t in range(max(map(len, kept), default=0)):
            on = [r for r, row in enumerate(kept) if len(row) > t]
            tokens = torch.tensor([kept[r][t] for r in on], device=self._hmm.device)
            self._append(torch.tensor(on, device=self._hmm.device), tokens)

    def _append(self, rows: Int64[Tensor, "n"], tokens: Int64[Tensor, "n"]) -> None:
        """Append a token to each of the given rows.

        After an impossible token, the distribution of the hidden state is zero.
        """
        step = filter_step(self._hmm, self._predicted[rows], tokens)
        self._predicted[rows] = self._hmm.transition.forward(step.filtered)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._tokens[row] = (*self._tokens[row], token)
