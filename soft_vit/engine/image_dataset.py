"""Images on disk as a data set of MMEngine, and the report of those that cannot be read."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.dataset import BaseDataset
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.runner import Runner
from PIL import Image
from torch.utils.data import DataLoader

from soft_vit.datasets.images import BadImage, find_images
from soft_vit.datasets.storage import Entry
from soft_vit.engine.errors import UserError
from soft_vit.registry import DATASETS, HOOKS, register

__all__ = ["BadImagesHook", "ImageTree"]


@register(DATASETS)
class ImageTree(BaseDataset):
    """A tree of class folders, the same in a TAR or ZIP, or a folder with a list of labels; with a pipeline.

    data_root, split, label_file, classes: as of `soft_vit.datasets.images.find_images`. A sample enters the pipeline as
    `img` (an RGB image of Pillow), `img_path`, `gt_label`, `sample_idx`.

    An image that cannot be read never ends a run by itself. In training the next one takes its place; in a test
    (test_mode) a black one does, so that the accuracy is still over all images. `BadImagesHook` names and counts them.
    Raises UserError (a ValueError) or FileNotFoundError for a tree that does not fit.
    """

    def __init__(
        self,
        data_root: str | None = None,
        split: str = "train",
        label_file: str | None = None,
        classes: Sequence[str] | None = None,
        pipeline: list = (),
        **kwargs: Any,
    ) -> None:
        if not data_root:
            raise UserError("data_root is not set; give the folder of the images with --cfg-options data_root=PATH.")
        try:
            self.images = find_images(data_root, split, label_file=label_file, classes=classes)
        except FileNotFoundError:
            raise
        except ValueError as error:
            raise UserError(str(error)) from error
        self._samples, self.images.samples = self.images.samples, []
        # One byte an image that every worker writes to and the main process reads.
        self._bad = torch.zeros(len(self._samples), dtype=torch.uint8).share_memory_()
        super().__init__(pipeline=pipeline, metainfo={"classes": tuple(self.images.classes)}, **kwargs)
        # Serialised by now: copies in the workers would only grow.
        del self._samples

    def load_data_list(self) -> list[dict]:
        return [{"entry": tuple(entry), "gt_label": label} for entry, label in self._samples]

    def prepare_data(self, idx: int) -> Any:
        for index in self._from(int(idx)):
            info = self.get_data_info(index)
            entry = Entry(*info.pop("entry"))
            try:
                image = self.images.load(entry)
            except BadImage:
                self._bad[index] = 1
                if not self.test_mode:
                    continue
                image = Image.new("RGB", (256, 256))
            return self.pipeline({**info, "img": image, "img_path": entry.name})
        raise UserError(f"None of the {len(self)} images of {self.images.storage.path} can be read; give other data.")

    def _from(self, start: int) -> Iterator[int]:
        yield from range(start, len(self))
        yield from range(start)

    def bad_images(self) -> list[int]:
        """Indices of the images that this process and its workers could not read so far."""
        return self._bad.nonzero().flatten().tolist()

    def why_bad(self, index: int) -> str:
        """The name of an image that cannot be read, and the reason."""
        try:
            self.images.load(Entry(*self.get_data_info(index)["entry"]))
        except BadImage as error:
            return str(error)
        return f"{self.get_data_info(index)['entry'][0]}: could not be read before"


@register(HOOKS)
class BadImagesHook(Hook):
    """Names in the log every image of an `ImageTree` that could not be read, and stops a run with too many of them.

    max_share: of the training images that may be unreadable, in [0, 1]; more end the run with a UserError (a
    ValueError). interval: iterations between looks; there is one at the end of each epoch besides.
    """

    priority = "LOW"

    def __init__(self, max_share: float = 0.01, interval: int = 100) -> None:
        if not 0 <= max_share <= 1:
            raise UserError(f"max_share is {max_share}; choose a share from 0 to 1.")
        self.max_share = max_share
        self.interval = interval
        self._named: dict[int, set[int]] = {}

    def after_train_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._look(runner, runner.train_dataloader, self.max_share)

    def after_train_epoch(self, runner: Runner) -> None:
        self._look(runner, runner.train_dataloader, self.max_share)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._look(runner, runner.val_dataloader)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._look(runner, runner.test_dataloader)

    def _look(self, runner: Runner, loader: DataLoader, max_share: float | None = None) -> None:
        dataset = loader.dataset
        if not hasattr(dataset, "bad_images"):
            return
        named = self._named.setdefault(id(dataset), set())
        # Every rank has read other images, and all have to stop alike.
        bad = set().union(*all_gather_object(dataset.bad_images()))
        for index in sorted(bad - named):
            runner.logger.warning(f"Unreadable image {dataset.why_bad(index)}")
        if bad - named:
            instead = "others take their places" if max_share is not None else "black ones take their places"
            runner.logger.warning(f"{len(bad)} of {len(dataset)} images cannot be read; {instead}.")
        named |= bad
        if max_share is not None and len(bad) > max_share * len(dataset):
            raise UserError(
                f"{len(bad)} of {len(dataset)} training images cannot be read, more than the share of {max_share:g} "
                "that BadImagesHook allows; repair or remove the files that the log names."
            )
