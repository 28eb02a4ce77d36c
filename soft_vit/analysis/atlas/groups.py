"""Attention kinds by how they mix tokens: what one picture shows, which kinds let every token see all, and options."""

from typing import Any

GROUPS: dict[str, tuple[str, ...]] = {
    "all pairs": ("softmax_one", "gaussian", "synthesizer"),
    "Gaussian kernel, bottleneck": ("soft", "soft_norm", "soft_plus", "skyformer"),
    "landmarks, low rank": ("linformer", "nystrom", "agent", "vq", "spatial_reduction"),
    "kernel features": ("linear", "cosformer", "focused", "inline", "polaformer", "efficient", "performer"),
    "other linear forms": ("hydra", "sima", "gau", "mala", "mila", "rala", "ttt"),
    "some tokens only": ("local", "atrous", "sparse", "longformer", "bigbird", "reformer"),
}
"""Every kind but softmax, which all pictures show, and `none`, which mixes nothing."""

MIXES_ALL = {"softmax", *(kind for kinds in GROUPS.values() for kind in kinds)} - {*GROUPS["some tokens only"]}
"""Kinds in which every token sees all others."""

FIXED_TOKENS: dict[str, dict[str, Any]] = {
    "soft": {"max_bottleneck": (7, 7)},
    "soft_norm": {"max_bottleneck": (7, 7)},
    "soft_plus": {"max_bottleneck": (7, 7)},
    "spatial_reduction": {"linear": True},
}
"""Options that keep the number of reduced tokens at 49 as the map grows; for all other kinds their defaults do."""


def measured_with() -> str:
    """`FIXED_TOKENS` in words."""
    kinds: dict[str, list[str]] = {}
    for kind, options in FIXED_TOKENS.items():
        kinds.setdefault(", ".join(f"`{name}={value!r}`" for name, value in options.items()), []).append(f"`{kind}`")
    return "; ".join(f"{', '.join(names)} with {options}" for options, names in kinds.items())
