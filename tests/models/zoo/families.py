"""The families of the zoo, a row each: what differs between them in the tests that all of them pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Draw = Callable[[str, np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class Family:
    """A row.

    models: all names. tiny: the one that contract tests shrink by `small`, to run it.

    draw: values of a parameter from its name and standard normal numbers, None for those of the common scheme.
    factor: by name, multiplied in float32. skipped: what names of buffers end in that a model computes.
    unbiased: of the standard deviations in the golden files. tolerance: of logits and stages, relative.
    slow: stems of golden files whose test is marked slow. folder: of the golden files, by default the family's name.
    """

    models: tuple[str, ...]
    tiny: str
    small: dict[str, Any]
    draw: Draw = lambda name, z: None
    factor: Callable[[str], float] = lambda name: 1.0
    skipped: tuple[str, ...] = ()
    unbiased: bool = False
    tolerance: float = 1e-5
    slow: tuple[str, ...] = ()
    folder: str = ""


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
    slow=("ravlt_s_b1_224x224_seed2", "mavit_s_b1_224x224_seed2"),
)


def quiet_cpe(name: str) -> float:
    """Weights of position encodings by convolution, small enough that the stream does not grow at every block."""
    return 0.1 if ".cpe" in name and name.endswith("weight") else 1.0


def mila_factor(name: str) -> float:
    return 3.0 if name.endswith("attn.qk.weight") else quiet_cpe(name)


def vit3_draw(name: str, z: np.ndarray) -> np.ndarray | None:
    return z / np.sqrt(z.shape[2]) if name.endswith(("attn.w1", "attn.w2")) else None


# One block in each stage.
SHALLOW = {"depths": (1, 1, 1, 1)}

FAMILIES: dict[str, Family] = {
    "mila": Family(
        models=("mlla_tiny", "mlla_small", "mlla_base"),
        tiny="mlla_tiny",
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3)),
        factor=mila_factor,
        skipped=("rope.rotations",),
        unbiased=True,
        slow=("mlla_small_b1_224x224_seed1",),
    ),
    "vit3": Family(
        models=("vittt_tiny", "vittt_small", "vittt_base"),
        tiny="vittt_tiny",
        small=dict(embed_dim=24, depth=3, num_heads=3),
        draw=vit3_draw,
        factor=quiet_cpe,
        unbiased=True,
        slow=("vittt_small_b1_224x224_seed1",),
    ),
    "h_vit3": Family(
        folder="vit3",
        models=("h_vittt_tiny", "h_vittt_small", "h_vittt_base"),
        tiny="h_vittt_tiny",
        small=dict(SHALLOW, embed_dims=(16, 24, 32, 48), num_heads=(1, 3, 2, 3)),
        draw=vit3_draw,
        factor=quiet_cpe,
        skipped=("rope.rotations",),
        unbiased=True,
        slow=("h_vittt_small_b1_224x224_seed2",),
    ),
    "ravlt": Family(("ravlt_t", "ravlt_s", "ravlt_b", "ravlt_l"), "ravlt_t", **ROTARY),
    "mavit": Family(("mavit_t", "mavit_s", "mavit_b", "mavit_l"), "mavit_t", **ROTARY),
}

# The tiny variant of each, and those that contract tests run: name of the model and options that make it small.
SMALL = {name: (family.tiny, family.small) for name, family in FAMILIES.items()}
