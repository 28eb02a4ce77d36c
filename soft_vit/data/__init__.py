"""Data sets, generated or read from files. Nothing here imports mmengine: soft_vit.engine and .dense register them."""

from soft_vit.data.shapes import CLASSES, SPLITS, ShapeImages, ShapeSample, draw_shape, normalised_batch

__all__ = ["CLASSES", "SPLITS", "ShapeImages", "ShapeSample", "draw_shape", "normalised_batch"]
