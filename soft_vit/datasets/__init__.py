"""Generated data sets. Nothing here imports mmengine: the registered wrappers live in soft_vit.engine."""

from soft_vit.datasets.shapes import CLASSES, SPLITS, ShapeImages, ShapeSample, draw_shape

__all__ = ["CLASSES", "SPLITS", "ShapeImages", "ShapeSample", "draw_shape"]
