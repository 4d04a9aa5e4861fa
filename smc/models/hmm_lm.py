"""This module lets a hidden Markov model be the language model that is sampled from.

Its next token is distributed as the filter says,

    p(v | x_<=t) = sum over h of  predicted_{t+1}(h) emission(v, h),     predicted_1 = initial,

in float64 throughout. It knows no prompts: whatever is given as one is ignored, and the first
token of an answer comes from the initial distribution. What such a model gives a constraint is
known exactly: its product with the automaton (`hmm.product`) says it.

Cost of a step on R rows: one product with the transitions and one with the emissions, R H (H + V)
operations twice, whatever the length of the prefixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from gcd.tokens.vocabulary import Vocabulary
from hmm.inference import filter_step
from hmm.model import HMM
from smc.models.protocol import Prompt, token_ids

PROMPT = (0,)
"""A prompt to give to a model that ignores it."""


class HMMLanguageModel:
    """A language model whose every next token is an HMM's; see `smc.LanguageModel`.

    Args:
        hmm: in any type; `self.hmm` is the same in float64, normalised again.
        vocabulary: the tokens that it emits.

    Raises:
        ValueError: the two have different numbers of tokens, or parameters are no distributions.
    """

    context: int | None = None

    def __init__(self, hmm: HMM, vocabulary: Vocabulary) -> None:
        if hmm.num_tokens != vocabulary.size:
            raise ValueError(
                f"the HMM is over {hmm.num_tokens} tokens, the vocabulary has {vocabulary.size}; "
                "give the vocabulary of the language model that the HMM was distilled from"
            )
        # In half or single precision distributions sum to one within 1e-3 or 1e-7 only.
        self.hmm = hmm.normalised(torch.float64)
        self.hmm.check()
        self.vocabulary = vocabulary

    @property
    def device(self) -> torch.device:
        return self.hmm.device

    def digest(self) -> str:
        """Compute a digest of all parameters, which tells the model from others."""
        found = hashlib.sha256()
        for part in (self.hmm.initial, *self.hmm.transition.factors, self.hmm.emission):
            found.update(part.cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    def encode(self, prompt: Prompt) -> list[int]:
        """Return token ids as they are, and `PROMPT` for any text: it is ignored either way."""
        return list(PROMPT) if isinstance(prompt, str) else token_ids(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[HMMRows, Float64[Tensor, "B V"]]:
        """Make one empty row for each prompt, and log p(first token); prompts are ignored."""
        rows = HMMRows(self, len(prompts))
        return rows, rows.log_p(torch.arange(len(prompts), device=self.device))


class HMMRows:
    """Prefixes as what the filter makes of them; see `smc.models.protocol.Rows`.

    Tokens are kept for `truncate` alone, which filters anew from the beginning.
    """

    def __init__(self, lm: HMMLanguageModel, count: int) -> None:
        self._hmm = lm.hmm
        self._predicted: Float64[Tensor, "R H"] = lm.hmm.initial.expand(count, -1).clone()
        self._tokens: list[tuple[int, ...]] = [()] * count

    def log_p(self, rows: Int64[Tensor, "n"]) -> Float64[Tensor, "n V"]:
        """Compute log p(next token | row) of these rows."""
        return torch.mm(self._predicted[rows], self._hmm.emission.T).log_()

    def extend(
        self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]
    ) -> Float64[Tensor, "R T V"]:
        """Append runs of tokens; see `smc.models.protocol.Rows`."""
        shape = (*runs.shape, self._hmm.num_tokens)
        log_p = torch.full(shape, torch.nan, dtype=torch.float64, device=self._hmm.device)
        for t in range(runs.shape[1]):
            on = (lengths > t).nonzero().squeeze(1)
            self._read(on, runs[on, t].long())
            log_p[on, t] = self.log_p(on)
        return log_p

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Make the rows copies of these."""
        self._predicted = self._predicted[ancestors.long()]
        self._tokens = [self._tokens[a] for a in ancestors.tolist()]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Keep the first tokens of each row, and filter these again."""
        kept = [row[:n] for row, n in zip(self._tokens, lengths.tolist(), strict=True)]
        self._predicted = self._hmm.initial.expand(len(kept), -1).clone()
        self._tokens = [()] * len(kept)
        for t in range(max(map(len, kept), default=0)):
            on = [r for r, row in enumerate(kept) if len(row) > t]
            tokens = torch.tensor([kept[r][t] for r in on], device=self._hmm.device)
            self._read(torch.tensor(on, device=self._hmm.device), tokens)

    def _read(self, rows: Int64[Tensor, "n"], tokens: Int64[Tensor, "n"]) -> None:
        """Append one token to each of these rows; nothing can follow an impossible one."""
        step = filter_step(self._hmm, self._predicted[rows], tokens)
        self._predicted[rows] = self._hmm.transition.forward(step.filtered)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._tokens[row] = (*self._tokens[row], token)
