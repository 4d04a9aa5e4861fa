"""A toy checkpoint as the hub would have it: a tokenizer of bytes and a Llama of random numbers."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

EOS = "<eos>"


def write_checkpoint(
    directory: Path, context: int = 8192, *, spread: float = 0.5, seed: int = 0
) -> Path:
    """Write the checkpoint of a model that says anything, into a directory that it makes.

    With a small `spread` of its weights it gives all tokens about the same probability.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {token: index for index, token in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)
    fast.save_pretrained(directory)
    config = transformers.LlamaConfig(
        vocab_size=len(names) + 1,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=spread,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=len(names),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return directory
