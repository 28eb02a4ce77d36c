"""Data sets by name, in the published layouts."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from timm.data import ImageDataset

from soft_vit.data.images import BadImage
from soft_vit.data.shards import Shards
from soft_vit.engine.data.named import NamedImages, find_named_images

RNG = np.random.default_rng(0)


def picture(value: int) -> Image.Image:
    return Image.fromarray(np.full((6, 7, 3), value, np.uint8))


def encoded(value: int) -> bytes:
    stream = io.BytesIO()
    picture(value).save(stream, "PNG")
    return stream.getvalue()


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
    assert len(found) == len(images)
    assert found.classes == [f"name {i}" for i in range(classes)]
    for i in range(len(images)):
        assert (np.asarray(found.image(i)) == images[i]).all()
        assert found.label(i) == labels[i]


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def test_no_pickle_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_cifar(tmp_path, 10)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({"data": Evil()}))
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
        picture(value).save(folder / "images" / f"{line.split()[0]}.jpg")
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
        return io.BytesIO(encoded(index)), index % 2

    def iter_targets(self):
        yield from (0, 1, 0)


def test_a_data_set_of_hugging_face():
    found = NamedImages(ImageDataset("", reader=HuggingFaceReader()))
    assert [(found.image(i).getpixel((0, 0))[0], found.label(i)) for i in range(len(found))] == [(0, 0), (1, 1), (2, 0)]
    assert found.classes == ["cat", "dog"]


def make_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_shards(tmp_path):
    make_shard(tmp_path / "train-0000.tar", {"0.png": encoded(0), "0.cls": b"1", "1.png": encoded(1), "1.cls": b"0\n"})
    second = {"a/2.json": b'{"label": 1, "w": 7}', "a/2.png": encoded(2), "a/2.seg.png": b""}
    make_shard(tmp_path / "train-0001.tar", second)
    make_shard(tmp_path / "val-0000.tar", {"9.png": encoded(9), "9.cls": b"0"})
    found = find_named_images("wds/", tmp_path, "train")
    assert found.classes is None
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = Shards(tmp_path)
    assert found.classes == ["cat", "dog"]
    assert [found.image(i).getpixel((0, 0))[0] for i in range(len(found))] == [0, 1, 2]
    assert [found.label(i) for i in range(len(found))] == [1, 0, 1]
    # Workers get a copy.
    assert pickle.loads(pickle.dumps(found)).image(2).getpixel((0, 0))[0] == 2


@pytest.mark.parametrize(
    ("name", "members", "error", "message"),
    [
        ("torch/nothing", {}, ValueError, "torch/nothing"),
        ("torch/cifar10", {}, FileNotFoundError, "download=True"),
        ("torch/mnist", {}, FileNotFoundError, "torch/mnist"),
        ("tfds/mnist", {}, ValueError, "any order"),
        ("hfds//no/such", {}, FileNotFoundError, "no/such"),
        ("wds/", {}, FileNotFoundError, "train"),
        ("wds/", {"0.png": encoded(0)}, ValueError, "0.cls"),
        ("wds/", {"0.a.png": encoded(0), "0.a.cls": b"1"}, ValueError, "one dot"),
        ("wds/", {"0.png": encoded(0), "0.cls": b"cat"}, ValueError, "'cat'"),
        ("wds/", {"0.png": encoded(0), "0.cls": b"2"}, ValueError, "got 2"),
    ],
)
def test_mistakes_get_one_sentence(tmp_path, name, members, error, message):
    if members:
        make_shard(tmp_path / "train-0.tar", members)
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(error, match=message) as caught:
        find_named_images(name, tmp_path, "train").label(0)
    assert "\n" not in str(caught.value)


def test_a_shard_cut_short(tmp_path):
    make_shard(tmp_path / "train-0.tar", {"0.png": encoded(0), "0.cls": b"0", "1.png": bytes(3000), "1.cls": b"1"})
    data = (tmp_path / "train-0.tar").read_bytes()
    (tmp_path / "train-0.tar").write_bytes(data[:4000])
    with pytest.raises(ValueError, match=r"train-0\.tar"):
        Shards(tmp_path)
