"""Trees in ADE20K's layout: what is found, what is read, and what is refused before a run begins."""

import numpy as np
import pytest
from PIL import Image

from soft_vit.data.images import BadImage
from soft_vit.data.label_maps import IGNORED, find_label_maps

CLASSES = ["ground", "disc", "bar"]


def save(path, array, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(path)


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
    assert [maps.load(pair)[1].shape for pair in maps.pairs] == [(5, 7), (9, 4), (5, 7)]


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


def test_names_come_from_the_list_of_ade20k(tree):
    (tree / "classes.txt").unlink()
    rows = ["Idx\tRatio\tTrain\tVal\tStuff\tName", "1\t0.15\t1\t2\t1\twall", "2\t0.1\t3\t4\t1\tbuilding, edifice", ""]
    (tree / "objectInfo150.txt").write_text("\n".join(rows))
    assert find_label_maps(tree, "training").classes == ["wall", "building"]


def without_maps(tree):
    (tree / "annotations/training/a.png").unlink()
    (tree / "annotations/training/more/c.png").unlink()


def without_images(tree):
    for path in (tree / "images/training").rglob("*.jpg"):
        path.unlink()


FINDING = [
    (without_maps, ValueError, r"2 of 3 .*a\.png"),
    (without_images, ValueError, "images"),
    (lambda tree: (tree / "classes.txt").unlink(), FileNotFoundError, r"classes\.txt or objectInfo150\.txt"),
    (lambda tree: (tree / "annotations").rename(tree / "masks"), FileNotFoundError, "annotations/training"),
]


@pytest.mark.parametrize(("damage", "kind", "sentence"), FINDING)
def test_what_is_missing_is_named(tree, damage, kind, sentence):
    damage(tree)
    with pytest.raises(kind, match=sentence):
        find_label_maps(tree, "training")


def cut(path):
    path.write_bytes(path.read_bytes()[:50])


CHECKING = [
    (lambda folder: save(folder / "a.png", np.full((5, 7), 4, np.uint8)), r"a\.png: .*got 4"),
    (lambda folder: save(folder / "b.png", np.zeros((4, 9), np.uint8)), r"b\.png: .*got 4 x 9"),
    (lambda folder: save(folder / "a.png", np.zeros((5, 7, 3), np.uint8)), r"a\.png: .*\(5, 7, 3\)"),
    (lambda folder: cut(folder / "more/c.png"), r"more/c\.png: "),
    (lambda folder: (folder / "b.png").write_bytes(b"<html>"), r"b\.png: "),
    (lambda folder: save(folder / "a.png", np.full((5, 7), 3000, np.uint16)), r"a\.png: .*got 3000"),
]


@pytest.mark.parametrize(("damage", "sentence"), CHECKING)
def test_label_maps_that_do_not_fit_are_named(tree, damage, sentence):
    damage(tree / "annotations/training")
    maps = find_label_maps(tree, "training", reduce_zero_label=True)
    with pytest.raises(BadImage, match=sentence):
        [maps.load(pair) for pair in maps.pairs]


def test_the_highest_class_depends_on_the_meaning_of_zero(tree):
    """3 is the last of three classes where 0 means unlabelled, and out of range where 0 is the first class."""
    save(tree / "annotations/training/a.png", np.full((5, 7), 3, np.uint8))
    maps = find_label_maps(tree, "training", reduce_zero_label=True)
    assert maps.load_labels(maps.pairs[0][1]).max() == 2
    assert maps.doubts() == []
    maps = find_label_maps(tree, "training")
    with pytest.raises(BadImage, match=r"got 3.*reduce_zero_label=True"):
        maps.load_labels(maps.pairs[0][1])


def test_classes_from_zero_are_not_shifted_unnoticed(tree):
    for path in (tree / "annotations/training").rglob("*.png"):
        save(path, np.minimum(np.asarray(Image.open(path)), 2))
    maps = find_label_maps(tree, "training")
    assert set(np.concatenate([maps.load(pair)[1].ravel() for pair in maps.pairs])) == {0, 1, 2}
    (sentence,) = find_label_maps(tree, "training", reduce_zero_label=True).doubts()
    assert "contain 0 but not 3" in sentence
