"""A custom proposal: draw some tokens more often; the weights correct for it."""

import math

import torch

import gcd
import smc


class Favor(smc.GCD):
    """GCD that draws the given tokens `factor` times as often."""

    def __init__(self, tokens: list[int], factor: float) -> None:
        self.tokens, self.factor = tokens, factor

    def guide(self, state, log_p):
        """Return log g of every token; g must be positive exactly where GCD's mask is."""
        allowed = state.mask.mask(state.states, state.remaining)
        log_g = torch.zeros(log_p.shape, dtype=torch.float64)
        log_g[:, self.tokens] = math.log(self.factor)
        return smc.Factors.dense(log_g.masked_fill(~allowed, -torch.inf))


lm = smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
constraint = gcd.lift(gcd.regex(r" (red|green|blue)( and (red|green|blue))?\."), lm.vocabulary)
for proposal in (smc.GCD(), Favor(lm.encode(" and"), factor=3.0)):
    # "smc" draws from the proposal; the default algorithm, a discrete filter, doesn't draw tokens.
    (found,) = smc.sample(
        lm, ["My favorite color is"], constraint, max_tokens=8, particles=16, proposal=proposal,
        algorithm="smc",
    )  # fmt: skip
    print(type(proposal).__name__, found.majority, f"{found.log_evidence:.2f}")
