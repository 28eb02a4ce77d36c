"""Data sets by the names that timm gives them: those of torchvision, folders, and shards."""

import inspect
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets
from filelock import FileLock
from PIL import Image
from timm.data import create_dataset
from torchvision.datasets import CIFAR10, CIFAR100

from soft_vit.data.images import BadImage, decode_image, to_rgb
from soft_vit.data.shards import Shards

_TRAIN = ("train", "training")
# What an array in the files of CIFAR refers to.
_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_NAMES = ("_reconstruct", "ndarray", "dtype")


class NamedImages:
    """Images of a data set of torchvision or timm, which returns (image, label) by index.

    classes: names of all classes, or None if they are unknown.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        reader = getattr(source, "reader", source)
        samples = getattr(reader, "samples", getattr(reader, "_samples", ()))
        labels = next((getattr(reader, key) for key in ("targets", "_labels", "labels") if hasattr(reader, key)), None)
        # Those of Hugging Face.
        labels = reader.iter_targets() if hasattr(reader, "iter_targets") else labels
        self.labels = [int(label) for label in (labels if labels is not None else [label for _, label in samples])]
        if len(self.labels) != len(source):
            raise ValueError(f"name must be of a data set with a label for each image, got {type(source).__name__}.")
        names = getattr(reader, "classes", None) or getattr(reader, "class_to_idx", None)
        self.classes = None if names is None else [str(name[0] if isinstance(name, tuple) else name) for name in names]

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int, bits: int | None = None) -> Image.Image:
        """Return an image in RGB. Raises BadImage if it cannot be read or decoded. bits: see `to_rgb`."""
        try:
            if not hasattr(self.source, "reader"):
                return to_rgb(self.source[index][0], bits)
            # timm's own reading would return another image for one that is damaged.
            with self.source.reader[index][0] as file:
                return decode_image(file.read(), bits=bits)
        except (OSError, ValueError) as error:
            raise BadImage(f"image {index}: {error}") from error

    def label(self, index: int) -> int:
        return self.labels[index]


def find_named_images(name: str, root: str | Path, split: str, download: bool = False) -> NamedImages | Shards:
    """Return the images of a split of a data set.

    name: as timm's `create_dataset` takes it: `torch/cifar100`, and `torch/` with any other class of torchvision's
    data sets in lower case (`torch/oxford_iiit_pet`, `torch/flowers102`, `torch/food101`); `hfds/` and the name or the
    folder of a data set for Hugging Face's `datasets`; `wds/` for shards, see `Shards`; `` for a tree of class folders.
    split: of the data set; one with a training and a test part takes any name except `train` for the test part.

    Raises ValueError for an unknown name, FileNotFoundError for missing files, and OSError for a download that fails.
    """
    prefix, _, rest = name.partition("/")
    if prefix == "wds":
        return Shards(Path(root, rest), split)
    root = Path(root).expanduser()
    try:
        if prefix == "torch":
            cls = _torchvision_class(rest)
            takes_name = "split" in inspect.signature(cls).parameters
            build = partial(cls, root=str(root), **({"split": split} if takes_name else {"train": split in _TRAIN}))
            if not download:
                return NamedImages(build(download=False))
            root.mkdir(parents=True, exist_ok=True)
            # One process downloads, and the others find the files.
            with FileLock(root / ".download.lock"):
                return NamedImages(build(download=True))
        return NamedImages(create_dataset(name, root=str(root), split=split))
    except (AssertionError, ImportError, RuntimeError) as error:
        raise FileNotFoundError(f"{name} cannot be read from {root} ({error}).") from error


def _torchvision_class(name: str) -> Callable[..., Any]:
    classes = {cls.__name__.lower(): cls for _, cls in inspect.getmembers(torchvision.datasets, inspect.isclass)}
    classes |= {"cifar10": SafeCIFAR10, "cifar100": SafeCIFAR100}
    cls = classes.get(name.lower().replace("_", ""), object)
    arguments = inspect.signature(cls).parameters.keys()
    if "download" not in arguments or arguments.isdisjoint(("split", "train")):
        raise ValueError(f"name must be torch/ and a data set that torchvision downloads in parts, got torch/{name}.")
    return cls


class _ArrayUnpickler(pickle.Unpickler):
    """Reads containers, text and arrays of numbers; anything else in a file is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES or name not in _NAMES:
            raise pickle.UnpicklingError(f"the file refers to {module}.{name}")
        return super().find_class(module, name)


class SafeCIFAR10(CIFAR10):
    """CIFAR-10 as published, without executing its pickles."""

    def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
        self.root, self.transform, self.target_transform, self.train = root, None, None, train
        if download:
            self.download()
        parts = [self._read(file) for file, _ in (self.train_list if train else self.test_list)]
        self.data = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.targets = [label for part in parts for label in part.get("labels") or part["fine_labels"]]
        self.classes: Sequence[str] = self._read(self.meta["filename"])[self.meta["key"]]

    def _read(self, file: str) -> dict[str, Any]:
        path = Path(self.root, self.base_folder, file)
        with path.open("rb") as stream:
            try:
                return _ArrayUnpickler(stream, encoding="latin1").load()
            except Exception as error:
                # A damaged pickle can raise errors of any type.
                raise ValueError(f"{path} must be a file of CIFAR as published ({error}).") from error


class SafeCIFAR100(SafeCIFAR10, CIFAR100):
    """CIFAR-100 with its fine labels, without executing its pickles."""
