"""Data sets of labelled images."""

import pytest
from mmengine.registry import DATASETS, DefaultScope

from soft_vit.data import CLASSES, SPLITS, draw_shape
from soft_vit.engine import ShapesDataset


@pytest.mark.parametrize("name", ["ShapesDataset", "soft_vit.ShapesDataset"])
def test_found_by_name_with_mmpretrain_pipeline(name):
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        pipeline = [{"type": "RandomFlip", "prob": 1.0}, {"type": "PackInputs"}]
        dataset = DATASETS.build({"type": name, "length": 20, "split": "test", "size": [32, 40], "pipeline": pipeline})
        sample = dataset[7]
    expected = draw_shape(0, SPLITS["test"] + 7, (32, 40))
    assert sample["inputs"].shape == (3, 32, 40)
    assert (sample["inputs"].numpy().transpose(1, 2, 0) == expected.image[:, ::-1]).all()
    assert sample["data_samples"].gt_label.item() == expected.label
    assert dataset.metainfo["classes"] == CLASSES


def test_subset_keeps_its_images_and_memory_changes_nothing():
    dataset = ShapesDataset(50, size=32, indices=[40, 3])
    assert len(dataset) == 2
    for _ in range(2):
        for info, position in zip(dataset, (40, 3), strict=True):
            assert (info["img"] == draw_shape(0, position, 32).image).all()
            assert info["gt_label"] == position % 10
            # As a transform may.
            info["img"][:] = 0
