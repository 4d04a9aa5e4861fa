"""This module has the hidden Markov model: how a token sequence comes about, state by state.

    h_1 ~ initial,      h_{t+1} ~ A[h_t, ·],      x_t ~ emission[·, h_t]

The model sees generated tokens only, EOS among them, never the prompt. Emissions are stored
token-major (V x H): inference wants the likelihood of *given tokens* under every state, and that
is then one contiguous row a token. (Gathering 64 tokens' rows of a table for 128 000 takes a
thirtieth of the time that 64 columns take.) So rows are likelihoods and *columns* are
distributions.

All parameters are probabilities, not logarithms, and recursions keep a running normaliser
(`hmm.inference`). Emissions are by far the largest part (V H of V H + H² + H numbers), and may be
kept in bfloat16 while the rest is float32: the rows that are gathered are widened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hmm.transition import Transition, check_distribution, factor_shapes, from_factors


@dataclass(frozen=True, eq=False)
class HMM:
    """A hidden Markov model with H states over V tokens.

    Attributes:
        initial: initial[h] = P(first state is h).
        transition: P(next state | state), `Dense` or `Monarch`.
        emission: emission[v, h] = P(token is v | state is h); columns sum to one.

    Shapes are checked here, values by `check`, which reads every parameter.

    Raises:
        ValueError: if the parts disagree about H or about the type.
    """

    initial: Float[Tensor, "H"]
    transition: Transition
    emission: Float[Tensor, "V H"]

    def __post_init__(self) -> None:
        if self.initial.dim() != 1 or self.emission.dim() != 2:
            raise ValueError(
                "an HMM needs `initial` (H) and `emission` (V x H), not shapes "
                f"{tuple(self.initial.shape)} and {tuple(self.emission.shape)}"
            )
        kinds = {part.dtype for part in (self.initial, *self.transition.factors)}
        if len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
            raise ValueError(
                "initial and transition must be of one floating-point type, not "
                f"{', '.join(sorted(str(kind).removeprefix('torch.') for kind in kinds))}"
            )
        sizes = (self.initial.shape[0], self.transition.num_states, self.emission.shape[1])
        if len(set(sizes)) != 1:
            raise ValueError(
                "initial, transition and emission must have the same number of states, "
                f"not {sizes[0]}, {sizes[1]} and {sizes[2]}; emission is token-major, V x H"
            )

    @property
    def num_states(self) -> int:
        return self.initial.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.emission.shape[0]

    @property
    def num_parameters(self) -> int:
        """Numbers stored. (Degrees of freedom are one fewer for each distribution.)"""
        parts = (self.initial, *self.transition.factors, self.emission)
        return sum(part.numel() for part in parts)

    @property
    def device(self) -> torch.device:
        return self.initial.device

    @property
    def dtype(self) -> torch.dtype:
        """The type that inference computes in: that of `initial` and the transitions."""
        return self.initial.dtype

    def check(self) -> None:
        """Check that parameters are probabilities and that distributions sum to one.

        Raises:
            ValueError: otherwise, naming the part, the distribution and its sum.
        """
        check_distribution("`initial`", self.initial)
        self.transition.check()
        check_distribution("`emission` (columns)", self.emission, dim=0)

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        emission_dtype: torch.dtype | None = None,
    ) -> HMM:
        """Return the model on another device, or in other types.

        Args:
            device: None leaves it where it is.
            dtype: of `initial` and transitions, and of emissions unless these are told apart.
            emission_dtype: bfloat16 halves the memory of the largest part.
        """
        return HMM(
            self.initial.to(device=device, dtype=dtype),
            self.transition.to(device=device, dtype=dtype),
            self.emission.to(device=device, dtype=emission_dtype or dtype),
        )

    def normalised(self, dtype: torch.dtype | None = None) -> HMM:
        """Return the model with every distribution divided by its sum.

        What is stored rounded sums to one within its precision only.

        Args:
            dtype: to divide in; None is that of each array, float32 at least.
        """

        def divided(part: Tensor, dim: int = -1) -> Tensor:
            part = part.to(dtype or torch.promote_types(part.dtype, torch.float32))
            return part / part.sum(dim=dim, keepdim=True)

        return HMM(
            divided(self.initial),
            from_factors(tuple(divided(part) for part in self.transition.factors)),
            divided(self.emission, dim=0),
        )

    @classmethod
    def random(
        cls,
        num_states: int,
        num_tokens: int,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        monarch: bool | int = False,
        concentration: float | int = 1.0,
    ) -> HMM:
        """Draw every distribution from a symmetric Dirichlet; all entries are positive.

        Args:
            generator: on `device`; None is torch's own.
            monarch: False for a full matrix, M for Monarch factors with blocks of M x M and
                (H/M) x (H/M), True for the two most nearly equal.
            concentration: 1 is uniform over distributions, less is nearer to deterministic.

        Raises:
            ValueError: if a size is not positive, or M does not divide H.
        """
        if num_states < 1 or num_tokens < 1 or not concentration > 0:
            raise ValueError(
                "a random HMM needs at least one state and token and a positive concentration, "
                f"not {num_states}, {num_tokens} and {concentration}"
            )

        wide = torch.promote_types(dtype, torch.float32)

        def dirichlet(*shape: int, dim: int = -1) -> Tensor:
            """Normalised gamma variables; exponential ones where the concentration is one."""
            weights = torch.full(shape, concentration, dtype=wide, device=device)
            if concentration == 1.0:
                weights.exponential_(generator=generator)
            else:
                weights = torch._standard_gamma(weights, generator=generator)
            # A gamma variable of small shape may round to zero; positive parameters are promised.
            weights.clamp_(min=torch.finfo(wide).tiny ** 0.5)
            return weights.div_(weights.sum(dim=dim, keepdim=True)).to(dtype)

        shapes = factor_shapes(num_states, monarch)
        return cls(
            dirichlet(num_states),
            from_factors(tuple(dirichlet(*shape) for shape in shapes)),
            dirichlet(num_tokens, num_states, dim=0),
        )
