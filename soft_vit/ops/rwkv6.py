"""The recurrence of RWKV-6 in both directions, of Vision-RWKV (Duan et al. 2024, arXiv 2403.02308).

The state of a head decays by a gate of each feature, and is read before a token is added:

    y_t = r_t^T S_(t-1) + sum_m r_tm u_m k_tm v_t + r_t^T R_(t+1)

    S_t = exp(a_t) S_(t-1) + k_t v_t^T   forwards,   R_t = exp(a_t) R_(t+1) + k_t v_t^T   backwards

The token itself is read once, by its bonus u.
"""

from torch import Tensor

from soft_vit.ops.gated import gated_linear_attention
from soft_vit.ops.numerics import at_least_float32, full_precision


def rwkv6(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor) -> Tensor:
    """Return y `[B, H, N, D]`, at least fp32, in time and memory linear in N.

    r, k: `[B, H, N, M]`; v: `[B, H, N, D]`; log_decay: a, at most 0, `[B, H, N, M]`; bonus: u `[H, M]`.
    """
    scans = gated_linear_attention(r, k, v, log_decay, log_decay, scale=1.0, reads_itself=False)
    with full_precision(r):
        r, k, v, bonus = (at_least_float32(x) for x in (r, k, v, bonus))
        return scans + (r * k * bonus[:, None]).sum(-1, keepdim=True) * v
