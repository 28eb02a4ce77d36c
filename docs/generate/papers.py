"""The papers of model families."""

# Name, arXiv number and title of each collection, by how the names of its models begin. The first match counts.
COLLECTIONS = {
    "soft_norm_": ("SOFT-norm", "2207.03341", "Softmax-free Linear Transformers"),
    "soft_": ("SOFT", "2110.11945", "SOFT: Softmax-free Transformer with Linear Complexity"),
    "mlla_": ("MILA", "2405.16605", "Demystify Mamba in Vision: A Linear Attention Perspective"),
    "inline_": ("InLine", "2412.06590", "Bridging the Divide: Reconsidering Softmax and Linear Attention"),
    "pola_": ("PolaFormer", "2501.15061", "PolaFormer: Polarity-aware Linear Attention for Vision Transformers"),
    "flatten_": ("FLatten", "2308.00442", "FLatten Transformer: Vision Transformer using Focused Linear Attention"),
    "vittt_": ("ViT3", "2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "h_vittt_": ("H-ViT3", "2512.01643", "ViT3: Unlocking Test-Time Training in Vision"),
    "ravlt_": ("RAVLT", "2411.07635", "Breaking the Low-Rank Dilemma of Linear Attention"),
    "mavit_": ("MAViT", "2507.00698", "Rectifying Magnitude Neglect in Linear Attention"),
    "wfm_": ("WeightFormer", "2605.01711", "Linear-Time Global Visual Modeling without Explicit Attention"),
    "vssd_": ("VSSD", "2407.18559", "VSSD: Vision Mamba with Non-Causal State Space Duality"),
    "care_": (
        "CARE",
        "2411.16170",
        "CARE Transformer: Mobile-Friendly Linear Visual Transformer via Decoupled Dual Interaction",
    ),
    "vig_": ("ViG", "2405.18425", "ViG: Linear-complexity Visual Sequence Learning with Gated Linear Attention"),
    # SOFT's pyramid with other attentions.
    "": ("SOFT's pyramid", "2110.11945", "SOFT: Softmax-free Transformer with Linear Complexity"),
}


def collection_of(model: str) -> tuple[str, str, str]:
    """Return the name, the paper's address and its title of the collection that a model belongs to."""
    name, number, title = next(found for start, found in COLLECTIONS.items() if model.startswith(start))
    return name, f"https://arxiv.org/abs/{number}", title
