"""Settings of `generate` of transformers that the sampler can't honour, refused by name.

A setting comes from the call or from the model's own `generation_config`, which many models bring
along. The message says which, and how to do without it.
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

from smc.decoding.generate_call import passed_by_name
from smc.settings import check_temperature, check_top_p, real

# Config fields that cannot be honoured, with their neutral values, the one to pass last. Other
# fields are honoured, need nothing done, or become a processor or criterion, see below.
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
_DEFAULT_TOP_K = 50  # which `generate` fills in, and itself reads with do_sample=True alone
_HONOURED = (TemperatureLogitsWarper, TopPLogitsWarper, LogitNormalization)
_CRITERIA = (MaxLengthCriteria, EosTokenCriteria)


def set_by_model(model: Any, config: Any) -> set[str]:
    """Return the names of settings that are those of the model's own `generation_config`."""
    own = model.generation_config.to_dict()  # from which `generate` takes what it isn't given
    passed = passed_by_name()
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
    """Refuse what decides about answers in `generate` and would be ignored here.

    Args:
        config: the `GenerationConfig` of the call.
        of_model: which of its settings are the model's, see `set_by_model`.
        processors, criteria: those of the call, with those that `generate` makes of the settings.
        others: arguments that have no place in a configuration.
        prompt_length: tokens of the prompts, padding included.

    Raises:
        ValueError: which settings, whose they are, and how to do without them.
    """
    by_default = config.top_k == _DEFAULT_TOP_K and "top_k" not in of_model | passed_by_name()
    settings = {
        name: value
        for name, neutral in _REFUSED.items()
        if (value := getattr(config, name, None)) not in neutral
        and not (name == "top_k" and by_default and not config.do_sample)
        and not (name == "min_length" and config.min_new_tokens is not None)  # which sets it
    }
    found = [f"{name}={value!r}" for name, value in settings.items()]
    found += [f"{name}={type(value).__name__}" for name, value in others.items()]
    if not found:  # which may have made processors
        found += [
            type(each).__name__
            for each in processors
            if not (isinstance(each, _HONOURED) or _is_idle(each, prompt_length))
        ]
        found += [type(each).__name__ for each in criteria if not isinstance(each, _CRITERIA)]
    if found:
        hint = (
            f" ({_DEFAULT_TOP_K} is the default of generate with do_sample=True: pass top_k=0)"
            if "top_k" in settings and by_default
            else ""
        )
        whose = [name for name in settings if name in of_model]
        advice = [] if len(whose) == len(found) else ["leave this out"]
        if whose:
            sets = ", ".join(f"{name}={settings[name]!r}" for name in whose)
            advice.append(f"generation_config of the model sets {sets}: {_how_to_unset(whose)}")
        raise ValueError(
            f"smc.generate cannot honour {', '.join(found)}{hint}; {'; '.join(advice)}, or decode "
            "with smc.BudgetLogitsProcessor, which works beside it"
        )
    for name, check in (("temperature", check_temperature), ("top_p", check_top_p)):
        try:
            check(1.0 if getattr(config, name) is None else real(name, getattr(config, name)))
        except ValueError as error:
            whose_is_it = (
                f"; generation_config of the model sets {name}={getattr(config, name)!r}: pass "
                f"{name}=1.0 to generate"
            )
            raise ValueError(f"{error}{whose_is_it if name in of_model else ''}") from None


def _how_to_unset(names: list[str]) -> str:
    """Say how to call `generate` without these settings of the model.

    A setting that is passed as None is taken from the model.
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
    """Whether a processor does nothing; `generate` makes this one for min_new_tokens=0."""
    shortest = isinstance(processor, MinLengthLogitsProcessor)
    return shortest and processor.min_length <= prompt_length
