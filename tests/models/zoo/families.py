"""The families of the zoo, a row each: what differs between them in the tests that all of them pass."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from captured_models import OPTIONS

Draw = Callable[[str, np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class Family:
    """A row.

    models: all names, the smallest first, which contract tests shrink by `small`, to run it; empty for a row whose
        networks another row has.
    draw: values of a parameter from its name and standard normal numbers, None for those of the common scheme.
    factor: by name, multiplied in float32. skipped: what names of buffers end in that a model computes.
    unbiased: of the standard deviations in the golden files. tolerance: of logits and stages, relative.
    folder: of the golden files, where several rows share one.
    staged: whether the model is a classifier of `StagedModel`, and its contract that of test_contract.py.
    side: of a map, from the side of an image and the map's stride; rounded up by default.
    proj_drop: whether the MLPs have dropout.
    """

    models: tuple[str, ...]
    small: dict[str, Any]
    draw: Draw = lambda name, z: None
    factor: Callable[[str], float] = lambda name: 1.0
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


def draw_rotary(name: str, z: np.ndarray) -> np.ndarray | None:
    return 1 + 0.1 * np.tanh(z) if name.endswith(("gamma_1", "gamma_2")) else None


def rotary_factor(name: str) -> float:
    if name.endswith((".pos.weight", ".lepe.weight")):
        return 0.25
    return 1.5 if name.endswith(".qkvo.weight") else 1.0


ROTARY: dict[str, Any] = dict(
    small=dict(embed_dims=(16, 32, 32, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 4), proj_width=96),
    draw=draw_rotary,
    factor=rotary_factor,
    skipped=(".RoPE.angle",),
    proj_drop=False,
)


def quiet_cpe(name: str) -> float:
    """Weights of position encodings by convolution, small enough that the stream does not grow at every block."""
    return 0.1 if ".cpe" in name and name.endswith("weight") else 1.0


def mila_factor(name: str) -> float:
    return 3.0 if name.endswith("attn.qk.weight") else quiet_cpe(name)


def vit3_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    return z / np.sqrt(z.shape[2]) if name.endswith(("attn.w1", "attn.w2")) else None


def wfm_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    return 0.02 * z if name.endswith(".b") else None


def wfm_factor(name: str) -> float:
    if name.endswith((".linear1.w1", ".linear1.w2")):
        return 8.0
    return 2.0 if name.endswith((".linear1.w", ".linear1.wfm.weight")) else 1.0


def vssd_factor(name: str) -> float:
    if name.endswith("A_log"):
        return -7.0
    return 1.5 if name.endswith("to_qkv.weight") else quiet_cpe(name)


def care_factor(name: str) -> float:
    if name.endswith(".gamma"):
        return 0.2
    return 2.0 if name.endswith(".qk.weight") else 1.0


def vig_factor(name: str) -> float:
    if name.endswith(".gk_proj.1.weight"):
        return 4.0
    branch = name.endswith((".o_proj.weight", ".down_proj.weight", ".fc2.weight", ".qkv_proj.weight"))
    conv = re.search(r"^patch_embed\.(proj\.[03]|[05])\.weight$|downsample\.1\.weight$", name)
    return 0.25 if branch or conv else 1.0


def vig_side(side: int, stride: int) -> int:
    """A convolution of 9 pixels at a stride of 8 with a padding of one, and one that rounds up."""
    return -(-((side - 7) // 8 + 1) // 2)


def vrwkv_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    if re.search(r"\.(spatial_mix|time_maa)_[xwkvrg]$", name):
        return 0.5 + 0.5 * np.tanh(z)
    if name.endswith(".time_decay"):
        return 1.5 * z - 3
    return {"spatial_decay": 10 * z, "spatial_first": 100 * z}.get(name.rpartition(".")[2])


def vrwkv_factor(name: str) -> float:
    factors = {"gamma1": 0.25, "gamma2": 0.25, "time_maa_w1": 0.25, "time_maa_w2": 0.5, "time_decay_w2": 2.0}
    factors |= {"time_faaaa": 8.0, "att.key.weight": 2.0, "projection.weight": 1 / 32}
    return next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)


def vil_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    return 0.64 * z + 4 if name.endswith("fgate.bias") else None


def vil_factor(name: str) -> float:
    factors = {"pos_embed.embed": 64.0, "igate.bias": 128.0, "q_proj.weight": 0.5, "k_proj.weight": 0.5}
    factors |= {"v_proj.weight": 1 / 32, "proj_down.weight": 0.125}
    if "blocks." in name:
        factors["norm.weight"] = 0.25
    return next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)


def ca_deit_factor(name: str) -> float:
    return {".cpe.weight": 0.25, ".qkv.weight": 1.5}.get(name[name.rfind(".", 0, name.rfind(".")) :], 1.0)


def vmamba_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    if name.endswith(("x_proj_weight", "dt_projs_weight")):
        return z / np.sqrt(z.shape[2])
    return 1.5 * z - 3 if name.endswith("dt_projs_bias") else None


def vmamba_factor(name: str) -> float:
    factors = {"dt_projs_weight": 2.0, "Ds": 0.25, "patch_embed.7.weight": 0.125, "downsample.3.weight": 0.125}
    factors |= dict.fromkeys(("patch_embed.0.weight", "patch_embed.5.weight", "downsample.1.weight"), 1 / 32)
    factors |= {"out_proj.weight": 0.25, "fc2.weight": 0.25}
    return next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)


def efficientvit_factor(name: str) -> float:
    factors = {".running_var": 2**-10, ".qkv.conv.weight": 2**-10, ".proj.conv.weight": 2**10}
    factors["neck.output_ops.0.op_list.0.conv.weight"] = 2**-8
    if not name.endswith(".norm.weight") or name == "image_encoder.norm.weight":
        return next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)
    if not name.endswith((".proj.norm.weight", ".point_conv.norm.weight", ".conv2.norm.weight")):
        return 2**-5
    return 2**-4 if re.search(r"backbone\.stages\.\d\.op_list\.0\.main\.", name) else 2**-6


# One block in each stage.
SHALLOW = {"depths": (1, 1, 1, 1)}


def sizes(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


PVT_STAGES = dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 4), mlp_ratios=(2, 2, 2, 2))
SWIN_STAGES = dict(embed_dims=(12, 24, 48, 96), num_heads=(1, 2, 4, 4), depths=(1, 1, 2, 1), linear_blocks=(1, 1, 0, 0))
PVT: dict[str, Any] = dict(small=PVT_STAGES, side=int.__floordiv__)
SWIN: dict[str, Any] = dict(small=SWIN_STAGES, skipped=("relative_position_index", "attn_mask"))
FOUR_PVT, FOUR_SWIN = ("tiny", "small", "medium", "large"), ("tiny", "small", "base", "base_384")
SLIM = dict(widths=(8, 8, 16, 24, 32), depths=(1, 0, 1, 1, 1), head_dim=8)
EFFICIENTVIT: dict[str, Any] = dict(
    folder="efficientvit_seg", factor=efficientvit_factor, staged=False, unbiased=True, proj_drop=False
)
INLINE_DEIT = dict(embed_dim=24, num_heads=3, depth=2)

FAMILIES: dict[str, Family] = {
    "inline_pvt": Family(sizes("inline_pvt", *FOUR_PVT), **PVT, folder="inline"),
    "inline_swin": Family(sizes("inline_swin", *FOUR_SWIN), **SWIN, folder="inline"),
    "inline_deit": Family(sizes("inline_deit", "tiny", "small", "base"), INLINE_DEIT, folder="inline", staged=False),
    "pola_pvt": Family(sizes("pola_pvt", *FOUR_PVT), **PVT, folder="polaformer", tolerance=2e-5),
    "pola_swin": Family(sizes("pola_swin", *FOUR_SWIN), **SWIN, folder="polaformer"),
    "flatten_pvt": Family(sizes("flatten_pvt", *FOUR_PVT), **PVT, folder="flatten"),
    "flatten_pvt_v2": Family(sizes("flatten_pvt_v2", "b0", "b1", "b2", "b3", "b4", "b5"), PVT_STAGES, folder="flatten"),
    "flatten_swin": Family(sizes("flatten_swin", *FOUR_SWIN), **SWIN, folder="flatten"),
    "mila": Family(
        models=("mlla_tiny", "mlla_small", "mlla_base"),
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3)),
        factor=mila_factor,
        skipped=("rope.rotations",),
        unbiased=True,
    ),
    "vit3": Family(
        models=("vittt_tiny", "vittt_small", "vittt_base"),
        small=dict(embed_dim=24, depth=3, num_heads=3),
        draw=vit3_draw,
        factor=quiet_cpe,
        unbiased=True,
    ),
    "h_vit3": Family(
        folder="vit3",
        models=("h_vittt_tiny", "h_vittt_small", "h_vittt_base"),
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3)),
        draw=vit3_draw,
        factor=quiet_cpe,
        skipped=("rope.rotations",),
        unbiased=True,
    ),
    "ravlt": Family(("ravlt_t", "ravlt_s", "ravlt_b", "ravlt_l"), **ROTARY),
    "wfm": Family(
        folder="weightformer",
        models=("wfm_tiny", "wfm_small", "wfm_base"),
        small=dict(embed_dim=24, depth=3),
        side=int.__floordiv__,
        draw=wfm_draw,
        factor=wfm_factor,
        unbiased=True,
    ),
    "vssd": Family(
        models=("vssd_micro", "vssd_tiny", "vssd_small", "vssd_base"),
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3), d_state=8),
        factor=vssd_factor,
    ),
    "care": Family(
        models=("care_s0", "care_s1", "care_s2"),
        small=dict(depths=(1, 1, 2, 2), embed_dims=(16, 24, 32, 48), num_heads=(0, 0, 2, 3), ratios=((2, 2),) * 4),
        factor=care_factor,
        side=int.__floordiv__,
    ),
    "vig": Family(
        models=("vig_tiny", "vig_small", "vig_base"),
        small=dict(embed_dim=24, depth=3, num_heads=3),
        factor=vig_factor,
        unbiased=True,
        side=vig_side,
    ),
    "vig_h": Family(
        folder="vig",
        models=("vig_h_tiny", "vig_h_small", "vig_h_base"),
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3)),
        factor=vig_factor,
        unbiased=True,
    ),
    "vmamba": Family(
        models=sizes("vmamba", "tiny_s1l8", "tiny_s2l5", "small_s2l15", "small_s1l20", "base_s2l15", "base_s1l20"),
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), ssm_ratio=2),
        draw=vmamba_draw,
        factor=vmamba_factor,
        unbiased=True,
    ),
    "vrwkv": Family(
        models=("vrwkv_tiny", "vrwkv_small", "vrwkv_base", "vrwkv_large"),
        small=dict(embed_dim=24, depth=3),
        draw=vrwkv_draw,
        factor=vrwkv_factor,
        unbiased=True,
    ),
    "vrwkv6": Family(
        folder="vrwkv",
        models=("vrwkv6_tiny", "vrwkv6_small", "vrwkv6_base"),
        small=dict(embed_dim=24, depth=3, num_heads=3, init_values=0.5),
        draw=vrwkv_draw,
        factor=vrwkv_factor,
        unbiased=True,
    ),
    "vil2": Family(
        folder="vil",
        models=sizes("vil2", "tiny", "small", "base"),
        small=dict(embed_dim=24, depth=3),
        draw=vil_draw,
        factor=vil_factor,
        unbiased=True,
    ),
    "vil": Family(
        models=sizes("vil", "tiny", "tinyplus", "small", "smallplus", "base"),
        small=dict(embed_dim=24, depth=3),
        draw=vil_draw,
        factor=vil_factor,
        unbiased=True,
    ),
    "ca_deit": Family(
        models=sizes("ca_deit", "tiny", "small", "base"),
        small=dict(embed_dim=24, depth=3),
        factor=ca_deit_factor,
        unbiased=True,
        side=int.__floordiv__,
    ),
    "efficientvit_seg": Family(
        models=sizes("efficientvit_seg", *(f"{size}_cityscapes" for size in ("b0", "b1", "b2", "b3"))),
        small=dict(SLIM, neck=dict(channels=16, depth=1, out_expand=2)),
        **EFFICIENTVIT,
    ),
    "efficientvit_seg_ade20k": Family(
        sizes("efficientvit_seg", "b1_ade20k", "b2_ade20k", "b3_ade20k"), {}, **EFFICIENTVIT
    ),
    "efficientvit_seg_l": Family(sizes("efficientvit_seg", "l1_cityscapes", "l2_cityscapes"), {}, **EFFICIENTVIT),
    "efficientvit_seg_l_ade20k": Family(sizes("efficientvit_seg", "l1_ade20k", "l2_ade20k"), {}, **EFFICIENTVIT),
    "efficientvit_sam": Family(
        models=sizes("efficientvit_sam", "l0", "l1", "l2", "xl0", "xl1"),
        small=dict(SLIM, neck=dict(channels=16, depth=1, block="fused", size=(12, 12))),
        **EFFICIENTVIT,
    ),
    "mavit": Family(("mavit_t", "mavit_s", "mavit_b", "mavit_l"), **ROTARY),
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
