"""Hidden Markov model as a language model, for tests and exact references.

The distribution of its next token is that of the HMM's filter,

    p(v | x_<=t) = sum over h of  predicted_{t+1}(h) emission(v, h),     predicted_1 = initial,

in float64 throughout. Prompts are ignored: the first token of an answer comes from the initial
distribution. The model's probability of a constraint is known exactly from its product with the
automaton (`hmm._product`).

Cost of a step for R rows: one product with the transition matrix and one with the emission matrix,
R H (H + V) operations twice, independent of the length of the prefixes.
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
"""A prompt for a model that ignores prompts."""


class HMMLanguageModel:
    """A language model whose next-token distribution is an HMM's; see `smc.LanguageModel`.

    Args:
        hmm: an HMM in any dtype; `self.hmm` is a renormalized float64 copy.
        vocabulary: the vocabulary that it emits.

    Raises:
        ValueError: the HMM and the vocabulary differ in the number of tokens, or parameters are not
            distributions.
    """

    context: int | None = None

    def __init__(self, hmm: HMM, vocabulary: Vocabulary) -> None:
        if hmm.num_tokens != vocabulary.size:
            raise ValueError(
                f"expected an HMM over the vocabulary's {vocabulary.size} tokens, got one over "
                f"{hmm.num_tokens}; use the vocabulary of the language model that the HMM was "
                "distilled from"
            )
        # In half or single precision, distributions sum to one only within 1e-3 or 1e-7.
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
        """Return token ids as they are, and `PROMPT` for any text; both are ignored."""
        return list(PROMPT) if isinstance(prompt, str) else token_ids(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[HMMRows, Float64[Tensor, "B V"]]:
        """Create one empty row per prompt, and compute log p(first token); prompts are ignored."""
        rows = HMMRows(self, len(prompts))
        return rows, rows.log_p(torch.arange(len(prompts), device=self.device))


class HMMRows:
    """Prefixes represented by their filters; see `smc._models.protocol.Rows`.

    Tokens are kept for `truncate` only, which recomputes the filter from the beginning.
    """

    def __init__(self, lm: HMMLanguageModel, count: int) -> None:
        self._hmm = lm.hmm
        self._predicted: Float64[Tensor, "R H"] = lm.hmm.initial.expand(count, -1).clone()
        self._tokens: list[tuple[int, ...]] = [()] * count

    def log_p(self, rows: Int64[Tensor, "n"]) -> Float64[Tensor, "n V"]:
        """Return log p(next token | row) of these rows."""
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
        """Replace the rows by copies of these rows."""
        self._predicted = self._predicted[ancestors.long()]
        self._tokens = [self._tokens[a] for a in ancestors.tolist()]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Keep the first tokens of each row, and recompute the filter."""
        kept = [row[:n] for row, n in zip(self._tokens, lengths.tolist(), strict=True)]
        self._predicted = self._hmm.initial.expand(len(kept), -1).clone()
        self._tokens = [()] * len(kept)
        for t in range(max(map(len, kept), default=0)):
            on = [r for r, row in enumerate(kept) if len(row) > t]
            tokens = torch.tensor([kept[r][t] for r in on], device=self._hmm.device)
            self._append(torch.tensor(on, device=self._hmm.device), tokens)

    def _append(self, rows: Int64[Tensor, "n"], tokens: Int64[Tensor, "n"]) -> None:
        """Append one token to each of these rows; after an impossible token the filter is zero."""
        step = filter_step(self._hmm, self._predicted[rows], tokens)
        self._predicted[rows] = self._hmm.transition.forward(step.filtered)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._tokens[row] = (*self._tokens[row], token)
