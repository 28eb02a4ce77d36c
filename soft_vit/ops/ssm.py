"""The selective scan of Mamba with a state of one number a channel, over a map in four orders (VMamba).

Gu and Dao 2023, arXiv 2312.00752; Liu et al. 2024, arXiv 2401.10166. Per channel, with a step size delta_t > 0, a rate
A < 0, and numbers B_t and C_t of the token,

    h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t,   y_t = C_t h_t

VMamba scans a map row by row and column by column, each from both ends, and adds the four results.

Every channel decays by itself, so chunks of tokens are no products of matrices, as those of `soft_vit.ops.gated` are.
All chunks step through their tokens side by side: first from zero, to what they leave behind, of which a scan of the
chunks makes the states before them; then from these states. No exponent is positive, and none is a difference.

Letters: X sequences, N tokens, D channels; n chunks of L tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from soft_vit.ops.gated import delayed, first_parts, padded_parts
from soft_vit.ops.mlstm import log_weights
from soft_vit.ops.numerics import full_precision, is_eager

CHUNK = 16
# Tokens that are not cut into chunks.
FEW = 64
# Scans of chunks within each other in a graph for any number of tokens; 16^3 tokens are then one for sums of pairs.
DEPTH = 3


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return y `[X, N, D]` from the first token to the last, in time and memory linear in N.

    u, and delta, at least 0: `[X, N, D]`; A, at most 0: `[X, 1, D]`; B and C: `[X, N, 1]`. A token with delta = 0
    changes no other one. All are at least fp32.
    """
    with full_precision(u):
        return scan(delta * A, delta * B * u) * C


def scan(log_decay: Tensor, update: Tensor, depth: int = DEPTH) -> Tensor:
    """Return the states `h_t = exp(log_decay_t) h_(t-1) + update_t`, of `[X, N, D]`.

    Without gradients, they may take the place of update. depth: of scans of chunks in a graph for any N.
    """
    N, exporting = update.shape[1], torch.compiler.is_exporting()
    if exporting and depth == 0:
        forget = log_decay.mT
        return (log_weights(forget, torch.zeros_like(forget)).exp() @ update.mT[..., None]).squeeze(3).mT
    whole = not exporting and N <= FEW
    log_decay, update = (padded_parts(x, N if whole else CHUNK) for x in (log_decay, update))
    decay, before = log_decay.exp(), torch.zeros_like(update[:, :, 0])
    if not whole:
        left = _steps(decay, update, before, torch.addcmul, keep=False)[-1]
        before = delayed(scan(log_decay.sum(2), left, depth - 1))
    in_place = is_eager(update) and not torch.is_grad_enabled()
    states = _steps(decay, update, before, Tensor.addcmul_ if in_place else torch.addcmul, keep=not in_place)
    return first_parts(update if in_place else torch.stack(states, dim=2), N)


def _steps(decay: Tensor, update: Tensor, h: Tensor, step: Callable[..., Tensor], keep: bool) -> list[Tensor]:
    """Return the states `[X, n, D]` of chunks `[X, n, L, D]` after each token.

    h: states before the chunks. step: addcmul. keep: return all, not the last.
    """
    states: list[Tensor] = []
    for a, b in zip(decay.unbind(2), update.unbind(2), strict=True):
        h = step(b, a, h)
        states = [*states, h] if keep else [h]
    return states
