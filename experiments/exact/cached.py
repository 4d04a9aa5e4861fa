"""Language model that computes its distribution after each prefix of one prompt once.

**Only tokens that the constraint allows in some state matter.** Of the rest of the vocabulary,
methods need only the total probability. The constraint, the model and an HMM are therefore
*restricted* to the allowed tokens and one token for all others. Every proposal stays the same, and
tens or hundreds of columns replace 128,000. `smc.sample` on the restricted model then makes
hundreds of runs of a method in the time of a few tensor operations.

**Computation.** Prefixes are nodes of a tree. The longest prefixes to compute are sorted and
divided into batches. A batch starts with one copy of the prompt's cache, computes the common prefix
once, and then the rest of each row as one run, which gives the distributions at all prefixes along
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from gcd import TokenAutomaton, Vocabulary
from hmm import HMM
from smc import LanguageModel, TransformersLM


@dataclass(frozen=True)
class Restriction:
    """A constraint over the tokens that it allows in some state, and one token for all others.

    Attributes:
        ids: the allowed tokens in the whole vocabulary, ascending.
        automaton: the constraint over them; `len(ids)` is the token for all others.
    """

    ids: Int64[np.ndarray, "tokens"]
    automaton: TokenAutomaton

    @classmethod
    def of(cls, constraint: TokenAutomaton) -> Restriction:
        """Leave out the tokens that the constraint never allows, and add one token for them."""
        whole = constraint.vocabulary
        ids = np.unique(np.concatenate([constraint.allowed(s) for s in range(constraint.final)]))
        others = np.setdiff1d(np.arange(whole.size), ids)
        assert len(others), "a vocabulary has tokens without bytes, which aren't allowed"
        ends = np.flatnonzero(np.isin(ids, whole.eos_ids))
        vocabulary = Vocabulary.from_bytes(
            [*(whole.token_bytes[i] for i in ids), b""], ends.tolist()
        )
        class_of = constraint.class_of[np.append(ids, others[0])]
        return cls(ids, replace(constraint, vocabulary=vocabulary, class_of=class_of))

    def hmm(self, hmm: HMM) -> HMM:
        """Restrict an HMM; all other tokens are merged."""
        allowed = torch.zeros(hmm.num_tokens, dtype=torch.bool)
        allowed[torch.from_numpy(self.ids)] = True
        emission = hmm.emission.to(hmm.dtype)
        rest = emission[~allowed].sum(dim=0, keepdim=True)
        return HMM(hmm.initial, hmm.transition, torch.cat([emission[allowed], rest]))


class CachedLM:
    """A language model after one prompt, over restricted tokens; see `smc.LanguageModel`.

    Its distributions have the temperature already, as the model's other tokens are one column.

    Args:
        lm: the language model.
        prompt: token ids. The prompts of `prefill` don't matter.
        restriction: the restricted tokens.
        temperature: temperature of p_lm.
        max_rows: maximum rows of a batch.
    """

    device = torch.device("cpu")
    context: int | None = None

    def __init__(
        self,
        lm: LanguageModel,
        prompt: Sequence[int],
        restriction: Restriction,
        *,
        temperature: float = 1.0,
        max_rows: int = 128,
    ) -> None:
        self.lm = lm
        self.prompt = lm.open(prompt) if isinstance(lm, TransformersLM) else tuple(prompt)
        self.ids = torch.from_numpy(restriction.ids)
        self.vocabulary = restriction.automaton.vocabulary
        self.temperature = temperature
        self.max_rows = max_rows
        self.num_nodes = 0
        nothing = torch.zeros(0, dtype=torch.int64)
        self._parent, self._token, self._depth = nothing, nothing, nothing
        self._child = torch.zeros(0, self.vocabulary.size, dtype=torch.int32)
        self._log_p = torch.zeros(0, self.vocabulary.size, dtype=torch.float64)
        self._append(torch.tensor([-1]), torch.tensor([-1]))

    def encode(self, prompt: object) -> list[int]:
        """Return a single token."""
        return [0]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[CachedRows, Tensor]:
        """Return the empty prefix for each prompt."""
        rows = CachedRows(self, torch.zeros(len(prompts), dtype=torch.int64))
        return rows, self.log_p(rows.nodes)

    def log_p(self, nodes: Int64[Tensor, "R"]) -> Float64[Tensor, "R V"]:
        """Return the distributions at the given nodes, after computing those not known yet."""
        found = self._log_p[nodes]
        if bool(found[:, 0].isnan().any()):
            self.compute(nodes)
            found = self._log_p[nodes]
        return found

    def step(self, nodes: Int64[Tensor, "R"], tokens: Int[Tensor, "R"]) -> Int64[Tensor, "R"]:
        """Return the children of nodes by tokens; missing ones are added."""
        tokens = tokens.long()
        missing = self._child[nodes, tokens] < 0
        if bool(missing.any()):
            width = self.vocabulary.size
            pairs = torch.unique(nodes[missing] * width + tokens[missing])
            self._append(pairs // width, pairs % width)
        return self._child[nodes, tokens].long()

    def _append(self, parent: Int64[Tensor, "n"], token: Int64[Tensor, "n"]) -> None:
        """Add nodes, whose distributions aren't known; memory doubles when it is full."""
        first, self.num_nodes = self.num_nodes, self.num_nodes + len(parent)
        for name, empty in (("_parent", -1), ("_token", -1), ("_depth", 0), ("_child", -1),
                            ("_log_p", torch.nan)):  # fmt: skip
            before = getattr(self, name)
            if self.num_nodes > len(before):
                size = max(self.num_nodes, 2 * len(before))
                after = before.new_full((size, *before.shape[1:]), empty)
                after[: len(before)] = before
                setattr(self, name, after)
        nodes = torch.arange(first, self.num_nodes)
        self._parent[nodes], self._token[nodes] = parent, token
        inner = parent >= 0
        self._depth[nodes[inner]] = self._depth[parent[inner]] + 1
        self._child[parent[inner], token[inner]] = nodes[inner].int()

    @torch.inference_mode()
    def compute(
        self, nodes: Int64[Tensor, "n"], progress: Callable[[int], object] | None = None
    ) -> None:
        """Compute the distributions at the given nodes, unless they are known.

        Raises:
            FloatingPointError: the model returned NaN.
        """
        wanted = torch.zeros(self.num_nodes, dtype=torch.bool)
        wanted[nodes] = self._log_p[nodes, 0].isnan()
        # A prefix with a wanted child is computed on the way to the child.
        ends = wanted.clone()
        above = self._parent[: self.num_nodes][wanted]
        ends[above[above >= 0]] = False
        paths = self._paths(ends.nonzero().squeeze(1))
        tokens = torch.where(paths[:, 1:] < 0, -1, self._token[paths[:, 1:]])
        if tokens.shape[1]:
            paths = paths[np.lexsort(tokens.numpy().T[::-1])]
        for some in paths.split(self.max_rows):
            before = int(wanted.sum())
            self._batch(wanted, some)
            if progress is not None:
                progress(before - int(wanted.sum()))

    def _paths(self, nodes: Int64[Tensor, "R"]) -> Int64[Tensor, "R T1"]:
        """Return the nodes from the root to each node, by depth, padded with -1."""
        deepest = int(self._depth[nodes].max()) if len(nodes) else 0
        paths = torch.full((len(nodes), 1 + deepest), -1)
        here, rows = nodes, torch.arange(len(nodes))
        while len(rows):
            paths[rows, self._depth[here]] = here
            above = self._parent[here]
            here, rows = above[above >= 0], rows[above >= 0]
        return paths

    def _batch(self, wanted: Tensor, paths: Int64[Tensor, "R T1"]) -> None:
        """Run the model along the paths, and store the wanted distributions."""
        lengths = (paths >= 0).sum(dim=1) - 1
        longest = int(lengths.max())
        tokens = self._token[paths[:, 1 : longest + 1]]
        rows, log_p = self.lm.prefill([self.prompt])
        self._store(wanted, paths[:1, 0], log_p)
        common = 0
        while common < int(lengths.min()) and bool((tokens[:, common] == tokens[0, common]).all()):
            common += 1
        runs = self.ids[tokens.clamp(min=0)].to(self.lm.device)
        if common:
            log_p = rows.extend(runs[:1, :common], lengths.new_tensor([common]).to(runs.device))
            self._store(wanted, paths[0, 1 : common + 1], log_p[0])
        ahead = (lengths > common).nonzero().squeeze(1)
        if not len(ahead):
            return
        rows.reorder(torch.zeros(len(ahead), dtype=torch.int64, device=self.lm.device))
        log_p = rows.extend(runs[ahead, common:longest], (lengths[ahead] - common).to(runs.device))
        for t in range(common, longest):
            there = (lengths[ahead] > t).nonzero().squeeze(1)
            self._store(wanted, paths[ahead[there], t + 1], log_p[there, t - common])

    def _store(self, wanted: Tensor, nodes: Int64[Tensor, "R"], log_p: Tensor) -> None:
        """Store the wanted distributions, of the first row of each node."""
        nodes, row = map(torch.from_numpy, np.unique(nodes.numpy(), return_index=True))
        row, nodes = row[wanted[nodes]], nodes[wanted[nodes]]
        if not len(nodes):
            return
        log_p = log_p[row.to(log_p.device)].double()
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        if bool(log_p.isnan().any()):
            raise FloatingPointError(
                "expected log-probabilities from the language model, got NaN; try "
                "model.dtype=float32 or bfloat16, or other weights"
            )
        small = log_p[:, self.ids.to(log_p.device)].cpu()
        rest = torch.log1p(-small.logsumexp(dim=1, keepdim=True).exp().clamp(max=1))
        self._log_p[nodes] = torch.cat([small, rest], dim=1)
        wanted[nodes] = False

    def values(self, nodes: Int64[Tensor, "n"]) -> np.ndarray:
        """Return the known distributions at the given nodes, for a file."""
        return self._log_p[nodes].numpy()

    def load(self, nodes: Int64[Tensor, "n"], values: np.ndarray) -> bool:
        """Use the values of a file; return False if they belong to another tree."""
        if values.shape != (len(nodes), self.vocabulary.size):
            return False
        self._log_p[nodes] = torch.from_numpy(values)
        return True


class CachedRows:
    """Prefixes as nodes of a cached model; see `smc.Rows`."""

    def __init__(self, lm: CachedLM, nodes: Int64[Tensor, "R"]) -> None:
        self._lm = lm
        self.nodes = nodes

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Tensor:
        """Append a token to each row."""
        assert runs.shape[1] == 1, "the sampler extends by one token at a time"
        self.nodes = self._lm.step(self.nodes, runs[:, 0])
        return self._lm.log_p(self.nodes).unsqueeze(1)

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows with the given indices."""
        self.nodes = self.nodes[ancestors]

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Refuse, as rows are never truncated without reading ahead."""
        raise NotImplementedError("rows of a cached model can't be truncated")
