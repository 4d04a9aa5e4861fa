"""This module makes a proposal one that never waits for the device, or refuses it."""

from __future__ import annotations

from typing import Any

from smc.proposals import GCD, LCD, LM, Proposal
from smc.twisted import Twisted


def in_static_shapes(proposal: Proposal[Any]) -> Proposal[Any]:
    """Returns the proposal as the static step of either algorithm asks it.

    Raises:
        ValueError: it waits, or has a guide or scores of its own, which would not be asked.
    """
    if type(proposal) in (LM, LCD, GCD):
        return proposal
    known = isinstance(proposal, Twisted) and all(
        getattr(type(proposal), name) is getattr(Twisted, name) for name in ("guide", "score")
    )
    if not isinstance(proposal, Twisted) or not known:
        raise ValueError(
            f"the static step knows LM, LCD, GCD and twisted proposals such as PGCD, not "
            f"{type(proposal).__name__}; take smc.sample"
        )
    if proposal.exact_top_k is None:
        raise ValueError(
            "exact_top_k is None, a g for every token, which the static step does not keep; give a "
            "number of tokens"
        )
    return proposal.in_static_shapes()
