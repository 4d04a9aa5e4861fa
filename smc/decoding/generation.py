"""`model.generate` of `transformers` samples weighted answers.

    model.generate(**inputs, custom_generate=smc.generate(constraint), max_new_tokens=60)

`generate` prepares prompts and configuration as always, and then leaves the decoding to a function,
which here is `smc.sample`: each row of `inputs` is a prompt, `max_new_tokens` the budget,
`temperature` a part of the language model and `top_p` of the proposal. What is returned are
sequences, drawn from each prompt's posterior; with `return_dict_in_generate=True` the posteriors
come along. What the sampler cannot honour (beams, penalties, stop strings, an assistant, …) is
refused by name, before the model does any work.

A streamer gets the prompt at once, from `generate`, and the answer when it is drawn: which of the
particles it is, or that it begins as most of them do, is not known before. It is ended in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from transformers.utils import ModelOutput

from gcd.errors import ConstraintError
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary, eos_ids_of
from smc.algorithms import Options
from smc.deadlines import CancelToken, time_limit
from smc.decoding.generate_call import not_handed_on
from smc.decoding.logits_processor import one_or_more
from smc.decoding.refusals import refuse_settings, set_by_model
from smc.drafters import Drafter
from smc.draw import Keys, Purpose, categorical, uniform
from smc.interface import sample
from smc.models.suitability import check_state, check_suitable, num_logits
from smc.models.transformers_lm import TransformersLM
from smc.posterior import Posterior, Sample
from smc.proposals import GCD, Proposal
from smc.settings import MAX_PARTICLES, MAX_TOKENS_READ, settings_of, whole
from smc.transformers_internals import CACHE_ARGUMENTS

_PLUMBING = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", *CACHE_ARGUMENTS}


@dataclass
class GenerateSMCOutput(ModelOutput):
    """What `generate` returns with `return_dict_in_generate=True`.

    Attributes:
        sequences: prompts and answers, padded; `num_return_sequences` rows for each prompt.
        posteriors: the whole distribution over answers, one for each prompt.
    """

    sequences: Tensor | None = None
    posteriors: tuple[Posterior, ...] | None = None


def generate(
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    *,
    particles: int = 16,
    proposal: Proposal[Any] | None = None,
    seed: int | None = None,
    algorithm: str = "auto",
    max_rows: int = 256,
    forced_runs: bool = True,
    read_ahead: int | str = "auto",
    drafter: Drafter | None = None,
    target_error: float | int | None = None,
    max_particles: int = MAX_PARTICLES,
    certify: float | int | None = None,
    max_tokens_read: int = MAX_TOKENS_READ,
    deadline: float | int | None = None,
    cancel: CancelToken | None = None,
    **options: Unpack[Options],
) -> Callable[..., Tensor | GenerateSMCOutput]:
    """Make `model.generate` sample from p_lm(x | x in C, |x| <= max_new_tokens).

    Pass what is returned as `custom_generate`. Particles, not `do_sample`, decide how it samples;
    `temperature` and `top_p` count even without it. The sequences of a prompt are independent draws
    from its posterior, with replacement: of the N weighted token sequences, by their weights. So
    one may come twice, and the most probable answer need not come at all: it is
    `posteriors[i].majority`. A prompt whose particles have all died, which does not happen under
    GCD and P-GCD, gets padding alone.

    Args:
        constraint: the constraint C of all prompts, or one for each, lifted to the model's
            vocabulary (`smc.TransformersLM(model, tokenizer).vocabulary`).
        particles, proposal, algorithm, max_rows, forced_runs, read_ahead, drafter: as for
            `smc.sample`; the proposal is `smc.GCD()` if none is given.
        target_error, max_particles, certify, max_tokens_read: as for `smc.sample`.
        deadline, cancel: as for `smc.sample`; seconds count from each call of `generate` on. A
            function with `cancel` can't be pickled.
        seed: of all random numbers; if not given, it is drawn from torch's generator, so that
            `torch.manual_seed` decides.
        options: of the algorithm, see `smc.sample`.

    Returns:
        A function for `custom_generate`. It raises what `smc.sample` raises, and `ValueError` for
        arguments of `generate` that it cannot honour. It may be used many times, and pickled for
        another process.

    Raises:
        ConstraintError: a constraint is not over tokens.
        ValueError: another argument makes no sense, or an option that the algorithm does not read.
    """
    one_or_more(constraint)
    chosen = GCD() if proposal is None else proposal
    settings_of(
        chosen, particles, algorithm, options, max_rows, forced_runs,
        read_ahead=read_ahead, drafter=drafter, certify=certify, max_tokens_read=max_tokens_read,
        target_error=target_error, max_particles=max_particles,
    )  # fmt: skip
    time_limit(deadline, cancel)
    if seed is not None:
        whole("seed", seed)
    settings = {
        "particles": particles, "proposal": chosen, "algorithm": algorithm, "max_rows": max_rows,
        "forced_runs": forced_runs, "read_ahead": read_ahead, "drafter": drafter,
        "target_error": target_error, "max_particles": max_particles,
        "certify": certify, "max_tokens_read": max_tokens_read,
        "deadline": deadline, "cancel": cancel, **options,
    }  # fmt: skip
    return _Decoding(constraint, seed, settings)


class _Decoding:
    """What `generate` of `transformers` calls to decode; it can be pickled and copied.

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
        self._last: TransformersLM | None = None  # of the model that was used last

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
        others = not_handed_on()
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
                streamer.end()  # which its reader waits for
        if not config.return_dict_in_generate:
            return sequences
        return GenerateSMCOutput(sequences=sequences, posteriors=tuple(posteriors))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}  # another process has a model of its own

    def _draws(
        self, model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, list[Posterior]]:
        constraint = one_or_more(self._constraint)[0]
        _check_model(model, constraint, eos_ids_of(config))
        mask = _prompt_mask(input_ids, model_kwargs)
        pad = _padding(config)
        copies = config.num_return_sequences or 1
        prompts = [row[here].tolist() for row, here in zip(input_ids, mask, strict=True)][::copies]
        seed = self._seed
        if seed is None:
            seed = int(torch.randint(1 << 62, (), device="cpu"))
        posteriors = sample(
            self._language_model(model, constraint.vocabulary),
            prompts,
            self._constraint,
            budget=config.max_length - input_ids.shape[1],
            temperature=1.0 if config.temperature is None else config.temperature,
            top_p=1.0 if config.top_p is None else config.top_p,
            seed=seed,
            **self._settings,
        )
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


def _draw(posterior: Posterior, count: int, seed: int, example: int) -> list[Sample]:
    """Draw token sequences by their weights; empty ones where the posterior is dead."""
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
    """Refuse models that the sampler would misuse, and ends of text that it does not know."""
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder and a decoder, and smc.generate samples from "
            "decoders alone; use smc.BudgetLogitsProcessor"
        )
    check_suitable(model)
    check_state(model)
    vocabulary = constraint.vocabulary
    width = num_logits(model)
    if width != vocabulary.size:
        raise ConstraintError(
            f"the model predicts {width} tokens, the constraint knows {vocabulary.size}; lift it "
            "with gcd.lift(constraint, smc.TransformersLM(model, tokenizer).vocabulary)"
        )
    unknown = [token for token in eos_ids if token not in vocabulary.eos_ids]
    if unknown:
        raise ConstraintError(
            f"generate is to stop at tokens {unknown}, which do not end a text of the constraint, "
            f"as {list(vocabulary.eos_ids)} do; lift it to "
            "smc.TransformersLM(model, tokenizer).vocabulary, or pass "
            f"eos_token_id={list(vocabulary.eos_ids)}"
        )


def _prompt_mask(input_ids: Int64[Tensor, "R L"], given: dict[str, Any]) -> Bool[Tensor, "R L"]:
    """Which ids are prompt and not padding; other inputs of the model are refused."""
    others = [name for name, value in given.items() if name not in _PLUMBING and value is not None]
    if others:
        raise ValueError(
            f"smc.generate reads token ids and attention_mask alone, not {', '.join(others)}"
        )
    for name in CACHE_ARGUMENTS:
        cache = given.get(name)
        if cache is not None and cache.get_seq_length():
            raise ValueError(
                f"{name} holds {cache.get_seq_length()} tokens, but smc.generate computes its "
                "prompts itself; leave it out, and pass whole prompts as input_ids"
            )
    mask = given.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    if mask.shape != input_ids.shape or bool((mask.diff(dim=1) < 0).any()):
        raise ValueError(
            "attention_mask must be zero before each prompt and one from there on; pad on the "
            "left: tokenizer.padding_side = 'left'"
        )
    positions = given.get("position_ids")
    if positions is not None:
        expected = mask.cumsum(dim=1) - 1
        if positions.shape != mask.shape or not torch.equal(positions * mask, expected * mask):
            raise ValueError("smc.generate counts positions from 0 in each prompt; leave out yours")
    return mask.bool()


def _padding(config: Any) -> int:
    """The token behind answers that are shorter than others, as `generate` chooses it."""
    ends = config.eos_token_id
    first = ends[0] if isinstance(ends, list) and ends else ends
    pad = first if config.pad_token_id is None else config.pad_token_id
    if not isinstance(pad, int):
        raise ValueError("the model has no padding token; pass pad_token_id to generate")
    return pad
