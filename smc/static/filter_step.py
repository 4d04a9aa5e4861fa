"""This module has one step of the discrete filter in static shapes: score, end, select, advance.

It does what `smc.discrete` does, for the same random numbers with the same result, but nothing in
it waits for the host and no shape depends on data. Each example has N slots from the first step to
the last, filled from the first with the prefixes that were kept; a slot without has weight zero.

Answers that end take no slot, and how many there are is not known either. So a step writes down the
weight of every token that may end a text, for every slot, and the prefix that each slot continues;
the texts are read off backwards when all is over (`answers`). What the threshold needs to know of
the answers, the N greatest weights and the sum of the others, is kept up to date beside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from smc.draw import Breaks, Draw, Keys, Purpose
from smc.proposals import Batch, ClassMaskProposal, Proposal
from smc.scores import Scores, compete
from smc.selection import Fixed
from smc.static.candidates import Candidates
from smc.static.forward import Forward
from smc.static.moves import moves
from smc.static.passes import tempered
from smc.static.selection import Kept, select
from smc.twisted import Twisted
from smc.tying import MaskGuide


class FilterSlots(NamedTuple):
    """The slots of a batch, P = B·N of them, and all that was written down so far.

    Attributes:
        log_weight: log W of each slot's prefix; -inf where it has none, or one that is over.
        row: its row of the model's cache.
        step: number of the next step.
        failed: whether the model or the proposal has given what is not a number.
        goes_on: whether any prefix runs.
        whole: for each example, whether nothing has been left out.
        greatest: the N greatest log weights of each example's answers; -inf where there are fewer.
        rest: log of the sum of the others.
        state: the proposal's state, one row for each slot.
        logits: log-probabilities of the next token, to an added constant, by rows of the model.
        parents: the slot that each slot continued, in each step.
        tokens: by which token.
        ended: log weight of the answers that ended in each step, by slot and ending token.
    """

    log_weight: Float64[Tensor, "P"]
    row: Int64[Tensor, "P"]
    step: Int64[Tensor, ""]
    failed: Bool[Tensor, ""]
    goes_on: Bool[Tensor, ""]
    whole: Bool[Tensor, "B"]
    greatest: Float64[Tensor, "B N"]
    rest: Float64[Tensor, "B"]
    state: Any
    logits: Float[Tensor, "P V"]
    parents: Int64[Tensor, "T P"]
    tokens: Int64[Tensor, "T P"]
    ended: Float64[Tensor, "T P E"]


class FilterRules(NamedTuple):
    """What is the same at every step; see `smc.discrete.DiscreteFilter`.

    Attributes:
        examples: identity of each example, which names its random numbers.
        ending: tokens that end a text of each slot's automaton in some state; -1 for none.
        candidates: how to go over the vocabulary.
    """

    proposal: Proposal[Any]
    forward: Forward
    examples: Int64[Tensor, "B"]
    num_particles: int
    count_finished: bool
    share: float
    floor: float
    temperature: float
    draw: Draw
    ending: Int64[Tensor, "P E"]
    candidates: Candidates


def ending_tokens(automata: AutomatonBatch) -> Int64[Tensor, "B E"]:
    """Lists the tokens that end a text in some state of each automaton, by class; -1 for none."""
    lists = []
    for number, automaton in enumerate(automata.automata):
        classes = (automaton.delta == automaton.num_states - 1).any(axis=0)
        tokens = automata.classes.tokens[number].cpu().numpy()
        lists.append(tokens[classes[automaton.class_of[tokens]]])
    padded = np.full((len(lists), max(map(len, lists))), -1, np.int64)
    for row, tokens in zip(padded, lists, strict=True):
        row[: len(tokens)] = tokens
    return torch.from_numpy(padded).to(automata.class_of.device)


def start(
    rules: FilterRules, batch: Batch, logits: Float[Tensor, "P V"], columns: int
) -> FilterSlots:
    """Puts the empty prefix into the first slot of each example."""
    B, N, device = len(rules.examples), rules.num_particles, logits.device
    P, E = B * N, rules.ending.shape[1]
    number = torch.arange(P, device=device)
    state = rules.proposal.take(rules.proposal.start(batch), number // N)
    first = number % N == 0
    nothing = torch.full((P,), -torch.inf, dtype=torch.float64, device=device)
    # An automaton that ends by itself may accept the empty answer: nothing is left to draw.
    over = (first & state.walk.finished).view(B, N)
    return FilterSlots(
        log_weight=torch.where(first & state.walk.running, 0.0, nothing),
        row=number,
        step=torch.zeros((), dtype=torch.int64, device=device),
        failed=torch.zeros((), dtype=torch.bool, device=device),
        goes_on=(first & state.walk.running).any(),
        whole=torch.ones(B, dtype=torch.bool, device=device),
        greatest=torch.where(over, 0.0, -torch.inf).double(),
        rest=nothing[:B].clone(),
        state=state,
        logits=logits,
        parents=torch.zeros(columns, P, dtype=torch.int64, device=device),
        tokens=torch.zeros(columns, P, dtype=torch.int64, device=device),
        ended=nothing.repeat(columns * E).view(columns, P, E),
    )


def step(rules: FilterRules, slots: FilterSlots) -> FilterSlots:
    """Takes all prefixes that run one token further."""
    B, N = len(rules.examples), rules.num_particles
    runs = ~slots.log_weight.isneginf()
    log_p = tempered(slots.logits, rules.temperature)[slots.row]
    # After no prefix a model may say anything; what is not a number would weigh more than nothing.
    log_p.masked_fill_(~runs.unsqueeze(1), 0.0)
    scores = score(rules.proposal, slots.state, log_p)
    wrong = log_p.sum(dim=1).isnan() | scores.factors.by_class.isnan().any(dim=1)
    wrong = wrong | scores.factors.by_token.isnan().any(dim=1)

    ended = _ended(rules, scores, log_p, slots.log_weight)
    each = torch.cat([slots.greatest, ended.view(B, -1)], dim=1)
    greatest, place = each.topk(N, dim=1)
    left = each.scatter(1, place, -torch.inf).logsumexp(dim=1)
    rest = torch.logaddexp(slots.rest, left)

    example = torch.arange(B * N, device=log_p.device) // N
    rivals = compete(scores, log_p, slots.log_weight, example, B, rules.share)
    fixed = None
    if rules.count_finished:
        unit = rivals.log_unit
        fixed = Fixed(greatest + unit.unsqueeze(1), rest + unit)

    def uniform(breaks: Breaks) -> Float64[Tensor, "B"]:
        keys = Keys(rules.examples, torch.zeros_like(rules.examples), slots.step, Purpose.SELECTION)
        return rules.draw(keys, breaks)

    kept = select(
        log_p, rivals.factors, N, uniform, rules.candidates, floor=rules.floor, fixed=fixed
    )
    parents = _parents(kept, N)
    gain = log_p[kept.row, kept.token].double() - kept.log_pi
    log_weight = torch.where(kept.taken, slots.log_weight[kept.row] + gain, -torch.inf)
    state = rules.proposal.advance(
        rules.proposal.take(slots.state, parents),
        torch.where(kept.taken, kept.token, -1).unsqueeze(1),
    )
    log_weight = log_weight.masked_fill(~state.walk.running, -torch.inf)

    moved = moves(parents, slots.row, N)
    read = torch.zeros_like(kept.token).scatter(0, moved.row, kept.token)
    logits = rules.forward.step(read, moved.source, slots.step)
    now = slots.step.view(1)
    return FilterSlots(
        log_weight=log_weight,
        row=moved.row,
        step=slots.step + 1,
        failed=slots.failed | (wrong & runs).any(),
        goes_on=(~log_weight.isneginf()).any(),
        whole=slots.whole & ~kept.dropped,
        greatest=greatest,
        rest=rest,
        state=state,
        logits=logits,
        parents=slots.parents.index_copy(0, now, parents.unsqueeze(0)),
        tokens=slots.tokens.index_copy(0, now, kept.token.unsqueeze(0)),
        ended=slots.ended.index_copy(0, now, ended.unsqueeze(0)),
    )


def score(proposal: Proposal[Any], state: Any, log_p: Float[Tensor, "P V"]) -> Scores:
    """Asks the proposal for scores, without waiting to see whether they are numbers."""
    if isinstance(proposal, Twisted):
        return proposal.unchecked_score(state, log_p)
    walk = state.walk
    outlook = walk.outlook()
    # The language model's own g is one for every token, so by class, too.
    alive = (
        proposal.alive(walk)
        if isinstance(proposal, ClassMaskProposal)
        else torch.ones_like(outlook.ends)
    )
    factors = MaskGuide(log_p, alive, outlook.classes, outlook.which).factors
    return Scores(factors, alive, outlook, is_indicator=True)


def _ended(
    rules: FilterRules,
    scores: Scores,
    log_p: Float[Tensor, "P V"],
    log_weight: Float64[Tensor, "P"],
) -> Float64[Tensor, "P E"]:
    """Log weight of every prefix with each of the tokens that may end it."""
    outlook, token = scores.outlook, rules.ending.clamp(min=0)
    klass = outlook.classes.of[outlook.which.unsqueeze(1), token].long()
    ends = (scores.alive & outlook.ends).gather(1, klass) & (rules.ending >= 0)
    weight = log_weight.unsqueeze(1) + log_p.gather(1, token).double()
    return torch.where(ends, weight, -torch.inf)


def _parents(kept: Kept, N: int) -> Int64[Tensor, "P"]:
    """The slot whose prefix each slot has now; where it has none, one that nobody continues.

    So the row of a slot without a prefix stays where it is, and is not made a copy of another.
    """
    number = torch.arange(len(kept.row), device=kept.row.device)
    continued = torch.zeros_like(kept.taken, dtype=torch.int8)
    continued = continued.scatter_reduce(0, kept.row, kept.taken.to(torch.int8), "amax").bool()
    place = (~kept.taken).view(-1, N).cumsum(dim=1) - 1
    local = number.view(-1, N) % N
    free = torch.where(continued.view(-1, N), N, local).sort(dim=1).values
    spare = free.gather(1, place.clamp(min=0)).clamp(max=N - 1) + number.view(-1, N)[:, :1]
    return torch.where(kept.taken, kept.row, spare.flatten())


class Answers(NamedTuple):
    """The answers that ended, by example and in the order in which they did.

    Attributes:
        example: index in the batch.
        tokens: theirs; -1 beyond their length.
        log_weight: of each.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    log_weight: Float64[Tensor, "M"]


def answers(rules: FilterRules, slots: FilterSlots, empty: Bool[Tensor, "B"]) -> Answers:
    """Reads the answers off, on the host; `empty` says whose one answer is the empty one."""
    N = rules.num_particles
    ended = slots.ended.cpu()
    parents, tokens, ending = slots.parents.cpu(), slots.tokens.cpu(), rules.ending.cpu()
    time, slot, which = (~ended.isneginf()).nonzero(as_tuple=True)
    texts = torch.full((len(time), len(ended)), -1)
    every = torch.arange(len(time))
    texts[every, time] = ending[slot, which]
    weight, example = ended[time, slot, which], slot // N
    for column in reversed(range(len(ended) - 1)):
        before = time > column
        texts[before, column] = tokens[column, slot[before]]
        slot[before] = parents[column, slot[before]]
    none = empty.cpu().nonzero().squeeze(1)
    example = torch.cat([none, example])
    texts = torch.cat([texts.new_full((len(none), texts.shape[1]), -1), texts])
    weight = torch.cat([weight.new_zeros(len(none)), weight])
    order = torch.sort(example, stable=True).indices
    device = slots.ended.device
    return Answers(*(part[order].to(device) for part in (example, texts, weight)))
