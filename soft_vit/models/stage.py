"""One resolution of the pyramid.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from collections.abc import Sequence

import torch
from timm.layers import to_2tuple
from timm.models import checkpoint
from torch import Tensor, nn

from soft_vit.layers import resample_pos_embed, reversible_blocks
from soft_vit.layers.reversible import Block

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("resample_pos_embed")


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """The map after a 3x3 convolution of stride 2 with padding 1: half, rounded up."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2


def stage_grids(img_size: int | tuple[int, int], num_stages: int = 4) -> list[tuple[int, int]]:
    """Token maps of the stages for an image size: strides 4, 8, 16, 32, each halving rounded up."""
    size = halved(to_2tuple(img_size))
    grids = []
    for _ in range(num_stages):
        size = halved(size)
        grids.append(size)
    return grids


class PyramidStage(nn.Module):
    """Patch embedding, position embedding, an optional class token and the blocks of one resolution."""

    blocks: Sequence[Block]

    def __init__(
        self,
        patch_embed: nn.Module,
        blocks: Sequence[Block],
        *,
        embed_dim: int,
        grid_size: tuple[int, int],
        class_token: bool = False,
        pos_drop: float = 0.0,
        reversible: bool = False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.grid_size = grid_size
        self.num_prefix_tokens = int(class_token)
        self.reversible = reversible
        self.grad_checkpointing = False
        self.patch_embed = patch_embed
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim, **dd)) if class_token else None
        num_tokens = self.num_prefix_tokens + grid_size[0] * grid_size[1]
        self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, embed_dim, **dd))
        self.pos_drop = nn.Dropout(pos_drop)
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # a ModuleList knows no type of its modules

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """A map `[B, C_in, H_in, W_in]` to tokens `[B, prefix + N, C]` and their map (H, W)."""
        x = self.patch_embed(x)
        B, _, H, W = x.shape
        x = x.flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1)
        x = self.pos_drop(x + resample_pos_embed(self.pos_embed, self.grid_size, (H, W), self.num_prefix_tokens))
        layout = (H, W), self.num_prefix_tokens
        if self.reversible:
            return reversible_blocks(self.blocks, x, *layout), (H, W)
        for block in self.blocks:
            x = checkpoint(block, x, *layout) if self.grad_checkpointing else block(x, *layout)
        return x, (H, W)

    def to_map(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Tokens `[B, prefix + N, C]` as a map `[B, C, H, W]`, channels last in memory."""
        B, _, C = x.shape
        return x[:, self.num_prefix_tokens :].transpose(1, 2).reshape(B, C, feat_size[0], feat_size[1])

    def set_grid_size(self, grid_size: tuple[int, int]) -> None:
        """Resample the position embedding, and weights of attentions that fix their map, to another grid."""
        with torch.no_grad():
            pos_embed = resample_pos_embed(self.pos_embed, self.grid_size, grid_size, self.num_prefix_tokens)
        self.pos_embed = nn.Parameter(pos_embed.clone(), requires_grad=self.pos_embed.requires_grad)
        self.grid_size = grid_size
        for block in self.blocks:
            block.attn.resize(grid_size)
