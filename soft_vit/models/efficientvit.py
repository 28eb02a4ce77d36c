"""EfficientViT: segmentation (`efficientvit_seg_*`), and the image encoder for SAM (`efficientvit_sam_*`).

Cai et al., "EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction", ICCV 2023, arXiv
2205.14756. Zhang et al., "EfficientViT-SAM: Accelerated Segment Anything Model Without Accuracy Loss", CVPR 2024
workshop, arXiv 2402.05008. The networks follow the released code, github.com/mit-han-lab/efficientvit; parameters of
stem and stages have the names of timm's `efficientvit_*`, whose weights start these models.

Letters: B batch, C channels, H x W a map, N = H * W, h heads of D channels.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import torch
from timm.layers import DropPath, LayerNorm2d, get_device_dtype, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import ConvNormAct
from soft_vit.layers.embed import channels_last, interpolate_maps
from soft_vit.layers.mlp import HIDDEN_SIZE
from soft_vit.layers.plain import device_and_dtype
from soft_vit.models import base
from soft_vit.ops.cpu import on_cpu_without_gradients
from soft_vit.ops.linear import relu_features
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision
from soft_vit.ops.sizes import same_size
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["EfficientViTSAM", "EfficientViTSeg"]

# Added to the sum of weights of a token; one whose queries are all negative has none. timm adds 1e-5.
EPS = 1e-15
# Side of the map that SAM's decoder takes.
SAM_SIDE = 64


class Conv(ConvNormAct):
    """Convolution, BatchNorm, activation: `[B, C, H, W]` to `[B, C', ceil(H / stride), ceil(W / stride)]`.

    bias: of the convolution, in place of a BatchNorm. gelu: GELU by tanh, in place of hard swish. act: False for none.
    """

    def __init__(
        self,
        in_chans: int,
        out_chans: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        act: bool = True,
        *,
        gelu: bool = False,
        eps: float = 1e-5,
        **dd: Any,
    ) -> None:
        super().__init__(in_chans, out_chans, stride, kernel_size, groups, bias, norm=not bias, act=False, **dd)
        if act:
            self.act = nn.GELU("tanh") if gelu else nn.Hardswish(inplace=True)  # type: ignore[assignment]
        if isinstance(self.norm, nn.BatchNorm2d):
            self.norm.eps = eps


MakeConv = Callable[..., Conv]
"""Makes a `Conv` of given channels, kernel and stride, with the activation and eps of a network."""


class Layers(nn.Sequential):
    """Layers of maps `[B, C, H, W]`, in evaluation of few images at a time."""

    def forward(self, x: Tensor) -> Tensor:
        return few_images(self, super().forward, x)


def few_images(module: nn.Module, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `compute(x)` of a map, without gradients for so few images at a time that the allocator has memory.

    module: whose layers compute calls; layers that are in training or hooked take all images at once.
    """
    # The hidden maps of a block, with copies of them, are about as much larger than the map.
    hidden = 8 * x.shape[1] * x.shape[2] * x.shape[3]
    if not on_cpu_without_gradients(x) or x.shape[0] <= 1 or hidden * x.shape[0] <= HIDDEN_SIZE:
        return compute(x)
    if any(layer.training or layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules()):
        return compute(x)
    return torch.cat([compute(part) for part in x.split(max(1, HIDDEN_SIZE // hidden))])


def named(**layers: nn.Module) -> nn.Sequential:
    return Layers(OrderedDict(layers))


def separable(conv: MakeConv, dim: int) -> nn.Sequential:
    return named(depth_conv=conv(dim, dim, 3, groups=dim), point_conv=conv(dim, dim, act=False))


def double(conv: MakeConv, dim: int) -> nn.Sequential:
    return named(conv1=conv(dim, dim, 3), conv2=conv(dim, dim, 3, act=False))


def bottleneck(conv: MakeConv, dim: int, out: int, expand: float, stride: int = 1, bias: bool = False) -> nn.Sequential:
    """Return an inverted bottleneck (MBConv). bias: in place of its first two BatchNorms."""
    hidden = round(dim * expand)
    return named(
        inverted_conv=conv(dim, hidden, bias=bias),
        depth_conv=conv(hidden, hidden, 3, stride, hidden, bias),
        point_conv=conv(hidden, out, act=False),
    )


def fused(conv: MakeConv, dim: int, out: int, expand: float, stride: int = 1) -> nn.Sequential:
    """Return an inverted bottleneck whose first convolution is one of 3 x 3 (FusedMBConv)."""
    hidden = round(dim * expand)
    return named(spatial_conv=conv(dim, hidden, 3, stride), point_conv=conv(hidden, out, act=False))


BLOCKS: dict[str, Callable[..., nn.Sequential]] = {
    "mb": bottleneck,
    "fused": fused,
    "bias": partial(bottleneck, bias=True),
    "attention": partial(bottleneck, bias=True),
}
"""The blocks of a stage by kind; those of `attention` follow a `ReLUAttention`, except the first."""


class Residual(nn.Module):
    """`x + main(x)` of a map `[B, C, H, W]`."""

    def __init__(self, main: nn.Module, drop_path: float = 0.0) -> None:
        super().__init__()
        self.main = main
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop_path(self.main(x))


@register_notrace_module
class ReLUAttention(nn.Module):
    """Linear attention with ReLU at two scales, of a map `[B, C, H, W]` (arXiv 2205.14756, Sec. 3.1).

    Half of the 2 C / D heads have the queries, keys and values of single pixels, half those of pixels that two
    convolutions gather, a depthwise one of kernel_size and one of the D channels of each.
    """

    def __init__(self, conv: MakeConv, dim: int, head_dim: int, kernel_size: int, **dd: Any) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": False, **dd}
        self.head_dim = head_dim
        self.qkv = ConvNormAct(dim, 3 * dim, 1, 1, norm=False, act=False, **options)
        gather = nn.Conv2d(3 * dim, 3 * dim, kernel_size, padding=kernel_size // 2, groups=3 * dim, **options)
        mix = nn.Conv2d(3 * dim, 3 * dim, 1, groups=3 * dim // head_dim, **options)
        self.aggreg = nn.ModuleList([nn.Sequential(gather, mix)])
        self.proj = conv(2 * dim, dim, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return few_images(self, self.mix, x)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, *(gather(qkv) for gather in self.aggreg)], 1).flatten(2)
        q, k, v = qkv.unflatten(1, (-1, 3, self.head_dim)).unbind(2)
        # Sums over many tokens exceed the range of float16.
        with full_precision(x):
            q, k, v = relu_features(q), relu_features(k), at_least_float32(v)
            # The translation to ONNX drops an addition of so small a number, but not the minimum.
            y = v @ k.mT @ q / (k.sum(3)[:, :, None] @ q + EPS).clamp(min=EPS)
        return self.proj(y.flatten(1, 2).unflatten(2, (height, width)).to(x.dtype))


@register_notrace_module
class MapFusion(nn.Module):
    """The head of EfficientViT up to its classifier: the last three maps are projected, enlarged, added and mixed.

    in_channels: of maps of any strides, the largest map first; at most the last three count. channels: of the sum.
    depth: number of blocks after it. block: `mb` or `fused`, see `BLOCKS`. expand: hidden channels of a block over
    channels. out_expand: channels of a last layer over channels, or None for none. size: (H, W) of the sum, by default
    that of the largest map. conv: makes the convolutions.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int = 64,
        depth: int = 3,
        block: str = "mb",
        expand: float = 4,
        out_expand: float | None = None,
        size: tuple[int, int] | None = None,
        conv: MakeConv = Conv,
    ) -> None:
        super().__init__()
        self.size = size
        self.out_channels = channels if out_expand is None else round(channels * out_expand)
        self.inputs = nn.ModuleList(conv(dim, channels, act=False) for dim in reversed(in_channels[-3:]))
        make_block = BLOCKS[check_choice("block", block, ("mb", "fused"))]
        self.blocks = nn.Sequential(*(Residual(make_block(conv, channels, channels, expand)) for _ in range(depth)))
        self.out = nn.Identity() if out_expand is None else conv(channels, self.out_channels)

    def fuse(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the sum `[B, channels, H, W]` of maps `[B, C_i, H_i, W_i]`, the largest first."""
        maps = maps[-len(self.inputs) :]
        size = self.size or maps[0].shape[2:]
        projected = [project(x) for project, x in zip(reversed(self.inputs), maps, strict=True)]
        enlarged = (x if same_size(x.shape[2:], size) else interpolate_maps(x, size, "bicubic") for x in projected)
        return reduce(add, enlarged)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Turn maps `[B, C_i, H_i, W_i]`, the largest first, into one `[B, out_channels, H, W]`."""
        return self.out(self.blocks(self.fuse(maps)))


class EfficientViT(base.StagedModel):
    """Stem, stages and what takes their last three maps, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Features of the stages are maps without a norm, of sides that are rounded up.

    widths: channels of the stem and of each stage. depths: blocks of the stem, and of each stage after its first one.
    stages: for each, the kind of its blocks (see `BLOCKS`), and hidden channels over channels of the first and of the
    others. kernel_size: of the convolution that gathers pixels in attentions. gelu, eps: see `Conv`. neck: options of
    `MapFusion`. kwargs: arguments of `StagedModel`.
    """

    stages: nn.ModuleList  # type: ignore[misc]  # a module of this name comes before the property

    stages_name = "stages"
    stem_pattern = r"^stem\."
    final_names: ClassVar[tuple[str, ...]] = ("neck",)
    global_pools = ("",)
    # The released name of the whole, and whether the neck is part of the head and goes with the classes.
    prefix: ClassVar[str] = ""
    neck_of_head: ClassVar[bool] = True

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        stages: Sequence[tuple[str, float, float]],
        neck: Mapping[str, Any],
        head_dim: int = 32,
        kernel_size: int = 5,
        gelu: bool = False,
        eps: float = 1e-5,
        *,
        num_classes: int = 0,
        global_pool: str = "",
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        stem_depth, *depths = depths
        self.conv: MakeConv = partial(Conv, gelu=gelu, eps=eps)
        self.neck_options = neck
        features = round(neck["channels"] * (neck.get("out_expand") or 1))
        super().__init__(widths[1:], num_classes=num_classes, global_pool=global_pool, num_features=features, **kwargs)
        self.adapter = make_adapter(self.prefix, gelu, bool(neck.get("out_expand")))
        conv = partial(self.conv, **dd)
        self.stem = named(in_conv=conv(self.in_chans, widths[0], 3, 2))
        for i in range(stem_depth):
            self.stem.add_module(f"res{i}", Residual((double if gelu else separable)(conv, widths[0])))
        self.stages = nn.ModuleList()
        rates = self.drop_path_rates([depth + 1 for depth in depths])
        for dim, out, (kind, first, expand), (_, *others) in zip(widths[:-1], widths[1:], stages, rates, strict=True):
            blocks: list[nn.Module] = [named(main=BLOCKS[kind](conv, dim, out, first, stride=2))]
            for rate in others:
                block: nn.Module = Residual(BLOCKS[kind](conv, out, out, expand), rate)
                if kind == "attention":
                    attention = ReLUAttention(conv, out, head_dim, kernel_size, **dd)
                    block = named(context_module=Residual(attention, rate), local_module=block)
                blocks.append(block)
            self.stages.append(base.Stage(blocks))
        self.neck: nn.Module = self.make_neck(**dd) if num_classes > 0 or not self.neck_of_head else nn.Identity()

    def make_neck(self, **dd: Any) -> MapFusion:
        widths = [info["num_chs"] for info in self.feature_info[: len(self.stages)]]
        return MapFusion(widths, **self.neck_options, conv=partial(self.conv, **dd))

    # Each stage hands on all maps so far.

    def embed(self, x: Tensor) -> Any:
        return (self.stem(channels_last(x)),)

    def forward_stage(self, index: int, x: Any) -> Any:
        return (*x, super().forward_stage(index, x[-1]))

    def feature(self, index: int, x: Any, norm: bool, output_fmt: str) -> Tensor:
        return super().feature(index, x[-1], False, output_fmt)

    def forward_norm(self, x: Any, norm: bool = True) -> Tensor:
        return self.neck(x[1:]) if norm and isinstance(self.neck, MapFusion) else x[-1]


class EfficientViTSeg(EfficientViT):
    """Scores `[B, num_classes, ceil(H / 8), ceil(W / 8)]` of the pixels of images; arguments of `EfficientViT`.

    Without classes, there is no head at all, and the model returns the map of the last stage.
    """

    with_classes = ("head.", "neck.")

    def classifier(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return a classifier of the pixels of a map."""
        return nn.Conv2d(self.num_features, num_classes, 1, **dd)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier alone; without classes, remove all behind the stages."""
        if num_classes <= 0:
            self.neck = nn.Identity()
        elif not isinstance(self.neck, MapFusion):
            neck = self.neck = self.make_neck(**get_device_dtype(self)).train(self.training)
            self.num_features = neck.out_channels
        super().reset_classifier(num_classes, global_pool)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return scores of the map that `forward_features` returns, or the map itself if pre_logits."""
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)


class EfficientViTSAM(EfficientViT):
    """The embedding `[B, 256, 64, 64]` of images of any size for SAM's mask decoder; arguments of `EfficientViT`."""

    final_names = ("neck", "out", "norm")
    prefix = "image_encoder."
    neck_of_head = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dim, dd = self.num_features, device_and_dtype(kwargs)
        self.out = Conv(dim, dim, bias=True, act=False, **dd)
        self.norm = LayerNorm2d(dim, eps=1e-6, **dd)

    def forward_norm(self, x: Any, norm: bool = True) -> Tensor:
        x = super().forward_norm(x, norm)
        return self.norm(self.out(x)) if norm else x


def make_adapter(prefix: str, large: bool, has_out: bool) -> Adapter:
    """Return the released names; large: of `l*` and `xl*`, which count the stem as a stage. has_out: of the neck."""
    stem, part = "backbone.stages.0" if large else "backbone.input_stem", "neck" if prefix else "head"
    names = {f"{stem}.op_list.0.**": "stem.in_conv.**"}
    names |= {f"{stem}.op_list.{i + 1}.**": f"stem.res{i}.**" for i in range(2)}
    names |= {f"backbone.stages.{i + large}.op_list.**": f"stages.{i}.blocks.**" for i in range(5)}
    if not prefix:
        # The largest map is not enlarged.
        names["head.input_ops.2.**"] = "neck.inputs.2.**"
    names |= {f"{part}.input_ops.*.op_list.0.**": "neck.inputs.*.**", f"{part}.middle.op_list.**": "neck.blocks.**"}
    last = f"{part}.output_ops.0.op_list"
    if prefix:
        names |= {f"{last}.0.**": "out.**", "norm.*": "norm.*"}
    else:
        names[f"{last}.{int(has_out)}.conv.*"] = "head.*"
        names |= {f"{last}.0.**": "neck.out.**"} if has_out else {}
    rest: dict[str, str | None] = dict.fromkeys(("prompt_encoder.**", "mask_decoder.**"))
    return Adapter({**{prefix + name: own for name, own in names.items()}, **rest})


B_STAGES = (("mb", 4, 4), ("mb", 4, 4), ("attention", 4, 4), ("attention", 4, 4))
L_STAGES = (("fused", 16, 4), ("fused", 16, 4), ("bias", 16, 4), ("attention", 24, 6))
XL_STAGES = (("fused", 16, 4), ("fused", 16, 4), ("fused", 16, 4), ("attention", 16, 4), ("attention", 24, 6))
L: dict[str, Any] = dict(widths=(32, 64, 128, 256, 512), stages=L_STAGES, gelu=True)
XL: dict[str, Any] = dict(widths=(32, 64, 128, 256, 512, 1024), stages=XL_STAGES, gelu=True, kernel_size=3)
BACKBONES: dict[str, dict[str, Any]] = {
    "b0": dict(widths=(8, 16, 32, 64, 128), depths=(1, 1, 1, 2, 2), stages=B_STAGES, head_dim=16),
    "b1": dict(widths=(16, 32, 64, 128, 256), depths=(1, 1, 2, 3, 4), stages=B_STAGES, head_dim=16),
    "b2": dict(widths=(24, 48, 96, 192, 384), depths=(1, 2, 3, 4, 6), stages=B_STAGES),
    "b3": dict(widths=(32, 64, 128, 256, 512), depths=(1, 3, 5, 6, 9), stages=B_STAGES),
    "l0": dict(L, depths=(1, 1, 1, 4, 4)),
    "l1": dict(L, depths=(1, 1, 1, 6, 6)),
    "l2": dict(L, depths=(1, 2, 2, 8, 8)),
    "xl0": dict(XL, depths=(0, 1, 1, 2, 3, 3)),
    "xl1": dict(XL, depths=(1, 2, 2, 4, 6, 6)),
}


def _seg(backbone: str, classes: int, channels: int, depth: int = 3, block: str = "mb", **neck: Any) -> dict[str, Any]:
    neck, eps = dict(channels=channels, depth=depth, block=block, **neck), {"eps": 1e-7}
    return dict(BACKBONES[backbone], num_classes=classes, neck=neck, **(eps if backbone.startswith("l") else {}))


def _sam(backbone: str, depth: int, expand: float = 1) -> dict[str, Any]:
    neck = dict(channels=256, depth=depth, block="fused", expand=expand, size=(SAM_SIDE, SAM_SIDE))
    return dict(BACKBONES[backbone], neck=neck, eps=1e-6)


SEG_MODELS: dict[str, dict[str, Any]] = {
    "efficientvit_seg_b0_cityscapes": _seg("b0", 19, 32, 1, out_expand=4),
    "efficientvit_seg_b1_cityscapes": _seg("b1", 19, 64, out_expand=4),
    "efficientvit_seg_b2_cityscapes": _seg("b2", 19, 96, out_expand=4),
    "efficientvit_seg_b3_cityscapes": _seg("b3", 19, 128, out_expand=4),
    "efficientvit_seg_l1_cityscapes": _seg("l1", 19, 256, block="fused", expand=1),
    "efficientvit_seg_l2_cityscapes": _seg("l2", 19, 256, 5, block="fused", expand=1),
    "efficientvit_seg_b1_ade20k": _seg("b1", 150, 64),
    "efficientvit_seg_b2_ade20k": _seg("b2", 150, 96),
    "efficientvit_seg_b3_ade20k": _seg("b3", 150, 128),
    "efficientvit_seg_l1_ade20k": _seg("l1", 150, 128, block="fused", out_expand=8),
    "efficientvit_seg_l2_ade20k": _seg("l2", 150, 128, block="fused", out_expand=8),
}
SAM_MODELS: dict[str, dict[str, Any]] = {
    "efficientvit_sam_l0": _sam("l0", 4),
    "efficientvit_sam_l1": _sam("l1", 8),
    "efficientvit_sam_l2": _sam("l2", 12),
}
# With five stages.
SAM_XL_MODELS: dict[str, dict[str, Any]] = {
    "efficientvit_sam_xl0": _sam("xl0", 6, 4),
    "efficientvit_sam_xl1": _sam("xl1", 12, 4),
}


def _seg_cfg(name: str) -> dict[str, Any]:
    size = (1024, 2048) if name.endswith("cityscapes") else (512, 512)
    pool_size, classes = (size[0] // 32, size[1] // 32), SEG_MODELS[name]["num_classes"]
    return dict(num_classes=classes, input_size=(3, *size), pool_size=pool_size, paper_ids="arXiv:2205.14756")


def _sam_cfg(name: str) -> dict[str, Any]:
    side = 1024 if "_xl" in name else 512
    sizes = dict(input_size=(3, side, side), pool_size=(16, 16))
    return dict(sizes, num_classes=0, interpolation="bilinear", paper_ids="arXiv:2402.05008", classifier=None)


COMMON: dict[str, Any] = dict(crop_pct=1.0, first_conv="stem.in_conv.conv")
base.register_family(EfficientViTSeg, SEG_MODELS, cfg=_seg_cfg, **COMMON)
base.register_family(EfficientViTSAM, SAM_MODELS, cfg=_sam_cfg, **COMMON)
base.register_family(EfficientViTSAM, SAM_XL_MODELS, feature_indices=(0, 1, 2, 3, 4), cfg=_sam_cfg, **COMMON)
