"""Rows that go on from the same prompt attend to one copy of its keys and values.

Sixteen particles of an example share their prompt, which is most of what they attend to. A cache
with a row for each of them holds it sixteen times, copies all of that whenever rows move or grow,
and reads it sixteen times in every step. Here a prompt is kept once, [heads, L, d] in each layer;
the cache has the generated tokens alone, so little moves when rows are resampled; and the queries
of all rows of a prompt meet its keys in one matrix product. Scores of both parts go through one
softmax, so nothing is approximated (the shared part of attention by itself: Juravsky et al.,
"Hydragen", arXiv 2402.05099).

A `transformers` model names its attention function in a configuration, which all its layers look up
in every pass, in whichever thread. So nothing is changed there: rows have a model of their own
(`sharing`), with the same weights and another configuration, and the user's model may generate, or
be sampled from by others, at the same time.

This is right for plain causal attention with positions given by rotation or embedding. Models with
windows, softcaps or biases, and those that do not call an attention function, are found out
beforehand, by their configuration and by comparison with the plain cache (`TransformersLM`), and
copy their prompts as before. So do models with functions that are bound to their modules, such as
compiled ones and those spread over several devices: such a function would call the user's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

NAME = "shared_prompts"
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")


class SharedPrompts(NamedTuple):
    """Keys and values of B prompts, padded on the left.

    Attributes:
        lengths: tokens of each prompt, its last columns.
        layers: keys and values of each layer.
    """

    lengths: Int64[Tensor, "B"]
    layers: Sequence[tuple[Float[Tensor, "B heads L d"], Float[Tensor, "B heads L d2"]]]

    def take(self, prompts: Int64[Tensor, "C"]) -> SharedPrompts:
        """Copy some of the prompts, without columns that only others had."""
        lengths = self.lengths[prompts]
        spare = self.layers[0][0].shape[2] - int(lengths.max())
        layers = [(k[prompts, :, spare:], v[prompts, :, spare:]) for k, v in self.layers]
        return SharedPrompts(lengths, layers)


class _Seating(NamedTuple):
    """Which rows go on from which prompt.

    Attributes:
        prompts: of B examples.
        row: the rows of each prompt, side by side; any row where there are no more.
        seat: where each row sits in that table, counted through.
        columns: which columns of the prompts are no padding.
        layers: those that have attended to the prompts.
    """

    prompts: SharedPrompts
    row: Int64[Tensor, "B M"]
    seat: Int64[Tensor, "R"]
    columns: Bool[Tensor, "B 1 1 L"]
    layers: set[int]

    def together(self, x: Float[Tensor, "R heads n d"]) -> Float[Tensor, "B heads m d"]:
        """Lay what belongs to the rows of a prompt side by side, m = M n."""
        _, heads, n, d = x.shape
        B, M = self.row.shape
        return x[self.row].transpose(1, 2).reshape(B, heads, M * n, d)

    def apart(self, x: Float[Tensor, "B heads m d"]) -> Float[Tensor, "R heads n d"]:
        """Undo `together`."""
        B, heads, m, d = x.shape
        M = self.row.shape[1]
        rows = x.view(B, heads, M, m // M, d).transpose(1, 2)
        return rows.reshape(B * M, heads, m // M, d)[self.seat]


_SEATING: ContextVar[_Seating] = ContextVar("seating")


def sharing(model: Any) -> Any:
    """Make a model with the weights of `model` whose layers attend to shared prompts, too.

    New are the modules that attend, those that hold them, and their configuration; all other
    modules, and all parameters and hooks, are those of `model`, which stays as it is. This costs a
    few microseconds a module, so it is made anew for each batch of prompts: adapters that were
    switched since then are seen.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    config = model.config.get_text_config()
    own_config = deepcopy(config)
    own_config._attn_implementation = NAME
    return _with_config(model, config, own_config)


def _with_config(module: Any, config: Any, own_config: Any) -> Any:
    """Copy a module that attends as `config` says, or has one that does; leave others."""
    names = vars(module)
    configured = names.get("config") is config
    children = {
        name: new
        for name, child in module._modules.items()
        if child is not None and (new := _with_config(child, config, own_config)) is not child
    }
    if not (children or (configured and "layer_idx" in names)):
        return module
    copied = object.__new__(type(module))
    vars(copied).update(names, _modules=module._modules | children)
    if configured:
        vars(copied)["config"] = own_config
    return copied


@contextmanager
def attending(prompts: SharedPrompts, owner: Int64[Tensor, "R"]) -> Iterator[None]:
    """Have the rows of a pass of a `sharing` model attend to the prompts that `owner` says, too.

    Raises:
        NotImplementedError: the model's attention has something that this one has not.
        ValueError: layers of the model have not asked for it.
    """
    seating = _seated(prompts, owner)
    token = _SEATING.set(seating)
    try:
        yield
    finally:
        _SEATING.reset(token)
    if len(seating.layers) < len(prompts.layers):
        raise ValueError(
            f"{len(seating.layers)} of {len(prompts.layers)} layers of the model have read their "
            "prompts: it was compiled, or its modules replaced, since it was first sampled from; "
            "make a new smc.TransformersLM of it"
        )


def _seated(prompts: SharedPrompts, owner: Int64[Tensor, "R"]) -> _Seating:
    B, R = len(prompts.lengths), len(owner)
    counts = torch.bincount(owner, minlength=B)
    most = int(counts.max())
    order = torch.argsort(owner, stable=True)
    first = counts.cumsum(dim=0) - counts
    within = torch.arange(R, device=owner.device) - first[owner[order]]
    seat = torch.empty_like(owner)
    seat[order] = owner[order] * most + within
    row = torch.zeros(B * most, dtype=torch.int64, device=owner.device)
    row[seat] = torch.arange(R, device=owner.device)
    width = prompts.layers[0][0].shape[2]
    columns = torch.arange(width, device=owner.device) >= width - prompts.lengths.unsqueeze(1)
    return _Seating(prompts, row.view(B, most), seat, columns[:, None, None], set())


def _attend(
    module: Any,
    query: Float[Tensor, "R H T d"],
    key: Float[Tensor, "R heads W d"],
    value: Float[Tensor, "R heads W d2"],
    attention_mask: Bool[Tensor, "R 1 T W"],
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "R T H d2"], None]:
    """Attend to the prompts and to what was generated; an attention function of `transformers`."""
    unknown = [name for name in _UNKNOWN if options.get(name) is not None]
    if unknown:
        raise NotImplementedError(f"attention with {', '.join(unknown)}")
    seating = _SEATING.get()
    seating.layers.add(module.layer_idx)
    keys, values = seating.prompts.layers[module.layer_idx]
    R, H, T, d = query.shape
    heads = key.shape[1]
    group = H // heads * T  # queries of one row that meet the same keys
    query = (query * (d**-0.5 if scaling is None else scaling)).reshape(R, heads, group, d)

    before = (seating.together(query) @ keys.mT).masked_fill_(~seating.columns, -torch.inf)
    since = (query @ key.mT).view(R, heads, -1, T, key.shape[2])
    since = since.masked_fill(~attention_mask.unsqueeze(2), -torch.inf).view(R, heads, group, -1)
    scores = torch.cat([seating.apart(before), since], dim=-1)
    precision = torch.promote_types(query.dtype, torch.float32)
    share = scores.softmax(dim=-1, dtype=precision).to(query.dtype)
    of_prompt, of_rest = share.split([keys.shape[2], key.shape[2]], dim=-1)
    out = seating.apart(seating.together(of_prompt) @ values) + of_rest @ value
    return out.view(R, H, T, -1).transpose(1, 2).contiguous(), None
