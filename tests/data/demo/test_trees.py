import numpy as np
import pytest
from PIL import Image

from soft_vit.data import CLASSES
from soft_vit.data.demo.scenes import draw_scene
from soft_vit.data.demo.shapes import SPLITS
from soft_vit.data.demo.trees import CATEGORY_IDS, make_tree


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
    counts = make_tree(tmp_path / "ade", "ade", train=4, val=2, size=64)
    assert counts == {"images": 6, "classes": 11}
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
