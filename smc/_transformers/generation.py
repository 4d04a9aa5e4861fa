"""Sequential Monte Carlo sampling through `model.generate` of `transformers`.

    model.generate(**inputs, custom_generate=smc.generate(constraint), max_new_tokens=60)

`generate` prepares prompts and configuration as usual, and passes them to the decoding function,
which calls `smc.sample`. Each row of `inputs` is a prompt, `max_new_tokens` is the budget,
`temperature` is part of the language model, and `top_p` restricts the proposal. The call returns
sequences that are drawn from each prompt's posterior. With `return_dict_in_generate=True` it also
returns the posteriors. Unsupported settings (beams, penalties, stop strings, an assistant, …) raise
an error that names them, before any forward pass.

A streamer gets the prompt immediately, from `generate`. It gets the answer at the end, because only
then is it known which particle becomes the answer. The stream ends even if an error is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import (
    LogitNormalization,
    MinLengthLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import ModelOutput

from gcd import ConstraintError, TokenAutomaton, Vocabulary, eos_ids_of
from smc._inference.algorithms import SMC, Discrete
from smc._inference.arguments import check_temperature, real, whole
from smc._inference.deadlines import CancelToken, time_limit
from smc._inference.execution import Hooks, Settings, hooks_of
from smc._interface.interface import sample
from smc._models.suitability import check_kind, check_state, num_logits
from smc._models.transformers_internals import CACHE_ARGUMENTS
from smc._models.transformers_lm import TransformersLM
from smc._proposals import GCD, Proposal
from smc._results.posterior import Posterior, Sample
from smc._results.reliability import reliability_of
from smc._transformers.generate_call import extra_arguments, list_passed
from smc._transformers.logits_processor import check_constraints
from smc._vocabulary.draw import Keys, Purpose, categorical, uniform
from smc._vocabulary.factors import Factors, defend

_PLUMBING = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", *CACHE_ARGUMENTS}


@dataclass
class GenerateSMCOutput(ModelOutput):
    """The result of `generate` with `return_dict_in_generate=True`.

    Attributes:
        sequences: prompts and answers, padded; `num_return_sequences` rows per prompt.
        posteriors: one posterior over answers per prompt.
    """

    sequences: Tensor | None = None
    posteriors: tuple[Posterior, ...] | None = None


def generate(
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    *,
    particles: int = 16,
    proposal: Proposal[Any] | None = None,
    seed: int | None = None,
    algorithm: str | SMC | Discrete = "auto",
    max_rows: int = 256,
    certify: float | int | None = None,
    deadline: float | int | None = None,
    cancel: CancelToken | None = None,
    hooks: Hooks | None = None,
) -> Callable[..., Tensor | GenerateSMCOutput]:
    """Make `model.generate` sample from p_lm(x | x in C, |x| <= max_new_tokens).

    Pass the returned function as `custom_generate`. It always samples, regardless of `do_sample`;
    `temperature` and `top_p` apply even with `do_sample=False`. The sequences returned for a prompt
    are independent draws from its posterior over N weighted token sequences. Therefore a sequence
    may occur twice, and the most probable answer may be missing; `posteriors[i].majority` has it.
    If all particles of a prompt have weight zero, its answer is only padding. This doesn't happen
    with GCD and P-GCD.

    Args:
        constraint: the constraint C for all prompts, or one per prompt. Lift it to the model's
            vocabulary, `smc.TransformersLM(model, tokenizer).vocabulary`.
        particles, proposal, algorithm, max_rows, certify, hooks: as for `smc.sample`. The default
            proposal is `smc.GCD()`.
        deadline, cancel: as for `smc.sample`. The deadline in seconds begins again with each call
            of `generate`. A function with `cancel` can't be pickled.
        seed: seed of all random numbers. By default it is drawn from torch's generator, which
            `torch.manual_seed` controls.

    Returns:
        A function for `custom_generate`, which can be used several times and pickled. It raises the
        errors of `smc.sample`, and `ValueError` for unsupported arguments of `generate`.

    Raises:
        ConstraintError: a constraint is not lifted to tokens.
        ValueError: another argument is invalid.
    """
    check_constraints(constraint)
    chosen = GCD() if proposal is None else proposal
    hooks = hooks_of(hooks, "finished")
    Settings.of(chosen, particles, algorithm, max_rows, certify=certify, hooks=hooks)
    time_limit(deadline, cancel)
    if seed is not None:
        whole("seed", seed)
    settings = {
        "particles": particles, "proposal": chosen, "algorithm": algorithm, "max_rows": max_rows,
        "certify": certify, "deadline": deadline, "cancel": cancel, "hooks": hooks,
    }  # fmt: skip
    return _Decoding(constraint, seed, settings)


class _Decoding:
    """The decoding function for `generate` of `transformers`; it can be pickled and copied.

    Args:
        constraint, seed: as for `generate` of this module.
        settings: the other arguments of `smc.sample`.
    """

    def __init__(
        self,
        constraint: TokenAutomaton | Sequence[TokenAutomaton],
        seed: int | None,
        settings: dict[str, Any],
    ) -> None:
        self._constraint = constraint
        self._seed = seed
        self._settings = settings
        self._last: TransformersLM | None = None  # wrapper of the most recently used model

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        *,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor | GenerateSMCOutput:
        config = generation_config
        others = extra_arguments()
        streamer = others.pop("streamer", None)
        try:
            refuse_settings(
                config,
                set_by_model(model, config),
                logits_processor,
                stopping_criteria,
                others,
                input_ids.shape[1],
            )
            sequences, posteriors = self._draws(model, input_ids, config, model_kwargs)
            if streamer is not None:
                for tokens in sequences[:, input_ids.shape[1] :].cpu().unbind(dim=1):
                    streamer.put(tokens)
        finally:
            if streamer is not None:
                streamer.end()  # the consumer may be waiting for it
        if not config.return_dict_in_generate:
            return sequences
        return GenerateSMCOutput(sequences=sequences, posteriors=tuple(posteriors))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}  # the model isn't shared between processes

    def _draws(
        self, model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, list[Posterior]]:
        constraint = check_constraints(self._constraint)[0]
        _check_model(model, constraint, eos_ids_of(config))
        mask = _prompt_mask(input_ids, model_kwargs)
        pad = _padding(config)
        copies = config.num_return_sequences or 1
        prompts = [row[here].tolist() for row, here in zip(input_ids, mask, strict=True)][::copies]
        seed = self._seed
        if seed is None:
            seed = int(torch.randint(1 << 62, (), device="cpu"))
        top_p = 1.0 if config.top_p is None else config.top_p
        settings = dict(self._settings)
        if top_p < 1:
            settings["proposal"] = restrict(settings["proposal"], top_p)
            if settings["certify"] is not None:
                raise ValueError(
                    f"expected top_p=1 with certify, which needs bounds, got top_p={top_p}; omit "
                    "top_p or certify"
                )
        posteriors = sample(
            self._language_model(model, constraint.vocabulary),
            prompts,
            self._constraint,
            max_tokens=config.max_length - input_ids.shape[1],
            temperature=1.0 if config.temperature is None else config.temperature,
            seed=seed,
            **settings,
        )
        if top_p < 1:
            posteriors = [_mark_inexact(each, settings["particles"]) for each in posteriors]
        answers = [
            list(drawn.ids)
            for index, posterior in enumerate(posteriors)
            for drawn in _draw(posterior, copies, seed, index)
        ]
        width = max(map(len, answers))
        padded = [answer + [pad] * (width - len(answer)) for answer in answers]
        answer_ids = torch.tensor(padded, dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, answer_ids], dim=1), posteriors

    def _language_model(self, model: Any, vocabulary: Vocabulary) -> TransformersLM:
        last = self._last  # another thread may replace it
        if last is None or last.model is not model:
            last = self._last = TransformersLM(model, None, vocabulary)
        return last


def restrict(proposal: Proposal[Any], top_p: float) -> Proposal[Any]:
    """Return a proposal that only draws the most probable tokens of q, up to probability top_p."""
    restricted: Any = copy(proposal)

    def guide(state: Any, log_p: Float[Tensor, "R V"]) -> Factors:
        whole = defend(proposal.guide(state, log_p), log_p)
        log_q = whole.apply(log_p).log_softmax(dim=1)
        ordered, order = log_q.sort(dim=1, descending=True, stable=True)
        before = ordered.exp().cumsum(dim=1) - ordered.exp()
        inside = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, order, before < top_p)
        log_g = torch.where(inside, whole.log_g, -torch.inf)
        return Factors.dense(log_g)._replace(fallback=whole.fallback)

    restricted.guide = guide
    return restricted


def _mark_inexact(found: Posterior, particles: int) -> Posterior:
    """Remove what top_p makes meaningless: the evidence, the bounds, and labels that need them."""
    reliability = reliability_of(
        found.ancestry, len(found.answers), num_particles=particles, log_evidence=-math.inf,
        bounds=None, enumerated=False, stopped=found.stopped is not None,
    )  # fmt: skip
    return replace(
        found, log_evidence=None, exact=False, enumerated=False, bounds=None, budget=None,
        reliability=reliability,
    )  # fmt: skip


def _draw(posterior: Posterior, count: int, seed: int, example: int) -> list[Sample]:
    """Draw token sequences by their weights; empty sequences if the posterior is dead."""
    if posterior.dead:
        return [Sample((), b"", -torch.inf, False, 0.0)] * count
    numbers = torch.arange(count, device="cpu")
    keys = Keys(torch.full_like(numbers, example), numbers, 0, Purpose.POSTERIOR)
    log_weight = torch.tensor(
        [[particle.log_weight for particle in posterior.particles]],
        dtype=torch.float64,
        device="cpu",
    )
    chosen = categorical(log_weight).at(torch.zeros_like(numbers), uniform(seed, keys))
    return [posterior.particles[index] for index in chosen.tolist()]


def _check_model(model: Any, constraint: TokenAutomaton, eos_ids: tuple[int, ...]) -> None:
    """Raise an error for unsuitable models, and for EOS tokens that the constraint lacks."""
    check_kind(model)
    check_state(model)
    vocabulary = constraint.vocabulary
    width = num_logits(model)
    if width != vocabulary.size:
        raise ConstraintError(
            f"expected a constraint over {width} tokens, as in the model, got one over "
            f"{vocabulary.size} tokens; use "
            "gcd.lift(constraint, smc.TransformersLM(model, tokenizer).vocabulary)"
        )
    unknown = [token for token in eos_ids if token not in vocabulary.eos_ids]
    if unknown:
        raise ConstraintError(
            f"expected generate to stop only at the constraint's EOS ids "
            f"{list(vocabulary.eos_ids)}, got the additional EOS ids {unknown}; lift the "
            "constraint to smc.TransformersLM(model, tokenizer).vocabulary, or pass "
            f"eos_token_id={list(vocabulary.eos_ids)}"
        )


def _prompt_mask(input_ids: Int64[Tensor, "R L"], given: dict[str, Any]) -> Bool[Tensor, "R L"]:
    """Return True for ids of the prompt, and False for padding."""
    others = [name for name, value in given.items() if name not in _PLUMBING and value is not None]
    if others:
        raise ValueError(
            f"expected only the inputs input_ids and attention_mask, got {', '.join(others)}; "
            "omit the other inputs"
        )
    for name in CACHE_ARGUMENTS:
        cache = given.get(name)
        if cache is not None and cache.get_seq_length():
            raise ValueError(
                f"expected an empty {name}, got one with {cache.get_seq_length()} tokens; omit it "
                "and pass whole prompts as input_ids"
            )
    mask = given.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    if mask.shape != input_ids.shape or bool((mask.diff(dim=1) < 0).any()):
        raise ValueError(
            "expected attention_mask to be 0 for padding before each prompt and 1 for all later "
            "tokens, got other values; set tokenizer.padding_side = 'left'"
        )
    positions = given.get("position_ids")
    if positions is not None:
        expected = mask.cumsum(dim=1) - 1
        if positions.shape != mask.shape or not torch.equal(positions * mask, expected * mask):
            raise ValueError(
                "expected position_ids that start at 0 in each prompt, got other positions; omit "
                "position_ids"
            )
    return mask.bool()


def _padding(config: Any) -> int:
    """Return the padding token after short answers, chosen as in `generate`."""
    ends = config.eos_token_id
    first = ends[0] if isinstance(ends, list) and ends else ends
    pad = first if config.pad_token_id is None else config.pad_token_id
    if not isinstance(pad, int):
        raise ValueError(
            "expected a model with a padding token, got one without; pass pad_token_id to generate"
        )
    return pad


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
