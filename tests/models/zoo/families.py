"""The families of the zoo, a row each: what differs between them in the tests that all of them pass."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from captured_models import OPTIONS

Rule = Callable[[np.ndarray], np.ndarray]


def first_match(table: dict[str, Any], name: str, default: Any) -> Any:
    """Return the value of the first pattern that is found in a name."""
    return next((value for pattern, value in table.items() if re.search(pattern, name)), default)


@dataclass(frozen=True)
class Family:
    """A row.

    models: all names, the smallest first, which contract tests shrink by `small`, to run it; empty for a row whose
        networks another row has.
    rules: values of a parameter from standard normal numbers, by patterns of its name; others have the common scheme.
    factors: by patterns of a name, multiplied in float32. skipped: what names of buffers end in that a model computes.
    unbiased: of the standard deviations in the golden files. tolerance: of logits and stages, relative.
    folder: of the golden files, where several rows share one.
    staged: whether the model is a classifier of `StagedModel`, and its contract that of test_contract.py.
    side: of a map, from the side of an image and the map's stride; rounded up by default.
    proj_drop: whether the MLPs have dropout.
    """

    models: tuple[str, ...]
    small: dict[str, Any]
    rules: dict[str, Rule] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    unbiased: bool = False
    tolerance: float = 1e-5
    folder: str = ""
    staged: bool = True
    side: Callable[[int, int], int] = lambda side, stride: -(-side // stride)
    proj_drop: bool = True

    @property
    def tiny(self) -> str:
        return self.models[0]

    def draw(self, name: str, z: np.ndarray) -> np.ndarray | None:
        return first_match(self.rules, name, lambda z: None)(z)

    def factor(self, name: str) -> float:
        return first_match(self.factors, name, 1.0)


def by_inputs(z: np.ndarray) -> np.ndarray:
    return z / np.sqrt(z.shape[2])


def vig_side(side: int, stride: int) -> int:
    """A convolution of 9 pixels at a stride of 8 with a padding of one, and one that rounds up."""
    return -(-((side - 7) // 8 + 1) // 2)


def sizes(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


THREE, FOUR = ("tiny", "small", "base"), ("tiny", "small", "medium", "large")
SWIN_SIZES = (*THREE, "base_384")
# What makes models small: one block in each stage, or few in all.
SHALLOW = {"depths": (1, 1, 1, 1)}
STAGES = dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3))
PVT_STAGES = dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 4), mlp_ratios=(2, 2, 2, 2))
SWIN_STAGES = dict(embed_dims=(12, 24, 48, 96), num_heads=(1, 2, 4, 4), depths=(1, 1, 2, 1), linear_blocks=(1, 1, 0, 0))
SSM_STAGES = dict(SHALLOW, embed_dims=(16, 24, 32, 48), ssm_ratio=2)
CARE_STAGES = dict(depths=(1, 1, 2, 2), embed_dims=(16, 24, 32, 48), num_heads=(0, 0, 2, 3), ratios=((2, 2),) * 4)
WIDE_STAGES = dict(SHALLOW, embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4), proj_width=96)
BLOCKS, INLINE_BLOCKS = dict(embed_dim=24, depth=3), dict(embed_dim=24, num_heads=3, depth=2)
SLIM = dict(widths=(8, 8, 16, 24, 32), depths=(1, 0, 1, 1, 1), head_dim=8)

# What rows share, and what their weights are drawn from.
Options = dict[str, Any]
PVT: Options = dict(small=PVT_STAGES, side=int.__floordiv__)
SWIN: Options = dict(small=SWIN_STAGES, skipped=("relative_position_index", "attn_mask"))
# Weights of position encodings by convolution are small enough that the stream does not grow at every block.
QUIET_CPE = {r"\.cpe.*weight$": 0.1}
MILA: Options = dict(factors={r"attn\.qk\.weight$": 3.0, **QUIET_CPE}, skipped=("rope.rotations",), unbiased=True)
VIT3: Options = dict(folder="vit3", rules={r"attn\.w[12]$": by_inputs}, factors=QUIET_CPE, unbiased=True)
VSSD: Options = dict(factors={r"A_log$": -7.0, r"to_qkv\.weight$": 1.5, **QUIET_CPE})
CARE: Options = dict(factors={r"\.gamma$": 0.2, r"\.qk\.weight$": 2.0}, side=int.__floordiv__)
CA_DEIT: Options = dict(factors={r"\.cpe\.weight$": 0.25, r"\.qkv\.weight$": 1.5}, side=int.__floordiv__)
ROTARY: Options = dict(
    rules={r"gamma_[12]$": lambda z: 1 + 0.1 * np.tanh(z)},
    factors={r"\.(pos|lepe)\.weight$": 0.25, r"\.qkvo\.weight$": 1.5},
    skipped=(".RoPE.angle",),
    proj_drop=False,
)
WFM: Options = dict(
    folder="weightformer",
    rules={r"\.b$": lambda z: 0.02 * z},
    factors={r"\.linear1\.w[12]$": 8.0, r"\.linear1\.(w|wfm\.weight)$": 2.0},
    side=int.__floordiv__,
)
VIG: Options = dict(
    folder="vig",
    factors={
        r"\.gk_proj\.1\.weight$": 4.0,
        r"\.(o_proj|down_proj|fc2|qkv_proj)\.weight$": 0.25,
        r"^patch_embed\.(proj\.[03]|[05])\.weight$|downsample\.1\.weight$": 0.25,
    },
)
VRWKV: Options = dict(
    folder="vrwkv",
    rules={
        r"\.(spatial_mix|time_maa)_[xwkvrg]$": lambda z: 0.5 + 0.5 * np.tanh(z),
        r"\.time_decay$": lambda z: 1.5 * z - 3,
        r"\bspatial_decay$": lambda z: 10 * z,
        r"\bspatial_first$": lambda z: 100 * z,
    },
    factors={
        r"(gamma[12]|time_maa_w1)$": 0.25,
        r"time_maa_w2$": 0.5,
        r"(time_decay_w2|att\.key\.weight)$": 2.0,
        r"time_faaaa$": 8.0,
        r"projection\.weight$": 1 / 32,
    },
)
VIL: Options = dict(
    folder="vil",
    rules={r"fgate\.bias$": lambda z: 0.64 * z + 4},
    factors={
        r"pos_embed\.embed$": 64.0,
        r"igate\.bias$": 128.0,
        r"[qk]_proj\.weight$": 0.5,
        r"v_proj\.weight$": 1 / 32,
        r"proj_down\.weight$": 0.125,
        r"blocks\..*norm\.weight$": 0.25,
    },
)
VMAMBA: Options = dict(
    rules={r"(x_proj|dt_projs)_weight$": by_inputs, r"dt_projs_bias$": lambda z: 1.5 * z - 3},
    factors={
        r"dt_projs_weight$": 2.0,
        r"(Ds|out_proj\.weight|fc2\.weight)$": 0.25,
        r"(patch_embed\.7|downsample\.3)\.weight$": 0.125,
        r"(patch_embed\.[05]|downsample\.1)\.weight$": 1 / 32,
    },
)
EFFICIENTVIT_FACTORS = {
    r"\.running_var$|\.qkv\.conv\.weight$": 2**-10,
    r"\.proj\.conv\.weight$": 2**10,
    r"neck\.output_ops\.0\.op_list\.0\.conv\.weight$": 2**-8,
    r"^image_encoder\.norm\.weight$": 1.0,
    r"backbone\.stages\.\d\.op_list\.0\.main\.(.*\.)?(proj|point_conv|conv2)\.norm\.weight$": 2**-4,
    r"\.(proj|point_conv|conv2)\.norm\.weight$": 2**-6,
    r"\.norm\.weight$": 2**-5,
}
EFFICIENTVIT: Options = dict(
    folder="efficientvit_seg", factors=EFFICIENTVIT_FACTORS, staged=False, unbiased=True, proj_drop=False
)
SEG, SAM = (dict(channels=16, depth=1, **more) for more in (dict(out_expand=2), dict(block="fused", size=(12, 12))))
VMAMBAS = ("tiny_s1l8", "tiny_s2l5", "small_s2l15", "small_s1l20", "base_s2l15", "base_s1l20")
CITYSCAPES = tuple(f"{size}_cityscapes" for size in ("b0", "b1", "b2", "b3"))

FAMILIES: dict[str, Family] = {
    "inline_pvt": Family(sizes("inline_pvt", *FOUR), **PVT, folder="inline"),
    "inline_swin": Family(sizes("inline_swin", *SWIN_SIZES), **SWIN, folder="inline"),
    "inline_deit": Family(sizes("inline_deit", *THREE), INLINE_BLOCKS, folder="inline", staged=False),
    "pola_pvt": Family(sizes("pola_pvt", *FOUR), **PVT, folder="polaformer", tolerance=2e-5),
    "pola_swin": Family(sizes("pola_swin", *SWIN_SIZES), **SWIN, folder="polaformer"),
    "flatten_pvt": Family(sizes("flatten_pvt", *FOUR), **PVT, folder="flatten"),
    "flatten_pvt_v2": Family(sizes("flatten_pvt_v2", "b0", "b1", "b2", "b3", "b4", "b5"), PVT_STAGES, folder="flatten"),
    "flatten_swin": Family(sizes("flatten_swin", *SWIN_SIZES), **SWIN, folder="flatten"),
    "mila": Family(sizes("mlla", *THREE), STAGES, **MILA),
    "vit3": Family(sizes("vittt", *THREE), dict(BLOCKS, num_heads=3), **VIT3),
    "h_vit3": Family(sizes("h_vittt", *THREE), STAGES, skipped=("rope.rotations",), **VIT3),
    "ravlt": Family(sizes("ravlt", "t", "s", "b", "l"), WIDE_STAGES, **ROTARY),
    "wfm": Family(sizes("wfm", *THREE), BLOCKS, unbiased=True, **WFM),
    "vssd": Family(sizes("vssd", "micro", *THREE), dict(STAGES, d_state=8), **VSSD),
    "care": Family(sizes("care", "s0", "s1", "s2"), CARE_STAGES, **CARE),
    "vig": Family(sizes("vig", *THREE), dict(BLOCKS, num_heads=3), unbiased=True, side=vig_side, **VIG),
    "vig_h": Family(sizes("vig_h", *THREE), STAGES, unbiased=True, **VIG),
    "vmamba": Family(sizes("vmamba", *VMAMBAS), SSM_STAGES, unbiased=True, **VMAMBA),
    "vrwkv": Family(sizes("vrwkv", *THREE, "large"), BLOCKS, unbiased=True, **VRWKV),
    "vrwkv6": Family(sizes("vrwkv6", *THREE), dict(BLOCKS, num_heads=3, init_values=0.5), unbiased=True, **VRWKV),
    "vil2": Family(sizes("vil2", *THREE), BLOCKS, unbiased=True, **VIL),
    "vil": Family(sizes("vil", "tiny", "tinyplus", "small", "smallplus", "base"), BLOCKS, unbiased=True, **VIL),
    "ca_deit": Family(sizes("ca_deit", *THREE), BLOCKS, unbiased=True, **CA_DEIT),
    "efficientvit_seg": Family(sizes("efficientvit_seg", *CITYSCAPES), dict(SLIM, neck=SEG), **EFFICIENTVIT),
    "efficientvit_seg_ade20k": Family(
        sizes("efficientvit_seg", "b1_ade20k", "b2_ade20k", "b3_ade20k"), {}, **EFFICIENTVIT
    ),
    "efficientvit_seg_l": Family(sizes("efficientvit_seg", "l1_cityscapes", "l2_cityscapes"), {}, **EFFICIENTVIT),
    "efficientvit_seg_l_ade20k": Family(sizes("efficientvit_seg", "l1_ade20k", "l2_ade20k"), {}, **EFFICIENTVIT),
    "efficientvit_sam": Family(
        sizes("efficientvit_sam", "l0", "l1", "l2", "xl0", "xl1"), dict(SLIM, neck=SAM), **EFFICIENTVIT
    ),
    "mavit": Family(sizes("mavit", "t", "s", "b", "l"), WIDE_STAGES, **ROTARY),
}

PYRAMIDS: dict[str, Family] = {
    # Weights of one map or not: what does not depend on the attention.
    "soft": Family(("soft_pico",), SHALLOW),
    "synthesizer": Family(("synthesizer_pyramid_pico",), SHALLOW),
    **{name: Family(("soft_pico",), {**SHALLOW, **options}) for name, options in OPTIONS.items()},
}
"""Pyramids of this package, for the same contract; files of released ones are in tests/released.py."""

# The tiny variant of each, and those that contract tests run: name of the model and options that make it small.
SMALL = {name: (family.tiny, family.small) for name, family in FAMILIES.items() if family.small}
# Their networks are those of another row with another attention, which a test of each attention reaches too.
SAME_BODY = ("flatten_pvt", "flatten_swin", "pola_pvt", "pola_swin", "h_vit3", "mavit")
