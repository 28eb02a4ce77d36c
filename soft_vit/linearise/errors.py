"""How far a student is from its teacher: outputs and weights of attentions, tokens, and neighbours of images.

The first phase learns outputs of attentions, as in Zhang et al., "LoLCATs", arXiv 2410.10254, or their weights, as in
"Hedgehog", arXiv 2402.04347; the loss of the others is that of arXiv 2603.16063.
Letters: B batch, P prefix tokens, N tokens of a map, C channels, H x W the image.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers import Attention
from soft_vit.linearise.backbone import Backbone, first
from soft_vit.probe.matrix import watch_attention

# The smallest weight of a student's attention in a logarithm.
MIN_WEIGHT = 1e-9


def relative_error(x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return the mean squared error of tokens x by scale, by default the variance of y; both `[B, N, C]`.

    1 is the error of the best constant.
    """
    y = y.float()
    return (x.float() - y).square().mean() / (variance(y) if scale is None else scale)


def variance(y: Tensor) -> Tensor:
    """Return the variance of tokens `[B, N, C]` over images and tokens, a mean over channels."""
    return (y - y.mean((0, 1))).square().mean().clamp(min=1e-12)


def attention_errors(student: Backbone, teacher: Backbone, x: Tensor, blocks: Sequence[int]) -> Tensor:
    """Return the `relative_error` `[blocks]` of a student's attentions on the tokens that the teacher's receive.

    x: images `[B, 3, H, W]`. No gradient flows from one block to another.
    """
    return transfer_errors(student, teacher, x, blocks)[0]


def transfer_errors(
    student: Backbone, teacher: Backbone, x: Tensor, blocks: Sequence[int], weights: bool = False
) -> Tensor:
    """Return `attention_errors`, and with weights the divergence of attention weights, `[1 or 2, blocks]`.

    weights: the teacher has this package's attention, too. The divergence is that of Kullback and Leibler from the rows
    of its matrices to the student's, `sum p log(p / q) - p + q`, a mean over images, heads and tokens.
    """
    errors: dict[int, Tensor] = {}
    divergences: dict[int, Tensor] = {}
    expected: dict[int, Tensor] = {}

    def compare(block: int, module: nn.Module, args: tuple, kwargs: dict, result: Any) -> None:
        found: list[Tensor] = []
        with torch.set_grad_enabled(grad), ExitStack() as watching:
            if weights:
                attn = _attention_within(student.attention(block))
                watching.enter_context(watch_attention(attn, found.append, grad=True))
            errors[block] = relative_error(student.attend(block, x, args, kwargs), first(result))
            if weights:
                p, q = expected[block].float(), found[0].float().clamp(min=MIN_WEIGHT)
                if p.shape[2:] != q.shape[2:] or p.shape[1] % q.shape[1]:
                    raise ValueError(f"match must be outputs for {type(attn).__name__}, whose heads or keys differ.")
                # Without the second sum, weights whose rows need not sum to one, as those of kernels, would only grow.
                divergences[block] = (F.kl_div(q.log(), p, reduction="sum") + (q - p).sum()) / math.prod(p.shape[:3])

    grad = torch.is_grad_enabled()
    with ExitStack() as stack:
        for block in blocks:
            attention = teacher.attention(block)
            stack.callback(attention.register_forward_hook(partial(compare, block), with_kwargs=True).remove)
            if weights:
                stack.enter_context(watch_attention(_attention_within(attention), partial(expected.__setitem__, block)))
        with torch.no_grad():
            teacher(x)
    return torch.stack([torch.stack([part[block] for block in blocks]) for part in (errors, divergences) if part])


def _attention_within(module: nn.Module) -> Attention:
    """Return this package's attention in a swapped layer."""
    return next(part for part in module.modules() if isinstance(part, Attention))


def tokens_of(backbone: Backbone, x: Tensor, blocks: Sequence[int] = ()) -> list[Tensor]:
    """Return the tokens `[B, P + N, C]` after each of these blocks, and the final ones, of images `[B, 3, H, W]`."""
    seen: dict[int, Tensor] = {}
    layers = backbone.layers

    def keep(block: int, module: nn.Module, args: tuple, result: Any) -> None:
        seen[block] = first(result)

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(layers[block][0].register_forward_hook(partial(keep, block)).remove)
        final = backbone(x)
    return [*(seen[block] for block in blocks), final]


def token_errors(x: Tensor, y: Tensor, prefix: int = 0) -> Tensor:
    """Return the `relative_error` plus one minus the cosine of tokens x and y `[B, P + N, C]`.

    prefix: P, the number of prefix tokens, whose mean weighs as much as that of the others.
    """
    x, y = x.float(), y.float()
    scale = variance(y)
    parts = [part for part in ((x[:, :prefix], y[:, :prefix]), (x[:, prefix:], y[:, prefix:])) if part[0].shape[1]]
    errors = [relative_error(a, b, scale) + 1 - F.cosine_similarity(a, b, dim=-1).mean() for a, b in parts]
    return torch.stack(errors).mean()


def neighbour_agreement(x: Tensor, y: Tensor, k: int = 5) -> float:
    """Return the share of the k nearest neighbours, by cosine, that features x and y `[n, C]` of n images share."""
    k = min(k, len(x) - 1)
    x, y = (F.normalize(part.float(), dim=-1) for part in (x, y))
    near = [(part @ part.mT).fill_diagonal_(-2).topk(k, dim=1).indices for part in (x, y)]
    return float((near[0][:, :, None] == near[1][:, None]).any(2).float().mean())
