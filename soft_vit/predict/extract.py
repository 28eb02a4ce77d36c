"""Write the features of images, and of the tiles of huge images.

Letters: B tiles of a batch, N tiles of an image, C channels, h x w the map of a tile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from soft_vit.data.features import FORMATS, read_features, write_features
from soft_vit.data.images import BadImage, named
from soft_vit.dense.windows import tiles_of
from soft_vit.engine.models.masked import last_map
from soft_vit.ops.numerics import at_least, check_choice
from soft_vit.predict.inputs import Input, find_inputs, free_name, printable
from soft_vit.predict.predict import Outcome, append_rows, open_image, part_file
from soft_vit.predict.predictors import TimmModel, sum_of_weights
from soft_vit.text_tables import one_line


class TimmFeatures(TimmModel):
    """Features of images by a timm model: pooled ones `[B, C]`, or with maps its last map `[B, C, h, w]`, in fp32.

    tiles: an image is seen in tiles of this side in pixels; overlap: share of the side from 0 to 1, without 1. Tiles,
    and images of maps, are stretched to the model's size, so that nothing of them is cropped. options: of `TimmModel`.

    made_with: what decides the features of an image. shape: of the features of a tile.
    """

    def __init__(
        self, name: str, *, maps: bool = False, tiles: int | None = None, overlap: float = 0.0, **options: Any
    ) -> None:
        if (tiles is not None and tiles < 1) or not 0 <= overlap < 1:
            raise ValueError(f"tiles must be above 0, and overlap in [0, 1), got {tiles} and {overlap}.")
        super().__init__(name, whole=maps or tiles is not None, **options)
        self.maps, self.tiles, self.overlap = maps, tiles, overlap
        file = options.get("checkpoint")
        self.made_with = {"model": name, "checkpoint": file and str(file), "maps": maps, "tiles": tiles}
        self.made_with |= {"overlap": overlap, "bits": self.bits, "transform": str(self.transform)}
        self.made_with["sum_of_weights"] = sum_of_weights(self.model)
        self.key = repr(self.made_with)
        self.shape = tuple(self([Image.new("RGB", (8, 8))]).shape[1:])

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        x = self.inputs(images)
        if self.maps:
            return last_map(self.model, x).float()
        return self.model.forward_head(self.model.forward_features(x), pre_logits=True).flatten(1).float()


def extract_files(
    given: Sequence[str | Path],
    features: TimmFeatures,
    out: str | Path,
    *,
    file_format: str = "safetensors",
    batch_size: int = 32,
    notify: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Write a file of features for each image into a folder, see `soft_vit.data.features`.

    given: see `find_inputs`. file_format: of `FORMATS`. batch_size: tiles that the model sees at once. notify: receives
    a line about each image. With tiles, TIFF files are read by window.

    A file holds `features` `[N, C]` or `[N, C, h, w]`, fp32, and `boxes`, int64 `[N, 4]`: x, y, width and height of
    each tile in the image's pixels. It notes the image and `features.made_with`. Finished files stay, and the same call
    continues where it was stopped, also within an image. Images that cannot be read are listed, and the run continues.

    Raises ValueError for bad arguments, and for a finished file of other settings.
    """
    at_least("batch_size", batch_size)
    check_choice("file_format", file_format, FORMATS)
    out, taken = Path(out).expanduser(), set[str]()
    inputs = find_inputs(given, out)
    paths = [out / free_name(item.name.with_name(f"{item.name.name}.{file_format}"), taken) for item in inputs]
    notes = [_note(item, features.made_with) for item in inputs]
    waiting = [job for job in zip(inputs, paths, notes, strict=True) if not _is_done(*job[1:])]
    out.mkdir(parents=True, exist_ok=True)
    results = {"notes": features.notes, "images": [note["image"] for note in notes], "failed": []}
    for item, path, note in waiting:
        try:
            with named(item):
                image = open_image(item, features.bits, features.tiles is not None)
            corners = tiles_of(image.size[::-1], features.tiles or max(image.size), features.overlap)
            part = part_file(out, features, item)
            rows = _over_tiles(features, image, corners.tolist(), part, batch_size)
        except BadImage as error:
            results["images"].remove(note["image"])
            results["failed"].append(note["image"])
            line = f"failed, {one_line(error)}"
        else:
            boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
            write_features(path, {"features": rows, "boxes": boxes}, note)
            part.unlink()
            line = " x ".join(map(str, rows.shape))
        notify(f"{note['image']}: {line}")
    return Outcome(out, len(inputs), results, done="have features")


def _note(item: Input, made_with: dict[str, Any]) -> dict[str, Any]:
    """Return what the features of an image are made with. An address or a pipe has no size."""
    if not isinstance(item.source, Path):
        return {**made_with, "image": item.source}
    return {**made_with, "image": printable(os.path.abspath(item.source)), "bytes": os.path.getsize(item.source)}


def _is_done(path: Path, note: dict[str, Any]) -> bool:
    """Return whether a file of features exists. Raises ValueError if it was made with anything else."""
    known = read_features(path, only_note=True)[1] if path.exists() else note
    if others := [name for name, value in note.items() if known.get(name) != value]:
        what = f"must be made with {others[0]}={note[others[0]]!r}, got {known.get(others[0])!r}"
        raise ValueError(f"{path} {what}; remove it, or give another --out.")
    return path.exists()


def _over_tiles(features: TimmFeatures, image: Any, tiles: list, part: Path, batch_size: int) -> np.ndarray:
    """Return the features of the tiles of an image; those that are in a file already are not computed again."""

    def rows_from(done: int) -> Iterator[np.ndarray]:
        batches = [tiles[start : start + batch_size] for start in range(done, len(tiles), batch_size)]
        for batch in tqdm(batches, unit=f" x {batch_size} tiles", leave=False, disable=len(batches) < 2 or None):
            yield features([image.crop(tile) for tile in batch]).cpu().numpy()

    append_rows(part, np.dtype((np.float32, features.shape)), rows_from)
    return np.memmap(part, np.float32, "r", shape=(len(tiles), *features.shape))
