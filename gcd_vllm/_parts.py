"""Parts of particles: requests to an engine, and the tokens that it draws for them.

If particles may be resampled, they are drawn in parts of about `chunk` tokens. After a part, the
tokens so far are resubmitted at the end of the prompt. An engine's prefix cache has the keys and
values of whole blocks of B tokens. For a prompt of k B + 1 tokens, it has all keys and values
except the last token's. So a part ends one token after the end of a block.

In a *round*, the next parts of all running particles are drawn.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from gcd import TokenAutomaton, Vocabulary
from gcd_vllm._hmm_registry import PGCD
from gcd_vllm._particle_request import ParticleRequest
from smc import SMC


class Plan(NamedTuple):
    """Settings that are the same for all prompts of a call."""

    particles: int  # N, the number of particles per prompt
    proposal: str  # "gcd", "lcd" or "pgcd"
    temperature: float  # T, the sampling temperature
    seed: int  # seed of all random numbers
    chunk: int | None  # minimum number of tokens of a part; None if each answer is one part
    resampling: SMC  # options of resampling between parts
    pgcd: PGCD | None = None  # the HMM and options of "pgcd"; None for the other proposals


class ParticleTask(NamedTuple):
    """One prompt with its constraint and budget."""

    name: int  # the prompt's identity, from which its random numbers are derived
    prompt: tuple[int, ...]
    constraint: str  # JSON text of the constraint, with the budget
    automaton: TokenAutomaton  # the constraint, lifted
    budget: int  # maximum number of tokens of an answer, EOS included


class PartRequest(NamedTuple):
    """A request for the next tokens of one particle."""

    example: int  # index of its prompt in the call
    particle: int  # its number within the example
    constraint: str  # JSON text of the constraint, with the budget of the whole answer
    prompt: tuple[int, ...]
    prefix: tuple[int, ...]  # tokens of the answer so far
    max_tokens: int  # maximum number of tokens of this part
    seed: int  # seed of the part's random numbers
    temperature: float  # T, the sampling temperature
    weighted: ParticleRequest  # the request for its weights, without a key


class DrawnPart(NamedTuple):
    """Tokens that an engine has drawn for a part."""

    ids: tuple[int, ...]  # the tokens, EOS included
    # log p - log q of each token; for a mask, the log of the model's probability of all allowed
    # tokens
    log_z: tuple[float, ...]
    log_p: tuple[float, ...]  # log-probability of each token under the model
    # Number of tokens of the part's prompt and prefix that were in the prefix cache
    cached: int = 0
    # Number of tokens that the engine computed again, without its prefix cache, to report log p
    scored: int = 0
    # log of the HMM's probability (P-GCD) that the answer is completed within its budget after
    # these tokens; 0 if it isn't known
    log_potential: float = 0.0


class EngineStoppedError(RuntimeError):
    """Raised if an engine stops, fails or is killed while it draws; `__cause__` is its error."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"expected a running engine, got one that stopped ({type(cause).__name__}: {cause}); "
            "start it again, and call with the same seed"
        )


class Engine(Protocol):
    """An engine that draws parts (several tokens of a particle): vLLM here, or a server."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the engine's model."""
        ...

    @property
    def context(self) -> int:
        """Maximum number of tokens of prompt and answer together."""
        ...

    @property
    def block_size(self) -> int | None:
        """Number of tokens in a block of the prefix cache; None if unknown or without a cache."""
        ...

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return a prompt as token ids."""
        ...

    def keep(self, automaton: TokenAutomaton) -> dict[str, str]:
        """Store an automaton in the engine; return a constraint with which requests refer to it.

        An engine that only accepts constraints that it compiles itself raises an error.
        """
        ...

    def check(self, tasks: Sequence[ParticleTask], plan: Plan) -> None:
        """Raise `ValueError` for settings that the engine doesn't support.

        Also if it would stop while it reads the prompts.
        """
        ...

    def draw(self, parts: Sequence[PartRequest]) -> list[DrawnPart]:
        """Draw the tokens of all parts."""
        ...


def part_end(prompt: int, taken: int, budget: int, chunk: int, block: int | None) -> int:
    """Return the number of tokens that the answer will have after its next part."""
    end = taken + chunk
    if block is not None and 1 < block <= chunk:
        end += -(prompt + end - 1) % block
    return min(end, budget)


class PartRecord(NamedTuple):
    """Cost of one round for one prompt: of the parts that its running particles drew.

    Attributes:
        admissions: number of requests.
        prompt_tokens: number of tokens of the requests' prompts, including answers so far.
        cached_tokens: how many of these tokens were found in the prefix cache.
        drawn_tokens: number of tokens that the engine drew.
        ess: effective sample size of the weights after the round.
        resampled: whether particles were resampled after the round.
        scored_tokens: number of tokens that the model computed again to report their
            log-probabilities (over HTTP only).
    """

    admissions: int
    prompt_tokens: int
    cached_tokens: int
    drawn_tokens: int
    ess: float
    resampled: bool
    scored_tokens: int = 0

    @property
    def recomputed_tokens(self) -> int:
        """Number of prompt tokens that the model computed in this round."""
        return self.prompt_tokens - self.cached_tokens


def request_seed(seed: int, example: int, particle: int, part: int) -> int:
    """Return the seed of one part of one particle, from 0 to 2^63 - 1."""
    low = [number & ((1 << 64) - 1) for number in (seed, example, particle, part)]
    digest = blake2b(struct.pack("<4Q", *low), digest_size=8, person=b"gcd particle").digest()
    return int.from_bytes(digest, "little") >> 1
