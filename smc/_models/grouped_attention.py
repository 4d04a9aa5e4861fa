"""Attention of one token per row that doesn't copy keys and values for grouped queries.

In most models several query heads share the keys and values of one head (Ainslie et al., "GQA",
arXiv 2305.13245). PyTorch's memory-efficient kernel supports a mask per column, but needs as many
key heads as query heads. So `transformers` copies the whole cache in each layer of each step. (From
version 5.24 on, it does so only if the step is compiled.) This module avoids the copy. If every row
has one token, the mask is the same for all heads. The query heads of a group can therefore be
stacked as if they were tokens.
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
    """Return a model that uses this attention instead of "sdpa".

    A model with another attention function is returned unchanged.
    """
    if attention_name(model.config.get_text_config()) != "sdpa":
        return model
    return with_attention(model, _NAME, _attention())


@cache
def _attention() -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function with the signature that `transformers` requires."""
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
