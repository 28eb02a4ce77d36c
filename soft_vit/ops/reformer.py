"""Reformer: attention among tokens that hash alike (Kitaev et al. 2020, arXiv 2001.04451).

Letters: B batch, H heads, N tokens, D channels of a head, R rounds of hashing, K chunks of the sorted tokens, L tokens
of a chunk, S keys that a chunk sees: its own and those of the chunk before.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.numerics import at_least_float32, full_precision

# Low enough that exp gives zero next to any other score, finite so that a token alone attends to itself.
SELF_SCORE = -1e5

# A hash of 2^b buckets is a product of hashes of at most 8: its cost grows with b, not with the number of buckets.
FACTOR_BITS = 3
FACTOR_COLUMNS = 2 ** (FACTOR_BITS - 1)
MAX_FACTORS = 8


def bucket_bits(num_tokens: int, chunk_size: int) -> int:
    """Return the binary logarithm of the number of buckets: about two to a chunk, one where a chunk holds all."""
    if num_tokens <= chunk_size:
        return 0
    buckets, bits = -(-2 * num_tokens // chunk_size), 0
    while 2**bits < buckets:
        bits += 1
    return min(bits, FACTOR_BITS * MAX_FACTORS)


def angular_buckets(q: Tensor, rotations: Tensor, bits: int) -> Tensor:
    """Return the buckets in [0, 2^bits) of tokens `[B, H, N, D]`: int64 `[B, H, R, N]`.

    rotations: random directions `[R, D, columns]`.

    In each factor the bucket is the nearest of some random directions and their opposites, so it depends on a token's
    direction alone.
    """
    with full_precision(q):
        q = at_least_float32(q.detach())
        factors = -(-bits // FACTOR_BITS)
        projected = q[:, :, None] @ rotations[..., : factors * FACTOR_COLUMNS].to(q.dtype)
    buckets = torch.zeros(projected.shape[:-1], dtype=torch.int64, device=q.device)
    for factor in range(factors):
        factor_bits = min(FACTOR_BITS, bits - factor * FACTOR_BITS)
        first = factor * FACTOR_COLUMNS
        columns = projected[..., first : first + 2 ** (factor_bits - 1)]
        buckets = buckets * 2**factor_bits + torch.cat([columns, -columns], dim=-1).argmax(-1)
    return buckets


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Return rows of x `[B, H, R or 1, N, ...]` in the order index `[B, H, R, N']`: `[B, H, R, N', ...]`."""
    x = x.expand(*index.shape[:3], *x.shape[3:])
    return x.gather(3, index if x.ndim == 4 else index[..., None].expand(*index.shape, x.shape[-1]))


def with_previous(x: Tensor, fill: int = 0) -> Tensor:
    """Put each chunk `[B, H, R, K, L, ...]` behind the one before it, the first behind fill: `[B, H, R, K, S, ...]`."""
    if x.shape[3] == 1:
        return x
    previous = torch.cat([torch.full_like(x[:, :, :, :1], fill), x[:, :, :, :-1]], dim=3)
    return torch.cat([previous, x], dim=4)


def times_seen(buckets: Tensor, chunks: Tensor, order: Tensor, chunk_size: int) -> Tensor:
    """Count the rounds in which each query sees each of the keys it has in one round: int64 `[B, H, R, K, L, S]`.

    buckets, chunks: those of every token in each round. order: the tokens in each round's order. All `[B, H, R, N]`.
    """
    count = torch.zeros((), dtype=torch.long, device=order.device)
    for other in range(order.shape[2]):
        bucket = pick(buckets[:, :, other : other + 1], order).unflatten(3, (-1, chunk_size))
        chunk = pick(chunks[:, :, other : other + 1], order).unflatten(3, (-1, chunk_size))
        behind = chunk[..., :, None] - with_previous(chunk)[..., None, :]
        together = bucket[..., :, None] == with_previous(bucket, -1)[..., None, :]
        count = count + (together & (behind >= 0) & (behind <= 1)).long()
    return count


@by_heads
def lsh_attention(qk: Tensor, v: Tensor, rotations: Tensor, chunk_size: int, dropout_p: float = 0.0) -> Tensor:
    """Attend from each token to those that share its bucket and its chunk, or the one before, in any round.

    qk, v: `[B, H, N, D]`; qk is the query and, with length one, the key: scores `q . k / |k|` need no further scale, as
    in the authors' code (trax, `length_normalized` and the division by sqrt(D) behind it). rotations: `[R, D, 32]`,
    random directions. The result has v's shape and dtype. One softmax over the union of the rounds: a key seen in
    several rounds counts once (the paper's N_ij), the token itself only where it sees no other.
    """
    N = qk.shape[-2]
    rounds = rotations.shape[0] if chunk_size < N else 1
    bits = bucket_bits(N, chunk_size)
    below = -N % chunk_size if chunk_size < N else 0
    chunk_size = min(chunk_size, N)

    # Tokens that fill up the last chunk are in a bucket of their own, behind all others.
    buckets = F.pad(angular_buckets(qk, rotations[:rounds], bits), (0, below), value=2**bits)
    order = buckets.argsort(dim=-1, stable=True)
    positions = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    rank = torch.zeros_like(order).scatter(-1, order, positions)

    k = F.normalize(at_least_float32(qk), dim=-1).to(qk.dtype)
    q, k, v = (pick(F.pad(x, (0, 0, 0, below))[:, :, None], order).unflatten(3, (-1, chunk_size)) for x in (qk, k, v))
    scores = at_least_float32(q @ with_previous(k).mT)
    seen = times_seen(buckets, rank // chunk_size, order, chunk_size)
    scores = scores - seen.clamp(min=1).to(scores.dtype).log()
    token, bucket = (x.unflatten(3, (-1, chunk_size)) for x in (order, pick(buckets, order)))
    scores = scores.masked_fill(token[..., :, None] == with_previous(token, -1)[..., None, :], SELF_SCORE)
    scores = scores.masked_fill(bucket[..., :, None] != with_previous(bucket, -1)[..., None, :], float("-inf"))
    total = scores.logsumexp(-1)
    weights = (scores - total[..., None]).exp()
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    x = weights.to(v.dtype) @ with_previous(v)

    rank = rank[..., :N]
    share = pick(total.flatten(3), rank).softmax(dim=2)
    return (share[..., None] * pick(x.flatten(3, 4), rank)).sum(2).to(v.dtype)
