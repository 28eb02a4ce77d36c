"""Data sets of labelled images, by path, by name, and of images of many shapes."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from crafted import Call, encoded
from engine.runs import CONFIGS, DEMO, NARROW_MODEL, assert_resumes
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from timm.data import ImageDataset

from soft_vit.data import CLASSES, SPLITS, draw_shape
from soft_vit.data.archives import StoredFile
from soft_vit.data.images import BadImage
from soft_vit.data.shards import Shards
from soft_vit.engine import ImageTree, ShapesDataset, TimmDataset, train
from soft_vit.engine.data.naflex import NaFlexDataset, TokenBudgetSampler, collate_patches
from soft_vit.engine.data.named import NamedImages, find_named_images
from soft_vit.engine.evaluate import evaluate
from soft_vit.engine.resume.position import PositionSampler

# Data sets of labelled images.


def test_the_first_run_downloads(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("soft_vit.engine.data.datasets.find_named_images", lambda *given: asked.append(given) or 1 / 0)
    options = {"data_root": str(tmp_path / "new"), "load_from": None}
    with pytest.raises(ZeroDivisionError):
        train(CONFIGS / "finetune" / "soft_tiny_flowers.py", options=options, work_dir=tmp_path / "run")
    assert asked == [("torch/flowers102", options["data_root"], "train", True)]


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
    for name, count in (("a", 10), ("b", 21), ("c", 3), ("d", 1)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "train" / name / f"{i}.png").write_bytes(b"")

    def labels(**given):
        dataset = ImageTree(str(tmp_path), **given)
        infos = [dataset.get_data_info(i) for i in range(len(dataset))]
        return {StoredFile(*info["entry"]).name: info["gt_label"] for info in infos}

    whole, train = labels(), labels(val_fraction=fraction)
    held_out = labels(val_fraction=fraction, held_out=True)
    assert train | held_out == whole
    assert not train.keys() & held_out.keys()
    assert set(train.values()) == {0, 1, 2, 3}
    for label, count in enumerate((10, 21, 3, 1)):
        assert abs(list(held_out.values()).count(label) - fraction * count) < 1
    assert held_out == labels(val_fraction=fraction, held_out=True)
    # No prefix of the folder.
    inside, all_of_it = ([name for name in names if whole[name] == 1] for names in (held_out, whole))
    assert inside != all_of_it[: len(inside)]
    # More leaves no image of a class to train on.
    for too_large, named in ((0.9, "c"), (1.0, "1.0")):
        for held_out in (False, True):
            with pytest.raises(ValueError, match=f"val_fraction .*{named}"):
                labels(val_fraction=too_large, held_out=held_out)


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
        images = {f"{i}.png": encoded(draw_shape(0, 3 * shard + i, 32).image) for i in range(3)}
        make_shard(tmp_path / f"train-{shard}.tar", {**images, **{f"{i}.cls": str(i).encode() for i in range(3)}})
    config = tmp_path / "shards.py"
    config.write_text(SHARDS.format(demo=DEMO, root=tmp_path))
    # In the middle of an epoch of three steps.
    assert_resumes(config, tmp_path, {"image_size": 32, **NARROW_MODEL}, "iter_2.pth", "state_dict", "optimizer")


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


# Data sets by name, in the published layouts.


RNG = np.random.default_rng(0)


def picture(value: int) -> np.ndarray:
    return np.full((6, 7, 3), value, np.uint8)


def make_cifar(root: Path, classes: int) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Files of CIFAR-10 or CIFAR-100 of two images each; returns the images [N, 32, 32, 3] and labels of each part."""
    if classes == 10:
        folder, key, meta = "cifar-10-batches-py", "labels", ("batches.meta", "label_names")
        files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    else:
        folder, key, meta = "cifar-100-python", "fine_labels", ("meta", "fine_label_names")
        files = {"train": ["train"], "test": ["test"]}
    (root / folder).mkdir(parents=True)
    (root / folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"name {i}" for i in range(classes)]}, protocol=3))
    parts = {}
    for split, names in files.items():
        images = RNG.integers(0, 256, (2 * len(names), 32, 32, 3), dtype=np.uint8)
        labels = RNG.integers(0, classes, len(images)).tolist()
        for i, name in enumerate(names):
            part = slice(2 * i, 2 * i + 2)
            rows = images[part].transpose(0, 3, 1, 2).reshape(2, 3072)
            content = {"data": rows, key: labels[part], "batch_label": "a batch", "filenames": ["a.png", "b.png"]}
            (root / folder / name).write_bytes(pickle.dumps(content, protocol=3))
        parts[split] = images, labels
    return parts


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("split", ["train", "test", "val"])
def test_cifar(tmp_path, classes, split):
    images, labels = make_cifar(tmp_path, classes)["train" if split == "train" else "test"]
    found = find_named_images(f"torch/cifar{classes}", tmp_path, split)
    assert found.classes == [f"name {i}" for i in range(classes)]
    assert [found.label(i) for i in range(len(found))] == labels
    assert (np.stack([found.image(i) for i in range(len(found))]) == images).all()


def test_no_pickle_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_cifar(tmp_path, 10)
    evil = pickle.dumps({"data": Call(Path.touch, Path("touched"))})
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(evil)
    with pytest.raises(ValueError, match="test_batch"):
        find_named_images("torch/cifar10", tmp_path, "test")
    assert not Path("touched").exists()


@pytest.mark.parametrize("split", ["trainval", "test"])
def test_pets_as_torchvision_reads_them(tmp_path, split):
    folder = tmp_path / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    lines = [f"{name}_{i} {label} 1 1" for label, name in enumerate(("Abyssinian", "beagle"), 1) for i in range(2)]
    for name in ("trainval", "test"):
        (folder / "annotations" / f"{name}.txt").write_text("\n".join(lines))
    for value, line in enumerate(lines):
        Image.fromarray(picture(value)).save(folder / "images" / f"{line.split()[0]}.jpg")
    found = find_named_images("torch/oxford_iiit_pet", tmp_path, split)
    assert [found.label(i) for i in range(len(found))] == [0, 0, 1, 1]
    assert found.classes == ["Abyssinian", "Beagle"]
    assert found.image(3).getpixel((0, 0)) == (3, 3, 3)
    (folder / "images" / "beagle_1.jpg").write_bytes(b"damaged")
    with pytest.raises(BadImage, match="image 3"):
        found.image(3)


class HuggingFaceReader:
    """The part of timm's reader of Hugging Face's data sets that is used."""

    class_to_idx: ClassVar = {"cat": 0, "dog": 1}

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return io.BytesIO(encoded(picture(index))), index % 2

    def iter_targets(self):
        yield from (0, 1, 0)


def test_a_data_set_of_hugging_face():
    found = NamedImages(ImageDataset("", reader=HuggingFaceReader()))
    assert [(found.image(i).getpixel((0, 0))[0], found.label(i)) for i in range(len(found))] == [(0, 0), (1, 1), (2, 0)]
    assert found.classes == ["cat", "dog"]


def test_labels_and_names_as_stl10_and_imagenette_have_them():
    source = type("Source", (list,), {"labels": np.array([1, 0]), "classes": [("tench", "Tinca tinca"), "dog"]})
    found = NamedImages(source("ab"))
    assert (found.labels, found.classes) == ([1, 0], ["tench", "dog"])


PNGS = [encoded(picture(value)) for value in range(3)]


def make_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_shards(tmp_path):
    make_shard(tmp_path / "train-0.tar", {"0.png": PNGS[0], "0.cls": b"1", "1.png": PNGS[1], "1.cls": b"0\n"})
    make_shard(tmp_path / "train-1.tar", {"a/2.json": b'{"label": 1, "w": 7}', "a/2.png": PNGS[2], "a/2.seg.png": b""})
    make_shard(tmp_path / "val-0000.tar", {"9.png": PNGS[0], "9.cls": b"0"})
    assert find_named_images("wds/", tmp_path, "train").classes is None
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = Shards(tmp_path)
    assert found.classes == ["cat", "dog"]
    assert [found.image(i).getpixel((0, 0))[0] for i in range(len(found))] == [0, 1, 2]
    assert [found.label(i) for i in range(len(found))] == [1, 0, 1]
    # Workers get a copy.
    assert pickle.loads(pickle.dumps(found)).image(2).getpixel((0, 0))[0] == 2


MISTAKES = [
    ("torch/nothing", {}, ValueError, "torch/nothing"),
    # It has no parts.
    ("torch/eurosat", {}, ValueError, "torch/eurosat"),
    ("torch/cifar10", {}, FileNotFoundError, "batch"),
    ("torch/mnist", {}, FileNotFoundError, "torch/mnist"),
    ("hfds//no/such", {}, FileNotFoundError, "no/such"),
    ("wds/", {}, FileNotFoundError, "train"),
    ("wds/", {"0.png": PNGS[0]}, ValueError, "0.cls"),
    ("wds/", {"0.a.png": PNGS[0], "0.a.cls": b"1"}, ValueError, "one dot"),
    ("wds/", {"0.png": PNGS[0], "0.cls": b"cat"}, ValueError, "'cat'"),
    ("wds/", {"0.png": PNGS[0], "0.cls": b"2"}, ValueError, "got 2"),
]


@pytest.mark.parametrize(("name", "members", "error", "message"), MISTAKES)
def test_mistakes_get_one_sentence(tmp_path, name, members, error, message):
    if members:
        make_shard(tmp_path / "train-0.tar", members)
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(error, match=message) as caught:
        find_named_images(name, tmp_path, "train").label(0)
    assert "\n" not in str(caught.value)


def test_a_shard_cut_short(tmp_path):
    path = tmp_path / "train-0.tar"
    make_shard(path, {"0.png": PNGS[0], "0.cls": b"0", "1.png": bytes(3000), "1.cls": b"1"})
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ValueError, match=r"train-0\.tar"):
        Shards(tmp_path)


# Batches of images of many shapes, and a run on them.


SHAPES = dict(type="OvalsDataset", length=31)


def test_images_keep_their_aspect_ratio():
    data, squares = (NaFlexDataset(SHAPES, 8, 36, keep_ratio=keep) for keep in (True, False))
    batch = collate_patches([data[i] for i in range(31)])
    inputs, counts = batch["inputs"], batch["inputs"]["patch_valid"].sum(1)
    assert batch["labels"].tolist() == [i % 3 for i in range(31)]
    assert counts.max() == inputs["patches"].shape[1] <= 36
    assert (counts > 20).all()
    for coord, count, i in zip(inputs["patch_coord"], counts, range(31), strict=True):
        rows, columns = coord.amax(0) + 1
        image = data.dataset[i]["img"]
        assert rows * columns == count
        # Whole patches: at most half of one is added or left out on a side.
        assert abs(rows / columns - image.shape[0] / image.shape[1]) < 0.5 * rows / columns
    assert all(len(squares[i]["inputs"]["patches"]) == 36 for i in range(3))


def test_batches_hold_a_budget_of_tokens_and_continue():
    def batches(epoch: int, first: int = 0) -> list[list[int]]:
        sampler = PositionSampler(range(101), dict(type="DefaultSampler", shuffle=True), seed=0)
        budget = TokenBudgetSampler(sampler, 4, seq_lens=(16, 36, 64))
        sampler.begin(0, epoch, budget.begin(epoch, first))
        return list(budget)

    whole = batches(epoch=1)
    assert sorted(index for batch in whole for index in batch) == list(range(101))
    assert all(len({index.seq_len for index in batch}) == 1 for batch in whole)
    full = [len(batch) * batch[0].seq_len for batch in whole]
    assert max(full) <= 4 * 64
    assert sum(tokens > 3 * 64 for tokens in full) >= len(full) - 1
    assert batches(epoch=1, first=3) == whole[3:]
    assert batches(epoch=2) != whole


def test_a_run_resumes_exactly_and_is_tested(tmp_path):
    options = {
        "model.depth": 1,
        "model.embed_dim": 24,
        "train_dataloader.dataset.dataset.length": 40,
        "train_dataloader.batch_size": 5,
        "val_dataloader.dataset.dataset.length": 6,
        "test_dataloader.dataset.dataset.length": 6,
        "train_cfg.max_epochs": 2,
        "default_hooks.checkpoint": {"interval": 3, "by_epoch": False, "max_keep_ckpts": -1},
    }
    config = CONFIGS / "naflex" / "linear_ovals.py"
    last = assert_resumes(config, tmp_path, options, "iter_3.pth").checkpoint
    assert last.name != "iter_3.pth"
    assert evaluate(config, str(last), options=options, work_dir=tmp_path / "test")["images"] == 6
