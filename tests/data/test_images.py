"""Finding labelled images in folders and archives, and decoding what is there."""

import os
import pickle
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from crafted import encoded
from PIL import Image

from soft_vit.data import archives as storage
from soft_vit.data.images import BadImage, decode_image, find_images, find_multi_label_images, read_image, to_rgb


def picture(value: int, size: tuple[int, int] = (5, 7)) -> bytes:
    return encoded(np.full((*size, 3), value, np.uint8))


def make_tree(root: Path, split: str = "train", classes: tuple[str, ...] = ("b", "a"), each: int = 2) -> Path:
    for label, name in enumerate(sorted(classes)):
        folder = root / split / name
        folder.mkdir(parents=True)
        for i in range(each):
            (folder / f"{i} {name}.png").write_bytes(picture(10 * label + i))
    return root


def pack(root: Path, split: str, kind: str, inside: bool = False) -> None:
    """Put a folder of a split into an archive of its name, itself or what is in it."""
    shutil.make_archive(str(root / split), kind, *([root, split] if inside else [root / split]))
    (root / split).rename(root / "unpacked")


def contents(images) -> list[tuple[int, int]]:
    """The grey value of each image and its label."""
    return [(np.asarray(images.load(entry))[0, 0, 0].item(), label) for entry, label in images.samples]


EXPECTED = [(0, 0), (1, 0), (10, 1), (11, 1)]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_the_same_from_a_folder_and_from_archives(tmp_path, kind, inside):
    root = make_tree(tmp_path)
    (root / "train" / "a" / "._0 a.png").write_bytes(b"what an operating system puts there")
    (root / "train" / "a" / "notes.txt").write_text("no image")
    make_tree(root / "train", ".cache")
    if kind != "folder":
        pack(root, "train", kind, inside)
    for _ in range(2):
        images = find_images(root, "train")
        assert images.classes == ["a", "b"]
        assert contents(images) == EXPECTED
        # As it reaches a worker that was not forked.
        assert contents(pickle.loads(pickle.dumps(images))) == EXPECTED


def test_an_index_of_an_archive_that_has_changed_is_not_used(tmp_path):
    root = make_tree(tmp_path)
    pack(root, "train", "tar")
    assert len(find_images(root, "train").samples) == 4
    assert (root / "train.tar.index.json").is_file()
    shutil.rmtree(root / "unpacked")
    pack(make_tree(root, classes=("c",), each=3), "train", "tar")
    assert find_images(root, "train").classes == ["c"]


def test_reading_an_archive_from_forked_processes(tmp_path):
    root = make_tree(tmp_path)
    pack(root, "train", "zip")
    images = find_images(root, "train")
    assert contents(images) == EXPECTED
    pid = os.fork()
    if pid == 0:
        os._exit(0 if contents(images) == EXPECTED else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert contents(images) == EXPECTED


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_classes_of_the_training_split_number_the_others(tmp_path, kind):
    make_tree(tmp_path, "train", ("a", "b", "c"))
    make_tree(tmp_path, "val", ("a", "c"))
    if kind != "folder":
        pack(tmp_path, "train", kind, inside=kind == "tar")
    images = find_images(tmp_path, "val")
    assert images.classes == ["a", "b", "c"]
    assert [label for _, label in images.samples] == [0, 0, 2, 2]


@pytest.mark.parametrize("name", ["valid", "val"])
def test_the_validation_split_has_two_names(tmp_path, name):
    make_tree(make_tree(tmp_path, "train"), name, classes=("b",), each=1)
    assert contents(find_images(tmp_path, "val")) == [(0, 1)]


def test_folders_that_are_numbers(tmp_path):
    names = tuple(str(i) for i in range(12))
    make_tree(tmp_path, "v2", names, each=1)
    assert find_images(tmp_path, "v2").classes == list(names)
    labels = [label for _, label in find_images(tmp_path, "v2", classes=[f"n{i:02}" for i in range(12)]).samples]
    assert sorted(labels) == list(range(12))
    assert find_images(tmp_path / "v2", "").classes == list(names)


FLAT_LISTS = [
    ["0 a.png 0", "1 a.png 0", "0 b.png 1", "1 b.png 1"],
    ["1 b.png b", "0 b.png b", "1 a.png a", "0 a.png a"],
    ["0 great dane.png\tgreat dane", "1 great dane.png\tgreat dane", "0 pug.png\tpug", "1 pug.png\tpug"],
]


@pytest.mark.parametrize("lines", FLAT_LISTS)
def test_a_flat_folder_with_a_list(tmp_path, lines):
    names = ("great dane", "pug") if "pug" in lines[-1] else ("a", "b")
    make_tree(tmp_path, "train", names)
    (tmp_path / "val").mkdir()
    for path in (tmp_path / "train").rglob("*.png"):
        (tmp_path / "val" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "val.txt").write_text("\n".join(lines) + "\n\n")
    images = find_images(tmp_path, "val")
    assert images.classes == list(names)
    assert {(value, label) for value, label in contents(images)} == set(EXPECTED)


LISTS = {
    "csv": "file,labels\n0.png,b|a\n1.png,\n2.png,c\n",
    "no header.csv": "0.png,b|a\n1.png,\n2.png,c\n",
    "columns.csv": "file,a, b, c\n0.png, 1,1,0\n1.png,0,0,0\n2.png,0,0,1\n",
    "commas.csv": 'file,labels\n0.png,"b,a"\n1.png,""\n2.png,c\n',
    "txt": "0.png b a\n1.png\ntrain/2.png c\n",
    "tabs.txt": "0.png\tb\ta\n1.png\n2.png\tc\n",
}


def listed(root: Path, split: str, kind: str, text: str) -> Path:
    (root / split).mkdir(parents=True)
    for i in range(4):
        (root / split / f"{i}.png").write_bytes(picture(i))
    (root / f"{split}.{kind.split('.')[-1]}").write_text(text)
    return root


@pytest.mark.parametrize("archive", [None, "tar"])
@pytest.mark.parametrize(("kind", "text"), LISTS.items())
def test_several_labels_of_an_image(tmp_path, kind, text, archive):
    listed(tmp_path, "train", kind, text)
    if archive is not None:
        pack(tmp_path, "train", archive, inside=True)
    images = find_multi_label_images(tmp_path, "train")
    assert images.classes == ["a", "b", "c"]
    assert contents(images) == [(0, (0, 1)), (1, ()), (2, (2,))]
    assert "3 images in 3 classes of 1 (a) to 1 (c)" in images.summary()
    listed(tmp_path, "val", "txt", "3.png c\n")
    assert contents(find_multi_label_images(tmp_path, "val")) == [(3, (2,))]
    assert contents(find_multi_label_images(tmp_path, "val", classes=["c", "d"])) == [(3, (0,))]


def test_names_of_several_words_in_a_list(tmp_path):
    listed(tmp_path, "train", "csv", "0.png,no finding\n1.png,big dog | no finding\n")
    assert find_multi_label_images(tmp_path, "train").classes == ["big dog", "no finding"]


LIST_MISTAKES = [
    ("csv", "file,a,b\n0.png,1,yes\n", ValueError, "'yes'"),
    ("csv", "file,labels\n9.png,a\n", FileNotFoundError, "9.png on line 2"),
    ("csv", "file,labels\n0.png,a,b\n", ValueError, "2 columns in each row, got 0.png,a,b"),
    ("csv", "file,labels\n0.png,a\n\n0.png,b\n", ValueError, "0.png on lines 2 and 4"),
    ("csv", "file;labels\n0.png;a\n", ValueError, "commas"),
    ("csv", "", ValueError, "header"),
    ("csv", "0.png,1,0\n1.png,0,1\n", ValueError, "header"),
    ("txt", "", ValueError, "train.txt"),
    ("txt", "0.png x\n0.png x\n", ValueError, "0.png on lines 1 and 2"),
    ("txt", "0.png a\n", ValueError, "'a'"),
    ("json", "{}", FileNotFoundError, "train.csv"),
]


@pytest.mark.parametrize(("kind", "text", "error", "message"), LIST_MISTAKES)
def test_mistakes_in_lists_of_several_labels(tmp_path, kind, text, error, message):
    listed(tmp_path, "train", kind, text)
    with pytest.raises(error, match=re.escape(message)):
        find_multi_label_images(tmp_path, "train", classes=["x", "y"] if kind == "txt" else None)


def test_an_archive_as_macos_writes_it(tmp_path):
    root = make_tree(tmp_path)
    with zipfile.ZipFile(root / "zip.zip", "w") as archive:
        for top in ("train", "__MACOSX/train"):
            for name in ("a", "b"):
                archive.mkdir(f"{top}/{name}")
        for path in (root / "train").rglob("*.png"):
            name = path.relative_to(root)
            archive.write(path, name)
            archive.writestr(str("__MACOSX" / name.with_name("._" + name.name)), b"attributes")
    images = find_images(root, "zip")
    assert images.classes == ["a", "b"]
    assert contents(images) == EXPECTED


def test_links_in_a_tar_are_files(tmp_path):
    """One of two hard links, and every symbolic link, stands there as a name alone."""
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "train" / "b" / "1.png").write_bytes(picture(7))
    (tmp_path / "train" / "a" / "1.png").hardlink_to(tmp_path / "train" / "b" / "1.png")
    (tmp_path / "train" / "a" / "2.png").symlink_to("../b/1.png")
    (tmp_path / "train" / "a" / "3.png").symlink_to("nowhere.png")
    for top in (".", "train"):
        with tarfile.open(tmp_path / f"{top.strip('.')}val.tar", "w") as archive:
            archive.add(tmp_path / "train", top)
    for split in ("val", "trainval"):
        assert contents(find_images(tmp_path, split)) == [(7, 0), (7, 0), (7, 1)]


def flat(root: Path, text: str | None) -> None:
    make_tree(root, "train")
    (root / "val").mkdir()
    (root / "val" / "x.png").write_bytes(picture(1))
    if text is not None:
        (root / "val.txt").write_text(text)


def ring(folder: Path) -> None:
    """Folders that link to each other."""
    (folder / "a" / "b").symlink_to("../b")
    (folder / "b" / "a").symlink_to("../a")


MISTAKES = [
    (lambda root: root.rmdir(), "train", FileNotFoundError, "must have a folder train"),
    (make_tree, "test", FileNotFoundError, r"test\.tar"),
    (lambda root: (root / "train" / "a").mkdir(parents=True), "train", ValueError, "must hold images"),
    (lambda root: (make_tree(root) / "train/empty").mkdir(), "train", ValueError, "such as empty"),
    (lambda root: (make_tree(root) / "train/x.png").write_bytes(b""), "train", ValueError, "x.png"),
    (lambda root: (make_tree(root), make_tree(root, "val", ("a", "z"))), "val", ValueError, "'z'"),
    (lambda root: flat(root, None), "val", FileNotFoundError, r"val\.txt"),
    (lambda root: flat(root, "x.png a\n\ny.png a\n"), "val", FileNotFoundError, "y.png on line 3"),
    (lambda root: flat(root, "a\nb\n"), "val", ValueError, "'a' on line 1"),
    (lambda root: flat(root, "x.png a\nx.png b\n"), "val", ValueError, "x.png on lines 1 and 2"),
    (lambda root: flat(root, "x.png a\nx.png a\n"), "val", ValueError, "x.png on lines 1 and 2"),
    (lambda root: (make_tree(root) / "classes.txt").write_text("a\nb\na"), "train", ValueError, "a on lines 1 and 3"),
    (lambda root: (make_tree(root) / "train/a/up").symlink_to("../../train"), "train", ValueError, "a/up"),
    (lambda root: ring(make_tree(root) / "train"), "train", ValueError, "a/b/a"),
    (lambda root: flat(root, "x.png 7\n"), "val", ValueError, "'7'"),
    (lambda root: (root / "train.tar").write_bytes(b"no archive" * 99), "train", ValueError, "TAR"),
    (lambda root: (root / "train.zip").write_bytes(b"no archive" * 99), "train", ValueError, "ZIP"),
]


@pytest.mark.parametrize(("make", "split", "error", "message"), MISTAKES)
def test_mistakes_get_one_sentence(tmp_path, make, split, error, message):
    make(tmp_path)
    with pytest.raises(error, match=message) as caught:
        find_images(tmp_path, split)
    assert "\n" not in str(caught.value)


GREY16 = np.array([[0, 256, 65535]], np.uint16)
BLACK_IS_ZERO, WHITE_IS_ZERO = (b"\x06\x01\x03\x00\x01\x00\x00\x00" + value for value in (b"\x01", b"\x00"))


CONVERTED = {
    "16 bits": (encoded(GREY16), [0, 1, 255]),
    "16 bits in TIFF": (encoded(GREY16, "TIFF"), [0, 1, 255]),
    "white is zero": (encoded(GREY16, "TIFF").replace(BLACK_IS_ZERO, WHITE_IS_ZERO), [255, 254, 0]),
    # Pillow gives these as 32 bits, scaled to 16.
    "16 bits in PGM": (encoded(GREY16.astype(np.int32), "PPM"), [0, 1, 255]),
    "grey": (encoded(np.array([[3, 4, 5]], np.uint8)), [3, 4, 5]),
    "grey and alpha": (encoded(np.array([[[9, 9], [8, 0], [7, 255]]], np.uint8)), [9, 8, 7]),
}


@pytest.mark.parametrize(("data", "pixels"), CONVERTED.values(), ids=CONVERTED)
def test_values_survive_the_conversion(data, pixels):
    image = decode_image(data)
    assert image.mode == "RGB"
    assert np.asarray(image)[0, :, 1].tolist() == pixels


def packed_12_bits(values: np.ndarray) -> bytes:
    """A TIFF that declares 12 bits, two values in three bytes."""
    high, low = values.reshape(-1, 2).T
    packed = np.stack([high >> 4, (high & 15) << 4 | low >> 8, low & 255], 1).astype(np.uint8).tobytes()
    data = encoded(values, "TIFF")
    tag = b"\x02\x01\x03\x00\x01\x00\x00\x00"
    return data.replace(values.tobytes(), packed.ljust(values.nbytes, b"\0")).replace(tag + b"\x10", tag + b"\x0c")


GREY12 = np.array([[0, 16, 2049, 4095]], np.uint16)
COLOURS12 = cv2.imencode(".png", GREY12[..., None].repeat(3, 2))[1].tobytes()
# An image, the option, and the pixels or what the message names.
RANGES = {
    "of unknown range": (encoded(GREY12), None, "bits=12"),
    "of unknown range in TIFF": (encoded(GREY12, "TIFF"), None, "bits=12"),
    "given": (encoded(GREY12), 12, [0, 1, 128, 255]),
    "given and dark": (encoded(GREY12), 16, [0, 0, 8, 15]),
    "given and too small": (encoded(GREY12), 10, "4095.*1023"),
    "given and senseless": (encoded(GREY12), 17, "bits.*17"),
    "declared by the number of bits": (packed_12_bits(GREY12), None, [0, 1, 128, 255]),
    "declared by the largest value": (encoded(GREY12, "TIFF", tiffinfo={281: 4095}), None, [0, 1, 128, 255]),
    "black": (encoded(0 * GREY12), None, [0, 0, 0, 0]),
    "colours of unknown range": (COLOURS12, None, "8 bits"),
    "colours that are cut": (COLOURS12, 12, "8 bits"),
    "dark colours": (COLOURS12, 16, [0, 0, 8, 15]),
    "compressed": (cv2.imencode(".tif", GREY12[..., None].repeat(3, 2))[1].tobytes(), None, "8 bits"),
    "8 bits": (encoded(np.array([[3, 4, 5, 6]], np.uint8)), 12, [3, 4, 5, 6]),
}


@pytest.mark.parametrize(("data", "bits", "expected"), RANGES.values(), ids=RANGES)
def test_16_bits_are_scaled_by_their_range_or_refused(data, bits, expected):
    if isinstance(expected, list):
        assert np.asarray(decode_image(data, bits=bits))[0, :, 1].tolist() == expected
    else:
        with pytest.raises(BadImage, match=expected):
            decode_image(data, bits=bits)


def with_orientation(array: np.ndarray, orientation: int, kind: str = "PNG", **kwargs) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(array, kind, exif=exif, **kwargs)


def test_images_are_turned_as_their_exif_data_say():
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    assert decode_image(with_orientation(pixels, 6, "JPEG")).size == (4, 6)
    # Damaged EXIF data do not make an image unreadable.
    assert decode_image(encoded(pixels, exif=b"Exif\0\0damaged")).size == (6, 4)
    assert decode_image(with_orientation(pixels, 9), size=(4, 6)).size == (6, 4)


TURNS = {
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("shape", [(4, 6), (5, 5)])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", TURNS)
def test_annotated_pixels_are_those_of_the_annotations(orientation, kind, shape):
    """Pillow turns a TIFF itself. Where the size does not tell what is annotated, an option does."""
    stored = np.arange(3 * shape[0] * shape[1], dtype=np.uint8).reshape(*shape, 3)
    data, turned = with_orientation(stored, orientation, kind), TURNS[orientation](stored)
    assert_pixels = np.testing.assert_array_equal
    assert_pixels(np.asarray(decode_image(data)), turned)
    for expected, upright in ((stored, False), (turned, True)):
        size = expected.shape[:2]
        assert_pixels(np.asarray(decode_image(data, size=size, upright=upright)), expected)
        assert_pixels(np.asarray(decode_image(data, upright=upright)), expected)
        if stored.shape != turned.shape:
            assert_pixels(np.asarray(decode_image(data, size=size)), expected)
        else:
            with pytest.raises(BadImage, match="upright"):
                decode_image(data, size=size)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_floats_and_32_bits_have_no_known_range(dtype):
    values = np.linspace(0, 255, 12).astype(dtype).reshape(3, 4)
    with pytest.raises(BadImage, match="unknown range"):
        decode_image(encoded(values, "TIFF"))
    # As a caller may make it.
    with pytest.raises(BadImage, match="unknown range"):
        to_rgb(Image.fromarray(values))


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"GIF89a", b"\x00" * 1000], ids=repr)
def test_what_is_no_image(data):
    with pytest.raises(BadImage) as caught:
        decode_image(data)
    # Nothing of this process, such as an address.
    assert "0x" not in str(caught.value)


def test_an_image_of_too_many_pixels(monkeypatch):
    data = encoded(np.zeros((4, 6, 3), np.uint8), "PNG")
    assert decode_image(data, 24).size == (6, 4)
    with pytest.raises(BadImage, match="6 x 4 pixels, more than"):
        # Before its pixels are decoded: they are missing.
        decode_image(data[:45], 23)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 11)
    with pytest.raises(BadImage, match="DecompressionBombError"):
        decode_image(data[:45])


def test_a_file_too_large_and_one_that_would_block(tmp_path, monkeypatch):
    root = make_tree(tmp_path)
    os.mkfifo(root / "train" / "a" / "pipe.png")
    images = find_images(root, "train")
    pipe = next(entry for entry, _ in images.samples if entry.name.endswith("pipe.png"))
    with pytest.raises(BadImage, match="not a regular file"):
        images.load(pipe)
    monkeypatch.setattr(storage, "MAX_FILE_BYTES", 10)
    with pytest.raises(BadImage, match="more than the 10"):
        images.load(images.samples[0][0])


def test_reading_one_file(tmp_path):
    (tmp_path / "photo.png").write_bytes(picture(7))
    (tmp_path / "notes.png").write_text("no image")
    assert np.asarray(read_image(tmp_path / "photo.png")).tolist() == np.full((5, 7, 3), 7).tolist()
    for name, error in (("notes.png", BadImage), ("none.png", FileNotFoundError), ("", IsADirectoryError)):
        with pytest.raises(error, match=re.escape(str(tmp_path / name))):
            read_image(tmp_path / name)
