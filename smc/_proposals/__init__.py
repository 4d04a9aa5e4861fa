"""Proposals: the protocol, mask proposals, and proposals with a lookahead."""

from __future__ import annotations

from smc._proposals.masks import (
    GCD,
    LCD,
    LM,
    AutomatonPosition,
    Batch,
    ClassMaskProposal,
    GreedyClose,
    HasPosition,
    MaskProposal,
    Progress,
    Proposal,
    State,
    start_position,
)

__all__ = [
    "GCD",
    "LCD",
    "LM",
    "AutomatonPosition",
    "Batch",
    "ClassMaskProposal",
    "GreedyClose",
    "HasPosition",
    "MaskProposal",
    "Progress",
    "Proposal",
    "State",
    "start_position",
]
