"""Data sets, generated or read from files, without MMEngine: soft_vit.engine and soft_vit.dense register them."""

from soft_vit.data.shapes import (
    CLASSES,
    SPLITS,
    ShapeImages,
    ShapeSample,
    draw_cued_shapes,
    draw_shape,
    normalised_batch,
)

__all__ = ["CLASSES", "SPLITS", "ShapeImages", "ShapeSample", "draw_cued_shapes", "draw_shape", "normalised_batch"]
