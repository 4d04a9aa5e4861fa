"""Models to time, a synthetic vocabulary, and scripts of fixed tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import torch
from omegaconf import DictConfig

import gcd
import smc
from experiments.models import SHAPE, load_model, resolve_device
from smc import TransformersLM
from smc.captured import Forward
from smc.testing import ToyLM

SHAPE_TOKENS = 128_256
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 200},
        "kind": {"enum": ["request", "answer", "remark"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99999},
        "parts": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "parts"],
    "additionalProperties": False,
}
"""Constraint with free strings, a choice, a number and a list."""


def load_or_make(config: DictConfig) -> TransformersLM:
    """Load the model of the run, or make one of the paper's shape with random weights.

    Raises:
        ValueError: the model can't be loaded.
    """
    if config.model.path != SHAPE:
        return load_model(config.model)[0]
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=SHAPE_TOKENS,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        bos_token_id=0,
        eos_token_id=SHAPE_TOKENS - 1,
    )
    device, before = resolve_device(config.model.device), torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.model.dtype))
    try:
        with device, torch.random.fork_rng():
            torch.manual_seed(0)
            model: Any = LlamaForCausalLM(shape)
    finally:
        torch.set_default_dtype(before)
    return TransformersLM(model, None, make_vocabulary(SHAPE_TOKENS))


def make_vocabulary(size: int) -> gcd.Vocabulary:
    """Make a vocabulary of a given size: bytes, tokens of JSON syntax, and words of letters.

    The last token is EOS. A real tokenizer has more token classes; number and length of the words
    here are realistic.
    """
    tokens = list(islice(dict.fromkeys(_tokens()), size - 1))
    return gcd.Vocabulary.from_bytes([*tokens, b""], [size - 1])


def _tokens() -> Iterator[bytes]:
    yield from (bytes([byte]) for byte in range(256))
    marks = (b'{"', b'":', b'": ', b'", "', b'","', b'"}', b'["', b'"]', b'"]}', b", ", b": ")
    yield from marks
    yield from (b"%d" % number for number in range(10, 1000))
    letters = b"etaoinshrdlucmfwypvbgkjqxz"
    for length in range(2, 5):
        for word in product(letters, repeat=length):
            yield bytes(word)
            yield b" " + bytes(word)


class Scripted:
    """A language model that almost surely outputs the tokens of a script.

    The underlying model is called as usual, and then the script's token gets almost all
    probability. All methods therefore write the same text, whatever the weights, and every run
    ends.

    Args:
        lm: the underlying model.
        tokens: the script.
    """

    def __init__(self, lm: TransformersLM, tokens: list[int]) -> None:
        self._lm, self._tokens = lm, tokens
        self.vocabulary, self.context, self.device = lm.vocabulary, lm.context, lm.device
        self.encode, self.prefill = lm.encode, lm.prefill

    def static_forward(self) -> _ScriptedForward:
        """Return the model in static shapes."""
        tokens = torch.tensor(self._tokens, device=self.device)
        return _ScriptedForward(self._lm.static_forward(), tokens)


class _ScriptedForward:
    """The scripted model in static shapes; see `smc.captured.Forward`."""

    def __init__(self, forward: Forward, tokens: torch.Tensor) -> None:
        self._forward, self._tokens = forward, tokens
        self.rewind = forward.rewind

    def start(self, prompts: Any, num_particles: int, budget: int) -> torch.Tensor:
        """Prefill the prompts."""
        log_p = self._forward.start(prompts, num_particles, budget)
        return self._said(log_p, torch.zeros((), dtype=torch.int64, device=log_p.device))

    def step(self, tokens: torch.Tensor, source: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Process one token of each row."""
        return self._said(self._forward.step(tokens, source, step), step + 1)

    def _said(self, log_p: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        # Not tokens[step], which would synchronize with the host.
        token = self._tokens.index_select(0, step.clamp(max=len(self._tokens) - 1).view(1))
        return log_p.sub(1000.0).index_fill_(1, token, 0.0)


def draw_tokens(constraint: gcd.TokenAutomaton, budget: int) -> list[int]:
    """Draw a text of the constraint, including EOS, of limited length: the longest of 4 draws.

    With random weights the model's own texts would differ between methods and violate the
    constraint, so all methods write this text.
    """
    even = ToyLM(constraint.vocabulary, spread=0.0, dtype=torch.float32)
    drawn: list[tuple[int, ...]] = [
        smc.sample(
            even, [[0]], constraint, max_tokens=budget, particles=1, proposal=smc.GCD(),
            algorithm="smc", seed=seed,
        )[0].particles[0].ids
        for seed in range(4)
    ]  # fmt: skip
    longest = max(drawn, key=len)
    return list(longest)
