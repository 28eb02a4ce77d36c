"""ViL, or Vision-LSTM: matrix memories along the tokens, in alternating directions (`vil2_*`; version 1 `vil_*`).

Alkin et al., "Vision-LSTM: xLSTM as Generic Vision Backbone", arXiv 2406.04303. The networks and their parameter names
follow the released code, github.com/NX-AI/vision-lstm.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from timm.layers import DropPath, register_notrace_module, trunc_normal_
from torch import Tensor, nn

from soft_vit.layers import map_to_tokens, tokens_to_map
from soft_vit.layers.attention.mlstm import MLSTMAttention, ResidualLayerNorm
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.models import base
from soft_vit.models.vit3 import PatchEmbed
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["ViL"]

PATCH = 16

# Files of the authors' training code, of both versions. All files have the map of positions.
POS_EMBED = "pos_embed.embed"
TRAINED_NAMES = {
    "xlstm.post_blocks_norm.*": "norm.*",
    "xlstm.blocks.*.xlstm_norm.*": "blocks.*.norm.*",
    "xlstm.blocks.*.xlstm.conv1d.conv.*": "blocks.*.layer.conv.*",
    "xlstm.blocks.*.xlstm.conv1d.*": "blocks.*.layer.conv.*",
    "xlstm.blocks.*.xlstm.**": "blocks.*.layer.**",
    "head.0.*": "head.norm.*",
    "head.1.*": "head.fc.*",
}
COMMON_NAMES = {POS_EMBED: "pos_embed", "patch_embed.proj.*": "patch_embed.proj.*", "head.*": "head.fc.*"}
# In the authors' package, two blocks are a pair; networks of up to 128 blocks have names there.
ROWS = {f"blocks.{i // 2}.rowwise_from_{'bot_right' if i % 2 else 'top_left'}.**": f"blocks.{i}.**" for i in range(128)}
ADAPTERS = {
    1: Adapter(
        {
            **COMMON_NAMES,
            "legacy_norm.*": "norm.*",
            "norm.*": "head.norm.*",
            "blocks.*.layer.conv1d.conv.*": "blocks.*.layer.conv.*",
            "blocks.**": "blocks.**",
            **TRAINED_NAMES,
        },
        marker=POS_EMBED,
    ),
    2: Adapter(
        {**COMMON_NAMES, "legacy_norm.*": "head.norm.*", "norm.*": "norm.*", **ROWS, **TRAINED_NAMES}, marker=POS_EMBED
    ),
}


class ResidualLayerNorm2d(ResidualLayerNorm):
    """A LayerNorm of the channels of maps `[B, C, H, W]` that multiplies by one plus its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@register_notrace_module
class ViLBlock(base.SingleBlock):
    """An mLSTM layer with a shortcut, on maps `[B, C, H, W]`; options: of the layer."""

    def __init__(self, dim: int, bias: bool, drop_path: float, **options: Any) -> None:
        super().__init__()
        self.norm = ResidualLayerNorm(dim, bias=bias, **device_and_dtype(options))
        self.layer = MLSTMAttention(dim, bias=bias, **options)
        self.drop_path = DropPath(drop_path)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        return x + self.drop_path(tokens_to_map(self.layer(self.norm(map_to_tokens(x)), feat_size), feat_size))


class ViL(base.PlainModel):
    """Blocks of alternating direction, each a stage, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Images are padded with zeros on the right and below to patches of 16. The head takes the first and the last token,
    side by side, or in version 1 their mean.

    version: 2, or 1 with convolutions along the sequence and without most biases. stride: of the patches, 16 or 8.
    kwargs: arguments of `PlainModel`, such as img_size, num_classes and global_pool (`ends`, or empty for no pooling).
    """

    stages_name: ClassVar[str] = "blocks"
    no_decay: ClassVar[tuple[str, ...]] = ("pos_embed",)
    global_pools: ClassVar[tuple[str, ...]] = ("ends", "")

    def __init__(
        self,
        embed_dim: int = 192,
        depth: int = 24,
        num_heads: int = 4,
        version: int = 2,
        stride: int = PATCH,
        global_pool: str = "ends",
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        if stride not in (PATCH, PATCH // 2):
            raise ValueError(f"stride must be {PATCH} or {PATCH // 2}, got {stride}.")
        # Before the base makes the head.
        self.version = version
        self.adapter = ADAPTERS[version]
        super().__init__([embed_dim] * depth, [stride] * depth, global_pool=global_pool, **kwargs)
        self.patch_embed = PatchEmbed(self.in_chans, embed_dim, PATCH, stride, **dd)
        self.init_pos_embed(embed_dim, **dd)
        options: dict[str, Any] = dict(num_heads=num_heads, bias=version == 2, conv1d=version == 1)
        options |= dict(proj_drop=proj_drop_rate, drop_path=self.drop_path_rate)
        self.blocks = nn.ModuleList(
            ViLBlock(embed_dim, direction="backward" if i % 2 else "forward", **options, **dd) for i in range(depth)
        )
        eps, bias = (1e-6, True) if version == 2 else (1e-5, False)
        self.norm = ResidualLayerNorm2d(embed_dim, eps=eps, bias=bias, **dd)
        self.init_weights(needs_reset=False)

    def init_weights(self, needs_reset: bool = True) -> None:
        super().init_weights(needs_reset)
        trunc_normal_(self.pos_embed, std=0.02)
        conv: Any = self.patch_embed
        nn.init.xavier_uniform_(conv.proj.weight.flatten(1))
        nn.init.zeros_(conv.proj.bias)
        dim = self.pos_embed.shape[2]
        blocks: Any = self.blocks
        for block in blocks:
            nn.init.normal_(block.layer.proj_up.weight, std=(2 / (5 * dim)) ** 0.5)
            nn.init.normal_(block.layer.proj_down.weight, std=2 / dim**0.5)
            nn.init.normal_(block.layer.mlstm_cell.igate.bias, std=0.1)
        if isinstance(classifier := self.get_classifier(), nn.Linear):
            trunc_normal_(classifier.weight, std=2e-5)

    def grids(self, img_size: tuple[int, int]) -> list[tuple[int, int]]:
        (rows, columns), twice = self.patches(img_size), self.reductions[0] < PATCH
        return [(2 * rows - 1, 2 * columns - 1) if twice else (rows, columns)] * len(self.reductions)

    @staticmethod
    def patches(img_size: tuple[int, int]) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches that do not overlap."""
        return -(-img_size[0] // PATCH), -(-img_size[1] // PATCH)

    def pos_grid(self, img_size: tuple[int, int] | None = None) -> tuple[int, int]:
        return self.patches(img_size or self.img_size)

    @property
    def head_hidden_size(self) -> int:
        """Channels of pooled features."""
        return self.num_features * (2 if self.version == 2 and self.global_pool else 1)

    def classifier(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return a LayerNorm and a linear classifier of pooled features."""
        width, eps = self.head_hidden_size, 1e-5 if self.version == 2 else 1e-6
        layers = dict(norm=nn.LayerNorm(width, eps=eps, **dd), fc=Linear(width, num_classes, **dd))
        return nn.Sequential(OrderedDict(layers))

    def pool(self, x: Tensor) -> Tensor:
        ends = x[:, :, 0, 0], x[:, :, -1, -1]
        return torch.cat(ends, dim=1) if self.version == 2 else (ends[0] + ends[1]) / 2

    def get_classifier(self) -> nn.Module:
        """Return the linear layer of the head."""
        return getattr(self.head, "fc", self.head)

    @staticmethod
    def tells_grid(state: Mapping[str, Tensor]) -> bool:
        """Return whether weights tell by the shape of their position embedding for which map it is."""
        return POS_EMBED in state

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of the authors' files, or of the models in their package, under the names of this model.

        The position embedding of another map stays `[1, H, W, C]`, from which `resample_state` knows the map.
        """
        weights = super().from_released(state)
        embed = weights.get("pos_embed")
        if embed is not None and embed.shape[1:-1] == self.pos_grid():
            weights["pos_embed"] = embed.flatten(1, 2)
        return weights

    def to_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights under the names of the models in the authors' package."""
        weights = super().to_released(state)
        embed = weights.get(POS_EMBED)
        if embed is not None and embed.ndim == 3:
            weights[POS_EMBED] = embed.unflatten(1, self.pos_grid())
        return weights


VIL_MODELS: dict[str, dict[str, Any]] = {
    "vil2_tiny": dict(embed_dim=192),
    "vil2_small": dict(embed_dim=384),
    "vil2_base": dict(embed_dim=768),
    "vil_tiny": dict(embed_dim=192, version=1),
    "vil_tinyplus": dict(embed_dim=192, depth=29, version=1),
    "vil_small": dict(embed_dim=384, version=1),
    "vil_smallplus": dict(embed_dim=384, depth=26, version=1),
    "vil_base": dict(embed_dim=768, version=1),
}

CFG: dict[str, Any] = dict(pool_size=(14, 14), crop_pct=1.0, classifier="head.fc")
base.register_family(ViL, VIL_MODELS, feature_indices=3, paper_ids="arXiv:2406.04303", **CFG)
