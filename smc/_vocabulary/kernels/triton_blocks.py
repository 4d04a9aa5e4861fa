"""Triton kernels that sum weights over blocks of tokens, and draw tokens.

Token v of class c has the weight exp(log p[v] + log g[c]). A token with a separate log g uses it in
place of log g[c]. The reference implementation is `smc._vocabulary.passes.prepare_draws`.
"""

import triton
import triton.language as tl


@triton.jit
def _load_tilted(
    log_p, class_of, which, by_class, own, by_token, p, block,
    V, C, K, OWN: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Load a block of tokens of a row; return the tokens, and log p + log g of each token."""
    v = block * BLOCK + tl.arange(0, BLOCK)
    inside = v < V
    p = p.to(tl.int64)  # R x V may exceed 32 bits
    x = tl.load(log_p + p * V + v, mask=inside, other=float("-inf")).to(WIDE).to(tl.float64)
    c = tl.load(class_of + tl.load(which + p) * V + v, mask=inside, other=0)
    g = tl.load(by_class + p * C + c, mask=inside, other=float("-inf"))
    if OWN:
        k = tl.load(own + p * V + v, mask=inside, other=0).to(tl.int32)
        mine = tl.load(by_token + p * K + k - 1, mask=k > 0, other=0.0)
        g = tl.where(k > 0, mine, g)
    return v, x + g


@triton.jit
def _scale(x, WIDE: tl.constexpr):
    """Return the maximum x of a block, and exp(x - maximum); zero if all x are -inf."""
    top = tl.max(x, axis=0)
    finite = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.exp((x - finite).to(WIDE)).to(tl.float64)


@triton.jit
def weigh(
    log_p, class_of, which, by_class, own, by_token, top, total,
    V, C, K, blocks, OWN: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum the weights of one block of one row."""
    p, block = tl.program_id(0), tl.program_id(1)
    _, tilted = _load_tilted(
        log_p, class_of, which, by_class, own, by_token, p, block, V, C, K, OWN, BLOCK, WIDE,
    )  # fmt: skip
    here = p * blocks + block
    most, share = _scale(tilted, WIDE)
    tl.store(top + here, most)
    tl.store(total + here, tl.sum(share, axis=0))


@triton.jit
def draw(
    log_p, class_of, which, by_class, own, by_token, top, total, rows, u, out,
    V, C, K, blocks, OWN: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Draw one token from a row, given a uniform number."""
    i = tl.program_id(0)
    p = tl.load(rows + i)
    number = tl.arange(0, BLOCKS)
    there = number < blocks
    tops = tl.load(top + p * blocks + number, mask=there, other=float("-inf"))
    sums = tl.load(total + p * blocks + number, mask=there, other=0.0)
    most = tl.max(tops, axis=0)
    finite = tl.where(most == float("-inf"), 0.0, most)
    weights = sums * tl.exp(tops - finite)
    ends = tl.cumsum(weights, axis=0)
    point = tl.load(u + i) * tl.sum(weights, axis=0)
    # The first block of positive weight whose cumulative sum exceeds the point, or the last block.
    last = tl.max(tl.where(weights > 0, number, 0), axis=0)
    block = tl.min(tl.where((weights > 0) & (ends > point), number, last), axis=0)
    before = tl.sum(tl.where(number < block, weights, 0.0), axis=0)
    scale = tl.exp(tl.max(tl.where(number == block, tops, float("-inf")), axis=0) - finite)
    inner = (point - before) / tl.where(scale > 0, scale, 1.0)
    v, tilted = _load_tilted(
        log_p, class_of, which, by_class, own, by_token, p, block, V, C, K, OWN, BLOCK, WIDE,
    )  # fmt: skip
    _, share = _scale(tilted, WIDE)
    ends = tl.cumsum(share, axis=0)
    last = tl.max(tl.where(share > 0, v, 0), axis=0)
    tl.store(out + i, tl.min(tl.where((share > 0) & (ends > inner), v, last), axis=0))
