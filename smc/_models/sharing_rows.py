"""Batch rows of a `transformers` model that share their prompts, and don't need padding.

All particles of an example attend to the same prompt, which is most of their context. A cache with
one row per particle would store the prompt once per particle, copy it whenever rows are copied or
extended, and read it once per particle in every step. Here each layer stores a prompt once, [heads,
L, d]. The queries of all its rows are multiplied with its keys in one matrix product (Juravsky et
al., "Hydragen", arXiv 2402.05099).

The tokens of all rows in a forward pass are concatenated (`Packed`), and the attention separates
the rows. The attention writes the keys and values of each token to the token's position in its row.
The token attends to the prompt (`Groups` by prompt), and to its row up to its position (`Groups` by
row). Let s be the log of the sum of a part's attention weights, and m the mean of its values. Both
parts are then combined exactly:

    share of the prompt = sigmoid(s_prompt - s_row),    out = share m_prompt + (1 - share) m_row

The layers of a `transformers` model read the name of the attention function from a configuration,
in every pass and thread. Changing this configuration would affect other passes. Rows therefore use
a copy of the model with the same weights and another configuration (`with_shared_prompts`). The
user's model can be used for other purposes at the same time.

The computation is correct for plain causal attention with rotary or embedded positions. Models with
windows, softcaps or biases, and models that don't call an attention function, use
`smc._models.rows` instead. Such models are detected by their configuration, and by comparison with
the plain cache (`smc._models.self_check`). Models with functions that are bound to their modules
also use `smc._models.rows`, because these functions would call the user's modules. Compiled models
and models on several devices have such functions.

**No padding.** If one of eighty rows has a forced run of nine tokens, padding would make each of
the other rows compute eight more tokens. This took 44 to 69% of the time in batches of tool calls.
So a forward pass takes the tokens of all rows, concatenated into one sequence. The attention is the
only operation that pads rows to the longest run. All other operations of a model process each token
independently. The cache stores the generated tokens of each row from the first column on, so no
columns need to be moved when rows are extended by different lengths or truncated.

Allocating a cache of this size in every step can take longer than the forward pass. So it has spare
columns, and copies of rows are written into arrays that the previous layer no longer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from smc._models.rows import SharedPrompts, normalize
from smc._models.suitability import num_logits
from smc._models.transformers_internals import (
    cache_argument,
    pass_through_cache,
    set_attention_name,
)

NAME = "shared_prompts"
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")


class Groups(NamedTuple):
    """A partition of M items into G groups, as a table with one row per group.

    Attributes:
        member: the items of each group, padded with item 0.
        slot: index of each item in the flattened table.
        in_order: whether the flattened table is 0, 1, ..., M - 1, so that items don't have to be
            moved.
    """

    member: Int64[Tensor, "G most"]
    slot: Int64[Tensor, "M"]
    in_order: bool

    @classmethod
    def of(cls, group: Int64[Tensor, "M"], num_groups: int) -> Groups:
        """Group M items, given the group number of each one; they stay in order within groups."""
        counts = torch.bincount(group, minlength=num_groups)
        most = int(counts.max())
        order = torch.argsort(group, stable=True)
        first = counts.cumsum(dim=0) - counts
        things = torch.arange(len(group), device=group.device)
        slot = torch.empty_like(group)
        slot[order] = group[order] * most + things - first[group[order]]
        member = torch.zeros(num_groups * most, dtype=torch.int64, device=group.device)
        member[slot] = things
        in_order = len(member) == len(slot) and torch.equal(slot, things)
        return cls(member.view(num_groups, most), slot, in_order)

    def group(self, x: Float[Tensor, "M heads n d"]) -> Float[Tensor, "G heads m d"]:
        """Arrange the vectors of the items by group, padded to equal numbers of items.

        An item has n vectors per head. A group has at most `most` items, so m = `most` · n.
        """
        _, heads, n, d = x.shape
        G, most = self.member.shape
        members = x.reshape(G, most, heads, n, d) if self.in_order else x[self.member]
        return members.transpose(1, 2).reshape(G, heads, most * n, d)

    def ungroup(self, x: Float[Tensor, "G heads m d"]) -> Float[Tensor, "M heads n d"]:
        """Return the vectors in the order of the items; the inverse of `group`."""
        G, heads, m, d = x.shape
        most = self.member.shape[1]
        things = x.view(G, heads, most, m // most, d).transpose(1, 2)
        things = things.reshape(G * most, heads, m // most, d)
        return things if self.in_order else things[self.slot]


@dataclass(frozen=True, eq=False)
class Packed:
    """The M tokens of a forward pass: the tokens of R rows, concatenated without padding.

    Attributes:
        prompts: the prompts of B examples.
        by_prompt: tokens grouped by prompt.
        by_row: tokens grouped by row.
        row: the row of each token.
        position: index of each token among the generated tokens of its row.
        layers: keys and values of the generated tokens in each layer; a pass writes to them.
        seen: layers that have used this attention in the pass.
    """

    prompts: SharedPrompts
    by_prompt: Groups
    by_row: Groups
    row: Int64[Tensor, "M"]
    position: Int64[Tensor, "M"]
    layers: Sequence[tuple[Float[Tensor, "R heads W d"], Float[Tensor, "R heads W d2"]]]
    seen: set[int] = field(default_factory=set)

    @cached_property
    def of_prompt(self) -> Bool[Tensor, "B 1 1 1 L"]:
        """Mask of the prompt columns that are not padding."""
        width = self.prompts.layers[0][0].shape[2]
        columns = torch.arange(width, device=self.position.device)
        return (columns >= width - self.prompts.lengths.unsqueeze(1))[:, None, None, None]

    @cached_property
    def of_row(self) -> Bool[Tensor, "R 1 most 1 W"]:
        """Mask of the generated tokens (columns) of its row that each token attends to."""
        columns = torch.arange(self.layers[0][0].shape[2], device=self.position.device)
        return (columns <= self.position[self.by_row.member].unsqueeze(2))[:, None, :, None]


_PACKED: ContextVar[Packed] = ContextVar("packed")


def with_shared_prompts(model: Any) -> Any:
    """Return a model with the weights of `model` whose attention uses `Packed` tokens."""
    return with_attention(model, NAME, _attend)


def with_attention(model: Any, name: str, attend: Callable[..., Any]) -> Any:
    """Return a model with the weights of `model` and another attention function.

    Only the attention modules, the modules that contain them, and their configuration are copied.
    All other modules, and all parameters and hooks, are shared with `model`, which is not modified.
    Copying takes a few microseconds per module. A copy is made for each batch of prompts, so that
    it has the currently active adapters.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)
    config = model.config.get_text_config()
    own_config = deepcopy(config)
    set_attention_name(own_config, name)
    return _with_config(model, config, own_config)


def _with_config(module: Any, config: Any, own_config: Any) -> Any:
    """Copy a module if it or a submodule takes its attention function from `config`.

    The copy has `own_config` instead. Other modules are returned unchanged.
    """
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
def attend_to(packed: Packed) -> Iterator[None]:
    """Set the tokens, prompts and rows that the attention uses during a model's forward pass.

    The model is a result of `with_shared_prompts`.
    """
    token = _PACKED.set(packed)
    try:
        yield
    finally:
        _PACKED.reset(token)
    if len(packed.seen) < len(packed.layers):
        raise ValueError(
            f"expected all {len(packed.layers)} layers of the model to share prompts, but only "
            f"{len(packed.seen)} do, because the model was compiled or its modules were replaced "
            "after its first use; create a new smc.TransformersLM"
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
    """Store the tokens' keys and values, and attend to prompts and rows up to each token.

    This is an attention function of `transformers`. `packed` determines what each token attends to.
    The mask is only used to detect models that modify it.
    """
    unknown = [name for name in _UNKNOWN if options.get(name) is not None]
    if attention_mask.dtype != torch.bool:
        unknown.append("a numeric mask")
    if unknown:
        raise NotImplementedError(f"expected plain causal attention, got {', '.join(unknown)}")
    packed = _PACKED.get()
    packed.seen.add(module.layer_idx)
    by_prompt, by_row = packed.by_prompt, packed.by_row
    prompt_keys, prompt_values = packed.prompts.layers[module.layer_idx]
    keys, values = packed.layers[module.layer_idx]
    # Under autocast, new keys may have another type than the stored ones.
    keys[packed.row, :, packed.position] = key[0].transpose(0, 1).to(keys.dtype)
    values[packed.row, :, packed.position] = value[0].transpose(0, 1).to(values.dtype)
    _, H, M, d = query.shape
    heads = key.shape[1]
    scaled = query[0] * (d**-0.5 if scaling is None else scaling)
    queries = scaled.view(heads, H // heads, M, d).permute(2, 0, 1, 3)  # M, heads, n, d

    log_before, before = _part(by_prompt, queries, prompt_keys, prompt_values, packed.of_prompt)
    log_since, since = _part(by_row, queries, keys, values, packed.of_row)
    share = torch.sigmoid(log_before - log_since)  # the prompt's share of all attention weights
    out = torch.lerp(since, before, share).to(query.dtype)
    return out.reshape(1, M, H, -1).contiguous(), None


def _part(
    groups: Groups,
    queries: Float[Tensor, "M heads n d"],
    keys: Float[Tensor, "G heads W d"],
    values: Float[Tensor, "G heads W d2"],
    visible: Bool[Tensor, "G 1 m 1 W"],
) -> tuple[Float[Tensor, "M heads n 1"], Float[Tensor, "M heads n d2"]]:
    """Compute the attention of each group's queries to the keys and values of the group.

    Returns:
        The log of the sum of attention weights, and the weighted mean of the values, for each
        query.
    """
    scores = groups.group(queries) @ keys.mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    by_member = scores.view(*scores.shape[:2], groups.member.shape[1], -1, scores.shape[3])
    by_member.masked_fill_(~visible, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    mean = (weights.to(values.dtype) @ values) / total
    return groups.ungroup(top + total.log()), groups.ungroup(mean)


class SharingRows:
    """The KV cache of R prefixes after their prompts; see `smc._models.protocol.Rows`.

    Args:
        model: a model with plain causal attention.
        prompts: the KV cache of B prompts. At first there is one row per prompt.

    Attributes:
        lengths: number of generated tokens in each row.
    """

    def __init__(self, model: Any, prompts: SharedPrompts) -> None:
        self._whole, self._model = model, with_shared_prompts(model)
        self._prompts = prompts
        self._owner = torch.arange(len(prompts.lengths), device=prompts.lengths.device)
        self._layers = [(keys[:, :, :0], values[:, :, :0]) for keys, values in prompts.layers]
        self._spare: tuple[Tensor, Tensor] | None = None
        self.lengths = torch.zeros_like(prompts.lengths)

    @torch.inference_mode()
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append a run of tokens to each row, in one forward pass without padding."""
        R, T = runs.shape
        inside = torch.arange(T, device=runs.device) < lengths.unsqueeze(1)
        row, column = inside.nonzero(as_tuple=True)
        if not len(row):  # models raise errors for an empty sequence
            shape = R, T, num_logits(self._whole)
            return normalize(torch.empty(shape, dtype=self._model.dtype, device=runs.device))
        position = self.lengths[row] + column
        grown = self.lengths + lengths
        width = int(grown.max())
        self._widen(width)
        log_p = self._forward(runs[row, column], row, position, width)
        self.lengths = grown  # changed only after the forward pass, which may raise an error
        if len(row) == R * T:
            return log_p.view(R, T, log_p.shape[1])
        out = log_p.new_empty(R, T, log_p.shape[1])  # undefined beyond each run's length
        out[row, column] = log_p
        return out

    @torch.inference_mode()
    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Replace the rows by copies of the rows `ancestors`.

        Prompts without a row are removed once they are at least half of the prompts.
        """
        if torch.equal(ancestors.long(), torch.arange(len(self._owner), device=ancestors.device)):
            return
        self._owner, self.lengths = self._owner[ancestors], self.lengths[ancestors]
        used = torch.unique(self._owner)
        if len(used) and 2 * len(used) <= len(self._prompts.lengths):
            self._prompts = self._prompts.take(used)
            self._owner = torch.searchsorted(used, self._owner)
        self._copy(ancestors, int(self.lengths.max()) if len(ancestors) else 0)

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Shorten each row to its first tokens; later tokens will overwrite the other columns."""
        self.lengths = torch.minimum(self.lengths, lengths)

    def _forward(
        self,
        tokens: Int[Tensor, "M"],
        row: Int64[Tensor, "M"],
        position: Int64[Tensor, "M"],
        width: int,
    ) -> Float[Tensor, "M V"]:
        """Return log p after each token, given the token's row and its position in the row.

        `width` is the number of columns that the rows use.
        """
        M, owner = len(row), self._owner[row]
        packed = Packed(
            prompts=self._prompts,
            by_prompt=Groups.of(owner, len(self._prompts.lengths)),
            by_row=Groups.of(row, len(self.lengths)),
            row=row,
            position=position,
            layers=[(keys[:, :, :width], values[:, :, :width]) for keys, values in self._layers],
        )
        with attend_to(packed):
            output = self._model(
                input_ids=tokens.unsqueeze(0),
                # `_attend` ignores the mask. A model that uses it elsewhere fails the self-check.
                attention_mask=position.new_ones((), dtype=torch.bool).expand(1, 1, M, M),
                position_ids=(self._prompts.lengths[owner] + position).unsqueeze(0),
                use_cache=True,
                **cache_argument(self._model, pass_through_cache()()),
            )
        return normalize(output.logits[0])

    def _widen(self, width: int) -> None:
        """Pad the cache on the right to at least `width` columns."""
        held = self._layers[0][0].shape[2]
        if held < width:
            self._spare = None
            pad = partial(torch.nn.functional.pad, pad=(0, 0, 0, _capacity(width) - held))
            for number, (keys, values) in enumerate(self._layers):
                self._layers[number] = pad(keys), pad(values)  # frees the layer's old arrays

    def _copy(self, ancestors: Int[Tensor, "Q"], width: int) -> None:
        """Replace the rows of the cache, which use `width` columns."""
        room = self._layers[0][0].shape[2]
        if room > 2 * _capacity(width):  # only removed rows used them
            room, self._spare = _capacity(width), None
        copied, spare = [], self._spare
        for layer in self._layers:
            if spare is None or (len(spare[0]), spare[0].shape[2]) != (len(ancestors), room):
                keys, values = (
                    x.new_empty(len(ancestors), x.shape[1], room, x.shape[3]) for x in layer
                )
                spare = keys, values
            for old, new in zip(layer, spare, strict=True):
                torch.index_select(old[:, :, :room], 0, ancestors, out=new)
            copied.append(spare)
            spare = layer
        same = spare is not None and spare[0].shape == copied[0][0].shape
        self._layers, self._spare = copied, spare if same else None


def _capacity(width: int) -> int:
    """Return a number of columns for `width` used ones."""
    return width + width // 4 + 8
