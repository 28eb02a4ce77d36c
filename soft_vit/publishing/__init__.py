"""Trained weights for others: converted between layouts, published with a model card, pushed to a hub."""

from soft_vit.publishing.conversion import convert
from soft_vit.publishing.layouts import LAYOUTS
from soft_vit.publishing.publish import publish

__all__ = ["LAYOUTS", "convert", "publish"]
