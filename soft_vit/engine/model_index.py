"""The recorded weights among the models that mmpretrain knows by name."""

from mmpretrain.apis.model import ModelHub

from soft_vit.weights import load_index
from soft_vit.weights.folders import RESOURCES

__all__ = ["register_models"]


def register_models() -> None:
    """Let `mmpretrain.list_models` and `get_model` find the models of `model-index.yml`; once is enough."""
    index = RESOURCES / "model-index.yml"
    if index.is_file() and not any(ModelHub.has(entry.name) for entry in load_index()):
        ModelHub.register_model_index(index, config_prefix=RESOURCES)
