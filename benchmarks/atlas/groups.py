"""Attention types by how they mix tokens, as the pictures show them."""

from soft_vit.layers.choice import FIXED_TOKENS, SOME_TOKENS

GROUPS: dict[str, tuple[str, ...]] = {
    "all pairs": ("softmax_one", "gaussian", "synthesizer"),
    "Gaussian kernel, bottleneck": ("soft", "soft_norm", "soft_plus", "skyformer"),
    "landmarks, low rank": ("linformer", "nystrom", "agent", "vq", "spatial_reduction"),
    "kernel features": ("linear", "hedgehog", "cosformer", "focused", "inline", "polaformer", "efficient", "performer"),
    "other forms": ("hydra", "sima", "gau", "mala", "mila", "rala", "ttt", "ttt_glu", "vssd", "wfm", "circulant"),
    "recurrences": ("gla", "rwkv", "rwkv6", "mlstm", "ssm"),
    "some tokens only": SOME_TOKENS,
}
"""All attentions except softmax, which every panel shows, and `none`, which does not mix tokens."""


def measured_with() -> str:
    """Return `FIXED_TOKENS` in words."""
    kinds: dict[str, list[str]] = {}
    for kind, options in FIXED_TOKENS.items():
        kinds.setdefault(", ".join(f"`{name}={value!r}`" for name, value in options.items()), []).append(f"`{kind}`")
    return "; ".join(f"{', '.join(names)} with {options}" for options, names in kinds.items())
