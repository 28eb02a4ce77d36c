"""Trees in ADE20K's layout: what is found, what is read, and what is refused before a run begins."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from soft_vit.data.images import BadImage
from soft_vit.data.label_maps import IGNORED, decode_label_map, find_label_maps

CLASSES = ["ground", "disc", "bar"]
MAPS = "annotations/training"


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def load_all(maps):
    return [maps.load(pair)[1] for pair in maps.pairs]


@pytest.fixture
def tree(tmp_path):
    """Three training pairs of 5 x 7 and 9 x 4 pixels, one of them in a folder of its own."""
    stream = np.random.default_rng(0)
    for name, size in (("a", (5, 7)), ("b", (9, 4)), ("more/c", (5, 7))):
        save(tmp_path / f"images/training/{name}.jpg", stream.integers(0, 256, (*size, 3), dtype=np.uint8))
        save(tmp_path / f"annotations/training/{name}.png", stream.integers(0, 4, size, dtype=np.uint8))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return tmp_path


def test_pairs_and_classes_are_found(tree):
    maps = find_label_maps(tree, "training", reduce_zero_label=True)
    assert maps.classes == CLASSES
    found = [(image.name, labels.name) for image, labels in maps.pairs]
    assert found == [("a.jpg", "a.png"), ("b.jpg", "b.png"), ("more/c.jpg", "more/c.png")]
    assert [labels.shape for labels in load_all(maps)] == [(5, 7), (9, 4), (5, 7)]


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("mode", [None, "P", "I;16"])
def test_values_become_classes(tree, reduce, mode):
    values = np.array([[0, 1, 2, 255]], dtype=np.uint8)
    expected = [IGNORED, 0, 1, IGNORED] if reduce else [0, 1, 2, IGNORED]
    image = Image.fromarray(values.astype(np.uint16)) if mode == "I;16" else Image.fromarray(values)
    if mode == "P":
        image.putpalette([value for value in range(256) for _ in range(3)])
    image.save(tree / "annotations/training/a.png")
    maps = find_label_maps(tree, "training", reduce_zero_label=reduce)
    labels = maps.load_labels(maps.pairs[0][1])
    assert labels.dtype == np.uint8
    assert labels.tolist() == [expected]


def test_values_of_two_bits_are_not_spread():
    parts = (b"IHDR", struct.pack(">IIBBBBB", 4, 1, 2, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0\x1b")), (b"IEND", b"")
    png = (struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x)) for kind, x in parts)
    assert decode_label_map(b"\x89PNG\r\n\x1a\n" + b"".join(png)).tolist() == [[0, 1, 2, 3]]


def test_names_come_from_the_list_of_ade20k(tree):
    (tree / "classes.txt").unlink()
    rows = ["Idx\tRatio\tTrain\tVal\tStuff\tName", "1\t0.15\t1\t2\t1\twall", "2\t0.1\t3\t4\t1\tbuilding, edifice", ""]
    (tree / "objectInfo150.txt").write_text("\n".join(rows))
    assert find_label_maps(tree, "training").classes == ["wall", "building"]


def turn(path, orientation=3):
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(path) as image:
        image.load()
        image.save(path, exif=exif)


@pytest.mark.parametrize("orientation", [3, 6])
def test_labels_lie_on_the_pixels_that_were_annotated(tree, orientation):
    """The size of the label map tells, or an option does."""
    maps = find_label_maps(tree, "training", reduce_zero_label=True)
    plain, _ = maps.load(maps.pairs[0])
    turn(tree / "images/training/a.jpg", orientation)
    stored, _ = maps.load(maps.pairs[0], upright=False)
    assert (stored.size, plain.size) == ((7, 5), (7, 5))
    if orientation == 3:
        turned, _ = maps.load(maps.pairs[0], upright=True)
        np.testing.assert_array_equal(np.asarray(turned), np.rot90(np.asarray(stored), 2))
        with pytest.raises(BadImage, match=r"a\.jpg: .*upright"):
            maps.load(maps.pairs[0])
    else:
        assert maps.load(maps.pairs[0])[0].size == (7, 5)
        with pytest.raises(BadImage, match=r"a\.png: .*got 5 x 7"):
            maps.load(maps.pairs[0], upright=True)


DAMAGE = [
    (lambda tree: [path.unlink() for path in tree.rglob("*.png")], ValueError, r"such as a\.png"),
    (lambda tree: [path.unlink() for path in tree.rglob("*.jpg")], ValueError, "images"),
    (lambda tree: (tree / "classes.txt").unlink(), FileNotFoundError, r"classes\.txt or objectInfo150\.txt"),
    (lambda tree: (tree / "classes.txt").write_text("\n".join(map(str, range(256)))), ValueError, "got 256"),
    (lambda tree: (tree / "annotations").rename(tree / "masks"), FileNotFoundError, "annotations/training"),
    (lambda tree: save(tree / MAPS / "a.png", np.full((5, 7), 4, np.uint8)), BadImage, r"a\.png: .*got 4"),
    (lambda tree: save(tree / MAPS / "b.png", np.zeros((4, 9), np.uint8)), BadImage, r"b\.png: .*got 4 x 9"),
    (lambda tree: save(tree / MAPS / "a.png", np.zeros((5, 7, 3), np.uint8)), BadImage, r"a\.png: .*\(5, 7, 3\)"),
    (lambda tree: os.truncate(tree / MAPS / "more/c.png", 50), BadImage, r"more/c\.png: "),
    (lambda tree: (tree / MAPS / "b.png").write_bytes(b"<html>"), BadImage, r"b\.png: "),
    (lambda tree: turn(tree / MAPS / "a.png"), BadImage, r"a\.png: .*EXIF"),
    (lambda tree: save(tree / MAPS / "a.png", np.full((5, 7), 3000, np.uint16)), BadImage, r"a\.png: .*got 3000"),
]


@pytest.mark.parametrize(("damage", "kind", "sentence"), DAMAGE)
def test_what_is_missing_or_does_not_fit_is_named(tree, damage, kind, sentence):
    damage(tree)
    with pytest.raises(kind, match=sentence):
        load_all(find_label_maps(tree, "training", reduce_zero_label=True))


def test_classes_from_zero_are_not_shifted_unnoticed(tree):
    for path in (tree / "annotations/training").rglob("*.png"):
        save(path, np.minimum(np.asarray(Image.open(path)), 2))
    found = load_all(find_label_maps(tree, "training"))
    assert set(np.concatenate([labels.ravel() for labels in found])) == {0, 1, 2}
    (sentence,) = find_label_maps(tree, "training", reduce_zero_label=True).doubts()
    assert "contain 0 but not 3" in sentence


# The folder of masks, values in them, and the values and names of the classes that are found; None is refused.
FLAT = [
    ("masks", (0, 1, 2), (0, 1, 2), ["value 0", "value 1", "value 2"]),
    ("photos/masks", (3, 7, IGNORED), (3, 7), ["value 3", "value 7"]),
    ("masks", (0, IGNORED), (0, IGNORED), ["background", "object"]),
    ("masks", (1, IGNORED), None, r"got 1, 255\."),
]


@pytest.mark.parametrize(("folder", "written", "values", "names"), FLAT)
def test_a_folder_of_images_and_a_folder_of_masks(folder, written, values, names, tmp_path, monkeypatch):
    """In the folder of images or relative to the working folder; an image without a mask is left out."""
    monkeypatch.chdir(tmp_path)
    pixels = np.resize(np.array(written, np.uint8), (5, 7))
    for name in ("a", "b"):
        save(tmp_path / f"photos/{name}.jpg", np.zeros((5, 7, 3), np.uint8))
    save(tmp_path / folder / "a.png", pixels)
    if values is None:
        with pytest.raises(ValueError, match=names):
            find_label_maps("photos", "", ann_dir="masks")
        return
    maps = find_label_maps("photos", "", ann_dir="masks")
    assert (maps.values, maps.classes, maps.missing) == (values, names, ("b.png",))
    assert "left out: 1" in maps.doubts()[0]
    ((_, labels),) = [maps.load(pair) for pair in maps.pairs]
    expected = [[values.index(one) if one in values else IGNORED for one in row] for row in pixels]
    assert labels.tolist() == expected
    reduced = find_label_maps("photos", "", ann_dir="masks", reduce_zero_label=True)
    assert (reduced.values, reduced.doubts()[1:]) == (tuple(value for value in values if value), [])
    # In one folder, no mask is an image.
    save(tmp_path / "photos/a.png", pixels)
    assert [image.name for image, _ in find_label_maps("photos", "", ann_dir=".").pairs] == ["a.jpg"]
    (tmp_path / "photos/a.png").unlink()
    (tmp_path / "classes.txt").write_text("sky\nground\nsea\n")
    assert find_label_maps("photos", "", ann_dir="masks").classes == ["sky", "ground", "sea"]
