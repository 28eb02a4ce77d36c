"""A stage of the pyramid, and the attention and options of every stage.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from timm.models import checkpoint
from torch import Tensor, nn

from soft_vit.layers import attention_class, attention_options, resample_pos_embed, reversible_blocks
from soft_vit.layers.reversible import Block
from soft_vit.models.base import UnknownOptionError
from soft_vit.ops.numerics import check_choice

STAGE4_KINDS = {"softmax": "softmax", "soft": "gaussian", "soft_plus": "soft_plus"}


class ReversibleBlocks(nn.Module):
    """Blocks as two streams, see `reversible_blocks`; the prefix of their names keeps weights of plain blocks out."""

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


class PyramidStage(nn.Module):
    """Patch embedding, position embedding, an optional class token and the blocks of one resolution."""

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
        self.blocks: Any = ReversibleBlocks(blocks) if reversible else nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens `[B, P + N, C]` and their map (H, W), from a map `[B, C_in, H_in, W_in]`; P: prefix tokens."""
        x = self.patch_embed(x)
        B, _, H, W = x.shape
        x = x.flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1)
        x = self.pos_drop(x + resample_pos_embed(self.pos_embed, self.grid_size, (H, W), self.num_prefix_tokens))
        layout = (H, W), self.num_prefix_tokens
        if self.reversible:
            return self.blocks(x, *layout), (H, W)
        for block in self.blocks:
            x = checkpoint(block, x, *layout) if self.grad_checkpointing else block(x, *layout)
        return x, (H, W)

    def to_map(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Return tokens `[B, P + N, C]` as a map `[B, C, H, W]`, channels last in memory, without prefix tokens."""
        B, _, C = x.shape
        return x[:, self.num_prefix_tokens :].transpose(1, 2).reshape(B, C, feat_size[0], feat_size[1])


def stage_attentions(attention: str | Sequence[str], stage4: str | None, num_stages: int) -> tuple[str, ...]:
    """Return the attention's name in every stage."""
    if isinstance(attention, str):
        stage4 = check_choice("stage4", stage4 or "softmax", tuple(STAGE4_KINDS))
        return (attention,) * (num_stages - 1) + (STAGE4_KINDS[stage4],)
    if len(attention) != num_stages or stage4 is not None:
        raise ValueError(
            f"attention must be a name, or {num_stages} names without stage4, got {tuple(attention)!r} and {stage4!r}."
        )
    return tuple(attention)


def split_attn_options(kinds: Sequence[str], options: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for every stage the options that its attention, one of kinds, has; defaults give way to options.

    UnknownOptionError for an option of none of them. The exact Gaussian attention in the last stage of a normalised
    pyramid is normalised too, unless the options say otherwise.
    """
    known = [attention_options(attention_class(kind)) for kind in kinds]
    for name in options:
        if not any(name in accepted for accepted in known):
            choices = sorted(set().union(*known))
            raise UnknownOptionError(
                f"Options must be those of the model, or of its attentions ({', '.join(choices)}), got {name!r}."
            )
    given = {**defaults, **options}
    stages = [{name: value for name, value in given.items() if name in accepted} for accepted in known]
    if kinds[-1] == "gaussian" and "soft_norm" in kinds:
        stages[-1].setdefault("normalize", True)
    return stages
