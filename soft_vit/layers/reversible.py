"""Reversible residual blocks (Gomez et al. 2017, arXiv 1707.04585; for transformers, Reformer, arXiv 2001.04451).

Two streams, `y1 = x1 + F(x2)` and `y2 = x2 + G(y1)`, from which `x2 = y2 - G(y1)` and `x1 = y1 - F(x2)` are recovered.
So only the activations after the last block are stored.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from timm.layers import register_notrace_function
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from soft_vit.layers.block import PostNormBlock, PreNormBlock
from soft_vit.layers.recompute import statistics_kept
from soft_vit.ops.layout import Size
from soft_vit.ops.numerics import in_transform

Block = PostNormBlock | PreNormBlock


def attention_half(block: Block, x: Tensor, feat_size: Size, num_prefix_tokens: int) -> Tensor:
    """Compute F: the attention of a block on normalised tokens `[B, P + N, C]`."""
    return block.drop_path1(block.attn(block.norm1(x), feat_size, num_prefix_tokens))


def feed_forward_half(block: Block, x: Tensor) -> Tensor:
    """Compute G: the MLP of a block on normalised tokens `[B, P + N, C]`."""
    return block.drop_path2(block.feed_forward(block.norm2(x)))


class ForwardState:
    """The random state and the autocast settings at a point of the forward, to repeat it from there."""

    def __init__(self, x: Tensor, random: bool) -> None:
        self.device_type = x.device.type
        self.autocast = torch.is_autocast_enabled(self.device_type)
        self.autocast_dtype = torch.get_autocast_dtype(self.device_type)
        self.random_state = (torch.get_rng_state(), *get_device_states(x)) if random else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore both within the context, with gradients enabled; afterwards restore the caller's."""
        autocast = torch.autocast(self.device_type, dtype=self.autocast_dtype, enabled=self.autocast)
        devices = self.random_state[1] if self.random_state else []
        with torch.random.fork_rng(devices, enabled=self.random_state is not None), autocast, torch.enable_grad():
            if self.random_state:
                state, devices, device_states = self.random_state
                torch.set_rng_state(state)
                set_device_states(devices, device_states)
            yield


class _ReversibleBlocks(torch.autograd.Function):
    """All blocks of a stage on two streams that start equal; stores only the streams after the last block."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, blocks: Sequence[Block], feat_size: Size, num_prefix_tokens: int, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        y1 = y2 = x
        states = []
        for block in blocks:
            before_attention = ForwardState(x, block.training)
            y1 = y1 + attention_half(block, y2, feat_size, num_prefix_tokens)
            states.append((before_attention, ForwardState(x, block.training)))
            y2 = y2 + feed_forward_half(block, y1)
        ctx.save_for_backward(y1, y2)
        ctx.blocks, ctx.parameters, ctx.states = blocks, parameters, states
        ctx.layout = feat_size, num_prefix_tokens
        return y1, y2

    @staticmethod
    def backward(ctx: Any, grad_1: Tensor, grad_2: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # Not `once_differentiable`, which fails only where the gradient of all leaves is asked for.
            instead = "Second derivatives require torch.func, or a model without reversible blocks."
            raise ValueError(f"create_graph must be False for reversible blocks, got True. {instead}")
        y1, y2 = ctx.saved_tensors
        grads: dict[Tensor, Tensor] = {}

        def half_backward(half: Any, block: Block, x: Tensor, grad: Tensor, before: ForwardState, *arguments: Any):
            """Return the value of F or G at x and the gradient of x; add the gradients of parameters to grads."""
            parameters = [parameter for parameter in block.parameters() if parameter.requires_grad]
            with before.restored(), statistics_kept(block):
                x = x.detach().requires_grad_()
                y = half(block, x, *arguments)
                found = torch.autograd.grad(y, (x, *parameters), grad.to(y.dtype), allow_unused=True)
            for parameter, value in zip(parameters, found[1:], strict=True):
                if value is not None:
                    grads[parameter] = grads[parameter] + value if parameter in grads else value
            return y.detach(), found[0]

        for block, (before_attention, before_mlp) in zip(reversed(ctx.blocks), reversed(ctx.states), strict=True):
            value, grad = half_backward(feed_forward_half, block, y1, grad_2, before_mlp)
            y2, grad_1 = y2 - value, grad_1 + grad
            value, grad = half_backward(attention_half, block, y2, grad_1, before_attention, *ctx.layout)
            y1, grad_2 = y1 - value, grad_2 + grad
        return grad_1 + grad_2, None, None, None, *(grads.get(parameter) for parameter in ctx.parameters)


def plain_streams(blocks: Sequence[Block], x: Tensor, feat_size: Size, num_prefix_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the two streams after all blocks; autograd stores every activation."""
    y1 = y2 = x
    for block in blocks:
        y1 = y1 + attention_half(block, y2, feat_size, num_prefix_tokens)
        y2 = y2 + feed_forward_half(block, y1)
    return y1, y2


@register_notrace_function
def reversible_blocks(blocks: Sequence[Block], x: Tensor, feat_size: Size, num_prefix_tokens: int = 0) -> Tensor:
    """Apply blocks to tokens `[B, P + N, C]` in reversible form: both streams start as x, and the result is their mean.

    blocks: `PostNormBlock` or `PreNormBlock`; in both, a LayerNorm precedes attention and MLP, as in Reformer.

    Backward computes activations again, with the same dropout and autocast, so memory does not grow with the number of
    blocks. In half precision the recovered streams have a rounding error, which does grow with it. Compiled models,
    copies of DataParallel and transforms of torch.func give the same results, but store all activations. Backward
    raises ValueError for create_graph=True.
    """
    if not blocks:
        return x
    recomputed = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not in_transform()
    # Copies of DataParallel have plain tensors as parameters, which `parameters` does not list.
    if recomputed and x.device.type != "meta" and not getattr(blocks[0], "_is_replica", False):
        parameters = dict.fromkeys(p for block in blocks for p in block.parameters() if p.requires_grad)
        y1, y2 = _ReversibleBlocks.apply(x, blocks, feat_size, num_prefix_tokens, *parameters)
    else:
        y1, y2 = plain_streams(blocks, x, feat_size, num_prefix_tokens)
    return 0.5 * (y1 + y2)


class ReversibleBlocks(nn.Module):
    """Blocks that run as two reversible streams, see `reversible_blocks`.

    The names of their parameters have the prefix `reversible.`, so that weights of plain blocks do not load.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.reversible = nn.ModuleList(blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(cast(Any, self.reversible))

    def __len__(self) -> int:
        return len(self.reversible)

    def __getitem__(self, index: int) -> Block:
        return cast(Any, self.reversible)[index]

    def forward(self, x: Tensor, *layout: Any) -> Tensor:
        return reversible_blocks(cast(Any, self.reversible), x, *layout)
