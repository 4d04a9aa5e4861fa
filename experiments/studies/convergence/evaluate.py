"""Language model distributions at every prefix of a tree, each computed once.

The longest prefixes are sorted lexicographically and computed in batches. A batch starts with one
copy of the prompt's cache, computes the common prefix once, and then the rest of each row as one
run, which gives the log-probabilities at all prefixes along it. A batch therefore costs two forward
passes and one copy of the prompt's cache, whatever the length of its runs.

Of the V log-probabilities, only those of the slots are stored, and the total of all other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from experiments.studies.convergence.tree import Tree
from smc import LanguageModel, Rows


class Evaluator:
    """Fills a tree with the log-probabilities of a language model after one prompt.

    Args:
        lm: the language model.
        prompt: token ids.
        ids: the restricted tokens in the model's vocabulary.
        temperature: temperature of p_lm.
        max_rows: maximum rows of a batch.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompt: Sequence[int],
        ids: Int64[np.ndarray, "tokens"],
        *,
        temperature: float = 1.0,
        max_rows: int = 128,
    ) -> None:
        self.lm = lm
        self.prompt = tuple(prompt)
        self.ids = torch.from_numpy(ids)
        self.temperature = temperature
        self.max_rows = max_rows

    @torch.inference_mode()
    def __call__(
        self, tree: Tree, nodes: Int64[Tensor, "n"], progress: Callable[[int], object] | None = None
    ) -> None:
        """Compute the next distributions at the given unfinished nodes, unless they are known.

        Raises:
            FloatingPointError: the model returned NaN.
        """
        wanted = torch.zeros(tree.num_nodes, dtype=torch.bool)
        wanted[nodes] = True
        wanted &= ~tree.known & (tree["text"] < 0)
        if not bool(wanted.any()):
            return
        # A prefix with a wanted child is computed on the way to the child.
        inner = torch.zeros_like(wanted)
        inner[tree["parent"][wanted].clamp(min=0)] = True
        ends = (wanted & ~inner).nonzero().squeeze(1)
        paths = tree.paths(ends)
        if paths.shape[1] > 1:
            paths = paths[np.lexsort(tree.tokens(paths).numpy().T[::-1])]
        for some in paths.split(self.max_rows):
            before = int(tree.known.sum())
            self._batch(tree, wanted, some)
            if progress is not None:
                progress(int(tree.known.sum()) - before)

    def _batch(self, tree: Tree, wanted: Tensor, nodes: Int64[Tensor, "R T1"]) -> None:
        """Run the model along the given paths from the root, and store the wanted distributions."""
        lengths = (nodes >= 0).sum(dim=1) - 1
        longest = int(lengths.max())
        tokens = tree.tokens(nodes[:, : longest + 1])
        rows, log_p = self.lm.prefill([self.prompt])
        self._keep(tree, wanted, nodes[:1, 0], log_p)
        common = 0
        while common < int(lengths.min()) and bool((tokens[:, common] == tokens[0, common]).all()):
            common += 1
        full = self.ids[tokens.clamp(min=0)].to(self.lm.device)
        if common:
            log_p = self._extend(rows, full[:1, :common], torch.tensor([common]))
            self._keep(tree, wanted, nodes[0, 1 : common + 1], log_p[0])
        ahead = (lengths > common).nonzero().squeeze(1)
        if not len(ahead):
            return
        rows.reorder(torch.zeros(len(ahead), dtype=torch.int64, device=self.lm.device))
        log_p = self._extend(rows, full[ahead, common:longest], lengths[ahead] - common)
        for t in range(common + 1, longest + 1):
            there = (lengths[ahead] >= t).nonzero().squeeze(1)
            self._keep(tree, wanted, nodes[ahead[there], t], log_p[there, t - common - 1])

    def _extend(self, rows: Rows, runs: Tensor, lengths: Tensor) -> Tensor:
        return rows.extend(runs, lengths.to(runs.device))

    def _keep(self, tree: Tree, wanted: Tensor, nodes: Int64[Tensor, "R"], log_p: Tensor) -> None:
        """Store batch rows of log-probabilities over the whole vocabulary.

        If a node occurs several times, its first row is stored.
        """
        nodes, row = map(torch.from_numpy, np.unique(nodes.numpy(), return_index=True))
        due = wanted[nodes] & ~tree.known[nodes]
        nodes, row = nodes[due], row[due]
        if not len(nodes):
            return
        log_p = log_p[row.to(log_p.device)].double()
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        refuse_nan(log_p)
        small = log_p[:, self.ids.to(log_p.device)].cpu()
        slots = tree.rows(nodes)
        inside = slots >= 0
        values = small.gather(1, tree["token"][slots.clamp(min=0)])
        tree["log_p"][slots[inside]] = values[inside]
        total = values.masked_fill(~inside, -torch.inf).logsumexp(dim=1).exp().clamp(max=1)
        tree["log_other"][nodes] = torch.log1p(-total)


def refuse_nan(log_p: Tensor) -> None:
    """Raise `FloatingPointError` if a log-probability is NaN."""
    if bool(log_p.isnan().any()):
        raise FloatingPointError(
            "expected log-probabilities from the language model, got NaN; try model.dtype=float32 "
            "or bfloat16, or other weights"
        )


def save_values(tree: Tree, path: Path) -> None:
    """Write the model's log-probabilities at all prefixes within the budget to a file, atomically.

    `load_values` reads the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part.npz")
    log_other = tree["log_other"][: tree.num_exact]
    np.savez_compressed(partial, log_p=_exact_log_p(tree).numpy(), log_other=log_other.numpy())
    partial.replace(path)


def load_values(tree: Tree, path: Path) -> bool:
    """Load the values of `save_values`; return False if they are missing or of another tree."""
    if not path.is_file():
        return False
    with np.load(path) as saved:
        log_p, log_other = (torch.from_numpy(saved[name]) for name in ("log_p", "log_other"))
    exact = _exact_log_p(tree)
    if log_p.shape != exact.shape or len(log_other) != tree.num_exact:
        return False
    exact[:] = log_p
    tree["log_other"][: tree.num_exact] = log_other
    return True


def _exact_log_p(tree: Tree) -> Float64[Tensor, "slots"]:
    """Return the part of `log_p` that belongs to the tree within the budget."""
    last = tree.num_exact - 1
    return tree["log_p"][: int(tree["start"][last] + tree["width"][last])]
