"""Attention of one token per row, without copies of keys and values for grouped queries.

In most models several query heads share the keys and values of one head (Ainslie et al., "GQA",
arXiv 2305.13245). PyTorch's memory-efficient kernel, which supports a mask per column, needs as
many heads of keys as of queries. So `transformers` copies the whole cache in each layer of each
step, from 5.24 on only if the step is compiled. If every row has one token, the query heads of a
group can be stacked as if they were tokens instead, since the mask is the same for all heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from smc._models.shared_prompts import with_attention
from smc._models.transformers_internals import attention_name, private

_NAME = "grouped_queries"
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")


def with_grouped_queries(model: Any) -> Any:
    """Return a model with this attention in place of "sdpa"; models with another are unchanged."""
    if attention_name(model.config.get_text_config()) != "sdpa":
        return model
    return with_attention(model, _NAME, _attention())


@cache
def _attention() -> Callable[..., tuple[Tensor, None]]:
    """Return the attention function of `transformers`."""
    sdpa = private("integrations.sdpa_attention", "sdpa_attention_forward")

    def attend(
        module: Any,
        query: Float[Tensor, "P H n d"],
        key: Float[Tensor, "P heads columns d"],
        value: Float[Tensor, "P heads columns d2"],
        attention_mask: Float[Tensor, "P 1 n columns"] | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        P, H, n, d = query.shape
        heads = key.shape[1]
        if n > 1 or heads == H or any(options.get(name) is not None for name in _UNKNOWN):
            options.update(dropout=dropout, scaling=scaling)
            return sdpa(module, query, key, value, attention_mask, **options)
        stacked = query.reshape(P, heads, H // heads, d)
        out = scaled_dot_product_attention(
            stacked, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
        return out.reshape(P, 1, H, out.shape[3]), None

    return attend
