"""The papers of model families."""

# Collections by how the names of their models begin, the first that fits: name, paper, title.
COLLECTIONS = {
    "soft_norm_": ("SOFT-norm", "https://arxiv.org/abs/2207.03341", "Softmax-free Linear Transformers"),
    "soft_": (
        "SOFT",
        "https://arxiv.org/abs/2110.11945",
        "SOFT: Softmax-free Transformer with Linear Complexity",
    ),
    "mlla_": (
        "MILA",
        "https://arxiv.org/abs/2405.16605",
        "Demystify Mamba in Vision: A Linear Attention Perspective",
    ),
    "inline_": (
        "InLine",
        "https://arxiv.org/abs/2412.06590",
        "Bridging the Divide: Reconsidering Softmax and Linear Attention",
    ),
    "pola_": (
        "PolaFormer",
        "https://arxiv.org/abs/2501.15061",
        "PolaFormer: Polarity-aware Linear Attention for Vision Transformers",
    ),
    "flatten_": (
        "FLatten",
        "https://arxiv.org/abs/2308.00442",
        "FLatten Transformer: Vision Transformer using Focused Linear Attention",
    ),
    "vittt_": ("ViT3", "https://arxiv.org/abs/2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "h_vittt_": ("H-ViT3", "https://arxiv.org/abs/2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "ravlt_": (
        "RAVLT",
        "https://arxiv.org/abs/2411.07635",
        "Breaking the Low-Rank Dilemma of Linear Attention",
    ),
    "mavit_": (
        "MAViT",
        "https://arxiv.org/abs/2507.00698",
        "Rectifying Magnitude Neglect in Linear Attention",
    ),
}
# The pyramid with any other attention.
COLLECTIONS[""] = ("SOFT's pyramid", *COLLECTIONS["soft_"][1:])


def collection_of(model: str) -> tuple[str, str, str]:
    """Name, paper and title of the collection that a model belongs to."""
    return next(found for start, found in COLLECTIONS.items() if model.startswith(start))
