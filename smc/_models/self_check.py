"""Self-check of a `transformers` model: log-probabilities must not depend on the batch.

The sampler computes many prefixes in one forward pass, with padding, `position_ids`, a cache, and
prompts that rows share. A model may silently ignore one of these. For example, decoders of BART's
family ignore `position_ids`, RoBERTa counts positions from the number of its padding token, and
BERT attends to later tokens unless its configuration sets `is_decoder`. The weights would then be
wrong without any visible error.

Therefore the first use of a model computes a few tokens in every way that the sampler does. The
log-probabilities are compared with the *truth*: one forward pass over each sequence alone, without
cache, padding, or positions. Cost: about ten forward passes over two to eight tokens, once for each
`TransformersLM` and each mode of its model. This comparison alone decides whether a model is
suitable, except for the few faults that it can't see (`smc._models.suitability`).

Rounding also causes differences. To distinguish it from faults, differences are compared with the
*spread*, the mean change of log p between prefixes. All causal models of transformers were measured
(`scripts/check_causal_models.py`). Rounding is at most 25 machine epsilons of the spread (0.08 of
the spread for SmolLM2 in bfloat16). The smallest fault that was found is 0.3 of the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from smc._models.protocol import Rows
from smc._models.rows import TransformersRows, normalize
from smc._models.sharing_rows import SharedPrompts, SharingRows
from smc._models.static_cache import NotStaticError, StaticTransformer
from smc._models.suitability import num_embeddings, num_logits, unsuitable
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


class Truth:
    """Token sequences for the self-check, and the model's log-probabilities for each one alone.

    Attributes:
        prompts: two prompts with the lengths `PROMPT_LENGTHS`.
        runs: three tokens for each of three rows, [3, 3]. Row r continues prompt `ORDER[r]`.
        last: one more token for each row, after its run, [3, 1].
        tolerance: largest mean difference of log p that rounding can explain, in nats.

    Raises:
        ValueError: the model attends to later tokens.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        first, both = PROMPT_LENGTHS[0], sum(PROMPT_LENGTHS)
        ids = _ordinary_ids(model, both + 12)
        self.prompts = [ids[:first], ids[first:both]]
        rest = torch.tensor(ids[both:], device="cpu")
        self.runs, self.last = rest[:9].view(3, 3), rest[9:].view(3, 1)
        longer = self.after(ids[:first] + self.runs[1].tolist(), first + 3)
        possible = longer[:, ~longer.isneginf().any(dim=0)]
        spread = float((possible - possible.mean(dim=0)).abs().nanmean())
        noise = self.distance(self.after(self.prompts[0], first), longer[:first])
        if noise > FAULT * spread:
            raise unsuitable(
                model,
                f"attends to later tokens (a difference of {noise:.2g} nats on average, which "
                "is_decoder=True in its configuration may prevent)",
            )
        kinds = filter(None, (model.dtype, _autocast(model)))
        coarsest = max(torch.finfo(dtype).eps for dtype in kinds)
        allowed = max(ROUNDING * coarsest * float(-possible.nanmean()), MEASURED * noise)
        self.tolerance = min(allowed, FAULT * spread)
        self._after_runs: list[tuple[Tensor, Tensor]] | None = None

    def after(self, ids: Sequence[int], count: int) -> Float64[Tensor, "count V"]:
        """Return log p after each of the last `count` tokens, from one pass over the sequence."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits
        return normalize(logits)[0, -count:].double()

    @property
    def after_runs(self) -> list[tuple[Tensor, Tensor]]:
        """Log p after each token of each row's run, and after its last token.

        Until Python 3.12, `cached_property` has one lock for all objects, so checks of several
        models would wait for each other.
        """
        if self._after_runs is not None:
            return self._after_runs
        found = []
        for row, prompt in enumerate(self.prompts[number] for number in ORDER):
            run = self.runs[row, : RUN_LENGTHS[row]].tolist()
            kept = [*prompt, *run[: KEPT[row]], *self.last[row].tolist()]
            found.append((self.after([*prompt, *run], len(run)), self.after(kept, 1)))
        self._after_runs = found
        return found

    def distance(self, found: Tensor, expected: Tensor) -> float:
        """Return the mean difference of log p in nats; infinite if only one of two values is -inf.

        NaN values are excluded here; the sampler rejects them later.
        """
        found = found.double()
        if not torch.equal(found.isneginf(), expected.isneginf()):
            return float("inf")
        apart = (found - expected).abs()[~expected.isneginf()]
        return float(apart.nanmean()) if len(apart) else 0.0

    def distance_of(self, rows: Rows) -> float:
        """Reorder, extend and truncate rows; return the largest distance of log p in nats."""
        order, lengths, kept, one = (
            torch.tensor(values, device=self.model.device)
            for values in (ORDER, RUN_LENGTHS, KEPT, [1] * len(ORDER))
        )
        rows.reorder(order)
        of_runs = rows.extend(self.runs.to(order.device), lengths)
        rows.truncate(kept)
        of_last = rows.extend(self.last.to(order.device), one)
        return max(
            self.distance(found[row, : len(log_p)], log_p)
            for row, expected in enumerate(self.after_runs)
            for found, log_p in zip((of_runs, of_last), expected, strict=True)
        )


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
    """Check padded batches, and return whether rows can share prompts, without padding."""
    num_logits(model)  # the error says what the model returns instead of logits
    try:
        truth = Truth(model)
        faults, prompts = _compare_padded(truth)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise unsuitable(
            model,
            f"raises {type(error).__name__} for a padded batch with position_ids and a cache "
            f"({error})",
        ) from error
    for fault, apart in faults.items():
        if apart > truth.tolerance:
            worst = max(faults.values())
            raise unsuitable(model, f"{fault} (a difference of {worst:.2g} nats on average)")
    if list_layers(model) != {"full"} or attention_name(model.config.get_text_config()) is None:
        return False
    try:
        return truth.distance_of(SharingRows(model, prompts)) <= truth.tolerance
    except Exception:  # a model that fails with shared prompts uses padded rows instead
        return False


def _compare_padded(truth: Truth) -> tuple[dict[str, float], SharedPrompts]:
    """Compute both prompts in a padded batch, then reorder, extend and truncate the rows.

    Returns:
        The distance of log p from the truth, in nats, by the fault that explains it; and the KV
        cache of the prompts.
    """
    device, width = truth.model.device, max(PROMPT_LENGTHS)
    lengths = torch.tensor(PROMPT_LENGTHS, device=device)
    tokens = torch.tensor(
        [[0] * (width - len(prompt)) + list(prompt) for prompt in truth.prompts], device=device
    )
    padded = TransformersRows(truth.model, lengths)
    at_first = padded.read(tokens, lengths)[:, -1]
    prompts = SharedPrompts(lengths, [(k.clone(), v.clone()) for k, v in padded.prompts().layers])
    full, short = (
        truth.distance(at_first[row], truth.after(prompt, 1)[0])
        for row, prompt in enumerate(truth.prompts)
    )
    faults = {
        "doesn't count positions from 0, as in position_ids": full,
        "ignores position_ids, so padding shifts its positions": short,
        "computes other log-probabilities with its cache and position_ids than without": (
            truth.distance_of(padded)
        ),
    }
    return faults, prompts


def check_static(model: Any, forward: StaticTransformer) -> None:
    """Compare two steps in static shapes with the truth."""
    truth = Truth(model)
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
                f"{type(model).__name__} are wrong by {apart:.2g} nats on average; call "
                "smc.sample"
            )
