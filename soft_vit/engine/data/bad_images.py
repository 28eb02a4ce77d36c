"""Replace images that cannot be read, and report them."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import BaseDataset
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.runner import Runner
from PIL import Image

from soft_vit.data.images import BadImage
from soft_vit.registry import HOOKS, register

# Images that are logged with the reason at once; others by name.
_REASONS = 5


def require_data_root(data_root: str | None) -> None:
    """Raise FileNotFoundError unless there is a folder of images, or an archive, which not all data sets take."""
    if not data_root or not Path(data_root).expanduser().exists():
        raise FileNotFoundError(f"data_root must be the folder of the images (--cfg-options), got {data_root}.")


class ReadingDataset(BaseDataset):
    """A data set that replaces an image that cannot be read.

    In training the next image takes its place. In a test (test_mode) a substitute does, so that metrics cover all
    images. `BadImagesHook` logs and counts them.

    bits: of the values in images of 16 bits, see `soft_vit.data.images.to_rgb`. The metainfo comes from the data, not
    from the config.
    """

    def __init__(self, *args: Any, bits: int | None = None, **kwargs: Any) -> None:
        self.bits = bits
        super().__init__(*args, **kwargs)

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        super().full_init()
        # One byte for each image; workers write it, the main process reads it.
        self._bad = torch.zeros(len(self), dtype=torch.uint8).share_memory_()

    @abstractmethod
    def read(self, info: dict) -> Any:
        """Read the files of an entry. Raises BadImage, whose message begins with the file's name."""

    def substitute(self, info: dict) -> Any:
        """Return the replacement in a test for files that `read` cannot read."""
        return Image.new("RGB", (256, 256))

    def pack(self, info: dict, content: Any) -> Any:
        """Return the sample of an entry and the content read for it, by default an image that enters the pipeline."""
        path = {"img_path": info["entry"][0]} if "entry" in info else {}
        return self.pipeline({**info, **path, "img": content})

    def prepare_data(self, idx: int) -> Any:
        if not 0 <= idx < len(self):
            # Python ends a loop over a sequence at an IndexError.
            raise IndexError(f"index must be below {len(self)}, got {idx}")
        for index in chain(range(int(idx), len(self)), range(int(idx))):
            info = self.get_data_info(index)
            try:
                content = self.read(info)
            except BadImage:
                self.note_bad(index)
                if not self.test_mode:
                    continue
                content = self.substitute(info)
            return self.pack(info, content)
        raise ValueError(f"None of the {len(self)} images can be read, such as {self.why_bad(0)}; give other data.")

    def note_bad(self, index: int) -> None:
        """Note that an image cannot be read."""
        self._bad[index] = 1

    def bad_images(self) -> list[int]:
        """Return the indices of the images that this process and its workers failed to read so far."""
        return self._bad.nonzero().flatten().tolist()

    def why_bad(self, index: int) -> str:
        """Return the name of an unreadable image, and the reason."""
        try:
            self.read(self.get_data_info(index))
        except BadImage as error:
            return str(error)
        return f"image {index}: was unreadable before"


def reading_datasets(dataset: Any) -> Iterator[ReadingDataset]:
    """Yield the data set itself, or those inside wrappers such as RepeatDataset and ConcatDataset."""
    if isinstance(dataset, ReadingDataset):
        yield dataset
        return
    inner = getattr(dataset, "dataset", None)
    for one in getattr(dataset, "datasets", ()) if inner is None else (inner,):
        yield from reading_datasets(one)


@register(HOOKS)
class BadImagesHook(Hook):
    """Logs the name of every unreadable image of a `ReadingDataset`, and stops a run with too many of them.

    max_share: largest share of the training images that may be unreadable, in [0, 1]; more raise ValueError. It is
    checked before the first step, of the images that other hooks read, every 100 iterations, and at the end of each
    epoch.
    """

    priority = "LOW"
    kept = ("named",)

    def __init__(self, max_share: float = 0.01) -> None:
        self.max_share = max_share
        # Indices of images, by split and number of the data set in it.
        self.named: dict[str, list[int]] = {}

    def before_train(self, runner: Runner) -> None:
        self._look(runner, "train", self.max_share)

    def after_train_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        if self.every_n_train_iters(runner, 100):
            self._look(runner, "train", self.max_share)

    after_train_epoch = before_train

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._look(runner, "val")

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._look(runner, "test")

    def _look(self, runner: Runner, split: str, max_share: float | None = None) -> None:
        datasets = reading_datasets(getattr(runner, f"{split}_dataloader").dataset)
        for number, dataset in enumerate(datasets):
            named = set(self.named.get(f"{split} {number}", ()))
            # Ranks read different images, and all have to stop together.
            bad = named.union(*all_gather_object(dataset.bad_images()))
            reasons = [dataset.why_bad(index) for index in sorted(bad - named)]
            for reason in reasons[:_REASONS]:
                runner.logger.warning(f"Unreadable image {reason}")
            if others := ", ".join(reason.partition(": ")[0] for reason in reasons[_REASONS:]):
                runner.logger.warning(f"Other unreadable images: {others}")
            if bad - named:
                instead = "others take their places" if max_share is not None else "black ones take their places"
                runner.logger.warning(f"{len(bad)} of {len(dataset)} images cannot be read; {instead}.")
            self.named[f"{split} {number}"] = sorted(bad)
            if max_share is not None and len(bad) > max_share * len(dataset):
                what = f"Unreadable images must be at most default_hooks.bad_images.max_share={max_share:g} of all"
                raise ValueError(f"{what}, got {len(bad)} of {len(dataset)}.")
