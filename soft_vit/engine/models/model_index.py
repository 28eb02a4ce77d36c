"""The recorded weights among the models that mmpretrain knows by name."""

from mmpretrain.apis.model import ModelHub

from soft_vit.weights import ENTRIES
from soft_vit.weights.files import RESOURCES

__all__ = ["register_models"]


def register_models() -> None:
    """Let `mmpretrain.list_models` and `get_model` find the models of `model-index.yml`.

    Importing `soft_vit.engine` has done so; a further call changes nothing. A package that is copied without its files
    has no recorded weights to offer.
    """
    index = RESOURCES / "model-index.yml"
    # Without entries of our own, a file of this name next to the package is that of another project.
    if ENTRIES and index.is_file() and not any(ModelHub.has(name) for name in ENTRIES):
        ModelHub.register_model_index(index, config_prefix=RESOURCES)
