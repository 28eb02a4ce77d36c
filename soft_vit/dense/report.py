"""Describe the data of a dense run before its first step; draw predictions and curves after each validation."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image, ImageOps
from torchvision.transforms.v2.functional import to_pil_image

from soft_vit.data.images import BadImage
from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.data.bad_images import ReadingDataset, reading_datasets
from soft_vit.engine.drawing import draw_instances, draw_segmentation, pixel_counts
from soft_vit.probe.curves import plot_curves, read_run
from soft_vit.probe.view import picture_grid
from soft_vit.registry import HOOKS, register

# Images that are read for the description, and seconds after which no further one is.
READ, SECONDS = 300, 10
# Images in each picture, and the longer side of one in pixels.
EXAMPLES, PREDICTED, SIDE = 10, 4, 384
# Classes in a line of the log, and the lowest score of a drawn object.
_NAMED_CLASSES, SCORE = 10, 0.3


@register(HOOKS)
class DenseReportHook(Hook):
    """Writes a description of the data, and pictures of data, predictions and curves into the work directory.

    Before the first step, it logs how many images there are, their sizes, the boxes or pixels of each class, and what
    is left out; of up to 300 images, those that cannot be read are left to `BadImagesHook`. `data.png` shows ten images
    with their labels. After each validation, `predictions.png` shows four images with labels and predictions, which go
    to the visualizer's backends, too, and `curve.png` the loss and the mean metrics.

    Data sets other than `CocoImages` and `LabelMapTree` are left out. Nothing draws from the run's random numbers.
    """

    # After LoggerHook, whose lines the curves show, and before BadImagesHook, which names what cannot be read.
    priority = "BELOW_NORMAL"

    def __init__(self) -> None:
        self._pictures: list[tuple[str, Image.Image]] = []

    def before_train(self, runner: Runner) -> None:
        examples: list[tuple[str, Image.Image]] = []
        for dataset in reading_datasets(runner.train_dataloader.dataset):
            if hasattr(dataset, "annotated") and is_main_process():
                lines, shown = describe(dataset)
                examples += shown
                for line in lines:
                    runner.logger.info(line)
        if examples:
            _save_grid(examples[:EXAMPLES], 5, Path(runner.work_dir, "data.png"))

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        every = max(len(runner.val_dataloader) // PREDICTED, 1)
        if not is_main_process() or batch_idx % every or len(self._pictures) >= 2 * PREDICTED:
            return
        meta, sample = runner.val_dataloader.dataset.metainfo, outputs[0]
        if "objects" in sample or "gt_sem_seg" in sample:
            image = to_pil_image(data_batch["inputs"][0])
            for caption, found in (("labels", _truth(sample, meta)), ("predicted", _predicted(sample))):
                self._pictures.append((f"{sample.img_path}: {caption}", drawn(image, meta["classes"], **found)))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if not is_main_process():
            return
        folder = Path(runner.work_dir)
        if self._pictures:
            grid = _save_grid(self._pictures, 4, folder / "predictions.png")
            runner.visualizer.add_image("predictions", np.asarray(grid), step=runner.iter)
            self._pictures = []
        # A run with other backends has no log to read.
        with suppress(FileNotFoundError):
            run = read_run(folder)
            means = [name for name in metrics or {} if name.endswith(("mAP", "mIoU"))]
            plot_curves({folder.name: run}, folder / "curve.png", [key for key in ("loss", *means) if key in run])


def describe(dataset: ReadingDataset) -> tuple[list[str], list[tuple[str, Image.Image]]]:
    """Return sentences about training data, and pictures of the first images that were read with their names."""
    names, start = list(dataset.metainfo["classes"]), time.monotonic()
    sizes, counts, pictures = [], np.zeros(len(names) + 1, np.int64), []
    for index in np.random.default_rng(0).permutation(len(dataset))[:READ].tolist():
        try:
            name, image, found = dataset.annotated(dataset.get_data_info(index))
        except BadImage:
            dataset.note_bad(index)
        else:
            sizes.append(image.size)
            if "classes" in found:
                counts += pixel_counts(np.where(found["classes"] == IGNORED, len(names), found["classes"]), len(counts))
            if len(pictures) < EXAMPLES:
                pictures.append((name, drawn(image, names, **found)))
        if time.monotonic() - start > SECONDS:
            break
    if not sizes:
        # BadImagesHook ends such a run.
        return [], []
    read = len(sizes)
    sizes = sorted(getattr(dataset, "sizes", sizes), key=np.prod)
    low, middle, high = ("{} x {}".format(*sizes[i]) for i in (0, len(sizes) // 2, -1))
    shown = low if low == high else f"{low} to {high}, median {middle},"
    images = f"Training images: {len(dataset):,} of {shown} pixels; {read:,} were read for this report."
    if hasattr(dataset, "counts"):
        left_out = [f"Not trained on: {', '.join(dataset.left_out)}."] * bool(dataset.left_out)
        return [images, f"Boxes: {_counted(names, dataset.counts, '{:,}'.format)}.", *left_out], pictures
    names += ["unlabelled"] * bool(counts[-1])
    shares = counts[: len(names)] / counts.sum()
    return [images, f"Pixels: {_counted(names, shares, lambda share: f'{100 * share:.1f} %')}."], pictures


def _counted(names: Sequence[str], amounts: np.ndarray, form: Any) -> str:
    """Return the classes with their amounts, the most frequent first, and those without any, in words."""
    order = np.argsort(-amounts, kind="stable").tolist()
    shown = _shortened([f"{names[i]} {form(amounts[i])}" for i in order if amounts[i]])
    none = _shortened([names[i] for i in order if not amounts[i]])
    return f"{shown}, none of {none}" if none else shown


def _shortened(words: Sequence[str]) -> str:
    others = len(words) - _NAMED_CLASSES
    return ", ".join(words[:_NAMED_CLASSES]) + f" and {others} others" * (others > 0)


def drawn(image: Image.Image, names: Sequence[str], **found: Any) -> Image.Image:
    """Return a small picture of an image with its classes, or with its objects.

    names: of all classes. found: arguments of `draw_segmentation`, or of `draw_instances` without names.
    """
    picture = image.copy()
    picture.thumbnail((SIDE, SIDE))
    if "classes" in found:
        return draw_segmentation(picture, found["classes"], names)
    found["boxes"] = np.asarray(found["boxes"], np.float64).reshape(-1, 4) * picture.width / image.width
    return draw_instances(picture, names=[str(names[i]) for i in found["labels"]], **found)


def _truth(sample: BaseDataElement, meta: dict[str, Any]) -> dict[str, Any]:
    if "gt_sem_seg" in sample:
        return {"classes": sample.gt_sem_seg.data[0].cpu().numpy()}
    objects = [one for one in sample.objects if not one["iscrowd"]]
    corners = [(x, y, x + width, y + height) for x, y, width, height in (one["bbox"] for one in objects)]
    return {"boxes": corners, "labels": [meta["category_ids"].index(one["category_id"]) for one in objects]}


def _predicted(sample: BaseDataElement) -> dict[str, Any]:
    if "pred_sem_seg" in sample:
        return {"classes": sample.pred_sem_seg.data[0].cpu().numpy()}
    found = sample.pred_instances[sample.pred_instances.scores >= SCORE].cpu()
    masks = {"masks": found.masks.numpy()} if "masks" in found else {}
    boxes, labels, scores = found.bboxes.numpy(), found.labels.tolist(), found.scores.tolist()
    return {"boxes": boxes, "labels": labels, "scores": scores, **masks}


def _save_grid(pictures: Sequence[tuple[str, Image.Image]], columns: int, path: Path) -> Image.Image:
    """Write pictures of any sizes above their captions, in cells of the largest one."""
    size = tuple(max(sides) for sides in zip(*(picture.size for _, picture in pictures), strict=True))
    cells = [ImageOps.pad(picture, size, color="white", centering=(0.5, 0)) for _, picture in pictures]
    grid = picture_grid(cells, [caption for caption, _ in pictures], columns=columns)
    grid.save(path)
    return grid
