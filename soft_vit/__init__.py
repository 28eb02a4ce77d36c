"""Softmax-free vision transformers for timm and MMEngine; importing the package registers its models with timm."""

from soft_vit import models
from soft_vit.version import __version__

__all__ = ["__version__", "models"]
