"""Rejection of `generate` settings that the sampler doesn't support.

A setting comes from the call, or from the model's own `generation_config`, which is part of many
models. The error names the source, and how to unset the setting.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    LogitNormalization,
    MinLengthLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

from smc._inference.settings import check_temperature, real
from smc._transformers.generate_call import list_passed

# Unsupported fields of the configuration with the values that have no effect. The error message
# recommends the last value. All other fields are supported, have no effect here, or become a
# processor or criterion, which is checked separately.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
    "dola_layers": (None,),
    "top_k": (None, 0),
    "top_h": (None,),
    "min_p": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "sequence_bias": (None,),
    "bad_words_ids": (None,),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "max_time": (None,),
    "stop_strings": (None,),
    "remove_invalid_values": (None, False),
    "watermarking_config": (None,),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
}
_DEFAULT_TOP_K = 50  # the default of `generate`, which only applies with do_sample=True
_HONORED = (TemperatureLogitsWarper, TopPLogitsWarper, LogitNormalization)
_CRITERIA = (MaxLengthCriteria, EosTokenCriteria)


def set_by_model(model: Any, config: Any) -> set[str]:
    """Return the names of settings that come from the model's own `generation_config`."""
    own = model.generation_config.to_dict()  # `generate` uses it as default
    passed = list_passed()
    return {
        name
        for name, value in own.items()
        if value is not None and name not in passed and getattr(config, name, None) == value
    }


def refuse_settings(
    config: Any,
    of_model: set[str],
    processors: Any,
    criteria: Any,
    others: dict[str, Any],
    prompt_length: int,
) -> None:
    """Raise an error for settings that affect other decoding methods, but not `smc.generate`."""
    by_default = config.top_k == _DEFAULT_TOP_K and "top_k" not in of_model | list_passed()
    settings = {
        name: value
        for name, neutral in _REFUSED.items()
        if (value := getattr(config, name, None)) not in neutral
        and not (name == "top_k" and by_default and not config.do_sample)
        # `generate` sets min_length itself if min_new_tokens is given.
        and not (name == "min_length" and config.min_new_tokens is not None)
    }
    found = [f"{name}={value!r}" for name, value in settings.items()]
    found += [f"{name}={type(value).__name__}" for name, value in others.items()]
    if not found:  # unsupported settings may have created processors, which needn't be named, too
        found += [
            type(each).__name__
            for each in processors
            if not (isinstance(each, _HONORED) or _is_idle(each, prompt_length))
        ]
        found += [type(each).__name__ for each in criteria if not isinstance(each, _CRITERIA)]
    if found:
        hint = (
            f" ({_DEFAULT_TOP_K} is the default of generate with do_sample=True: pass top_k=0)"
            if "top_k" in settings and by_default
            else ""
        )
        whose = [name for name in settings if name in of_model]
        advice = [] if len(whose) == len(found) else ["omit it"]
        if whose:
            sets = ", ".join(f"{name}={settings[name]!r}" for name in whose)
            advice.append(f"the model's generation_config sets {sets}: {_how_to_unset(whose)}")
        got, remedy = ", ".join(found) + hint, "; ".join(advice)
        raise ValueError(
            f"expected settings that smc.generate supports, got {got}; {remedy}, or use "
            "smc.BudgetLogitsProcessor, which supports it"
        )
    for name, check in (("temperature", check_temperature), ("top_p", check_top_p)):
        try:
            check(1.0 if getattr(config, name) is None else real(name, getattr(config, name)))
        except ValueError as error:
            if name not in of_model:
                raise
            raise ValueError(
                f"{error}; the model's generation_config sets {name}={getattr(config, name)!r}: "
                f"pass {name}=1.0 to generate"
            ) from None


def check_top_p(top_p: float) -> float:
    """Return top_p if it is valid; raise an error otherwise."""
    if not 0 < top_p <= 1:
        raise ValueError(f"expected top_p to be in (0, 1], got {top_p}")
    return top_p


def _how_to_unset(names: list[str]) -> str:
    """Return advice on how to unset settings of the model's own `generation_config`.

    Passing None doesn't unset a setting, because `generate` then uses the model's value.
    """
    neutral = {name: _REFUSED[name][-1] for name in names}
    passed = ", ".join(f"{name}={value!r}" for name, value in neutral.items() if value is not None)
    steps = [f"pass {passed} to generate"] if passed else []
    steps += [
        f"set model.generation_config.{name} = None"
        for name, value in neutral.items()
        if value is None
    ]
    return " and ".join(steps)


def _is_idle(processor: Any, prompt_length: int) -> bool:
    """Return whether a processor has no effect, such as the processor of min_new_tokens=0."""
    shortest = isinstance(processor, MinLengthLogitsProcessor)
    return shortest and processor.min_length <= prompt_length
