"""The sizes of the family (SOFT, arXiv 2110.11945, Table 1); the released code calls our base `soft_small`."""

from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "pico": dict(embed_dims=(32, 64, 128, 160), num_heads=(1, 2, 4, 5), depths=(1, 1, 2, 1), stem_width=16),
    "tiny": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 2, 3, 2)),
    "small": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 7, 4)),
    "base": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 20, 4)),
    "medium": dict(embed_dims=(64, 128, 288, 512), num_heads=(2, 4, 9, 16), depths=(1, 3, 29, 5)),
    "large": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 40, 5)),
    "huge": dict(embed_dims=(64, 128, 352, 512), num_heads=(2, 4, 11, 16), depths=(1, 5, 49, 5)),
}


def size_name(embed_dims: tuple[int, ...], depths: tuple[int, ...]) -> str | None:
    """The name of the size with these widths and depths, or None."""
    for name, size in SIZES.items():
        if size["embed_dims"] == tuple(embed_dims) and size["depths"] == tuple(depths):
            return name
    return None
