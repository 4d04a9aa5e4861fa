"""Proposals: the protocol, mask proposals, and proposals with a lookahead."""

from __future__ import annotations

from smc._proposals.masks import GCD, LCD, LM, ClassMaskProposal, GreedyClose, MaskProposal
from smc._proposals.position import (
    AutomatonPosition,
    Batch,
    HasPosition,
    Progress,
    State,
    start_position,
)
from smc._proposals.protocol import Proposal

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
