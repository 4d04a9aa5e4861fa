"""The small language model: its tokenizer, its architecture, and the checkpoint it is stored as.

A byte-level BPE tokenizer and a Llama of a few million parameters. The tokenizer cuts at every
space, digit and punctuation mark, and between lower and upper case, before it merges: a value has
the same tokens after a space, between quotes and in a list, so copying it from the request into the
answer is copying tokens. The price is more tokens a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
CONTEXT = 2048  # tokens

_PIECES = r"\p{Lu}?\p{Ll}+|\p{Lu}+|\p{L}|\p{N}|\s|[^\p{L}\p{N}\s]"


def train_tokenizer(texts: Iterator[str], vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE whose merges never cross a space, a digit or a punctuation mark."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrapped(tokenizer)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a checkpoint that `export` or a training wrote."""
    return _wrapped(Tokenizer.from_file(str(directory / "tokenizer.json")))


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int, layers: int, heads: int, mlp: int, seed: int
) -> LlamaForCausalLM:
    """Make an untrained Llama in float32; equal arguments give equal weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def export(out: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a checkpoint like any other: `AutoModelForCausalLM.from_pretrained(out)` reads it."""
    out.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(out)
    tokenizer.save_pretrained(out)
