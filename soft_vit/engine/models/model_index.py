"""Register the published weights with mmpretrain."""

from mmpretrain.apis.model import ModelHub

from soft_vit.weights import ENTRIES
from soft_vit.weights.files import RESOURCES


def register_models() -> None:
    """Let `mmpretrain.list_models` and `get_model` find the models of `model-index.yml`.

    Importing `soft_vit.engine` calls it; further calls have no effect. A package copied without `model-index.yml`
    registers nothing.
    """
    index = RESOURCES / "model-index.yml"
    # Without recorded weights, a file of this name next to the package belongs to another project.
    if ENTRIES and index.is_file() and not any(ModelHub.has(name) for name in ENTRIES):
        ModelHub.register_model_index(index, config_prefix=RESOURCES)
