"""SOFT, normalised SOFT, and the same pyramid with other attentions: four stages of patch embedding and blocks.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341. The pyramid follows PVT, arXiv 2102.12122, with a convolutional stem.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from timm.layers import get_device_dtype, to_ntuple, trunc_normal_
from timm.models._input import update_model_args, update_model_input_size
from torch import Tensor, nn

from soft_vit.layers import (
    AttentionPool,
    ConvPatchEmbed,
    DropPathMode,
    PostNormBlock,
    PreNormBlock,
    StageFusion,
    attention_class,
    attention_options,
    map_to_tokens,
    resample_pos_embed,
    tokens_to_map,
)
from soft_vit.layers.recompute import checkpoint
from soft_vit.layers.reversible import Block, ReversibleBlocks
from soft_vit.models import base
from soft_vit.ops.numerics import check_choice
from soft_vit.weights.adapter import Adapter
from soft_vit.weights.read import NotedWeights
from soft_vit.weights.spec import ModelSpec

__all__ = ["PyramidViT"]

STAGE4_ATTENTIONS = {"softmax": "softmax", "soft": "gaussian", "soft_plus": "soft_plus"}
GlobalPool = Literal["token", "avg", "attn", ""]


class PyramidStage(nn.Module):
    """Patch embedding, position embedding, optional class token and blocks of one resolution."""

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
        **dd: Any,
    ) -> None:
        super().__init__()
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

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the map `[B, C, H, W]` of a map `[B, C_in, H_in, W_in]`, and the class token `[B, 1, C]` if any."""
        x = self.patch_embed(x)
        grid, P = (x.shape[2], x.shape[3]), self.num_prefix_tokens
        x = map_to_tokens(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.pos_drop(x + resample_pos_embed(self.pos_embed, self.grid_size, grid, P))
        if self.reversible:
            x = self.blocks(x, grid, P)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, grid, P) if self.grad_checkpointing else block(x, grid, P)
        return tokens_to_map(x[:, P:], grid), x[:, :P] if P else None


def stage_attentions(attention: str | Sequence[str], stage4: str | None, num_stages: int) -> tuple[str, ...]:
    """Return the name of the attention of each stage."""
    if isinstance(attention, str):
        stage4 = check_choice("stage4", stage4 or "softmax", tuple(STAGE4_ATTENTIONS))
        return (attention,) * (num_stages - 1) + (STAGE4_ATTENTIONS[stage4],)
    if len(attention) != num_stages or stage4 is not None:
        what = f"a name, or {num_stages} names without stage4"
        raise ValueError(f"attention must be {what}, got {tuple(attention)!r} and {stage4!r}.")
    return tuple(attention)


def split_attn_options(
    attentions: Sequence[str], options: dict[str, Any], defaults: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return, for each stage, those options that its attention accepts; options override defaults.

    Raises UnknownOptionError for an option that none of the attentions accepts. An exact Gaussian attention in the last
    stage of a normalised pyramid is normalised by default.
    """
    known = [attention_options(attention_class(name)) for name in attentions]
    for name in options:
        if not any(name in accepted for accepted in known):
            choices = ", ".join(sorted(set().union(*known)))
            what = f"those of the model or of its attentions ({choices})"
            raise base.UnknownOptionError(f"Options must be {what}, got {name!r}.")
    given = {**defaults, **options}
    stages = [{name: value for name, value in given.items() if name in accepted} for accepted in known]
    if attentions[-1] == "gaussian" and "soft_norm" in attentions:
        stages[-1].setdefault("normalize", True)
    return stages


SOFT_BLOCK = {
    "att.mha.W_q.*": "attn.q.*",
    "att.mha.W_v.*": "attn.v.*",
    "att.mha.attn.Qlandmark_op.*": "attn.sample.*",
    "att.mha.attn.Qnorm_act.0.*": "attn.sample_norm.*",
    "att.mha.attn.conv.*": "attn.local.*",
    "att.mha.ff.*": "attn.proj.*",
    "att.norm*.*": "norm*.*",
    "att.ff*.*": "mlp.fc*.*",
}
"""Names in a block of the released SOFT, and in this package."""

# Of the last stage, whose blocks are those of a standard transformer: the names are the same.
STANDARD_BLOCK = {name: name for name in ("norm*.*", "attn.q.*", "attn.kv.*", "attn.proj.*", "mlp.fc*.*")}


def released_names() -> dict[str, str]:
    """Return the names of parameters in the released SOFT, whose stages count from 1, and in this package."""
    names = {"cls_token": "stages.3.cls_token", "norm.*": "norm.*", "head.*": "head.*"}
    for i in range(4):
        names[f"pos_embed{i + 1}"] = f"stages.{i}.pos_embed"
        for unit in range(3):
            # Each unit has three indices: convolution, norm, activation.
            for index, part in enumerate(("conv", "norm"), 3 * unit):
                names[f"patch_embed{i + 1}.proj.{index}.*"] = f"stages.{i}.patch_embed.{unit}.{part}.*"
        for released, own in (STANDARD_BLOCK if i == 3 else SOFT_BLOCK).items():
            names[f"block{i + 1}.*.{released}"] = f"stages.{i}.blocks.*.{own}"
    return names


class StageOutput(NamedTuple):
    """A map `[B, C, H, W]`, the class token `[B, 1, C]` if any, and pooled features `[B, C]` of earlier stages."""

    map: Tensor
    class_token: Tensor | None
    pooled: tuple[Tensor, ...] = ()


class PyramidViT(base.StagedModel):
    """A pyramid vision transformer with any attention, SOFT by default.

    Images `[B, in_chans, H, W]` are at least 32 x 32. Each stride-2 convolution rounds its map up. Windows of
    bottleneck tokens that do not fit on a map are dropped. Position embeddings are resampled for images of another size
    than img_size.

    global_pool: `token` (class token), `avg` (mean of the tokens of the last stage), `attn` (mean of these tokens by
        learned scores, see `AttentionPool`) or the empty string (all tokens, class token first).
    fuse_stages: fuse the pooled features of all stages before the head, see `StageFusion`.
    attention: a name of `soft_vit.layers.ATTENTIONS` for the first three stages, or a sequence of four names.
    stage4: attention of the last stage if attention is one name: `softmax` (default, as released), `soft` (exact
        Gaussian) or `soft_plus`.
    class_token: use a class token in the last stage; by default if its attention accepts tokens outside of the map.
    drop_path_mode: `stochastic_depth`, or `dropout` for the element-wise dropout that the released code applies at
        drop_path_rate in the first three stages.
    reversible: run blocks as two streams, which recompute activations in backward, see `reversible_blocks`. This is
        another model with other weights; gradient checkpointing does not affect it.
    mlp_chunks: number of parts of the tokens that an MLP processes in turn, see `apply_in_chunks`.
    bottleneck_img_size: image size for which num_bottleneck tokens are counted, by default img_size. The weights
        depend on it, so `set_input_size` does not change it.
    attn_options: options of the attentions, such as inverse="cholesky" or max_bottleneck=(7, 7). Each is passed to the
        stages whose attention accepts it.
    """

    stages: Sequence[PyramidStage]  # type: ignore[assignment]  # a ModuleList knows no type of its modules

    stages_name: ClassVar[str] = "stages"
    adapter = Adapter(released_names())
    released_key: ClassVar[str] = "state_dict"
    stem_pattern: ClassVar[str] = r"^stages\.0\.(?:patch_embed|pos_embed)"
    no_decay: ClassVar[tuple[str, ...]] = ("pos_embed", "cls_token")
    global_pools: ClassVar[tuple[str, ...]] = get_args(GlobalPool)
    output_formats: ClassVar[tuple[str, ...]] = ("NCHW", "NLC")
    head_last: ClassVar[bool] = True
    channel_dim: ClassVar[int] = -1
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Arguments of the named pyramids."""

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
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        last = len(depths) - 1
        ratios: Sequence[float] = to_ntuple(len(depths))(mlp_ratios)
        base.check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, sr_ratios=sr_ratios, mlp_ratios=ratios)
        check_choice("drop_path_mode", drop_path_mode, get_args(DropPathMode))
        attentions = stage_attentions(attention, stage4, len(depths))
        needs_grid = attention_class(attentions[-1]).traits.needs_grid
        if class_token and needs_grid:
            what = f"False if the last stage has the attention {attentions[-1]!r}"
            raise ValueError(f"class_token must be {what}, got True.")
        class_token = not needs_grid if class_token is None else class_token
        rates = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}
        options = split_attn_options(attentions, attn_options, defaults=rates)
        num_bottleneck = attn_options.get("num_bottleneck")
        if bottleneck_img_size is not None and num_bottleneck is None:
            raise ValueError(f"bottleneck_img_size must be None without num_bottleneck, got {bottleneck_img_size}.")

        rates = {"drop_rate": drop_rate, "drop_path_rate": drop_path_rate}
        common: dict[str, Any] = dict(img_size=img_size, in_chans=in_chans, global_pool=global_pool, **rates, **dd)
        super().__init__(embed_dims, num_classes=num_classes, **common)
        counted_size = base.check_image_size(bottleneck_img_size or self.img_size)
        self.bottleneck_img_size = counted_size if num_bottleneck else None
        self.attention = attentions
        grids = self.grids(self.img_size)
        counted_grids = self.grids(counted_size)

        stages = []
        for i, block_rates in enumerate(self.drop_path_rates(depths)):
            dim, feat_size = embed_dims[i], counted_grids[i] if "num_bottleneck" in options[i] else grids[i]
            block: dict[str, Any] = dict(mlp_ratio=ratios[i], proj_drop=proj_drop_rate, mlp_chunks=mlp_chunks, **dd)
            blocks: list[Block] = []
            kind = attention_class(attentions[i])
            for rate in block_rates:
                attn = kind(dim, num_heads[i], feat_size=feat_size, sr_ratio=sr_ratios[i], **options[i], **dd)
                if i == last:
                    blocks.append(PreNormBlock(dim, attn, drop_path=rate, **block))
                else:
                    blocks.append(PostNormBlock(dim, attn, drop_path=rate, drop_path_mode=drop_path_mode, **block))
            if i == 0:
                patch_embed = ConvPatchEmbed(in_chans, (stem_width, stem_width, dim), (2, 1, 2), **dd)
            else:
                patch_embed = ConvPatchEmbed(embed_dims[i - 1], (dim,), (2,), **dd)
            stage: dict[str, Any] = dict(embed_dim=dim, grid_size=grids[i], class_token=i == last and class_token, **dd)
            stages.append(PyramidStage(patch_embed, blocks, pos_drop=pos_drop_rate, reversible=reversible, **stage))
        self.stages = nn.ModuleList(stages)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(embed_dims[-1], eps=1e-6, **dd)
        if fuse_stages and global_pool == "":
            raise ValueError("global_pool must be 'token', 'avg' or 'attn' with fuse_stages=True, got ''.")
        self.stage_fusion = StageFusion(embed_dims, **dd) if fuse_stages else None
        self.check_global_pool(global_pool)
        self.attn_pool = AttentionPool(embed_dims[-1], **dd) if global_pool == "attn" else None
        self.add_heads(**dd)
        self.init_weights(needs_reset=False)

    @property
    def has_class_token(self) -> bool:
        return bool(self.stages[-1].num_prefix_tokens)

    def check_global_pool(self, global_pool: str) -> str:
        super().check_global_pool(global_pool)
        if global_pool == "token" and not self.has_class_token:
            raise ValueError("global_pool must be 'avg', 'attn' or '' in a model without class token, got 'token'.")
        return global_pool

    def init_weights(self, needs_reset: bool = True) -> None:
        """Draw random weights: truncated normal (0.02) for linear layers and tokens, fan-out normal for convolutions.

        needs_reset: also reset layers that initialise themselves; required after `to_empty` from the meta device.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                base.init_linear(module)
            elif isinstance(module, nn.Conv2d):
                base.init_conv(module)
            elif isinstance(module, PyramidStage):
                trunc_normal_(module.pos_embed, std=0.02)
                if module.cls_token is not None:
                    trunc_normal_(module.cls_token, std=0.02)
            elif needs_reset and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return released or converted weights under the names of this model.

        Raises ValueError if the file notes another model with equal parameters.
        """
        notes = state.spec if isinstance(state, NotedWeights) else ModelSpec()
        own = self.attention[0]
        noted = notes.options.get("attention", self.variants.get(notes.model or "", {}).get("attention"))
        if {str(noted), own} == {"soft", "soft_norm"}:
            what = f"{noted!r}, as in {notes.model or 'the model'} of the file"
            raise ValueError(f"attention must be {what}, got {own!r}.")
        if notes.options.get("reversible") and not self.stages[0].reversible:
            raise ValueError("reversible must be True, as in the training of the weights, got False.")
        return super().from_released(state)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        super().set_input_size(img_size)
        update_model_input_size(self, self.img_size, bottleneck_img_size=self.bottleneck_img_size)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        if self.global_pool == "" and self.stage_fusion is not None:
            self.stage_fusion = None
            update_model_args(self, fuse_stages=False)
        if self.global_pool != "attn":
            self.attn_pool = None
        elif self.attn_pool is None:
            self.attn_pool = AttentionPool(self.num_features, **get_device_dtype(self)).train(self.training)
            base.init_linear(self.attn_pool.hidden)
            base.init_linear(self.attn_pool.score)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def forward_stage(self, index: int, x: Any) -> StageOutput:
        """Return the output of a stage for images `[B, in_chans, H, W]` or the output of the stage before."""
        pooled: tuple[Tensor, ...] = ()
        if index:
            pooled = x.pooled if self.stage_fusion is None else (*x.pooled, x.map.mean((2, 3)))
            x = x.map
        feature_map, class_token = self.stages[index](x)
        return StageOutput(feature_map, class_token, pooled)

    def feature(self, index: int, x: StageOutput, norm: bool, output_fmt: str) -> Tensor:
        """Return the output x of a stage as a map (NCHW) or as tokens `[B, N, C]` without class token (NLC)."""
        tokens = map_to_tokens(x.map)
        tokens = self.norm(tokens) if norm else tokens
        return tokens if output_fmt == "NLC" else tokens_to_map(tokens, (x.map.shape[2], x.map.shape[3])).contiguous()

    def forward_norm(self, x: StageOutput, norm: bool = True) -> Tensor:
        """Return tokens `[B, P + N, C]`; with fuse_stages, after a token of pooled features for each earlier stage."""
        tokens = map_to_tokens(x.map)
        if x.class_token is not None:
            tokens = torch.cat([x.class_token, tokens], dim=1)
        tokens = self.norm(tokens) if norm else tokens
        if not norm or self.stage_fusion is None:
            return tokens
        return torch.cat([self.stage_fusion.project(x.pooled), tokens], dim=1)

    def pool(self, x: Tensor) -> Tensor:
        """Return the features `[B, C]` that the head takes, from the tokens of `forward_features`."""
        num_earlier = 0 if self.stage_fusion is None else self.stage_fusion.num_earlier
        earlier, tokens = x[:, :num_earlier], x[:, num_earlier:]
        if self.global_pool == "token":
            pooled = tokens[:, 0]
        else:
            tokens = tokens[:, int(self.has_class_token) :]
            pooled = tokens.mean(dim=1) if self.attn_pool is None else self.attn_pool(tokens)
        return pooled if self.stage_fusion is None else self.stage_fusion(earlier, pooled)
