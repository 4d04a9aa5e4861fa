"""Upper bounds on the tokens of an answer, without lifting its constraint.

Exact distances require lifting, which follows the vocabulary from every byte state. But upper
bounds are enough to guarantee that answers are finished (docs/first_mask.md). Let w(s) be one
shortest byte string that completes byte state s, and

    U(s) = fewest tokens that spell w(s), EOS included.

One backward breadth-first search finds the next byte of w(s), and the next state, for every state.
Following the vocabulary's trie along w(s) then gives U by dynamic programming:

    U(s) = 1                                                                   if s accepts
    U(s) = 1 + min { U(state after n bytes) : the first n bytes of w(s) are a token }

With D the exact distance (`steps_to_accept` of the lifted state):

* D <= U, because U is the length of an actual spelling.
* Some token leads from s to a state with a bound of at most U(s) - 1. So if U(s) <= r, the mask
  { v : U(delta(s, v)) <= r - 1 } allows at least one token. If U(initial) <= budget, every answer
  is completed within the budget.

Completions only use bytes that are tokens by themselves, so all completions can be spelled. If the
vocabulary lacks a token for some byte, some states may not have such a completion. For these
states, U is `1 + min U` over all of their tokens, computed iteratively. So U is finite if and only
if D is.

Cost: O(states x (byte classes + longest token)); for states without such a completion, the nodes of
the trie.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd._automata.byte_classes import NUM_BYTES
from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.kernels import completions as kernels
from gcd._tokens.trie import Trie

_MOST_VISITS = 1 << 27  # of trie nodes, for vocabularies with missing bytes: half a second


def token_bounds(
    delta: Int32[np.ndarray, "S K"],
    accepting: Bool[np.ndarray, "S"],
    class_of_byte: UInt8[np.ndarray, "256"],
    trie: Trie,
) -> Int32[np.ndarray, "S"] | None:
    """Return an upper bound on the tokens, EOS included, from each byte state to the end.

    Args:
        delta: the state after each byte class, -1 for none; every state leads to acceptance.
        accepting: whether the bytes so far are in the language.
        class_of_byte: the class of each byte.
        trie: the vocabulary's prefix tree.

    Returns:
        The bounds, `UNREACHABLE` where no tokens lead to the end; None if the vocabulary lacks
        tokens for so many bytes that computing the bounds is as expensive as lifting.
    """
    weights, byte_of_class = _choices(class_of_byte, delta.shape[1], trie)
    bounds: np.ndarray = kernels.along_shortest(
        delta,
        accepting,
        byte_of_class,
        weights,
        trie.children,
        trie.byte,
        trie.entry,
        UNREACHABLE,
    )
    if (bounds < UNREACHABLE).all():
        return bounds
    tree = (trie.byte, trie.depth, trie.skip, trie.entry)
    enough = kernels.by_any_token(
        delta, class_of_byte, tree, trie.max_depth, bounds, UNREACHABLE, _MOST_VISITS
    )
    return bounds if enough else None


def _choices(
    class_of_byte: UInt8[np.ndarray, "256"], num_classes: int, trie: Trie
) -> tuple[Int32[np.ndarray, "256"], Int32[np.ndarray, "K"]]:
    """Return a weight of each byte, and for each byte class, the byte to use in completions.

    The weight is the number of trie nodes below the byte, because completions with bytes that begin
    many tokens take fewer tokens. A class is represented by its byte with the largest weight, among
    bytes that are tokens by themselves; -1 if there are none.
    """
    children = np.flatnonzero(trie.depth == 0)
    weights = np.zeros(NUM_BYTES, np.int32)
    weights[trie.byte[children]] = trie.skip[children] - children
    usable = trie.byte[children[trie.entry[children] >= 0]]
    # The last byte of a class, which has the largest weight, overwrites the others.
    usable = usable[np.argsort(weights[usable], kind="stable")]
    byte_of_class = np.full(num_classes, -1, np.int32)
    byte_of_class[class_of_byte[usable]] = usable
    return weights, byte_of_class
