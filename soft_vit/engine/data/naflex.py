"""Batches of images of many shapes for timm's NaFlexVit: a fixed budget of tokens, and a variable number of images."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torchvision.transforms.functional as F
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from timm.data.naflex_dataset import NaFlexCollator, calculate_naflex_batch_size
from timm.data.naflex_transforms import Patchify, ResizeToSequence
from torch.utils.data import BatchSampler, Dataset

from soft_vit.data.demo.ovals import OVALS, draw_oval
from soft_vit.engine.data.preprocessor import samples_of_labels
from soft_vit.registry import DATASETS, MODELS, register


@register(DATASETS)
class OvalsDataset(Dataset):
    """Images of `draw_oval`. length: their number. split: "train" or "test", which have images of their own."""

    metainfo = {"classes": OVALS}  # noqa: RUF012  the name and the kind are MMEngine's

    def __init__(self, length: int, split: str = "train", seed: int = 0) -> None:
        self.length, self.seed = length, 2 * seed + ("train", "test").index(split)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"img": draw_oval(self.seed, index), "gt_label": index % len(OVALS)}


@register(DATASETS)
class NaFlexDataset(Dataset):
    """Cuts the images of a data set into patches, at their own aspect ratio.

    dataset: config of a data set whose samples have `img` (an image of Pillow, or uint8 [H, W, 3]) and `gt_label`.
    patch_size: side in pixels. seq_len: the largest number of patches of an image, unless its batch has another.
    keep_ratio: False resizes images to squares of as many patches instead.
    """

    def __init__(self, dataset: dict, patch_size: int = 16, seq_len: int = 256, keep_ratio: bool = True) -> None:
        self.dataset = DATASETS.build(dataset)
        self.metainfo = self.dataset.metainfo
        self.patch_size, self.seq_len, self.keep_ratio = patch_size, seq_len, keep_ratio
        self.patchify = Patchify(patch_size)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample, seq_len = self.dataset[int(index)], getattr(index, "seq_len", self.seq_len)
        image = F.to_tensor(sample["img"])
        if self.keep_ratio:
            image = ResizeToSequence(self.patch_size, seq_len, interpolation="bilinear")(image)
        else:
            image = F.resize(image, [math.isqrt(seq_len) * self.patch_size] * 2, antialias=True)
        return {"inputs": self.patchify(image), "data_samples": int(sample["gt_label"])}


@DATA_SAMPLERS.register_module()
class TokenBudgetSampler(BatchSampler):
    """Batches of images with one largest number of patches each, as timm's NaFlex loader schedules them.

    sampler: of indices. batch_size: the number of images with the most patches, which gives the budget of tokens; the
    attribute is the mean number of images. seq_lens: numbers of patches of an image; each batch draws one and takes as
    many images as the budget holds. The schedule of an epoch is the same in each, in another order.
    """

    def __init__(self, sampler: Any, batch_size: int, seq_lens: Sequence[int], drop_last: bool = False) -> None:
        super().__init__(sampler, batch_size, drop_last)
        generator, self.schedule, left = torch.Generator().manual_seed(0), [], len(sampler)
        while left > 0:
            seq_len = seq_lens[int(torch.randint(len(seq_lens), (), generator=generator))]
            size = calculate_naflex_batch_size(batch_size * max(seq_lens), seq_len, max_size=left)
            self.schedule.append((seq_len, size))
            left -= size
        self.batch_size = round(len(sampler) / len(self.schedule))
        self._epoch = self._first = 0

    def begin(self, epoch: int, first: int) -> int:
        """Start the next pass at batch `first` of an epoch, and return how many images come before it."""
        self._epoch, self._first = epoch, first
        return sum(size for _, size in self._order()[:first])

    def _order(self) -> list[tuple[int, int]]:
        order = torch.randperm(len(self.schedule), generator=torch.Generator().manual_seed(self._epoch))
        return [self.schedule[i] for i in order]

    def __len__(self) -> int:
        return len(self.schedule)

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        for seq_len, size in self._order()[self._first :]:
            batch = [next(indices) for _ in range(size)]
            for index in batch:
                index.seq_len = seq_len
            yield batch


@FUNCTIONS.register_module()
def collate_patches(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad the patches of images to the longest, as NaFlexVit takes them, and stack labels [B]."""
    longest = max(len(sample["inputs"]["patches"]) for sample in batch)
    inputs, labels = NaFlexCollator(longest)([(sample["inputs"], sample["data_samples"]) for sample in batch])
    inputs.pop("seq_len")
    return {"inputs": inputs, "labels": labels}


@register(MODELS)
class NaFlexDataPreprocessor(BaseDataPreprocessor):
    """Scales the patches of `collate_patches`, values in [0, 1], by mean and std, and packs labels.

    num_classes: not used; mmpretrain's models pass it.
    """

    def __init__(self, mean: float = 0.5, std: float = 0.25, num_classes: int | None = None) -> None:
        super().__init__()
        self.scale = mean, std
        # In the units of the preprocessors that `normalisation_of` reads.
        self.mean, self.std = (torch.full((3,), 255 * value) for value in self.scale)

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        data = self.cast_data(data)
        mean, std = self.scale
        inputs = {**data["inputs"], "patches": (data["inputs"]["patches"] - mean) / std}
        return {"inputs": inputs, "data_samples": samples_of_labels(data["labels"])}
