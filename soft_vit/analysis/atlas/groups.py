"""Attention kinds by how they mix tokens: what one picture shows, and which kinds let every token see all others."""

GROUPS: dict[str, tuple[str, ...]] = {
    "all pairs, and none": ("softmax_one", "gaussian", "synthesizer", "none"),
    "Gaussian kernel, bottleneck": ("soft", "soft_norm", "soft_plus", "skyformer"),
    "landmarks, low rank": ("linformer", "nystrom", "agent", "vq", "spatial_reduction"),
    "kernel features": ("linear", "cosformer", "focused", "inline", "polaformer", "efficient", "performer"),
    "other linear forms": ("hydra", "sima", "gau", "mala", "mila", "rala", "ttt"),
    "some tokens only": ("local", "atrous", "sparse", "longformer", "bigbird", "reformer"),
}
"""Every kind but softmax, which all pictures show."""

MIXES_ALL = {"softmax", *(kind for kinds in GROUPS.values() for kind in kinds)} - {*GROUPS["some tokens only"], "none"}
"""Kinds in which every token sees all others."""
