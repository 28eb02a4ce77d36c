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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forward_gate: Tensor,
    backward_gate: Tensor,
    scale: float | None = None,
    reads_itself: bool = True,
) -> Tensor:
    """Return what all tokens read from the states of both directions, their sum, in time and memory linear in N.

    q, k: `[B, H, N, M]`; v: `[B, H, N, D]`; gates: logarithms `[B, H, N, M]`, at most 0. Tokens with k = v = 0 and
    gates of 0 do not change other tokens. scale: factor of the queries, by default `1 / sqrt(M)`. reads_itself: read
    the state behind a token, so that the token is part of both states; otherwise the one before it, without its gate.
    The result `[B, H, N, D]` and everything inside is at least fp32.
    """
    with full_precision(q):
        B, H, N, M = q.shape
        gates: tuple[Tensor, ...] = (forward_gate, backward_gate)
        q, size = q * (M**-0.5 if scale is None else scale), BLOCK
        unread = 0 if reads_itself else 1
        # float64 has four times the range of exponents, and more.
        range_ = 4 if q.dtype == torch.float64 else 1
        # Where reading a value costs nothing. Weak gates leave exponents of at most 40 in larger blocks, too.
        known = is_eager(*gates) and q.device.type == "cpu" and q.numel() > 0
        strongest = -min(gate.min().item() for gate in gates) if known else math.inf
        while size < CHUNK and (2 * size - 1) * strongest <= 80 * range_:
            size *= 2
        if strongest > STRONGEST * range_:
            gates = tuple(gate.clamp(min=-STRONGEST * range_) for gate in gates)
        parts = (at_least_float32(x).flatten(0, 1) for x in (q, k, v, *gates))
        tokens = [padded_parts(x, CHUNK).flatten(1, 2).contiguous() for x in parts]
        q, k, v, ahead, back = (x.unflatten(1, (-1, size)) for x in tokens)
        later = ahead.new_ones(size, size).triu(1)
        near_ahead, *decays_ahead = _decays(ahead, later, unread)
        near_back, *decays_back = _decays(back, later.mT, unread)
        # Exponents from the centre of a block: both factors are moderate.
        q_ahead, k_ahead = q * near_ahead[0].exp(), k * (-near_ahead[-1]).exp()
        q_back, k_back = q * near_back[0].exp(), k * (-near_back[-1]).exp()
        out = ((q_ahead @ k_ahead.mT).tril_(-unread).add_((q_back @ k_back.mT).triu_(unread)) @ v).flatten(1, 2)
        k = torch.cat([k_ahead, k_back], dim=-1)
        read, give, whole = (torch.cat(pair, dim=-1) for pair in zip(decays_ahead, decays_back, strict=True))
        q = q.repeat(1, 1, 1, 2) if unread else torch.cat([q_ahead, q_back], dim=-1)
        if unread or size < CHUNK:
            q, k = q * (read if unread else read[:, :, None]).exp(), k * give.exp()[:, :, None]
            read = give = torch.zeros_like(whole)
        while size < CHUNK:
            out = out + _across(unread, *(x.unflatten(1, (-1, 2, size)).unbind(2) for x in tokens))
            size *= 2
        q, k, v = (x.flatten(1, 2).unflatten(1, (-1, CHUNK)) for x in (q, k, v))
        states = chunk_states((read, give, whole), k.mT @ v, ahead=M)
        return first_parts(out.unflatten(1, (-1, CHUNK)) + q @ states, N).unflatten(0, (B, H))


def _decays(gate: Tensor, later: Tensor, unread: int) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
    """Return log decays for log gates `[X, G, L, M]` of one direction, whose sums decay what is read and given.

    later `[L, L]`: which tokens (columns) are behind others (rows) in this direction. unread: 1 to read before a token.

    From the centre of a block, the mean of the sums up to its first and its last token, to where each token reads and,
    if that differs, to behind it, `[X, G, L, M]`; from before the chunk to the centre, or if unread to before each
    token, and from the centre to behind the chunk, `[X, G, M]`; in whole chunks.
    """
    # The gate of the first token decays nothing inside of a block.
    inside = later.amax(0)
    to_centre, to_end = (torch.stack([1 - inside / 2, inside / 2]) @ gate).unbind(2)
    sums = (to_centre + to_end).unflatten(1, (-1, CHUNK // len(later)))
    behind = later[: sums.shape[2], : sums.shape[2]]
    before, give = (behind.mT @ sums).flatten(1, 2), (behind @ sums).flatten(1, 2) + to_end
    near = (0.5 - later) * inside @ gate
    if not unread:
        return (near,), before + to_centre, give, sums.sum(2)
    return (((later.mT - 0.5) * inside) @ gate, near), before[:, :, None] + later.mT @ gate, give, sums.sum(2)


def _across(unread: int, q: Halves, k: Halves, v: Halves, ahead: Halves, back: Halves) -> Tensor:
    """Return what tokens of halves `[X, G, L, ..]` read from the other half of their block, `[X, G * 2 * L, D]`.

    unread: see `_decays`.
    """
    # Exponents from the border of the halves: both factors are at most 1.
    pairs = q[0].new_ones(q[0].shape[2], q[0].shape[2])
    second = _decayed(q[1], ahead[1], pairs.tril(-unread)) @ _decayed(k[0], ahead[0], pairs.triu(1)).mT @ v[0]
    first = _decayed(q[0], back[0], pairs.triu(unread)) @ _decayed(k[1], back[1], pairs.tril(-1)).mT @ v[1]
    return torch.stack([first, second], dim=2).flatten(1, 3)


def _decayed(x: Tensor, gate: Tensor, counted: Tensor) -> Tensor:
    """Return x `[X, G, L, M]` times the exponential of the sums of log gates that are counted, `[L, L]`."""
    return x * (counted @ gate).exp()


def padded_parts(x: Tensor, size: int) -> Tensor:
    """Return x `[X, N, ...]` in parts `[X, ceil(N / size), size, ...]`, filled up with zeros."""
    # Numbers stay positive, as ONNX rounds division to zero. A graph for any size, which would be fixed to a single
    # part, has one more.
    rest = (x.shape[1] + (1 + torch.compiler.is_exporting()) * size - 1) // size * size - x.shape[1]
    # A graph for any size must not depend on whether there is a rest.
    if torch.compiler.is_compiling() or rest:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, rest))
    return x.unflatten(1, (-1, size))


def delayed(x: Tensor, by: int = 1, value: float = 0.0) -> Tensor:
    """Return tokens `[..., N, D]`, each by some places later, behind tokens of a value; the last ones are left out."""
    # Cut after padding, since a size that may become one is special in a graph for any size.
    return F.pad(x, (0, 0, by, 0), value=value)[..., :-by, :]


def first_parts(x: Tensor, count: int) -> Tensor:
    """Return the first of parts, `[X, count, ...]` of x `[X, parts, size, ...]`: the inverse of `padded_parts`."""
    x = x.flatten(1, 2)
    # By indices in a graph for any size, which a slice would restrict.
    exporting = torch.compiler.is_exporting()
    return x.index_select(1, torch.arange(count, device=x.device)) if exporting else x[:, :count]


def chunk_states(decays: tuple[Tensor, Tensor, Tensor], update: Tensor, ahead: int, depth: int = 2) -> Tensor:
    """Return the states that chunks read, `[X, G, M, D]`: the first features, `ahead` many, forwards, others backwards.

    decays: logarithms `[X, G, M]`, of a state that enters a chunk until it is read, of an update until it leaves its
    chunk, and in a whole chunk. update `[X, G, M, D]`: what a chunk adds to the state. depth: of groups in a graph for
    any number of chunks; behind it, all groups are one.
    """
    G, features = update.shape[1:3]
    single = G <= GROUP if isinstance(G, int) else depth == 0
    # Groups of about as many chunks as there are groups.
    size = G if single else GROUP if torch.compiler.is_compiling() else min(GROUP, math.isqrt(G - 1) + 1)
    parts = (x[:, None] if single else padded_parts(x, size) for x in (*decays, update))
    read, give, whole, update = (x.transpose(2, 3).contiguous() for x in parts)
    i = torch.arange(size, device=whole.device)
    t, s = i[:, None], i
    forwards = (torch.arange(features, device=whole.device) < ahead)[:, None]
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
        states = (
            states
            + enter.exp()[..., None] * chunk_states((none, none, whole.sum(3)), left, ahead, depth - 1)[..., None, :]
        )
    states = states.transpose(2, 3)
    return states.squeeze(1) if single else first_parts(states.contiguous(), G)
