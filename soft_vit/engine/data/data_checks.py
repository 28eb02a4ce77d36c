"""The data of a config: where it lies, and whether its classes fit the model."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.config import type_name
from soft_vit.engine.errors import UserError
from soft_vit.engine.models.unwrapping import unwrapped

__all__ = ["ClassCountHook", "fill_data_root", "require_data_root"]


def fill_data_root(cfg: Config) -> None:
    """Give the top-level `data_root` of a config to the data sets in its loaders that leave theirs open, in place.

    Those are every ImageTree without one, and every other data set with `data_root=None`.
    """
    root = cfg.get("data_root")
    if root is None:
        return
    for split in ("train", "val", "test"):
        for dataset in _datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset")):
            open_root = type_name(dataset) == "ImageTree" or "data_root" in dataset
            if open_root and not dataset.get("data_root"):
                dataset["data_root"] = root


def require_data_root(data_root: str | None) -> None:
    """UserError for a data set whose folder neither its own entry nor the config's `data_root` names."""
    if not data_root:
        raise UserError("data_root is not set; give the folder of the images with --cfg-options data_root=PATH.")


def _datasets(config: Any) -> Iterator[dict]:
    """The config of a data set, and those inside it."""
    if isinstance(config, dict):
        yield config
        for inner in (config.get("dataset"), *config.get("datasets", ())):
            yield from _datasets(inner)


class ClassCountHook(Hook):
    """Refuses data with more classes than the model tells apart, and targets mixed over others, before the first step.

    Raises UserError (a ValueError).
    """

    def before_train(self, runner: Runner) -> None:
        classes = getattr(runner.train_dataloader.dataset, "metainfo", {}).get("classes")
        model = unwrapped(runner.model)
        # A detector itself, a timm model inside ours, or the head of one of MMPretrain.
        owners = (model, getattr(model, "model", None), getattr(model, "head", None))
        head = next((owner.num_classes for owner in owners if hasattr(owner, "num_classes")), None)
        if classes is not None and head is not None and len(classes) > head:
            raise UserError(
                f"The training data has {len(classes)} classes and the model tells {head} apart; set model.num_classes "
                f"to {len(classes)}."
            )
        mixing = getattr(getattr(model, "data_preprocessor", None), "mixing", None)
        if mixing is not None and head is not None and mixing.num_classes != head:
            raise UserError(
                f"The data preprocessor makes targets of {mixing.num_classes} classes and the model tells {head} "
                f"apart; set data_preprocessor.num_classes to {head}."
            )
