"""BigBird: block-sparse attention of window, global and random blocks (Zaheer et al. 2020, arXiv 2007.14062).

Letters: B batch, H heads, N tokens, D channels of a head, K blocks of L consecutive tokens, M blocks that one sees.
"""

from functools import partial

import torch
from torch import Tensor

from soft_vit.ops.chunked import Arguments, Part, all_at_once, computes_parts, in_parts
from soft_vit.ops.softmax import dot_product_attention

# Blocks near a block that it sees, itself among them, and the first blocks, which are global; as published.
WINDOW = 3
NUM_GLOBAL = 2

# Fewer parts take more memory, and more take more time, as each makes gradients of all keys and values.
NUM_PARTS = 16


def scramble(x: Tensor) -> Tensor:
    """Map non-negative int64 to pseudo-random integers in [0, 2^31), the same on every device."""
    # A division, because shifts are no Core ATen operators.
    for _ in range(2):
        # Odd multipliers below 2^31 keep the product of two such numbers within 63 bits.
        x = ((x ^ (x // 65536)) * 0x45D9F3B) & 0x7FFFFFFF
    return x ^ (x // 65536)


def random_blocks(num_blocks: int, num_heads: int, num_random: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for every head and block, num_random others outside its window that are not global, and which exist.

    Both are `[H, K, num_random]`, int64 and bool. No block is drawn twice: each comes from its own part of the eligible
    ones, and where these are fewer than num_random, some parts are empty. A function of the arguments alone.
    """
    block = torch.arange(num_blocks, device=device)[None, :, None]
    head = torch.arange(num_heads, device=device)[:, None, None]
    draw = torch.arange(num_random, device=device)
    reach = WINDOW // 2
    first = (block - reach).clamp(min=NUM_GLOBAL)
    past = (block + reach + 1).clamp(min=NUM_GLOBAL, max=num_blocks)
    in_window = (past - first).clamp(min=0)
    eligible = num_blocks - NUM_GLOBAL - in_window
    low, high = draw * eligible // max(num_random, 1), (draw + 1) * eligible // max(num_random, 1)
    key = scramble(scramble(scramble(block) + head) + draw)
    place = NUM_GLOBAL + low + key % (high - low).clamp(min=1)
    index = torch.where(place >= first, place + in_window, place)
    return index.clamp(max=num_blocks - 1), (high > low).expand_as(index)


def visible_blocks(num_blocks: int, num_heads: int, num_random: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the blocks that each block sees in each head, once, and which entries count: int64, bool `[H, K, M]`.

    M is NUM_GLOBAL + WINDOW + num_random.
    """
    shape = (num_heads, num_blocks, -1)
    first = torch.arange(NUM_GLOBAL, device=device)
    near = torch.arange(num_blocks, device=device)[:, None] + torch.arange(WINDOW, device=device) - WINDOW // 2
    far, far_exists = random_blocks(num_blocks, num_heads, num_random, device)
    near_exists = (near >= NUM_GLOBAL) & (near < num_blocks)
    index = torch.cat([first.expand(shape), near.clamp(0, num_blocks - 1).expand(shape), far], dim=-1)
    first_exists = torch.ones_like(first, dtype=torch.bool)
    return index, torch.cat([first_exists.expand(shape), near_exists.expand(shape), far_exists], dim=-1)


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, mask: Tensor, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """Attend from each of n blocks of queries to M of the K blocks of keys and values.

    q and the result: `[B, H, n * L, D]`. k, v: `[B, H, K * L, D]`. index: `[H, n, M]`; mask: bool `[H, n, M, L]`, which
    tokens of these blocks count.
    """
    H, n, M, L = mask.shape
    place = torch.arange(H, device=q.device)[:, None, None] * (k.shape[2] // L) + index
    # Heads and blocks as one dimension: fused kernels take four, and one index selects faster than two.
    queries = q.unflatten(2, (n, L)).flatten(1, 2)
    keys, values = (
        x.unflatten(2, (-1, L)).flatten(1, 2).index_select(1, place.flatten()).unflatten(1, (H * n, M)).flatten(2, 3)
        for x in (k, v)
    )
    x = dot_product_attention(queries, keys, values, mask.flatten(2).flatten(0, 1)[None, :, None], dropout_p, fused)
    return x.unflatten(1, (H, n)).flatten(2, 3)


def bigbird_attention(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, num_random: int, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """Attend from each block of tokens to the blocks near it, the global and some random ones.

    q, k, v: `[B, H, N, D]`; the result has v's shape. The global blocks attend to all tokens. A CPU
    computes large N a few blocks at a time, see `in_parts`.
    """
    B, H, N, _ = q.shape
    num_blocks = -(-N // block_size)
    if num_blocks <= NUM_GLOBAL:
        return dot_product_attention(q, k, v, None, dropout_p, fused)
    index, exists = visible_blocks(num_blocks, H, num_random, q.device)
    is_token = (torch.arange(num_blocks * block_size, device=q.device) < N).unflatten(0, (num_blocks, block_size))
    mask = exists[..., None] & is_token[index]

    def attend_to_all(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return (dot_product_attention(q, k[:, :, :N], v[:, :, :N], None, dropout_p, fused),)

    def attend_to_some(blocks: slice, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return (block_attention(q, k, v, index[:, blocks], mask[:, blocks], dropout_p, fused),)

    def cut(blocks: slice, args: Arguments) -> Arguments:
        q, *others = args
        return [q if q is None else q[:, :, blocks.start * block_size : blocks.stop * block_size], *others]

    in_turn = computes_parts(q)
    # Whole blocks. Not F.pad, which keeps the order in memory of what has all its tokens; a graph of symbolic sizes
    # expects another.
    q, k, v = (torch.cat([x, x.new_zeros(B, H, num_blocks * block_size - N, x.shape[3])], dim=2) for x in (q, k, v))
    step = -(-num_blocks // NUM_PARTS) if in_turn else num_blocks
    spans = [slice(first, min(first + step, num_blocks)) for first in range(NUM_GLOBAL, num_blocks, step)]
    parts = [Part(partial(cut, slice(0, NUM_GLOBAL)), attend_to_all)]
    parts += [Part(partial(cut, span), partial(attend_to_some, span)) for span in spans]
    compute = in_parts if in_turn else all_at_once
    return compute(parts, 2, q, k, v)[0][:, :, :N]
