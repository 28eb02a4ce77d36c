"""Names of models and sizes, and what they stand for (SOFT, arXiv 2110.11945, Table 1)."""

from typing import Any

from soft_vit.layers import ATTENTIONS, attention_class

__all__ = ["PYRAMID_MODELS", "PYRAMID_SIZES", "model_name", "size_name"]

PYRAMID_SIZES: dict[str, dict[str, Any]] = {
    "pico": dict(embed_dims=(32, 64, 128, 160), num_heads=(1, 2, 4, 5), depths=(1, 1, 2, 1), stem_width=16),
    "tiny": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 2, 3, 2)),
    "small": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 7, 4)),
    "base": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 20, 4)),
    "medium": dict(embed_dims=(64, 128, 288, 512), num_heads=(2, 4, 9, 16), depths=(1, 3, 29, 5)),
    "large": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 40, 5)),
    "huge": dict(embed_dims=(64, 128, 352, 512), num_heads=(2, 4, 11, 16), depths=(1, 5, 49, 5)),
}
"""Arguments of each size; the released code calls our base `soft_small`."""
# Other attentions have the sizes that comparisons need.
BASELINE_SIZES = ("pico", "tiny", "small")
SOFT = ("soft", "soft_norm", "soft_plus")


def _timm_name(attention: str, size: str) -> str:
    return f"{attention}_{size}" if attention in SOFT else f"{attention}_pyramid_{size}"


def _arguments(attention: str, size: str) -> dict[str, Any]:
    # The released models have softmax in their last stage; for training from scratch, no stage needs it.
    last = dict(stage4="soft_plus", class_token=False, global_pool="avg") if attention == "soft_plus" else {}
    return dict(PYRAMID_SIZES[size], attention=attention, **last)


PYRAMID_MODELS: dict[str, dict[str, Any]] = {
    _timm_name(attention, size): _arguments(attention, size)
    for attention in ATTENTIONS
    for size in (PYRAMID_SIZES if attention in SOFT else BASELINE_SIZES)
}
"""Arguments of every named model of the pyramid."""
# Without softmax in the last stage too.
PYRAMID_MODELS |= {
    f"{_timm_name(attention, size)}_pure": dict(PYRAMID_SIZES[size], attention=attention, stage4="soft")
    for attention in ("soft", "soft_norm")
    for size in PYRAMID_SIZES
}


def model_name(attention: str, size: str) -> str:
    """The timm name of the pyramid with an attention, such as soft_tiny or linformer_pyramid_tiny.

    Raises ValueError for an attention or a size without a model.
    """
    attention_class(attention)
    name = _timm_name(attention, size)
    if name not in PYRAMID_MODELS:
        raise ValueError(f"There is no model {name}; use size {', '.join(BASELINE_SIZES)} for {attention}.")
    return name


def size_name(embed_dims: tuple[int, ...], depths: tuple[int, ...]) -> str | None:
    """The name of the size with these widths and depths, or None."""
    for name, size in PYRAMID_SIZES.items():
        if size["embed_dims"] == tuple(embed_dims) and size["depths"] == tuple(depths):
            return name
    return None
