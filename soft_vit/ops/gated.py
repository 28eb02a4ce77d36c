"""Gated linear attention in both directions, in chunks of tokens (Liao et al. 2024, arXiv 2405.18425).

The state of a head decays by a gate of each feature before a token is added, and is read after (Yang et al. 2023, arXiv
2312.06635):

    S_t = exp(a_t) S_(t-1) + k_t v_t^T,   out_t = q_t^T S_t / sqrt(M)

once from the first token to the last, and once back with other gates. N steps become sums over pairs of tokens in
chunks, pairs of chunks in groups, and pairs of groups. Every exponent is a sum of log gates, never a difference of
longer sums, which would round away weak gates beside strong ones.

Letters: B batch, H heads, X = B * H, N tokens, M features, D channels of a value; G chunks of L tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.numerics import at_least_float32, full_precision

CHUNK, HALF = 16, 8
GROUP = 16
# The strongest log gate: exp(-19) is below fp32's relative precision. Seven of them, half on either side of a centre,
# leave exponents of at most 66.5; fp32 ends at 88.
STRONGEST = 19.0


def gated_linear_attention(q: Tensor, k: Tensor, v: Tensor, forward_gate: Tensor, backward_gate: Tensor) -> Tensor:
    """Return what all tokens read from the states of both directions, their sum, in time and memory linear in N.

    q, k: `[B, H, N, M]`; v: `[B, H, N, D]`; gates: logarithms `[B, H, N, M]`, at most 0. A token is part of both states
    that it reads. Tokens with k = v = 0 and gates of 0 do not change other tokens. The result `[B, H, N, D]` and
    everything inside is at least fp32.
    """
    with full_precision(q):
        B, H, N, M = q.shape
        gates = [gate.clamp(min=-STRONGEST) for gate in (forward_gate, backward_gate)]
        q, k, v, *gates = (_padded(at_least_float32(x).flatten(0, 1), CHUNK) for x in (q * M**-0.5, k, v, *gates))
        tables = _chunk_tables(q)
        ahead, back = (_decays(table, gate) for table, gate in zip(tables, gates, strict=True))
        of_q, of_k, read, write = (torch.cat(pair, dim=-1) for pair in zip(ahead[:4], back[:4], strict=True))
        # Tokens of one half of a chunk see each other by exponents from a centre: both factors are moderate.
        q_near, k_near = torch.cat([q, q], dim=-1) * of_q, torch.cat([k, k], dim=-1) * of_k
        # They see the other half by exponents from the border: both factors are at most 1.
        q_far, k_far = q * torch.cat([back[4], ahead[4]], dim=2), k * torch.cat([ahead[5], back[5]], dim=2)
        t = torch.arange(CHUNK, device=q.device)
        apart, before = (t[:, None] < HALF) != (t < HALF), t[:, None] < t
        pairs = (q_far @ k_far.mT).masked_fill(~apart, 0)
        for q_one, k_one, unseen in zip(q_near.chunk(2, -1), k_near.chunk(2, -1), (before, before.mT), strict=True):
            pairs = pairs + (q_one @ k_one.mT).masked_fill(apart | unseen, 0)
        # From the centre to the ends of the chunk.
        q_near, k_near = (
            (x.unflatten(2, (2, HALF)) * factor[:, :, :, None]).flatten(2, 3)
            for x, factor in ((q_near, read), (k_near, write))
        )
        states = _states(torch.cat([gate.sum(2) for gate in gates], dim=-1), k_near.mT @ v)
        return _first(pairs @ v + q_near @ states, N).unflatten(0, (B, H))


def _padded(x: Tensor, size: int) -> Tensor:
    """Return x `[X, N, ...]` in parts `[X, ceil(N / size), size, ...]`, filled up with zeros."""
    # Numbers stay positive, as ONNX rounds division to zero. A graph for any size, which would be fixed to a single
    # part, has one more.
    rest = (x.shape[1] + (1 + torch.compiler.is_exporting()) * size - 1) // size * size - x.shape[1]
    # A graph for any size must not depend on whether there is a rest.
    if torch.compiler.is_compiling() or rest:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, rest))
    return x.unflatten(1, (-1, size))


def _first(x: Tensor, count: int) -> Tensor:
    """Return the first of parts, `[X, count, ...]` of x `[X, parts, size, ...]`: the inverse of `_padded`."""
    x = x.flatten(1, 2)
    # By indices in a graph for any size, which a slice would restrict.
    exporting = torch.compiler.is_exporting()
    return x.index_select(1, torch.arange(count, device=x.device)) if exporting else x[:, :count]


def _chunk_tables(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for both directions, which log gates of a chunk `[.., L]` each exponent of `_decays` sums up."""
    i = torch.arange(CHUNK, device=like.device)
    t, half = i[:, None], torch.arange(2, device=like.device)[:, None]
    first, own = i % HALF == 0, i // HALF
    # The centre is the mean of the sums up to the first and the last token of a half.
    near = ((t // HALF == own) & ~first & (i <= t)).to(like) - ((t // HALF == own) & (i > t)).to(like)
    centre = (own == half) & ~first
    read = ((own < half) | ((own == half) & first)).to(like) + centre / 2
    write = (own > half).to(like) + centre / 2
    q_far, k_far = (i >= HALF) & (i <= t), (i < HALF) & (i > t)
    parts = [near / 2, -near / 2, read, write, q_far[HALF:].to(like), k_far[:HALF].to(like)]
    # Backwards, both tokens and gates are in the reverse order.
    return torch.cat(parts), torch.cat([part.flip(0, 1) for part in parts])


def _decays(table: Tensor, gate: Tensor) -> tuple[Tensor, ...]:
    """Return factors of queries, keys and states, for gates `[X, G, L, M]` of one direction.

    Of queries and of keys from the centre of their half, `[X, G, L, M]` each; of the two centres from the state before
    the chunk, and of the state behind it from them, `[X, G, 2, M]` each; of queries and of keys from the border of the
    halves, `[X, G, L / 2, M]` each.
    """
    return (table @ gate).exp().split([CHUNK, CHUNK, 2, 2, HALF, HALF], dim=2)


def _states(gate: Tensor, update: Tensor, depth: int = 2) -> Tensor:
    """Return the states that chunks begin with, `[X, G, 2 M, D]`: the first M features forwards, the others backwards.

    gate `[X, G, 2 M]`: the log decay in a whole chunk. update `[X, G, 2 M, D]`: what a chunk adds to the state.
    depth: of groups in a graph for any number of chunks; behind it, all groups are one.
    """
    G, features = update.shape[1:3]
    single = G <= GROUP if isinstance(G, int) else depth == 0
    # Groups of about as many chunks as there are groups.
    size = G if single else GROUP if torch.compiler.is_compiling() else min(GROUP, math.isqrt(G - 1) + 1)
    gate, update = ((x[:, None] if single else _padded(x, size)).transpose(2, 3).contiguous() for x in (gate, update))
    i = torch.arange(size, device=gate.device)
    t, s = i[:, None], i
    forwards = (torch.arange(features, device=gate.device) < features // 2)[:, None]
    unseen = (forwards[:, None] & (s >= t)) | (~forwards[:, None] & (s <= t))
    between = ((torch.minimum(t, s)[..., None] < i) & (i < torch.maximum(t, s)[..., None])).to(gate)
    sums = (gate @ between.flatten(0, 1).mT).unflatten(3, (size, size))
    earlier, later = gate @ (t < s).to(gate), gate @ (t > s).to(gate)
    states = sums.masked_fill(unseen, -math.inf).exp() @ update
    if not single:
        enter, leave = (torch.where(forwards, *pair).exp() for pair in ((earlier, later), (later, earlier)))
        of_groups = _states(gate.sum(3), (leave[..., None, :] @ update).squeeze(3), depth - 1)
        states = states + enter[..., None] * of_groups[..., None, :]
    states = states.transpose(2, 3)
    return states.squeeze(1) if single else _first(states.contiguous(), G)
