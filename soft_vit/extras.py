"""Which extra of this package brings a module that a plain installation lacks."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["EXTRAS", "extra_of", "naming_extras"]

# By the name of the module: the extra, a file of requirements/.
EXTRAS = {
    "albumentations": "train",
    "faster_coco_eval": "detection",
    "mmcv": "train",
    "mmdet": "mmdet",
    "mmengine": "train",
    "mmpretrain": "train",
    "mmseg": "mmdet",
    "segmentation_models_pytorch": "segmentation",
    "tensorboard": "train",
}


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the module which is missing, or None for a module of no extra."""
    return EXTRAS.get(_package(error))


@contextmanager
def naming_extras() -> Iterator[None]:
    """End the process with exit code 1 and the extra to install where a module of one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error)
        if extra is None:
            raise
        raise SystemExit(f"error: {_package(error)} is missing; pip install 'soft_vit[{extra}]' brings it.") from None


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").split(".")[0]
