"""Register the published weights with mmpretrain."""

from mmpretrain.apis.model import ModelHub

from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.files import RESOURCES


def register_models() -> None:
    """Let `mmpretrain.list_models` and `get_model` find the models of `model-index.yml`.

    Importing `soft_vit.engine` calls it; further calls have no effect. A package copied without `model-index.yml`
    registers nothing.
    """
    index = RESOURCES / "model-index.yml"
    # Without recorded weights, a file of this name next to the package belongs to another project.
    if RECORDED_WEIGHTS and index.is_file() and not any(ModelHub.has(name) for name in RECORDED_WEIGHTS):
        ModelHub.register_model_index(index, config_prefix=RESOURCES)
