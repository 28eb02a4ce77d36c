"""Data sets of labelled images."""

import pytest
from mmengine.registry import DATASETS, DefaultScope

from soft_vit.data import CLASSES, SPLITS, draw_shape
from soft_vit.data.archives import Entry
from soft_vit.engine import ImageTree, ShapesDataset


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


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
def test_a_held_out_part_of_each_class(tmp_path, fraction):
    for name, count in (("a", 10), ("b", 21), ("c", 3)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "train" / name / f"{i}.png").write_bytes(b"")

    def labels(**given):
        dataset = ImageTree(str(tmp_path), **given)
        infos = [dataset.get_data_info(i) for i in range(len(dataset))]
        return {Entry(*info["entry"]).name: info["gt_label"] for info in infos}

    whole, train = labels(), labels(val_fraction=fraction)
    held_out = labels(val_fraction=fraction, held_out=True)
    assert train | held_out == whole
    assert not train.keys() & held_out.keys()
    for label, count in enumerate((10, 21, 3)):
        assert abs(list(held_out.values()).count(label) - fraction * count) < 1
    assert held_out == labels(val_fraction=fraction, held_out=True)
    # No prefix of the folder.
    assert [name for name in held_out if whole[name] == 1] != [name for name in whole if whole[name] == 1][
        : len(held_out)
    ]
    with pytest.raises(ValueError, match="val_fraction"):
        labels(val_fraction=1.0)


def test_subset_keeps_its_images_and_memory_changes_nothing():
    dataset = ShapesDataset(50, size=32, indices=[40, 3])
    assert len(dataset) == 2
    for _ in range(2):
        for info, position in zip(dataset, (40, 3), strict=True):
            assert (info["img"] == draw_shape(0, position, 32).image).all()
            assert info["gt_label"] == position % 10
            # As a transform may.
            info["img"][:] = 0
