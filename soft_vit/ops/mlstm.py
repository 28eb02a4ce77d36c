"""The matrix memory of xLSTM (Beck et al. 2024, arXiv 2405.04517), as Vision-LSTM computes it (arXiv 2406.04303).

The state of a head decays by a forget gate before a token is added with the weight of its input gate, and is read
after. With l = logsigmoid(f), and m, the logarithm that is factored out of state and sum:

    m_t = max(l_t + m_(t-1), i_t)
    C_t = exp(l_t + m_(t-1) - m_t) C_(t-1) + exp(i_t - m_t) k_t v_t^T,   n_t likewise with k_t
    h_t = q_t^T C_t / (max(|q_t . n_t|, exp(-m_t)) + 1e-6)

for queries divided by sqrt(M). Chunks of tokens pass the state on as those of `soft_vit.ops.gated` do.

Letters: B batch, H heads, X = B * H, N tokens, M features, D channels of a value; G chunks of L tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.gated import CHUNK, chunk_states, first_parts, padded_parts
from soft_vit.ops.numerics import at_least_float32, full_precision

EPS = 1e-6
# The input gate of a token that does not exist: without weight beside any other, and finite.
CLOSED = -1e30
# Of -m: exp(80) is finite in fp32. There exp(-m) decides, and h is zero beside it.
MOST = 80.0


def log_weights(forget: Tensor, given: Tensor) -> Tensor:
    """Return `given_s + sum of forget over s < j <= t` for tokens s (columns) up to t (rows), `[..., L, L]`.

    forget, given: logarithms `[..., L]`. Later tokens have -inf. Sums of segments, not differences of longer sums,
    which would round weak gates away beside strong ones.
    """
    length = forget.shape[-1]
    place = torch.arange(length, device=forget.device)
    earlier = place[:, None] > place
    segments = forget[..., None].expand(*forget.shape, length).masked_fill(~earlier, 0).cumsum(forget.ndim - 1)
    return (segments + given[..., None, :]).masked_fill(place[:, None] < place, -math.inf)


def mlstm(q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, forget_gate: Tensor, backward: bool = False) -> Tensor:
    """Return h `[B, H, N, D]`, at least fp32, in time and memory linear in N.

    q, k: `[B, H, N, M]`; v: `[B, H, N, D]`; input_gate i and forget_gate f, before their exp and sigmoid:
    `[B, H, N]`. backward: from the last token to the first.
    """

    def scanned(x: Tensor) -> Tensor:
        """Reverse chunks, and tokens in them, between the order of tokens and that of the scan."""
        return x.flip(tuple(range(1, x.ndim))) if backward else x

    with full_precision(q):
        q, k, v, i, f = (at_least_float32(x).flatten(0, 1) for x in (q, k, v, input_gate, forget_gate))
        N, M = q.shape[1:]
        # The square of few tokens takes less time than states.
        size = N if not torch.compiler.is_exporting() and N <= M + CHUNK else CHUNK
        # The sum n is the state of one more value, which is one.
        parts = q * M**-0.5, k, F.pad(v, (0, 1), value=1), torch.stack([i, F.logsigmoid(f), torch.ones_like(i)], dim=2)
        q, k, v, gates = (padded_parts(x, size) for x in parts)
        given, forget, exists = gates.unbind(3)
        given, forget = scanned(given.masked_fill(exists == 0, CLOSED)), scanned(forget)
        log = log_weights(forget, given)
        m, last, whole = log.amax(-1), log[:, :, -1], forget.sum(-1)
        # The logarithm that is factored out behind each chunk, and before it.
        behind = log_weights(whole, last.amax(-1)).amax(-1)
        before = F.pad(behind, (1, 0), value=-math.inf)[:, :-1]
        decayed = forget.cumsum(-1) + before[..., None]
        m = torch.maximum(m, decayed)
        out = (q @ k.mT * scanned(torch.exp(log - m[..., None]))) @ v
        if torch.compiler.is_exporting() or size < N:
            leave = scanned(last.amax(-1) - behind)[..., None]
            through = scanned((whole + before - behind).masked_fill(before == -math.inf, 0))[..., None]
            update = (k * scanned(torch.exp(last - last.amax(-1, keepdim=True)))[..., None]).mT @ v
            decays = torch.zeros_like(leave), leave, through
            states = chunk_states(decays, update.flatten(2)[:, :, None], ahead=0 if backward else 1)
            out = out + (q * scanned(torch.exp(decayed - m))[..., None]) @ states.reshape(update.shape)
        h, n = out.split([v.shape[3] - 1, 1], dim=-1)
        h = h / (torch.maximum(n.abs(), torch.exp(-scanned(m)[..., None].clamp(min=-MOST))) + EPS)
        return first_parts(h, N).unflatten(0, input_gate.shape[:2])
