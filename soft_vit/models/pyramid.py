"""The pyramid: four stages of convolutional patch embedding and transformer blocks, with any attention.

SOFT, Lu et al., NeurIPS 2021, arXiv 2110.11945; normalised form arXiv 2207.03341. The skeleton follows PVT, arXiv
2102.12122, with a convolutional stem.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

import math
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from timm.layers import get_device_dtype, to_ntuple, trunc_normal_
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from torch import Tensor, nn

from soft_vit.layers import (
    Attention,
    AttentionPool,
    ConvPatchEmbed,
    DropPathMode,
    PostNormBlock,
    PreNormBlock,
    StageFusion,
    attention_class,
)
from soft_vit.models.arguments import (
    check_image_size,
    check_stages,
    choose_bottleneck_img_size,
    choose_class_token,
    rising_rates,
    split_attn_options,
    stage_attentions,
)
from soft_vit.models.checkpoint import checkpoint_filter_fn, fit_state_dict  # noqa: F401  timm's name for the filter
from soft_vit.models.stage import PyramidStage, stage_grids
from soft_vit.ops.numerics import check_choice
from soft_vit.weights.load import load_into
from soft_vit.weights.read import load_weights

GlobalPool = Literal["token", "avg", "attn", ""]

MIN_IMAGE_SIDE = 32

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("check_image")


def check_image(x: Tensor, in_chans: int) -> Tensor:
    """Return x `[B, in_chans, H, W]`; ValueError that names the size if it is no image or below 32 x 32."""
    if x.ndim != 4 or x.shape[1] != in_chans:
        raise ValueError(f"Input of shape {tuple(x.shape)} is not a batch of images; give [B, {in_chans}, H, W].")
    if x.shape[2] < MIN_IMAGE_SIDE or x.shape[3] < MIN_IMAGE_SIDE:
        raise ValueError(
            f"An image of {x.shape[2]} x {x.shape[3]} pixels is too small; each side needs at least {MIN_IMAGE_SIDE}."
        )
    return x


def init_linear(layer: nn.Linear) -> None:
    """Truncated normal weights (0.02), in place, and biases of zero."""
    trunc_normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class PyramidViT(nn.Module):
    """A pyramid vision transformer whose attention is chosen by name, SOFT by default.

    Images `[B, in_chans, H, W]` of any size from 32 x 32 up; each stride-2 convolution rounds its map up, and windows
    of bottleneck tokens that do not fit on a map are dropped. Position embeddings are resampled where the size is
    not img_size.

    global_pool: `token` (class token), `avg` (mean of the last stage's tokens), `attn` (their mean by learned scores,
        see `AttentionPool`) or the empty string (all tokens, class token first).
    fuse_stages: fuse the pooled features of all stages before the head, see `StageFusion`.
    attention: a name of `soft_vit.layers.ATTENTIONS` for the first three stages, or a sequence of four names.
    stage4: attention of the last stage where `attention` is one name: `softmax` (released), `soft` (exact Gaussian) or
        `soft_plus`.
    class_token: by default present where the last stage's attention has a place for it.
    drop_path_mode: `stochastic_depth`, or `dropout` for the element-wise dropout that the released code applies at
        drop_path_rate in the first three stages.
    reversible: blocks as two streams whose activations are computed again in backward, see `reversible_blocks`. This is
        another model, whose weights differ; gradient checkpointing does not affect it.
    mlp_chunks: number of parts of the tokens that an MLP processes one after the other, see `apply_in_chunks`.
    bottleneck_img_size: size of the images on whose maps num_bottleneck tokens are counted, by default img_size. The
        weights belong to it, so `set_input_size` leaves it as it is.
    attn_options: options of the attentions, such as inverse="cholesky" or max_bottleneck=(7, 7); each goes to the
        stages whose attention has it.
    """

    stages: Sequence[PyramidStage]
    norm: nn.Module
    head: nn.Module

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: GlobalPool = "token",
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (1, 2, 3, 2),
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        mlp_ratios: float | Sequence[float] = 4.0,
        stem_width: int = 32,
        attention: str | Sequence[str] = "soft",
        stage4: str | None = None,
        class_token: bool | None = None,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        drop_path_mode: DropPathMode = "stochastic_depth",
        fuse_stages: bool = False,
        reversible: bool = False,
        mlp_chunks: int = 1,
        bottleneck_img_size: int | tuple[int, int] | None = None,
        device=None,
        dtype=None,
        **attn_options: Any,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        num_stages = len(depths)
        ratios: Sequence[float] = to_ntuple(num_stages)(mlp_ratios)
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, sr_ratios=sr_ratios, mlp_ratios=ratios)
        if in_chans < 1 or stem_width < 1:
            raise ValueError(f"in_chans={in_chans} and stem_width={stem_width} must be positive, such as 3 and 32.")
        check_choice("drop_path_mode", drop_path_mode, get_args(DropPathMode))
        kinds = stage_attentions(attention, stage4, num_stages)
        rates = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}
        stage_options = split_attn_options(kinds, attn_options, defaults=rates)

        self.img_size = check_image_size(img_size)
        num_bottleneck = attn_options.get("num_bottleneck")
        self.bottleneck_img_size = choose_bottleneck_img_size(bottleneck_img_size, num_bottleneck, self.img_size)
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.attention = kinds
        self.depths = tuple(depths)
        self.embed_dims = tuple(embed_dims)
        self.has_class_token = choose_class_token(class_token, kinds[-1])
        self.num_features = self.head_hidden_size = embed_dims[-1]
        self.feature_info = [
            {"num_chs": dim, "reduction": 4 * 2**i, "module": f"stages.{i}"} for i, dim in enumerate(embed_dims)
        ]

        drop_path_rates = rising_rates(drop_path_rate, depths)
        grids = stage_grids(self.img_size, num_stages)
        counted_grids = stage_grids(self.bottleneck_img_size or self.img_size, num_stages)
        stages = []
        for i, (dim, grid) in enumerate(zip(embed_dims, grids, strict=True)):
            last = i == num_stages - 1
            feat_size = counted_grids[i] if "num_bottleneck" in stage_options[i] else grid
            block_class = PreNormBlock if last else partial(PostNormBlock, drop_path_mode=drop_path_mode)
            attention_type: Callable[..., Attention] = attention_class(kinds[i])
            make_attention = partial(attention_type, dim, num_heads[i], feat_size=feat_size, sr_ratio=sr_ratios[i])
            blocks = [
                block_class(
                    dim,
                    make_attention(**stage_options[i], **dd),
                    mlp_ratio=ratios[i],
                    proj_drop=proj_drop_rate,
                    drop_path=rate,
                    mlp_chunks=mlp_chunks,
                    **dd,
                )
                for rate in drop_path_rates[i]
            ]
            if i == 0:
                patch_embed = ConvPatchEmbed(in_chans, (stem_width, stem_width, dim), (2, 1, 2), **dd)
            else:
                patch_embed = ConvPatchEmbed(embed_dims[i - 1], (dim,), (2,), **dd)
            stages.append(
                PyramidStage(
                    patch_embed,
                    blocks,
                    embed_dim=dim,
                    grid_size=grid,
                    class_token=last and self.has_class_token,
                    pos_drop=pos_drop_rate,
                    reversible=reversible,
                    **dd,
                )
            )
        self.stages = nn.ModuleList(stages)  # type: ignore[assignment]  # a ModuleList knows no type of its modules
        self.norm = nn.LayerNorm(embed_dims[-1], eps=1e-6, **dd)
        self.stage_fusion = StageFusion(embed_dims, **dd) if fuse_stages else None
        self.global_pool = self._check_global_pool(global_pool)
        self.attn_pool = AttentionPool(embed_dims[-1], **dd) if global_pool == "attn" else None
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dims[-1], num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights(needs_reset=False)

    def _check_global_pool(self, global_pool: str) -> str:
        check_choice("global_pool", global_pool, get_args(GlobalPool))
        if global_pool == "token" and not self.has_class_token:
            raise ValueError("global_pool='token' needs a class token, and this model has none; use 'avg' or ''.")
        if global_pool == "" and self.stage_fusion is not None:
            raise ValueError(
                "global_pool='' leaves nothing to fuse with other stages; use 'avg', or fuse_stages=False."
            )
        return global_pool

    def init_weights(self, needs_reset: bool = True) -> None:
        """Random weights: truncated normal (0.02) for linear layers and tokens, fan-out normal for convolutions.

        needs_reset: also reset layers that initialise themselves, such as norms, whose values the meta device does not
        keep.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear(module)
            elif isinstance(module, nn.Conv2d):
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, PyramidStage):
                trunc_normal_(module.pos_embed, std=0.02)
                if module.cls_token is not None:
                    trunc_normal_(module.cls_token, std=0.02)
            elif needs_reset and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def load_pretrained(self, checkpoint_path: str) -> None:
        """Load released or converted weights from a file; see `soft_vit.weights.load.fit_weights`."""
        load_into(self, load_weights(checkpoint_path), str(checkpoint_path))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Called by torch's state_dict on this module: note options that no name or shape tells."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            reversible = any(stage.reversible for stage in self.stages)
            destination._metadata[prefix[:-1]]["options"] = {"reversible": reversible, "img_size": self.img_size}

    def _load_from_state_dict(
        self, state_dict: MutableMapping[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        """Called by torch's load_state_dict on this module, also inside another one; see `fit_state_dict`.

        Released weights, and those of another image size, are replaced in state_dict, which is torch's own copy.
        """
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        fitted = fit_state_dict(given, self, local_metadata.get("options"))
        if fitted is not given:
            for name in given:
                del state_dict[prefix + name]
            state_dict.update({prefix + name: value for name, value in fitted.items()})
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(("pos_embed", "cls_token"))}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers for layer-wise settings: stages if coarse, otherwise blocks (embeddings go with their first block)."""
        if coarse:
            return {"stem": r"^stages\.0\.(?:patch_embed|pos_embed)", "blocks": r"^stages\.(\d+)"}
        return {
            "stem": r"^stages\.0\.(?:patch_embed|pos_embed)",
            "blocks": [
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^stages\.(\d+)\.(?:patch_embed|pos_embed|cls_token)", (0,)),
                (r"^norm", (99999,)),
            ],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Make img_size (at least 32 x 32) the model's own, by resampling position embeddings once."""
        img_size = check_image_size(img_size, MIN_IMAGE_SIDE)
        if img_size == self.img_size:
            return
        for stage, grid_size in zip(self.stages, stage_grids(img_size, len(self.stages)), strict=True):
            stage.set_grid_size(grid_size)
        self.img_size = img_size
        # timm writes this beside the weights it saves.
        update_model_input_size(self, img_size, bottleneck_img_size=self.bottleneck_img_size)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for num_classes (0: none), on the model's device and dtype, in its training mode."""
        if global_pool is not None:
            self.global_pool = self._check_global_pool(global_pool)
        self.num_classes = num_classes
        dd = get_device_dtype(self)
        if self.global_pool != "attn":
            self.attn_pool = None
        elif self.attn_pool is None:
            self.attn_pool = AttentionPool(self.num_features, **dd).train(self.training)
            init_linear(self.attn_pool.hidden)
            init_linear(self.attn_pool.score)
        self.head = nn.Identity()
        if num_classes > 0:
            self.head = nn.Linear(self.num_features, num_classes, **dd)
            init_linear(self.head)
        self.head.train(self.training)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features of the stages: contiguous maps `[B, C, H, W]` (NCHW) or tokens `[B, N, C]` (NLC), no class token.

        indices: the last n stages if int, all if None. norm: apply the final LayerNorm to the last stage's features,
        the only ones it fits. Returns the intermediates, and before them the final tokens unless intermediates_only.
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        x = check_image(x, self.in_chans)
        stages = self.stages[: max_index + 1] if stop_early else self.stages
        intermediates, pooled = [], []
        tokens = x
        for i, stage in enumerate(stages):
            tokens, feat_size = stage(x)
            x = stage.to_map(tokens, feat_size)
            if self.stage_fusion is not None:
                pooled.append(x.mean((2, 3)))
            if i in take_indices:
                normed = norm and i == len(self.depths) - 1
                features = self.norm(tokens) if normed else tokens
                if output_fmt == "NCHW":
                    intermediates.append(stage.to_map(features, feat_size).contiguous())
                else:
                    intermediates.append(features[:, stage.num_prefix_tokens :])
        if intermediates_only:
            return intermediates
        if len(stages) == len(self.stages):
            tokens = self._finish_features(tokens, pooled)
        return tokens, intermediates

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the chosen intermediates do not need; returns the indices as non-negative numbers."""
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        shortened = max_index < len(self.stages) - 1
        self.stages = self.stages[: max_index + 1]
        if shortened:
            self.num_features = self.head_hidden_size = self.feature_info[max_index]["num_chs"]
            # Only the last stage has one.
            self.has_class_token = False
        if prune_norm or shortened:
            self.norm = nn.Identity()
        if prune_head or shortened:
            self.stage_fusion = None
            self.reset_classifier(0, "")
        return take_indices

    def forward_features(self, x: Tensor) -> Tensor:
        """Images `[B, in_chans, H, W]` to normalised tokens `[B, prefix + N, C]` of the last stage.

        With fuse_stages, the projected features of the stages before come first: one for each, C channels.
        """
        x = check_image(x, self.in_chans)
        tokens = x
        pooled: list[Tensor] = []
        for stage in self.stages:
            tokens, feat_size = stage(x)
            x = stage.to_map(tokens, feat_size)
            if self.stage_fusion is not None:
                pooled.append(x.mean((2, 3)))
        return self._finish_features(tokens, pooled)

    def _finish_features(self, tokens: Tensor, pooled: list[Tensor]) -> Tensor:
        """What `forward_features` makes of the last stage's tokens and, to be fused, the means of all stages' maps."""
        tokens = self.norm(tokens)
        if self.stage_fusion is None:
            return tokens
        return torch.cat([self.stage_fusion.project(pooled[:-1]), tokens], dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of `forward_features` to logits, or to pooled features if pre_logits."""
        if self.stage_fusion is not None:
            earlier, x = x[:, : self.stage_fusion.num_earlier], x[:, self.stage_fusion.num_earlier :]
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, int(self.has_class_token) :].mean(dim=1)
        elif self.attn_pool is not None:
            x = self.attn_pool(x[:, int(self.has_class_token) :])
        if self.stage_fusion is not None:
            x = self.stage_fusion(earlier, x)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))
