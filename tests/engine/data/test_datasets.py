"""Data sets of labelled images."""

import io
import tarfile

import pytest
from engine.runs import DEMO, NARROW_MODEL, assert_same_state
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from soft_vit.data import CLASSES, SPLITS, draw_shape
from soft_vit.data.archives import Entry
from soft_vit.engine import ImageTree, ShapesDataset, TimmDataset
from soft_vit.engine.run import train


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


SHARDS = """
_base_ = ["{demo}"]
data_root = "{root}"
train_pipeline = [dict(type="TimmAugment", img_size=32), dict(type="PackInputs")]
train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    dataset=dict(_delete_=True, type="TimmDataset", name="wds/", data_root=data_root, pipeline=train_pipeline),
)
train_cfg = dict(type="ExactIterLoop", _delete_=True, max_iters=3)
param_scheduler = []
val_dataloader = None
val_evaluator = None
val_cfg = None
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1, max_keep_ckpts=-1), watch=None)
"""


def test_a_run_on_shards_resumes_at_the_very_sample(tmp_path):
    for shard in range(2):
        with tarfile.open(tmp_path / f"train-{shard}.tar", "w") as archive:
            for i in range(3):
                stream = io.BytesIO()
                Image.fromarray(draw_shape(0, 3 * shard + i, 32).image).save(stream, "PNG")
                for name, data in ((f"{i}.png", stream.getvalue()), (f"{i}.cls", str(i).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    config = tmp_path / "shards.py"
    config.write_text(SHARDS.format(demo=DEMO, root=tmp_path))
    options = {"image_size": 32, **NARROW_MODEL}
    train(config, options=options, work_dir=tmp_path / "whole")
    # In the middle of an epoch of three steps.
    train(config, options=options, work_dir=tmp_path / "again", resume=str(tmp_path / "whole" / "iter_2.pth"))
    assert_same_state(tmp_path / "whole" / "iter_3.pth", tmp_path / "again" / "iter_3.pth", "state_dict", "optimizer")


def test_wrappers_and_unreadable_images_of_a_data_set_by_name(tmp_path):
    for name in "ab":
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (5, 6), "red" if name == "a" else "blue").save(tmp_path / "val" / name / "0.png")
    (tmp_path / "val" / "b" / "1.png").write_bytes(b"damaged")
    dataset = TimmDataset("", str(tmp_path), "val", test_mode=True)
    assert dataset.metainfo["classes"] == ("a", "b")
    assert [dataset.get_cat_ids(i) for i in range(3)] == [[0], [1], [1]]
    assert [dataset[i]["img"].getpixel((0, 0)) for i in range(3)] == [(255, 0, 0), (0, 0, 255), (0, 0, 0)]
    assert dataset.bad_images() == [2]
