"""Attention of rows that share their prompts, over tokens that follow each other without padding.

Sixteen particles of an example share their prompt, which is most of what they attend to. A cache
with a row for each of them holds it sixteen times, copies all of that whenever rows move or grow,
and reads it sixteen times in every step. Here a prompt is kept once, [heads, L, d] in each layer,
and the queries of all rows of a prompt meet its keys in one matrix product (Juravsky et al.,
"Hydragen", arXiv 2402.05099).

A pass has the tokens of all rows behind each other (`Packed`). The attention is where they are
sorted: it writes the keys and values of each token to the token's place in its row, and attends to
the prompt (`Groups` by prompt) and to the row up to that place (`Groups` by row). With s the log of
the sum of the weights of a part, and m the mean of its values, both are put together exactly:

    share of the prompt = sigmoid(s_prompt - s_row),    out = share m_prompt + (1 - share) m_row

A `transformers` model names its attention function in a configuration, which all its layers look up
in every pass, in whichever thread; to change it would change the passes of others. So rows have a
model of their own (`sharing`), with the same weights and another configuration, and the user's
model may generate, or be sampled from by others, at the same time.

This is right for plain causal attention with positions given by rotation or embedding. Models with
windows, softcaps or biases, and those that do not call an attention function, are found out
beforehand, by their configuration and by comparison with the plain cache
(`smc.models.self_check`), and use `smc.models.rows`. So do models with functions
that are bound to their modules, such as compiled ones and those spread over several devices: such a
function would call the user's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from smc.transformers_internals import set_attention_name

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


class Groups(NamedTuple):
    """Which of M things belong to which of G groups.

    Attributes:
        member: the things of each group, side by side, filled up with thing 0.
        seat: where each thing sits, as an index into the flattened table.
        in_order: whether the table is full and seats are 0, 1, ..., so that nothing needs to move.
    """

    member: Int64[Tensor, "G most"]
    seat: Int64[Tensor, "M"]
    in_order: bool

    @classmethod
    def of(cls, group: Int64[Tensor, "M"], num_groups: int) -> Groups:
        """Seat things by the number of their group; those of one keep their order."""
        counts = torch.bincount(group, minlength=num_groups)
        most = int(counts.max())
        order = torch.argsort(group, stable=True)
        first = counts.cumsum(dim=0) - counts
        things = torch.arange(len(group), device=group.device)
        seat = torch.empty_like(group)
        seat[order] = group[order] * most + things - first[group[order]]
        member = torch.zeros(num_groups * most, dtype=torch.int64, device=group.device)
        member[seat] = things
        in_order = len(member) == len(seat) and torch.equal(seat, things)
        return cls(member.view(num_groups, most), seat, in_order)

    def together(self, x: Float[Tensor, "M heads n d"]) -> Float[Tensor, "G heads m d"]:
        """Lay what belongs to one group side by side; m is most times n."""
        _, heads, n, d = x.shape
        G, most = self.member.shape
        members = x.reshape(G, most, heads, n, d) if self.in_order else x[self.member]
        return members.transpose(1, 2).reshape(G, heads, most * n, d)

    def apart(self, x: Float[Tensor, "G heads m d"]) -> Float[Tensor, "M heads n d"]:
        """Undo `together`."""
        G, heads, m, d = x.shape
        most = self.member.shape[1]
        things = x.view(G, heads, most, m // most, d).transpose(1, 2)
        things = things.reshape(G * most, heads, m // most, d)
        return things if self.in_order else things[self.seat]


@dataclass(frozen=True, eq=False)
class Packed:
    """The M tokens of a pass: those of R rows behind each other, with no padding between them.

    Attributes:
        prompts: of B examples.
        by_prompt: which tokens go on from which prompt.
        by_row: which tokens are of which row.
        row: the row of each token.
        place: its column among the tokens that were generated in the row.
        layers: keys and values of the generated tokens, in each layer; a pass writes its own there.
        seen: layers that have attended in the pass.
    """

    prompts: SharedPrompts
    by_prompt: Groups
    by_row: Groups
    row: Int64[Tensor, "M"]
    place: Int64[Tensor, "M"]
    layers: Sequence[tuple[Float[Tensor, "R heads W d"], Float[Tensor, "R heads W d2"]]]
    seen: set[int] = field(default_factory=set)

    @cached_property
    def of_prompt(self) -> Bool[Tensor, "B 1 1 1 L"]:
        """Which columns of the prompts are no padding."""
        width = self.prompts.layers[0][0].shape[2]
        columns = torch.arange(width, device=self.place.device)
        return (columns >= width - self.prompts.lengths.unsqueeze(1))[:, None, None, None]

    @cached_property
    def of_row(self) -> Bool[Tensor, "R 1 most 1 W"]:
        """Which columns of its row each token attends to."""
        columns = torch.arange(self.layers[0][0].shape[2], device=self.place.device)
        return (columns <= self.place[self.by_row.member].unsqueeze(2))[:, None, :, None]


_PACKED: ContextVar[Packed] = ContextVar("packed")


def sharing(model: Any) -> Any:
    """Make a model with the weights of `model` whose passes are `Packed`.

    It attends by `_attend`. New are the modules that do, those that hold them, and their
    configuration; all other
    modules, and all parameters and hooks, are those of `model`, which stays as it is. This costs a
    few microseconds a module, so it is made anew for each batch of prompts: adapters that were
    switched since then are seen.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    config = model.config.get_text_config()
    own_config = deepcopy(config)
    set_attention_name(own_config, NAME)
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
def attending(packed: Packed) -> Iterator[None]:
    """Have the tokens of a pass of a `sharing` model attend to their prompts and rows.

    Raises:
        NotImplementedError: the model's attention has something that this one has not.
        ValueError: layers of the model attend by another function.
    """
    token = _PACKED.set(packed)
    try:
        yield
    finally:
        _PACKED.reset(token)
    if len(packed.seen) < len(packed.layers):
        raise ValueError(
            f"{len(packed.seen)} of {len(packed.layers)} layers of the model share their prompts: "
            "it was compiled, or its modules replaced, since it was first sampled from; make a new "
            "smc.TransformersLM of it"
        )


def _attend(
    module: Any,
    query: Float[Tensor, "1 H M d"],
    key: Float[Tensor, "1 heads M d"],
    value: Float[Tensor, "1 heads M d2"],
    attention_mask: Tensor,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "1 M H d2"], None]:
    """Keep what the tokens add, and attend to their prompts and rows up to themselves.

    This is an attention function of `transformers`. The mask says nothing that `packed` does not,
    unless a model has made something else of it.
    """
    unknown = [name for name in _UNKNOWN if options.get(name) is not None]
    if attention_mask.dtype != torch.bool:
        unknown.append("numbers in its mask")
    if unknown:
        raise NotImplementedError(f"attention with {', '.join(unknown)}")
    packed = _PACKED.get()
    packed.seen.add(module.layer_idx)
    by_prompt, by_row = packed.by_prompt, packed.by_row
    prompt_keys, prompt_values = packed.prompts.layers[module.layer_idx]
    keys, values = packed.layers[module.layer_idx]
    keys[packed.row, :, packed.place] = key[0].transpose(0, 1).to(keys.dtype)  # if autocast
    values[packed.row, :, packed.place] = value[0].transpose(0, 1).to(values.dtype)
    _, H, M, d = query.shape
    heads = key.shape[1]
    scaled = query[0] * (d**-0.5 if scaling is None else scaling)
    queries = scaled.view(heads, H // heads, M, d).permute(2, 0, 1, 3)  # M, heads, n, d

    log_before, before = _part(by_prompt, queries, prompt_keys, prompt_values, packed.of_prompt)
    log_since, since = _part(by_row, queries, keys, values, packed.of_row)
    share = torch.sigmoid(log_before - log_since)  # of the prompt in all that is attended to
    out = torch.lerp(since, before, share).to(query.dtype)
    return out.reshape(1, M, H, -1).contiguous(), None


def _part(
    groups: Groups,
    queries: Float[Tensor, "M heads n d"],
    keys: Float[Tensor, "G heads W d"],
    values: Float[Tensor, "G heads W d2"],
    visible: Bool[Tensor, "G 1 m 1 W"],
) -> tuple[Float[Tensor, "M heads n 1"], Float[Tensor, "M heads n d2"]]:
    """Attend to the keys of the groups: the log of the sum of the weights, the mean of values."""
    scores = groups.together(queries) @ keys.mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    by_member = scores.view(*scores.shape[:2], groups.member.shape[1], -1, scores.shape[3])
    by_member.masked_fill_(~visible, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    mean = (weights.to(values.dtype) @ values) / total
    return groups.apart(top + total.log()), groups.apart(mean)
