"""The selective scan of Mamba with a state of one number a channel, over a map in four orders (VMamba).

Gu and Dao 2023, arXiv 2312.00752; Liu et al. 2024, arXiv 2401.10166. Per channel, with a step size delta_t > 0, a rate
A < 0, and numbers B_t and C_t of the token,

    h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t,   y_t = C_t h_t

VMamba scans a map row by row and column by column, each from both ends, and adds the four results.

Every channel decays by itself, so chunks of tokens are no products of matrices, as those of `soft_vit.ops.gated` are.
All chunks step through their tokens side by side: first from zero, to what they leave behind, of which a scan of the
chunks makes the states before them; then from these states. No exponent is positive, and none is a difference.

Letters: B batch, X sequences, N tokens, D channels, K = 4 scans; n chunks of L tokens.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.gated import first_parts, padded_parts
from soft_vit.ops.mlstm import log_weights
from soft_vit.ops.numerics import full_precision, is_eager

CHUNK = 16
# Tokens that are not cut into chunks.
FEW = 64
# Scans of chunks within each other in a graph for any number of tokens; 16^3 tokens are then one for sums of pairs.
DEPTH = 3


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return the sum of y `[X, N, D]` from the first token to the last and back, in time and memory linear in N.

    u: `[X, N, D]`; delta, at least 0: `[2, X, N, D]`; A, at most 0, of a shape that broadcasts to it; B and C:
    `[2, X, N, 1]`; of both directions. A token with delta = 0 changes no other one. All are at least fp32.
    """
    with full_precision(u):
        ahead, back = scan(delta * A, delta * B * u)
        return torch.addcmul(C[0] * ahead, C[1], back)


def selective_scan_by_tokens(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return what `selective_scan` does, token by token: the definition."""
    A, y = A.expand_as(delta), torch.zeros_like(u)
    for direction, order in enumerate((range(u.shape[1]), reversed(range(u.shape[1])))):
        h = torch.zeros_like(u[:, 0])
        for t in order:
            d, a, b, c = (x[direction, :, t] for x in (delta, A, B, C))
            h = torch.exp(d * a) * h + d * b * u[:, t]
            y[:, t] += c * h
    return y


def scan(log_decay: Tensor, update: Tensor, depth: int = DEPTH) -> Tensor:
    """Return the states `h_t = exp(log_decay_t) h_(t-1) + update_t` `[2, X, N, D]`: forwards, and backwards.

    Without gradients, they may take the place of update. depth: of scans of chunks in a graph for any N.
    """
    N, exporting = update.shape[2], torch.compiler.is_exporting()
    if exporting and depth == 0:
        forget = _turned(log_decay).movedim(2, -1)
        weights = log_weights(forget, torch.zeros_like(forget)).exp()
        return _turned((weights @ _turned(update).movedim(2, -1)[..., None]).squeeze(-1).movedim(-1, 2))
    whole = not exporting and N <= FEW
    size = N if whole else CHUNK
    log_decay, update = (padded_parts(x.flatten(0, 1), size).unflatten(0, (2, -1)) for x in (log_decay, update))
    decay, before = log_decay.exp(), torch.zeros_like(update[:, :, :, 0])
    if not whole:
        left = torch.stack([states[-1] for states in _steps(decay, update, before, torch.addcmul, keep=False)])
        ahead, back = scan(log_decay.sum(3), left, depth - 1)
        before = torch.stack([F.pad(ahead, (0, 0, 1, -1)), F.pad(back, (0, 0, -1, 1))])
    in_place = is_eager(update) and not torch.is_grad_enabled()
    ahead, back = _steps(decay, update, before, Tensor.addcmul_ if in_place else torch.addcmul, keep=not in_place)
    states = update if in_place else torch.stack([torch.stack(ahead, 2), torch.stack(back[::-1], 2)])
    return first_parts(states.flatten(0, 1), N).unflatten(0, (2, -1))


def _turned(x: Tensor) -> Tensor:
    """Return `[2, X, N, D]` with both directions in the order of their scans, or back."""
    return torch.stack([x[0], x[1].flip(1)])


def _steps(
    decay: Tensor, update: Tensor, before: Tensor, step: Callable[..., Tensor], keep: bool
) -> list[list[Tensor]]:
    """Return the states `[X, n, D]` of chunks `[2, X, n, L, D]` after each token, in the order of both directions.

    before: states before the chunks, `[2, X, n, D]`. step: addcmul. keep: return all, not the last.
    """
    found = []
    for direction, h in enumerate(before):
        pairs = list(zip(update[direction].unbind(2), decay[direction].unbind(2), strict=True))
        states: list[Tensor] = []
        for b, a in pairs[::-1] if direction else pairs:
            h = step(b, a, h)
            states = [*states, h] if keep else [h]
        found.append(states)
    return found
