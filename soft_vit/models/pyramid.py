"""SOFT, normalised SOFT, and the same pyramid with other attentions: four stages of patch embedding and blocks.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341. The pyramid follows PVT, arXiv 2102.12122, with a convolutional stem.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import torch
from timm.layers import get_device_dtype, to_ntuple, trunc_normal_
from timm.models import PretrainedCfg
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from torch import Tensor, nn

from soft_vit.layers import (
    ATTENTIONS,
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
    reversible_blocks,
    tokens_to_map,
)
from soft_vit.layers.recompute import checkpoint
from soft_vit.layers.reversible import Block
from soft_vit.models import base
from soft_vit.ops.numerics import check_choice
from soft_vit.weights import RECORDED_WEIGHTS, WeightsError
from soft_vit.weights.adapter import Adapter
from soft_vit.weights.load import SOURCES
from soft_vit.weights.read import NotedWeights
from soft_vit.weights.spec import ModelSpec

# `register_models` adds the entrypoints.
__all__ = ["PYRAMID_MODELS", "PYRAMID_SIZES", "PyramidViT", "model_name"]

STAGE4_ATTENTIONS = {"softmax": "softmax", "soft": "gaussian", "soft_plus": "soft_plus"}
GlobalPool = Literal["token", "avg", "attn", ""]

_logger = logging.getLogger(__name__)


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
        """Return tokens `[B, P + N, C]`, P of them prefix tokens, and their map (H, W) for `[B, C_in, H_in, W_in]`."""
        x = self.patch_embed(x)
        B, _, H, W = x.shape
        x = map_to_tokens(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1)
        x = self.pos_drop(x + resample_pos_embed(self.pos_embed, self.grid_size, (H, W), self.num_prefix_tokens))
        layout = (H, W), self.num_prefix_tokens
        if self.reversible:
            return self.blocks(x, *layout), (H, W)
        for block in self.blocks:
            x = checkpoint(block, x, *layout) if self.grad_checkpointing else block(x, *layout)
        return x, (H, W)


def stage_attentions(attention: str | Sequence[str], stage4: str | None, num_stages: int) -> tuple[str, ...]:
    """Return the name of the attention of each stage."""
    if isinstance(attention, str):
        stage4 = check_choice("stage4", stage4 or "softmax", tuple(STAGE4_ATTENTIONS))
        return (attention,) * (num_stages - 1) + (STAGE4_ATTENTIONS[stage4],)
    if len(attention) != num_stages or stage4 is not None:
        raise ValueError(
            f"attention must be a name, or {num_stages} names without stage4, got {tuple(attention)!r} and {stage4!r}."
        )
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
            choices = sorted(set().union(*known))
            raise base.UnknownOptionError(
                f"Options must be those of the model or of its attentions ({', '.join(choices)}), got {name!r}."
            )
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


class StageTokens(NamedTuple):
    """Output of a stage: tokens `[B, P + N, C]`, their map (H, W), and pooled features `[B, C]` of earlier stages."""

    tokens: Tensor
    feat_size: tuple[int, int]
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
        if in_chans < 1 or stem_width < 1:
            raise ValueError(f"in_chans and stem_width must be positive, got {in_chans} and {stem_width}.")
        check_choice("drop_path_mode", drop_path_mode, get_args(DropPathMode))
        attentions = stage_attentions(attention, stage4, len(depths))
        needs_grid = attention_class(attentions[-1]).traits.needs_grid
        if class_token and needs_grid:
            raise ValueError(
                f"class_token must be False if the last stage has the attention {attentions[-1]!r}, got True."
            )
        class_token = not needs_grid if class_token is None else class_token
        rates = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}
        options = split_attn_options(attentions, attn_options, defaults=rates)
        num_bottleneck = attn_options.get("num_bottleneck")
        if bottleneck_img_size is not None and num_bottleneck is None:
            raise ValueError(f"bottleneck_img_size must be None without num_bottleneck, got {bottleneck_img_size}.")

        common: dict[str, Any] = dict(img_size=img_size, in_chans=in_chans, global_pool=global_pool, **dd)
        super().__init__(embed_dims, num_classes=0, drop_rate=drop_rate, **common)
        counted_size = base.check_image_size(bottleneck_img_size or self.img_size)
        self.bottleneck_img_size = counted_size if num_bottleneck else None
        self.attention = attentions
        grids = self.grids(self.img_size)
        counted_grids = self.grids(counted_size)

        stages = []
        for i, block_rates in enumerate(base.drop_path_rates(drop_path_rate, depths)):
            dim, feat_size = embed_dims[i], counted_grids[i] if "num_bottleneck" in options[i] else grids[i]
            block: dict[str, Any] = dict(mlp_ratio=ratios[i], proj_drop=proj_drop_rate, mlp_chunks=mlp_chunks, **dd)
            blocks: list[Block] = []
            for rate in block_rates:
                attn = attention_class(attentions[i])(
                    dim, num_heads[i], feat_size=feat_size, sr_ratio=sr_ratios[i], **options[i], **dd
                )
                if i == last:
                    blocks.append(PreNormBlock(dim, attn, drop_path=rate, **block))
                else:
                    blocks.append(PostNormBlock(dim, attn, drop_path=rate, drop_path_mode=drop_path_mode, **block))
            if i == 0:
                patch_embed = ConvPatchEmbed(in_chans, (stem_width, stem_width, dim), (2, 1, 2), **dd)
            else:
                patch_embed = ConvPatchEmbed(embed_dims[i - 1], (dim,), (2,), **dd)
            stage: dict[str, Any] = dict(embed_dim=dim, grid_size=grids[i], class_token=i == last and class_token)
            stages.append(
                PyramidStage(patch_embed, blocks, pos_drop=pos_drop_rate, reversible=reversible, **stage, **dd)
            )
        self.stages = nn.ModuleList(stages)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(embed_dims[-1], eps=1e-6, **dd)
        self.stage_fusion = StageFusion(embed_dims, **dd) if fuse_stages else None
        self.check_global_pool(global_pool)
        self.attn_pool = AttentionPool(embed_dims[-1], **dd) if global_pool == "attn" else None
        # Registered last: saved states of optimizers go by the order of parameters.
        del self.head
        self.num_classes = num_classes
        self.head = self.make_head(num_classes, **dd)
        self.init_weights(needs_reset=False)

    @property
    def has_class_token(self) -> bool:
        return bool(self.stages[-1].num_prefix_tokens)

    def check_global_pool(self, global_pool: str) -> str:
        super().check_global_pool(global_pool)
        if global_pool == "token" and not self.has_class_token:
            raise ValueError("global_pool must be 'avg', 'attn' or '' in a model without class token, got 'token'.")
        if global_pool == "" and self.stage_fusion is not None:
            raise ValueError("global_pool must be 'token', 'avg' or 'attn' with fuse_stages=True, got ''.")
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
        reversible = any(stage.reversible for stage in self.stages)
        own = self.attention[0]
        noted = notes.options.get("attention", PYRAMID_MODELS.get(notes.model or "", {}).get("attention"))
        if {str(noted), own} == {"soft", "soft_norm"}:
            raise ValueError(
                f"attention must be {noted!r}, as in {notes.model or 'the model'} of the file, got {own!r}."
            )
        if notes.options.get("reversible") and not reversible:
            raise ValueError("reversible must be True, as in the training of the weights, got False.")
        return super().from_released(state)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        super().set_input_size(img_size)
        update_model_input_size(self, self.img_size, bottleneck_img_size=self.bottleneck_img_size)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        if self.global_pool != "attn":
            self.attn_pool = None
        elif self.attn_pool is None:
            self.attn_pool = AttentionPool(self.num_features, **get_device_dtype(self)).train(self.training)
            base.init_linear(self.attn_pool.hidden)
            base.init_linear(self.attn_pool.score)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        _, max_index = feature_take_indices(len(self.stages), indices)
        if prune_head or max_index < len(self.stages) - 1:
            self.stage_fusion = None
        return super().prune_intermediate_layers(indices, prune_norm, prune_head)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def forward_stage(self, index: int, x: Any) -> StageTokens:
        """Return the output of a stage for images `[B, in_chans, H, W]` or the output of the stage before."""
        pooled: tuple[Tensor, ...] = ()
        if index:
            before: StageTokens = x
            x = tokens_to_map(before.tokens[:, self.stages[index - 1].num_prefix_tokens :], before.feat_size)
            pooled = before.pooled if self.stage_fusion is None else (*before.pooled, x.mean((2, 3)))
        tokens, feat_size = self.stages[index](x)
        return StageTokens(tokens, feat_size, pooled)

    def feature(self, index: int, x: StageTokens, norm: bool, output_fmt: str) -> Tensor:
        """Return the output x of a stage as a map (NCHW) or as tokens `[B, N, C]` without class token (NLC)."""
        tokens = (self.norm(x.tokens) if norm else x.tokens)[:, self.stages[index].num_prefix_tokens :]
        return tokens if output_fmt == "NLC" else tokens_to_map(tokens, x.feat_size).contiguous()

    def finish(self, x: StageTokens, norm: bool = True) -> Tensor:
        """Return tokens `[B, P + N, C]`; with fuse_stages, after a token of pooled features for each earlier stage."""
        if not norm:
            return x.tokens
        tokens = self.norm(x.tokens)
        if self.stage_fusion is None:
            return tokens
        return torch.cat([self.stage_fusion.project(list(x.pooled)), tokens], dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits of the tokens of `forward_features`, or pooled features if pre_logits."""
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


PYRAMID_SIZES: dict[str, dict[str, Any]] = {
    "pico": dict(embed_dims=(32, 64, 128, 160), num_heads=(1, 2, 4, 5), depths=(1, 1, 2, 1), stem_width=16),
    "tiny": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 2, 3, 2)),
    "small": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 7, 4)),
    "base": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 20, 4)),
    "medium": dict(embed_dims=(64, 128, 288, 512), num_heads=(2, 4, 9, 16), depths=(1, 3, 29, 5)),
    "large": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 40, 5)),
    "huge": dict(embed_dims=(64, 128, 352, 512), num_heads=(2, 4, 11, 16), depths=(1, 5, 49, 5)),
}
"""Arguments of each size (SOFT, Table 1); `base` is called `soft_small` in the released code."""
# Sizes of the pyramids with other attentions.
BASELINE_SIZES = ("pico", "tiny", "small")
SOFT = ("soft", "soft_norm", "soft_plus")


def _timm_name(attention: str, size: str) -> str:
    return f"{attention}_{size}" if attention in SOFT else f"{attention}_pyramid_{size}"


def _pyramids(attention: str) -> dict[str, dict[str, Any]]:
    sizes = PYRAMID_SIZES if attention in SOFT else BASELINE_SIZES
    return {_timm_name(attention, size): dict(PYRAMID_SIZES[size], attention=attention) for size in sizes}


def _pyramid_models() -> dict[str, dict[str, Any]]:
    models = {name: arguments for attention in ATTENTIONS for name, arguments in _pyramids(attention).items()}
    for size, arguments in PYRAMID_SIZES.items():
        # Released models have softmax in the last stage and bottleneck tokens that grow with the image. These are for
        # training from scratch, without softmax and at a cost that is linear in the image's area.
        own = dict(stage4="soft_plus", class_token=False, global_pool="avg", max_bottleneck=(7, 7))
        models[f"soft_plus_{size}"].update(own)
        models[f"soft_{size}_pure"] = dict(arguments, attention="soft", stage4="soft")
        models[f"soft_norm_{size}_pure"] = dict(arguments, attention="soft_norm", stage4="soft")
    return models


PYRAMID_MODELS = _pyramid_models()
"""Arguments of every named model of the pyramid."""


def model_name(attention: str, size: str) -> str:
    """Return the timm name of the pyramid with an attention, such as soft_tiny or linformer_pyramid_tiny.

    Raises ValueError for an attention or a size without a model.
    """
    attention_class(attention)
    name = _timm_name(attention, size)
    if name not in PYRAMID_MODELS:
        raise ValueError(f"size must be {', '.join(BASELINE_SIZES)} for {attention}, got {size!r}.")
    return name


def _cfg(name: str) -> dict[str, Any]:
    return base.imagenet_cfg(
        min_input_size=(3, 32, 32),
        first_conv="stages.0.patch_embed.0.conv",
        fixed_input_size=attention_class(PYRAMID_MODELS[name]["attention"]).traits.fixed_grid,
        license="mit",
        paper_ids=("arXiv:2110.11945", "arXiv:2207.03341"),
    )


default_cfgs = base.make_default_cfgs(PYRAMID_MODELS, _cfg)


def _create_pyramid(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    overlay = kwargs.get("pretrained_cfg_overlay") or {}
    own_source = any(overlay.get(key) for key in SOURCES)
    if kwargs.get("pretrained_cfg") is None:
        if pretrained and not own_source:
            name = _with_weights(name, kwargs.get("attention"))
        else:
            # Not timm's default: the tag of recorded weights has their classes, image size and normalisation.
            kwargs["pretrained_cfg"] = PretrainedCfg(**_cfg(name), architecture=name)
    return base.create_staged(PyramidViT, name, pretrained, PYRAMID_MODELS[name], **kwargs)


def _with_weights(name: str, attention: str | None) -> str:
    """Return the model to build for pretrained=True: `soft_norm_*` for a `soft_*` without released weights."""
    normalised = name.replace("soft_", "soft_norm_", 1)
    recorded = {entry.model for entry in RECORDED_WEIGHTS.values()}
    if not name.startswith("soft_") or name in recorded or normalised not in recorded:
        return name
    if attention not in (None, "soft_norm"):
        raise WeightsError(
            f"attention must be 'soft_norm' for pretrained weights of {name}, got {attention!r}. The weights are those "
            f"of {normalised}."
        )
    _logger.warning("The released weights of %s have the normalised attention: %s is built.", name, normalised)
    return normalised


for _name in PYRAMID_MODELS:
    base.register_named(_name, _create_pyramid)


def register_pyramids(attention: str) -> None:
    """Register the pyramids with an attention type that is not the package's."""
    models = _pyramids(attention)
    PYRAMID_MODELS.update(models)
    default_cfgs.update(base.make_default_cfgs(models, _cfg))
    for name in models:
        base.register_named(name, _create_pyramid)
