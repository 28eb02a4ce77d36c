"""Data sets, generated or read from files, without MMEngine; `engine` and `dense` wrap and register them."""

from soft_vit.data.demo.shapes import CLASSES, SPLITS, ShapeImages, draw_shape, draw_tiles, normalised_batch

__all__ = ["CLASSES", "SPLITS", "ShapeImages", "draw_shape", "draw_tiles", "normalised_batch"]
