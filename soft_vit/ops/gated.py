"""Gated linear attention in both directions, in chunks of tokens (Liao et al. 2024, arXiv 2405.18425).

The state of a head decays by a gate of each feature before a token is added, and is read after (Yang et al. 2023, arXiv
2312.06635):

    S_t = exp(a_t) S_(t-1) + k_t v_t^T,   out_t = q_t^T S_t / sqrt(M)

once from the first token to the last, and once back with other gates. N steps become sums over pairs of tokens in
blocks, pairs of halves of larger blocks, and states that chunks pass on. Every exponent is a sum of log gates, never a
difference of longer sums, which would round away weak gates beside strong ones.

Letters: B batch, H heads, X = B * H, N tokens, M features, D channels of a value; G blocks or chunks of L tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.numerics import at_least_float32, full_precision, is_eager

BLOCK, CHUNK = 8, 64
GROUP = 16
# The strongest log gate: exp(-19) is below fp32's relative precision. Seven of them, half on either side of a centre,
# leave exponents of at most 66.5; fp32 ends at 88.
STRONGEST = 19.0

Halves = tuple[Tensor, Tensor]


def gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, forward_gate: Tensor, backward_gate: Tensor, scale: float | None = None
) -> Tensor:
    """Return what all tokens read from the states of both directions, their sum, in time and memory linear in N.

    q, k: `[B, H, N, M]`; v: `[B, H, N, D]`; gates: logarithms `[B, H, N, M]`, at most 0. A token is part of both states
    that it reads. Tokens with k = v = 0 and gates of 0 do not change other tokens. scale: factor of the queries, by
    default `1 / sqrt(M)`. The result `[B, H, N, D]` and everything inside is at least fp32.
    """
    with full_precision(q):
        B, H, N, M = q.shape
        gates: tuple[Tensor, ...] = (forward_gate, backward_gate)
        q, size = q * (M**-0.5 if scale is None else scale), BLOCK
        # Where reading a value costs nothing. Weak gates leave exponents of at most 40 in larger blocks, too.
        known = is_eager(*gates) and q.device.type == "cpu" and q.numel() > 0
        strongest = -min(gate.min().item() for gate in gates) if known else math.inf
        while size < CHUNK and (2 * size - 1) * strongest <= 80:
            size *= 2
        if strongest > STRONGEST:
            gates = tuple(gate.clamp(min=-STRONGEST) for gate in gates)
        parts = (at_least_float32(x).flatten(0, 1) for x in (q, k, v, *gates))
        tokens = [_padded(x, CHUNK).flatten(1, 2).contiguous() for x in parts]
        q, k, v, ahead, back = (x.unflatten(1, (-1, size)) for x in tokens)
        later = ahead.new_ones(size, size).triu(1)
        near_ahead, *decays_ahead = _decays(ahead, later)
        near_back, *decays_back = _decays(back, later.mT)
        # Exponents from the centre of a block: both factors are moderate.
        q_ahead, k_ahead = q * near_ahead.exp(), k * (-near_ahead).exp()
        q_back, k_back = q * near_back.exp(), k * (-near_back).exp()
        # Both directions see the token itself.
        out = ((q_ahead @ k_ahead.mT).tril_().add_((q_back @ k_back.mT).triu_()) @ v).flatten(1, 2)
        q, k = torch.cat([q_ahead, q_back], dim=-1), torch.cat([k_ahead, k_back], dim=-1)
        read, give, whole = (torch.cat(pair, dim=-1) for pair in zip(decays_ahead, decays_back, strict=True))
        if size < CHUNK:
            q, k = q * read.exp()[:, :, None], k * give.exp()[:, :, None]
            read = give = torch.zeros_like(whole)
        while size < CHUNK:
            out = out + _across(*(x.unflatten(1, (-1, 2, size)).unbind(2) for x in tokens))
            size *= 2
        q, k, v = (x.flatten(1, 2).unflatten(1, (-1, CHUNK)) for x in (q, k, v))
        states = _states((read, give, whole), k.mT @ v)
        return _first(out.unflatten(1, (-1, CHUNK)) + q @ states, N).unflatten(0, (B, H))


def _decays(gate: Tensor, later: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log decays for log gates `[X, G, L, M]` of one direction, whose sums decay what is read and given.

    later `[L, L]`: which tokens (columns) are behind others (rows) in this direction.

    From the centre of a block, the mean of the sums up to its first and its last token, to each token, `[X, G, L, M]`;
    from before the chunk to the centre, and from it to behind the chunk, `[X, G, M]`; in whole chunks.
    """
    # The gate of the first token decays nothing inside of a block.
    inside = later.amax(0)
    to_centre, to_end = (torch.stack([1 - inside / 2, inside / 2]) @ gate).unbind(2)
    sums = (to_centre + to_end).unflatten(1, (-1, CHUNK // len(later)))
    behind = later[: sums.shape[2], : sums.shape[2]]
    read, give = (behind.mT @ sums).flatten(1, 2) + to_centre, (behind @ sums).flatten(1, 2) + to_end
    return (0.5 - later) * inside @ gate, read, give, sums.sum(2)


def _across(q: Halves, k: Halves, v: Halves, ahead: Halves, back: Halves) -> Tensor:
    """Return what tokens of halves `[X, G, L, ..]` read from the other half of their block, `[X, G * 2 * L, D]`."""
    # Exponents from the border of the halves: both factors are at most 1.
    pairs = q[0].new_ones(q[0].shape[2], q[0].shape[2])
    second = _decayed(q[1], ahead[1], pairs.tril()) @ _decayed(k[0], ahead[0], pairs.triu(1)).mT @ v[0]
    first = _decayed(q[0], back[0], pairs.triu()) @ _decayed(k[1], back[1], pairs.tril(-1)).mT @ v[1]
    return torch.stack([first, second], dim=2).flatten(1, 3)


def _decayed(x: Tensor, gate: Tensor, counted: Tensor) -> Tensor:
    """Return x `[X, G, L, M]` times the exponential of the sums of log gates that are counted, `[L, L]`."""
    return x * (counted @ gate).exp()


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


def _states(decays: tuple[Tensor, Tensor, Tensor], update: Tensor, depth: int = 2) -> Tensor:
    """Return the states that chunks read, `[X, G, 2 M, D]`: the first M features forwards, the others backwards.

    decays: logarithms `[X, G, 2 M]`, of a state that enters a chunk until it is read, of an update until it leaves its
    chunk, and in a whole chunk. update `[X, G, 2 M, D]`: what a chunk adds to the state. depth: of groups in a graph
    for any number of chunks; behind it, all groups are one.
    """
    G, features = update.shape[1:3]
    single = G <= GROUP if isinstance(G, int) else depth == 0
    # Groups of about as many chunks as there are groups.
    size = G if single else GROUP if torch.compiler.is_compiling() else min(GROUP, math.isqrt(G - 1) + 1)
    read, give, whole, update = (
        (x[:, None] if single else _padded(x, size)).transpose(2, 3).contiguous() for x in (*decays, update)
    )
    i = torch.arange(size, device=whole.device)
    t, s = i[:, None], i
    forwards = (torch.arange(features, device=whole.device) < features // 2)[:, None]
    unseen = (forwards[:, None] & (s >= t)) | (~forwards[:, None] & (s <= t))
    between = ((torch.minimum(t, s)[..., None] < i) & (i < torch.maximum(t, s)[..., None])).to(whole)
    sums = (whole @ between.flatten(0, 1).mT).unflatten(3, (size, size)) + read[..., None] + give[..., None, :]
    states = sums.masked_fill(unseen, -math.inf).exp() @ update
    if not single:
        earlier, later = whole @ (t < s).to(whole), whole @ (t > s).to(whole)
        enter = read + torch.where(forwards, earlier, later)
        leave = give + torch.where(forwards, later, earlier)
        left = (leave.exp()[..., None, :] @ update).squeeze(3)
        none = torch.zeros_like(left[..., 0])
        states = states + enter.exp()[..., None] * _states((none, none, whole.sum(3)), left, depth - 1)[..., None, :]
    states = states.transpose(2, 3)
    return states.squeeze(1) if single else _first(states.contiguous(), G)
