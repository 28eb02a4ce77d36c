"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, wide_dtype


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """Return `softmax(Q K^T / sqrt(D)) V` `[..., N, C]` of q `[..., N, D]`, k `[..., M, D]` and v `[..., M, C]`.

    mask: bool, broadcast to `[..., N, M]`: the keys that a query sees, at least one. dropout_p: dropout of the weights.
    fused: use torch's kernels, which do not store the N x M matrix; otherwise separate operations.
    """
    if torch.compiler.is_exporting() and q.dtype != wide_dtype(q):
        # Runtimes would round scores.
        q, k, wide = map(at_least_float32, (q, k, v))
        return dot_product_attention(q, k, wide, mask, dropout_p, fused).to(v.dtype)
    if fused:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ v


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout_p: float = 0.0, fused: bool = True, add_one: bool = False
) -> Tensor:
    """Return `dot_product_attention` to all tokens except padding; q, k, v and the result are `[B, H, P + N, D]`.

    add_one: add one to the denominator, `exp(s_ij) / (1 + sum_j exp(s_ij))`, by a key and a value of zero.
    """
    mask = layout.key_mask
    if add_one:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    return dot_product_attention(q, k, v, mask, dropout_p, fused)


def attention_in_groups(
    split: Callable[[Tensor], Tensor],
    split_keys: Callable[[Tensor], Tensor],
    merge: Callable[..., Tensor],
    mask: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    others: Sequence[Tensor] = (),
    seen: Tensor | None = None,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Let each token of a map attend to the tokens of its group and to others; q, k, v and the result: `[B, H, N, D]`.

    split, split_keys: return the groups `[B * H, G, L, D]` of queries, and those `[B * H, G, S, D]` of keys or values.
    merge: inverts split, given `num_heads`.
    mask: bool `[1, G, L or 1, S]`, the keys of its group that a query sees; None if all.
    others: empty, or keys and values `[B, H, P, D]` that all queries see.
    seen: bool `[B or 1, P + N]`, which of others and of the map are not padding; None if all.
    """
    keys, values, num_others = split_keys(k), split_keys(v), others[0].shape[2] if others else 0
    if others:
        extra = (x.flatten(0, 1)[:, None].expand(-1, keys.shape[1], -1, -1) for x in others)
        keys, values = (torch.cat(pair, dim=2) for pair in zip(extra, (keys, values), strict=True))
        mask = None if mask is None else F.pad(mask, (num_others, 0), value=True)
    if seen is not None:
        of_others = seen[:, None, None, :num_others].expand(-1, keys.shape[1], -1, -1)
        counts = torch.cat([of_others, split_keys(seen[:, None, num_others:, None]).mT], dim=-1)
        if counts.shape[0] > 1:
            counts = counts.repeat_interleave(keys.shape[0] // counts.shape[0], dim=0)
        mask = counts if mask is None else mask & counts
        # Results of padding are dropped later; until then they must not be 0 / 0.
        mask = mask | ~mask.any(-1, keepdim=True)
    return merge(dot_product_attention(split(q), keys, values, mask, dropout_p, fused), num_heads=q.shape[1])


def attention_with_prefix(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Let prefix tokens attend to all tokens, and tokens of the map to prefix tokens and, by attend, to the map.

    q, k, v and the result: `[B, H, P + N, D]`. attend takes q, k and v of the map, and by name: others, empty or the
    keys and values `[B, H, P, D]` of the prefix; seen, bool `[B, P + N]`, the keys that are not padding, None if all;
    dropout_p and fused.
    """
    P = layout.num_prefix_tokens
    others = (k[:, :, :P], v[:, :, :P]) if P else ()
    of_map = map(layout.grid, (q, k, v))
    x = attend(*of_map, others=others, seen=layout.mask, dropout_p=dropout_p, fused=fused)
    if P:
        prefix = dot_product_attention(q[:, :, :P], k, v, layout.key_mask, dropout_p, fused)
        x = torch.cat([prefix, x], dim=2)
    return x
