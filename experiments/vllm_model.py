"""Language models in vLLM, which sample the examples of a run with `gcd_vllm.sample`.

`model.engine=vllm` replaces `smc.sample` on transformers. Constraints, prompts, budgets, seeds and
rows are the same. Methods are those that draw from a mask or from P-GCD, algorithms are those of
`smc`: particles are resampled after parts of about `model.chunk` tokens, not after each token.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf

import gcd_vllm
import smc
from experiments.arms import (
    ALGORITHMS,
    algorithms_of,
    hmm_directory,
    hmm_settings,
    hmms_of,
    is_discrete,
    method_of,
    methods_of,
    names_of_hmms,
)
from experiments.models import ModelConfig, load_model, resolve
from gcd import Vocabulary

_HMMS = "GCD_VLLM_HMMS"
_ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_ON_CPU = {"engine": "transformers", "device": "cpu"}
_AT_ONCE = 4096  # requests; an interrupted run loses those in progress


class VllmModel:
    """A model in a vLLM engine of this process.

    Args:
        path: directory or hub name; with an adapter, that of the merged model.
        settings: the settings `model.*`.
        hmms: directory whose subdirectories are the HMMs of P-GCD; None without P-GCD.

    Raises:
        ValueError: vLLM isn't installed, or doesn't start.
    """

    device = torch.device("cpu")
    """Device of HMMs outside of the engine; only their sizes are used there."""

    def __init__(self, path: str, settings: ModelConfig, hmms: Path | None = None) -> None:
        self._hmms = {} if hmms is None else {_HMMS: str(hmms)}
        try:
            from vllm import LLM
        except ImportError as error:
            raise ValueError(
                f"cannot import vLLM for model.engine=vllm ({error}); install it with "
                "`pip install '.[vllm]'`, or give model.engine=transformers"
            ) from error
        # The engine finds constraints in the memory of this process; workers of tensor parallelism
        # are other processes, and find HMMs by the environment that they start with.
        one_process = {_ONE_PROCESS: os.environ.get(_ONE_PROCESS, "0")}
        with _environment(one_process | self._hmms):
            self.llm = LLM(
                path,
                dtype=settings.dtype,
                seed=0,
                worker_extension_cls="gcd_vllm.WorkerExtension",
                logits_processors=["gcd_vllm:Processor"],
                **dict(settings.engine_args),
            )
        config = self.llm.llm_engine.vllm_config
        self.context = int(config.model_config.max_model_len)
        self.vocabulary: Vocabulary = gcd_vllm.vocabulary_of(self.llm)

    def sample(
        self,
        trial: Any,
        examples: Sequence[Any],
        config: DictConfig,
        proposal: smc.Proposal,
        finished: Callable[[Mapping[int, smc.Posterior]], object] | None = None,
    ) -> None:
        """Sample these examples.

        Args:
            trial: an `examples.Trial`: method, algorithm, number of particles, repetition.
            examples: the examples, of type `examples.Example`.
            config: the configuration of the run.
            proposal: the proposal of the method.
            finished: called with posteriors, by index of the example.
        """
        chosen = ALGORITHMS[trial.algorithm].make(config)
        assert isinstance(chosen, smc.SMC), "check_engine refuses the discrete filter"
        resampled = trial.particles > 1 and chosen.ess_threshold > 0
        size = max(1, _AT_ONCE // trial.particles)
        for start in range(0, len(examples), size):
            some = examples[start : start + size]
            with _environment(self._hmms):
                drawn = gcd_vllm.sample(
                    self.llm,
                    [example.prompt for example in some],
                    [example.constraint for example in some],
                    max_tokens=[example.budget for example in some],
                    particles=trial.particles,
                    proposal=_proposal(trial.method, proposal, config),
                    temperature=config.smc.temperature,
                    seed=trial.seed(config.seed),
                    example_ids=[example.number for example in some],
                    chunk=config.model.chunk if resampled else None,
                    algorithm=chosen if resampled else None,
                )
            if finished is not None:
                finished(dict(enumerate(drawn, start=start)))

    def log_probability(self, prompt: Sequence[int], ids: Sequence[int]) -> float:
        """Compute log p_lm(ids | prompt) at temperature one, in nats, without a constraint."""
        from vllm import SamplingParams

        (answer,) = self.llm.generate(
            [{"prompt_token_ids": [*prompt, *ids]}],
            SamplingParams(max_tokens=1, prompt_logprobs=0),
            use_tqdm=False,
        )
        last = answer.prompt_logprobs[-len(ids) :]
        return sum(float(each[token].logprob) for each, token in zip(last, ids, strict=True))


def load_vllm(config: DictConfig) -> tuple[VllmModel, Any]:
    """Load the model of a checked configuration into an engine, and its tokenizer."""
    from transformers import AutoTokenizer  # slow to import

    settings, hmms = config.model, next(iter(_parents(config)), None)
    if settings.adapter == "none":
        path = resolve(settings.path)
        return VllmModel(path, settings, hmms), AutoTokenizer.from_pretrained(path)
    with TemporaryDirectory() as folder:  # the engine reads it once
        lm, tokenizer = load_model(cast(Any, OmegaConf.merge(settings, _ON_CPU)))
        lm.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del lm
        return VllmModel(folder, settings, hmms), tokenizer


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore their earlier values at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _proposal(method: str, proposal: smc.Proposal, config: DictConfig) -> Any:
    """Return the proposal in the engine's form."""
    if not method_of(method).needs_hmm:
        return proposal
    hmm = hmms_of(config)[method.partition(":")[2]]
    settings = replace(hmm_settings(config, hmm.fitted), **method_of(method).fixed)
    return gcd_vllm.PGCD(
        hmm.directory.resolve().name,
        lookahead=settings.lookahead,
        exact_top_k=settings.exact_top_k,
        defense=settings.defense,
    )


def _parents(config: DictConfig) -> set[Path]:
    """Return the directories that the run's HMMs are in."""
    return {hmm_directory(config, each).resolve().parent for each in names_of_hmms(config)}


def check_engine(config: DictConfig) -> None:
    """Refuse settings that vLLM doesn't have, before anything is loaded.

    Raises:
        ValueError: the message has the setting and the remedy.
    """
    if "methods" not in config.task:
        raise ValueError(
            f"expected a task that compares methods with model.engine=vllm, got "
            f"+task={config.task.name}; leave model.engine out"
        )
    refusals = [
        *(f"the method {name}" for name in methods_of(config) if not _can_draw(name)),
        *(f"the algorithm {name}" for name in algorithms_of(config) if is_discrete(name)),
        *_others(config),
    ]
    if refusals:
        raise ValueError(
            f"model.engine=vllm doesn't have {', '.join(refusals)}: leave "
            f"{'it' if len(refusals) == 1 else 'them'} out, or give model.engine=transformers"
        )


def _can_draw(name: str) -> bool:
    """Return whether the engine has a method: a mask, or P-GCD."""
    base = name.partition(":")[0]
    return base in ("lcd", "gcd") or base.partition("_")[0] == "pgcd"


def _others(config: DictConfig) -> list[str]:
    """Return other settings that the engine doesn't have."""
    model, lacking = config.model, []
    if config.smc.execution != "auto":
        lacking.append(f"smc.execution={config.smc.execution}")
    if model.device != "auto":
        lacking.append(f"model.device={model.device} (see model.engine_args)")
    if model.device_map != "none":
        lacking.append(f"model.device_map={model.device_map} (see model.engine_args)")
    if model.dtype == "float64":
        lacking.append("model.dtype=float64")
    if len(_parents(config)) > 1:
        lacking.append("HMMs in several directories (hmm.paths)")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        lacking.append("several processes under torchrun")
    return lacking
