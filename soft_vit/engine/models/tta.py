"""Test time augmentation: a model that sees several views of each image, and what it says of them merged."""

import copy

from mmengine.config import Config

from soft_vit.engine.data.eval_data import shown_datasets
from soft_vit.engine.errors import UserError

__all__ = ["use_tta_model", "use_tta_pipeline"]


def use_tta_pipeline(cfg: Config, classifies: bool) -> None:
    """Make the test pipeline of a config, in place, its `tta_pipeline`.

    Where the config has none, a classifier sees each image and its mirror image, after all that its own test pipeline
    does. Deriving that here, rather than in the configs, keeps the size and the crop that a run chooses. Raises
    UserError (a ValueError) for a config that neither says what to do nor measures classes of whole images.
    """
    absent = [name for name in ("tta_model", "tta_pipeline") if not cfg.get(name)]
    if absent and not classifies:
        raise UserError(
            f"The config {cfg.filename} sets no {' and no '.join(absent)}, and flipping images is the default for "
            "classification alone; set both, or leave --tta out."
        )
    for dataset in shown_datasets(cfg):
        own = dataset.get("pipeline")
        if not cfg.get("tta_pipeline") and not own:
            raise UserError(
                f"The test images of {cfg.filename} have no pipeline whose last step could be repeated; set "
                "tta_pipeline, or leave --tta out."
            )
        dataset.pipeline = copy.deepcopy(cfg.get("tta_pipeline") or [*own[:-1], _flips(own[-1])])


def _flips(packing: dict) -> dict:
    flips = [{"type": "RandomFlip", "prob": prob} for prob in (0.0, 1.0)]
    return {"type": "TestTimeAug", "transforms": [flips, [packing]]}


def use_tta_model(cfg: Config) -> None:
    """Put the model of a config, in place, into its `tta_model`; by default the mean of the scores is taken."""
    if cfg.get("data_preprocessor"):
        # Of the model's own and that of the config, MMEngine would otherwise let the other one win.
        cfg.model.setdefault("data_preprocessor", cfg.pop("data_preprocessor"))
    wrapper = cfg.get("tta_model") or {"type": "mmpretrain.AverageClsScoreTTA"}
    cfg.model = {**wrapper, "module": cfg.model}
