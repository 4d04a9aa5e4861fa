"""Sweep of the causal model types of `transformers`, each with a tiny random configuration.

    python -m scripts.check_causal_models              # every type, a line each
    python -m scripts.check_causal_models bart llama --dtype bfloat16
    python -m scripts.check_causal_models --table table.md        # as in docs/models.md

Each model gets three prompts of different lengths and a constraint with six answers. The posterior
over all answers is compared with reference log-probabilities: one forward pass for each prefix
alone, without cache, padding, or positions. So an error anywhere between the prompt and the weights
appears as a difference in nats. Each type has one of these outcomes:

    right       the posterior agrees with single passes
    refused     a ValueError of this library; the table has the message
    wrong       the posterior differs, which is a defect of this library
    fails       another exception, which is also a defect
    not run     transformers can't create a tiny model of this type that works with text only

The exit status is 1 if a type is wrong or fails.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tqdm import tqdm
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import gcd
import smc

SIZE = 320
"""Number of token ids of the models: 256 bytes, EOS, and ids without bytes."""
EOS = 256
PAD = 1
ANSWERS = (b"a", b"b", b"aa", b"ab", b"ba", b"bb")
PROMPTS = (tuple(b"hello there"), tuple(b"x"), tuple(b"a b c"))
MOST_PARAMETERS = 3_000_000
LAYERS = 2
LAYERED = re.compile("layer|intermediate_size|sparsity_pattern")
"""Names of fields with a list of one value per layer."""

# Configuration fields of transformers that make a model small.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size"), SIZE),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "embedding_size",
         "dim_model", "lru_width", "attention_hidden_size", "input_embedding_size", "emb_dim",
         "hidden_size_per_layer_input", "output_embedding_size"), 32,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers",
         "encoder_layers", "num_decoder_layers", "num_blocks", "num_layers_per_stack"), LAYERS,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
         "encoder_attention_heads", "num_decoder_attention_heads", "mamba_n_heads",
         "mamba_num_heads"), 4,
    ),
    **dict.fromkeys(("num_key_value_heads", "kv_n_heads", "num_kv_heads", "n_groups"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner",
         "d_ff", "dim_ff", "moe_intermediate_size", "ffn_hidden_size",
         "shared_expert_intermediate_size", "mlp_hidden_size", "d_inner",
         "moe_shared_expert_intermediate_size", "block_ff_dim", "dff"), 48,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
         "max_sequence_length", "max_target_positions", "decoder_max_position_embeddings"), 128,
    ),
    **dict.fromkeys(("head_dim", "attention_head_dim", "kv_channels", "v_head_dim"), 8),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4
    ),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(
        ("initializer_range", "init_std", "init_method_std", "emb_init_std"), 0.3
    ),
    "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_d_ssm": 64, "mamba_n_groups": 2,
    "mamba_expand": 2, "num_nextn_predict_layers": 0, "num_mtp_layers": 0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1,
    "attention_dropout": 0.0, "qk_head_dim": 16, "num_kv_shared_layers": 0, "dim_model_base": 32,
    "dim_head": 8, "position_bias_num_buckets": 16, "position_bias_max_distance": 64,
    "rotary_dim": 8, "sliding_window": 64, "window_size": 64, "moe_num_shared_experts": 1,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64,
    "is_encoder_decoder": False, "eos_token_id": EOS, "pad_token_id": PAD, "bos_token_id": None,
    "decoder_start_token_id": EOS, "forced_eos_token_id": None, "languages": ["en_XX"],
    "default_language": "en_XX",
}  # fmt: skip


class Outcome(NamedTuple):
    """The outcome of one type.

    Attributes:
        name: the type, as in `config.model_type`.
        outcome: right, refused, wrong, fails, or not run.
        reason: the message, or the difference of the posterior.
    """

    name: str
    outcome: str
    reason: str


class UnfitError(Exception):
    """A type without a tiny model that works with text only."""


def shrink(config: Any, decoder: bool) -> Any:
    """Shrink a configuration in place, including nested configurations."""
    config.allow_global_per_layer_attribute_access = True
    changed = {name: value for name, value in SMALL.items() if hasattr(config, name)}
    if hasattr(config, "kv_lora_rank"):  # with latent attention, each head has its own keys
        changed["num_key_value_heads"] = changed["num_attention_heads"]
    if hasattr(config, "expand") and hasattr(config, "num_heads"):  # Mamba 2
        changed["head_dim"] = config.expand * 32 // changed["num_heads"]
    for name, value in changed.items():
        if name in ("mamba_d_ssm", "attn_layer_period") and getattr(config, name) is None:
            continue
        of_layers = isinstance(getattr(config, name), list) and LAYERED.search(name)
        with suppress(Exception):  # a derived or required field
            setattr(config, name, [value] * LAYERS if of_layers else value)
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) > LAYERS and LAYERED.search(name):
            setattr(config, name, spread_over(value, LAYERS))
        elif isinstance(value, transformers.PretrainedConfig):
            shrink(value, decoder)
    if getattr(config, "layer_types", 0) is None:
        config.layer_types = ["full_attention"] * LAYERS
    if getattr(config, "rope_parameters", None) == {}:
        kinds = set(getattr(config, "layer_types", ()))
        rope = {"rope_type": "default", "rope_theta": 10_000.0}
        config.rope_parameters = dict.fromkeys(kinds, rope) if kinds else rope
    if decoder:
        config.is_decoder = True
    return config


def spread_over(values: Sequence[Any], count: int) -> list[Any]:
    """Keep `count` of the values, with as many different ones as possible, in their order."""
    try:
        kinds = list(dict.fromkeys(values))
    except TypeError:
        return list(values[:count])
    return sorted([*kinds, *values][:count], key=list(values).index) if kinds else []


def tiny_model(name: str, dtype: torch.dtype, decoder: bool) -> Any:
    """Create a small random model of a type.

    Args:
        name: name of the type.
        dtype: dtype of its weights.
        decoder: whether to set `is_decoder`, which some types need for causal attention.

    Raises:
        UnfitError: transformers raises an error, or the model is not small.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    model_class = getattr(transformers, kind if isinstance(kind, str) else kind[0])
    try:
        config_class = model_class.config_class
        config = shrink(config_class(), decoder)
        config = shrink(config_class.from_dict(config.to_dict()), decoder)
    except Exception as error:  # third-party configurations raise any type
        try:
            config = shrink(config_class(), decoder)
        except Exception:
            raise UnfitError(f"configuration: {_first_line(error)}") from error
    try:
        with torch.device("meta"):
            count = model_class(config).num_parameters()
    except Exception as error:
        raise UnfitError(f"model: {_first_line(error)}") from error
    if count > MOST_PARAMETERS:
        raise UnfitError(f"its smallest model has {count / 1e6:.0f} million weights")
    torch.manual_seed(0)
    model = model_class(config).to(dtype).eval()
    for parameter in model.parameters():  # biases and scales vary as after training
        if parameter.is_floating_point() and parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def vocabulary_of(width: int) -> gcd.Vocabulary:
    """Create a vocabulary of bytes, as wide as a model's logits."""
    tokens = [bytes([byte]) for byte in range(256)] + [b""] * (width - 256)
    return gcd.Vocabulary.from_bytes(tokens, eos_ids=[EOS])


def log_p(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return log p of the next token from a single pass over one sequence, in float64."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    return logits[0, -1].double().log_softmax(-1)


def truth(model: Any, prompt: Sequence[int]) -> dict[bytes, float]:
    """Return log p of each answer with EOS after a prompt, from single passes."""
    after = {
        prefix: log_p(model, [*prompt, *prefix])
        for prefix in {answer[:end] for answer in ANSWERS for end in range(len(answer) + 1)}
    }
    return {
        answer: sum(float(after[answer[:end]][answer[end]]) for end in range(len(answer)))
        + float(after[answer][EOS])
        for answer in ANSWERS
    }


def difference(model: Any) -> float:
    """Return the largest difference of log p between posterior and single passes, in nats."""
    width = len(log_p(model, PROMPTS[0]))
    vocabulary = vocabulary_of(width)
    lm = smc.TransformersLM(model, None, vocabulary)
    constraint = gcd.lift(gcd.regex("[ab]{1,2}"), vocabulary)
    found = smc.sample(
        lm, PROMPTS, constraint, max_tokens=4, particles=64, proposal=smc.GCD(),
        algorithm=smc.Discrete(count_finished=False, floor=0),
    )  # fmt: skip
    worst = 0.0
    for prompt, posterior in zip(PROMPTS, found, strict=True):
        expected = truth(model, prompt)
        assert posterior.log_evidence is not None
        given = {
            text.encode(): posterior.log_evidence + math.log(share)
            for text, share in zip(posterior.texts, posterior.probabilities, strict=True)
        }
        if given.keys() != expected.keys():
            return math.inf
        worst = max(worst, *(abs(given[text] - expected[text]) for text in ANSWERS))
    return worst


def check(name: str, dtype: torch.dtype, decoder: bool) -> Outcome:
    """Sample from a tiny model of a type, and compare."""
    try:
        model = tiny_model(name, dtype, decoder)
        log_p(model, PROMPTS[0])
    except UnfitError as error:
        return Outcome(name, "not run", str(error))
    except Exception as error:  # third-party models raise any type
        return Outcome(name, "not run", f"a pass over text fails: {_first_line(error)}")
    try:
        apart = difference(model)
    except ValueError as error:
        return Outcome(name, "refused", _first_line(error))
    except Exception as error:
        return Outcome(name, "fails", f"{type(error).__name__}: {_first_line(error)}")
    good = apart < 1e-3 if dtype == torch.float32 else apart < 0.5
    return Outcome(name, "right" if good else "wrong", f"{apart:.2g} nats")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def check_all(names: Sequence[str], dtype: torch.dtype, decoder: bool) -> Iterator[Outcome]:
    """Check types one by one, with a progress bar."""
    for name in tqdm(names, unit="type", disable=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield check(name, dtype, decoder)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table of the outcomes: the types of each reason, most types first."""
    types: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, outcome, reason in outcomes:
        # Class names and figures differ between types.
        why = re.sub(r"^[A-Z]\w+ ", "", re.split(r"[:;,]", reason)[0])
        types[outcome, why if outcome == "refused" else ""].append(f"`{name}`")
    lines = ["| outcome | number | model types |", "|---|---|---|"]
    for (outcome, why), names in sorted(types.items(), key=lambda item: -len(item[1])):
        title = f"{outcome}: {why}" if why else outcome
        lines.append(f"| {title} | {len(names)} | {', '.join(names)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="model types (default: all)")
    parser.add_argument("--dtype", default="float32", help="dtype of the weights")
    parser.add_argument("--decoder", action="store_true", help="set is_decoder=True")
    parser.add_argument("--table", type=Path, help="write a table to this Markdown file")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    names = given.names or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    outcomes = []
    for outcome in check_all(names, getattr(torch, given.dtype), given.decoder):
        tqdm.write("  ".join(outcome))
        outcomes.append(outcome)
    if given.table is not None:
        given.table.write_text(table(outcomes) + "\n")
    counts = Counter(outcome.outcome for outcome in outcomes)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    sys.exit(bool(counts["wrong"] + counts["fails"]))


if __name__ == "__main__":
    main()
