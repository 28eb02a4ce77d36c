"""Generated shapes, and trees of them."""

import numpy as np
import pytest
from PIL import Image

from soft_vit.data import CLASSES, SPLITS, ShapeImages, draw_shape, draw_tiles
from soft_vit.data.demo.scenes import draw_scene
from soft_vit.data.demo.shapes import CELLS, COLORS, NUM_TILES
from soft_vit.data.demo.trees import CATEGORY_IDS, make_tree

# The generated shapes: one image per (seed, index), which shows what it says.


@pytest.mark.parametrize("size", [16, 33, 64, (32, 100), (101, 40)])
def test_sample_is_consistent(size):
    height, width = (size, size) if isinstance(size, int) else size
    for index in range(20):
        sample = draw_shape(2, index, size)
        assert sample.image.shape == (height, width, 3)
        assert sample.image.dtype == np.uint8
        assert sample.label == index % 10
        x0, y0, x1, y1 = sample.box
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        assert 0.01 < (x1 - x0) * (y1 - y0) / (width * height) < 0.9


def test_splits_and_seeds_share_no_image():
    samples = [sample for split in SPLITS for seed in (0, 1) for sample in ShapeImages(20, split, seed, 32)]
    assert len({sample.image.tobytes() for sample in samples}) == 20 * 3 * 2


def test_bad_arguments():
    with pytest.raises(ValueError, match="validation"):
        ShapeImages(10, "validation")


@pytest.mark.parametrize("size", [16, 33, 64, (61, 100)])
def test_tiles_answer_the_question(size):
    """Read off the pixels: the tile with the cue's left colour has the label's right colour."""
    height, width = (size, size) if isinstance(size, int) else size
    palette = 255 * np.array([*COLORS.values(), (1, 1, 1)])
    for index in range(24):
        sample = draw_tiles(2, index, size)
        assert sample.image.shape == (height, width, 3)
        tiles = {}
        for row, column in np.ndindex(CELLS, CELLS):
            y, x = row * height // CELLS, column * width // CELLS
            stop = (column + 1) * width // CELLS
            halves = [
                sample.image[y : (row + 1) * height // CELLS, a:b].reshape(-1, 3)
                for a, b in ((x, (x + stop) // 2), ((x + stop) // 2, stop))
            ]
            distances = [np.abs(half.mean(0) - palette).max(1) for half in halves]
            # Noise and clipping change a mean by a few per cent; the clutter is duller than that.
            if all(distance.min() < 16 for distance in distances):
                tiles[row, column] = [int(distance.argmin()) for distance in distances]
        assert len(tiles) == NUM_TILES + 1
        (cue,) = (left for left, right in tiles.values() if right == len(COLORS))
        ((place, answer),) = ((place, right) for place, (left, right) in tiles.items() if left == cue and right < 6)
        assert sample.label == answer == index % len(COLORS)
        x0, y0, x1, y1 = (int(side) for side in sample.box)
        assert (place[0] * height // CELLS, place[1] * width // CELLS) == (y0, x0)
        assert np.abs(sample.image[y0:y1, x0 : (x0 + x1) // 2].reshape(-1, 3).mean(0) - palette[cue]).max() < 16


def test_coco_tree_reads_as_coco(tmp_path):
    from pycocotools.coco import COCO

    counts = make_tree(tmp_path / "coco", "coco", train=14, val=5, size=(80, 112), seed=2)
    seen, kinds = 0, set()
    for split, length in (("train", 14), ("val", 5)):
        coco = COCO(str(tmp_path / "coco" / "annotations" / f"instances_{split}2017.json"))
        assert tuple(coco.getCatIds()) == CATEGORY_IDS
        assert [category["name"] for category in coco.loadCats(CATEGORY_IDS)] == list(CLASSES)
        assert len(coco.imgs) == length
        assert list(coco.anns) == list(range(1, len(coco.anns) + 1))
        for position, image in enumerate(coco.dataset["images"]):
            scene = draw_scene(2, SPLITS[split] + position, (80, 112))
            with Image.open(tmp_path / "coco" / f"{split}2017" / image["file_name"]) as opened:
                assert np.abs(np.asarray(opened, dtype=int) - scene.image).mean() < 16
            annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
            for annotation, instance in zip(annotations, scene.instances, strict=True):
                assert annotation["category_id"] == CATEGORY_IDS[instance.label]
                mask = coco.annToMask(annotation).astype(bool)
                kinds.add(type(annotation["segmentation"]).__name__ + str(annotation["iscrowd"]))
                # pycocotools rounds outlines to whole pixels.
                share = 1 if isinstance(annotation["segmentation"], dict) else 0.75
                assert (mask & instance.mask).sum() >= share * (mask | instance.mask).sum()
                x, y, w, h = annotation["bbox"]
                rows, columns = np.nonzero(instance.mask)
                assert (x, y, x + w, y + h) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                assert annotation["area"] == instance.mask.sum()
        seen += len(coco.anns)
    assert counts == {"images": 19, "annotations": seen}
    assert kinds == {"list0", "dict0", "dict1"}


def test_ade_tree(tmp_path):
    assert make_tree(tmp_path / "ade", "ade", train=4, val=2, size=64) == {"images": 6, "classes": 11}
    assert (tmp_path / "ade" / "classes.txt").read_text().split() == ["background", *CLASSES]
    for split, name, length in (("train", "training", 4), ("val", "validation", 2)):
        images = sorted((tmp_path / "ade" / "images" / name).iterdir())
        labels = sorted((tmp_path / "ade" / "annotations" / name).iterdir())
        assert [path.stem for path in images] == [path.stem for path in labels]
        assert len(labels) == length
        for position, path in enumerate(labels):
            with Image.open(path) as opened:
                assert opened.mode == "L"
                assert (np.asarray(opened) == draw_scene(0, SPLITS[split] + position, 64).label_map).all()


def test_bad_arguments_write_nothing(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="empty folder"):
        make_tree(tmp_path, "ade")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
