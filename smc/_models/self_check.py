"""Self-check of a `transformers` model: log-probabilities must not depend on the batch.

The sampler computes many prefixes in one forward pass, with padding, `position_ids`, a cache, and
prompts that rows share. A model may silently ignore one of these. For example, decoders of BART's
family ignore `position_ids`, RoBERTa counts positions from the number of its padding token, and
BERT attends to later tokens unless its configuration sets `is_decoder`. The weights would then be
wrong without any visible error.

Therefore the first use of a model computes a few tokens in every way that the sampler does. The
log-probabilities are compared with the *truth*: one forward pass over each sequence alone, without
cache, padding, or positions. Cost: about ten forward passes over two to eight tokens, once for each
`TransformersLM` and each mode of its model.

Rounding also causes differences. To distinguish it from faults, differences are compared with the
*spread*, the mean change of log p between prefixes. All causal models of transformers were measured
(`scripts/check_causal_models.py`). Rounding is at most 25 machine epsilons of the spread (0.08 of
the spread for SmolLM2 in bfloat16). The smallest fault that was found is 0.3 of the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from smc._models.protocol import Rows
from smc._models.rows import TransformersRows, normalize
from smc._models.shared_prompts import SharedPrompts
from smc._models.sharing_rows import SharingRows
from smc._models.static_cache import NotStaticError, StaticTransformer
from smc._models.suitability import num_embeddings
from smc._models.transformers_internals import attention_name, list_layers

ROUNDING = 100
"""Allowed rounding error, in machine epsilons of the mean log-probability."""
MEASURED = 8
"""Allowed rounding error, in multiples of the difference between two passes over the same tokens.
"""
FAULT = 0.25
"""Smallest difference that counts as a fault in any precision, as a share of the spread."""

PROMPT_LENGTHS = (4, 2)
ORDER = (1, 0, 1)
RUN_LENGTHS = (3, 1, 2)
KEPT = (2, 1, 2)
"""Sizes of the test. Two prompts are copied to three rows in this order. Each row is extended by a
run of tokens, truncated, and extended by another token."""


class Mode(NamedTuple):
    """The settings of a model that affect the outcome of its self-check."""

    config: str
    dtype: torch.dtype
    device: torch.device
    autocast: torch.dtype | None

    @classmethod
    def of(cls, model: Any) -> Mode:
        """Return the current settings of a model that affect its self-check."""
        config = model.config.to_json_string(use_diff=False)
        return cls(config, model.dtype, model.device, _autocast(model))


def _autocast(model: Any) -> torch.dtype | None:
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


class Truth(NamedTuple):
    """Token sequences for the self-check, and the model's log-probabilities for each one alone.

    Attributes:
        model: the model.
        prompts: two prompts with the lengths `PROMPT_LENGTHS`.
        runs: three tokens for each of three rows. Row r continues prompt `ORDER[r]`.
        last: one more token for each row, after its run.
        size: mean of -log p, in nats.
        spread: mean change of log p between prefixes, in nats.
        noise: mean difference in nats between log p of the same prefixes from two passes, one of
            which is over a longer sequence.
    """

    model: Any
    prompts: Sequence[Sequence[int]]
    runs: Int64[Tensor, "3 3"]
    last: Int64[Tensor, "3 1"]
    size: float
    spread: float
    noise: float

    @classmethod
    def of(cls, model: Any) -> Truth:
        """Choose tokens, and measure the variation and the rounding of log p.

        Raises:
            ValueError: the model attends to later tokens.
        """
        count = sum(PROMPT_LENGTHS) + 12
        ids = _ordinary_ids(model, count)
        first = PROMPT_LENGTHS[0]
        prompts = [ids[:first], ids[first : sum(PROMPT_LENGTHS)]]
        rest = torch.tensor(ids[sum(PROMPT_LENGTHS) :], device="cpu")
        truth = cls(model, prompts, rest[:9].view(3, 3), rest[9:].view(3, 1), 0.0, 0.0, 0.0)
        longer = [*prompts[0], *truth.runs[1].tolist()]
        all_of_it = truth.after(longer, len(longer))
        possible = all_of_it[:, ~all_of_it.isneginf().any(dim=0)]
        spread = float((possible - possible.mean(dim=0)).abs().nanmean())
        part = truth.after(prompts[0], first)
        noise = truth.distance(part, all_of_it[:first])
        if noise > FAULT * spread:
            raise ValueError(
                f"expected a causal decoder, got {type(model).__name__}, which attends to later "
                f"tokens (they change log p by {noise:.2g} nats on average); set is_decoder=True "
                "in its configuration, or use another model"
            )
        return truth._replace(size=float(-possible.nanmean()), spread=spread, noise=noise)

    @property
    def tolerance(self) -> float:
        """Largest mean difference that rounding can explain, in nats."""
        coarsest = torch.finfo(self.model.dtype).eps
        autocast = _autocast(self.model)
        if autocast is not None:
            coarsest = max(coarsest, torch.finfo(autocast).eps)
        allowed = max(ROUNDING * coarsest * self.size, MEASURED * self.noise)
        return min(allowed, FAULT * self.spread)

    def after(self, ids: Sequence[int], count: int) -> Float64[Tensor, "count V"]:
        """Return log p after each of the last `count` tokens, from one pass over the sequence."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits
        return normalize(logits)[0, -count:].double()

    def distance(self, found: Tensor, expected: Tensor) -> float:
        """Return the mean difference of log p in nats; infinite if only one of two values is -inf.

        NaN values are excluded here; the sampler rejects them later.
        """
        found = found.double()
        if not torch.equal(found.isneginf(), expected.isneginf()):
            return float("inf")
        apart = (found - expected).abs()[~expected.isneginf()]
        return float(apart.nanmean()) if len(apart) else 0.0


def _ordinary_ids(model: Any, count: int) -> list[int]:
    """Return token ids that are spread over the vocabulary, without special tokens."""
    config = model.config.get_text_config()
    special: set[int | None] = set()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = getattr(config, name, None)
        special.update(value if isinstance(value, list) else [value])
    size = num_embeddings(model) or count
    usable = [token for token in range(min(size, 4 * count)) if token not in special] or [0]
    return [usable[(7 * number + 28) % len(usable)] for number in range(count)]


def shares_prompts(model: Any) -> bool:
    """Check padded batches, and return whether rows can share prompts, without padding.

    Raises:
        ValueError: log-probabilities in a padded batch differ from those of single sequences, or
            later tokens change the log-probabilities of a prefix. The message states the
            difference.
    """
    truth = Truth.of(model)
    expected = _compute_expected(truth)
    try:
        full, short, cached, prompts = _check_padded(truth, expected)
    except (RuntimeError, TypeError, AttributeError, IndexError, KeyError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            "expected a model that computes padded batches with position_ids and a cache, but "
            f"{type(model).__name__} raises {type(error).__name__}: {error}; use another model"
        ) from error
    if max(full, short, cached) > truth.tolerance:
        raise ValueError(_fault(model, full, short, cached, truth.tolerance))
    if list_layers(model) != {"full"} or attention_name(model.config.get_text_config()) is None:
        return False
    try:
        return _distance(truth, SharingRows(model, prompts), expected) <= truth.tolerance
    except Exception:  # a model that fails with shared prompts uses padded rows instead
        return False


def _check_padded(
    truth: Truth, expected: tuple[list[Tensor], list[Tensor]]
) -> tuple[float, float, float, SharedPrompts]:
    """Compute both prompts in a padded batch, then reorder, extend and truncate the rows.

    Returns:
        The distance of log p from the truth, in nats, after the longer prompt, after the shorter
        prompt, and after the runs; and the KV cache of the prompts.
    """
    model, device = truth.model, truth.model.device
    lengths = torch.tensor(PROMPT_LENGTHS, device=device)
    width = max(PROMPT_LENGTHS)
    tokens = torch.tensor(
        [[0] * (width - len(prompt)) + list(prompt) for prompt in truth.prompts], device=device
    )
    padded = TransformersRows(model, lengths)
    at_first = padded.read(tokens, lengths)[:, -1]
    prompts = SharedPrompts(lengths, [(k.clone(), v.clone()) for k, v in padded.prompts().layers])

    full, short = (
        truth.distance(at_first[row], truth.after(prompt, 1)[0])
        for row, prompt in enumerate(truth.prompts)
    )
    return full, short, _distance(truth, padded, expected), prompts


def check_static(model: Any, forward: StaticTransformer) -> None:
    """Compare two steps in static shapes with the truth.

    Raises:
        NotStaticError: the log-probabilities differ; the message states by how much.
        ValueError: the model attends to later tokens.
    """
    truth = Truth.of(model)
    tokens = truth.runs[: len(truth.prompts), :2].to(model.device)
    same = torch.arange(len(tokens), device=model.device)
    found = [forward.start(truth.prompts, 1, 2)]
    for step in range(2):
        number = torch.tensor(step, device=model.device)
        found.append(forward.step(tokens[:, step], same, number))
    for row, prompt in enumerate(truth.prompts):
        expected = truth.after([*prompt, *tokens[row].tolist()], 3)
        apart = truth.distance(torch.stack([each[row] for each in found]), expected)
        if apart > truth.tolerance:
            raise NotStaticError(
                f"expected correct log-probabilities in static shapes, but those of "
                f"{type(model).__name__} are wrong by {apart:.2g} nats on average; set "
                "execution='eager'"
            )


def _compute_expected(truth: Truth) -> tuple[list[Tensor], list[Tensor]]:
    """Return the true log p after each token of the runs, and after each row's last token."""
    runs, lasts = [], []
    for row, prompt in enumerate(truth.prompts[number] for number in ORDER):
        run = truth.runs[row, : RUN_LENGTHS[row]].tolist()
        runs.append(truth.after([*prompt, *run], len(run)))
        kept = [*prompt, *run[: KEPT[row]], *truth.last[row].tolist()]
        lasts.append(truth.after(kept, 1))
    return runs, lasts


def _distance(truth: Truth, rows: Rows, expected: tuple[list[Tensor], list[Tensor]]) -> float:
    """Reorder, extend and truncate rows; return the largest distance of log p from the truth."""
    device = truth.model.device

    def on_device(values: Sequence[int]) -> Int64[Tensor, "3"]:
        return torch.tensor(values, device=device)

    rows.reorder(on_device(ORDER))
    after_runs = rows.extend(truth.runs.to(device), on_device(RUN_LENGTHS))
    rows.truncate(on_device(KEPT))
    after_last = rows.extend(truth.last.to(device), on_device([1] * len(ORDER)))
    return max(
        truth.distance(found[row, : len(log_p)], log_p)
        for found, of_rows in zip((after_runs, after_last), expected, strict=True)
        for row, log_p in enumerate(of_rows)
    )


def _fault(model: Any, alone: float, padded: float, cached: float, tolerance: float) -> str:
    """Return the error message for a model whose batches differ from single sequences."""
    apart = max(alone, padded, cached)
    if alone > tolerance:
        cause = "doesn't count positions from 0, as in position_ids"
    elif padded > tolerance:
        cause = "ignores position_ids, so padding shifts its positions"
    else:
        cause = "computes other log-probabilities with its cache and position_ids than without"
    return (
        "expected a model with the same log-probabilities in a batch as for single sequences, got "
        f"a difference of {apart:.2g} nats on average, because {type(model).__name__} {cause}; use "
        "another model"
    )
